"""Plain pods that name the same gang form one job."""

import pytest
from django.db.models import F
from django.test import Client

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import WAITING
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.kube.seam import Bind, CallOutcome, Result
from scheduling.models import Job
from scheduling.session import changes
from scheduling.session.pods import plain as plain_pods
from tests.live.plain_pods import (
    NAMESPACE,
    NO_PATIENCE,
    Between,
    condition,
    make,
    node_of,
    path,
    pod_of,
    told,
    ungate,
)

pytestmark = pytest.mark.live
LONG = {"sim.kant.io/run-seconds": "600"}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    """Report often what a gang is missing."""
    monkeypatch.setattr(changes, "COUNT_S", 0.3)


def member(world, name, size=2, gang="train", tenant="team", notes=LONG, **spec):
    labels = {"kant.io/tenant": tenant, "kant.io/gang": gang, "rank": name}
    wishes = {"kant.io/gang-size": str(size), **notes}
    return make(world, name, labels=labels, notes=wishes, **spec)


def jobs():
    """Return the jobs of plain pods, the oldest first."""
    return list(Job.objects.exclude(pod_gang="").order_by("submitted_at"))


def states():
    return [S(job.state) for job in jobs()]


def running(world, *names, **wishes):
    """Create a gang of these pods and wait until it runs."""
    before = len(jobs())
    uids = [member(world, name, len(names), **wishes) for name in names]
    world.drive(lambda: states()[before:] == [S.RUNNING])
    return uids


def full(world):
    job = world.submit("full", pods=4)
    world.drive_to(job, S.RUNNING)
    return job


def said_of(world, *names):
    """Return the messages of all these pods; "" for a pod without a message yet."""
    return {condition(world, name).message for name in names}


def there(world, *names):
    """Return those pods that exist and are not being deleted."""
    found = {name: pod_of(world, name) for name in names}
    return {n for n, pod in found.items() if pod and "deletionTimestamp" not in pod["metadata"]}


def test_pods_of_a_gang_become_one_job_when_the_last_has_come(world):
    ends = {"sim.kant.io/run-seconds": "0.5"}
    launcher = {"requests": {"cpu": "500m"}}
    uids = [member(world, "w-1", 3, notes=ends), member(world, "w-0", 3, notes=ends)]
    text = "2 of 3 pods of gang train have come."
    world.drive(lambda: said_of(world, "w-0", "w-1") == {text})
    assert condition(world, "w-0")[:2] == ("False", "GangIncomplete")
    assert not Job.objects.exists()
    uids.append(member(world, "launcher", 3, notes=ends, **launcher))
    world.drive(lambda: states() == [S.RUNNING])
    [job] = jobs()
    assert (job.name, job.tenant.name, job.user, job.gang) == ("train", "team", None, True)
    assert [(s.count, s.gpus) for s in job.pod_sets.all()] == [(1, 0), (2, 8)]
    places = world.placements(job)
    assert [p.pod_name for p in places] == ["launcher", "w-0", "w-1"]
    assert [p.pod_uid for p in places] == [uids[2], uids[1], uids[0]]
    for place in places:
        assert node_of(world, place.pod_name) == place.node
        if place.pod_set:
            notes = pod_of(world, place.pod_name)["metadata"]["annotations"]
            assert notes["kant.io/devices"] == str(place.devices)
    world.drive(lambda: states() == [S.SUCCEEDED])
    assert world.free_gpus() == 32_000
    assert there(world, "launcher", "w-0", "w-1") == {"launcher", "w-0", "w-1"}
    client = Client()
    client.force_login(world.user)
    shown = client.get(f"/api/v1/jobs/{job.pk}").json()
    pod = {"namespace": NAMESPACE, "name": "launcher", "gang": "train", "hold": ""}
    assert shown["pod"] == pod
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert f"{NAMESPACE}/train</span>" in page
    assert ">w-1<" in page
    assert "Address of rank 0" not in page
    [said] = job.events.filter(kind=K.SUBMITTED)
    assert said.message == f"Taken up from 3 pods of gang {NAMESPACE}/train."


# --- before it starts -----------------------------------------------------------------------------
def test_events_tell_what_is_missing_too(world):
    member(world, "a", 3)
    member(world, "b", 3)
    both = ("Normal", "GangIncomplete", "2 of 3 pods of gang train have come.")
    world.drive(lambda: told(world, "a").count(both) == told(world, "b").count(both) == 1)
    world.call("DELETE", path("b"))
    world.drive(lambda: said_of(world, "a") == {"1 of 3 pods of gang train has come."})
    assert not Job.objects.exists()


def test_a_gang_that_comes_at_once_is_not_told_what_it_missed(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 3600.0)
    running(world, *"abcd")
    assert [told(world, name) for name in "abcd"] == [[]] * 4


