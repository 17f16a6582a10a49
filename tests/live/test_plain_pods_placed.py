"""Plain pods with a place: how they end, and what happens if the binding fails."""

import pytest
from django.test import Client

from scheduling.engine.queue.order import LATER
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.kube.seam import CallOutcome, Result
from scheduling.models import Job, NodeRecord
from scheduling.services.jobs.changes import change_job
from scheduling.session.pods import plain as plain_pods
from tests.live.conftest import wait
from tests.live.ended_runs import has_run
from tests.live.plain_pods import (
    MERGE,
    NAMESPACE,
    NO_PATIENCE,
    Between,
    condition,
    job_of,
    make,
    node_of,
    path,
    pod_of,
    state_of,
    told,
    ungate,
)

pytestmark = pytest.mark.live


def running(world, name="plain", **wishes):
    uid = make(world, name, **wishes)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    return uid


def test_a_job_that_is_cancelled_while_it_runs_deletes_its_pod(world):
    uid = running(world)
    world.cancel(job_of(uid))
    world.drive(lambda: pod_of(world) is None)
    world.drive(lambda: world.free_gpus() == 32_000)
    world.drive(lambda: told(world) == [("Normal", "Cancelled", "Its job was cancelled")])


def test_a_running_pod_that_somebody_deletes_cancels_its_job(world):
    uid = running(world)
    world.call("DELETE", path("plain"))
    world.drive(lambda: state_of(uid) is S.CANCELLED)
    assert job_of(uid).reason == "PodDeleted"
    world.drive(lambda: world.free_gpus() == 32_000)
    assert job_of(uid).attempt == 1


def test_a_pod_gets_its_place_by_what_pods_like_it_took(world):
    has_run(world, "long", 8_000, 3000)
    has_run(world, "short", 8_000, 30)
    world.set_policy(queueing="backfill")
    for number in range(4):
        running(world, f"full-{number}")
    uids = [make(world, "long-40"), make(world, "short-40")]
    world.drive(lambda: [job_of(uid) is not None for uid in uids] == [True, True])
    world.drive(lambda: None not in [job_of(uid).stands_at for uid in uids])
    long, short = (job_of(uid) for uid in uids)
    assert (long.stands_at - long.submitted_at).total_seconds() == LATER * 3000
    assert (short.stands_at - short.submitted_at).total_seconds() == LATER * 30


def test_a_pod_that_fails_fails_its_job(world):
    notes = {"sim.kant.io/run-seconds": "0.2", "sim.kant.io/exit-code": "3"}
    uid = make(world, notes=notes)
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "PodFailed"
    assert "exit code 3" in job_of(uid).message
    assert pod_of(world)["status"]["phase"] == "Failed"


