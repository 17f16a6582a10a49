"""Answers that are sent only where the reader does not have them already (RFC 9110, 13).

A page that is open asks every few seconds. Its answer is named by what it was made of, so that
whoever has it still is told 304 before anything is drawn.
"""

import hashlib
import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.cache import get_conditional_response, patch_cache_control, patch_vary_headers

from tenants.permissions import Access

# Words like “3 min ago” grow old though nothing changes: an answer holds for so long at most.
WORDS_LAST_S = 10


def conditional(
    request: HttpRequest, access: Access, marks: object, make: Callable[[], HttpResponse]
) -> HttpResponse:
    """What `make` answers to whoever asks with these rights, or 304 where a page that is open has
    it. A whole page is made always: it also tells what its reader has done.

    `marks`: its `repr` changes whenever the answer does, for the same reader and address. That the
    reader may have the answer at all is checked before.
    """
    if not request.headers.get("HX-Request"):
        return make()
    reader = (
        # Forms in the answer carry a secret of the session.
        request.session.session_key, access.user_id, access.operator,
        sorted(access.roles.items()), sorted(access.from_above), request.get_full_path(),
    )  # fmt: skip
    return tagged(request, (reader, marks, words_of_now()), make)


def by_its_text(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """An answer that costs little to make, or that nothing but itself tells to have changed: 304
    where a page that is open has the same."""
    if not request.headers.get("HX-Request") or answer.status_code != 200:
        return answer
    return tagged(request, answer.content, lambda: answer)


def tagged(request: HttpRequest, content: object, make: Callable[[], HttpResponse]) -> HttpResponse:
    """Likewise, where `content` alone names the answer, whoever asks: e.g. its own text."""
    tag = f'W/"{digest_of(content)}"'
    refused = get_conditional_response(request, etag=tag)
    answer = make() if refused is None else refused
    if not isinstance(answer, HttpResponseNotModified) and answer.status_code != 200:
        return answer
    answer["ETag"] = tag
    patch_cache_control(answer, private=True, no_cache=True)
    # A page and its live part have one address.
    patch_vary_headers(answer, ("Cookie", "Authorization", "HX-Request"))
    return answer


def digest_of(content: object) -> str:
    """Another short text for other content, by what `repr` tells of it."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:24]


def words_of_now() -> int:
    """Changes as soon as words of time are too old."""
    return int(time.time() // WORDS_LAST_S)
