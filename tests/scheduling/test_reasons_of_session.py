"""Which reasons for a job's wait appear among its events."""

import pytest
from msgspec.structs import replace

from scheduling.engine.decisions import Waiting
from scheduling.engine.states import JobState
from scheduling.engine.types import JobRequest, NodeRules, PodSetSpec
from scheduling.engine.verdict import Reason, Verdict
from scheduling.kube.seam import PatchCondition, PlainPod
from scheduling.session.memory.live import TELL_AGAIN_S, LiveJob, PodRef
from scheduling.session.pods.follow import Lifecycle
from tests.scheduling.test_scope_of_session import pod

HERE, THERE = Reason.BEHIND_IN_QUEUE, Reason.RESERVED_FOR_HEAD


@pytest.fixture
def life():
    life = Lifecycle()
    job = LiveJob(
        JobRequest("job", "t", 0.0, (PodSetSpec("w", 1, 1),)), "job", (), JobState.PENDING, 1, 0
    )
    life.jobs[job.id] = job
    return life


def told(life, reason, at):
    """Return whether the reason is new, and whether the events of the job show it."""
    life.waiting(Waiting("job", Verdict(reason, "so", {}, ())), at)
    change = life.out.writes.reasons.pop()
    assert life.jobs["job"].reason == reason
    return change.is_new, change.is_noted


def test_a_reason_that_comes_and_goes_is_told_now_and_then(life):
    assert told(life, HERE, 0.0) == (True, True)
    assert told(life, HERE, 1.0) == (False, False)
    assert told(life, THERE, 2.0) == (True, True)
    flips = [told(life, (HERE, THERE)[n % 2], 3.0 + n) for n in range(3600)]
    assert all(is_new for is_new, _ in flips)
    assert sum(is_noted for _, is_noted in flips) == 2 * (3600 // TELL_AGAIN_S)


def test_another_reason_is_told_at_once(life):
    told(life, HERE, 0.0)
    told(life, THERE, 1.0)
    assert told(life, HERE, 2.0) == (True, False)
    assert told(life, Reason.INSUFFICIENT_GPUS, 3.0) == (True, True)


def test_a_clock_that_is_set_back_keeps_nothing_from_being_told(life):
    told(life, HERE, 5000.0)
    told(life, THERE, 5001.0)
    assert told(life, HERE, 10.0) == (True, True)


@pytest.fixture
def waits():
    """Return a waiting job of one plain pod, as another scope's scheduler made it from the pod."""
    life = Lifecycle()
    asks = JobRequest("job", "t", 0.0, (PodSetSpec("w", 1, 1),))
    job = LiveJob(asks, "job", (), JobState.PENDING, 1, 0, plain={(0, 0): PodRef("p", "uid", {})})
    life.know(job)
    return life


def seen(life, *gates):
    """Return the conditions that the pod gets when it is seen with these gates."""
    plain = PlainPod(NodeRules(), "i", (), True, gates, 0.0, ())
    facts = replace(pod("p", "", phase="Pending"), uid="uid", owned=True, plain=plain)
    life.pod_seen(replace(facts, gated=bool(gates)), 0.0)
    effects, life.out.effects = life.out.effects, []
    return [(e.reason, e.message) for e in effects if isinstance(e, PatchCondition)]


def waiting(life):
    life.waiting(Waiting("job", Verdict(HERE, "so", {}, ())), 0.0)
    life.plain.tell_why()


def test_a_pod_that_is_seen_after_its_job_was_told_why_it_waits_is_told(waits):
    waiting(waits)
    assert seen(waits) == [(HERE, f"{HERE}: so")]
    assert seen(waits) == []


def test_so_is_one_whose_gates_are_seen_to_go_after_that(waits):
    assert seen(waits, "example.com/later") == []
    waiting(waits)
    assert seen(waits) == [(HERE, f"{HERE}: so")]
