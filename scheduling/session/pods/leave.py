"""Giving places back: jobs that leave, and pods that leave while their job continues.

Deletions are repeated until the API confirms them. Only then, when nothing is held any more, is the
engine told: no device is ever held twice.
"""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from scheduling.engine.deltas import JobEnded, JobRequeued, PodEnded, PodRequeued
from scheduling.engine.states import TERMINAL, JobState
from scheduling.engine.verdict import counted
from scheduling.kube.seam import DRAIN, PREEMPTION, Annotate, DeletePod, EmitEvent, EvictPod
from scheduling.models.jobs import CANCELLED, DRAINED, MOVED, PREEMPTED, RESIZED, RUN_LIMIT
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.live import (
    OVER,
    Cause,
    KeptPod,
    LiveJob,
    LivePod,
    Note,
    Notice,
    Outbox,
    PodKey,
    PodLeaves,
    PodStep,
)
from scheduling.session.pods.foreign import ForeignPods
from scheduling.session.pods.pod import CHECKPOINT_BY
from scheduling.session.pods.steps import release

# An unconfirmed deletion is sent again after this many seconds: its answer or watch event was lost.
ASK_AGAIN_S = 20.0

EVICT_AGAIN_S = 2.0
# Reasons for which the engine made pods leave that could have stayed.
OWN_CHOICE = frozenset({PREEMPTED, MOVED})
# Reasons for which healthy jobs leave: disruption budgets apply.
SPARED = frozenset({PREEMPTED, DRAINED, MOVED})


