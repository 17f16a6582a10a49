"""Whether a blocked job would fit if all that it may take were gone: a bound on every plan.

A plan is costly, and one that fails would be made again at every event. Why it fails is mostly
known without one: what those hold from whom nothing may be taken lies on too many nodes, no group
of the network has room for all pods, CPU or memory is short, or quota refuses whoever goes. The
bound looks at each pod set alone, and neither at NICs nor at extended resources: it lets plans be
made that fail, but keeps none from being made that would not.
"""

import math
from bisect import bisect_left

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.preemption.emptied_nodes import Emptied
from scheduling.engine.preemption.quota_relief import allows_without
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.state import SchedulerState


def may_succeed_at(state: SchedulerState, claim: Claim, candidate: Candidate, now: float) -> float:
    """When a plan has to be tried if nothing happens: not before enough has been held for as long
    as it is sure to be; inf = never, `now` if that is so already."""
    if (enough_at := claim.enough_at(now)) > now:
        return enough_at
    exposures = {whose: state.preemptible_jobs.of(whose, now) for whose in claim.groups}

    def fits(by: float) -> bool:
        taken = [(tenant, exposure.by(by)) for (tenant, _), exposure in exposures.items()]
        if not allows_without(state.book, candidate.job.tenant, claim.asked, taken):
            return False
        freed, avoid = state.preemptible_jobs.freed(claim.groups, by), claim.record.avoided_nodes
        return Emptied(state.cluster, candidate, avoid, freed).suffice()

    if fits(now):
        return now
    times = sorted({at for exposure in exposures.values() for at, _, _ in exposure.later})
    if not times or not fits(times[-1]):
        return math.inf
    return times[bisect_left(times, True, key=fits)]
