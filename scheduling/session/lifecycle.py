"""From placement to the end: how jobs follow their pods, and give their places back.

Decisions of the engine, facts of the watch, results of effects and the passing of time come in;
deltas, rows to write and effects go to the outbox. The places of a job that leaves are given back
to the engine only when no pod of it holds a device any more: a device is never held twice.
"""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import cast

from scheduling.engine.decisions import Preempted, RunLimit, Started, Waiting
from scheduling.engine.deltas import (
    Checkpointed,
    JobEnded,
    JobRequeued,
    PodEnded,
)
from scheduling.engine.states import HOLDING, TERMINAL, WAITING, JobState, after
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import Policy
from scheduling.kube.seam import Bind, CreateAndBind, DeletePod, Effect, Outcome, PodFacts, Result
from scheduling.models.jobs import PlacementState as P
from scheduling.session import pods as kant_pods
from scheduling.session.foreign import ForeignPods
from scheduling.session.live import (
    OVER,
    PREEMPTED,
    EffectKey,
    LiveJob,
    LivePod,
    Note,
    Outbox,
    PodStep,
    ReasonChange,
    Transition,
)

log = logging.getLogger(__name__)

# A deletion that nobody confirmed is asked for again: the answer or the watch event was lost.
ASK_AGAIN_S = 20.0
Evidence = tuple[tuple[str, int | float | str], ...]
# Columns of a job that is no longer placed: its wait goes on (metrics.md, JWTD).
UNPLACED: dict[str, None] = {"admitted_at": None, "bound_at": None, "running_at": None}


