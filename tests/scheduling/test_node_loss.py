"""How long pods stay on a node that does not answer or has a taint that evicts them."""

import pytest

from scheduling.engine.states import JobState
from scheduling.engine.types import (
    JobRequest,
    Node,
    NodeRules,
    PodPlacement,
    PodSetSpec,
    Policy,
    Taint,
    Toleration,
)
from scheduling.kube.seam import NodeFacts
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.live import LiveJob, LivePod, PodContent, PodRef
from scheduling.session.pods.node_loss import DRIVEN, GIVEN_UP, NodeLoss

POLICY = Policy(node_loss_s=300.0, node_loss_saved_s=60.0)
SILENT = Taint("node.kubernetes.io/unreachable", "", "NoExecute")
NOT_READY = Taint("node.kubernetes.io/not-ready", "", "NoExecute")
CORDON = Taint("node.kubernetes.io/unreachable", "", "NoSchedule")
REPAIR = Taint("repair", "now", "NoExecute")


def job_of(*tolerations, plain=False, notice_s=0.0, saved_at=0.0, spares=False):
    """A job of one pod, which runs on node `n`."""
    pods = PodSetSpec("w", 1, 1, nodes=NodeRules(tolerations=tolerations))
    asks = JobRequest("j", "t", 0.0, (pods,), uses_spares=spares)
    job = LiveJob(asks, "g", (PodContent("i", (), {}, {}),), JobState.RUNNING, 1, 1)
    job.notice_s, job.saved_at = notice_s, saved_at
    job.add(LivePod(PodPlacement(0, 0, "n", (0,), 1000), 1, "p", "H100", P.RUNNING, uid="u"))
    if plain:
        job.plain = {(0, 0): PodRef("p", "u", {})}
    return job


def node(*taints, at=None):
    since = {} if at is None else dict.fromkeys(taints, at)
    return NodeFacts(Node("n", taints=taints), {}, "uid", tainted_at=since)


def lost(watch, job, now, *, again=False):
    found = watch.lost({"j": job}, lambda _: [("j", 0, 0)], POLICY, now, again=again)
    return {why: keys for why, keys in found.items() if keys}


@pytest.mark.parametrize("silent", [SILENT, NOT_READY])
@pytest.mark.parametrize(
    ("saves", "patience"),
    [
        ({}, 300.0),
        ({"notice_s": 30.0}, 60.0),
        ({"saved_at": 5.0}, 60.0),
        ({"spares": True}, 60.0),
    ],
)
def test_a_node_that_does_not_answer_is_waited_for(silent, saves, patience):
    watch, job = NodeLoss(), job_of(**saves)
    watch.seen(node(silent, CORDON), 1000.0)
    for now in (1000.0, 1001.0, 1000.0 + patience - 0.1):
        assert lost(watch, job, now) == {}
    why = f"did not answer for {patience:.0f} s"
    assert lost(watch, job, 1000.0 + patience) == {why: [("j", 0, 0)]}


def test_a_node_that_comes_back_begins_anew():
    watch, job = NodeLoss(), job_of()
    watch.seen(node(SILENT), 0.0)
    assert lost(watch, job, 299.0) == {}
    watch.seen(node(), 299.5)
    assert lost(watch, job, 400.0, again=True) == {}
    watch.seen(node(SILENT), 500.0)
    assert lost(watch, job, 799.0) == {}
    assert lost(watch, job, 800.0)


def test_since_when_it_is_silent_is_remembered_by_the_node():
    """A scheduler that starts later waits no longer, and does not use its own clock."""
    watch, job = NodeLoss(), job_of()
    watch.seen(node(SILENT, at=100.0), 390.0)
    assert lost(watch, job, 399.0) == {}
    assert lost(watch, job, 400.0)
    ahead = NodeLoss()
    ahead.seen(node(SILENT, at=1e9), 0.0)
    assert lost(ahead, job, 300.0)
    again = NodeLoss()
    again.seen(node(SILENT), 0.0)
    again.seen(node(SILENT, CORDON), 200.0)
    assert lost(again, job, 300.0)


def test_who_tolerates_the_silence_stays():
    watch = NodeLoss()
    watch.seen(node(SILENT), 0.0)
    assert lost(watch, job_of(Toleration(SILENT.key, "Exists")), 1e6, again=True) == {}


def test_another_taint_drives_away_at_once_who_does_not_tolerate_it():
    watch, job = NodeLoss(), job_of()
    watch.seen(node(REPAIR), 0.0)
    assert lost(watch, job, 0.0) == {DRIVEN: [("j", 0, 0)]}
    watch.seen(node(REPAIR), 1.0)
    assert lost(watch, job_of(Toleration("repair", "Exists")), 1.0) == {}
    assert lost(watch, job, 2.0) == {}  # nothing changed
    assert lost(watch, job, 3.0, again=True) == {DRIVEN: [("j", 0, 0)]}


def test_pods_of_others_go_when_they_say_it():
    """Kubernetes deletes them when their time is up; only a dead node cannot confirm that."""
    watch, job = NodeLoss(), job_of(plain=True)
    watch.seen(node(REPAIR, SILENT), 0.0)
    assert lost(watch, job, 1e6, again=True) == {}
    job.pods[0, 0].going = True
    assert lost(watch, job, 1e6) == {GIVEN_UP: [("j", 0, 0)]}
    watch.seen(node(REPAIR), 1e6)
    assert lost(watch, job, 1e6, again=True) == {}


def test_what_is_lost_already_or_over_or_gone_is_not_told_again():
    watch, job = NodeLoss(), job_of()
    watch.seen(node(SILENT), 0.0)
    pod = job.pods[0, 0]
    pod.lost = True
    assert lost(watch, job, 1e6) == {}
    pod.lost, pod.state = False, P.RELEASED
    assert lost(watch, job, 1e6) == {}
    pod.state = P.RUNNING
    assert watch.lost({}, lambda _: [("j", 0, 0)], POLICY, 1e6, again=True) == {}
    watch.gone("n")
    assert lost(watch, job, 1e6, again=True) == {}
