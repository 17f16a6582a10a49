"""What was measured of the GPUs of jobs, added to what is known of each."""

import uuid
from collections.abc import Mapping
from datetime import datetime

from scheduling.models import Job, JobGpuUse
from tenants.database.chunks import CHUNK, chunks


def add_gpu_use(found: Mapping[uuid.UUID, tuple[int, int]], until: datetime) -> None:
    """`found`: by job the GPU time that was measured, and how much of it was idle, in milli-GPU x
    milliseconds. Called in a transaction that nobody else adds in meanwhile."""
    for some in chunks(sorted(found)):
        known = JobGpuUse.objects.in_bulk(some)
        there = set(Job.objects.filter(pk__in=some).order_by().values_list("pk", flat=True))
        rows = []
        for job in some:
            if job in there:  # not deleted meanwhile
                row = known.get(job) or JobGpuUse(job_id=job)
                measured, idle = found[job]
                row.measured, row.idle = row.measured + measured, row.idle + idle
                row.until = until
                rows.append(row)
        JobGpuUse.objects.bulk_create(
            rows,
            batch_size=CHUNK,
            update_conflicts=True,
            unique_fields=["job"],
            update_fields=["until", "measured", "idle"],
        )
