"""The change feed: a stream to each tab that is looked at, which tells that something has changed
(server-sent events, HTML Living Standard 9.2). What has changed the page asks for itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from django.db import DatabaseError, close_old_connections, connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from scheduling.queries.marks import marks
from tenants.api.problems import not_available
from tenants.outage import STREAMS
from tenants.web.conditional import digest_of

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks whether something has changed, however many listen
BEAT_S = 5.0  # a stream says at least so often that nothing has
LASTS_S = 600.0  # then its page asks for another, and whoever has signed out gets none
MOST_STREAMS = 500  # of a process


class Feed:
    """What the streams of this process tell. All but `_look` happens in the thread of its event
    loop; `_look` has one of its own, while anybody listens."""

    def __init__(self) -> None:
        self.listening = 0
        self._ended = False
        self._mark = ""
        self._news = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "feed")

    @property
    def is_full(self) -> bool:
        return self.listening >= MOST_STREAMS

    async def stream(self, known: str) -> AsyncIterator[bytes]:
        """Events, each with what to name as known to go on after it; "" = nothing is known."""
        if self._ended or self.is_full:
            return
        self.listening += 1
        if self._watch is None:
            self._watch = asyncio.create_task(self._watched())
        loop = asyncio.get_running_loop()
        until = loop.time() + LASTS_S
        try:
            while loop.time() < until and self._watch is not None:
                news = self._news
                if self._mark:
                    kind = "same" if self._mark == known else "changed"
                    known = self._mark
                    yield f"event: {kind}\nid: {known}\ndata:\n\n".encode()
                await _set_within(news, BEAT_S)
        finally:
            self.listening -= 1
            if not self.listening:
                self._stop()

    def end(self) -> None:
        """End all streams, and have no others: the process is about to end."""
        self._ended = True
        self._stop()

    def _stop(self) -> None:
        watch, self._watch, self._mark = self._watch, None, ""
        if watch is not None:
            watch.cancel()
        self._tell()

    async def _watched(self) -> None:
        """Look while anybody listens; where the database does not answer, all streams end, and
        their pages ask by themselves and say so."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                mark = await loop.run_in_executor(self._thread, copy_context().run, _look)
                if mark != self._mark:
                    self._mark = mark
                    self._tell()
                await asyncio.sleep(LOOK_S)
        except DatabaseError as error:
            log.warning("the change feed ends, pages ask by themselves: %s", error)
            self._stop()

    def _tell(self) -> None:
        told, self._news = self._news, asyncio.Event()
        told.set()


def _look() -> str:
    """What is another text whenever something has changed."""
    try:
        return digest_of(marks())
    finally:
        connection.close()  # one of the pool is for all


async def _set_within(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return


feed = Feed()


@require_GET
def changes(request: HttpRequest) -> HttpResponseBase:
    """It tells nobody what has changed, so whoever is signed in may have it. Whoever has signed out
    is answered 204, after which no browser asks again; the page itself leads to the sign-in."""
    if not request.user.is_authenticated:
        return HttpResponse(status=204)
    if feed.is_full:
        return not_available(request, STREAMS)
    known = request.headers.get("Last-Event-ID", "")
    # A connection of the pool is not kept from others while the stream lasts; one in a transaction
    # is for who began that.
    if not connection.in_atomic_block:
        close_old_connections()
    return StreamingHttpResponse(
        feed.stream(known),
        content_type="text/event-stream",
        # nginx would keep events until it has a page of them.
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
