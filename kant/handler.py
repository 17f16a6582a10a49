"""Django behind an ASGI server: one of a few lasting threads makes an answer from start to end.

Django's own handler gives each request a new thread, which starts without connections to the cache,
and switches between it and the event loop for every middleware and signal.
"""

import asyncio
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.urls import set_script_prefix

from kant.bodies import Receive, Send
from kant.health import PROBES
from kant.postgresql import REQUEST_S, bounded
from tenants.api.problems import not_available
from tenants.outage import THREADS
from tenants.web.listeners import listened_to


class Handler(ASGIHandler):
    """Answers at most REQUEST_THREADS requests at once.

    Other requests wait for a thread; after REQUEST_WAIT_S they are told that Kant is busy (503).
    Answers that are streamed asynchronously need no thread while they last, and probes have their
    own.
    """

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._threads = ThreadPoolExecutor(settings.REQUEST_THREADS, "request")
        self._probes = ThreadPoolExecutor(1, "probe")

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body = await _whole(receive)
        if body is None:
            return
        gone = threading.Event()
        leaves = asyncio.ensure_future(_leaves(receive, gone))
        try:
            answer = await self._made(scope, body, leaves, gone)
        finally:
            leaves.cancel()
        if answer is None:
            return
        # The same as when the client leaves during an answer: nobody is left to tell.
        with suppress(asyncio.CancelledError):
            if answer.streaming:
                await self._streamed(answer, receive, send)
            else:
                await self.send_response(answer, send)

    async def _made(
        self,
        scope: dict[str, Any],
        body: bytes,
        leaves: "asyncio.Future[None]",
        gone: threading.Event,
    ) -> Any:
        """Return the answer; None if the client left (`gone`) before a thread was free."""
        threads = self._probes if scope["path"] in PROBES else self._threads
        job = threads.submit(self._answered, scope, body, gone)
        waiting = asyncio.wrap_future(job)
        await asyncio.wait(
            (waiting, leaves), timeout=settings.REQUEST_WAIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        # A running job cannot be cancelled, so wait for it.
        if job.cancel():
            return None if gone.is_set() else self._busy(scope)
        return await waiting

    def _answered(self, scope: dict[str, Any], body: bytes, gone: threading.Event) -> Any:
        """Make the answer in this thread.

        An answer that is not streamed is closed here: its database connection is free before the
        client has read it.
        """
        with bounded(REQUEST_S), listened_to(gone):
            set_script_prefix(get_script_prefix(scope))
            signals.request_started.send(sender=self.__class__, scope=scope)
            request, refusal = self.create_request(scope, io.BytesIO(body))
            answer: Any = refusal if request is None else self.get_response(request)
            if not answer.streaming:
                answer.close()
            return answer

    def _busy(self, scope: dict[str, Any]) -> Any:
        request, refusal = self.create_request(scope, io.BytesIO())
        return refusal if request is None else not_available(request, THREADS)

    async def _streamed(self, answer: Any, receive: Receive, send: Send) -> None:
        """Stream the answer until its end or until the client leaves."""
        async with ThreadSensitiveContext():
            told = asyncio.ensure_future(self.send_response(answer, send))
            gone = asyncio.ensure_future(receive())
            try:
                await asyncio.wait((told, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                if not told.done():
                    told.cancel()
                await asyncio.wait((told, gone))
                await sync_to_async(answer.close)()
            if not told.cancelled():
                told.result()


async def _leaves(receive: Receive, gone: threading.Event) -> None:
    """End when the client leaves; nothing else follows the body."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _whole(receive: Receive) -> bytes | None:
    """Return the body, whose size was limited before; None if the client leaves instead."""
    parts: list[bytes] = []
    while (message := await receive())["type"] != "http.disconnect":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
    return None