def test_a_pod_that_was_gated_gets_the_condition_of_its_gang_when_it_is_not_any_more(world):
    for name in "abc":
        gates = {"schedulingGates": [{"name": "example.com/later"}]} if name == "a" else {}
        member(world, name, 2, **gates)
    world.drive(lambda: "GangTooLarge" in [reason for _, reason, _ in told(world, "a")])
    assert condition(world, "a")[1] == "SchedulingGated"
    ungate(world, "a")
    world.drive(lambda: condition(world, "a")[1] == "GangTooLarge")
    assert [reason for _, reason, _ in told(world, "a")].count("GangTooLarge") == 1


def test_contradictions_are_told_on_each_pod(world):
    for name, size in (("a", 2), ("b", 3)):
        member(world, name, size, gang="sizes")
    for name in "cde":
        member(world, name, 2, gang="many")
    for name, tenant in (("f", "team"), ("g", "other")):
        member(world, name, 2, gang="tenants", tenant=tenant)
    for name, priority in (("h", "1"), ("i", "2")):
        member(world, name, 2, gang="ranks", notes={"kant.io/priority": priority})
    wanted = {
        **dict.fromkeys("ab", "GangDisagrees"),
        **dict.fromkeys("cde", "GangTooLarge"),
        **dict.fromkeys("fg", "GangIncomplete"),
        **dict.fromkeys("hi", "GangDisagrees"),
    }

    def reasons():
        return {name: (condition(world, name) or ("", ""))[1] for name in wanted}

    world.drive(lambda: reasons() == wanted)
    world.drive(lambda: "another tenant (other)" in condition(world, "f")[2])
    assert condition(world, "h")[2].startswith("spec.priority or annotation kant.io/priority: ")
    assert not Job.objects.exists()


def test_a_gang_that_is_too_large_for_the_cluster_is_told_what_helps(world):
    for name in "abcde":
        member(world, name, 5)
    world.drive(lambda: condition(world, "e"))
    status, reason, text = condition(world, "e")
    assert (status, reason) == ("False", "ExceedsCapacity")
    assert "needs 40 NVIDIA-H100-80GB-HBM3 GPUs at once" in text
    assert text.endswith("has 32. Ask for fewer, or leave kant.io/gang and kant.io/gang-size out.")


def test_a_gang_is_taken_up_when_its_last_gate_is_removed(world):
    member(world, "a")
    member(world, "b", schedulingGates=[{"name": "example.com/later"}])
    world.drive(lambda: condition(world, "a"))
    world.drive(lambda: "Scheduling gates must be removed from b." in condition(world, "a")[2])
    ungate(world, "b")
    world.drive(lambda: states() == [S.RUNNING])


def test_a_gang_that_comes_back_is_another_job(world):
    """The gang that was deleted is there again, as after a restore of the API server."""
    full(world)
    member(world, "a")
    member(world, "b")
    world.drive(lambda: len(states()) == 1 and set(states()) <= WAITING)
    Job.objects.filter(pod_gang="train").update(
        state=S.CANCELLED, reason="PodDeleted", version=F("version") + 1
    )
    world.restart_scheduler()
    world.drive(lambda: len(jobs()) == 2)


def test_a_waiting_gang_that_loses_a_pod_waits_for_another(world):
    other = full(world)
    member(world, "a")
    member(world, "b")
    world.drive(lambda: [t for t in said_of(world, "a") if t.startswith("InsufficientGpus")])
    world.drive(lambda: said_of(world, "a") == said_of(world, "b"))
    world.call("DELETE", path("b"))
    world.drive(lambda: states() == [S.CANCELLED])
    [job] = jobs()
    text = "Pod b was deleted. What is left of gang train waits for another pod"
    assert (job.reason, job.message) == ("PodDeleted", text)
    world.drive(lambda: said_of(world, "a") == {"1 of 2 pods of gang train has come."})
    member(world, "c")
    world.cancel(other)
    world.drive(lambda: states() == [S.CANCELLED, S.RUNNING])
    assert [p.pod_name for p in world.placements(jobs()[1])] == ["a", "c"]


def test_so_does_one_that_loses_it_while_no_scheduler_runs(world):
    full(world)
    member(world, "a")
    member(world, "b")
    world.drive(lambda: len(states()) == 1 and set(states()) <= WAITING)
    world.restart_scheduler()
    world.call("DELETE", path("b"))
    world.drive(lambda: states() == [S.CANCELLED])
    world.drive(lambda: said_of(world, "a") == {"1 of 2 pods of gang train has come."})


