"""The one order of jobs: where each stands among all, shares and queues apart.

Where the policy plans by learned run times, a job that declares none stands as if submitted later:
by some of the time that its like take in the median, as that was known when it was first told. So
short jobs go before long ones, and no job is put off for ever: none passes it that was submitted
later than it by more than that.
"""

import math
from typing import Final, NamedTuple

from scheduling.engine.types import JobRequest

# By how many of its likely run times a job stands later than it was submitted; one that needs
# several nodes by fewer, since it waits longer for these than others do anyway.
LATER: Final = 10.0
LATER_FOR_SEVERAL: Final = 1.0


class OrderKey(NamedTuple):
    """The place of a job among all: a total order."""

    after: float  # the higher its priority, the smaller
    stands_at: float
    gpu_milli: int
    job_id: str


def order_key(job: JobRequest, *, front: bool = False, stands_at: float | None = None) -> OrderKey:
    """Priority (high first), time, size (small first), then the id.

    The time is `stands_at`, that of its submission where that is None or the job declares a run
    time. `front`: before all other jobs of its priority.
    """
    at = job.submitted_at if stands_at is None or job.declared_s is not None else stands_at
    return OrderKey(-job.priority, -math.inf if front else at, job.gpu_milli, job.id)


def stands_at(job: JobRequest, likely_s: float, *, needs_several: bool) -> float:
    """Since when a job that is likely to run so many seconds stands in the queue, in whole seconds
    after its submission, so that a row keeps it exactly. `needs_several`: nodes."""
    later = LATER_FOR_SEVERAL if needs_several else LATER
    return job.submitted_at + round(later * likely_s)
