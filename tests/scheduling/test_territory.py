"""Nodes and jobs change hands between scopes; a scheduler that lost its scope cannot write for
it."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from scheduling.engine.shards.division import WHOLE, WIDE, WITHOUT_GPUS
from scheduling.engine.states import JobState as S
from scheduling.engine.types import Device, JobRequest, Node, PodPlacement, PodSetSpec, Shard
from scheduling.kube.seam import NodeFacts
from scheduling.models import Cluster, Job, JobEvent, NodeRecord, Placement, SchedulerLease
from scheduling.models.jobs import PlacementState as P
from scheduling.services.common.lease import LeaseLost, ask_for_share, hand_over, take_or_renew
from scheduling.services.scheduler.apply import apply_decisions
from scheduling.services.scheduler.territory import settle, take_nodes
from scheduling.session.memory.divided import demand, retired_scopes, wanted
from scheduling.session.memory.live import (
    Handover,
    LiveJob,
    LivePod,
    RouteStep,
    WantedNodes,
    Writes,
)
from tenants.models import Tenant

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NORTH, SOUTH = "north", "south"
SHARDS = (Shard(NORTH, (), ("s0",)), Shard(SOUTH))


@pytest.fixture
def cluster(db):
    return Cluster.objects.create(name="c")


def lease(cluster, scope, holder="a", now=NOW):
    found = take_or_renew(cluster.pk, holder, now=now, seconds=15, scope=scope)
    assert found is not None
    return found


def facts(name, spine="s0"):
    devices = tuple(Device(i) for i in range(8))
    return NodeFacts(Node(name, "H100", devices, topology=("", spine, "")), {}, "uid")


def nodes(**spines):
    return {name: facts(name, spine) for name, spine in spines.items()}


def scopes():
    return dict(NodeRecord.objects.values_list("name", "scope"))


def job_in(cluster, scope, state=S.PENDING, **places):
    """Create a job with the pods that it holds: {name of the node: state of the pod}."""
    tenant, _ = Tenant.objects.get_or_create(name="team")
    job = Job.objects.create(
        name="job", tenant=tenant, cluster=cluster, scope=scope, state=state, submitted_at=NOW
    )
    job.pod_sets.create(index=0, name="worker", count=2, gpus=4, gpu_models=["H100"])
    for ordinal, (node, pod_state) in enumerate(places.items()):
        Placement.objects.create(
            job=job,
            attempt=1,
            pod_set=0,
            ordinal=ordinal,
            pod_name=f"{job.pk}-{ordinal}",
            node=node,
            state=pod_state,
            intended_at=NOW,
        )
    return job


def scope_of(job):
    return Job.objects.get(pk=job.pk).scope


def intent(node):
    """Return a job that gets a place on the node."""
    request = JobRequest(str(uuid.uuid4()), "team", 0.0, (PodSetSpec("worker", 1, 8),))
    job = LiveJob(request, "job", (), S.PENDING, 1, 1)
    return job, LivePod(PodPlacement(0, 0, node, (0,), 1000), 1, "pod", "H100")


# --- fencing --------------------------------------------------------------------------------------
def test_a_deposed_leader_of_a_scope_writes_nothing(cluster):
    old = lease(cluster, NORTH)
    take_nodes(old, [facts("n0")], NOW)
    new = lease(cluster, NORTH, "b", NOW + timedelta(seconds=16))
    writes = [
        Writes(intents=[intent("n0")]),
        Writes(handovers=[Handover(frozenset({"n0"}), WIDE)]),
        Writes(claims=[facts("n1")]),
        Writes(wanted=WantedNodes(frozenset({"n0"}), empty=False)),
    ]
    for each in writes:
        with pytest.raises(LeaseLost):
            apply_decisions(old, each, NOW)
    assert scopes() == {"n0": NORTH}
    assert not Placement.objects.exists()
    apply_decisions(new, writes[1], NOW)
    assert scopes() == {"n0": WIDE}


def test_the_leader_of_one_scope_is_not_fenced_by_another(cluster):
    north, south = lease(cluster, NORTH), lease(cluster, SOUTH, "b")
    take_nodes(north, [facts("n0")], NOW)
    assert take_nodes(south, [facts("n0"), facts("n1")], NOW) == {"n1"}
    assert (north.token, south.token) == (1, 1)


def test_nothing_is_intended_on_a_node_of_another_scope(cluster):
    """A scheduler with a valid lease has a wrong picture of a node."""
    north, south = lease(cluster, NORTH), lease(cluster, SOUTH, "b")
    take_nodes(north, [facts("n0")], NOW)
    take_nodes(south, [facts("n1")], NOW)
    with pytest.raises(LeaseLost, match="1 of 2 nodes do not belong to scope south"):
        apply_decisions(south, Writes(intents=[intent("n0"), intent("n1")]), NOW)
    assert not Placement.objects.exists()


# --- nodes ----------------------------------------------------------------------------------------
def test_a_node_changes_hands_once(cluster):
    north = lease(cluster, NORTH)
    take_nodes(north, [facts("n0"), facts("n1")], NOW)
    apply_decisions(north, Writes(handovers=[Handover(frozenset({"n0"}), WIDE)]), NOW)
    # The same again, together with a node that could go: the whole write fails.
    again = Writes(handovers=[Handover(frozenset({"n0", "n1"}), SOUTH)])
    with pytest.raises(LeaseLost, match="1 of 2 nodes"):
        apply_decisions(north, again, NOW)
    assert scopes() == {"n0": WIDE, "n1": NORTH}


def test_a_node_with_a_pod_does_not_change_hands(cluster):
    north = lease(cluster, NORTH)
    take_nodes(north, [facts("n0")], NOW)
    job = job_in(cluster, NORTH, S.RUNNING, n0=P.RUNNING)
    give = Writes(handovers=[Handover(frozenset({"n0"}), WIDE)])
    with pytest.raises(LeaseLost):
        apply_decisions(north, give, NOW)
    Placement.objects.filter(job=job).update(state=P.SUCCEEDED)
    apply_decisions(north, give, NOW)
    assert scopes() == {"n0": WIDE}


def test_what_the_wide_scope_asks_for_is_read_by_all(cluster):
    assert wanted(cluster.pk) == (frozenset(), False)
    apply_decisions(lease(cluster, WIDE), Writes(wanted=WantedNodes(frozenset({"n0"}), True)), NOW)
    assert wanted(cluster.pk) == ({"n0"}, True)


# --- jobs -----------------------------------------------------------------------------------------
def test_a_job_is_routed_only_as_it_was_read(cluster):
    wide = lease(cluster, WIDE)
    good, changed, started = (job_in(cluster, WHOLE) for _ in range(3))
    Job.objects.filter(pk=changed.pk).update(version=2)
    Job.objects.filter(pk=started.pk).update(state=S.ADMITTED)
    steps = [
        RouteStep(str(job.pk), S.PENDING, 1, WHOLE, NORTH, "why")
        for job in (good, changed, started)
    ]
    apply_decisions(wide, Writes(routes=steps), NOW)
    assert [scope_of(job) for job in (good, changed, started)] == [NORTH, WHOLE, WHOLE]
    assert Job.objects.get(pk=good.pk).version == 2
    event = JobEvent.objects.get()
    assert (event.job_id, event.kind, event.evidence["to"]) == (good.pk, "ROUTED", NORTH)


def test_a_job_that_waits_again_is_routed_when_the_last_of_its_pods_is_gone(cluster):
    wide = lease(cluster, WIDE)
    job = job_in(cluster, NORTH, n0=P.RUNNING, n1=P.RELEASED)
    step = RouteStep(str(job.pk), S.PENDING, 1, NORTH, SOUTH, "why")
    apply_decisions(wide, Writes(routes=[step]), NOW)
    assert (scope_of(job), JobEvent.objects.count()) == (NORTH, 0)
    Placement.objects.filter(job=job).update(state=P.RELEASED)
    apply_decisions(wide, Writes(routes=[step]), NOW)
    assert scope_of(job) == SOUTH


def test_what_the_jobs_of_a_scope_ask_for(cluster):
    job_in(cluster, NORTH)
    job_in(cluster, NORTH, S.RUNNING, n0=P.RUNNING)
    job_in(cluster, NORTH, S.SUCCEEDED)
    assert demand(cluster.pk) == {NORTH: [(("H100",), 16_000)]}
    prep = job_in(cluster, SOUTH)
    prep.pod_sets.update(gpus=0, gpu_models=[], count=3, cpu_milli=500)
    assert demand(cluster.pk)[SOUTH] == [(WITHOUT_GPUS, 1500)]


# --- a changed declaration ------------------------------------------------------------------------
def test_a_declaration_takes_effect_with_jobs_running(cluster):
    seen = nodes(n0="s0", n1="s0", n2="s1", n3="s1", n4="s1", n5="s0")
    whole = lease(cluster, WHOLE)
    take_nodes(whole, seen.values(), NOW)
    inside = job_in(cluster, WHOLE, S.RUNNING, n0=P.RUNNING)
    across = job_in(cluster, WHOLE, S.RUNNING, n1=P.RUNNING, n2=P.INTENDED)
    leaving = job_in(cluster, WHOLE, S.CANCELLED, n3=P.RUNNING)
    waits = job_in(cluster, WHOLE)
    settle(whole, SHARDS, seen)
    assert scopes() == {"n0": NORTH, "n1": WIDE, "n2": WIDE, "n3": SOUTH, "n4": SOUTH, "n5": NORTH}
    jobs = (inside, across, leaving, waits)
    assert [scope_of(job) for job in jobs] == [NORTH, WIDE, SOUTH, WHOLE]
    assert retired_scopes(cluster.pk, [NORTH, SOUTH, WIDE]) == []


def test_shards_are_taken_back(cluster):
    seen = nodes(n0="s0", n1="s1")
    leases = [lease(cluster, scope) for scope in (NORTH, WIDE)]
    take_nodes(leases[0], [seen["n0"]], NOW)
    take_nodes(leases[1], [seen["n1"]], NOW)
    runs = job_in(cluster, WIDE, S.RUNNING, n1=P.RUNNING)
    waits, again = job_in(cluster, NORTH), job_in(cluster, NORTH, S.RUNNING)
    assert retired_scopes(cluster.pk, [WHOLE]) == [NORTH, WIDE]
    for each in leases:
        settle(each, (), seen)
    assert scopes() == {"n0": WHOLE, "n1": WHOLE}
    assert [scope_of(job) for job in (runs, waits, again)] == [WHOLE] * 3
    assert retired_scopes(cluster.pk, [WHOLE]) == []


def test_a_shard_that_is_as_declared_keeps_everything(cluster):
    seen = nodes(n0="s0")
    north = lease(cluster, NORTH)
    take_nodes(north, seen.values(), NOW)
    jobs = [job_in(cluster, NORTH), job_in(cluster, NORTH, S.RUNNING, n0=P.RUNNING)]
    settle(north, SHARDS, seen)
    assert scopes() == {"n0": NORTH}
    assert {(scope_of(job), Job.objects.get(pk=job.pk).version) for job in jobs} == {(NORTH, 1)}


def test_what_waits_in_a_shard_that_became_smaller_is_routed_anew(cluster):
    seen = nodes(n0="s0", n1="s1")
    north = lease(cluster, NORTH)
    take_nodes(north, seen.values(), NOW)
    waits = job_in(cluster, NORTH)
    settle(north, SHARDS, seen)
    assert scopes() == {"n0": NORTH, "n1": SOUTH}
    assert scope_of(waits) == WHOLE


def test_a_deposed_leader_settles_nothing(cluster):
    seen = nodes(n0="s1")
    old = lease(cluster, NORTH)
    take_nodes(old, seen.values(), NOW)
    lease(cluster, NORTH, "b", NOW + timedelta(seconds=16))
    with pytest.raises(LeaseLost):
        settle(old, SHARDS, seen)
    assert scopes() == {"n0": NORTH}


# --- sharing the lead -----------------------------------------------------------------------------
ALL = [NORTH, SOUTH, WIDE]


def asked():
    return set(SchedulerLease.objects.exclude(asked_by="").values_list("scope", "asked_by"))


def test_who_leads_less_is_given_a_share(cluster):
    for scope in ALL:
        lease(cluster, scope)
    ask_for_share(cluster.pk, "b", ALL, NOW)
    ask_for_share(cluster.pk, "b", ALL, NOW)
    assert asked() == {(NORTH, "b")}
    old = lease(cluster, NORTH)
    assert old.asked_by == "b"
    hand_over(old, NOW, 15)
    new = lease(cluster, NORTH, "b")
    assert (new.token, new.asked_by) == (old.token + 1, "")
    assert take_or_renew(cluster.pk, "a", now=NOW, seconds=15, scope=NORTH) is None
    ask_for_share(cluster.pk, "b", ALL, NOW)  # two and one: nothing to gain
    assert asked() == set()


def test_leads_that_have_expired_are_not_counted(cluster):
    for scope in ALL:
        lease(cluster, scope)
    ask_for_share(cluster.pk, "b", ALL, NOW + timedelta(seconds=16))
    assert asked() == set()
