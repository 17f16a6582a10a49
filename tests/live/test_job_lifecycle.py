"""A job's way from the queue to its end, over the wire of the embedded cluster."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent, NodeRecord, SchedulerLease
from scheduling.models.jobs import PlacementState as P
from scheduling.queries.explain import explain_job
from scheduling.queries.queues.waiting_order import standing_in
from scheduling.services.jobs.changes import change_job
from scheduling.session.pace import from_document
from scheduling.session.pods import leave
from tenants.models import User
from tests.live.ended_runs import has_run

pytestmark = pytest.mark.live
ALL = 4 * 8 * 1000


def test_a_gang_is_bound_runs_and_succeeds(world):
    job = world.submit(pods=3)
    world.drive_to(job, S.RUNNING)
    world.finish(job)
    world.drive_to(job, S.SUCCEEDED)
    assert world.kinds(job) == [K.SUBMITTED, K.ADMITTED, K.RUNNING, K.SUCCEEDED]
    row = Job.objects.get(pk=job.pk)
    assert row.attempt == 1
    assert row.submitted_at <= row.admitted_at <= row.bound_at <= row.running_at <= row.ended_at
    rows = world.placements(job)
    assert [r.state for r in rows] == [P.SUCCEEDED] * 3
    assert len({r.node for r in rows}) == 3
    assert all(r.held_from == row.bound_at and r.held_milli == 8000 for r in rows)
    pods = world.pods()
    for r in rows:
        pod = pods[r.pod_name]
        assert pod["metadata"]["uid"] == r.pod_uid
        assert pod["spec"]["nodeName"] == r.node
        assert pod["metadata"]["annotations"]["kant.io/devices"] == str(r.devices)
    world.drive(lambda: world.free_gpus() == ALL)


def test_pods_go_to_nodes_that_their_affinity_means_and_say_so_to_the_kubelet(world):
    names = sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])
    but = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": names[:2]}
    term = {"match_expressions": [but]}
    job = world.submit(pods=2, node_affinity=[term])
    world.drive_to(job, S.RUNNING)
    assert sorted(p.node for p in world.placements(job)) == names[2:]
    for pod in world.pods().values():
        [rule] = pod["spec"]["affinity"]["nodeAffinity"].values()
        assert rule == {"nodeSelectorTerms": [{"matchExpressions": [but]}]}
    damaged = world.submit("damaged", node_affinity=[{"match_expressions": [{"key": "zone"}]}])
    world.drive_to(damaged, S.FAILED)
    told = "node_affinity cannot be read: Object missing required field `operator`"
    assert told in Job.objects.get(pk=damaged.pk).message


def test_the_scheduler_tells_how_it_fares(world):
    job = world.submit(pods=3, run_s=0.3)
    world.drive_to(job, S.SUCCEEDED)
    world.drive(lambda: from_document(SchedulerLease.objects.get().pace).bound == 3)
    pace = from_document(SchedulerLease.objects.get().pace)
    assert pace.effects["create_and_bind", "bound"] == 3
    assert pace.failed == 0
    assert 2 <= pace.passes <= 50  # not the passes that found nothing to do
    assert 0 < pace.seconds < 60


def test_two_fractions_share_a_gpu_and_a_third_of_another_size_does_not_break_it(world):
    jobs = [world.submit(f"part-{i}", gpus=1, gpu_milli=m) for i, m in enumerate((500, 500, 300))]
    for job in jobs:
        world.drive_to(job, S.RUNNING)
    first, second, third = (world.placements(job)[0] for job in jobs)
    assert (first.node, first.devices) == (second.node, second.devices)
    assert (third.node, third.devices) != (first.node, first.devices)
    assert world.free_gpus() == ALL - 1300


def test_a_failing_pod_fails_the_job_and_its_other_pods_are_deleted(world):
    job = world.submit(pods=2, run_s=0.3, exit_code=3)
    world.drive_to(job, S.FAILED)
    row = Job.objects.get(pk=job.pk)
    assert row.reason == "PodFailed"
    assert "exit code 3" in row.message
    world.drive(lambda: world.free_gpus() == ALL)
    assert {r.state for r in world.placements(job)} <= {P.FAILED, P.RELEASED}


def test_a_waiting_job_is_told_why_and_can_be_cancelled(world):
    first, second = world.submit("first", pods=4), world.submit("second", pods=1)
    world.drive_to(first, S.RUNNING)
    world.drive(lambda: Job.objects.get(pk=second.pk).reason == "InsufficientGpus")
    assert world.state(second) == S.QUOTA_RESERVED
    reasons = JobEvent.objects.filter(job=second, kind=K.REASON).count()
    world.scheduler.run(world.cluster.pk)
    assert JobEvent.objects.filter(job=second, kind=K.REASON).count() == reasons
    world.cancel(second)
    world.drive(
        lambda: str(second.pk) not in world.scheduler.led[world.cluster.pk, WHOLE].session.life.jobs
    )
    assert world.placements(second) == []
    assert world.state(second) == S.CANCELLED


def test_cancelling_a_running_job_frees_its_gpus_only_when_its_pods_are_gone(world):
    first, second = world.submit("first", pods=4), world.submit("second", pods=4)
    world.drive_to(first, S.RUNNING)
    world.cancel(first)
    world.drive_to(second, S.RUNNING)
    assert world.state(first) == S.CANCELLED
    assert {r.state for r in world.placements(first)} == {P.RELEASED}
    gone = max(r.ended_at for r in world.placements(first))
    assert all(r.intended_at >= gone for r in world.placements(second))


def test_a_lost_node_sends_the_gang_back_and_it_starts_elsewhere(world, monkeypatch):
    monkeypatch.setattr(leave, "ASK_AGAIN_S", 1.0)
    job = world.submit(pods=2)
    world.drive_to(job, S.RUNNING)
    submitted_at = Job.objects.get(pk=job.pk).submitted_at
    lost = world.placements(job)[0].node
    world.fault("node-down", node=lost)
    world.drive(lambda: world.state(job) == S.RUNNING and K.REQUEUED in world.kinds(job))
    row = Job.objects.get(pk=job.pk)
    assert (row.attempt, row.submitted_at) == (2, submitted_at)
    assert lost not in {r.node for r in world.placements(job, attempt=2)}
    assert {r.state for r in world.placements(job, attempt=1)} == {P.RELEASED}


def taint(world, node, *, since=None):
    """Set or remove the taint of the node controller for a node whose kubelet does not answer."""
    taints = []
    if since is not None:
        at = f"{since:%Y-%m-%dT%H:%M:%SZ}"
        key = "node.kubernetes.io/unreachable"
        taints = [{"key": key, "effect": "NoExecute", "timeAdded": at}]
    path = f"/api/v1/nodes/{node}"
    world.call("PATCH", path, {"spec": {"taints": taints}}, kind="merge-patch+json")
    facts = world.scheduler.led[world.cluster.pk, WHOLE].session.nodes.facts
    world.drive(lambda: bool(facts[node].node.taints) == bool(taints))


def test_a_node_that_comes_back_in_time_ends_nothing_and_gets_no_pods_meanwhile(world):
    world.set_policy(node_loss_s=600.0, node_loss_saved_s=60.0)
    job = world.submit(pods=2)
    world.drive_to(job, S.RUNNING)
    node = world.placements(job)[0].node
    taint(world, node, since=datetime.now(UTC))
    other = world.submit("other", pods=2)
    world.drive_to(other, S.RUNNING)
    assert node not in {r.node for r in world.placements(other)}
    taint(world, node)
    assert K.REQUEUED not in world.kinds(job)
    assert world.state(job) == S.RUNNING
    assert {r.state for r in world.placements(job)} == {P.RUNNING}
    taint(world, node, since=datetime.now(UTC) - timedelta(seconds=590))
    assert world.state(job) == S.RUNNING
    taint(world, node)
    taint(world, node, since=datetime.now(UTC) - timedelta(seconds=601))
    world.drive(lambda: K.REQUEUED in world.kinds(job))
    lost = JobEvent.objects.get(job=job, kind=K.REQUEUED)
    assert (lost.reason, lost.message) == ("NodeLost", f"Node {node} did not answer for 600 s")


def test_a_deleted_pod_sends_the_gang_back(world):
    job = world.submit(pods=2)
    world.drive_to(job, S.RUNNING)
    name = world.placements(job)[0].pod_name
    world.call("DELETE", f"/api/v1/namespaces/kant-jobs/pods/{name}", {"gracePeriodSeconds": 0})
    world.drive(lambda: world.state(job) == S.RUNNING and K.REQUEUED in world.kinds(job))
    assert JobEvent.objects.get(job=job, kind=K.REQUEUED).reason == "PodLost"


def test_a_gang_that_does_not_start_in_time_is_released_and_starts_later(world):
    # On a slow machine it is late again before the event is written: any number of times.
    world.set_policy(gang_timeout_s=0.5, max_attempts=1_000_000)
    # The server is too busy for any binding.
    world.fault("too-many-requests", verb="bind", count=0, retry_after_s=1)
    job = world.submit(pods=2)
    world.drive(lambda: K.REQUEUED in world.kinds(job))
    world.set_policy(gang_timeout_s=600)
    world.call("DELETE", "/sim/faults")
    world.drive_to(job, S.RUNNING)
    row = Job.objects.get(pk=job.pk)
    late = JobEvent.objects.filter(job=job, kind=K.REQUEUED).values_list("reason", flat=True)
    assert set(late) == {"GangTimeout"}
    assert (row.attempt, row.failures) == (1 + len(late), 0)
    earlier = world.placements(job, attempt__lt=row.attempt)
    assert {r.state for r in earlier} == {P.RELEASED}


def test_a_job_fails_after_too_many_failed_placements(world):
    world.set_policy(gang_timeout_s=0.1, max_attempts=1)
    world.fault("too-many-requests", verb="bind", count=0, retry_after_s=1)
    job = world.submit(pods=2)
    world.drive_to(job, S.FAILED)
    row = Job.objects.get(pk=job.pk)
    assert (row.reason, row.attempt, row.failures) == ("GangTimeout", 1, 1)
    assert "1 of 1" in row.message
    world.call("DELETE", "/sim/faults")
    world.drive(lambda: world.free_gpus() == ALL and world.pods() == {})


def test_foreign_pods_are_counted_and_leftovers_of_kant_deleted(world):
    world.drive(lambda: NodeRecord.objects.count() == 4)
    node = NodeRecord.objects.first().name
    over = world.submit(run_s=0)
    world.drive_to(over, S.SUCCEEDED)
    for name, scheduler, labels in (
        ("foreign", "default-scheduler", {}),
        (
            "leftover",
            "kant",
            {
                "kant.io/job": str(over.pk),
                "kant.io/attempt": "2",
                "kant.io/pod-set": "0",
                "kant.io/ordinal": "0",
            },
        ),
    ):
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "schedulerName": scheduler,
                "containers": [
                    {
                        "name": "c",
                        "image": "busybox",
                        "resources": {"limits": {"nvidia.com/gpu": "3"}},
                    }
                ],
            },
        }
        world.call("POST", "/api/v1/namespaces/kant-jobs/pods", manifest)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": node},
        }
        world.call("POST", f"/api/v1/namespaces/kant-jobs/pods/{name}/binding", binding)
    world.drive(lambda: "leftover" not in world.pods() and world.free_gpus() == ALL - 3000)


def test_a_standby_does_nothing_until_the_lease_is_free(world):
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    leader = world.scheduler
    world.scheduler = type(leader)()
    world.scheduler.run(world.cluster.pk)
    assert world.scheduler.led == {}
    leader.stop()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    assert SchedulerLease.objects.get().token == 2


def test_a_fenced_scheduler_writes_nothing_and_drops_its_session(world):
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    SchedulerLease.objects.update(holder="somebody-else", token=99)
    job = world.submit()
    world.scheduler.run(world.cluster.pk)
    assert world.state(job) == S.PENDING
    assert world.placements(job) == []
    assert world.scheduler.led == {}
    assert world.pods() == {}


def test_a_job_of_higher_priority_preempts_and_the_victim_runs_again(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=2, run_s=0.3, priority=10)
    world.drive_to(high, S.RUNNING, S.SUCCEEDED)
    record = JobEvent.objects.get(job=low, kind=K.PREEMPTED)
    assert record.reason == "Preempted"
    assert record.evidence["by"] == str(high.pk)
    assert (record.evidence["kind"], record.evidence["pods"]) == ("priority", 4)
    assert record.evidence["cost_gpu_s"] == record.evidence["total_gpu_s"] >= 0
    assert record.evidence["alternatives"].startswith("none: by GPU count")
    gone = max(r.ended_at for r in world.placements(low, attempt=1))
    assert all(r.intended_at >= gone for r in world.placements(high))
    world.drive(lambda: Job.objects.get(pk=low.pk).attempt == 2)
    world.drive_to(low, S.RUNNING)
    assert world.state(high) == S.SUCCEEDED


def test_a_job_preempts_when_it_has_waited_for_long_enough_and_not_before(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0, preempt_after_s=2)
    low = world.submit("low", pods=4)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=2, priority=10)
    world.drive(lambda: "preempts_from" in Job.objects.get(pk=high.pk).evidence)
    told = Job.objects.get(pk=high.pk)
    since = told.submitted_at.timestamp()
    assert told.evidence["preempts_from"] == pytest.approx(since + 2, abs=0.001)
    assert told.message.endswith("It may preempt others once it has waited for 2 seconds.")
    world.drive_to(high, S.RUNNING)
    assert JobEvent.objects.get(job=low, kind=K.PREEMPTED).at.timestamp() >= since + 2


def test_single_pods_of_a_service_are_preempted_and_placed_again(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    service = world.submit("service", pods=4, gang=False)
    world.drive(lambda: len(world.placements(service, state=P.RUNNING)) == 4)
    high = world.submit("high", pods=1, run_s=0.3, priority=10)
    world.drive_to(high, S.SUCCEEDED)
    world.drive(lambda: len(world.placements(service, state=P.RUNNING)) == 4)
    assert world.state(service) == S.RUNNING
    attempts = sorted(r.attempt for r in world.placements(service))
    assert attempts == [1, 1, 1, 1, 2]
    record = JobEvent.objects.get(job=service, reason="Preempted")
    assert (record.evidence["by"], record.evidence["pods"]) == (str(high.pk), 1)


def test_a_job_that_saved_its_work_loses_less_and_goes_first(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    saver, young = world.submit("saver", pods=2), world.submit("young", pods=2)
    world.drive_to(young, S.RUNNING)
    world.drive_to(saver, S.RUNNING)
    state = world.scheduler.led[world.cluster.pk, WHOLE].session.state
    name = world.placements(saver)[0].pod_name
    for said in ("soon", "inf", str(time.time() + 3600)):
        note = {"metadata": {"annotations": {"kant.io/checkpointed-at": said}}}
        path = f"/api/v1/namespaces/kant-jobs/pods/{name}"
        world.call("PATCH", path, note, kind="merge-patch+json")
    world.drive(lambda: state.jobs[str(saver.pk)].checkpoint_at > 0)
    assert state.jobs[str(saver.pk)].checkpoint_at <= time.time()
    high = world.submit("high", pods=2, priority=10)
    world.drive_to(high, S.RUNNING)
    assert K.PREEMPTED in world.kinds(saver)
    assert world.state(young) == S.RUNNING


def test_the_reservation_of_a_head_is_shown_and_goes_when_it_starts_or_is_head_no_more(world):
    world.set_policy(queueing="backfill")
    user = User.objects.get(username="op")
    running = world.submit("running", pods=4, declared_s=300)
    world.drive_to(running, S.RUNNING)
    head = world.submit("head", pods=4)

    def shown():
        return explain_job(user, Job.objects.get(pk=head.pk)).reservation

    world.drive(lambda: shown() is not None)
    started = Job.objects.get(pk=running.pk).admitted_at
    assert abs((shown().starts_at - started).total_seconds() - 300) < 1
    assert len(shown().nodes) == 4
    world.restart_scheduler()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    assert shown() is not None
    world.set_policy(queueing="best-effort-fifo")
    world.drive(lambda: shown() is None)
    world.set_policy(queueing="backfill")
    world.drive(lambda: shown() is not None)
    world.cancel(running)
    world.drive_to(head, S.RUNNING)
    world.drive(lambda: Job.objects.get(pk=head.pk).reserved_start is None)


def test_a_head_is_reserved_by_what_ended_runs_took_also_after_a_restart(world):
    has_run(world, "train", 32_000, 300)
    world.set_policy(queueing="backfill")
    running = world.submit("train-40", pods=4)
    world.drive_to(running, S.RUNNING)
    head = world.submit("head", pods=4)
    for again in (False, True):
        if again:
            world.restart_scheduler()
            world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
        world.drive(lambda: Job.objects.get(pk=head.pk).reserved_start is not None)
        told = Job.objects.get(pk=head.pk).reserved_start
        began = Job.objects.get(pk=running.pk).admitted_at
        assert abs((told - began).total_seconds() - 300) < 1
    world.set_policy(learned_run_times=False)
    world.drive(lambda: Job.objects.get(pk=head.pk).reserved_start is None)


def test_short_jobs_stand_before_long_ones_also_after_a_restart(world):
    has_run(world, "long", 8_000, 3000)
    has_run(world, "short", 8_000, 30)
    world.set_policy(queueing="backfill")
    world.drive_to(world.submit("full", pods=4), S.RUNNING)
    jobs = [world.submit(name, pods=1) for name in ("long-40", "short-40")]

    def places():
        order = world.scheduler.led[world.cluster.pk, WHOLE].session.state.order_now(9)
        rows = Job.objects.filter(pk__in=[job.pk for job in jobs]).order_by("submitted_at")
        by_rows = [*map(str, standing_in(world.cluster.pk, WHOLE).ids())]
        return order, by_rows, [row.stands_at for row in rows]

    world.drive(lambda: None not in places()[2])
    before = places()
    assert before[0] == before[1] == [str(jobs[1].pk), str(jobs[0].pk)]
    has_run(world, "long", 8_000, 3)  # new pods of that name would pass for short ones
    world.restart_scheduler()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    world.drive(lambda: places()[0] != [])
    assert places() == before
    world.set_policy(learned_run_times=False)
    world.drive(lambda: places()[2] == [None, None])
    assert places()[:2] == ([str(jobs[0].pk), str(jobs[1].pk)],) * 2


def test_a_job_that_runs_past_its_limit_is_ended(world):
    job = world.submit(run_limit_s=1)
    world.drive_to(job, S.FAILED)
    assert Job.objects.get(pk=job.pk).reason == "RunLimitExceeded"
    world.drive(lambda: world.free_gpus() == ALL)


def test_the_run_time_limit_of_a_job_that_runs_is_changed(world, clock):
    job = world.submit(run_limit_s=300)
    world.drive_to(job, S.RUNNING)
    change_job(world.user, Job.objects.get(pk=job.pk), {"run_limit_s": 3000})
    clock.ahead = 600.0
    world.drive_to(world.submit("other"), S.RUNNING)  # by then the limits were checked
    assert world.state(job) == S.RUNNING
    change_job(world.user, Job.objects.get(pk=job.pk), {"run_limit_s": 500})
    world.drive_to(job, S.FAILED)
    assert Job.objects.get(pk=job.pk).reason == "RunLimitExceeded"


def test_the_run_time_limit_holds_after_a_restart(world, clock):
    job = world.submit(run_limit_s=300)
    world.drive_to(job, S.RUNNING)
    world.restart_scheduler()
    clock.ahead = 600.0
    world.drive_to(job, S.FAILED)
    assert Job.objects.get(pk=job.pk).reason == "RunLimitExceeded"


def test_a_job_waits_for_another_and_never_starts_when_that_failed(world):
    first = world.submit("first", run_s=0.5)
    second = world.submit("second", run_s=0.2, after_ok=[str(first.pk)])
    world.drive_to(second, S.SUCCEEDED)
    assert Job.objects.get(pk=second.pk).admitted_at >= Job.objects.get(pk=first.pk).ended_at
    failed = world.submit("failed", run_s=0.1, exit_code=1)
    world.drive_to(failed, S.FAILED)
    world.restart_scheduler()
    third = world.submit("third", after_ok=[str(failed.pk)])
    world.drive(lambda: Job.objects.get(pk=third.pk).reason not in ("", "PendingEvaluation"))
    assert world.state(third) in (S.PENDING, S.QUOTA_RESERVED)
    assert world.placements(third) == []


def test_a_held_job_starts_when_it_is_released(world):
    job = world.submit(held=True)
    world.drive(lambda: Job.objects.get(pk=job.pk).reason == "OnHold")
    Job.objects.filter(pk=job.pk).update(held=False, version=F("version") + 1)
    world.event(job, K.RELEASED)
    world.drive_to(job, S.RUNNING)
