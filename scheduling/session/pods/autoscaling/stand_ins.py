"""Stand-in pods for jobs that wait for nodes, so that autoscalers see them.

Kant makes a job's pods only when they have places, but an autoscaler acts on waiting pods. So on a
cluster that may grow, a job with reserved quota that more nodes would help has one stand-in for
each pod that it cannot start without. A running job has one for each pod that it misses and that
quota allows. Nothing is ever placed for stand-ins. They go when the job starts, ends, is held,
changes, or loses its quota (docs/decisions/0081). A gang that a ProvisioningRequest covers needs
none (docs/decisions/0085).

Each pass makes the stand-ins that exist match the jobs, and nothing is stored: a new scheduler
finds what exists and continues.
"""

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass

from scheduling.engine.states import HOLDING
from scheduling.kube.seam import CallOutcome, CreatePod, DeletePod, PatchCondition, PodFacts, Result
from scheduling.kube.translate import manifests
from scheduling.session.memory.live import LiveJob
from scheduling.session.pods import pod as kant_pods
from scheduling.session.pods.autoscaling.lacking import (
    Groups,
    Name,
    lacks_nodes,
    may_be_held,
    misses_nodes,
    starts_with,
    such_a_pod,
)
from scheduling.session.pods.autoscaling.provisioning import Provisioning
from scheduling.session.pods.autoscaling.waits import shown
from scheduling.session.pods.scope import SharedScope

log = logging.getLogger(__name__)

