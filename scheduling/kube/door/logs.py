"""Container logs, read through the API server and handed over piece by piece.

Callers may run on any event loop or on none, but a client lives on one loop. So a thread of this
module owns the clients, one per cluster, and a `Log` hands over what they read.
"""

import asyncio
import atexit
import json
import logging
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from scheduling.kube.door.client import Client, NoReply, Reply, retry_after
from scheduling.kube.door.loop import DoorLoop
from scheduling.kube.seam import KubeError
from scheduling.kube.translate.objects import Meta, Struct

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Of one log, memory never holds more than these waiting pieces and as much read ahead.
PIECE_BYTES = 64 << 10
PIECES_WAITING = 2
READ_WITHIN_S = 30.0  # seconds between two pieces of a log that is not followed
FOLLOW_WITHIN_S = 3600.0  # the same for one that is followed: a container may print rarely
OPEN_WITHIN_S = 60.0
WHOLE_WITHIN_S = 60.0  # for callers that wait for the whole log
STOP_WITHIN_S = 1.0
GRACE_S = 1.5  # how long logs that are not followed may go on after the process is told to end
# A kubelet sends no header, either, before a followed container prints something.
SILENT_AFTER_S = 2.0


class _Named(Struct):
    name: str = ""


class _Spec(Struct, rename="camel"):
    node_name: str = ""
    containers: list[_Named] = []
    init_containers: list[_Named] = []
    ephemeral_containers: list[_Named] = []

    @property
    def names(self) -> list[str]:
        every = (*self.containers, *self.init_containers, *self.ephemeral_containers)
        return [container.name for container in every]


