"""ProvisioningRequests for gangs that wait for nodes (docs/decisions/0085).

Kant asks an autoscaler for all nodes of a gang at once, and reads its answer. Each pass compares
the requests that should exist, by the jobs, with those that do; only the text of why a job waits is
stored. A failed request stays until the next one exists, which has a higher number in its name, so
that a new scheduler continues the count.
"""

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import NamedTuple

from scheduling.engine.states import WAITING
from scheduling.engine.verdict import counted
from scheduling.kube.seam import (
    AlikePods,
    Annotate,
    CallOutcome,
    CreateProvisioning,
    DeleteProvisioning,
    NodesAnswer,
    PodFacts,
    ProvisioningFacts,
    Reference,
    Result,
)
from scheduling.kube.translate import manifests
from scheduling.session.memory.live import LiveJob, Note
from scheduling.session.pods.autoscaling.lacking import (
    Groups,
    Name,
    groups_for,
    lacks_nodes,
    may_be_held,
    starts_with,
    such_a_pod,
)
from scheduling.session.pods.scope import SharedScope

log = logging.getLogger(__name__)

# On pods: the request that brings their nodes, and its class. An autoscaler does not act on such a
# pod by itself.
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS = "autoscaling.x-k8s.io/provisioning-class-name"

MOST = 500  # of all gangs together: an autoscaler takes them one by one
MOST_POD_SETS = 32  # of one request, by its API definition
AGAIN_S = 30.0  # how long until an effect that did not show is sent again
REFUSED_S = 300.0  # the same for one that the API server refused
# The pause after a failure before the next request: at first, and at most.
FIRST_S, LONGEST_S = 60.0, 1800.0
CAME_TO_NOTHING = {
    NodesAnswer.FAILED: "failed",
    NodesAnswer.EXPIRED: "the nodes were not used in time",
    NodesAnswer.REVOKED: "the nodes were taken back",
}
NOTED = "ProvisioningRequest"  # the reason of the job's events


class _Plan(NamedTuple):
    """What to ask for a gang, and where; `digest` differs for different pods."""

    made_of: tuple[object, ...]
    namespace: str
    pods: tuple[AlikePods, ...]
    owners: tuple[Reference, ...]
    digest: str
    groups: str