class Leaving:
    """`known`: all jobs of the cluster; `jobs`: those of them that leave."""

    def __init__(self, known: dict[str, LiveJob], out: Outbox) -> None:
        self.jobs: dict[str, LiveJob] = {}
        self.foreign = ForeignPods()
        self._known = known
        self._out = out
        self._pods: list[tuple[LiveJob, LivePod]] = []

    def job(
        self, job: LiveJob, last_word: JobEnded | JobRequeued, cause: Cause | None, now: float
    ) -> None:
        """Make the whole job leave. `last_word` is what the engine is told once it is gone.

        `cause` None: the job began to leave before this scheduler led.
        """
        for pod in job.pods.values():
            pod.cause = pod.cause or cause
        if cause is not None:
            job.reason = cause.reason
        job.leaving = last_word
        self.jobs[job.id] = job
        if isinstance(last_word, JobEnded) and not _is_evicted(job):
            for pod in job.pods.values():
                pod.notice = None  # nothing needs to be saved any more
        self.give_back(job, now)

    def tell(self, job: LiveJob, pods: Iterable[LivePod], now: float) -> None:
        """Warn running pods to save their work, if the job asks for that.

        Pods that have to go stay until they report that they saved, or until the time is up.
        """
        self._tell(job, (pod for pod in pods if pod.leaving is None), now)

    def tell_again(self, job: LiveJob, now: float) -> None:
        """Warn pods found at start that leave alone, if the last scheduler did not get to it."""
        leave = (p for p in job.pods.values() if _has_to_leave(p) or p.reason == RESIZED)
        self._tell(job, leave, now)

    def _tell(self, job: LiveJob, pods: Iterable[LivePod], now: float) -> None:
        told = [pod for pod in pods if pod.state == P.RUNNING and pod.notice is None]
        if not job.notice_s or not told:
            return
        by = float(math.ceil(now + job.notice_s))
        notice = Notice(now, by)
        until = f"{datetime.fromtimestamp(by, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for pod in told:
            pod.notice = notice if job.request.gang else Notice(now, by)
            note = {CHECKPOINT_BY: until}
            key = job.effect_key(pod)
            self._out.effects.append(Annotate(key, job.namespace, pod.name, pod.uid, note))
        pods_told = counted(len(told), "pod was told to save its", "pods were told to save their")
        text = f"{pods_told} work by {until}"
        more = (("pods", len(told)), ("checkpoint_by", until))
        self._out.writes.notes.append(Note(job.id, job.state, "CheckpointNotice", text, more))

    def was_told(self, job: LiveJob, pod: LivePod, by: float, now: float) -> None:
        """Note that the last scheduler warned this pod to save its work.

        A person may have done so instead, but that gives no more time.
        """
        if pod.notice is None and job.notice_s:
            by = min(by, now + job.notice_s + 1)
            shared = (p.notice for p in job.pods.values() if p.notice and job.request.gang)
            # `by` was rounded up to a second.
            pod.notice = next(shared, None) or Notice(by - job.notice_s - 1, by)

    def pods(
        self, job: LiveJob, leaves: Iterable[tuple[LivePod, PodLeaves]], cause: Cause, now: float
    ) -> None:
        """Make these pods leave while the job continues.

        They are placed again as long as the job misses pods. `leaves` has, with each pod, what the
        engine is told once it is gone.
        """
        for pod, last_word in leaves:
            pod.leaving, pod.cause, (pod.reason, pod.why) = last_word, cause, cause
            self._pods.append((job, pod))
            if pod.state in (P.BOUND, P.RUNNING):
                # Otherwise the next scheduler would take its end for a failure.
                self._out.writes.steps.append(PodStep(pod, pod.state, pod.state, pod.why))
            self._remove(job, pod, now)
        job.complete = job.has_all()

    def resume(self, job: LiveJob) -> None:
        """Resume deleting pods, found at start, whose job continues without them."""
        for pod in job.pods.values():
            if pod.why and pod.state not in OVER:
                pod.leaving = PodRequeued(job.id, *pod.key, not_before=0.0)
                if pod.reason in OWN_CHOICE:
                    pod.leaving = PodEnded(job.id, *pod.key)
                self._pods.append((job, pod))

    def sweep(self, now: float) -> list[LiveJob]:
        """Continue with all leaving pods; return the jobs that lost pods and continue."""
        for job in list(self.jobs.values()):
            self.give_back(job, now)
        alone = [(j, p) for j, p in self._pods if j.leaving is None and j.id in self._known]
        for job, pod in alone:
            self._remove(job, pod, now)
        self._pods = [(job, pod) for job, pod in alone if pod.state not in OVER]
        return list({job.id: job for job, pod in alone if pod.state in OVER}.values())

    def give_back(self, job: LiveJob, now: float) -> None:
        """Delete what still holds devices."""
        for pod in job.pods.values():
            self._remove(job, pod, now)
        self.settle(job)

    def settle(self, job: LiveJob) -> None:
        """Tell the engine once nothing is held any more."""
        if job.leaving is None or not job.is_over():
            return
        self._out.deltas.append(job.leaving)
        job.leaving = None
        del self.jobs[job.id]
        if job.state in TERMINAL:
            del self._known[job.id]
            return
        job.pods = {}
        job.replaced = frozenset()
        job.tally.clear()

    def delete(self, job: LiveJob, pod: LivePod, now: float) -> None:
        """Request the pod's deletion; Kubernetes Events on it say why."""
        pod.delete_sent_at = now
        spared = _is_spared(job, pod)
        of = (job.effect_key(pod), job.namespace, pod.name, pod.uid)
        if job.protected and spared:
            self._out.effects.append(EvictPod(*of, tracked=pod.tracked))
        else:
            # Only a pod that Kant did not make has an owner who asks why it went.
            disrupted = _disruption(job, spared=spared) if job.plain else None
            tracked = pod.tracked and disrupted is not None
            self._out.effects.append(DeletePod(*of, disrupted=disrupted, tracked=tracked))
        if pod.cause is not None and pod.state not in OVER:
            self._out.effects.append(EmitEvent(*of, *pod.cause, "Deleting", _type(pod.cause)))
            pod.cause = None

    def keep(self, job: LiveJob, key: PodKey, pod: KeptPod) -> None:
        """Keep this pod for its log, and delete an older attempt that was kept so far."""
        older, newest = sorted((job.kept.get(key, pod), pod))
        if older.uid != newest.uid:
            of = (older.namespace, older.name, older.uid)
            self._out.effects.append(DeletePod((job.id, older.attempt, *key), *of))
        job.kept = {**job.kept, key: newest}

    def blocked(self, pod: LivePod, retry_after: float, now: float) -> None:
        """Note that a disruption budget forbids the eviction; ask again when it may allow it."""
        pod.delete_sent_at = now - ASK_AGAIN_S + max(retry_after, EVICT_AGAIN_S)

    def _remove(self, job: LiveJob, pod: LivePod, now: float) -> None:
        """Delete a pod that still holds devices; one that was never created is free at once."""
        if pod.state in OVER or pod.in_flight or job.keeps(pod) or self._saves(job, pod, now):
            return
        waits_again = bool(job.plain) and isinstance(job.leaving, JobRequeued)
        if pod.state == P.INTENDED and (not pod.uid or waits_again):
            release(self._out, job, pod)
        elif pod.delete_sent_at is None:
            self.delete(job, pod, now)
        elif now - pod.delete_sent_at > ASK_AGAIN_S:
            self.delete(job, pod, now)
            if pod.lost:
                # A dead node confirms nothing. The job may continue; the pod counts as foreign
                # until the API has forgotten it.
                self.foreign.adopt(pod, self._out)
                release(self._out, job, pod)

    def _saves(self, job: LiveJob, pod: LivePod, now: float) -> bool:
        """Whether the pod still has time to save its work. In a gang one pod speaks for all."""
        notice = pod.notice
        if notice is None or notice.closed:
            return False
        saved_at = job.saved_at if job.request.gang else pod.saved_at
        if saved_at < notice.at and now < notice.by:
            return True
        notice.closed = True
        who = "The job" if job.request.gang else f"Pod {pod.name}"
        if saved_at >= notice.at:
            text = f"{who} saved its work {saved_at - notice.at:.1f} s after it was told"
            note = Note(job.id, job.state, "Checkpointed", text)
        else:
            text = f"{who} did not say within {notice.by - notice.at:.0f} s that it saved its work"
            note = Note(job.id, job.state, "CheckpointMissed", text)
        self._out.writes.notes.append(note)
        return False