def test_what_the_last_scheduler_did_not_get_to_tell_is_told_by_the_next(world, monkeypatch):
    full(world)
    member(world, "a")
    world.drive(lambda: said_of(world, "a") == {"1 of 2 pods of gang train has come."})
    gateway = world.scheduler.led[world.cluster.pk, WHOLE].session.gateway
    monkeypatch.setattr(gateway, "submit", lambda effects: None)
    member(world, "b")
    world.drive(lambda: [job.reason for job in jobs()] == ["InsufficientGpus"])
    world.restart_scheduler()
    world.drive(lambda: condition(world, "a") == condition(world, "b"))
    assert condition(world, "b")[1:] == ("Unschedulable", f"InsufficientGpus: {jobs()[0].message}")


def test_a_pod_beyond_a_gang_that_waits_begins_the_next_one(world):
    full(world)
    member(world, "a")
    member(world, "b")
    world.drive(lambda: len(jobs()) == 1)
    member(world, "c")
    text = "1 of 2 pods of gang train has come. Job {} has 2 pods of that name already."
    world.drive(lambda: said_of(world, "c") == {text.format(jobs()[0].pk)})
    member(world, "d")
    world.drive(lambda: len(jobs()) == 2)


def test_a_job_that_is_cancelled_while_it_waits_deletes_all_its_pods(world):
    full(world)
    member(world, "a")
    member(world, "b")
    world.drive(lambda: len(states()) == 1 and set(states()) <= WAITING)
    client = Client()
    client.force_login(world.user)
    page = client.get(f"/jobs/{jobs()[0].pk}/").content.decode()
    assert "It leaves the queue, and its 2 pods are deleted." in page
    world.cancel(jobs()[0])
    world.drive(lambda: not there(world, "a", "b"))
    world.drive(lambda: told(world, "a") and told(world, "b"))
    assert [t[:2] for t in told(world, "b")] == [("Normal", "Cancelled")]


# --- when it has places ---------------------------------------------------------------------------
def test_a_job_that_is_cancelled_while_it_runs_deletes_all_its_pods(world):
    running(world, "a", "b")
    world.cancel(jobs()[0])
    world.drive(lambda: not there(world, "a", "b"))
    world.drive(lambda: world.free_gpus() == 32_000)


def test_one_pod_that_is_deleted_takes_the_others_along_but_not_what_is_done(world):
    uids = [
        member(world, "done", 3, notes={"sim.kant.io/run-seconds": "0.3"}),
        member(world, "a", 3),
        member(world, "b", 3),
    ]
    world.drive(lambda: states() == [S.RUNNING])
    world.drive(lambda: pod_of(world, "done")["status"]["phase"] == "Succeeded")
    world.call("DELETE", path("a"))
    world.drive(lambda: states() == [S.CANCELLED])
    world.drive(lambda: pod_of(world, "b") is None)
    world.drive(lambda: world.free_gpus() == 32_000)
    assert jobs()[0].reason == "PodDeleted"
    assert pod_of(world, "done")["metadata"]["uid"] == uids[0]
    # Their owner makes all of them again, under the same names.
    world.call("DELETE", path("done"))
    world.drive(lambda: pod_of(world, "done") is None)
    running(world, "done", "a", "b")
    assert states() == [S.CANCELLED, S.RUNNING]


def test_the_next_pods_of_its_name_wait_for_each_other_while_the_first_go(world):
    slow = {**LONG, "sim.kant.io/stop-seconds": "2"}
    running(world, *"abcd", notes=slow)
    world.call("DELETE", path("a"))
    member(world, "a2", 4)
    world.drive(lambda: said_of(world, "a2") == {"1 of 4 pods of gang train has come."})
    for name in ("b2", "c2", "d2"):
        member(world, name, 4)
    world.drive(lambda: states() == [S.CANCELLED, S.RUNNING])


def test_a_pod_that_fails_fails_its_gang(world):
    member(world, "a", notes={"sim.kant.io/run-seconds": "0.3", "sim.kant.io/exit-code": "3"})
    member(world, "b", notes={**LONG, "sim.kant.io/stop-seconds": "30"})
    world.drive(lambda: states() == [S.FAILED])
    assert jobs()[0].reason == "PodFailed"
    world.drive(lambda: "deletionTimestamp" in pod_of(world, "b")["metadata"])
    # By this their owner can tell that they did not fail.
    conditions = pod_of(world, "b")["status"]["conditions"]
    [mark] = [each for each in conditions if each["type"] == "DisruptionTarget"]
    assert (mark["status"], mark["reason"]) == ("True", "GangEnded")
    assert mark["message"] == "Kant ended all of gang train (PodFailed)"
    world.call("DELETE", path("b"), {"gracePeriodSeconds": 0})
    world.drive(lambda: world.free_gpus() == 32_000)
    assert pod_of(world, "a")["status"]["phase"] == "Failed"


