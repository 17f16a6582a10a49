"""Kant for an ASGI server, uvicorn."""

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from types import FrameType
from typing import Any

import django

from kant.ending import ending
from kant.postgresql import REQUEST_S, bounded

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")


def _bounded() -> Callable[..., Awaitable[None]]:
    django.setup(set_prefix=False)
    # These imports need Django, which was set up above.
    from django.urls import get_resolver

    from kant.answers import TakenAnswers
    from kant.bodies import BoundedBodies
    from kant.handler import Handler

    # Load all views before the server listens: the first requests would wait for them, some too
    # long.
    assert get_resolver().url_patterns
    return TakenAnswers(BoundedBodies(Handler()))


_django = _bounded()

_is_bounded = False

Event = Mapping[str, Any]


async def application(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[Event]],
    send: Callable[[Event], Awaitable[None]],
) -> None:
    global _is_bounded
    if not _is_bounded:
        # By now the server has installed its signal handlers, whether it knows lifespans or not.
        _is_bounded = True
        ending.on(signal.SIGTERM)
    if scope["type"] != "lifespan":
        with bounded(REQUEST_S):
            await _django(scope, receive, send)
        return
    await receive()
    _end_streams_by_signal()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


def _end_streams_by_signal() -> None:
    """End endless answers when the server is told to stop.

    A server waits for all answers before it announces its shutdown, but the log of a running
    container, and the change feed of a page, never end. So the server's signal ends them, too.
    """
    # Their models need Django, which was set up above.
    from scheduling.pages.feed import feed
    from scheduling.queries.pod_logs import stop_reading

    if threading.current_thread() is not threading.main_thread():
        return  # a server has no signals there either
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        server = signal.getsignal(number)
        if not callable(server):
            continue

        def end(number: int, frame: FrameType | None, server: Any = server) -> None:
            loop.call_soon_threadsafe(stop_reading)
            loop.call_soon_threadsafe(feed.end)
            server(number, frame)

        signal.signal(number, end)