def _type(cause: Cause) -> str:
    """Return the Event's type: Normal for a decision, Warning for a fault."""
    decided = cause.reason in (PREEMPTED, MOVED, CANCELLED, RESIZED, DRAINED)
    return "Normal" if decided else "Warning"


def _is_evicted(job: LiveJob) -> bool:
    """Whether its pods leave before their work is done: a job of plain pods cannot wait again."""
    return bool(job.plain) and job.state == JobState.FAILED


def _disruption(job: LiveJob, *, spared: bool) -> tuple[str, str] | None:
    """Return why a plain pod that did nothing wrong goes; None = its job ended by itself."""
    if spared:
        return DRAIN if job.reason == DRAINED else PREEMPTION
    if not job.pod_gang or job.reason in ("", CANCELLED, RUN_LIMIT):
        return None
    return "GangEnded", f"Kant ended all of gang {job.pod_gang} ({job.reason})"


def _is_spared(job: LiveJob, pod: LivePod) -> bool:
    """Whether Kant or an operator chose to let the pod go.

    That is, it did not end or fail and was not cancelled.
    """
    goes = isinstance(job.leaving, JobRequeued) or _is_evicted(job)
    return (goes and job.reason in SPARED) or _has_to_leave(pod)


def _has_to_leave(pod: LivePod) -> bool:
    """Whether it leaves alone although nothing is wrong with it."""
    return isinstance(pod.leaving, PodEnded) or pod.reason == DRAINED
