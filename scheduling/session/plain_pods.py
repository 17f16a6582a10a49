"""Pods that somebody else made and that name Kant as their scheduler: each is a job of one pod.

Such a pod is offered to the database, which makes a job of it or says why not
(services/plain_pods.py). Kant binds the pod and never makes it. So a pod that has been bound, or
may have been, cannot be placed again: where another job would wait again, its job ends
(docs/decisions/0015).
"""

from itertools import islice
from typing import cast

from scheduling.engine.deltas import JobEnded, JobRequeued
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.verdict import Reason, Verdict
from scheduling.kube.seam import (
    Bind,
    DeletePod,
    EmitEvent,
    Outcome,
    PatchCondition,
    PodFacts,
    Result,
)
from scheduling.models.jobs import CANCELLED, POD_FAILED, PREEMPTED
from scheduling.models.jobs import PlacementState as P
from scheduling.session import pods as kant_pods
from scheduling.session.live import Cause, EffectKey, LiveJob, LivePod, Offer
from scheduling.session.requeueing import Requeueing
from scheduling.session.steps import Evidence, advance, release, step, which

AT_ONCE = 100  # pods offered in one pass
BIND_AGAIN_S = 2.0  # after so long a binding is repeated of which nobody knows how it ended
BOUND_ELSEWHERE, POD_DELETED = "BoundElsewhere", "PodDeleted"
KEY = (0, 0)  # of the only pod


