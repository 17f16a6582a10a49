"""What pages of all apps share: who may open them, and how a use case's refusal looks."""

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

# Of path and query, as `kant.bodies` takes them; Django sends nobody to a longer one.
LONGEST_ADDRESS = 16 * 1024
# Of the page to come back to: Django takes no longer one from the form for signing in.
LONGEST_NEXT = 2048
Answer = TypeVar("Answer", bound=HttpResponseBase)


def page_login_required(view: Callable[..., Answer]) -> Callable[..., Answer | HttpResponse]:
    """Ask to sign in. A fragment that updates itself reloads its page instead of showing a form;
    a page whose edits are being checked stays as it is, for a reload would lose them."""

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
    """Raises Http404 for what PostgreSQL cannot even compare with a text."""
    if any("\0" in str(text) for text in (*parts, *request.GET.values(), *request.POST.values())):
        raise Http404("Neither an address nor a form can contain a NUL character.")


def to_sign_in(page: str) -> HttpResponse:
    """To the form for signing in, and from there to `page`; without its query where that makes it
    too long to come back to."""
    path = page.partition("?")[0]
    found = (each for each in (page, path, "/") if len(each) <= LONGEST_NEXT)
    return redirect_to_login(next(found))


def to_list(path: str, query: QueryDict) -> HttpResponse:
    """To a list as it was looked at; without its filters where they make an address that no
    browser is sent to, or that no list answers."""
    said = query.urlencode()  # can be longer than it came
    usable = "%00" not in said and len(path) + len(said) < LONGEST_ADDRESS
    return HttpResponseRedirect(f"{path}?{said}" if said and usable else path)


def sent_back(request: HttpRequest) -> QueryDict:
    """What stands behind `?` of the page with the form, which sends it as `back`; empty where no
    page can have sent it. It may be changed."""
    try:
        return QueryDict(request.POST.get("back", ""), mutable=True)
    except TooManyFieldsSent:
        return QueryDict(mutable=True)


def _way_back(request: HttpRequest) -> str:
    """Where to go on after signing in: a page, never an address that only takes a button."""
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
    """A filter in the address of a list that names nothing there is; nothing matches it.

    `name`: of the parameter. `text`: a sentence without its full stop.
    """

    name: str
    value: str
    text: str


def unknown_names(
    request: HttpRequest, filters: Collection[str], *places: str
) -> dict[str, UnknownFilter]:
    """The parameters in the address of a list that are neither filters of it nor say where its page
    begins, by name."""
    there_are = ", ".join(filters)
    return {
        name: UnknownFilter(
            name, str(value), f"There is no filter “{name}” here; there are {there_are}"
        )
        for name, value in request.GET.items()
        if name not in (*filters, *places)
    }


def unknown_values(
    filters: Mapping[str, str], known: Mapping[str, Names]
) -> dict[str, UnknownFilter]:
    """The filters that name nothing of what is `known`, by name; an empty one names all."""
    return {
        name: UnknownFilter(name, filters[name], names.none_such(filters[name]))
        for name, names in known.items()
        if filters[name] and filters[name] not in names
    }


def live_or_whole(request: HttpRequest, template: str) -> str:
    """The template of a page; that of its live part, `_NAME_live.html` beside it, where a page that
    is open asks for the present state."""
    if not request.htmx:  # type: ignore[attr-defined]
        return template
    folder, _, name = template.rpartition("/")
    return f"{folder}/_{name.removesuffix('.html')}_live.html"


class FriendlyNotAllowed:
    """A page in place of the blank answer of an address that does not take the method."""

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
    """The signed-in user of a page behind `page_login_required`."""
    assert isinstance(request.user, User)
    return request.user
