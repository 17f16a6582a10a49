"""The total order of jobs, before shares and queues are taken into account.

If the policy plans by learned run times, a job that declares none is ordered as if it had been
submitted later, by a multiple of the median run time of jobs like it. Short jobs therefore go
before long ones. No job is put off for ever: a job that was submitted later by more than this delay
never passes it. The delay is fixed when a run time is first learned for the job.
"""

import math
from typing import Final, NamedTuple

from scheduling.engine.types import JobRequest

# The delay of a job in multiples of its likely run time. A job that needs several nodes gets a
# shorter delay because it already waits longer for those nodes than other jobs do.
LATER: Final = 10.0
LATER_FOR_SEVERAL: Final = 1.0


class OrderKey(NamedTuple):
    """The position of a job in the total order; the smallest key goes first."""

    after: float  # the negated priority
    stands_at: float
    gpu_milli: int
    job_id: str


def order_key(job: JobRequest, *, front: bool = False, stands_at: float | None = None) -> OrderKey:
    """Return the key by priority (high first), time, size (small first) and id.

    The time is `stands_at`; if that is None or the job declares a run time, it is the submission
    time. With `front` the job goes before all other jobs of its priority.
    """
    at = job.submitted_at if stands_at is None or job.declared_s is not None else stands_at
    return OrderKey(-job.priority, -math.inf if front else at, job.gpu_milli, job.id)


def stands_at(job: JobRequest, likely_s: float, *, needs_several: bool) -> float:
    """Return the time by which a job that is likely to run `likely_s` seconds is ordered.

    The delay is rounded to whole seconds, so that the database stores the time exactly.
    `needs_several`: the job needs more than one node.
    """
    later = LATER_FOR_SEVERAL if needs_several else LATER
    return job.submitted_at + round(later * likely_s)
