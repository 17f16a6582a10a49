"""Add what was measured of jobs' GPUs to the totals of each job."""

import uuid
from collections.abc import Mapping
from datetime import datetime

from scheduling.models import Job, JobGpuUse
from tenants.database.chunks import CHUNK, chunks


def add_gpu_use(found: Mapping[uuid.UUID, tuple[int, int]], until: datetime) -> None:
    """Add measurements up to `until`. Call this in a transaction that excludes other writers.

    `found`: by job, the measured GPU time and its idle part, in milli-GPU x milliseconds.
    """
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
