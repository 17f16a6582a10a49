"""Which news wakes the scheduler at once, and which waits for more."""

import asyncio

import msgspec
import pytest

from scheduling.kube.door import gateway as gateway_module
from scheduling.kube.door.gateway import Gateway
from scheduling.kube.seam import Bind, CallOutcome, EmitEvent, PatchCondition, Result
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.pods import pod_translator

BIND = Bind("k", "ns", "p", "u", "node-1", {})
BOUND = CallOutcome(Result.BOUND, "u", "node-1")
EVENT = EmitEvent((), "ns", "p", "u", "Scheduled", "it has its node")
CONDITION = PatchCondition((), "ns", "p", "u", "Waits", "no GPU")


def pod(*, node="node-1", phase="Pending", uid="u", **meta):
    raw = {
        "metadata": {"name": "p", "namespace": "ns", "uid": uid, **meta},
        "spec": {"schedulerName": "kant", "nodeName": node},
        "status": {"phase": phase},
    }
    return pod_translator("kant")(msgspec.convert(raw, KubePod))


class Heard:
    """A gateway with an event loop but no server; counts how often it rings."""

    def __init__(self):
        self.rung = 0
        self.gateway = Gateway({"server": "http://127.0.0.1:9"}, namespace="n", label_map={})
        self.gateway._loop = asyncio.new_event_loop()
        self.gateway.on_news(self._ring)

    def _ring(self):
        self.rung += 1

    def pass_time(self):
        self.gateway._loop.run_until_complete(asyncio.sleep(0.05))


@pytest.fixture
def heard(monkeypatch):
    monkeypatch.setattr(gateway_module, "QUIET_S", 0.01)
    heard = Heard()
    yield heard
    heard.gateway._loop.close()


def test_what_was_done_as_asked_is_told_late_and_once(heard):
    gateway = heard.gateway
    gateway._executor.submit([BIND])
    gateway._pod_seen(pod())  # before its binding is answered
    gateway._effect_done(BIND, BOUND)
    for told in (EVENT, CONDITION):
        gateway._effect_done(told, CallOutcome(Result.DONE))
    assert heard.rung == 0
    heard.pass_time()
    assert heard.rung == 1
    assert len(gateway.drain()) == 4
    heard.pass_time()
    assert heard.rung == 1
    gateway._effect_done(BIND, BOUND)
    heard.pass_time()
    assert heard.rung == 2


def test_other_news_ring_at_once_and_bring_those_that_waited(heard):
    gateway = heard.gateway
    gateway._executor.submit([BIND])
    gateway._effect_done(BIND, BOUND)
    gateway._pod_seen(pod(node="", uid="another"))
    assert heard.rung == 1
    assert len(gateway.drain()) == 2
    heard.pass_time()
    assert heard.rung == 1


@pytest.mark.parametrize(
    "facts",
    [
        pod(node=""),
        pod(phase="Running"),
        pod(phase="Failed"),
        pod(deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
)
def test_a_pod_that_fares_otherwise_rings_at_once(heard, facts):
    heard.gateway._executor.submit([BIND])
    heard.gateway._pod_seen(facts)
    assert heard.rung == 1


def test_a_pod_that_somebody_else_bound_rings_at_once(heard):
    heard.gateway._pod_seen(pod())
    assert heard.rung == 1


@pytest.mark.parametrize("result", [each for each in Result if each is not Result.BOUND])
def test_a_binding_that_ends_otherwise_rings_at_once(heard, result):
    heard.gateway._effect_done(BIND, CallOutcome(result))
    assert heard.rung == 1