class _LoggedPod(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


_pod = msgspec.json.Decoder(_LoggedPod)


class ContainerRef(NamedTuple):
    """A container of one incarnation of a pod; `container` "" = its only one."""

    namespace: str
    pod: str
    uid: str
    container: str = ""


class LogOptions(NamedTuple):
    """Which part of a log to read, in the terms of PodLogOptions.

    `tail`: lines from the end. `since`: RFC 3339. `since_s`: seconds; give at most one of these
    two. `limit_bytes` counts from the start of what the others select. None = no limit.
    """

    tail: int | None = None
    since: str | None = None
    since_s: int | None = None
    limit_bytes: int | None = None
    previous: bool = False
    timestamps: bool = False
    follow: bool = False


class NoLog(Exception):
    """There is no log to read; the text is the API server's explanation."""


class PodLogGone(NoLog):
    """This incarnation of the pod is gone, and its log with it."""


class NotReady(NoLog):
    """The container has not started, or is not the one that was meant."""


class NoContainer(NoLog):
    """The pod has no such container; the text names those it has."""

    def __init__(self, name: str, names: list[str]) -> None:
        super().__init__(f"no container “{name}”; it has {', '.join(names)}")


class NodeFailed(NoLog):
    """The pod's node, named here, did not deliver the log."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(why)
        self.node = node


class Stopped(Exception):
    """The process that reads the log was told to end; the container may go on printing."""


class _End(NamedTuple):
    """Marks the end of the pieces, with the error if the log broke off."""

    error: KubeError | Stopped | None


Piece = bytes | _End
Loop = asyncio.AbstractEventLoop


class Log:
    """An open log.

    Its request ends when the container's log ends, when the `Log` is closed or when nobody refers
    to it any more. `ended` is then called once.
    """

    def __init__(
        self,
        loop: Loop,
        pieces: asyncio.Queue[Piece],
        task: asyncio.Task[None],
        ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._pieces = pieces

        def end() -> None:
            loop.call_soon_threadsafe(task.cancel)
            ended()

        self._end = weakref.finalize(self, end)
        self._end.atexit = False  # its thread ends with the process

    @property
    def is_open(self) -> bool:
        return self._end.alive

    def close(self) -> None:
        self._end()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the log on the caller's event loop.

        Raises KubeError if the log breaks off, and Stopped if `stop` ended it.
        """
        try:
            while True:
                waiting = asyncio.run_coroutine_threadsafe(self._pieces.get(), self._loop)
                try:
                    async with asyncio.timeout(_LONGEST_S):
                        piece = await asyncio.wrap_future(waiting)
                except TimeoutError:
                    raise _broken_off(_LONGEST_S) from None
                if isinstance(piece, _End):
                    break
                yield piece
        finally:
            self.close()
        if piece.error is not None:
            raise piece.error

    def read(self) -> bytes:
        """Return the whole log; raises as `parts` does."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """Yield the log in a thread without an event loop.

        Raises KubeError and Stopped as `pieces` does, and KubeError if the whole log takes longer
        than WHOLE_WITHIN_S.
        """
        deadline = time.monotonic() + WHOLE_WITHIN_S
        try:
            while True:
                waiting = asyncio.run_coroutine_threadsafe(self._pieces.get(), self._loop)
                try:
                    piece = waiting.result(max(deadline - time.monotonic(), 0.0))
                except TimeoutError:
                    waiting.cancel()
                    raise _broken_off(WHOLE_WITHIN_S) from None
                if isinstance(piece, _End):
                    break
                yield piece
        finally:
            self.close()
        if piece.error is not None:
            raise piece.error


def _broken_off(seconds: float) -> KubeError:
    return KubeError(f"the log does not end within {seconds:.0f} s", "ask for it again")


# The reader cannot tell a dead thread from a slow one, so it has a limit of its own.
_LONGEST_S = FOLLOW_WITHIN_S + READ_WITHIN_S


class LogReader:
    """Opens logs of all clusters. Thread-safe; its own thread starts with the first log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._clients: dict[str, Client] = {}
        self._opening: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._stopping = asyncio.Event()

    def open(
        self,
        access: Mapping[str, Any],
        of: ContainerRef,
        options: LogOptions,
        ended: Callable[[], None] = lambda: None,
    ) -> Log:
        """Open a log; waits some seconds for the cluster.

        `access`: as in `Cluster.access`. `ended` is called once an opened log has been read or
        given up.

        Raises NoLog (PodLogGone, NotReady, NoContainer, NodeFailed) if there is no log, and
        KubeError if the cluster cannot be asked, with the `code` 403 if the right `get pods/log` is
        missing. Raises Stopped if the process is told to end meanwhile.
        """
        return Log(self._running(), *self._result(self._open(access, of, options)), ended)

    def containers(self, access: Mapping[str, Any], of: ContainerRef) -> list[str]:
        """Return the names of the pod's containers, init and ephemeral containers last.

        Raises PodLogGone, and KubeError and Stopped as `open` does.
        """
        return self._result(self._containers(access, of))

    def stop(self) -> None:
        """Prepare for the end of the process.

        End the logs that are followed now or opened later, and a moment later everything that still
        waits for a cluster.
        """
        self._running().call_soon_threadsafe(self._stopping.set)

    def _result(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop for a thread that waits for its result."""
        asking = asyncio.run_coroutine_threadsafe(self._unless_stopped(work), self._running())
        try:
            return asking.result(OPEN_WITHIN_S)
        except TimeoutError:
            asking.cancel()
            text = f"the cluster does not answer within {OPEN_WITHIN_S:.0f} s"
            raise KubeError(text, "ask again") from None

    def _running(self) -> Loop:
        with self._lock:
            if self._loop is None:
                self._loop = DoorLoop()
                run = self._loop.run_forever
                threading.Thread(target=run, name="kube-logs", daemon=True).start()
                atexit.register(self._stop)
            return self._loop

    def _stop(self) -> None:
        """End all traffic when the process ends."""
        assert self._loop is not None
        with suppress(TimeoutError):  # its connections end with the process anyway
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(STOP_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)

    # --- on the loop ----------------------------------------------------------------------------
    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        doing = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(_told_to_end(self._stopping, GRACE_S))
        try:
            await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            raise Stopped
        finally:
            doing.cancel()
            stopping.cancel()

    async def _open(
        self, access: Mapping[str, Any], of: ContainerRef, options: LogOptions
    ) -> tuple[asyncio.Queue[Piece], asyncio.Task[None]]:
        client = await self._client(access)
        try:
            return await self._opened(client, of, options)
        except KubeError as error:
            if error.code == 0:
                await client.open()  # the address may have changed since it was read
            if error.code != 401:
                raise
        # The client has reloaded its credentials.
        return await self._opened(client, of, options)

    async def _containers(self, access: Mapping[str, Any], of: ContainerRef) -> list[str]:
        return (await _pod_of(await self._client(access), of)).spec.names

    async def _opened(
        self, client: Client, of: ContainerRef, options: LogOptions
    ) -> tuple[asyncio.Queue[Piece], asyncio.Task[None]]:
        request = _Request(client, of, options, self._stopping)
        task = asyncio.create_task(request.run())
        try:
            await request.judge()
        except BaseException:
            task.cancel()
            raise
        return request.pieces, task

    async def _close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _client(self, access: Mapping[str, Any]) -> Client:
        key = json.dumps(access, sort_keys=True)
        async with self._opening[key]:
            if key not in self._clients:
                client = Client(access)
                await client.open()
                self._clients[key] = client
            return self._clients[key]


class _Request:
    """The request for one log, from its reply to its last piece."""

    def __init__(
        self, client: Client, of: ContainerRef, options: LogOptions, stopping: asyncio.Event
    ) -> None:
        self._client = client
        self._of = of
        self._stopping = stopping
        self._follow = options.follow
        self._query = urlencode(_parameters(of.container, options))
        self._what = f"read the log of the pod {of.namespace}/{of.pod}"
        self._reply: asyncio.Future[Reply | KubeError | None]
        self._reply = asyncio.get_running_loop().create_future()
        self.pieces: asyncio.Queue[Piece] = asyncio.Queue(PIECES_WAITING)

    async def run(self) -> None:
        """Fill `pieces`."""
        reading = asyncio.create_task(self._read())
        grace = 0.0 if self._follow else GRACE_S
        stopping = asyncio.create_task(_told_to_end(self._stopping, grace))
        error: KubeError | Stopped | None = Stopped()
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                error = reading.result()
        finally:
            reading.cancel()
            stopping.cancel()
        self._tell(error if isinstance(error, KubeError) else None)
        await self.pieces.put(_End(error))

    async def _read(self) -> KubeError | None:
        """Read the log; return what refused it or broke it off."""
        silence = FOLLOW_WITHIN_S if self._follow else READ_WITHIN_S
        path = f"{_path(self._of)}/log?{self._query}"
        try:
            async with self._client.stream(path, silence, buffer=PIECE_BYTES) as answer:
                if answer.status != 200:
                    reply = Reply(answer.status, await answer.refusal(), retry_after(answer))
                    self._tell(reply)
                    return self._client.problem(reply, self._what)
                self._tell(Reply(200, b"", 0.0))
                while piece := await answer.piece(PIECE_BYTES):
                    await self.pieces.put(piece)
        except NoReply as none:
            return KubeError(none.reason, "ask for it again")
        except KubeError as error:
            return error
        except Exception as error:
            # A defect must not leave the reader waiting for ever.
            logger.exception("%s failed", self._what)
            return KubeError(f"the log cannot be read ({error!r})", "see the log of this process")
        return None

    def _tell(self, reply: Reply | KubeError | None) -> None:
        if not self._reply.done():
            self._reply.set_result(reply)

    async def judge(self) -> None:
        """Wait for the reply; raises NoLog or KubeError if it is not this pod's log."""
        reply = await self._first_word()
        if isinstance(reply, KubeError):
            raise reply
        # Check after the reply: if the pod still exists now, the log was that pod's.
        pod = await _pod_of(self._client, self._of)
        if reply is None or reply.code == 200:
            return
        said, names = reply.status.message, pod.spec.names
        if reply.code == 400 and self._of.container and self._of.container not in names:
            raise NoContainer(self._of.container, names)
        if not pod.spec.node_name:
            raise NotReady("it has no node yet")
        if reply.code == 400:
            raise NotReady(said)
        if reply.code == 404 or reply.code >= 500:
            raise NodeFailed(pod.spec.node_name, said)
        raise self._client.problem(reply, self._what)

    async def _first_word(self) -> Reply | KubeError | None:
        """Return the reply, or None if there is none yet or reading was stopped.

        A followed container that has printed nothing gives no reply yet.
        """
        try:
            async with asyncio.timeout(SILENT_AFTER_S if self._follow else None):
                return await asyncio.shield(self._reply)
        except TimeoutError:
            return None


async def _told_to_end(stopping: asyncio.Event, grace: float) -> None:
    await stopping.wait()
    await asyncio.sleep(grace)


async def _pod_of(client: Client, of: ContainerRef) -> _LoggedPod:
    """Read the pod. Raises PodLogGone and KubeError."""
    name = f"{of.namespace}/{of.pod}"
    try:
        reply = await client.call("GET", _path(of))
    except NoReply as none:
        raise KubeError(none.reason, "ask for it again") from None
    if reply.code == 404:
        raise PodLogGone(reply.status.message)
    if reply.code != 200:
        raise client.problem(reply, f"read the pod {name}")
    try:
        pod = _pod.decode(reply.body)
    except msgspec.MsgspecError as error:
        raise KubeError(
            f"{client.server}{_path(of)} is no pod ({error})", "check the address of the API server"
        ) from None
    if pod.metadata.uid != of.uid:
        raise PodLogGone(f"another pod is called {of.pod} now")
    return pod


def _path(of: ContainerRef) -> str:
    return f"/api/v1/namespaces/{of.namespace}/pods/{of.pod}"


def _parameters(container: str, options: LogOptions) -> dict[str, str]:
    """Return the query of the request, without options that are not set."""
    texts = {
        "container": container,
        "tailLines": options.tail,
        "sinceTime": options.since,
        "sinceSeconds": options.since_s,
        "limitBytes": options.limit_bytes,
    }
    flags = ("previous", "timestamps", "follow")
    given = {name: str(value) for name, value in texts.items() if value not in (None, "")}
    return {**given, **{name: "true" for name in flags if getattr(options, name)}}
