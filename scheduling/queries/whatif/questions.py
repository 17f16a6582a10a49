"""What is asked of a kept state. Each is answered by a process of its own, on a state that is
thrown away: it may change what it likes, and uses no database."""

from dataclasses import dataclass, replace

from scheduling.engine.deltas import JobSubmitted
from scheduling.engine.rehearse import Rehearsal, submitted
from scheduling.queries.known import Surroundings, kept_away
from scheduling.queries.whatif.state import KeptState


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would become of a job if it were submitted at `now`, in seconds since the epoch."""

    asked: JobSubmitted
    company: Surroundings
    now: float

    def answer(self, kept: KeptState) -> Rehearsal:
        job = kept_away(self.asked.job, self.company, kept.rows.keepers())
        now = max(self.now, kept.state.cluster.now)
        return submitted(kept.state, replace(self.asked, job=job), now)
