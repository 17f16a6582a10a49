"""How long a job waits before it preempts by priority or reclaim (`Policy.preempt_after_s`)."""

import math

from scheduling.engine.queueing.waiting import JobRecord
from scheduling.engine.types import Policy, PreemptionKind


def delay_of(policy: Policy) -> float:
    """Seconds; 0 = not at all, also where nobody preempts so."""
    kinds = {PreemptionKind.PRIORITY, PreemptionKind.RECLAIM}
    return policy.preempt_after_s if kinds.intersection(policy.preemption) else 0.0


def preempts_from(policy: Policy, record: JobRecord) -> float:
    """When a job that waits may preempt so, if nothing happens; -inf = it always might, or never
    does."""
    delay_s = delay_of(policy)
    if not delay_s or not record.job.preempts or record.waits_since is None:
        return -math.inf
    return record.waits_since + delay_s
