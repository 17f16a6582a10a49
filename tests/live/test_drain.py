"""Draining a node: it gets no new pods, and its pods leave when they finish or when their time
is up. They are placed again as if nothing had been wrong with them."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent, NodeOrder, NodeRecord
from scheduling.models.jobs import PlacementState as P
from scheduling.queries.nodes.defragment import defragmentation
from scheduling.queries.nodes.orders import orders_of
from scheduling.services.clusters.node_orders import empty_nodes, lift_order, order_node
from tenants.services.audit import API, Why
from tests.live.test_disruption_budgets import allowed, protect, running

pytestmark = pytest.mark.live


def drain(world, node, within_s=0.0, **terms):
    at = None if within_s is None else datetime.now(UTC) + timedelta(seconds=within_s)
    return order_node(
        world.user, world.cluster, node, drains=True, evict_at=at, why=Why("new fans", API), **terms
    )


def order(world, node):
    (found,) = [one for one in orders_of(world.cluster) if one.node == node]
    return found


def nodes_of(world, job, **where):
    return {p.node for p in world.placements(job, **where)}


def events(job, reason):
    return list(JobEvent.objects.filter(job=job, reason=reason))


def test_a_gang_is_told_leaves_whole_and_comes_back_elsewhere_without_a_failure(world):
    world.set_policy(max_attempts=1, backoff_base_s=300.0, backoff_cap_s=300.0)
    gang = world.submit("gang", pods=2, checkpoint_notice_s=600, saves_s=0.3)
    world.drive_to(gang, S.RUNNING)
    node = world.placements(gang)[0].node
    drain(world, node, within_s=3600)
    # Kant gives the 10 minutes of notice before the hour ends, in 50 minutes: not yet.
    world.drive(lambda: not NodeRecord.objects.get(name=node).schedulable)
    assert order(world, node).state == "draining"
    assert not events(gang, "CheckpointNotice")
    drain(world, node)
    world.drive(lambda: world.state(gang) == S.RUNNING and Job.objects.get(pk=gang.pk).attempt == 2)
    (told,), (saved,) = events(gang, "CheckpointNotice"), events(gang, "Checkpointed")
    assert told.evidence["pods"] == 2
    ends = [p.ended_at for p in world.placements(gang, attempt=1)]
    assert min(ends) >= saved.at
    assert node not in nodes_of(world, gang, attempt=2)
    (back,) = [e for e in events(gang, "NodeDrained") if e.kind == K.REQUEUED]
    assert back.message == f"op drains node {node}: new fans"
    assert Job.objects.get(pk=gang.pk).failures == 0
    assert order(world, node).state == "drained"
    lift_order(world.user, world.cluster, node, why=Why("fans are in", API))
    world.drive(lambda: NodeRecord.objects.get(name=node).schedulable)


def test_without_a_time_nobody_is_sent_away_and_nobody_comes(world):
    short = world.submit("short", run_s=600.0)
    world.drive_to(short, S.RUNNING)
    (node,) = nodes_of(world, short)
    drain(world, node, within_s=None)
    others = [world.submit(f"other-{i}") for i in range(4)]
    world.drive(lambda: sum(world.state(j) == S.RUNNING for j in others) == 3)
    assert {n for j in others for n in nodes_of(world, j)}.isdisjoint({node})
    assert world.state(short) == S.RUNNING
    assert order(world, node).pods_left == 1
    world.finish(short)
    world.drive(lambda: order(world, node).state == "drained")
    lift_order(world.user, world.cluster, node, why=Why("done", API))
    world.drive(lambda: all(world.state(j) == S.RUNNING for j in others))


def test_of_a_service_as_many_leave_as_its_budget_allows_until_none_is_left(world):
    service = world.submit("service", pods=4, gpus=2, gang=False, labels={"app": "web"})
    world.drive(lambda: running(world, service) == 4)
    (node,) = nodes_of(world, service)
    protect(world, "web", {"app": "web"}, minAvailable=3)
    world.drive(lambda: allowed(world, "web") == 1)
    drain(world, node)
    least = []

    def gone():
        least.append(running(world, service))
        return order(world, node).pods_left == 0 and least[-1] == 4

    world.drive(gone)
    assert min(least) >= 3
    assert world.kinds(service).count(K.REQUEUED) == 0


def test_a_gang_that_a_budget_protects_stays_whole_until_it_may_go(world):
    gang = world.submit("gang", pods=2, labels={"app": "db"})
    world.drive_to(gang, S.RUNNING)
    node = world.placements(gang)[0].node
    protect(world, "db", {"app": "db"}, minAvailable=1)
    world.drive(lambda: allowed(world, "db") == 1)
    drain(world, node)
    world.drive(lambda: order(world, node).kept_back == 1)
    assert running(world, gang) == 2
    world.call("DELETE", "/apis/policy/v1/namespaces/kant-jobs/poddisruptionbudgets/db")
    world.drive(lambda: world.state(gang) == S.RUNNING and Job.objects.get(pk=gang.pk).attempt == 2)
    assert node not in nodes_of(world, gang, state=P.RUNNING)


def test_a_drain_goes_on_under_the_next_scheduler(world):
    job = world.submit("job", checkpoint_notice_s=600, saves_s=30.0)
    world.drive_to(job, S.RUNNING)
    (node,) = nodes_of(world, job)
    drain(world, node)
    world.drive(lambda: events(job, "CheckpointNotice"))
    world.restart_scheduler()
    pod = world.placements(job)[0].pod_name
    note = {"metadata": {"annotations": {"kant.io/checkpointed-at": "9999999999"}}}
    path = f"/api/v1/namespaces/kant-jobs/pods/{pod}"
    world.call("PATCH", path, note, kind="merge-patch+json")
    world.drive(lambda: world.state(job) == S.RUNNING and Job.objects.get(pk=job.pk).attempt == 2)
    assert node not in nodes_of(world, job, attempt=2)
    assert Job.objects.get(pk=job.pk).failures == 0


def test_a_plan_empties_nodes_for_a_gang_and_they_take_jobs_again_by_themselves(world):
    world.set_policy(strategies={"training": "spread"}, preemption=[])
    small = [world.submit(f"small-{i}", gpus=2) for i in range(4)]
    world.drive(lambda: all(world.state(j) == S.RUNNING for j in small))
    assert len({n for j in small for n in nodes_of(world, j)}) == 4
    gang = world.submit("gang", pods=3, gpus=8)
    world.drive(lambda: Job.objects.get(pk=gang.pk).reason == "FragmentedCapacity")
    world.drive(lambda: NodeRecord.objects.filter(allocated_milli=2000).count() == 4)
    world.cluster.refresh_from_db()
    plan = defragmentation(world.user, world.cluster, job=gang.pk)
    assert (plan.reached, len(plan.nodes)) == (True, 3)
    assert [job.name for job in plan.starts] == ["gang"]
    assert (plan.before.fragmented, plan.after.fragmented) == (4, 0)
    empty_nodes(world.user, world.cluster, plan.nodes, why=Why("for gang", API))
    world.drive(lambda: world.state(gang) == S.RUNNING)
    world.drive(lambda: all(world.state(j) == S.RUNNING for j in small))
    assert nodes_of(world, gang) == set(plan.nodes)
    assert not NodeOrder.objects.exists()
    assert {Job.objects.get(pk=j.pk).failures for j in small} == {0}
