"""PodDisruptionBudgets as the engine gets them: how many pods of each job may be evicted now.

A budget that protects several jobs grants its allowance once, to the jobs that are preempted first.
Pods may fail between the budget's status and a decision, so the eviction API has the last word.
"""

from collections.abc import Mapping
from typing import NamedTuple

from scheduling.engine.deltas import DisruptionBudget
from scheduling.kube.seam import BudgetFacts
from scheduling.kube.translate.disruption import covers
from scheduling.session.memory.live import OVER, LiveJob
from scheduling.session.pods.pod import labels_of


class Covered(NamedTuple):
    """How many pods of a job each budget protects (by uid), and the state this was counted in."""

    stamp: tuple[int, ...]
    pods: Mapping[str, int]


class Budgets:
    """The budgets of a cluster, by namespace and uid."""

    def __init__(self) -> None:
        self._budgets: dict[str, dict[str, BudgetFacts]] = {}
        self._version = 0
        self._covered: dict[str, Covered] = {}
        self._told: dict[str, int] = {}

    def seen(self, facts: BudgetFacts) -> None:
        here = self._budgets.setdefault(facts.namespace, {})
        known = here.get(facts.uid)
        here[facts.uid] = facts
        if known is None or known.selector != facts.selector:
            self._version += 1

    def gone(self, facts: BudgetFacts) -> None:
        here = self._budgets.get(facts.namespace, {})
        here.pop(facts.uid, None)
        if not here:
            self._budgets.pop(facts.namespace, None)
        self._version += 1

    def changed(self, jobs: Mapping[str, LiveJob]) -> list[DisruptionBudget]:
        """Return the changes to tell the engine; note in each job whether a budget protects it."""
        if not self._budgets and not self._told:
            return []
        allowed = self._allowed(jobs)
        for job in jobs.values():
            job.protected = job.id in allowed
        ids = sorted(self._told.keys() | allowed.keys())
        news = [i for i in ids if self._told.get(i) != allowed.get(i)]
        self._told = allowed
        return [DisruptionBudget(i, allowed.get(i)) for i in news]

    def allowed(self, job_id: str) -> int | None:
        """Return how many pods of the job may go, as last told; None = no budget protects it."""
        return self._told.get(job_id)

    def _allowed(self, jobs: Mapping[str, LiveJob]) -> dict[str, int]:
        """Return {protected job: how many of its pods may be evicted}."""
        self._covered = {
            job.id: self._cover(job) for job in jobs.values() if job.pods and self._near(job)
        }
        protected = [jobs[i] for i, covered in self._covered.items() if covered.pods]
        protected.sort(key=lambda j: (not j.request.preemptible, j.request.priority, j.id))
        left = {uid: b.allowed for here in self._budgets.values() for uid, b in here.items()}
        found: dict[str, int] = {}
        for job in protected:
            pods = self._covered[job.id].pods
            if all(left[uid] >= n for uid, n in pods.items()):
                grants = dict(pods)
                found[job.id] = len(job.pods)
            elif job.request.gang and not job.request.elastic:
                grants = dict.fromkeys(pods, 0)  # evicting a part of it helps nobody
                found[job.id] = 0
            else:
                least = min(left[uid] for uid in pods)
                grants = {uid: min(least, n) for uid, n in pods.items()}
                found[job.id] = least
            for uid, n in grants.items():
                left[uid] -= n
        return found

    def _near(self, job: LiveJob) -> Mapping[str, BudgetFacts]:
        """Return the budgets in the namespace of the job's pods."""
        return self._budgets.get(job.namespace, {})

    def _cover(self, job: LiveJob) -> Covered:
        stamp = (self._version, job.attempt, len(job.pods), sum(job.tally[s] for s in OVER))
        known = self._covered.get(job.id)
        if known is not None and known.stamp == stamp:
            return known
        labels = [labels_of(job, pod) for pod in job.pods.values() if pod.state not in OVER]
        counts = {
            uid: sum(covers(budget, each) for each in labels)
            for uid, budget in self._near(job).items()
        }
        return Covered(stamp, {uid: n for uid, n in counts.items() if n})
