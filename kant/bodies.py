"""Limits on requests, checked before anything is read or the sender is identified."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from django.conf import settings

from tenants.api.problems import API, CONTENT_TYPE, problem

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

# Without token or session, people only sign in or request a token: a name and a password.
MOST_ANONYMOUS = 64 * 1024
# Path and query; longer than any filter of a page or of REST.
MOST_ADDRESS = 16 * 1024
# A client that is still sending does not read an answer, so go on receiving for this long.
LINGER_S = 1.0
PAUSE_S = 60.0  # between two parts of a body


class TooLarge(Exception):
    """More arrived than the request may contain."""


class TooSlow(Exception):
    """The next part of the body did not arrive in time."""


class BoundedBodies:
    """An ASGI application that refuses oversized or stalled requests instead of calling `app`.

    It answers 413 to bodies of more than DATA_UPLOAD_MAX_MEMORY_SIZE bytes (64 KiB without token or
    session), 408 to bodies that pause for longer than PAUSE_S, and 414 to addresses of more than 16
    KiB. Oversized bodies are not kept, in memory or on disk.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_ADDRESS:
            await _refuse(scope, receive, send, "address-too-long")
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if not _names_somebody(headers):
            most = min(most, MOST_ANONYMOUS)
        if _declared(headers) > most:
            await _refuse(scope, receive, send, "too-large")
            return
        left, whole, begun = most, False, False

        async def counted() -> Message:
            nonlocal left, whole
            try:
                # After the whole body only the client's disconnection follows.
                async with asyncio.timeout(None if whole else PAUSE_S):
                    message = await receive()
            except TimeoutError:
                raise TooSlow from None
            whole = not message.get("more_body")
            left -= len(message.get("body", b""))
            if left < 0:
                raise TooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except (TooLarge, TooSlow) as error:
            if begun:
                raise
            code = "too-large" if isinstance(error, TooLarge) else "too-slow"
            await _refuse(scope, receive, send, code)


def _names_somebody(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a token or session is sent; whether it is valid is checked later."""
    if headers.get(b"authorization", b"").lower().startswith(b"bearer "):
        return True
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return False
    return settings.SESSION_COOKIE_NAME in cookies


def _declared(headers: Mapping[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"0")
    return int(text) if text.isdigit() and len(text) < 19 else 0


async def _refuse(scope: dict[str, Any], receive: Receive, send: Send, code: str) -> None:
    path, request_id = scope["path"][:200], uuid.uuid4().hex
    told = problem(path, request_id, code)
    if path.startswith(API):
        kind, text = CONTENT_TYPE, json.dumps(told)
    else:
        kind, text = "text/plain; charset=utf-8", f"{told['title']}. {told['detail']}\n"
    body = text.encode()
    await send(
        {
            "type": "http.response.start",
            "status": told["status"],
            "headers": [
                (b"content-type", kind.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", request_id.encode()),
                # Otherwise the rest of the body would be read as the next request.
                (b"connection", b"close"),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": True})
    try:
        async with asyncio.timeout(LINGER_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    break
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})
