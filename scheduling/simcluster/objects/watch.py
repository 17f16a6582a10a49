"""Watches: changes as a stream of JSON lines, with bookmarks, initial events and 410."""

import asyncio
import random
import time
from dataclasses import dataclass

import msgspec
from aiohttp import web

from scheduling.simcluster.objects import status
from scheduling.simcluster.objects.kinds import ResourceKind
from scheduling.simcluster.objects.listing import number, selection, version, wire_body, wire_object
from scheduling.simcluster.objects.selectors import Match
from scheduling.simcluster.objects.status import ApiError, forbidden_field, invalid_options
from scheduling.simcluster.objects.store import Store, Stored, StoredChange

BOOKMARK_S = 10.0
# Changes per write.
CHUNK = 256
# A reader that takes longer than this for one chunk, with this many changes waiting, is dropped.
SLOW_S = 3.0
SLOW_BACKLOG = 500


@dataclass(frozen=True)
class WatchOptions:
    """A watch request; `resource_version` None = start with the current objects."""

    match: Match | None
    namespace: str
    resource_version: int | None
    initial_events: bool
    bookmarks: bool
    timeout_s: float


def watch_options(kind: ResourceKind, namespace: str, query: dict[str, str]) -> WatchOptions:
    """Parse the options. Raises ApiError 400 or 422 for contradictory parameters."""
    initial = query.get("sendInitialEvents", "") in ("true", "1")
    matching = query.get("resourceVersionMatch", "")
    if matching and "sendInitialEvents" not in query:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise invalid_options("ListOptions", [forbidden_field("resourceVersionMatch", why)])
    if "sendInitialEvents" in query and matching != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid_options("ListOptions", [forbidden_field("resourceVersionMatch", why)])
    rv = version(query)
    timeout = number(query, "timeoutSeconds")
    return WatchOptions(
        match=selection(kind, query),
        namespace=namespace,
        resource_version=rv if rv and not initial else None,
        initial_events=initial,
        bookmarks=query.get("allowWatchBookmarks", "") in ("true", "1"),
        timeout_s=timeout or random.uniform(1800, 3600),
    )