def test_a_gang_whose_node_dies_ends_with_the_pod_that_does_not_tolerate_it(world):
    running(world, "a", "b", tolerations=NO_PATIENCE)
    node = node_of(world, "a")
    world.fault("node-down", node=node)
    world.drive(lambda: states() == [S.FAILED])
    assert jobs()[0].reason == "NodeLost"
    world.drive(lambda: pod_of(world, "b") is None)
    world.fault("node-up", node=node)
    world.drive(lambda: world.free_gpus() == 32_000)


def test_a_preempted_gang_goes_as_a_whole(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    running(world, *"abcd")
    high = world.submit("high", priority=10)
    world.drive_to(high, S.RUNNING)
    [job] = jobs()
    assert (job.state, job.reason) == (S.FAILED, "Preempted")
    world.drive(lambda: not there(world, *"abcd"))
    world.drive(lambda: ("Normal", "Preempted") in [t[:2] for t in told(world, "d")])


def test_a_disruption_budget_of_some_of_its_pods_protects_the_gang(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    running(world, *"abcd")
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    spec = {"selector": {"matchLabels": {"rank": "c"}}, "minAvailable": 1}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    world.call("POST", budgets, {**kind, "metadata": {"name": "rank"}, "spec": spec})
    state = world.scheduler.led[world.cluster.pk, WHOLE].session.state
    world.drive(lambda: state.jobs[str(jobs()[0].pk)].disruptions == 0)
    high = world.submit("high", priority=10)
    world.drive(lambda: Job.objects.get(pk=high.pk).reason == "InsufficientGpus")
    assert states() == [S.RUNNING]
    world.call("DELETE", f"{budgets}/rank")
    world.drive_to(high, S.RUNNING)


# --- bindings that fail, schedulers that die ------------------------------------------------------
def test_where_one_binding_is_refused_the_pods_that_were_bound_are_deleted(world, monkeypatch):
    between = Between(world, monkeypatch)
    denied = CallOutcome(Result.REFUSED, code=403, message="denied by a webhook")
    between.meet = lambda bind: denied if bind.name == "b" else None
    for name in "abc":
        member(world, name, 3)
    world.drive(lambda: states() == [S.FAILED])
    [job] = jobs()
    assert job.reason == "BindingFailed"
    assert job.message.startswith("Pod b could not be bound to ")
    assert job.message.endswith(": denied by a webhook")
    world.drive(lambda: not there(world, *"abc"))
    world.drive(lambda: world.free_gpus() == 32_000)


def test_where_all_are_refused_the_gang_waits_again(world, monkeypatch):
    between = Between(world, monkeypatch)
    denied = dict.fromkeys("ab", CallOutcome(Result.REFUSED, code=403, message="denied"))
    between.meet = lambda bind: denied.pop(bind.name, None)
    member(world, "a")
    member(world, "b")
    world.drive(lambda: states() == [S.RUNNING])
    [job] = jobs()
    assert job.attempt == 2
    assert K.REQUEUED in world.kinds(job)
    first = {place.node for place in world.placements(job, attempt=1)}
    assert first.isdisjoint(place.node for place in world.placements(job, attempt=2))


def test_while_nobody_knows_about_one_binding_the_gang_keeps_its_places(world, monkeypatch):
    between = Between(world, monkeypatch)
    lost = [CallOutcome(Result.FAILED, message="no answer")]
    between.meet = lambda bind: lost.pop() if lost and bind.name == "a" else None
    monkeypatch.setattr(plain_pods, "BIND_AGAIN_S", 0.1)
    running(world, "a", "b")
    assert lost == []
    assert (jobs()[0].attempt, jobs()[0].failures) == (1, 0)


def test_a_gang_that_is_bound_in_part_is_finished_by_the_next_scheduler(world, monkeypatch):
    world.drive(lambda: world.scheduler.led)
    session = world.scheduler.led[world.cluster.pk, WHOLE].session
    submit = session.gateway.submit
    monkeypatch.setattr(
        session.gateway,
        "submit",
        lambda effects: submit(e for e in effects if not isinstance(e, Bind) or e.name == "a"),
    )
    member(world, "a")
    member(world, "b")
    world.drive(lambda: node_of(world, "a"))
    assert node_of(world, "b") is None
    world.restart_scheduler()
    world.drive(lambda: states() == [S.RUNNING])
    assert {p.attempt for p in world.placements(jobs()[0])} == {1}


def test_a_running_gang_is_taken_over_and_ends_if_a_pod_is_gone(world):
    running(world, "a", "b", gang="stays")
    running(world, "c", "d", gang="goes")
    world.restart_scheduler()
    world.call("DELETE", path("c"), {"gracePeriodSeconds": 0})
    world.drive(lambda: states() == [S.RUNNING, S.CANCELLED])
    world.drive(lambda: pod_of(world, "d") is None)
    world.drive(lambda: world.free_gpus() == 16_000)
    assert there(world, "a", "b") == {"a", "b"}
