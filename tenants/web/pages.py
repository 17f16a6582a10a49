"""What the pages of all apps share: who may open them, and how an error of a use case looks."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import TooManyFieldsSent
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    QueryDict,
)
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.http import url_has_allowed_host_and_scheme

from tenants.models import User
from tenants.names import Names

# The longest path and query that `kant.bodies` accepts; Django redirects to none longer.
LONGEST_ADDRESS = 16 * 1024
# The longest page address that Django accepts from the sign-in form for the way back.
LONGEST_NEXT = 2048
Answer = TypeVar("Answer", bound=HttpResponseBase)


def page_login_required(view: Callable[..., Answer]) -> Callable[..., Answer | HttpResponse]:
    """Require sign-in. A fragment that updates itself reloads its page instead of showing a form; a
    page whose input is being checked stays, since a reload would lose the input."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Answer | HttpResponse:
        if request.user.is_authenticated:
            _refuse_nul(request, kwargs.values())
            return view(request, *args, **kwargs)
        if request.headers.get("HX-Request"):
            reload = {"HX-Refresh": "true"} if request.method in ("GET", "HEAD") else None
            return HttpResponse(status=401, headers=reload)
        return to_sign_in(_way_back(request))

    return checked


def _refuse_nul(request: HttpRequest, parts: Iterable[object]) -> None:
    """Raise Http404 for NUL, which PostgreSQL cannot even compare with text."""
    if any("\0" in str(text) for text in (*parts, *request.GET.values(), *request.POST.values())):
        raise Http404("Neither an address nor a form can contain a NUL character.")


def to_sign_in(page: str) -> HttpResponse:
    """Redirect to the sign-in form, and from there to `page`, without its query if that is too
    long."""
    path = page.partition("?")[0]
    found = (each for each in (page, path, "/") if len(each) <= LONGEST_NEXT)
    return redirect_to_login(next(found))


def to_list(path: str, query: QueryDict) -> HttpResponse:
    """Redirect to a list as the reader had it; without its filters if the address would be too long
    or contain NUL."""
    said = query.urlencode()  # may be longer than the original
    usable = "%00" not in said and len(path) + len(said) < LONGEST_ADDRESS
    return HttpResponseRedirect(f"{path}?{said}" if said and usable else path)


def sent_back(request: HttpRequest) -> QueryDict:
    """Return the query string of the form's page, which sends it as `back`; empty if no page can
    have sent it. The result is mutable."""
    try:
        return QueryDict(request.POST.get("back", ""), mutable=True)
    except TooManyFieldsSent:
        return QueryDict(mutable=True)


def _way_back(request: HttpRequest) -> str:
    """Return where to continue after sign-in: a page, never an address that only accepts POST."""
    if request.method in ("GET", "HEAD"):
        return request.get_full_path()
    origin = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(
        origin, {request.get_host()}, require_https=request.is_secure()
    ):
        return "/"
    page = urlsplit(origin)
    return page.path + (f"?{page.query}" if page.query else "")


@dataclass(frozen=True, slots=True)
class UnknownFilter:
    """A filter in a list's address that names nothing known, and so matches nothing.

    `name`: of the parameter. `text`: a sentence without its full stop.
    """

    name: str
    value: str
    text: str


def unknown_names(
    request: HttpRequest, filters: Collection[str], *places: str
) -> dict[str, UnknownFilter]:
    """Return the parameters in a list's address, by name, that are neither filters nor positions in
    the list."""
    there_are = ", ".join(filters)
    return {
        name: UnknownFilter(
            name, str(value), f"There is no filter “{name}” here; the filters are {there_are}"
        )
        for name, value in request.GET.items()
        if name not in (*filters, *places)
    }


def unknown_values(
    filters: Mapping[str, str], known: Mapping[str, Names]
) -> dict[str, UnknownFilter]:
    """Return the filters, by name, whose value is not in `known`; an empty one matches
    everything."""
    return {
        name: UnknownFilter(name, filters[name], names.none_such(filters[name]))
        for name, names in known.items()
        if filters[name] and filters[name] not in names
    }


def live_or_whole(request: HttpRequest, template: str) -> str:
    """Return the page's template, or that of its live part, `_NAME_live.html` next to it, when an
    open page refreshes itself."""
    if not request.htmx:  # type: ignore[attr-defined]
        return template
    folder, _, name = template.rpartition("/")
    return f"{folder}/_{name.removesuffix('.html')}_live.html"


class FriendlyNotAllowed:
    """Shows a page instead of a blank answer when an address does not accept the method."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.get_response(request)
        if not isinstance(answer, HttpResponseNotAllowed) or request.path.startswith("/api/"):
            return answer
        page = render(request, "405.html", status=405)
        page["Allow"] = answer["Allow"]
        return page


def actor_of(request: HttpRequest) -> User:
    """Return the signed-in user of a page behind `page_login_required`."""
    assert isinstance(request.user, User)
    return request.user
