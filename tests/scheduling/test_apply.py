"""What a pass writes about jobs of which somebody changed some in the meantime."""

from datetime import UTC, datetime

import pytest

from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, Job, JobEvent
from scheduling.services.common.lease import take_or_renew
from scheduling.services.jobs.submit import cancel_job
from scheduling.services.scheduler.apply import apply_decisions
from scheduling.session.memory.live import Transition, Writes
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
    stale = apply_decisions(lease, Writes(transitions=steps), NOW)
    assert stale == {str(jobs[1].pk)}
    rows = [Job.objects.get(pk=job.pk) for job in jobs]
    assert [row.state for row in rows] == [to, S.CANCELLED, to]
    assert [row.version for row in rows] == [jobs[0].version + 1] * 3
    assert rows[1].message == "Cancelled by op."
    kinds = [list(JobEvent.objects.filter(job=job).values_list("kind", flat=True)) for job in jobs]
    assert kinds == [[kind], [K.CANCELLED], [kind]]
