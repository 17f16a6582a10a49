"""When a queue at a limit can start one more job, as far as its running jobs declare it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Sum
from django.utils import timezone

from scheduling.engine.states import HOLDING
from scheduling.engine.types import MILLI, NOISE
from scheduling.models import Job, Placement
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS


def free_again(job: Job) -> datetime | None:
    """Return the earliest time at which the queue has room for the job that its limit refused.

    The job's evidence has the numbers. Assumes that jobs of the queue end as declared, or at their
    run limit. None = too few of them say, or some should have ended already.
    """
    told: Mapping[str, Any] = job.evidence
    runs = Job.objects.filter(tenant=job.tenant_id, queue=job.queue, state__in=list(HOLDING))
    ends = {
        pk: admitted + timedelta(seconds=min(s for s in (declared, limit) if s is not None))
        for pk, admitted, declared, limit in runs.values_list(
            "pk", "admitted_at", "declared_s", "run_limit_s"
        )
        if admitted is not None and (declared is not None or limit is not None)
    }
    if "max_running" in told:
        frees: Mapping[UUID, float] = dict.fromkeys(ends, 1.0)
        short = told["running"] - told["max_running"] + 1.0
    elif "max_gpus" in told:
        frees = _held_by(ends, told["gpu_model"])
        short = (told["used"] + told["asked"] - told["max_gpus"]) * MILLI - NOISE
    else:
        return None
    for pk in sorted(ends, key=lambda pk: (ends[pk], pk)):
        short -= frees[pk]
        if short <= 0:
            return ends[pk] if ends[pk] > timezone.now() else None
    return None


def _held_by(jobs: Iterable[UUID], model: str) -> Mapping[UUID, float]:
    """Return the GPU-milli of a model that each of the jobs holds."""
    places = Placement.objects.filter(job__in=list(jobs), state__in=LIVE_PLACEMENTS)
    rows = places.filter(gpu_model=model).order_by().values_list("job").annotate(milli=Sum(HELD))
    return defaultdict(float, dict(rows))