class Provisioning:
    """The requests for the gangs of a scope.

    `unbound_of`: the waiting plain pods of a job. `trouble`: why no request is possible, "" = it
    is, None = not known yet.
    """

    def __init__(
        self, scope: SharedScope, unbound_of: Callable[[LiveJob], Sequence[PodFacts]]
    ) -> None:
        self._scope = scope
        self._unbound_of = unbound_of
        self._there: dict[Name, ProvisioningFacts] = {}
        self._by_job: dict[str, dict[int, ProvisioningFacts]] = {}
        self._asked: dict[Name, float] = {}  # when an effect was sent, until it shows
        self._plans: dict[str, _Plan] = {}
        self._refused: dict[str, tuple[str, float]] = {}  # by job: why, and until when
        self._logged: set[str] = set()
        self._marked: dict[str, str] = {}  # by uid of a plain pod: the request that it was given
        self._class = ""
        self.trouble: str | None = None

    # --- observations -----------------------------------------------------------------------------
    def seen(self, facts: ProvisioningFacts) -> None:
        """Note an existing request; ignore one that Kant did not make."""
        if facts.job:
            name = facts.namespace, facts.name
            if name not in self._there:
                self._asked.pop(name, None)
            self._there[name] = facts
            self._by_job.setdefault(facts.job, {})[facts.number] = facts

    def gone(self, facts: ProvisioningFacts) -> None:
        """Forget a request."""
        name = facts.namespace, facts.name
        known = self._there.get(name)
        if known is not None and known.uid == facts.uid:
            del self._there[name]
            self._asked.pop(name, None)
            of_job = self._by_job[known.job]
            of_job.pop(known.number, None)
            if not of_job:
                del self._by_job[known.job]

    def served(self, trouble: str) -> None:
        """Note that all existing requests have been seen, or why (`trouble`) there can be none."""
        if trouble and trouble not in self._logged:
            self._logged.add(trouble)
            log.warning("no ProvisioningRequest is made: %s", trouble)
        self.trouble = trouble

    def done(
        self, effect: CreateProvisioning | DeleteProvisioning | Annotate, outcome: CallOutcome
    ) -> None:
        """Take in the result of an effect."""
        if isinstance(effect, Annotate):
            if outcome.result in (Result.FAILED, Result.NOT_SENT):
                self._marked.pop(effect.uid, None)
        elif isinstance(effect, DeleteProvisioning):
            if outcome.result is Result.GONE and (
                known := self._there.get((effect.namespace, effect.name))
            ):
                self.gone(known)
        elif outcome.result is Result.REFUSED:
            [job_id] = effect.key if isinstance(effect.key, tuple) else ("",)
            self._refused[job_id] = outcome.message, self._scope.out.at + REFUSED_S
            if outcome.message not in self._logged:
                self._logged.add(outcome.message)
                log.warning("ProvisioningRequest %s is not made: %s", effect.name, outcome.message)

    # --- questions --------------------------------------------------------------------------------
    def covers(self, job: LiveJob) -> bool:
        """Whether a request is to ask for the job's nodes, instead of stand-ins."""
        possible = self._class and not self.trouble and job.id not in self._refused
        return bool(possible) and _is_for(job, self._unbound_of(job))

    def asks(self, job: LiveJob) -> bool:
        """Whether a request for the job exists."""
        return job.id in self._by_job

    # --- what to do -------------------------------------------------------------------------------
    def look_after(
        self,
        groups: Groups,
        class_name: str,
        is_ours: Callable[[Set[str]], Set[str]],
        now: float,
    ) -> list[LiveJob]:
        """Create missing requests, delete unwanted ones; return the jobs whose text changed.

        `is_ours`: of jobs that are not known here, returns those that this scope looks after.
        """
        before, self._class = self._class, class_name
        if not (class_name or before or self._there or self._marked):
            return []
        if class_name and self.trouble is None:
            return []  # which requests exist is not known yet
        self._refused = {
            i: (why, until)
            for i, (why, until) in self._refused.items()
            if until > now and i in self._scope.jobs
        }
        jobs = self._scope.jobs
        lacking = [j for j in jobs.values() if class_name and lacks_nodes(j, self.asks(j))]
        plans: dict[str, _Plan] = {}
        for job in lacking:
            if self.covers(job) and len(plans) < MOST and (plan := self._plan(job, groups)):
                plans[job.id] = plan
        self._plans = {i: plan for i, plan in self._plans.items() if i in jobs}
        for job_id, plan in plans.items():
            self._make(jobs[job_id], plan, now)
        self._delete(plans, is_ours, now)
        self._mark(plans)
        return self._told(lacking, plans, now)

    def _plan(self, job: LiveJob, groups: Groups) -> _Plan | None:
        pods = self._unbound_of(job)
        namespace = (
            pods[0].namespace if pods else self._scope.namespaces.get(job.request.tenant, "")
        )
        uids = tuple(pod.uid for pod in pods)
        made_of = job.version, groups, namespace, self._class, uids, job.gpus_by_templates
        known = self._plans.get(job.id)
        if known is not None and known.made_of == made_of:
            return known
        if not namespace or not may_be_held(job, groups):
            return None
        alike: list[AlikePods] = []
        names: list[str] = []
        for index, _, count in starts_with(job):
            names += [group.name for group in groups_for(job, index, groups)]
            if job.plain:
                key = min(key for key in job.plain if key[0] == index)
                alike.append(AlikePods(count, job.plain[key].name))
            else:
                pod = such_a_pod(job, index, 0, groups, (namespace, ""))
                pod["metadata"]["labels"] = {}  # a template is nobody's stand-in
                alike.append(AlikePods(count, pod))
        digest = manifests.digest_of({"class": self._class, "pods": alike, "plain": uids})
        said = ", ".join(dict.fromkeys(names))
        owners = tuple(dict.fromkeys(map(_owner_of, pods)))
        plan = _Plan(made_of, namespace, tuple(alike), owners, digest, said)
        self._plans[job.id] = plan
        return plan

    def _current(self, job: LiveJob, plan: _Plan) -> ProvisioningFacts | None:
        """Return the last request, if it asks for these pods."""
        known = self._by_job.get(job.id)
        if not known:
            return None
        facts = known[max(known)]
        is_same = facts.name == self._name(job, plan, facts.number)
        return facts if is_same and facts.namespace == plan.namespace else None

    def _name(self, job: LiveJob, plan: _Plan, number: int) -> str:
        return manifests.provisioning_name(job.name, job.id, plan.digest, number)

    def _make(self, job: LiveJob, plan: _Plan, now: float) -> None:
        current = self._current(job, plan)
        if current is not None and not _is_over(current, now):
            return
        # Higher than any existing one, whatever that was made of.
        number = max(self._by_job.get(job.id, ()), default=0) + 1
        name = plan.namespace, self._name(job, plan, number)
        if not self._is_due(name, now):
            return
        self._asked[name] = now
        labels = {manifests.PROVISIONS_FOR: job.id, manifests.TENANT: job.request.tenant}
        effect = CreateProvisioning(
            (job.id,), *name, labels, self._class, plan.pods, owners=plan.owners
        )
        self._scope.out.effects.append(effect)

    def _delete(
        self, plans: Mapping[str, _Plan], is_ours: Callable[[Set[str]], Set[str]], now: float
    ) -> None:
        left = [facts for facts in self._there.values() if not self._stays(facts, plans)]
        left = [facts for facts in left if self._is_due((facts.namespace, facts.name), now)]
        unknown = {facts.job for facts in left} - self._scope.jobs.keys()
        others = unknown - is_ours(unknown) if unknown else unknown
        for facts in left:
            self._asked[facts.namespace, facts.name] = now
            if facts.job not in others:
                of = facts.namespace, facts.name, facts.uid
                self._scope.out.effects.append(
                    DeleteProvisioning((facts.job,), *of, facts.templates)
                )
        here = self._there.keys()
        self._asked = {n: at for n, at in self._asked.items() if n in here or now < at + AGAIN_S}

    def _stays(self, facts: ProvisioningFacts, plans: Mapping[str, _Plan]) -> bool:
        """Whether the request stays: only the last one, for pods that are still wanted."""
        plan, job = plans.get(facts.job), self._scope.jobs.get(facts.job)
        return plan is not None and job is not None and facts == self._current(job, plan)

    def _is_due(self, name: Name, now: float) -> bool:
        return now >= self._asked.get(name, -AGAIN_S) + AGAIN_S

    def _mark(self, plans: Mapping[str, _Plan]) -> None:
        """Have pods name the request that brings their nodes."""
        waiting: set[str] = set()
        for job in (j for j in self._scope.jobs.values() if j.state in WAITING):
            plan = plans.get(job.id)
            current = self._current(job, plan) if plan is not None else None
            if current is not None:
                job.consumes = {CONSUMES: current.name, CLASS: current.class_name}
            elif job.consumes and not job.pods:
                job.consumes = {}
            for pod in self._unbound_of(job) if job.pod_gang else ():
                waiting.add(pod.uid)
                wanted = current.name if current is not None else ""
                if wanted != self._marked.get(pod.uid, _mark_of(pod)):
                    notes = job.consumes or dict.fromkeys((CONSUMES, CLASS))
                    of = (), pod.namespace, pod.name, pod.uid
                    self._scope.out.effects.append(Annotate(*of, notes))
                    self._marked[pod.uid] = wanted
        self._marked = {uid: name for uid, name in self._marked.items() if uid in waiting}

    def _told(
        self, lacking: Sequence[LiveJob], plans: Mapping[str, _Plan], now: float
    ) -> list[LiveJob]:
        words = {job.id: self._words(job, plans.get(job.id)) for job in lacking}
        changed = []
        for job in self._scope.jobs.values():
            text = words.get(job.id, "")
            if text == job.asked_for:
                continue
            job.asked_for = text
            if job.state in WAITING:
                changed.append(job)
                if text and job.notes(text, now):
                    self._scope.out.writes.notes.append(Note(job.id, job.state, NOTED, text))
        return changed

    def _words(self, job: LiveJob, plan: _Plan | None) -> str:
        if self.trouble and _is_for(job, self._unbound_of(job)):
            return f"No ProvisioningRequest asks for them: {self.trouble}."
        if job.id in self._refused:
            why = self._refused[job.id][0].rstrip(".")
            return f"No ProvisioningRequest asks for them, the API server refuses it: {why}."
        current = self._current(job, plan) if plan is not None else None
        if plan is None or current is None:
            return ""
        pods = counted(sum(each.number for each in plan.pods), "pod", "pods")
        asked = f"Asked at {_clock(current.created_at)} for {pods} on nodes of {plan.groups}"
        return f"{asked} (ProvisioningRequest {current.name}): {_answer(current)}."


