"""How long a job waits before it preempts by priority or reclaim (`Policy.preempt_after_s`), and,
where the policy does not say, by priority after it was preempted itself."""

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from scheduling.engine.queue.job import JobRecord
from scheduling.engine.types import Policy, PreemptionKind

# For so many seconds who was preempted takes nobody's place by priority: else one preemption leads
# to the next, and places often come by themselves. What its tenant is guaranteed it takes at once.
AFTER_PREEMPTED_S = 600.0
_BY_WAITING = frozenset((PreemptionKind.PRIORITY, PreemptionKind.RECLAIM))
_BY_PRIORITY = frozenset((PreemptionKind.PRIORITY,))


def delay_of(policy: Policy) -> float:
    """Seconds; 0 = not at all, also where nobody preempts so."""
    kinds = policy.preemption
    preempts = PreemptionKind.PRIORITY in kinds or PreemptionKind.RECLAIM in kinds
    return policy.preempt_after_s if preempts else 0.0


def preempts_from(policy: Policy, record: JobRecord) -> float:
    """When a job that waits may preempt so, if nothing happens; -inf = it always might, or never
    does."""
    delay_s = delay_of(policy)
    if not delay_s or not record.job.preempts or record.waits_since is None:
        return -math.inf
    return record.waits_since + delay_s


def not_yet(
    policy: Policy, record: JobRecord, now: float
) -> tuple[frozenset[PreemptionKind], float]:
    """Kinds by which a job that waits may not preempt yet, and when it may by one of them more."""
    if (due := preempts_from(policy, record)) > now:
        return _BY_WAITING, due
    if not delay_of(policy) and (due := record.preempted_at + AFTER_PREEMPTED_S) > now:
        return _BY_PRIORITY, due
    return frozenset(), now


class Early:
    """When jobs that wait will have waited for long enough."""

    def __init__(self) -> None:
        self._due: list[tuple[float, str]] = []

    def note(self, due: float, job_id: str) -> None:
        heappush(self._due, (due, job_id))

    def take(self, now: float) -> Iterator[str]:
        """Those whose instant has come, each once; some may be gone by now."""
        while self._due and self._due[0][0] <= now:
            yield heappop(self._due)[1]

    def first(self, waits: Callable[[str], bool]) -> float:
        """When the first of those that still wait will have; inf = none of them will."""
        while self._due and not waits(self._due[0][1]):
            heappop(self._due)
        return self._due[0][0] if self._due else math.inf