def test_a_preempted_pod_is_evicted_and_its_job_ends(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    slow = {"sim.kant.io/stop-seconds": "600"}
    uids = [running(world, f"low-{i}", notes=slow) for i in range(4)]
    high = make(world, "high", notes={"kant.io/priority": "10"})
    world.drive(lambda: S.FAILED in map(state_of, uids))
    [victim] = [uid for uid in uids if state_of(uid) is S.FAILED]
    job = job_of(victim)
    # Autoscalers count the pod on its future node, and do not remove that node.
    left = node_of(world, job.pod_name)
    world.drive(lambda: pod_of(world, "high")["status"].get("nominatedNodeName") == left)
    assert condition(world, "high")[1] == "WaitingForPreemption"
    world.drive(lambda: "deletionTimestamp" in pod_of(world, job.pod_name)["metadata"])
    # By this its owner can tell that it did not fail (podFailurePolicy of a Kubernetes Job).
    conditions = pod_of(world, job.pod_name)["status"]["conditions"]
    [mark] = [each for each in conditions if each["type"] == "DisruptionTarget"]
    assert (mark["status"], mark["reason"]) == ("True", "PreemptionByScheduler")
    world.call("DELETE", path(job.pod_name), {"gracePeriodSeconds": 0})
    world.drive(lambda: state_of(high) is S.RUNNING)
    assert node_of(world, "high") == left
    assert "nominatedNodeName" not in pod_of(world, "high")["status"]
    assert job.reason == "Preempted"
    assert world.kinds(job)[-2:] == [K.RUNNING, K.FAILED]
    world.drive(lambda: pod_of(world, job.pod_name) is None)
    world.drive(lambda: told(world, job.pod_name))
    assert told(world, job.pod_name)[0][:2] == ("Normal", "Preempted")
    client = Client()
    client.force_login(world.user)
    page = client.get(f"/jobs/{victim}/").content.decode()
    assert "It ended, because Kant cannot create its pod again" in page
    assert sorted(map(state_of, uids)) == [S.FAILED, S.RUNNING, S.RUNNING, S.RUNNING]


def test_a_disruption_budget_in_the_namespace_of_the_pod_protects_it(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    kept = {"kant.io/tenant": "team", "app": "web"}
    uids = [running(world, f"web-{i}", labels=kept) for i in range(4)]
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    spec = {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 4}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    world.call("POST", budgets, {**kind, "metadata": {"name": "web"}, "spec": spec})
    state = world.scheduler.led[world.cluster.pk, WHOLE].session.state
    world.drive(lambda: {state.jobs[uid].disruptions for uid in uids} == {0})
    high = world.submit("high", priority=10)
    world.drive(lambda: Job.objects.get(pk=high.pk).reason == "InsufficientGpus")
    assert {state_of(uid) for uid in uids} == {S.RUNNING}
    world.call("DELETE", f"{budgets}/web")
    world.drive_to(high, S.RUNNING)


def test_a_pod_whose_node_dies_ends_its_job_when_it_does_not_tolerate_that_any_more(world):
    uid = running(world, gpus=4, tolerations=NO_PATIENCE)
    patient = running(world, "patient", gpus=4)  # Kubernetes allows five minutes
    node = node_of(world)
    assert node_of(world, "patient") == node
    world.fault("node-down", node=node)
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "NodeLost"
    assert state_of(patient) is S.RUNNING
    world.fault("node-up", node=node)
    world.drive(lambda: world.free_gpus() == 32_000)


def test_a_run_time_limit_ends_pod_and_job(world):
    uid = make(world, schedulingGates=[{"name": "later"}])
    world.drive(lambda: job_of(uid))
    change_job(world.user, job_of(uid), {"run_limit_s": 1})
    ungate(world)
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "RunLimitExceeded"
    world.drive(lambda: pod_of(world) is None)


def test_a_run_time_limit_set_while_the_pod_runs_ends_it(world):
    uid = running(world)
    change_job(world.user, job_of(uid), {"run_limit_s": 1})
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "RunLimitExceeded"


def test_a_share_of_a_gpu_is_bound_with_its_devices(world):
    uid = running(world, requests={"kant.io/gpu-milli": "250"})
    notes = pod_of(world)["metadata"]["annotations"]
    assert notes["kant.io/milli"] == "250"
    [place] = world.placements(job_of(uid))
    assert (place.milli, len(place.devices)) == (250, 1)


# --- a scheduler that dies ------------------------------------------------------------------------
def test_an_intent_is_finished_by_the_next_scheduler(world, monkeypatch):
    world.drive(lambda: world.scheduler.led)
    session = world.scheduler.led[world.cluster.pk, WHOLE].session
    monkeypatch.setattr(session.gateway, "submit", lambda effects: None)
    uid = make(world, gpus=2)
    world.drive(lambda: world.placements(job_of(uid)))
    assert node_of(world) is None
    world.restart_scheduler()
    world.drive(lambda: state_of(uid) is S.RUNNING)
    [place] = world.placements(job_of(uid))
    assert (place.attempt, place.node) == (1, node_of(world))


def test_a_running_pod_is_taken_over_and_one_that_is_gone_ends_its_job(world):
    stays, goes = running(world, "stays", gpus=2), running(world, "goes", gpus=2)
    world.restart_scheduler()
    world.call("DELETE", path("goes"), {"gracePeriodSeconds": 0})
    world.drive(lambda: state_of(goes) is S.CANCELLED)
    assert state_of(stays) is S.RUNNING
    world.drive(lambda: world.free_gpus() == 30_000)
    assert pod_of(world, "stays")["status"]["phase"] == "Running"


def test_a_lost_answer_to_the_binding_is_looked_up(world):
    world.drive(lambda: world.scheduler.led)
    world.fault("lose-reply", verb="bind", count=1)
    uid = running(world)
    assert len(world.placements(job_of(uid))) == 1


# --- bindings that fail ---------------------------------------------------------------------------
def test_a_pod_that_could_not_be_bound_waits_again(world, monkeypatch):
    between = Between(world, monkeypatch)
    refusals = [CallOutcome(Result.REFUSED, code=403, message="denied by a webhook")]
    between.meet = lambda bind: refusals.pop() if refusals else None
    uid = make(world)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    job = job_of(uid)
    assert (job.attempt, told(world)) == (2, [])
    assert K.REQUEUED in world.kinds(job)
    nodes = [place.node for place in world.placements(job)]
    assert len(set(nodes)) == 2  # the node is avoided
    [said] = [e.message for e in job.events.all() if e.kind == K.REQUEUED]
    assert said == f"Pod plain could not be bound to {nodes[0]}: denied by a webhook"


def test_a_pod_that_can_never_be_bound_goes_with_its_job(world, monkeypatch):
    world.set_policy(max_attempts=2)
    between = Between(world, monkeypatch)
    said = []

    def refuse(bind):
        if said:  # the pod is deleted after the second refusal
            wait(lambda: condition(world))
        said.append(condition(world))
        return CallOutcome(Result.REFUSED, code=403, message="denied")

    between.meet = refuse
    uid = make(world)
    world.drive(lambda: state_of(uid) is S.FAILED)
    none, (status, reason, text) = said
    assert not none
    assert (status, reason) == ("False", "BindingFailed")
    assert text.startswith("BindingFailed: Pod plain could not be bound to")
    world.drive(lambda: pod_of(world) is None)
    world.drive(lambda: world.free_gpus() == 32_000)
    world.drive(lambda: told(world))
    assert told(world)[0][:2] == ("Warning", "BindingFailed")


def test_a_pod_that_was_taken_on_the_way_stays_where_it_is(world, monkeypatch):
    between = Between(world, monkeypatch)
    nodes = [n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"]]

    def snatch(bind):
        other = next(name for name in nodes if name != bind.node)
        body = {
            "metadata": {"name": "plain", "namespace": NAMESPACE},
            "target": {"apiVersion": "v1", "kind": "Node", "name": other},
        }
        world.call("POST", f"{path('plain')}/binding", body)

    between.meet = snatch
    uid = make(world, gpus=2)
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "BoundElsewhere"
    world.drive(lambda: world.free_gpus() == 30_000)
    world.drive(lambda: pod_of(world)["status"]["phase"] == "Running")
    assert told(world) == []


def test_while_nobody_knows_whether_a_pod_is_bound_its_place_is_kept(world, monkeypatch):
    monkeypatch.setattr(plain_pods, "BIND_AGAIN_S", 0.1)
    between = Between(world, monkeypatch)
    asked = []

    def silent(bind):
        asked.append(bind.node)
        return CallOutcome(Result.FAILED, message="no answer")

    between.meet = silent
    uid, other = make(world), make(world, "other")
    world.drive(lambda: len(asked) > 6)
    assert {state_of(uid), state_of(other)} == {S.ADMITTED}
    assert len(set(asked)) == 2
    world.cancel(job_of(other))
    world.drive(lambda: pod_of(world, "other") is None)
    between.meet = lambda bind: None
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert (job_of(uid).attempt, job_of(uid).failures) == (1, 0)


# --- what is left alone ---------------------------------------------------------------------------
def test_pods_of_others_and_pods_that_are_bound_already_stay_foreign(world):
    node = world.call("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
    make(world, "bound", gpus=2, nodeName=node)
    make(world, "other", gpus=2, schedulerName="default-scheduler")
    world.drive_to(world.submit("job", run_s=0.2), S.SUCCEEDED)
    world.drive(lambda: world.free_gpus() == 30_000)
    assert not Job.objects.exclude(pod_name="").exists()
    assert told(world, "bound") + told(world, "other") == []
    assert not node_of(world, "other")


@pytest.mark.parametrize("cordoned", [True, False])
def test_the_job_of_a_drained_pod_says_that_it_was_evicted(world, cordoned):
    uid = make(world, gpus=1)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    node = node_of(world)
    if cordoned:
        cordon = {"spec": {"unschedulable": True}}
        world.call("PATCH", f"/api/v1/nodes/{node}", cordon, kind=MERGE)
        world.drive(lambda: not NodeRecord.objects.get(name=node).schedulable)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "plain"}}
    world.call("POST", f"{path('plain')}/eviction", eviction)
    world.drive(lambda: state_of(uid) is S.CANCELLED)
    job = job_of(uid)
    drained = ", which takes no new pods" if cordoned else ""
    assert job.reason == "PodEvicted"
    assert job.message == f"Pod plain was evicted from node {node}{drained} (EvictionByEvictionAPI)"


def test_the_job_of_a_pod_that_somebody_deleted_says_that(world):
    uid = make(world, gpus=1)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    world.call("DELETE", path("plain"))
    world.drive(lambda: state_of(uid) is S.CANCELLED)
    assert job_of(uid).reason == "PodDeleted"
