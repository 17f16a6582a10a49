"""How long a job waits before it preempts.

`Policy.preempt_after_s` delays preemption by priority and by reclaim. If it is 0, a job that was
preempted itself still waits `AFTER_PREEMPTED_S` before it preempts by priority.
"""

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from scheduling.engine.queue.job import JobRecord
from scheduling.engine.types import Policy, PreemptionKind

# Seconds during which a preempted job preempts nobody by priority. Without the pause one preemption
# leads to the next, although places often come free by themselves. Reclaiming is not delayed.
AFTER_PREEMPTED_S = 600.0
_BY_WAITING = frozenset((PreemptionKind.PRIORITY, PreemptionKind.RECLAIM))
_BY_PRIORITY = frozenset((PreemptionKind.PRIORITY,))


def delay_of(policy: Policy) -> float:
    """Return the delay in seconds: 0 if there is none, or if neither kind of preemption is on."""
    kinds = policy.preemption
    preempts = PreemptionKind.PRIORITY in kinds or PreemptionKind.RECLAIM in kinds
    return policy.preempt_after_s if preempts else 0.0


def preempts_from(policy: Policy, record: JobRecord) -> float:
    """Return when a waiting job may preempt by priority or reclaim if nothing else changes.

    -inf: no delay applies to the job, or it never preempts.
    """
    delay_s = delay_of(policy)
    if not delay_s or not record.job.preempts or record.waits_since is None:
        return -math.inf
    return record.waits_since + delay_s


def not_yet(
    policy: Policy, record: JobRecord, now: float
) -> tuple[frozenset[PreemptionKind], float]:
    """Return the kinds by which a waiting job may not preempt yet, and when that next changes."""
    if (due := preempts_from(policy, record)) > now:
        return _BY_WAITING, due
    if not delay_of(policy) and (due := record.preempted_at + AFTER_PREEMPTED_S) > now:
        return _BY_PRIORITY, due
    return frozenset(), now


class Early:
    """The times at which waiting jobs will have waited long enough to preempt."""

    def __init__(self) -> None:
        self._due: list[tuple[float, str]] = []

    def note(self, due: float, job_id: str) -> None:
        heappush(self._due, (due, job_id))

    def take(self, now: float) -> Iterator[str]:
        """Yield and remove the jobs whose time has come; some of them may no longer exist."""
        while self._due and self._due[0][0] <= now:
            yield heappop(self._due)[1]

    def first(self, waits: Callable[[str], bool]) -> float:
        """Return the earliest time of a job that still waits; inf if there is none."""
        while self._due and not waits(self._due[0][1]):
            heappop(self._due)
        return self._due[0][0] if self._due else math.inf