class Lifecycle:
    """All jobs of a cluster that wait, hold devices or have pods that do."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.policy = Policy()
        self.jobs: dict[str, LiveJob] = {}
        self.admitted: dict[str, LiveJob] = {}  # placed, not all of it running yet
        self.leaving: dict[str, LiveJob] = {}
        self.evicted: list[tuple[LiveJob, LivePod]] = []  # pods that go while their job goes on
        self.foreign = ForeignPods()
        self.out = Outbox()

    # --- the engine decided ---------------------------------------------------------------------
    def started(self, decision: Started, gpu_models: dict[str, str], now: float) -> None:
        """Pods got their place: write them as intents, then create and bind them."""
        job = self.jobs[decision.job_id]
        if job.leaving is not None:
            # The engine hears that a job leaves when all of it is gone; until then it may still
            # find places for pods that are missing. They are not taken.
            ended = (PodEnded(job.id, p.pod_set, p.ordinal) for p in decision.placements)
            self.out.deltas.extend(ended)
            return
        if job.state in WAITING:
            job.attempt += 1
            job.admitted_at = now
            job.bound = False
            self._step(job, Kind.ADMITTED, attempt=job.attempt, not_before=None)
            self.admitted[job.id] = job
        elif job.replaced.intersection((p.pod_set, p.ordinal) for p in decision.placements):
            job.attempt += 1
        job.complete = decision.complete
        for place in decision.placements:
            pod = kant_pods.new_pod(job, place, gpu_models.get(place.node, ""))
            job.add(pod)
            self.out.writes.intents.append((job, pod))
            self.out.effects.append(kant_pods.create_and_bind(job, pod, self.namespace))

    def quota_changed(self, job_id: str, kind: Kind) -> None:
        job = self.jobs.get(job_id)
        wanted = JobState.PENDING if kind == Kind.QUOTA_RESERVED else JobState.QUOTA_RESERVED
        if job is not None and job.state == wanted:
            self._step(job, kind)

    def waiting(self, decision: Waiting) -> None:
        """Keep the reason of a waiting job; an event only when the reason itself changed."""
        job = self.jobs.get(decision.job_id)
        if job is None or job.state not in WAITING:
            return
        verdict = decision.verdict
        self.out.writes.reasons.append(
            ReasonChange(job.id, job.state, verdict, verdict.reason != job.reason)
        )
        job.reason = verdict.reason

    def lost(self, keys: Iterable[tuple[str, int, int]], now: float) -> None:
        """The engine reports pods whose node or device is gone or bad."""
        nodes: dict[str, list[str]] = {}
        for job_id, pod_set, ordinal in keys:
            job = self.jobs.get(job_id)
            pod = job.pods.get((pod_set, ordinal)) if job else None
            if pod is not None and pod.state not in OVER:
                pod.lost = True
                nodes.setdefault(job_id, []).append(pod.place.node)
        for job_id, names in nodes.items():
            blamed = tuple(sorted(set(names)))
            text = f"Node {', '.join(blamed)} or a GPU of it failed"
            self.requeue(self.jobs[job_id], "NodeLost", text, blamed, now)

    def preempted(self, decision: Preempted, now: float) -> None:
        """A job, or some of its pods, must make room for another job."""
        job = self.jobs.get(decision.job_id)
        if job is None or job.leaving is not None or job.state not in HOLDING:
            return
        text = f"Preempted ({decision.kind}) to make room for job {decision.by}"
        why = _record_of(decision)
        if decision.whole:
            job.front = False
            self._step(job, Kind.PREEMPTED, PREEMPTED, text, why, front=False, **UNPLACED)
            job.reason = PREEMPTED
            self._leave(job, JobRequeued(job.id, 0.0), now)
            return
        job.complete = False
        self.out.writes.notes.append(Note(job.id, job.state, PREEMPTED, text, why))
        for key in decision.pods:
            pod = job.pods.get(key)
            if pod is not None and pod.state not in OVER:
                pod.preempted = text
                self.evicted.append((job, pod))
        self._evict(now)

    def run_limit(self, decision: RunLimit, now: float) -> None:
        """End a job that ran longer than it may; tell once that the limit comes near."""
        job = self.jobs.get(decision.job_id)
        if job is None or job.leaving is not None or job.state not in HOLDING:
            return
        ends = datetime.fromtimestamp(decision.ends_at, UTC)
        if decision.exceeded:
            text = f"Its run-time limit ended at {ends:%Y-%m-%d %H:%M:%S} UTC"
            self._end(job, Kind.FAILED, "RunLimitExceeded", text, now)
        else:
            text = f"Its run-time limit ends at {ends:%Y-%m-%d %H:%M:%S} UTC"
            self.out.writes.notes.append(Note(job.id, job.state, "RunLimitNear", text))

    # --- the cluster told -----------------------------------------------------------------------
    def pod_seen(self, facts: PodFacts, now: float) -> None:
        found = self._find(facts)
        if found is None:
            self.foreign.seen(facts, self.out)
            return
        job, pod = found
        pod.uid = facts.uid
        saved_at = kant_pods.checkpointed_at(facts, now)
        if saved_at is not None and saved_at > job.saved_at:
            job.saved_at = saved_at
            self.out.deltas.append(Checkpointed(job.id, saved_at))
        if facts.node and facts.node != pod.place.node:
            where = f"Pod {pod.name} was bound to {facts.node} instead of {pod.place.node}"
            self.requeue(job, "BoundElsewhere", where, (), now)
        elif facts.phase == "Running":
            self._advance_pod(job, pod, P.RUNNING)
        elif facts.phase == "Succeeded":
            self._advance_pod(job, pod, P.SUCCEEDED)
        elif facts.phase == "Failed":
            self._pod_failed(job, pod, facts, now)
            return
        elif facts.node:
            self._advance_pod(job, pod, P.BOUND)
        self.follow(job, now)

    def pod_gone(self, facts: PodFacts, now: float) -> None:
        found = self._find(facts)
        if found is None:
            self.foreign.gone(facts.uid, self.out)
            return
        job, pod = found
        if pod.uid and pod.uid != facts.uid:
            return
        if facts.finished:
            self.pod_seen(facts, now)
        if pod.state in OVER:
            return
        self.vanished(job, pod, now)

    def vanished(self, job: LiveJob, pod: LivePod, now: float) -> None:
        """The API has the pod no longer, and it had not finished."""
        self._release(job, pod)
        if pod.preempted:
            return
        text = f"Pod {pod.name} disappeared from node {pod.place.node}"
        self.requeue(job, "PodLost", text, (), now)
        self._settle(job)

    def effect_done(self, effect: Effect, outcome: Outcome, now: float) -> None:
        if not isinstance(effect, CreateAndBind | Bind | DeletePod):
            return
        job_id, attempt, pod_set, ordinal = cast(EffectKey, effect.key)
        job = self.jobs.get(job_id)
        pod = job.pods.get((pod_set, ordinal)) if job else None
        if not job or not pod or pod.attempt != attempt:
            return
        if isinstance(effect, DeletePod):
            if outcome.result == Result.GONE and pod.state not in OVER:
                self._release(job, pod)
                self._settle(job)
            elif outcome.result not in (Result.DONE, Result.GONE):
                log.warning("cannot delete pod %s: %s", pod.name, outcome.message)
            return
        pod.uid = pod.uid or outcome.uid
        if outcome.result == Result.NOT_SENT and job.leaving is None:
            # The lease ran out on the way. If it is gone for good, the next write finds that.
            self.out.effects.append(effect)
            return
        pod.in_flight = False
        if outcome.result == Result.BOUND:
            self._advance_pod(job, pod, P.BOUND)
            self.follow(job, now)
        elif job.leaving is None:
            text = (
                f"Pod {pod.name} could not be bound to {pod.place.node}: "
                f"{outcome.message or outcome.result}"
            )
            self.requeue(job, "BindingFailed", text, (pod.place.node,), now)
        if job.leaving is not None:
            self._give_back(job, now)

    # --- time and people ------------------------------------------------------------------------
    def overdue(self, now: float) -> None:
        """Release gangs that did not all start in time; repeat deletions nobody confirmed."""
        for job in list(self.admitted.values()):
            if job.request.gang and now - job.admitted_at > self.policy.gang_timeout_s:
                running = job.tally[P.RUNNING] + job.tally[P.SUCCEEDED]
                text = (
                    f"Only {running} of {len(job.pods)} pods ran "
                    f"{self.policy.gang_timeout_s:.0f} s after the placement"
                )
                blamed = {
                    p.place.node for p in job.pods.values() if p.state in (P.INTENDED, P.BOUND)
                }
                self.requeue(job, "GangTimeout", text, tuple(sorted(blamed)), now)
        for job in list(self.leaving.values()):
            self._give_back(job, now)
        self._evict(now)

    def cancelled(self, job: LiveJob, version: int, now: float) -> None:
        """The database says CANCELLED: give back whatever the job holds."""
        job.state, job.version = JobState.CANCELLED, version
        self._leave(job, JobEnded(job.id, succeeded=False), now)

    def resume_leaving(self, job: LiveJob, now: float) -> None:
        """A job found at start whose pods were being deleted when the last scheduler stopped."""
        if job.state in TERMINAL:
            done = job.state == JobState.SUCCEEDED
            self._leave(job, JobEnded(job.id, succeeded=done), now)
        else:
            self._leave(job, JobRequeued(job.id, job.not_before, front=job.front), now)

    def requeue(
        self, job: LiveJob, reason: str, message: str, blamed: tuple[str, ...], now: float
    ) -> None:
        """A placement failed: release everything and wait again, or fail after too many tries."""
        if job.leaving is not None or job.state not in HOLDING:
            return
        job.failures += 1
        if job.failures >= self.policy.max_attempts:
            text = f"{message}. Placement {job.failures} of {self.policy.max_attempts} that failed"
            self._end(job, Kind.FAILED, reason, text, now)
            return
        wait = self.policy.backoff_base_s * 2 ** (job.failures - 1)
        job.not_before = now + min(wait, self.policy.backoff_cap_s)
        job.front = job.state == JobState.RUNNING
        self._step(
            job,
            Kind.REQUEUED,
            reason,
            message,
            failures=job.failures,
            not_before=job.not_before,
            front=job.front,
            **UNPLACED,
        )
        job.reason = reason
        for pod in job.pods.values():
            if pod.state in OVER and pod.uid:
                self._delete(job, pod, now)
        self._leave(job, JobRequeued(job.id, job.not_before, blamed, job.front), now)

    # --- how a job follows its pods -------------------------------------------------------------
    def _pod_failed(self, job: LiveJob, pod: LivePod, facts: PodFacts, now: float) -> None:
        if job.leaving is not None or pod.preempted:
            self._release(job, pod)  # it was killed by its deletion
            self._settle(job)
            return
        text = kant_pods.failure_text(facts)
        self._advance_pod(job, pod, P.FAILED, text)
        if kant_pods.was_rejected(facts):
            self.requeue(job, facts.reason or "Rejected", text, (pod.place.node,), now)
        elif job.state in HOLDING:
            self._end(job, Kind.FAILED, "PodFailed", text, now)

    def follow(self, job: LiveJob, now: float) -> None:
        """Lift the job to what its pods have reached together."""
        if job.leaving is not None:
            self._settle(job)
            return
        if job.state not in HOLDING:
            return
        gang, done, total = job.request.gang, job.tally[P.SUCCEEDED], len(job.pods)
        up = job.tally[P.RUNNING] + done
        whole = gang or job.complete
        if whole and not job.bound and job.tally[P.INTENDED] == 0:
            job.bound = True
            self.out.writes.bound_jobs.append(job.id)
            if gang:
                self.out.writes.held.extend(job.pods.values())
        if whole and done == total:
            self._end(job, Kind.SUCCEEDED, "", "", now)
        elif job.state == JobState.ADMITTED and (up == total if gang else up):
            self._step(job, Kind.RUNNING, failures=0)
            job.failures = 0
            self.admitted.pop(job.id, None)

    def _advance_pod(self, job: LiveJob, pod: LivePod, to: P, message: str = "") -> None:
        """Move a pod forward; a late or repeated report changes nothing."""
        order = (P.INTENDED, P.BOUND, P.RUNNING, P.SUCCEEDED, P.FAILED, P.RELEASED)
        if pod.state in OVER or order.index(to) <= order.index(pod.state):
            return
        alone = not job.request.gang or job.bound
        if alone and pod.state == P.INTENDED and to != P.RELEASED:
            self.out.writes.held.append(pod)
        self.out.writes.steps.append(PodStep(pod, pod.state, to, message))
        job.tally[pod.state] -= 1
        job.tally[to] += 1
        pod.state = to
        if to in OVER and job.leaving is None:
            self.out.deltas.append(PodEnded(job.id, *pod.key))

    def _release(self, job: LiveJob, pod: LivePod) -> None:
        pod.in_flight = False
        self._advance_pod(job, pod, P.RELEASED, pod.preempted)
        if pod.preempted and job.leaving is None:
            # It is placed again: a job whose pods are counted must not count it as ended.
            job.replaced.add(pod.key)
            job.forget(pod)

    # --- leaving --------------------------------------------------------------------------------
    def _end(self, job: LiveJob, kind: Kind, reason: str, message: str, now: float) -> None:
        self._step(job, kind, reason, message, failures=job.failures)
        self._leave(job, JobEnded(job.id, succeeded=kind == Kind.SUCCEEDED), now)

    def _leave(self, job: LiveJob, last_word: JobEnded | JobRequeued, now: float) -> None:
        job.leaving = last_word
        self.admitted.pop(job.id, None)
        self.leaving[job.id] = job
        self._give_back(job, now)

    def _give_back(self, job: LiveJob, now: float) -> None:
        """Delete what still holds devices; what never came to be is free at once."""
        for pod in job.pods.values():
            if pod.state in OVER or pod.in_flight:
                continue
            if pod.state == P.INTENDED and not pod.uid:
                self._release(job, pod)
            elif pod.delete_sent_at is None:
                self._delete(job, pod, now)
            elif now - pod.delete_sent_at > ASK_AGAIN_S:
                self._delete(job, pod, now)
                if pod.lost:
                    # A dead node confirms nothing. The job may go on; the pod counts as a foreign
                    # one until the API has forgotten it.
                    self.foreign.adopt(pod, self.out)
                    self._release(job, pod)
        self._settle(job)

    def _evict(self, now: float) -> None:
        """Delete preempted pods of jobs that go on, until they are gone."""
        self.evicted = [
            (job, pod)
            for job, pod in self.evicted
            if pod.state not in OVER and job.leaving is None and job.id in self.jobs
        ]
        for job, pod in self.evicted:
            asked = pod.delete_sent_at
            if not pod.in_flight and (asked is None or now - asked > ASK_AGAIN_S):
                self._delete(job, pod, now)

    def _settle(self, job: LiveJob) -> None:
        """Tell the engine once nothing is held any more."""
        if job.leaving is None or not job.is_over():
            return
        self.out.deltas.append(job.leaving)
        del self.leaving[job.id]
        if job.state in TERMINAL:
            del self.jobs[job.id]
            return
        job.leaving = None
        job.pods = {}
        job.replaced = set()
        job.tally.clear()

    def _delete(self, job: LiveJob, pod: LivePod, now: float) -> None:
        pod.delete_sent_at = now
        self.out.effects.append(DeletePod(job.effect_key(pod), self.namespace, pod.name, pod.uid))

    def _find(self, facts: PodFacts) -> tuple[LiveJob, LivePod] | None:
        """The job and pod that a pod of the API stands for, if a placement of now does."""
        who = kant_pods.identity(facts.labels) if facts.owned else None
        job = self.jobs.get(who[0]) if who else None
        pod = job.pods.get(who[2]) if who and job else None
        if not who or not job or not pod or pod.attempt != who[1]:
            return None
        return None if pod.lost and pod.state in OVER else (job, pod)

    def _step(
        self,
        job: LiveJob,
        kind: Kind,
        reason: str = "",
        message: str = "",
        evidence: Evidence = (),
        /,
        **columns: object,
    ) -> None:
        to, more = after(job.state, kind), tuple(columns.items())
        self.out.writes.transitions.append(
            Transition(job.id, kind, job.state, to, job.version, reason, message, more, evidence)
        )
        job.state, job.version = to, job.version + 1


def _record_of(decision: Preempted) -> Evidence:
    """For whom, why, what it cost this job and all victims together, and what each other choice
    of victims would have cost, the cheapest first."""
    record: dict[str, int | float | str] = {
        "by": decision.by,
        "kind": decision.kind.value,
        "pods": len(decision.pods),
        "cost_gpu_s": round(decision.cost_gpu_s, 1),
        "total_gpu_s": round(decision.total_gpu_s, 1),
        "alternatives": "none: by GPU count nobody else would have made room",
    }
    if decision.examined:
        record["alternatives"] = f"none: {decision.examined} others tried did not make room"
    if decision.alternatives:
        record["alternative_gpu_s"] = round(decision.alternatives[0].cost_gpu_s, 1)
        record["alternatives"] = "; ".join(
            f"{a.choice}: {a.cost_gpu_s - decision.total_gpu_s:+.1f} GPU-s, {a.jobs} jobs"
            for a in decision.alternatives
        )
    return tuple(record.items())
