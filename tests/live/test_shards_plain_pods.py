"""Plain pods in a cluster divided between several schedulers."""

import pytest

from scheduling.engine.shards.division import WIDE
from scheduling.engine.states import JobEventKind
from scheduling.engine.states import JobState as S
from scheduling.models import Job
from scheduling.session import changes
from tests.live.plain_pods import (
    MERGE,
    condition,
    hold_and_ungate,
    job_of,
    make,
    node_of,
    path,
    pod_of,
    state_of,
)
from tests.live.shards import NORTH, SOUTH, divide, nodes_by_scope, of_two_spines

pytestmark = pytest.mark.live


@pytest.fixture
def inventory(tmp_path):
    return of_two_spines(tmp_path)


def test_a_plain_pod_is_taken_up_once_and_bound_by_the_shard_it_is_routed_to(world):
    divide(world)
    world.drive(lambda: len(world.scheduler.led) == 3)
    uid = make(world, gpus=8)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    scope = job_of(uid).scope
    assert scope in (NORTH, SOUTH)
    assert node_of(world) in nodes_by_scope()[scope]
    assert world.kinds(job_of(uid)).count(JobEventKind.SUBMITTED) == 1
    full = [world.submit(f"full-{i}", pods=4) for i in range(2)]
    world.drive(lambda: S.RUNNING in map(world.state, full))
    waits = make(world, "waits", gpus=8, notes={"kant.io/priority": "-1"})
    rest = make(world, "rest", gpus=8, notes={"kant.io/priority": "-2"})
    world.drive(lambda: condition(world, "waits") and condition(world, "rest"))
    world.cancel(job_of(waits))
    world.call("DELETE", path("rest"))
    world.drive(lambda: pod_of(world, "waits") is None)
    world.drive(lambda: state_of(rest) is S.CANCELLED)
    world.cancel(job_of(uid))
    world.drive(lambda: pod_of(world) is None)


def test_a_gang_of_an_owner_is_one_job_and_let_go_when_the_owner_changes(world, monkeypatch):
    """The wide scope takes the gang up, and the shard that has it drops it."""
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    divide(world)
    world.drive(lambda: len(world.scheduler.led) == 3)
    full = [world.submit(f"full-{i}", pods=4) for i in range(2)]
    world.drive(lambda: all(world.state(job) == S.RUNNING for job in full))
    spec = {"completionMode": "Indexed", "parallelism": 2, "completions": 2}
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "tune"}, "spec": spec}
    owner = world.call("POST", jobs, body)
    for n in range(2):
        make(world, f"tune-{n}", owner=owner, notes={"sim.kant.io/run-seconds": "600"})

    def gangs():
        found = Job.objects.filter(pod_gang="Job/tune").order_by("submitted_at")
        return [S(state) for state in found.values_list("state", flat=True)]

    world.drive(lambda: len(gangs()) == 1 and Job.objects.get(pod_gang="Job/tune").scope)
    grown = {"spec": {"parallelism": 3, "completions": 3}}
    world.call("PATCH", f"{jobs}/tune", grown, kind=MERGE)
    world.drive(lambda: gangs() == [S.CANCELLED])
    make(world, "tune-2", gpus=1, owner=owner, notes={"sim.kant.io/run-seconds": "600"})
    world.drive(lambda: len(gangs()) == 2)
    for job in full:
        world.cancel(job)
    world.drive(lambda: gangs() == [S.CANCELLED, S.RUNNING])


def test_a_gated_pod_that_fits_no_shard_now_says_what_holds_it_and_is_lent_nothing(world):
    divide(world)
    world.drive(lambda: len(world.scheduler.led) == 3)
    names = sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])
    world.fault("node-down", node=names[0])
    for scope in (NORTH, SOUTH, WIDE):
        facts = world.scheduler.led[world.cluster.pk, scope].session.nodes.facts
        world.drive(lambda facts=facts: facts[names[0]].node.taints)
    here = {"nodeSelector": {"kubernetes.io/hostname": names[0]}}
    uid = make(world, schedulingGates=[{"name": "example.com/later"}], **here)
    world.drive(lambda: job_of(uid) and job_of(uid).scope == WIDE)
    gated = "Its pod has the scheduling gate example.com/later."
    known = world.scheduler.led[world.cluster.pk, WIDE].session.life.jobs
    world.drive(lambda: uid in known and known[uid].told)
    assert known[uid].told == f"OnHold: {gated}"
    hold_and_ungate(world, uid, gated)


def test_a_gang_of_plain_pods_is_made_by_the_wide_scope_and_bound_by_a_shard(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    divide(world)
    world.drive(lambda: len(world.scheduler.led) == 3)

    def member(name):
        labels = {"kant.io/tenant": "team", "kant.io/gang": "train"}
        return make(world, name, labels=labels, notes={"kant.io/gang-size": "2"})

    def told(name):
        return (condition(world, name) or ("", ""))[1]

    full = [world.submit(f"full-{i}", pods=4) for i in range(2)]
    world.drive(lambda: all(world.state(job) == S.RUNNING for job in full))
    member("a")
    member("b")
    world.drive(lambda: Job.objects.filter(pod_gang="train", scope__in=(NORTH, SOUTH)).exists())
    [first] = Job.objects.filter(pod_gang="train")
    world.drive(lambda: told("a") == "Unschedulable")
    world.call("DELETE", path("b"))
    world.drive(lambda: world.state(first) == S.CANCELLED)
    world.drive(lambda: told("a") == "GangIncomplete")
    member("c")
    world.cancel(full[0])
    world.drive(lambda: Job.objects.filter(pod_gang="train", state=S.RUNNING).exists())
    [second] = Job.objects.filter(pod_gang="train", state=S.RUNNING)
    assert {node_of(world, name) for name in "ac"} <= nodes_by_scope()[second.scope]
    assert world.kinds(second).count(JobEventKind.SUBMITTED) == 1
    world.cancel(second)
    world.drive(lambda: pod_of(world, "a") is None and pod_of(world, "c") is None)