class PlainPods(Requeueing):
    """`unbound` are the plain pods that wait for a place, by uid, those offered last at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.unbound: dict[str, PodFacts] = {}
        self._new: dict[str, None] = {}
        self._told: dict[str, Cause] = {}
        self._deleting: set[str] = set()
        self._missing: set[str] = set()
        self._unanswered: dict[str, tuple[float, Bind]] = {}  # by job

    # --- pods without a place ---------------------------------------------------------------------
    def keep(self, facts: PodFacts) -> None:
        """Remember the pod as long as it waits for a place."""
        if facts.plain is not None and not facts.deleting:
            self.unbound[facts.uid] = facts
        else:
            self.forget(facts.uid)

    def forget(self, uid: str) -> None:
        """The pod waits no longer for a place."""
        if self.unbound.pop(uid, None) is not None:
            self._told.pop(uid, None)
            self._deleting.discard(uid)

    def unplaced_seen(self, facts: PodFacts, now: float) -> None:
        """A pod for which no placement of now stands."""
        before = self.unbound.get(facts.uid)
        self.keep(facts)
        job = self._waiting(facts.uid)
        if facts.uid in self.unbound:
            is_news = facts.uid not in self.jobs or before is None or before.plain != facts.plain
            if is_news and facts.uid not in self._deleting:
                self._new[facts.uid] = None
            return
        if job is not None and facts.node:
            self._end(job, Kind.FAILED, BOUND_ELSEWHERE, _bound_to(facts.name, facts.node), now)
        elif job is not None and facts.finished:
            self._end(job, Kind.FAILED, POD_FAILED, kant_pods.failure_text(facts), now)
        elif job is not None:
            self._end(job, Kind.CANCELLED, POD_DELETED, _deleted(facts.name), now)
        self.foreign.seen(facts, self.out)

    def unplaced_gone(self, facts: PodFacts, now: float) -> None:
        """Such a pod is gone from the API."""
        job = self._waiting(facts.uid)
        if job is not None:
            self._end(job, Kind.CANCELLED, POD_DELETED, _deleted(facts.name), now)
        self.foreign.gone(facts.uid, self.out)

    def look_after(self, *, takes_up: bool, again: bool, now: float) -> None:
        """Offer what is new; `again`: from time to time also what was refused, and those whose job
        is over. `takes_up`: whether it is for this scope to do so."""
        for job_id, (at, bind) in list(self._unanswered.items()):
            if now >= at:
                del self._unanswered[job_id]
                self._bind_again(bind, now)
        if again:
            self._end_those_without_pod(now)
            jobless = (uid for uid in self.unbound if uid not in self.jobs)
            self._new.update(dict.fromkeys(islice(jobless, AT_ONCE)))
        waiting = [self.unbound[uid] for uid in self._new if uid in self.unbound and takes_up]
        waiting.sort(key=_age)
        for facts in waiting[:AT_ONCE]:
            self.unbound[facts.uid] = self.unbound.pop(facts.uid)
            self.out.writes.offers.append(Offer(facts))
        self._new = dict.fromkeys(facts.uid for facts in waiting[AT_ONCE:])

    @property
    def has_more(self) -> bool:
        """There are pods to offer that the last pass left for the next one."""
        return bool(self._new)

    def answered(self, offers: list[Offer]) -> None:
        """What the database made of them; who was refused is told, once."""
        for offer in offers:
            pod, refusal = offer.pod, offer.refusal
            if offer.over is not None:
                self._delete(pod, offer.over)
            elif refusal is None:
                self._told.pop(pod.uid, None)
            elif self._told.get(pod.uid) != refusal and pod.uid in self.unbound:
                self._told[pod.uid] = refusal
                event = EmitEvent((), pod.namespace, pod.name, pod.uid, *refusal, type="Warning")
                self.out.effects.append(event)
                self._set_condition(pod, *refusal)

    # --- jobs that wait ---------------------------------------------------------------------------
    def verdict_on(self, job: LiveJob, verdict: Verdict) -> Verdict:
        """What the engine says of a waiting job; it knows that a job is held, not why."""
        if verdict.reason is Reason.ON_HOLD and job.pod_hold and not job.held:
            pod = self.unbound.get(job.id)
            helps = "remove the gates" if pod is not None and pod.gated else "change the pod"
            return Verdict(Reason.ON_HOLD, job.pod_hold, {}, (helps,))
        return verdict

    def tell_why(self) -> None:
        """Put on the pods why they wait, where the reason changed in this pass."""
        writes = self.out.writes
        told = [
            (r.job_id, f"{r.verdict.reason}: {r.verdict.summary}")
            for r in writes.reasons
            if r.is_new
        ]
        again = (t for t in writes.transitions if t.kind is Kind.REQUEUED)
        told += [(t.job_id, f"{t.reason}: {t.message}") for t in again]
        for job_id, text in told:
            if (pod := self.unbound.get(job_id)) is not None:
                self._set_condition(pod, "Unschedulable", text)

    def _set_condition(self, pod: PodFacts, reason: str, text: str) -> None:
        if not pod.gated:  # of a gated one the API server has said so
            to = (pod.namespace, pod.name, pod.uid)
            self.out.effects.append(PatchCondition((), *to, reason, text))

    def _waiting(self, uid: str) -> LiveJob | None:
        """The job of the pod, while it waits."""
        job = self.jobs.get(uid)
        if job is None or job.plain is None or job.leaving is not None:
            return None
        return job if job.state in WAITING else None

    def _end_those_without_pod(self, now: float) -> None:
        """End waiting jobs whose pods were not there in two looks: a pod that was deleted before
        this scheduler watched is never reported gone."""
        found = [
            job for uid in self.jobs.keys() - self.unbound.keys() if (job := self._waiting(uid))
        ]
        for job in found:
            if job.id in self._missing and job.plain is not None:
                self._end(job, Kind.CANCELLED, POD_DELETED, _deleted(job.plain.name), now)
        self._missing = {job.id for job in found}

    # --- jobs that hold a place -------------------------------------------------------------------
    def placed(self, facts: PodFacts) -> tuple[LiveJob, LivePod] | None:
        """The job and pod that a plain pod stands for, if it has a place."""
        job = self.jobs.get(facts.uid) if facts.owned else None
        pod = job.pods.get(KEY) if job is not None and job.plain is not None else None
        if job is None or pod is None or (pod.lost and pod.state is P.RELEASED):
            return None
        return job, pod

    def bind_done(
        self, job: LiveJob, pod: LivePod, bind: Bind, outcome: Outcome, now: float
    ) -> None:
        """How the binding of a plain pod ended; the pod is there or not, whatever that was."""
        if outcome.result in (Result.FAILED, Result.NOT_SENT) and job.leaving is None:
            # Perhaps it is bound: its place is kept until the API server answers.
            self._unanswered[job.id] = now + BIND_AGAIN_S, bind
            return
        pod.in_flight = False
        if outcome.result == Result.BOUND:
            advance(self.out, job, pod, P.BOUND)
        elif outcome.result == Result.TAKEN:
            self.taken(job, pod, outcome.node, now)
        elif outcome.result in (Result.GONE, Result.DELETING, Result.NEW_INCARNATION):
            release(self.out, job, pod)
            self.requeue(job, POD_DELETED, _deleted(pod.name), (), now)
        elif job.leaving is None:
            text = f"Pod {pod.name} could not be bound to {pod.place.node}: {outcome.message}"
            self.requeue(job, "BindingFailed", text, (pod.place.node,), now)
        if job.leaving is not None:
            self.leave.give_back(job, now)

    def _bind_again(self, bind: Bind, now: float) -> None:
        job_id, attempt, *_ = cast(EffectKey, bind.key)
        job = self.jobs.get(job_id)
        pod = job.pods.get(KEY) if job is not None else None
        if job is None or pod is None or pod.attempt != attempt or not pod.in_flight:
            return
        if job.leaving is None:
            self.out.effects.append(bind)
        else:
            pod.in_flight = False
            self.leave.give_back(job, now)

    def taken(self, job: LiveJob, pod: LivePod, node: str, now: float) -> None:
        """Somebody else bound the pod: it is theirs, and stays."""
        release(self.out, job, pod)
        if job.leaving is None and job.state in HOLDING:
            self._end(job, Kind.FAILED, BOUND_ELSEWHERE, _bound_to(pod.name, node), now)
        self.leave.settle(job)

    def makes_room(self, job: LiveJob, text: str, why: Evidence, now: float) -> None:
        """A preempted plain pod is evicted, and its job ends with it."""
        pods = list(job.pods.values())
        self.leave.tell(job, pods, now)
        job.reason = PREEMPTED
        why += which(pods)
        step(self.out, job, Kind.FAILED, PREEMPTED, text, why, failures=job.failures.number)
        self._leave(job, JobEnded(job.id, succeeded=False), Cause(PREEMPTED, text), now)

    def requeue(
        self, job: LiveJob, reason: str, message: str, blamed: tuple[str, ...], now: float
    ) -> None:
        """A plain pod waits again only if it was certainly not bound."""
        unbound = all(p.state is P.INTENDED and not p.in_flight for p in job.pods.values())
        if job.plain is None or unbound:
            super().requeue(job, reason, message, blamed, now)
        elif job.leaving is None and job.state in HOLDING:
            if reason in ("PodEvicted", "PodLost", POD_DELETED):
                self._end(job, Kind.CANCELLED, POD_DELETED, message, now)
            else:
                self._end(job, Kind.FAILED, reason, message, now)

    def _leave(
        self, job: LiveJob, last_word: JobEnded | JobRequeued, cause: Cause | None, now: float
    ) -> None:
        waits = self.unbound.get(job.id) if not job.pods else None
        super()._leave(job, last_word, cause, now)
        if waits is not None and isinstance(last_word, JobEnded):
            self._delete(waits, cause or Cause(CANCELLED, "Its job is over"))

    def _delete(self, pod: PodFacts, cause: Cause) -> None:
        """A pod that waits and whose job is over would wait for ever."""
        of = (pod.uid, 0, *KEY), pod.namespace, pod.name, pod.uid
        kind = "Normal" if cause.reason == CANCELLED else "Warning"
        self.out.effects.append(DeletePod(*of))
        if pod.uid not in self._deleting:
            self._deleting.add(pod.uid)
            self.out.effects.append(EmitEvent(*of, *cause, "Deleting", kind))


def _age(facts: PodFacts) -> tuple[float, str]:
    return facts.plain.created_at if facts.plain else 0.0, facts.uid


def _deleted(name: str) -> str:
    return f"Pod {name} was deleted"


def _bound_to(name: str, node: str) -> str:
    return f"Pod {name} was bound to node {node} by another scheduler"
