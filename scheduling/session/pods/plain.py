"""Plain pods: others made them, and they name Kant as their scheduler.

Each is a job of one pod, or one job together with the others of its gang. A plain pod is offered to
the database, which makes a job of it or says why not (services/plain_pods/take_up.py). Kant binds
the pod and never makes it. A pod that has been bound, or may have been, therefore cannot be placed
again: where another job would wait again, its job ends (docs/decisions/0015, 0026).
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import cast

from scheduling.engine.deltas import JobEnded, JobRequeued
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import PodSetSpec
from scheduling.engine.verdict import Reason, Verdict, counted
from scheduling.kube.seam import (
    Bind,
    CallOutcome,
    DeletePod,
    EmitEvent,
    PatchCondition,
    PodFacts,
    PodLevels,
    Result,
)
from scheduling.kube.workloads import members
from scheduling.kube.workloads.members import workload_of
from scheduling.models.jobs import CANCELLED, POD_FAILED
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.live import Cause, EffectKey, LiveJob, LivePod, Offer, PodKey
from scheduling.session.pods import pod as kant_pods
from scheduling.session.pods.autoscaling.waits import shown, would_help
from scheduling.session.pods.groups import Groups
from scheduling.session.pods.requeue import POD_DELETED, Requeueing
from scheduling.session.pods.scope import SharedScope
from scheduling.session.pods.steps import Evidence, advance, release, step, which

AT_ONCE = 500  # pods offered in one pass
BIND_AGAIN_S = 2.0  # how long until a binding with an unknown result is repeated
BOUND_ELSEWHERE = "BoundElsewhere"
GANG_CHANGED = "GangChanged"
# Why a waiting gang ends that loses a pod or changes; its other pods wait on, for another job.
LOST_ONE = frozenset({BOUND_ELSEWHERE, POD_DELETED, POD_FAILED, GANG_CHANGED})
GANG_INCOMPLETE = "GangIncomplete"
UNKNOWN_OWNER = "UnknownOwner"
FAILED_SCHEDULING = "FailedScheduling"
COUNTED = 4  # pod sets whose nodes one pass counts: each looks at all nodes
# Why a pod has no job although nobody made a mistake.
NO_FAULT = frozenset({GANG_INCOMPLETE, "ReadingOwner", "OwnerSuspended", Reason.WAITING_FOR_NODES})

Gang = tuple[str, str]  # namespace and name


class PlainPods:
    """`unbound`: the plain pods that wait for a place, by uid, those offered last at the end."""

    def __init__(self, scope: SharedScope, requeueing: Requeueing) -> None:
        self.scope = scope
        self.out = scope.out
        self.requeueing = requeueing
        requeueing.before_leaving.append(self._leaves)
        self.leave = requeueing.leave
        self.unbound: dict[str, PodFacts] = {}
        self.by_filter: Callable[[PodSetSpec], str] = lambda _: (
            ""
        )  # nodes that cannot take such a pod
        # Adds to a pod what only others know of it.
        self.as_offered: Callable[[PodFacts], PodFacts] = lambda facts: facts
        # Nodes that others keep for the pods of a waiting job.
        self.promised: Callable[[str], Mapping[PodKey, str]] = lambda _: {}
        self._places: dict[str, tuple[str, PodKey]] = {}  # job and pod of the job, by uid
        self._new: dict[str, None] = {}
        self._short: set[Gang] = set()  # gangs that miss pods; the next look tells them
        self._told: dict[str, tuple[Cause, bool]] = {}  # the cause, and whether the pod was gated
        self._advised: set[tuple[str, str, str]] = set()  # owners: namespace, kind, name
        self._deleting: set[str] = set()
        self._doubted: set[str] = set()  # pods whose job the database may know
        self._missing: set[str] = set()
        self._unanswered: dict[EffectKey, tuple[float, Bind]] = {}
        self._refused: dict[str, tuple[str, tuple[str, ...]]] = {}  # by job: why, and which nodes
        self.groups = Groups(scope.jobs, self.out)

    def know(self, job: LiveJob) -> None:
        """Look after the job from now on."""
        self.scope.jobs[job.id] = job
        self._places.update((ref.uid, (job.id, key)) for key, ref in job.plain.items())

    # --- pods without a place ---------------------------------------------------------------------
    def keep(self, facts: PodFacts) -> None:
        """Remember the pod as long as it waits for a place."""
        if facts.plain is not None and not facts.deleting:
            self.unbound[facts.uid] = facts
        else:
            self.forget(facts)

    def forget(self, facts: PodFacts) -> None:
        """Forget the pod: it no longer waits for a place."""
        uid = facts.uid
        if self.unbound.pop(uid, None) is not None:
            self._told.pop(uid, None)
            self._deleting.discard(uid)
            self._doubted.discard(uid)
            if (gang := _gang_of(facts)) is not None and not facts.node:
                self._short.add(gang)

    def unplaced_seen(self, facts: PodFacts, now: float) -> None:
        """Take in a pod without a current placement."""
        before = self.unbound.get(facts.uid)
        self.keep(facts)
        if facts.uid in self.unbound:
            job = self.job_of(facts.uid)
            if job is not None and job.told and (before is None or before.gated):
                # Another scope's scheduler saw it earlier, so its job came before or after the pod
                # did here.
                self._tell_waiting(facts, job.told)
            if job is not None and _waits(job) and (text := _is_another(job, facts, before)):
                self.requeueing.end(job, Kind.CANCELLED, GANG_CHANGED, text, now)
            is_news = job is None or before is None or _says(before) != _says(facts)
            if is_news and facts.uid not in self._deleting:
                self._new[facts.uid] = None
            return
        if facts.node:
            self._lost(facts, Kind.FAILED, BOUND_ELSEWHERE, _bound_to(facts.name, facts.node), now)
        elif facts.finished:
            self._lost(facts, Kind.FAILED, POD_FAILED, kant_pods.failure_text(facts), now)
        else:
            self._lost(facts, Kind.CANCELLED, POD_DELETED, _deleted(facts.name), now)
        self.leave.foreign.seen(facts, self.out)

    def unplaced_gone(self, facts: PodFacts, now: float) -> None:
        """Take in that such a pod left the API."""
        self._lost(facts, Kind.CANCELLED, POD_DELETED, _deleted(facts.name), now)

    def look_after(self, *, takes_up: bool, again: bool, now: float) -> None:
        """Offer what is new, if this scope `takes_up` pods.

        `again`: from time to time, also offer refused pods and pods whose job is over.
        """
        for key, (at, bind) in list(self._unanswered.items()):
            if now >= at:
                del self._unanswered[key]
                self._bind_again(bind, now)
        short: set[Gang] = set()
        if again:
            self._places = {
                u: place for u, place in self._places.items() if place[0] in self.scope.jobs
            }
            self._end_those_without_pod(now)
            self.groups.forget_others()
            # Pods with a job may be refused, too: they name a queue that does not take them.
            asked = (u for u in self.unbound if self.job_of(u) is None or u in self._told)
            self._new.update(dict.fromkeys(islice(asked, AT_ONCE)))
            short, self._short = self._short, short
        here = [self.unbound[uid] for uid in self._new if uid in self.unbound]
        # A pod's owner is mostly read within moments, and the pod is news again then.
        new, self._new = [facts for facts in here if again or not _is_unread(facts)], {}
        if takes_up:
            self._offer(sorted(new, key=_age), short, again=again)

    def _offer(self, new: list[PodFacts], short: set[Gang], *, again: bool) -> None:
        """Offer these pods, each with all waiting pods of its gang, and the gangs in `short`.

        Gangs that miss pods wait for the next look, as the rest mostly comes within moments.
        """
        gangs: dict[Gang, list[PodFacts]] = {gang: [] for gang in map(_gang_of, new) if gang}
        gangs |= {gang: [] for gang in short}
        for facts in self.unbound.values() if gangs else ():
            if (gang := _gang_of(facts)) is not None and gang in gangs:
                gangs[gang].append(facts)
        units: dict[str | Gang, list[PodFacts]] = {}
        for facts in new:
            gang = _gang_of(facts)
            units[gang or facts.uid] = gangs[gang] if gang else [facts]
        units |= {gang: gangs[gang] for gang in short}
        offered = 0
        for pods in filter(None, units.values()):
            gang = _gang_of(pods[0])
            if gang is not None and not again and members.is_short(pods):
                self._short.add(gang)
            elif offered >= AT_ONCE:
                self._new.update(dict.fromkeys(facts.uid for facts in pods))
            else:
                offered += len(pods)
                for facts in pods:
                    self.unbound[facts.uid] = self.unbound.pop(facts.uid)
                offered_pods = map(self.as_offered, sorted(pods, key=_age))
                is_new = gang is None and self._is_new(pods[0].uid)
                self.out.writes.offers.append(Offer(tuple(offered_pods), is_new))

    def _is_new(self, uid: str) -> bool:
        return not (uid in self._places or uid in self._told or uid in self._doubted)

    def taken_back(self, job: LiveJob) -> None:
        """Offer the pods of a job that was not written again; the database may know more."""
        for ref in job.plain.values():
            self._places.pop(ref.uid, None)
            if ref.uid in self.unbound:
                self._doubted.add(ref.uid)
                self._new[ref.uid] = None

    def look_again(self, uids: Iterable[str]) -> None:
        """Offer those of these pods again that were refused."""
        waiting = (uid for uid in uids if uid in self.unbound)
        refused = (uid for uid in waiting if uid in self._told or self.job_of(uid) is None)
        self._new.update(dict.fromkeys(refused))

    @property
    def has_more(self) -> bool:
        """Whether the last pass left pods to be offered."""
        return bool(self._new)

    def answered(self, offers: list[Offer]) -> None:
        """Take in what the database made of the offers; tell refused pods why, once."""
        for offer in offers:
            for pod in offer.pods:
                if pod.uid not in offer.over and pod.uid not in offer.refused:
                    self._advise(pod)
                if pod.uid in offer.over:
                    self._delete(pod.uid, pod, offer.over[pod.uid])
                elif (refusal := offer.refused.get(pod.uid)) is None:
                    job = self.job_of(pod.uid)
                    if self._told.pop(pod.uid, None) and job is not None and job.told:
                        self._tell_waiting(pod, job.told)  # replaces the refusal
                elif pod.uid in self.unbound:
                    before, self._told[pod.uid] = self._told.get(pod.uid), (refusal, pod.gated)
                    if before is None or before[0] != refusal:
                        self.groups.refused(pod, refusal)
                        of = pod.namespace, pod.name, pod.uid
                        kind = "Normal" if refusal.reason in NO_FAULT else "Warning"
                        self.out.effects.append(EmitEvent((), *of, *refusal, type=kind))
                    if before != (refusal, pod.gated):
                        self._set_condition(pod, shown(refusal.reason), refusal.text)

    def _advise(self, pod: PodFacts) -> None:
        """Say once, on a pod, what an owner of an unknown kind could declare."""
        workload = workload_of(pod)
        if workload is not None and workload.advice:
            owner = pod.namespace, workload.kind, workload.name
            if owner not in self._advised:
                self._advised.add(owner)
                of = pod.namespace, pod.name, pod.uid
                self.out.effects.append(EmitEvent((), *of, UNKNOWN_OWNER, workload.advice))

    def not_told(self, uid: str) -> None:
        """Tell the pod again: the API server did not answer."""
        self._told.pop(uid, None)
        if (job := self.job_of(uid)) is not None:
            job.told = ""

    # --- waiting jobs -----------------------------------------------------------------------------
    def verdict_on(self, job: LiveJob, verdict: Verdict) -> Verdict:
        """Return the engine's verdict with why the job is held, which the engine does not know."""
        if verdict.reason is Reason.ON_HOLD and job.pod_hold and not job.held:
            gated = any(pod.gated for pod in self.unbound_of(job))
            helps = "remove the gates" if gated else "change the pod"
            return Verdict(Reason.ON_HOLD, job.pod_hold, {}, (helps,))
        return verdict

    def tell_why(self) -> None:
        """Put the reason for waiting on pods, if it changed in this pass and they were not refused.

        Each is told at least once, as the last scheduler's news may not have arrived.
        """
        writes = self.out.writes
        told = [
            (r.job_id, f"{r.verdict.reason}: {r.verdict.summary}", r.is_new, r.is_noted)
            for r in writes.reasons
        ]
        again = (t for t in writes.transitions if t.kind is Kind.REQUEUED)
        told += [(t.job_id, f"{t.reason}: {t.message}", True, True) for t in again]
        counts: dict[PodSetSpec, str] = {}
        for job_id, text, is_new, is_noted in told:
            job = self.scope.jobs.get(job_id)
            if job is not None and (is_new or not job.told):
                job.told = text
                pods = self.unbound_of(job)
                self.groups.waits(job, pods, shown(text), text)
                for pod in pods:
                    self._tell_waiting(pod, text)
                    if is_noted:
                        self._tell_failed(job, pod, text, counts)
        self.groups.tell_counts()

    def _tell_waiting(self, pod: PodFacts, text: str) -> None:
        if pod.uid not in self._told:
            job_id, key = self._places[pod.uid]
            self._set_condition(pod, shown(text), text, self.promised(job_id).get(key, ""))

    def _tell_failed(
        self, job: LiveJob, pod: PodFacts, text: str, counts: dict[PodSetSpec, str]
    ) -> None:
        """Emit the Event that people who know kube-scheduler look for.

        `counts`: nodes by filter for the pod sets reported earlier in this pass.
        """
        if pod.uid in self._told or pod.gated:
            return
        pod_set = job.request.pod_sets[self._places[pod.uid][1][0]]
        if pod_set not in counts and len(counts) < COUNTED:
            counts[pod_set] = self.by_filter(pod_set)
        nodes = counts.get(pod_set, "") if would_help(text.partition(":")[0]) else ""
        note = f"{text.rstrip('.')}. {nodes}." if nodes else text
        of = pod.namespace, pod.name, pod.uid
        self.out.effects.append(EmitEvent((), *of, FAILED_SCHEDULING, note, type="Warning"))

    def tell_scheduled(self, job: LiveJob, pod: LivePod) -> None:
        """Emit the Event that the pod has its node."""
        note = f"Successfully assigned {job.namespace}/{pod.name} to {pod.place.node}"
        of = job.namespace, pod.name, pod.uid
        self.out.effects.append(EmitEvent((), *of, "Scheduled", note, "Binding"))

    def _set_condition(self, pod: PodFacts, reason: str, text: str, node: str = "") -> None:
        if not pod.gated:  # the API server has already marked a gated pod
            to = (pod.namespace, pod.name, pod.uid)
            self.out.effects.append(PatchCondition((), *to, reason, text, nominated=node))

    def job_of(self, uid: str) -> LiveJob | None:
        """Return the job of a plain pod, if this scope has it."""
        return self.scope.jobs.get(self._places[uid][0]) if uid in self._places else None

    def stands_for(self, uid: str) -> tuple[LiveJob, PodKey] | None:
        """Return the job of a plain pod, if this scope has it, and which pod of the job it is."""
        job = self.job_of(uid)
        return (job, self._places[uid][1]) if job is not None else None

    def unbound_of(self, job: LiveJob) -> list[PodFacts]:
        """Return the plain pods of the job that wait for a place."""
        return [self.unbound[ref.uid] for ref in job.plain.values() if ref.uid in self.unbound]

    def _lost(self, facts: PodFacts, kind: Kind, reason: str, text: str, now: float) -> None:
        """End the pod's job if it waits, as the pod can no longer be bound."""
        job = self.job_of(facts.uid)
        if job is not None and _waits(job):
            self.requeueing.end(job, kind, reason, _of_gang(job, text), now)

    def _end_those_without_pod(self, now: float) -> None:
        """End waiting jobs that missed a pod in two looks.

        A pod that was deleted before this scheduler watched is never reported gone.
        """
        waiting = [job for job in self.scope.jobs.values() if _waits(job)]
        found = [job for job in waiting if len(self.unbound_of(job)) < len(job.plain)]
        for job in found:
            if job.id in self._missing:
                gone = (ref.name for ref in job.plain.values() if ref.uid not in self.unbound)
                text = _of_gang(job, _deleted(next(gone)))
                self.requeueing.end(job, Kind.CANCELLED, POD_DELETED, text, now)
        self._missing = {job.id for job in found}

    # --- jobs that hold a place -------------------------------------------------------------------
    def placed(self, facts: PodFacts) -> tuple[LiveJob, LivePod] | None:
        """Return the job and pod that a plain pod stands for, if it has a place."""
        job = self.job_of(facts.uid) if facts.owned else None
        pod = job.pods.get(self._places[facts.uid][1]) if job is not None else None
        if job is None or pod is None or (pod.lost and pod.state is P.RELEASED):
            return None
        return job, pod

    def bind_done(
        self, job: LiveJob, pod: LivePod, bind: Bind, outcome: CallOutcome, now: float
    ) -> None:
        """Take in the result of binding a plain pod. Whatever it is, the pod may still exist."""
        if outcome.result in (Result.FAILED, Result.NOT_SENT) and job.leaving is None:
            # The pod may be bound: keep its place until the API server answers.
            self._unanswered[job.effect_key(pod)] = now + BIND_AGAIN_S, bind
            return
        pod.in_flight = False
        if outcome.result == Result.BOUND:
            advance(self.out, job, pod, P.BOUND)
            self.tell_scheduled(job, pod)
        elif outcome.result == Result.TAKEN:
            self.taken(job, pod, outcome.node, now)
        elif outcome.result in (Result.GONE, Result.DELETING, Result.NEW_INCARNATION):
            release(self.out, job, pod)
            self.requeueing.requeue(job, POD_DELETED, _deleted(pod.name), (), now)
        elif job.leaving is None:
            text = f"Pod {pod.name} could not be bound to {pod.place.node}: {outcome.message}"
            first, nodes = self._refused.get(job.id, (text, ()))
            self._refused[job.id] = first, (*nodes, pod.place.node)
        if job.id in self._refused and not any(each.in_flight for each in job.pods.values()):
            # Only now is it known whether any pod of the gang was bound.
            text, nodes = self._refused.pop(job.id)
            self.requeueing.requeue(job, "BindingFailed", text, tuple(sorted(set(nodes))), now)
        if job.leaving is not None:
            self.leave.give_back(job, now)

    def _bind_again(self, bind: Bind, now: float) -> None:
        job_id, attempt, *key = cast(EffectKey, bind.key)
        job = self.scope.jobs.get(job_id)
        pod = job.pods.get((key[0], key[1])) if job is not None else None
        if job is None or pod is None or pod.attempt != attempt or not pod.in_flight:
            return
        if job.leaving is None:
            self.out.effects.append(bind)
        else:
            pod.in_flight = False
            self.leave.give_back(job, now)

    def taken(self, job: LiveJob, pod: LivePod, node: str, now: float) -> None:
        """Let go of a pod that somebody else bound; it stays."""
        release(self.out, job, pod)
        if job.leaving is None and job.state in HOLDING:
            self.requeueing.end(job, Kind.FAILED, BOUND_ELSEWHERE, _bound_to(pod.name, node), now)
        self.leave.settle(job)

    def makes_room(self, job: LiveJob, cause: Cause, why: Evidence, now: float) -> None:
        """Evict plain pods that are preempted or leave a drained node; their job ends with them."""
        pods = list(job.pods.values())
        self.leave.tell(job, pods, now)
        why += which(pods)
        step(self.out, job, Kind.FAILED, *cause, why, failures=job.failures.number)
        self.requeueing.leaves(job, JobEnded(job.id, succeeded=False), cause, now)

    def _leaves(self, job: LiveJob, last_word: JobEnded | JobRequeued, cause: Cause | None) -> None:
        """Take in that the job gives its places back.

        Waiting pods of a job that is over are deleted, or wait on for another job.
        """
        self._refused.pop(job.id, None)
        if job.pods or not isinstance(last_word, JobEnded):
            return
        cause = cause or Cause(CANCELLED, "Its job is over")
        waiting = self.unbound_of(job)
        if job.pod_gang and cause.reason in LOST_ONE:
            self._new.update(dict.fromkeys(pod.uid for pod in waiting))
            return
        for pod in waiting:
            self._delete(job.id, pod, cause)

    def _delete(self, job_id: str, pod: PodFacts, cause: Cause) -> None:
        """Delete a pod that waits although its job is over: it would wait for ever."""
        of = (job_id, 0, 0, 0), pod.namespace, pod.name, pod.uid  # of no attempt
        kind = "Normal" if cause.reason == CANCELLED else "Warning"
        self.out.effects.append(DeletePod(*of))
        if pod.uid not in self._deleting:
            self._deleting.add(pod.uid)
            self.out.effects.append(EmitEvent(*of, *cause, "Deleting", kind))


