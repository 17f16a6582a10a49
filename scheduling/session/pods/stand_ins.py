"""Pods that stand in for those of jobs that wait for nodes, so that autoscalers see them.

Kant makes the pods of its jobs when they have their places, and an autoscaler acts upon pods that
wait. So where a cluster may grow, a job whose quota is reserved and that more nodes would help has
one stand-in for each of its pods. Nothing is ever placed for them: they go when the job starts,
ends, is held, is another one, or loses its quota (docs/decisions/0081).

What is to be there follows from the jobs alone, and is brought about in each pass: a scheduler that
begins anew finds what is there, and goes on.
"""

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from scheduling.engine.states import JobState
from scheduling.engine.verdict import Reason
from scheduling.kube.seam import CallOutcome, CreatePod, DeletePod, PatchCondition, PodFacts, Result
from scheduling.kube.translate import manifests
from scheduling.kube.translate.node_groups import NodeGroup
from scheduling.session.memory.live import LiveJob
from scheduling.session.pods import pod as kant_pods
from scheduling.session.pods.scope import SharedScope
from scheduling.session.pods.waits import shown, would_help

log = logging.getLogger(__name__)

MOST = 5000  # of all jobs together: an autoscaler looks at each of them
AT_ONCE = 500  # made in one pass
AGAIN_S = 30.0  # after so long is asked again what did not come about
NO_ATTEMPT = -1  # of the key of an effect: it is about no pod of the job

Name = tuple[str, str]  # namespace and name
Groups = tuple[NodeGroup, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The stand-ins of a job, by name: which pod set and ordinal; `digests`: by pod set what they
    are made of. `made_of`: the version of the job, the groups and its namespace."""

    made_of: tuple[int, Groups, str]
    names: dict[Name, tuple[int, int]]
    digests: tuple[str, ...]


class StandIns:
    """The stand-ins of the jobs of a scope."""

    def __init__(self, scope: SharedScope) -> None:
        self._scope = scope
        self._there: dict[Name, PodFacts] = {}
        self._asked: dict[Name, float] = {}  # when something was asked of it that is to be seen yet
        self._told: dict[str, str] = {}  # the reason on a stand-in, by uid
        self._kept: dict[str, _Wanted] = {}
        self._refused: set[str] = set()  # messages that were logged

    # --- what is seen -----------------------------------------------------------------------------
    def seen(self, facts: PodFacts) -> bool:
        """Whether the pod is a stand-in, which is no pod of a job."""
        if not manifests.is_stand_in(facts.name, facts.labels if facts.owned else {}):
            return False
        name = facts.namespace, facts.name
        if name not in self._there:
            self._asked.pop(name, None)
        self._there[name] = facts
        return True

    def gone(self, facts: PodFacts) -> bool:
        """As `seen`, of a pod that is gone."""
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
        """How an effect ended."""
        if isinstance(effect, PatchCondition):
            # Not sent is what says why a pod waits while that is still being made.
            if outcome.result in (Result.FAILED, Result.NOT_SENT):
                self._told.pop(effect.uid, None)
        elif (
            outcome.result in (Result.FAILED, Result.REFUSED)
            and outcome.message not in self._refused
        ):
            self._refused.add(outcome.message)
            log.warning("cannot make pod %s for autoscalers: %s", effect.name, outcome.message)

    # --- what is to be ----------------------------------------------------------------------------
    def look_after(
        self, groups: Groups, is_ours: Callable[[Set[str]], Set[str]], now: float
    ) -> None:
        """Make what is missing, delete what nobody wants, and say why the others wait. `is_ours`:
        of jobs that are not known here, those that this scope looks after."""
        if not (groups or self._there):
            return
        have = {facts.labels[manifests.STANDS_IN_FOR] for facts in self._there.values()}
        wanted: dict[Name, tuple[LiveJob, int, int]] = {}
        jobs = (j for j in self._scope.jobs.values() if groups and _wants(j, j.id in have))
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
        # Before the pods of jobs that start now are bound: else there would be both for a while.
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
            manifest = _manifest(job, pod_set, ordinal, groups, name)
            digest = self._kept[job.id].digests[pod_set]
            manifest["metadata"]["annotations"] = {manifests.MADE_OF: digest}
            self._asked[name] = now
            self._scope.out.effects.append(CreatePod((job.id,), *name, manifest))

    def _tell(self, wanted: dict[Name, tuple[LiveJob, int, int]]) -> None:
        """The condition upon which autoscalers act, when its reason is another."""
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
        made_of = job.version, groups, namespace
        known = self._kept.get(job.id)
        if known is not None and known.made_of == made_of:
            return known
        sets = job.asked.pod_sets
        names: dict[Name, tuple[int, int]] = {}
        digests: list[str] = []
        if namespace and all(_groups_for(job, index, groups) for index in range(len(sets))):
            for index, pod_set in enumerate(sets):
                one = _manifest(job, index, 0, groups, (namespace, ""))
                digests.append(manifests.digest_of(one))
                for ordinal in range(pod_set.count):
                    name = kant_pods.name_of_stand_in(job, index, ordinal)
                    names[namespace, name] = index, ordinal
        plan = self._kept[job.id] = _Wanted(made_of, names, tuple(digests))
        return plan


def _wants(job: LiveJob, has: bool) -> bool:
    """Whether a job is to have stand-ins. One that has some keeps them while others are ahead."""
    if job.plain or job.state != JobState.QUOTA_RESERVED or job.is_held:
        return False
    if job.leaving is not None or job.pods:
        return False
    return would_help(job.reason) or (has and job.reason != Reason.BACKING_OFF)


def _groups_for(job: LiveJob, pod_set: int, groups: Groups) -> list[NodeGroup]:
    """The groups whose nodes could hold a pod of the set, by their GPUs; those of the models that
    the job would rather have come first."""
    asked = job.asked.pod_sets[pod_set]
    if not asked.gpus:
        return [g for g in groups if g.example.without_gpus or not asked.avoids_gpus]
    fit = [g for g in groups if len(g.example.devices) >= asked.gpus]
    if not asked.gpu_models:
        return fit
    fit = [g for g in fit if g.example.gpu_model in asked.gpu_models]
    return sorted(fit, key=lambda g: asked.gpu_models.index(g.example.gpu_model))


def _manifest(
    job: LiveJob, pod_set: int, ordinal: int, groups: Sequence[NodeGroup], name: Name
) -> dict[str, Any]:
    """Such a pod as the job's own would be, on a node of one of the groups."""
    fit = _groups_for(job, pod_set, tuple(groups))
    terms = tuple(dict.fromkeys(group.term for group in fit))
    of_group = () if any(not term for term in terms) else terms
    return kant_pods.stand_in(job, pod_set, ordinal, fit[0].example, of_group, name)
