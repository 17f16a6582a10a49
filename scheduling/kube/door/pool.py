"""Connections to one server, kept open from one request to the next."""

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from scheduling.kube.door.http import BUFFER, AnswerHead, Connection, Unanswered

CONNECT_TIMEOUT_S = 5.0
IDLE_S = 60.0  # connections unused for this many seconds are closed
# Limits on the body of a refusal; a Status has some hundred bytes.
REFUSAL_WITHIN_S, REFUSAL_BYTES = 10.0, 64 << 10


class Unreachable(Exception):
    """No connection was made, so the request was certainly not sent."""


class Untrusted(Unreachable):
    """The peer could not prove by TLS that it is the server."""


def header_lines(values: Mapping[str, str]) -> str:
    """Return the header lines of a request; prepared once for many requests. Raises ValueError."""
    for name, value in values.items():
        if not value.isprintable():
            raise ValueError(f"header {name} has a character that it must not have")
    return "".join(f"{name}: {value}\r\n" for name, value in values.items())


class HttpAnswer:
    """An answer that has begun to arrive; its receiver reads and closes it.

    `silence`: the longest pause in it, in seconds; None = no limit.
    """

    def __init__(
        self,
        pool: "ConnectionPool",
        connection: Connection,
        head: AnswerHead,
        silence: float | None,
    ) -> None:
        self.status, self.headers = head
        self._pool, self._connection, self._silence = pool, connection, silence

    async def piece(self, most: int = 0) -> bytes:
        """Return what has arrived of the body, at most `most` bytes (0 = all); b"" at its end.

        Raises Broken and TimeoutError.
        """
        if self._connection.has_piece:
            return await self._connection.piece(most)
        async with asyncio.timeout(self._silence):
            return await self._connection.piece(most)

    async def read(self) -> bytes:
        """Return the rest of the body; raises as `piece` does."""
        pieces = []
        while piece := await self.piece():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def refusal(self) -> bytes:
        """Return the body of a refusal, as far as it arrives in REFUSAL_WITHIN_S. Raises Broken.

        A body that never ends must not hold up the caller.
        """
        pieces: list[bytes] = []
        left = REFUSAL_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(REFUSAL_WITHIN_S):
                while left and (piece := await self.piece(left)):
                    pieces.append(piece)
                    left -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Give the connection back; it is kept if the whole answer was read."""
        self._pool.give_back(self._connection)


class ConnectionPool:
    """A pool with one connection per request under way. Lives on one event loop.

    `server`: its address, which may include a path prefix. `tls`: None = no TLS. `tls_name`: the
    name on its certificate, None = the host's. `heard` is called with the monotonic time whenever
    the server sends something.
    """

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext | None,
        tls_name: str | None,
        heard: Callable[[float], None],
    ) -> None:
        address = urlsplit(server)
        self._heard = heard
        self._host = address.hostname or ""
        self._port = address.port or (443 if tls is not None else 80)
        self._tls = tls
        self._tls_name = (tls_name or self._host) if tls is not None else None
        self._path = address.path
        self._host_line = f"Host: {address.netloc.rpartition('@')[2]}\r\n"
        self._idle: deque[Connection] = deque()  # most recently used last
        self._busy: set[Connection] = set()
        self._answers = ""  # the address that last answered
        self._is_retired = False

    async def ask(
        self,
        method: str,
        path: str,
        headers: str,
        body: bytes | None = None,
        *,
        whole: bool = False,
        buffer: int = BUFFER,
        silence: float | None = None,
    ) -> HttpAnswer:
        """Send a request and wait for the head of its answer, or for all of it with `whole`.

        Without `whole`, at most `buffer` bytes of the body are read ahead of the caller. `headers`:
        from `header_lines`.

        A GET is sent again if a kept connection turns out to be closed. Raises Unreachable, Broken,
        TimeoutError after `silence` seconds, and ValueError for an invalid request.
        """
        if " " in path or not (path.isascii() and path.isprintable()):
            raise ValueError(f"{path!r} is no path of a request")
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._host_line}{headers}{length}\r\n"
        request = head.encode("latin-1") + (body or b"")
        connection = self._kept() or await self._connected()
        while True:
            self._busy.add(connection)
            try:
                connection.send(request, whole=whole, buffer=buffer)
                if silence is None:
                    begun = await connection.head()
                else:
                    async with asyncio.timeout(silence):
                        begun = await connection.head()
                return HttpAnswer(self, connection, begun, silence)
            except Unanswered:
                self.give_back(connection)
                if method != "GET" or not connection.is_used:
                    raise
            except BaseException:
                self.give_back(connection)
                raise
            connection = await self._connected()

    def give_back(self, connection: Connection) -> None:
        """Take back a connection after any request; keep it if another request can follow."""
        self._busy.discard(connection)
        now = time.monotonic()
        if self._is_retired or not connection.can_be_kept:
            connection.close()
        else:
            connection.idle_since, connection.is_used = now, True
            self._idle.append(connection)
        while self._idle and now - self._idle[0].idle_since >= IDLE_S:
            self._idle.popleft().close()

    def retire(self) -> None:
        """Keep no more connections; requests under way go on."""
        self._is_retired = True
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Close all connections, also those in use."""
        self.retire()
        for connection in self._busy:
            connection.close()

    # --- connecting -----------------------------------------------------------------------------
    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and time.monotonic() - connection.idle_since < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connected(self) -> Connection:
        """Connect; try one address after another, the one that last answered first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_TIMEOUT_S
        try:
            async with asyncio.timeout_at(deadline):
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise Unreachable(_TOO_SLOW) from None
        except OSError as error:
            raise Unreachable(_why(error)) from error
        addresses = [str(each[4][0]) for each in found]
        addresses.sort(key=lambda address: address != self._answers)
        failed = Unreachable(f"{self._host} has no address")
        for tried, address in enumerate(addresses):
            # Divide the time among them: one address may not answer at all.
            within = (deadline - loop.time()) / (len(addresses) - tried)
            try:
                async with asyncio.timeout(within):
                    connection = await self._connect(loop, address)
            except TimeoutError:
                failed = Unreachable(_TOO_SLOW)
            except ssl.SSLError as error:
                raise Untrusted(str(error)) from error
            except OSError as error:
                failed = Unreachable(_why(error))
            else:
                self._answers = address
                return connection
        raise failed

    async def _connect(self, loop: asyncio.AbstractEventLoop, address: str) -> Connection:
        transport, connection = await loop.create_connection(
            partial(Connection, self._heard),
            *(address, self._port),
            ssl=self._tls,
            server_hostname=self._tls_name,
        )
        _keep_alive(transport.get_extra_info("socket"))
        return connection


_TOO_SLOW = f"it does not answer within {CONNECT_TIMEOUT_S:.0f} s"


def _why(error: OSError) -> str:
    """Return the operating system's wording: an event loop's own says less."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _keep_alive(made: Any) -> None:
    """Make the connection notice within half a minute that its peer vanished silently."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):  # macOS has only some of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