MOST = 5000  # of all jobs together: an autoscaler looks at each of them
AT_ONCE = 500  # made in one pass
AGAIN_S = 30.0  # how long until an effect that did not show is sent again
NO_ATTEMPT = -1  # in the key of an effect: it concerns no pod of the job


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The stand-ins of a job: pod set and ordinal by name.

    `digests`: by pod set, what they are made of. `made_of`: the version of the job, the groups, its
    namespace, the pods it misses, and the pod sets whose GPUs come by claims.
    """

    made_of: tuple[int, Groups, str, tuple[tuple[int, int], ...], frozenset[int]]
    names: dict[Name, tuple[int, int]]
    digests: dict[int, str]


class StandIns:
    """The stand-ins of a scope's jobs."""

    def __init__(self, scope: SharedScope, provisioning: Provisioning) -> None:
        self._scope = scope
        self._provisioning = provisioning
        self._there: dict[Name, PodFacts] = {}
        self._asked: dict[Name, float] = {}  # when an effect was sent, until it shows
        self._told: dict[str, str] = {}  # by uid: the reason that a stand-in has
        self._kept: dict[str, _Wanted] = {}
        self._refused: set[str] = set()  # messages that were logged

    # --- observations -----------------------------------------------------------------------------
    def seen(self, facts: PodFacts) -> bool:
        """Note a pod; return whether it is a stand-in, which belongs to no job."""
        if not manifests.is_stand_in(facts.name, facts.labels if facts.owned else {}):
            return False
        name = facts.namespace, facts.name
        if name not in self._there:
            self._asked.pop(name, None)
        self._there[name] = facts
        return True

    def gone(self, facts: PodFacts) -> bool:
        """Forget a pod; return whether it was a stand-in."""
        name = facts.namespace, facts.name
        known = self._there.get(name)
        if known is None:
            return manifests.is_stand_in(facts.name, facts.labels if facts.owned else {})
        if known.uid == facts.uid:
            del self._there[name]
            self._asked.pop(name, None)
            self._told.pop(facts.uid, None)
        return True

    def done(self, effect: CreatePod | PatchCondition, outcome: CallOutcome) -> None:
        """Take in the result of an effect."""
        if isinstance(effect, PatchCondition):
            # NOT_SENT: the pod was still being created, so it could not be told why it waits.
            if outcome.result in (Result.FAILED, Result.NOT_SENT):
                self._told.pop(effect.uid, None)
        elif (
            outcome.result in (Result.FAILED, Result.REFUSED)
            and outcome.message not in self._refused
        ):
            self._refused.add(outcome.message)
            log.warning("cannot make pod %s for autoscalers: %s", effect.name, outcome.message)

    # --- what to do -------------------------------------------------------------------------------
    def look_after(
        self, groups: Groups, is_ours: Callable[[Set[str]], Set[str]], now: float
    ) -> None:
        """Create missing stand-ins, delete unwanted ones, and say why the others wait.

        `is_ours`: of jobs that are not known here, returns those that this scope looks after.
        """
        if not (groups or self._there):
            return
        have = {facts.labels[manifests.STANDS_IN_FOR] for facts in self._there.values()}
        wanted: dict[Name, tuple[LiveJob, int, int]] = {}
        jobs = (j for j in self._scope.jobs.values() if groups and self._wants(j, j.id in have))
        for job in jobs:
            if not (plan := self._plan(job, groups)).names:
                continue
            if len(wanted) + len(plan.names) > MOST:
                continue
            wanted.update((name, (job, *which)) for name, which in plan.names.items())
        self._kept = {i: plan for i, plan in self._kept.items() if i in self._scope.jobs}
        both = wanted.keys() | self._there.keys()
        self._asked = {name: at for name, at in self._asked.items() if name in both}
        self._delete(wanted, is_ours, now)
        self._make(wanted, groups, now)
        self._tell(wanted)

    def _wants(self, job: LiveJob, has: bool) -> bool:
        if job.plain:
            return False
        if misses_nodes(job, has):
            return True
        if not lacks_nodes(job, has):
            return False
        # Stand-ins stay until the request that replaces them exists.
        return not self._provisioning.covers(job) or (has and not self._provisioning.asks(job))

    def _delete(
        self,
        wanted: dict[Name, tuple[LiveJob, int, int]],
        is_ours: Callable[[Set[str]], Set[str]],
        now: float,
    ) -> None:
        left = [n for n in self._there if not (n in wanted and self._is_current(n, wanted[n]))]
        left = [name for name in left if self._is_due(name, now)]
        jobs = {self._there[name].labels[manifests.STANDS_IN_FOR] for name in left}
        unknown = jobs - self._scope.jobs.keys()
        ours = (jobs - unknown) | (is_ours(unknown) if unknown else set())
        effects = []
        for name in left:
            facts = self._there[name]
            self._asked[name] = now
            job_id = facts.labels[manifests.STANDS_IN_FOR]
            if job_id in ours and not facts.deleting:
                key = job_id, NO_ATTEMPT, 0, 0
                effects.append(DeletePod(key, *name, facts.uid, grace=0))
        # Before the pods of starting jobs are bound; otherwise both would exist for a while.
        self._scope.out.effects[:0] = effects

    def _is_current(self, name: Name, wanted: tuple[LiveJob, int, int]) -> bool:
        job, pod_set, _ = wanted
        facts = self._there[name]
        made_of = facts.annotations.get(manifests.MADE_OF)
        return not facts.finished and made_of == self._kept[job.id].digests[pod_set]

    def _make(
        self, wanted: dict[Name, tuple[LiveJob, int, int]], groups: Groups, now: float
    ) -> None:
        missing = (n for n in wanted if n not in self._there and self._is_due(n, now))
        for name, _ in zip(missing, range(AT_ONCE), strict=False):
            job, pod_set, ordinal = wanted[name]
            manifest = such_a_pod(job, pod_set, ordinal, groups, name)
            digest = self._kept[job.id].digests[pod_set]
            manifest["metadata"]["annotations"] = {manifests.MADE_OF: digest}
            self._asked[name] = now
            self._scope.out.effects.append(CreatePod((job.id,), *name, manifest))

    def _tell(self, wanted: dict[Name, tuple[LiveJob, int, int]]) -> None:
        """Set the condition on which autoscalers act, if its reason changed."""
        for name, (job, _, _) in wanted.items():
            facts, text = self._there.get(name), job.waits_for
            if facts is None or not text or facts.deleting:
                continue
            reason = shown(text)
            if self._told.get(facts.uid) != reason:
                self._told[facts.uid] = reason
                self._scope.out.effects.append(PatchCondition((), *name, facts.uid, reason, text))

    def _is_due(self, name: Name, now: float) -> bool:
        return now >= self._asked.get(name, -AGAIN_S) + AGAIN_S

    def _plan(self, job: LiveJob, groups: Groups) -> _Wanted:
        namespace = self._scope.namespaces.get(job.request.tenant, "")
        missing = tuple(job.misses()) if job.state in HOLDING else ()
        made_of = job.version, groups, namespace, missing, job.gpus_by_templates
        known = self._kept.get(job.id)
        if known is not None and known.made_of == made_of:
            return known
        names: dict[Name, tuple[int, int]] = {}
        digests: dict[int, str] = {}
        if namespace and may_be_held(job, groups):
            starts = ((i, o) for i, _, count in starts_with(job) for o in range(count))
            for index, ordinal in missing or starts:
                if index not in digests:
                    one = such_a_pod(job, index, 0, groups, (namespace, ""))
                    digests[index] = manifests.digest_of(one)
                name = kant_pods.name_of_stand_in(job, index, ordinal)
                names[namespace, name] = index, ordinal
        plan = self._kept[job.id] = _Wanted(made_of, names, digests)
        return plan
