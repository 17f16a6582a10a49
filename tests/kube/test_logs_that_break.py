"""When a log's stream breaks, in any way and at any point, its reader soon learns of it."""

import asyncio
import json
import logging
import socketserver
import struct
import threading
import time
from functools import partial
from socket import SO_LINGER, SOL_SOCKET

import pytest

from scheduling.kube.door import logs, pool
from scheduling.kube.door.client import Client
from scheduling.kube.door.logs import ContainerRef, LogOptions, LogReader, NodeFailed, Stopped
from scheduling.kube.seam import KubeError

OF = ContainerRef("ns", "pod", "uid-1", "main")
POD = json.dumps({"metadata": {"uid": "uid-1"}, "spec": {"nodeName": "n"}}).encode()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
# Bounds for a busy machine, with the limits of `impatient`; the server stays silent to the end of
# the test.
SOON_S = 30.0


class Scripted(socketserver.StreamRequestHandler):
    """Answers requests for the pod; for its log, the server's `script` drives the socket."""

    def handle(self):
        while line := self.rfile.readline():
            while self.rfile.readline().strip():
                pass
            if b"/log?" in line:
                self.server.script(self)
                return
            self.server.before()
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.server.pod)
            self.wfile.write(head + self.server.pod)

    def send(self, data):
        self.wfile.write(data)

    def keep_open(self):
        self.server.ended.wait()

    def reset(self):
        self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))


@pytest.fixture
def server():
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Scripted) as made:
        made.ended, made.before, made.pod = threading.Event(), lambda: None, POD
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.ended.set()
        made.shutdown()


@pytest.fixture
def impatient(monkeypatch):
    for name, seconds in (
        ("READ_WITHIN_S", 1.0),
        ("FOLLOW_WITHIN_S", 1.0),
        ("WHOLE_WITHIN_S", 4.0),
        ("OPEN_WITHIN_S", 5.0),
        ("GRACE_S", 0.3),
    ):
        monkeypatch.setattr(logs, name, seconds)


def bad_chunk(request):
    request.send(CHUNKED + b"5\r\nline\n\r\n")
    time.sleep(0.1)
    request.send(b"this is no length\r\n")
    request.keep_open()


def half_a_chunk(request):
    request.send(CHUNKED + b"5\r\nline\n\r\n50\r\nhalf")


def no_last_chunk(request):
    request.send(CHUNKED + b"5\r\nline\n\r\n")


def too_short(request):
    request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nline\n")


def reset(request):
    request.send(CHUNKED + b"5\r\nline\n\r\n")
    time.sleep(0.1)
    request.reset()


def silence(request):
    request.send(CHUNKED + b"5\r\nline\n\r\n")
    request.keep_open()


def drips(request, head=CHUNKED):
    """Never silent for long, and never finished."""
    request.send(head)
    while not request.server.ended.wait(0.1):
        request.send(b"1\r\n.\r\n")


BREAKS = [bad_chunk, half_a_chunk, no_last_chunk, too_short, reset, silence]


def opened(server, *, follow=False, reader=None):
    access = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
    ended = []
    reader = reader or LogReader()
    log = reader.open(access, OF, LogOptions(follow=follow), lambda: ended.append(1))
    return log, ended


async def gathered(log, found):
    async for piece in log.pieces():
        found.append(piece)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("script", BREAKS)
def test_it_ends_with_what_broke_it_and_gives_its_place_back(server, impatient, script, follow):
    server.script = script
    found, began = [], time.monotonic()
    log, ended = opened(server, follow=follow)
    with pytest.raises(KubeError):
        asyncio.run(gathered(log, found))
    assert b"".join(found).startswith(b"line\n")  # earlier output is not lost
    assert (ended, log.is_open) == ([1], False)
    log, ended = opened(server, follow=follow)
    with pytest.raises(KubeError):
        log.read()
    assert (ended, log.is_open) == ([1], False)
    assert time.monotonic() - began < 2 * SOON_S


def test_who_wants_all_of_it_waits_no_longer_than_a_bound(server, impatient):
    server.script, began = drips, time.monotonic()
    log, ended = opened(server)
    with pytest.raises(KubeError, match="does not end within 4 s"):
        log.read()
    assert (ended, log.is_open) == ([1], False)
    assert time.monotonic() - began < SOON_S


NO_PODS = [b"<html>", b"null", b"[]", b'{"metadata": {"uid": 5}}', b'{"metadata"', b""]


@pytest.mark.parametrize("body", NO_PODS)
def test_an_answer_that_is_no_pod_is_told(server, impatient, body):
    server.pod, server.script = body, no_last_chunk
    with pytest.raises(KubeError, match="/api/v1/namespaces/ns/pods/pod is no pod"):
        opened(server)
    access = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
    with pytest.raises(KubeError, match="is no pod"):
        LogReader().containers(access, OF)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("status", [b"403", b"404", b"500"])
def test_a_refusal_that_does_not_end_is_one(server, impatient, monkeypatch, status, follow):
    monkeypatch.setattr(pool, "REFUSAL_WITHIN_S", 0.5)
    began = time.monotonic()
    server.script = partial(drips, head=CHUNKED.replace(b"200", status))
    with pytest.raises((NodeFailed, KubeError), match=r"\.\.\.|answered 403"):
        opened(server, follow=follow)
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("script", [Scripted.keep_open, lambda request: None])
def test_one_that_does_not_even_begin_is_not_opened(server, impatient, script):
    server.script, began = script, time.monotonic()
    with pytest.raises(KubeError):
        opened(server)[0].read()
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("follow", [False, True])
def test_a_server_that_does_not_tell_of_the_pod_is_not_waited_for(server, monkeypatch, follow):
    monkeypatch.setattr(logs, "OPEN_WITHIN_S", 1.0)
    server.script, server.before = bad_chunk, server.ended.wait
    began = time.monotonic()
    with pytest.raises(KubeError, match="does not answer within 1 s"):
        opened(server, follow=follow)
    access = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
    with pytest.raises(KubeError, match="does not answer within 1 s"):
        LogReader().containers(access, OF)
    assert time.monotonic() - began < 2 * SOON_S


def test_one_cluster_that_does_not_open_keeps_no_other_waiting(server, monkeypatch):
    server.script, real = no_last_chunk, Client.open
    others_are_open, refused = threading.Event(), []

    async def hangs(self):
        if "slow" in str(self._access):
            await asyncio.to_thread(others_are_open.wait)
            raise KubeError("it is slow", "wait")
        await real(self)

    monkeypatch.setattr(Client, "open", hangs)
    reader = LogReader()

    def slow():
        try:
            reader.open({"server": "http://slow"}, OF, LogOptions())
        except KubeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        opened(server, reader=reader)
        assert not refused
    finally:
        others_are_open.set()
    thread.join()
    assert "it is slow" in refused[0]


def test_a_defect_of_the_reader_ends_it_too(server, impatient, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(logs, "Reply", broken)
    server.script = silence
    with caplog.at_level(logging.ERROR), pytest.raises(KubeError, match="ZeroDivisionError"):
        opened(server)[0].read()
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("at", ["opening", "reading"])
def test_who_is_told_to_end_waits_for_no_cluster(server, monkeypatch, at):
    monkeypatch.setattr(logs, "GRACE_S", 0.3)
    server.script, reader = silence, LogReader()
    if at == "opening":
        server.before = server.ended.wait
    threading.Timer(0.3, reader.stop).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        opened(server, reader=reader)[0].read()
    assert time.monotonic() - began < SOON_S
