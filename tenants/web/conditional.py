"""Conditional answers: sent only if the reader does not already have them (RFC 9110, section 13).

An open page asks every few seconds. Its answer has a tag made from the answer's inputs, so a reader
that has it gets 304 before anything is rendered.
"""

import hashlib
import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.cache import get_conditional_response, patch_cache_control, patch_vary_headers

from tenants.permissions import Access

# Words like “3 min ago” go stale even when nothing changes, so an answer is valid this long at
# most.
WORDS_LAST_S = 10


def conditional(
    request: HttpRequest, access: Access, marks: object, make: Callable[[], HttpResponse]
) -> HttpResponse:
    """Return what `make` answers, or 304 when the open page of a reader with these rights already
    has it.

    Full page loads are always rendered, because they also report what their reader has just done.
    `marks`: its `repr` must change whenever the answer does, for the same reader and address. The
    caller has checked that the reader may have the answer.
    """
    if not request.headers.get("HX-Request"):
        return make()
    reader = (
        # Forms in the answer contain a secret of the session.
        request.session.session_key, access.user_id, access.operator,
        sorted(access.roles.items()), sorted(access.from_above), request.get_full_path(),
    )  # fmt: skip
    return tagged(request, (reader, marks, words_of_now()), make)


def by_its_text(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """Return the answer, or 304 when an open page has the same one. For answers that are cheap to
    make, or whose changes only their own text shows."""
    if not request.headers.get("HX-Request") or answer.status_code != 200:
        return answer
    return tagged(request, answer.content, lambda: answer)


def tagged(request: HttpRequest, content: object, make: Callable[[], HttpResponse]) -> HttpResponse:
    """The same for an answer that `content` alone identifies for every reader, e.g. its own
    text."""
    tag = f'W/"{digest_of(content)}"'
    refused = get_conditional_response(request, etag=tag)
    answer = make() if refused is None else refused
    if not isinstance(answer, HttpResponseNotModified) and answer.status_code != 200:
        return answer
    answer["ETag"] = tag
    patch_cache_control(answer, private=True, no_cache=True)
    # A page and its live part share an address.
    patch_vary_headers(answer, ("Cookie", "Authorization", "HX-Request"))
    return answer


def digest_of(content: object) -> str:
    """Return a short text that differs for other content, judged by its `repr`."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:24]


def words_of_now() -> int:
    """Return a number that changes when relative times become stale."""
    return int(time.time() // WORDS_LAST_S)
