"""Connections to one server, kept open from request to request."""

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
IDLE_S = 60.0  # connections that nobody used for so long are closed
# Of the words of a server that refuses; a Status has some hundred bytes.
REFUSAL_WITHIN_S, REFUSAL_BYTES = 10.0, 64 << 10


class Unreachable(Exception):
    """No connection was made: the request was surely not sent."""


class Untrusted(Unreachable):
    """What answered could not prove by TLS that it is the server."""


def header_lines(values: Mapping[str, str]) -> str:
    """Headers of requests, to be prepared once for many. Raises ValueError."""
    for name, value in values.items():
        if not value.isprintable():
            raise ValueError(f"header {name} has a character that it must not have")
    return "".join(f"{name}: {value}\r\n" for name, value in values.items())


class HttpAnswer:
    """An answer that began to arrive. Whoever gets it reads it, and closes it.

    `silence`: no pause in it may last more seconds, None = any may.
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
        """What has come of the body, at most so many bytes (0 = all of it); b"" at its end. Raises
        Broken, and TimeoutError."""
        if self._connection.has_piece:
            return await self._connection.piece(most)
        async with asyncio.timeout(self._silence):
            return await self._connection.piece(most)

    async def read(self) -> bytes:
        """The rest of the body; raises as `piece`."""
        pieces = []
        while piece := await self.piece():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def refusal(self) -> bytes:
        """What a server says that refuses: as much of the rest of the body as comes in a while.
        A word that never ends must not be waited for. Raises Broken."""
        pieces: list[bytes] = []
        left = REFUSAL_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(REFUSAL_WITHIN_S):
                while left and (piece := await self.piece(left)):
                    pieces.append(piece)
                    left -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """The connection is kept where the whole answer was read."""
        self._pool.give_back(self._connection)


class ConnectionPool:
    """As many connections as there are requests under way. Lives on one event loop.

    `server`: its address, perhaps with a path before all others. `tls`: None = none. `tls_name`:
    the name on its certificate, None = that of the host. `heard` is told when the server sent
    something, by the monotonic clock.
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
        self._idle: deque[Connection] = deque()  # those used last at the end
        self._busy: set[Connection] = set()
        self._answers = ""  # the address that answered last
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
        """Send a request and wait until its answer begins, or, with `whole`, until all of it is
        there; else at most `buffer` bytes of it are taken in ahead of whoever reads it. `headers`:
        of `header_lines`.

        A GET is sent again where a connection that was kept turns out to be closed. Raises
        Unreachable, Broken, and TimeoutError after `silence`; ValueError where there can be no such
        request.
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
        """Whatever became of its request; it is kept where another one may follow."""
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
        """Keep no connection any more; requests that are under way go on."""
        self._is_retired = True
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """End everything."""
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
        """Addresses are tried one after the other, first the one that answered last."""
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
            # A part of the time for each: one of them may be where nothing answers at all.
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
    """In words of the system: an event loop's own say less."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _keep_alive(made: Any) -> None:
    """Have a connection find out within half a minute that its peer is gone without a word."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):  # macOS has only some of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
