"""Live parts of pages, which every open page requests every few seconds."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from scheduling.queries.kept import kept_while
from scheduling.queries.marks import marks
from tenants.permissions import Access
from tenants.web.conditional import conditional, digest_of, tagged, words_of_now


def polled(
    request: HttpRequest, access: Access, make: Callable[[], HttpResponse], *, alike: bool
) -> HttpResponse:
    """Return what `make` answers at this address, cached while nothing changes, or 304 for a reader
    who has it.

    Full pages are always rendered. `alike`: the live part is the same for everybody with these
    rights and contains no form, so it is rendered once for all of them. The caller has checked that
    the reader may open the page.
    """
    if not request.headers.get("HX-Request"):
        return make()
    if not alike:
        return conditional(request, access, marks(), make)
    rights = access.operator, sorted(access.roles.items()), sorted(access.from_above)
    named = digest_of((rights, request.get_full_path()))
    text = kept_while(f"live:{named}", (marks(), words_of_now()), lambda: make().content)
    return tagged(request, text, lambda: HttpResponse(text))
