"""The gateway's event loops survive file descriptors that have changed under them."""

import asyncio
import socket
import subprocess
import sys
import threading
import time

import pytest

from scheduling.kube.door import loop as door_loop
from scheduling.kube.door.loop import DoorLoop, aside

# A loop polls a connection in progress; then its descriptor is gone, or belongs to another file.
CLOSED = """
import asyncio, os, socket, sys

def loop_of_logs():
    from scheduling.kube.door.logs import LogReader
    return LogReader()._running()

def loop_of_a_gateway():
    from scheduling.kube.door.gateway import Gateway
    gateway = Gateway({"server": "http://127.0.0.1:9"}, namespace="n", label_map={})
    gateway.start()
    return gateway._loop

async def lose():
    loop, lost = asyncio.get_running_loop(), []
    for _ in range(20):
        here, there = socket.socketpair()
        here.setblocking(False)
        loop.add_writer(here, lambda: None)
        lost += [here, there]
    for each in lost:
        os.close(each.detach())
    if sys.argv[2] == "reused":
        lost += [open(os.devnull) for _ in lost]
    await asyncio.sleep(0.05)
    return "goes on"

loop = globals()[sys.argv[1]]()
print(asyncio.run_coroutine_threadsafe(lose(), loop).result(30), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("of", ["loop_of_logs", "loop_of_a_gateway"])
@pytest.mark.parametrize("then", ["closed", "reused"])
def test_no_descriptor_that_was_closed_ends_the_process(of, then):
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, of, then], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


def test_who_is_cancelled_as_an_answer_comes_ends():
    """Otherwise a gateway told to end during name resolution would go on with what it found."""
    ended = threading.Event()

    def names_it():
        ended.set()
        return "the answer"

    async def look():
        looking = asyncio.create_task(aside(names_it, 60))
        await asyncio.sleep(0)
        ended.wait(60)
        for thread in threading.enumerate():
            if thread.name == "kube-access":
                thread.join(60)  # the answer waits for the loop
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking

    with asyncio.Runner(loop_factory=DoorLoop) as runner:
        runner.run(look())


@pytest.fixture
def silent_names(monkeypatch):
    """A name server that does not answer until the test has ended."""
    ended = threading.Event()
    monkeypatch.setattr(door_loop.socket, "getaddrinfo", lambda *_, **__: ended.wait(60))
    yield
    ended.set()


@pytest.mark.usefixtures("silent_names")
def test_a_loop_ends_while_a_name_is_looked_up():
    async def look():
        looking = asyncio.create_task(asyncio.get_running_loop().getaddrinfo("silent.example", 1))
        await asyncio.sleep(0.05)
        looking.cancel()

    began = time.monotonic()
    with asyncio.Runner(loop_factory=DoorLoop) as runner:
        runner.run(look())
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("silent_names")
def test_a_name_without_an_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(door_loop, "NAMED_WITHIN_S", 0.05)

    async def look():
        await asyncio.get_running_loop().getaddrinfo("silent.example", 1)

    with (
        asyncio.Runner(loop_factory=DoorLoop) as runner,
        pytest.raises(socket.gaierror, match=r"no answer about silent\.example"),
    ):
        runner.run(look())
