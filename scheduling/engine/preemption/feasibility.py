"""Whether a blocked job would fit if everything that it may take were gone: a bound on all plans.

A plan is costly, and a plan that fails would be made again at every event. Why it fails is mostly
known without making it: jobs that may not be victims are on too many nodes, no node group has room
for all pods, CPU or memory is short, or quota refuses the job whoever goes. The bound looks at each
pod set alone, and ignores NICs and extended resources. It may let a plan be made that fails, but
never prevents one that would succeed.
"""

import math
from bisect import bisect_left

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.preemption.emptied_nodes import Emptied
from scheduling.engine.preemption.quota_relief import allows_without
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.state import SchedulerState


def may_succeed_at(state: SchedulerState, claim: Claim, candidate: Candidate, now: float) -> float:
    """Return when a plan has to be tried if nothing else happens.

    That is when enough of what the victims hold is past its minimum run time. `now`: it is already;
    inf: never.
    """
    if (enough_at := claim.enough_at(now)) > now:
        return enough_at
    exposures = {whose: state.preemptible_jobs.of(whose, now) for whose in claim.groups}

    def fits(by: float) -> bool:
        taken = [(tenant, exposure.by(by)) for (tenant, _), exposure in exposures.items()]
        if not allows_without(state.book, candidate.job.tenant, claim.asked, taken):
            return False
        freed = state.preemptible_jobs.freed(claim.groups, by)
        return Emptied(state.cluster, candidate, freed).suffice()

    if fits(now):
        return now
    times = sorted({at for exposure in exposures.values() for at, _, _ in exposure.later})
    if not times or not fits(times[-1]):
        return math.inf
    return times[bisect_left(times, True, key=fits)]
