"""What is asked of a kept state. Each is answered by a process of its own, on a state that is
thrown away: it may change what it likes, and uses no database."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from scheduling.engine.deltas import JobSubmitted
from scheduling.engine.rehearse import Rehearsal, submitted
from scheduling.engine.types import JobRequest, PodRules
from scheduling.queries.known import groups_of
from scheduling.queries.whatif.state import KeptState


class Surroundings(NamedTuple):
    """By what pods that are there keep the pods of a job away: their namespace, and the labels of
    a pod of each pod set."""

    namespace: str
    labels: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would become of a job if it were submitted at `now`, in seconds since the epoch."""

    asked: JobSubmitted
    company: Surroundings
    now: float

    def answer(self, kept: KeptState) -> Rehearsal:
        job = self.kept_away(kept)
        now = max(self.now, kept.state.cluster.now)
        return submitted(kept.state, replace(self.asked, job=job), now)

    def kept_away(self, kept: KeptState) -> JobRequest:
        keepers, job = kept.rows.keepers(), self.asked.job
        found = [
            replace(pod_set, rules=PodRules(groups))
            if (groups := groups_of(keepers, self.company.namespace, labels))
            else pod_set
            for pod_set, labels in zip(job.pod_sets, self.company.labels, strict=True)
        ]
        return replace(job, pod_sets=tuple(found))