class Watch:
    """One client watching one kind."""

    def __init__(self, store: Store, kind: ResourceKind, options: WatchOptions) -> None:
        self.kind = kind
        self._store = store
        self._options = options
        self._history = store.history[kind.table]
        self._position = 0
        self._news = asyncio.Event()
        self._expired = ""
        self._dropped = False
        self._writing_since = 0.0
        self._transport: asyncio.Transport | None = None

    # --- control ----------------------------------------------------------------------------
    def drop(self) -> None:
        """Cut the connection as a failing network would."""
        self._dropped = True
        self._news.set()
        if self._transport is not None:
            self._transport.abort()

    def expire(self) -> None:
        """End the stream with an in-stream 410."""
        self._expired = "The resourceVersion for the provided watch is too old."
        self._news.set()

    def is_slow(self, now: float) -> bool:
        waits = self._writing_since and now - self._writing_since > SLOW_S
        return bool(waits) and self._history.end - self._position > SLOW_BACKLOG

    # --- the stream -------------------------------------------------------------------------
    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self._transport = request.transport
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        wakers = self._store.wakers[self.kind.table]
        wakers.add(self._news.set)
        try:
            await self._stream(response)
        except ConnectionError:
            return response
        finally:
            wakers.discard(self._news.set)
        await response.write_eof()
        return response

    async def _stream(self, response: web.StreamResponse) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.timeout_s
        await self._begin(response)
        next_bookmark = loop.time() + BOOKMARK_S
        while not self._expired and not self._dropped and loop.time() < deadline:
            self._news.clear()
            if chunk := self._collect():
                await self._write(response, chunk)
                continue
            if loop.time() >= next_bookmark:
                next_bookmark = loop.time() + BOOKMARK_S
                if self._options.bookmarks:
                    await self._write(response, self._bookmark())
            alarm = loop.call_at(min(deadline, next_bookmark), self._news.set)
            await self._news.wait()
            alarm.cancel()
        if self._dropped:
            raise ConnectionResetError("dropped")
        if self._expired:
            await self._write(response, _error(status.expired(self._expired)))
        elif self._options.bookmarks:
            await self._write(response, self._bookmark())

    async def _begin(self, response: web.StreamResponse) -> None:
        rv = self._options.resource_version
        if rv is not None:
            if rv < self._history.complete_since:
                self._expired = f"too old resource version: {rv} ({self._history.complete_since})"
            self._position = self._history.position_after(rv)
            return
        self._position = self._history.end
        bookmark = self._bookmark(initial_end=True)
        present = [o for o in self._store.sorted(self.kind.table) if self._wanted(o)]
        for at in range(0, len(present), CHUNK):
            lines = [self._line("ADDED", o) for o in present[at : at + CHUNK]]
            await self._write(response, b"".join(lines))
        if self._options.initial_events and self._options.bookmarks:
            await self._write(response, bookmark)

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        self._writing_since = time.monotonic()
        await response.write(data)
        self._writing_since = 0.0

    def _collect(self) -> bytes:
        """Return the next changes as lines; empty if there are none."""
        history = self._history
        while self._position < history.end:
            if self._position < history.start:
                self._expired = "The resourceVersion for the provided watch is too old."
                return b""
            at = self._position - history.start
            changes = history.changes[at : at + CHUNK]
            self._position += len(changes)
            lines = [line for c in changes if (line := self._translated(c))]
            if lines:
                return b"".join(lines)
        return b""

    def _wanted(self, stored: Stored) -> bool:
        options = self._options
        if options.namespace and stored.namespace != options.namespace:
            return False
        return options.match is None or options.match(stored)

    def _translated(self, change: StoredChange) -> bytes:
        """Return a change as this watch sees it: an object may enter or leave its selection."""
        new, old = change.new, change.old
        was = old is not None and self._wanted(old)
        if change.type == "DELETED":
            return self._line("DELETED", new) if was else b""
        if self._wanted(new):
            return self._line("MODIFIED" if was else "ADDED", new)
        if was and old is not None:
            return self._left(old, new.rv)
        return b""

    def _left(self, old: Stored, rv: int) -> bytes:
        obj = old.decode()
        obj["metadata"]["resourceVersion"] = str(rv)
        return self._line("DELETED", Stored(self.kind, old.key, rv, obj, msgspec.json.encode(obj)))

    def _line(self, change_type: str, stored: Stored) -> bytes:
        body = wire_object(self.kind, wire_body(self.kind, stored))
        return b'{"type":"%b","object":%b}\n' % (change_type.encode(), body)

    def _bookmark(self, *, initial_end: bool = False) -> bytes:
        meta: dict[str, object] = {
            "resourceVersion": str(self._store.rv),
            "creationTimestamp": None,
        }
        if initial_end and self._options.initial_events:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": self.kind.kind, "apiVersion": self.kind.api_version, "metadata": meta}
        return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def _error(error: ApiError) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": error.status()}) + b"\n"


class Watches:
    """All open watches, so that faults and the check for slow readers can find them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: set[Watch] = set()

    async def serve(
        self, request: web.BaseRequest, kind: ResourceKind, options: WatchOptions
    ) -> web.StreamResponse:
        watch = Watch(self._store, kind, options)
        self._open.add(watch)
        try:
            return await watch.serve(request)
        finally:
            self._open.discard(watch)

    def count(self) -> int:
        return len(self._open)

    def drop(self, resource: str = "") -> int:
        """Cut the watches of a resource ("" = all); return how many."""
        chosen = [w for w in self._open if not resource or w.kind.plural == resource]
        for watch in chosen:
            watch.drop()
        return len(chosen)

    def expire(self, resource: str = "") -> int:
        """End watches with 410 and forget the past, so that resuming gives 410, too."""
        for plural, history in self._store.history.items():
            if not resource or plural == resource:
                history.forget(0)
                history.complete_since = self._store.skip_version()
        chosen = [w for w in self._open if not resource or w.kind.plural == resource]
        for watch in chosen:
            watch.expire()
        return len(chosen)

    def drop_slow(self) -> None:
        now = time.monotonic()
        for watch in [w for w in self._open if w.is_slow(now)]:
            watch.drop()
