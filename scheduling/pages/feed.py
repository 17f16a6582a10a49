"""The change feed: an event stream to each visible tab, which says that something has changed
(server-sent events, HTML Living Standard 9.2). The page then asks for the new state itself."""

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

LOOK_S = 1.0  # between two checks for changes, however many tabs listen
BEAT_S = 5.0  # at least this often, a stream says that nothing has changed
LASTS_S = 600.0  # then the page must reconnect; whoever has signed out gets no new stream
MOST_STREAMS = 500  # per process


class Feed:
    """The streams of this process. Everything runs in the event loop's thread except `_look`, which
    has its own thread while anybody listens."""

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
        """Yield events, each with the mark to resume from; `known` is such a mark, "" = none."""
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
        """End all streams and refuse new ones: the process is about to end."""
        self._ended = True
        self._stop()

    def _stop(self) -> None:
        watch, self._watch, self._mark = self._watch, None, ""
        if watch is not None:
            watch.cancel()
        self._tell()

    async def _watched(self) -> None:
        """Look for changes while anybody listens. If the database does not answer, end all streams;
        their pages then poll and say so."""
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
    """Return a text that differs whenever something has changed."""
    try:
        return digest_of(marks())
    finally:
        connection.close()  # return the connection to the pool


async def _set_within(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return


feed = Feed()


@require_GET
def changes(request: HttpRequest) -> HttpResponseBase:
    """Serve the change feed to any signed-in user, because it does not reveal what has changed.

    Others get 204, which stops browsers from reconnecting; the page itself redirects to the
    sign-in.
    """
    if not request.user.is_authenticated:
        return HttpResponse(status=204)
    if feed.is_full:
        return not_available(request, STREAMS)
    known = request.headers.get("Last-Event-ID", "")
    # Do not occupy a connection of the pool during the stream. A connection in a transaction
    # belongs to whoever began it.
    if not connection.in_atomic_block:
        close_old_connections()
    return StreamingHttpResponse(
        feed.stream(known),
        content_type="text/event-stream",
        # nginx would buffer events until it has a full page of them.
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
