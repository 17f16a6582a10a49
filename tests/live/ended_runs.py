"""Earlier runs of jobs, from which run times are learned."""

import uuid
from datetime import UTC, datetime, timedelta

from scheduling.engine.states import JobState as S
from scheduling.models import Job


def has_run(world, name, gpu_milli, run_s):
    """Record forty jobs of that name that ran for this long, two hours ago."""
    at = datetime.now(UTC) - timedelta(hours=2)
    Job.objects.bulk_create(
        Job(
            id=uuid.uuid4(),
            name=f"{name}-{number}",
            tenant=world.tenant,
            cluster=world.cluster,
            gpu_milli=gpu_milli,
            state=S.SUCCEEDED,
            submitted_at=at,
            admitted_at=at,
            ended_at=at + timedelta(seconds=run_s),
        )
        for number in range(40)
    )
