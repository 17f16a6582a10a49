"""Live parts of pages, which are asked for every few seconds by each page that is open."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from scheduling.queries.kept import kept_while
from scheduling.queries.marks import marks
from tenants.permissions import Access
from tenants.web.conditional import conditional, digest_of, tagged, words_of_now


def polled(
    request: HttpRequest, access: Access, make: Callable[[], HttpResponse], *, alike: bool
) -> HttpResponse:
    """What `make` answers at this address while nothing has changed, or 304 for who has it. A whole
    page is made always.

    `alike`: the live part is the same for all who have these rights, and has no form: it is made
    once for all of them. That the reader may open the page is checked before.
    """
    if not request.headers.get("HX-Request"):
        return make()
    if not alike:
        return conditional(request, access, marks(), make)
    rights = access.operator, sorted(access.roles.items()), sorted(access.from_above)
    named = digest_of((rights, request.get_full_path()))
    text = kept_while(f"live:{named}", (marks(), words_of_now()), lambda: make().content)
    return tagged(request, text, lambda: HttpResponse(text))
