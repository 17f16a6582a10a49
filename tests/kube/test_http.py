"""The gateway's own HTTP: answers cut at any byte, and connections that are kept."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from scheduling.kube.door import pool as pool_module
from scheduling.kube.door.http import Broken, Connection, Unanswered
from scheduling.kube.door.pool import ConnectionPool, Unreachable, header_lines
from tests.cases import seeds

BODY = b'{"kind":"Status"}\r\n0\r\n\r\n'  # looks like the end of chunks
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nRetry-After: 3\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding:chunked\r\n\r\n"
    b'5;name="x"\r\n' + BODY[:5] + b"\r\n%X\r\n" % (len(BODY) - 5) + BODY[5:] + b"\r\n"
    b"0\r\nTrailer: x\r\n\r\n"
)
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
CLOSES = LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
OLD = LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0")
NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
UNTIL_END = b"HTTP/1.1 200 OK\r\n\r\n" + BODY


def heard(_at):
    pass


class Wire:
    """A transport that sends nothing."""

    def __init__(self):
        self.closed = self.paused = False

    def write(self, data):
        pass

    def abort(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False


def connected(wire=None, **ask):
    connection = Connection(heard)
    connection.connection_made(wire or Wire())
    connection.send(b"", **{"whole": False, **ask})
    return connection


async def whole(connection):
    head, found = await connection.head(), []
    while piece := await connection.piece():
        found.append(piece)
    return head.status, b"".join(found)


async def read(connection, data, cuts, *, ends=False):
    """Return (status, body) of an answer that arrives in pieces."""

    async def come():
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            connection.data_received(data[begin:end])
            await asyncio.sleep(0)
        if ends:
            connection.connection_lost(None)

    coming = asyncio.create_task(come())
    async with asyncio.timeout(60):
        found = await whole(connection)
    await coming
    return found


@pytest.mark.parametrize(
    ("data", "status", "keeps"),
    [
        (LENGTH, 200, True),
        (CHUNKED, 200, True),
        (GO_ON, 200, True),
        (CLOSES, 200, False),
        (OLD, 200, False),
        (NOTHING, 204, True),
        (UNTIL_END, 200, False),
    ],
)
@pytest.mark.parametrize("seed", seeds(36))
def test_an_answer_is_the_same_however_it_is_cut(data, status, keeps, seed):
    rng = random.Random(seed)

    async def run():
        for at_once in (False, True):
            cuts = sorted(rng.sample(range(1, len(data)), rng.randint(0, 12)))
            connection = connected(whole=at_once)
            found = await read(connection, data, cuts, ends=data is UNTIL_END)
            assert found == (status, b"" if data is NOTHING else BODY)
            assert connection.can_be_kept == keeps

    asyncio.run(run())


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_told(data):
    async def run():
        wire = Wire()
        connection = connected(wire)
        connection.data_received(data)
        with pytest.raises(Broken, match="is no HTTP"):
            await whole(connection)
        assert wire.closed
        assert not connection.can_be_kept

    asyncio.run(run())


@pytest.mark.parametrize("at", [0, 10, len(LENGTH) - 3])
def test_an_answer_that_breaks_off_is_told(at):
    async def run():
        connection = connected(whole=True)
        if at:
            connection.data_received(LENGTH[:at])
        connection.connection_lost(None)
        with pytest.raises(Broken) as told:
            await connection.head()
        assert isinstance(told.value, Unanswered) == (at == 0)

    asyncio.run(run())


def test_the_server_waits_for_who_reads_slowly():
    async def run():
        wire = Wire()
        connection = connected(wire, buffer=1000)
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b"x" * 1000)
        assert not wire.paused
        connection.data_received(b"x" * 500)
        assert wire.paused
        assert (len(await connection.piece(400)), wire.paused) == (400, True)
        assert (len(await connection.piece(400)), wire.paused) == (400, False)
        assert len(await connection.piece()) == 700

    asyncio.run(run())


# --- connections ----------------------------------------------------------------------------------
@asynccontextmanager
async def served(*answers):
    """Return a pool for a server that gives each connection its own answers and then closes it, and
    the requests that arrived."""
    left, came = list(answers), []

    async def serve(reader, writer):
        for answer in left.pop(0):
            try:
                came.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
            except asyncio.IncompleteReadError:
                break
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = ConnectionPool(f"http://localhost:{port}/at", None, None, heard)
    try:
        yield pool, came
    finally:
        pool.close()
        server.close()
        await server.wait_closed()


async def asked(pool, method="GET"):
    answer = await pool.ask(method, "/x", "", whole=True)
    body = await answer.read()
    answer.close()
    return body


def test_a_connection_is_kept_and_a_get_is_sent_again_where_it_was_closed():
    async def run():
        async with served([LENGTH, LENGTH], [LENGTH]) as (pool, came):
            assert [await asked(pool) for _ in range(2)] == [BODY, BODY]
            assert await asked(pool) == BODY
            assert came == [b"GET /at/x HTTP/1.1"] * 3

    asyncio.run(run())


def test_what_may_have_been_done_is_not_sent_again():
    async def run():
        async with served([LENGTH, b""], [LENGTH]) as (pool, came):
            assert await asked(pool, "POST") == BODY
            with pytest.raises(Unanswered):
                await asked(pool, "POST")
            assert len(came) == 2
            assert await asked(pool, "GET") == BODY

    asyncio.run(run())


def test_a_connection_is_not_kept_with_an_answer_that_was_not_read():
    async def run():
        long = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun"
        async with served([long], [LENGTH]) as (pool, _):
            answer = await pool.ask("GET", "/x", "")
            assert await answer.piece() == b"begun"
            answer.close()
            assert not pool._idle
            assert await asked(pool) == BODY

    asyncio.run(run())


def test_silence_is_bounded():
    async def run():
        long = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun"
        async with served([long, b""]) as (pool, _):
            answer = await pool.ask("GET", "/x", "", silence=0.2)
            assert await answer.piece() == b"begun"
            with pytest.raises(TimeoutError):
                await answer.piece()
            answer.close()

    asyncio.run(run())


REFUSED = b"HTTP/1.1 500 X\r\n"


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (REFUSED + b"Content-Length: 4\r\n\r\nlong", b"long"),
        (REFUSED + b"Content-Length: 400\r\n\r\nlong", b"long"),  # the rest never comes
        (REFUSED + b"Transfer-Encoding: chunked\r\n\r\n4\r\nlong\r\n", b"long"),
        (REFUSED + b"Content-Length: 999999\r\n\r\n" + 999 * b"long", 2 * b"long"),
        (REFUSED + b"Content-Length: 999999\r\n\r\n", b""),
    ],
)
@pytest.mark.parametrize("silence", [None, 60.0])
def test_the_words_of_who_refuses_are_not_waited_for_without_an_end(
    monkeypatch, said, wanted, silence
):
    monkeypatch.setattr(pool_module, "REFUSAL_WITHIN_S", 0.5)
    monkeypatch.setattr(pool_module, "REFUSAL_BYTES", 8)

    async def run():
        async with served([said, b""]) as (pool, _):
            answer = await pool.ask("GET", "/x", "", silence=silence)
            assert await answer.refusal() == wanted
            answer.close()

    asyncio.run(run())


def test_all_addresses_are_tried(monkeypatch):
    async def run():
        async with served([LENGTH], [LENGTH]) as (pool, _):
            loop = asyncio.get_running_loop()

            async def addresses(host, port, **_):
                return [(0, 0, 0, "", (each, port)) for each in ("127.0.0.9", "127.0.0.1")]

            monkeypatch.setattr(loop, "getaddrinfo", addresses, raising=False)
            assert await asked(pool) == BODY
            assert pool._answers == "127.0.0.1"

            async def none(host, port, **_):
                return [(0, 0, 0, "", ("127.0.0.9", port))]

            monkeypatch.setattr(loop, "getaddrinfo", none, raising=False)
            pool.retire()
            with pytest.raises(Unreachable, match="refused"):
                await asked(pool)

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/ä"])
def test_a_request_is_one_request(path):
    async def run():
        pool = ConnectionPool("http://127.0.0.1:9", None, None, heard)
        with pytest.raises(ValueError, match="no path"):
            await pool.ask("GET", path, "")
        with pytest.raises(ValueError, match="Authorization"):
            header_lines({"Authorization": "Bearer a\nX: y"})

    asyncio.run(run())