def _is_for(job: LiveJob, pods: Sequence[PodFacts]) -> bool:
    """Whether the job is a gang that a request can cover, and nobody else asked for its nodes."""
    if len(job.asked.pod_sets) > MOST_POD_SETS:
        return False
    if job.plain:
        notes = [pod.annotations for pod in pods]
        whole = bool(job.pod_gang) and len(pods) == len(job.plain)
    else:
        notes = [content.annotations for content in job.contents]
        whole = job.request.gang
    theirs = (note[CONSUMES] for note in notes if CONSUMES in note)
    return whole and all(map(manifests.is_provisioning_name, theirs))


def _mark_of(pod: PodFacts) -> str:
    """Return the request of Kant that the pod says it consumes; "" = none."""
    name = pod.annotations.get(CONSUMES, "")
    return name if manifests.is_provisioning_name(name) else ""


def _owner_of(pod: PodFacts) -> Reference:
    owner = pod.plain.owner if pod.plain is not None else None
    return owner or Reference("v1", "Pod", pod.name, pod.uid)


def _retry_at(facts: ProvisioningFacts) -> float:
    pause = min(FIRST_S * 2.0 ** min(facts.number - 1, 16), LONGEST_S)
    return (facts.answered_at or facts.created_at) + pause


def _is_over(facts: ProvisioningFacts, now: float) -> bool:
    """Whether the request failed so long ago that another one may ask."""
    return facts.answer in CAME_TO_NOTHING and now >= _retry_at(facts)


def _answer(facts: ProvisioningFacts) -> str:
    message = f": {facts.message.strip().rstrip('.')}" if facts.message.strip() else ""
    if facts.answer in CAME_TO_NOTHING:
        at, again = _clock(facts.answered_at), _clock(_retry_at(facts))
        return f"{CAME_TO_NOTHING[facts.answer]} at {at}{message}; asked again at {again}"
    words = {
        NodesAnswer.NONE: "no answer yet",
        NodesAnswer.ACCEPTED: "accepted",
        NodesAnswer.PROVISIONED: "the nodes are there",
    }
    return words[facts.answer] + ("" if facts.answer is NodesAnswer.PROVISIONED else message)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M} UTC"
