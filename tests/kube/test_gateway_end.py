"""A gateway ends within a bound, whatever it is doing. It gives up a list only if the API server
does not answer."""

import asyncio
import gc
import math
import socket
import threading
import time

import pytest

from scheduling.kube.door import client, gateway
from scheduling.kube.door.client import Client, Reply
from scheduling.kube.door.gateway import STOP_WITHIN_S, Gateway
from scheduling.kube.door.watch import Reflector
from scheduling.kube.seam import KubeError
from tests.waiting import until

MARGIN_S = 30.0  # for a busy machine; unbounded waits would take longer
LATE_S = 60.0
UNHEARD_S = 3.0  # thirty times the pauses between small answers


@pytest.fixture(scope="module", autouse=True)
def tasks_that_are_left():
    """Collect them here: Python 3.11.7 cannot parse a file while it reports tasks that were
    destroyed (https://github.com/python/cpython/issues/106905)."""
    yield
    gc.collect()


@pytest.fixture
def silent():
    """Return the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield {"server": f"http://127.0.0.1:{listener.getsockname()[1]}"}


def opened(access):
    made = Gateway(access, namespace="n", label_map={})
    made.start()
    return made


def stopped(made):
    began = time.monotonic()
    ended = made.stop()
    assert time.monotonic() - began < STOP_WITHIN_S + MARGIN_S
    assert ended is not made.is_alive
    return ended


def heard_for(made):
    """Return the seconds from the start until the server was last heard."""
    return made._client.heard_at - made._started_at


async def deaf(*_):
    """Ignore every cancellation."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def answered(*_):
    return Reply(200, b"{}", 0.0)


def test_while_nothing_answers(silent):
    assert stopped(opened(silent))


@pytest.mark.parametrize(
    ("owner", "name"), [(Client, "close"), (Reflector, "run"), (Client, "open")]
)
def test_although_a_task_does_not_notice_it(silent, monkeypatch, owner, name):
    if owner is Reflector:
        monkeypatch.setattr(gateway, "ensure_namespace", answered)
    begun = threading.Event()

    def begins(*_, **__):
        begun.set()
        return deaf()

    monkeypatch.setattr(owner, name, begins)
    made = opened(silent)
    if name != "close":  # closing begins only at the end
        assert begun.wait(LATE_S)
    assert stopped(made)
    assert begun.is_set()
    assert made.stop()


def test_while_credentials_are_read(silent, monkeypatch):
    begun, released = threading.Event(), threading.Event()

    def hangs(_access):
        begun.set()
        released.wait()

    monkeypatch.setattr(client, "load_endpoint", hangs)
    made = opened(silent)
    assert begun.wait(LATE_S)
    assert stopped(made)
    released.set()


def test_credentials_that_are_not_read_in_time_are_told(silent, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(client, "ACCESS_TIMEOUT_S", 0.1)
    monkeypatch.setattr(client, "load_endpoint", lambda _: released.wait())
    made = opened(silent)
    until(lambda: made.trouble)
    with pytest.raises(KubeError, match="access is not read within"):
        made.wait_synced(0)
    released.set()
    assert stopped(made)


def test_one_that_cannot_end_sends_nothing_more_and_tells_when_it_has_ended(silent, monkeypatch):
    begun, released = threading.Event(), threading.Event()

    async def blocks(*_):
        begun.set()
        released.wait()
        return await answered()

    monkeypatch.setattr(gateway, "ensure_namespace", blocks)
    made = opened(silent)
    assert begun.wait(LATE_S)
    assert not stopped(made)
    made.fence(time.monotonic() + 60)  # a late renewal does not wake it
    assert made._executor.settler.fence == -math.inf
    released.set()
    assert made.stop()


def test_a_server_that_sends_nothing_is_given_up(silent, monkeypatch):
    made = opened(silent)
    assert not made.is_synced()
    monkeypatch.setattr(gateway, "UNHEARD_S", 0.0)
    with pytest.raises(KubeError, match="has sent nothing for"):
        made.is_synced()
    assert stopped(made)


@pytest.mark.parametrize("small_answers", [True, False])
def test_silent_lists_are_waited_for_while_the_server_answers(silent, monkeypatch, small_answers):
    monkeypatch.setattr(gateway, "UNHEARD_S", UNHEARD_S if small_answers else 0.5)
    monkeypatch.setattr(gateway, "ASK_S", 0.1)
    monkeypatch.setattr(gateway, "ensure_namespace", answered)

    async def call(self, _method, path, *_):
        if path != "/version" or not small_answers:
            await asyncio.sleep(3600)
        self.heard_at = time.monotonic()
        return Reply(200, b"{}", 0.0)

    monkeypatch.setattr(Client, "call", call)
    made = opened(silent)
    if small_answers:
        until(lambda: heard_for(made) > UNHEARD_S)
        assert not made.is_synced()
    else:
        time.sleep(0.6)
        with pytest.raises(KubeError, match="has sent nothing for"):
            made.is_synced()
    assert stopped(made)


def test_one_whose_thread_ended_says_so(silent, monkeypatch):
    def fails():
        raise OSError("too many open files")

    monkeypatch.setattr(gateway, "DoorLoop", fails)
    made = opened(silent)
    made._thread.join(LATE_S)
    with pytest.raises(KubeError, match="too many open files"):
        made.is_synced()
    assert stopped(made)


def test_a_first_list_is_waited_for_however_long_it_takes(silent, monkeypatch):
    """A caller that sets up a demo or a bench waits; a server that says nothing at all is given
    up."""
    monkeypatch.setattr(gateway, "UNHEARD_S", UNHEARD_S)
    monkeypatch.setattr(gateway, "ASK_S", 0.1)
    monkeypatch.setattr(gateway, "LOOK_S", 0.1)
    monkeypatch.setattr(gateway, "ensure_namespace", answered)
    speaks = threading.Event()
    speaks.set()

    async def call(self, _method, path, *_):
        if path != "/version" or not speaks.is_set():
            await asyncio.sleep(600)
        self.heard_at = time.monotonic()
        return Reply(200, b"{}", 0.0)

    monkeypatch.setattr(Client, "call", call)
    made, waited = opened(silent), []

    def wait():
        try:
            made.wait_synced()
        except KubeError as error:
            waited.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: heard_for(made) > UNHEARD_S)
    assert waiting.is_alive()
    with pytest.raises(KubeError, match="were not listed within 0 s"):
        made.wait_synced(0.2)
    speaks.clear()
    waiting.join(LATE_S)
    assert ["has sent nothing for" in text for text in waited] == [True]
    assert stopped(made)
