"""A secret on its way from the request that makes it to the page that shows it, once.

The session and a cookie of this browser have one half each, of which neither tells anything about
the secret: one is random, the other is the secret with every byte changed by it. Whoever reads the
database, or the browser's files, finds half a secret, and the first page that is shown ends both.
"""

import secrets

from django.conf import settings
from django.http import HttpRequest, HttpResponse

COOKIE = "kant_shown_once"
MOST_S = 120  # a redirect takes no longer


def hand_over(
    request: HttpRequest, response: HttpResponse, key: str, secret: str, path: str = ""
) -> None:
    """Keep `secret` for the next page that this browser opens below `path`, by default that of
    `request`."""
    pad = secrets.token_bytes(len(secret.encode()))
    request.session[key] = _mixed(secret.encode(), pad).hex()
    response.set_cookie(
        COOKIE,
        pad.hex(),
        max_age=MOST_S,
        path=path or request.path,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Strict",
    )


def take(request: HttpRequest, key: str) -> str | None:
    """The secret, for this answer alone; None where it was taken, or a half of it is gone."""
    sealed, pad = request.session.pop(key, None), request.COOKIES.get(COOKIE, "")
    try:
        halves = bytes.fromhex(sealed or ""), bytes.fromhex(pad)
    except ValueError:
        return None  # not our cookie
    if not halves[0] or len(halves[0]) != len(halves[1]):
        return None
    try:
        return _mixed(*halves).decode()
    except UnicodeDecodeError:
        return None  # the halves are not of one secret


def forget(request: HttpRequest, response: HttpResponse) -> None:
    """Take the browser's half back."""
    response.delete_cookie(COOKIE, path=request.path, samesite="Strict")


def _mixed(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
