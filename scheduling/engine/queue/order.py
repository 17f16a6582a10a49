"""The one order of jobs: where each stands among all, shares and queues apart."""

import math
from typing import NamedTuple

from scheduling.engine.types import JobRequest


class OrderKey(NamedTuple):
    """The place of a job among all: a total order."""

    after: float  # the higher its priority, the smaller
    submitted_at: float
    gpu_milli: int
    job_id: str


def order_key(job: JobRequest, *, front: bool = False) -> OrderKey:
    """Priority (high first), submission time, size (small first), then the id.

    `front`: before all other jobs of its priority.
    """
    submitted_at = -math.inf if front else job.submitted_at
    return OrderKey(-job.priority, submitted_at, job.gpu_milli, job.id)
