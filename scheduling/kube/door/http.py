"""One HTTP/1.1 connection: send a request, read the answer as it arrives (RFC 9112).

Redirects, cookies and content encodings are left out: API servers use none (docs/decisions/0088).
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, cast

MOST_HEAD = 64 << 10  # bytes of an answer's head
MOST_LINE = 4 << 10  # bytes of a line between the chunks of a body
BUFFER = 1 << 20  # bytes of an answer that may wait for its reader
NO_BODY = frozenset({204, 304})


class Broken(Exception):
    """The connection ended in the middle of an answer, or the answer is not HTTP."""


class Unanswered(Broken):
    """The connection ended before any part of an answer arrived."""


class AnswerHead(NamedTuple):
    """The status of an answer, and its headers by lower-case name."""

    status: int
    headers: dict[str, str]


class Connection(asyncio.Protocol):
    """One connection, with at most one request at a time.

    `heard` is called with the monotonic time whenever something arrives.
    """

    def __init__(self, heard: Callable[[float], None]) -> None:
        self.idle_since = 0.0
        self.is_used = False  # an earlier request has used it
        self._heard = heard
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._lost: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reset(whole=False, buffer=0)

    def _reset(self, *, whole: bool, buffer: int) -> None:
        self._whole = whole  # the reader waits for the whole answer
        self._buffer = buffer
        self._head: AnswerHead | None = None
        self._over = True  # no answer is under way
        self._rest = b""  # what is still incomplete: the head, or a line between chunks
        self._pieces: list[bytes] = []
        self._size = 0  # bytes in `_pieces`
        self._paused = False
        self._left = 0  # bytes to come of the body or its chunk; -1 = until the end
        self._is_chunked = self._behind_chunk = self._in_trailers = self._keeps = False

    # --- for the caller -------------------------------------------------------------------------
    @property
    def is_open(self) -> bool:
        return self._lost is None and not self._transport.is_closing()

    @property
    def can_be_kept(self) -> bool:
        """Whether the answer has been read and another request may follow."""
        return self._over and self._keeps and self.is_open and not self._pieces

    def close(self) -> None:
        self._transport.abort()

    def send(self, request: bytes, *, whole: bool, buffer: int = BUFFER) -> None:
        """Send a request. `whole`: the caller waits for the whole answer.

        Otherwise at most `buffer` bytes of its body are read ahead of the caller.
        """
        self._reset(whole=whole, buffer=buffer)
        self._over = False
        self._transport.write(request)

    async def head(self) -> AnswerHead:
        """Return the head of the answer. Raises Broken."""
        while self._head is None or (self._whole and not self._over):
            await self._change()
        return self._head

    @property
    def has_piece(self) -> bool:
        """Whether `piece` returns without waiting."""
        return bool(self._pieces) or self._over

    async def piece(self, most: int = 0) -> bytes:
        """Return what has arrived of the body, at most `most` bytes (0 = all); b"" at its end.

        Raises Broken.
        """
        while not self.has_piece:
            await self._change()
        piece, self._pieces = b"".join(self._pieces), []
        if most and len(piece) > most:
            self._pieces.append(piece[most:])
            piece = piece[:most]
        self._size -= len(piece)
        if self._paused and self._size <= self._buffer:
            self._paused = False
            self._transport.resume_reading()
        return piece

    async def _change(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # --- for the event loop ---------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # some loops have own types

    def connection_lost(self, error: Exception | None) -> None:
        if self._left < 0 and error is None and not self._over:
            self._over = True  # the answer announced that the connection's end would end it
        begun = self._head is not None or bool(self._rest)
        kind = Broken if begun else Unanswered
        self._lost = self._lost or kind(str(error or "it was closed"))
        self._wake()

    def data_received(self, data: bytes) -> None:
        self._heard(time.monotonic())
        try:
            if self._over:
                raise Broken("the server sent what nobody asked for")
            if self._head is None:
                data = self._read_head(self._rest + data)
            if data:
                self._read_body(data)
        except (Broken, ValueError) as error:
            self._lost, self._over = Broken(f"its answer is no HTTP: {error}"), False
            self._transport.abort()
            self._wake()
            return
        if self._over or not self._whole:
            self._wake()
        if self._size > self._buffer and not self._whole and not self._paused and not self._over:
            self._paused = True
            self._transport.pause_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- parsing an answer ----------------------------------------------------------------------
    def _read_head(self, data: bytes) -> bytes:
        """Read the head and return the bytes behind it."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MOST_HEAD:
                raise Broken("its head does not end")
            self._rest = data
            return b""
        self._rest = b""
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        version, _, told = first.partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not told[:3].isdecimal():
            raise Broken(f"it begins with {first[:40]!r}")
        status = int(told[:3])
        if status < 200:  # only "go on" (1xx); the answer follows
            return self._read_head(data[end + 4 :])
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Broken(f"a header is {line[:40]!r}")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self._head = AnswerHead(status, headers)
        words = headers.get("connection", "").lower()
        self._keeps = "close" not in words and (version == "HTTP/1.1" or "keep-alive" in words)
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        if status in NO_BODY:
            self._is_chunked, length = False, "0"
        if self._is_chunked:
            self._left = 0
        elif length is None:
            self._left, self._keeps = -1, False
        elif not (length.isascii() and length.isdecimal()):
            raise Broken(f"the length of its body is {length[:40]!r}")
        else:
            self._left = int(length)
            self._over = not self._left
        return data[end + 4 :]

    def _read_body(self, data: bytes) -> None:
        if self._is_chunked:
            self._read_chunks(self._rest + data if self._rest else data)
            return
        if self._left >= 0:
            if len(data) > self._left:
                raise Broken("it is longer than it said")
            self._left -= len(data)
            self._over = not self._left
        self._put(data)

    def _read_chunks(self, data: bytes) -> None:
        at, end, self._rest = 0, len(data), b""
        while at < end:
            if self._over:
                raise Broken("it is longer than it said")
            if self._left:
                piece = data[at : at + self._left]
                self._put(piece)
                at += len(piece)
                self._left -= len(piece)
                self._behind_chunk = not self._left
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                if end - at > MOST_LINE:
                    raise Broken("a line between its chunks does not end")
                self._rest = data[at:]
                return
            self._read_line(data[at:line_end])
            at = line_end + 2

    def _read_line(self, line: bytes) -> None:
        """Read a line between chunks.

        It is the empty line behind a chunk, the length of the next chunk, or a trailer, which does
        not matter here.
        """
        if self._behind_chunk:
            if line:
                raise Broken("a chunk is longer than it said")
            self._behind_chunk = False
        elif self._in_trailers:
            self._over = not line
        else:
            told = line.partition(b";")[0].strip()
            if not told.isalnum():
                raise Broken(f"the length of a chunk is {line[:40]!r}")
            self._left = int(told, 16)
            self._in_trailers = not self._left

    def _put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
