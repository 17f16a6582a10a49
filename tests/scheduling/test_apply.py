"""A pass writes its decisions although somebody has changed some of the jobs meanwhile."""

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.engine.types import JobRequest, PodPlacement, PodSetSpec
from scheduling.models import Cluster, Job, JobEvent, Placement
from scheduling.models.jobs import PlacementState as P
from scheduling.services.common.lease import take_or_renew
from scheduling.services.jobs.submit import cancel_job
from scheduling.services.scheduler import cycle
from scheduling.services.scheduler.apply import Committed, apply_decisions
from scheduling.services.scheduler.keeper import Led
from scheduling.session.memory.live import HeldFrom, LiveJob, LivePod, PodStep, Transition, Writes
from scheduling.session.passes import Pass
from tenants.models import Tenant, User

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAITS = (("not_before", NOW.timestamp()), ("attempt", 0), ("front", False))
STEPS = {
    K.CANCELLED: (S.RUNNING, S.CANCELLED, "PodDeleted", ()),
    K.PREEMPTED: (S.RUNNING, S.PENDING, "Preempted", WAITS),
    K.ADMITTED: (S.PENDING, S.ADMITTED, "", (("attempt", 1), ("not_before", None))),
    K.QUOTA_RESERVED: (S.PENDING, S.QUOTA_RESERVED, "", ()),
}


@pytest.mark.parametrize("kind", STEPS)
def test_of_jobs_that_take_a_step_together_those_that_somebody_cancelled_do_not(db, kind):
    cluster, tenant = Cluster.objects.create(name="c"), Tenant.objects.create(name="team")
    user = User.objects.create_user("op", password="x", is_operator=True)
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    before, to, reason, columns = STEPS[kind]
    of = {"tenant": tenant, "cluster": cluster, "state": before, "submitted_at": NOW}
    jobs = [Job.objects.create(name=f"j{i}", **of) for i in range(3)]
    record = (("pods", 1), ("which", "j"))
    steps = [
        Transition(str(j.pk), kind, before, to, j.version, reason, "why", columns, record)
        for j in jobs
    ]
    cancel_job(user, jobs[1])
    written = apply_decisions(lease, Writes(transitions=steps), NOW)
    assert written.stale == {str(jobs[1].pk)}
    own = JobEvent.objects.filter(kind=kind, job__in=(jobs[0], jobs[2]))
    assert sorted(written.events) == sorted(own.values_list("id", flat=True))
    rows = [Job.objects.get(pk=job.pk) for job in jobs]
    assert [row.state for row in rows] == [to, S.CANCELLED, to]
    assert [row.version for row in rows] == [jobs[0].version + 1] * 3
    assert rows[1].message == "Cancelled by op."
    kinds = [list(JobEvent.objects.filter(job=job).values_list("kind", flat=True)) for job in jobs]
    assert kinds == [[kind], [K.CANCELLED], [kind]]


def placed(job, at):
    """A job with a place for its pod."""
    request = JobRequest(str(job.pk), "team", at, (PodSetSpec("worker", count=1, gpus=1),))
    live = LiveJob(request, job.name, (), S.ADMITTED, job.version, attempt=1, namespace="ns")
    pod = LivePod(PodPlacement(0, 0, "node", (3,), 1000), 1, f"{job.name}-0", "H100")
    live.add(pod)
    return live, pod


def test_what_a_pass_writes_takes_as_many_statements_for_many_jobs_as_for_few(db):
    """Each pod has a place, a uid and a binding time of its own."""
    cluster, tenant = Cluster.objects.create(name="c"), Tenant.objects.create(name="team")
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    of = {"tenant": tenant, "cluster": cluster, "state": S.PENDING, "submitted_at": NOW}
    counts, admitted = [], K.ADMITTED
    for number in (3, 300):
        jobs = Job.objects.bulk_create([Job(name=f"j{number}-{i}", **of) for i in range(number)])
        starts = [placed(job, NOW.timestamp()) for job in jobs]
        steps = [
            Transition(str(j.pk), admitted, S.PENDING, S.ADMITTED, j.version, "", "", (), ())
            for j in jobs
        ]
        with CaptureQueriesContext(connection) as told:
            apply_decisions(lease, Writes(transitions=steps, intents=starts), NOW)
        bindings = Writes(failures={str(j.pk): i for i, j in enumerate(jobs)})
        for after, (live, pod) in enumerate(starts, start=1):
            at = NOW.timestamp() + after
            pod.uid = f"uid-{pod.name}"
            bindings.steps.append(PodStep(pod, P.INTENDED, P.BOUND, at=at))
            bindings.held.append(HeldFrom(pod, at))
            bindings.bound_jobs[live.id] = at
        with CaptureQueriesContext(connection) as also:
            apply_decisions(lease, bindings, NOW + timedelta(hours=1))
        counts.append((len(told), len(also)))
        rows = Placement.objects.filter(job__in=jobs).select_related("job").order_by("id")
        assert [row.pk for row in rows] == [pod.row for _, pod in starts]
        for after, row in enumerate(rows, start=1):
            bound = NOW + timedelta(seconds=after)
            assert (row.bound_at, row.held_from, row.job.bound_at) == (bound, bound, bound)
            assert (row.pod_uid, row.devices) == (f"uid-{row.pod_name}", [3])
            assert (row.intended_at, row.state, row.job.failures) == (NOW, "BOUND", after - 1)
    assert counts[0] == counts[1]
    # Statements for the transaction, its fence, jobs, free ids, places and events. Then, on
    # PostgreSQL in one statement: fence, jobs and places. It also writes two tables in one
    # statement.
    expected = (6, 1) if connection.vendor == "postgresql" else (7, 5)
    assert counts[1] == expected


def test_what_is_written_later_is_as_of_then(monkeypatch):
    """If a pass decides about very many jobs, each part carries its own time."""
    written = []
    monkeypatch.setattr(
        cycle, "apply_decisions", lambda _, __, at, *___: written.append(at) or Committed(set())
    )
    some = Writes(failures={"j": 1})
    parts = Pass(some, [], 100.0, Pass(some, [], 100.0, Pass(some, [], 100.0)))
    pace = SimpleNamespace(spent=lambda *_: None, took=lambda *_: None)
    session = SimpleNamespace(
        decide_due=lambda: None,
        decide=lambda _: parts,
        finish=lambda *_: time.sleep(0.002),
        next_at=None,
        pace=pace,
        settings=(),
    )
    lease = SimpleNamespace(cluster_id=1, scope="")
    led = Led(session, lease, time.monotonic())
    began = datetime.now(UTC)
    cycle.Scheduler()._pass(led)
    assert written[0].timestamp() == 100.0
    assert began < written[1] < written[2] < datetime.now(UTC)