def _waits(job: LiveJob) -> bool:
    """Whether it is a waiting job of plain pods."""
    return bool(job.plain) and job.leaving is None and job.state in WAITING


def _gang_of(facts: PodFacts) -> Gang | None:
    """Return the gang that the pod belongs to."""
    name = members.gang_of(facts)
    return (facts.namespace, name) if name else None


def _is_unread(facts: PodFacts) -> bool:
    """Whether the pod's owner has yet to be read."""
    workload = workload_of(facts)
    return workload is not None and workload.wait is not None and not workload.wait.is_answer


def _is_another(job: LiveJob, facts: PodFacts, before: PodFacts | None) -> str:
    """Return why a waiting job's gang differs from the one taken up; "" = it does not.

    `before`: the pod as last known.
    """
    workload = workload_of(facts)
    if not job.pod_gang:
        return ""
    was, now = before and _levels(before), _levels(facts)
    if was is not None and now is not None and was != now:
        return f"Pod {facts.name} is to share other groups of the network than before"
    if workload is None:
        return ""
    if workload.wait is not None:
        return workload.wait.text.rstrip(".") if workload.wait.is_answer else ""
    what = f"{workload.kind} {workload.name}"
    if workload.gang != job.pod_gang:
        return f"Pod {facts.name} is of another gang by {what}"
    if workload.size != len(job.plain):
        pods = counted(workload.size, "pod", "pods")
        return f"{what} starts with {pods} now, not with {len(job.plain)}"
    return ""


def _levels(facts: PodFacts) -> tuple[object, ...] | None:
    """Return the network levels that others name for the pod; None = not known yet."""
    workload = workload_of(facts)
    if facts.plain is None or (workload is not None and workload.wait is not None):
        return None
    of_workload = ("", "", PodLevels())
    if workload is not None:
        of_workload = workload.required_level, workload.preferred_level, workload.of_group
    return facts.plain.levels, *of_workload


def _of_gang(job: LiveJob, text: str) -> str:
    """Return why a waiting job lost a pod, and what that means for the rest of the gang."""
    if not job.pod_gang:
        return text
    return f"{text}. What is left of gang {job.pod_gang} waits for another pod"


def _says(facts: PodFacts) -> tuple[object, ...]:
    """Return what the pod's owner can change while it waits, and what rules select it by."""
    return facts.plain, facts.says, facts.labels, facts.annotations, facts.device_claims


def _age(facts: PodFacts) -> tuple[float, str]:
    return facts.plain.created_at if facts.plain else 0.0, facts.uid


def _deleted(name: str) -> str:
    return f"Pod {name} was deleted"


def _bound_to(name: str, node: str) -> str:
    return f"Pod {name} was bound to node {node} by another scheduler"
