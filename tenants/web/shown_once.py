"""Carry a secret from the request that creates it to the one page that shows it.

The session and a cookie each hold one half, and neither half reveals anything about the secret: one
is random, the other is the secret XORed with it. A reader of the database or of the browser's files
finds only one half, and the first page that shows the secret deletes both.
"""

import secrets

from django.conf import settings
from django.http import HttpRequest, HttpResponse

COOKIE = "kant_shown_once"
MOST_S = 120  # a redirect takes no longer


def hand_over(
    request: HttpRequest, response: HttpResponse, key: str, secret: str, path: str = ""
) -> None:
    """Keep `secret` for the next page that this browser opens below `path` (default: that of
    `request`)."""
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
    """Return the secret, for this answer only; None when it was taken before or a half is
    missing."""
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
    """Delete the browser's half."""
    response.delete_cookie(COOKIE, path=request.path, samesite="Strict")


def _mixed(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
