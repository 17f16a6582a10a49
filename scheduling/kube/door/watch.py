"""List and watch one kind of object, and stay in step with the API server through every failure.

The list comes as a stream of synthetic events if the server can do that (WatchList, on by default
since Kubernetes 1.34), otherwise in pages. After every break (a time-out, a restart, a half-open
socket, being dropped as too slow a reader) the watch resumes from its last resourceVersion. Only if
that version has expired (410) is everything listed again; what the new list lacks is reported as
gone, since its DELETED event was never seen.

Source: Kubernetes API concepts, "Efficient detection of changes".
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from scheduling.kube.door.client import JSON, Client, NoReply, Reply, retry_after
from scheduling.kube.door.pool import HttpAnswer
from scheduling.kube.seam import KubeError
from scheduling.kube.translate.objects import Meta, ObjectList, Status, WatchEvent

logger = logging.getLogger(__name__)

PAGE = 500
INITIAL_END = "k8s.io/initial-events-end"


class WatchTimes(msgspec.Struct, frozen=True):
    """Times of a watch, in seconds.

    A watch ends itself after a random time in `watch`; a connection that died unnoticed is found at
    most `grace` later. Pauses after failures grow from `first` to `last`.

    A list may take any time as long as it keeps arriving. If it pauses for `silence`, it is
    requested again and may then pause twice as long, so that even the slowest server gets listed.
    """

    watch: tuple[int, int] = (90, 120)
    grace: float = 15.0
    first: float = 0.25
    last: float = 30.0
    silence: float = 120.0


DEFAULT_TIMES = WatchTimes()
# The API server ends a watch at its timeoutSeconds, even if it is still sending the list.
LIST_WITHIN_S = 86_400
LONGEST_SILENCE_S = 3600.0
SERVED_S = 60.0  # how often to ask whether a kind is served by now


class WatchedKind(msgspec.Struct, frozen=True):
    """What to follow.

    - `plural`: its name in messages.
    - `path`: of the collection.
    - `selector`, `labels`: field and label selector, may be empty.
    - `type`: the struct that its objects are decoded to.
    - `optional`: a server that does not serve the kind has no objects of it.
    - `other_paths`: of other versions, in case the first is not served.
    """

    plural: str
    path: str
    selector: str
    type: type
    labels: str = ""
    optional: bool = False
    other_paths: tuple[str, ...] = ()


class Expired(Exception):
    """The resourceVersion is too old: only a new list helps."""


class WatchListUnsupported(Exception):
    """The server does not stream lists."""


class NotServed(Exception):
    """The server does not know the kind."""


F = TypeVar("F")
_event = msgspec.json.Decoder(WatchEvent)
_list = msgspec.json.Decoder(ObjectList)
_status = msgspec.json.Decoder(Status)


class _OnlyMeta(msgspec.Struct, gc=False):
    metadata: Meta = msgspec.field(default_factory=Meta)


_meta = msgspec.json.Decoder(_OnlyMeta)


class Reflector(Generic[F]):
    """Follows one kind of object.

    `translate` turns an object into facts and `identity` names them. `seen` and `gone` receive
    changes, `health` the state of the connection (None = healthy).
    """

    stream_lists = True  # until the server turns out not to support WatchList

    def __init__(
        self,
        client: Client,
        kind: WatchedKind,
        *,
        translate: Callable[[Any], F],
        identity: Callable[[F], str],
        seen: Callable[[F], None],
        gone: Callable[[F], None],
        health: Callable[[KubeError | None], None],
        times: WatchTimes,
    ) -> None:
        self.known: dict[str, F] = {}
        self.synced = False  # whether a whole list has been seen
        self._client = client
        self._kind = kind
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind.type)
        self._translate = translate
        self._identity = identity
        self._seen = seen
        self._gone = gone
        self._health = health
        self._times = times
        self._version = ""  # the last resourceVersion seen; "" = list first
        self._listing: set[str] | None = None  # identities found by the list in progress
        self._silence = times.silence  # seconds that a list may pause
        self._in_pages = True  # used if the server does not stream lists
        self._failures = 0
        self._retry_after = 0.0
        self._not_served = 0  # how many paths in a row were not served

    @property
    def kind(self) -> WatchedKind:
        return self._kind

    def move(self, path: str) -> None:
        """Follow the collection at this path; call it before `run`."""
        self._kind = msgspec.structs.replace(self._kind, path=path)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._round()
                continue
            except Expired:
                logger.info("%s: resourceVersion expired, listing again", self._kind.plural)
                self._version = ""
                self._failures += 1
                if self._failures == 1:
                    continue
            except WatchListUnsupported:
                self.stream_lists = False
                continue
            except NotServed:
                if self._has_other_path():
                    continue
                self._listing = set()
                self._settle("")
                await asyncio.sleep(SERVED_S)
                continue
            except NoReply as error:
                if self._listing is not None and isinstance(error.__cause__, TimeoutError):
                    self._silence = min(2 * self._silence, LONGEST_SILENCE_S)
                self._fail(KubeError(f"{self._kind.plural}: {error.reason}", "Kant keeps trying"))
            except KubeError as error:
                self._fail(error)
            except Exception as error:
                # A defect must not end the watch silently: it is reported, logged and retried.
                logger.exception("%s: the watch failed", self._kind.plural)
                self._fail(KubeError(f"{self._kind.plural}: {error!r}", "see the log"))
            await asyncio.sleep(self._pause())

    def _has_other_path(self) -> bool:
        """Switch to the next path; False if all have been tried."""
        others = self._kind.other_paths
        self._not_served += 1
        if others:
            kind = self._kind
            paths = {"path": others[0], "other_paths": (*others[1:], kind.path)}
            self._kind = msgspec.structs.replace(kind, **paths)
        if self._not_served <= len(others):
            self._version = ""
            return True
        self._not_served = 0
        return False

    async def _round(self) -> None:
        """List, if needed, and watch until the server ends the watch."""
        if not self._version and self.stream_lists:
            self._listing = set()
            query = {
                "resourceVersionMatch": "NotOlderThan",
                "sendInitialEvents": "true",
            }
            await self._follow(query)
            return
        if not self._version:
            await self._list_pages()
        await self._follow({"resourceVersion": self._version})

    # --- list -----------------------------------------------------------------------------------
    async def _list_pages(self) -> None:
        self._listing = set()
        token = ""
        while True:
            query: dict[str, str | int] = {"limit": PAGE} if self._in_pages else {}
            if token:
                query["continue"] = token
            address = self._address(query)
            reply = await self._client.call("GET", address, None, JSON, self._silence)
            if reply.code == 410:
                # Pages expire if they are read too slowly; a single answer does not.
                self._in_pages = not token
                raise Expired
            if reply.code != 200:
                raise self._unlistable(reply)
            try:
                page = _list.decode(reply.body)
            except msgspec.MsgspecError as error:
                raise KubeError(
                    f"{self._client.server}{self._kind.path} is no Kubernetes list ({error})",
                    "check the address of the API server",
                ) from None
            for item in page.items or ():
                self._read(item, gone=False)
            token = page.metadata.continue_token
            if not token:
                self._settle(page.metadata.resource_version)
                return

    def _settle(self, version: str) -> None:
        """The list is complete: report as gone what it did not contain."""
        listed, self._listing = self._listing, None
        if listed is not None:
            for identity in [each for each in self.known if each not in listed]:
                self._gone(self.known[identity])
                del self.known[identity]
        self._version = version
        self._not_served = 0
        self._silence, self._in_pages = self._times.silence, True
        self.synced = True
        self._health(None)

    # --- watch ----------------------------------------------------------------------------------
    async def _follow(self, query: dict[str, str]) -> None:
        seconds = random.randint(*self._times.watch)
        lists = self._listing is not None
        within = LIST_WITHIN_S if lists else seconds
        silence = self._silence if lists else seconds + self._times.grace
        address = self._address(
            {"watch": 1, "allowWatchBookmarks": "true", "timeoutSeconds": within, **query}
        )
        started = time.monotonic()
        events = 0
        async with self._client.stream(address, silence) as answer:
            if answer.status != 200:
                body = await answer.refusal()
                raise self._unwatchable(Reply(answer.status, body, retry_after(answer)))
            if not lists:
                self._health(None)
            try:
                async with asyncio.timeout(None) as limit:
                    async for line in lines(answer):
                        self._apply(line)
                        events += 1
                        if lists and self._listing is None:
                            # From here on it is a watch, which the client has to end.
                            lists = False
                            limit.reschedule(asyncio.get_running_loop().time() + seconds)
            except TimeoutError:
                if not limit.expired():
                    raise
        if time.monotonic() - started >= 1.0:
            self._failures = 0
        elif events == 0:
            raise NoReply("the server ends every watch at once", sent=True)

    def _apply(self, line: bytes) -> None:
        try:
            event = _event.decode(line)
        except msgspec.MsgspecError as error:
            # A line cut in two by a broken connection; the watch resumes before it.
            raise NoReply(f"a watch line is not JSON ({error})", sent=True) from None
        if event.type == "ERROR":
            status = _status.decode(event.object)
            if status.code == 410:
                raise Expired
            raise NoReply(f"the watch ended: {status.code} {status.message}", sent=True)
        if self._listing is None:
            self._failures = 0
        if event.type == "BOOKMARK":
            meta = _meta.decode(event.object).metadata
            if self._listing is None:
                self._version = meta.resource_version
            elif meta.annotations.get(INITIAL_END) == "true":
                self._settle(meta.resource_version)
            return
        self._read(event.object, gone=event.type == "DELETED")

    # --- objects --------------------------------------------------------------------------------
    def _read(self, raw: msgspec.Raw, *, gone: bool) -> None:
        thing = self._decode(raw)
        if thing is None:
            return
        facts = self._translate(thing)
        identity = self._identity(facts)
        if self._listing is None:
            self._version = thing.metadata.resource_version
        elif gone:
            self._listing.discard(identity)
        else:
            self._listing.add(identity)
        if gone:
            if identity in self.known:
                self._gone(facts)
                del self.known[identity]
        elif self.known.get(identity) != facts:
            self._seen(facts)
            self.known[identity] = facts

    def _decode(self, raw: msgspec.Raw) -> Any | None:
        try:
            return self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            meta = _meta.decode(raw).metadata
            logger.warning(
                "%s %s/%s is left out, it cannot be read: %s",
                *(self._kind.plural, meta.namespace, meta.name, error),
            )
            if self._listing is None:
                self._version = meta.resource_version
            return None

    # --- health ---------------------------------------------------------------------------------
    def _fail(self, error: KubeError) -> None:
        self._failures += 1
        # Retry once silently: a restart, or a watch that resumes at once, is no disconnection.
        if self._failures > 1 or not self.synced:
            self._health(error)

    def _pause(self) -> float:
        """Return the seconds until the next attempt.

        They double, with jitter, and are never less than the server asked for.
        """
        asked, self._retry_after = self._retry_after, 0.0
        doubled = self._times.first * 2.0 ** min(self._failures - 1, 16)
        return max(asked, min(doubled, self._times.last) * random.uniform(0.5, 1.5))

    def _refused(self, reply: Reply) -> KubeError:
        self._retry_after = reply.retry_after
        return self._client.problem(reply, f"list and watch {self._kind.plural}")

    def _unlistable(self, reply: Reply) -> Exception:
        if reply.code == 404 and self._kind.optional:
            return NotServed()
        return self._refused(reply)

    def _unwatchable(self, reply: Reply) -> Exception:
        if reply.code == 410:
            return Expired()
        if reply.code in (400, 422) and self._listing is not None:
            return WatchListUnsupported()
        return self._unlistable(reply)

    def _address(self, query: dict[str, Any]) -> str:
        if self._kind.selector:
            query["fieldSelector"] = self._kind.selector
        if self._kind.labels:
            query["labelSelector"] = self._kind.labels
        return f"{self._kind.path}?{urlencode(query)}"


async def lines(answer: HttpAnswer) -> AsyncIterator[bytes]:
    """Yield whole lines of an answer, of any length; an unfinished last line is dropped."""
    rest: list[bytes] = []
    while chunk := await answer.piece():
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if not others:
            continue
        yield b"".join(rest)
        for line in others[:-1]:
            yield line
        rest = [others[-1]]
