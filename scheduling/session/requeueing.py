"""Jobs and pods that give their places back because something failed, and wait again or end."""

from scheduling.engine.deltas import JobEnded, JobRequeued, PodRequeued
from scheduling.engine.states import HOLDING, TERMINAL, JobState
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import Policy
from scheduling.models.jobs import PREEMPTED
from scheduling.models.jobs import PlacementState as P
from scheduling.session.leaving import Leaving
from scheduling.session.live import OVER, Cause, LiveJob, LivePod, Note, Outbox
from scheduling.session.steps import step

# Columns of a job that is no longer placed: its wait goes on (metrics.md, JWTD).
UNPLACED: dict[str, None] = {"admitted_at": None, "bound_at": None, "running_at": None}
# The API server took no pod or binding for long: no fault of the job, nor of the node.
NO_ANSWER = "ApiServerFailed"
# Reasons for which pods that still run are told to save their work before they are deleted.
TOLD = frozenset({PREEMPTED, "NodeLost", "PodEvicted"})


class Requeueing:
    """What a cluster's jobs do when a placement fails (paper 3.2.4)."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.policy = Policy()
        self.jobs: dict[str, LiveJob] = {}
        self.admitted: dict[str, LiveJob] = {}  # placed, not all of it running yet
        self.sees_since = 0.0  # when the connection to the cluster came back last
        self.out = Outbox()
        self.leave = Leaving(namespace, self.jobs, self.out)
        self.foreign = self.leave.foreign

    def requeue(
        self, job: LiveJob, reason: str, message: str, blamed: tuple[str, ...], now: float
    ) -> None:
        """A placement failed: release everything and wait again, or fail after too many tries."""
        if job.leaving is not None or job.state not in HOLDING:
            return
        if job.request.gang and job.state == JobState.RUNNING:
            # It came up: what failed since were pods that it could do without.
            job.failures = job.failed_attempt = 0
        self._count_failure(job, job.attempt, reason)
        if self._failed_too_often(job, reason, message, now):
            return
        job.not_before = self._backed_off(job, now)
        job.front = job.state == JobState.RUNNING
        step(
            self.out,
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
                self.leave.delete(job, pod, now)
        last_word = JobRequeued(job.id, job.not_before, blamed, job.front)
        self._leave(job, last_word, Cause(reason, message), now)

    def _displaced(
        self,
        job: LiveJob,
        pods: list[LivePod],
        reason: str,
        message: str,
        blamed: tuple[str, ...],
        now: float,
    ) -> None:
        """These pods cannot be where they were placed. Where the job can do without them, only they
        are placed again, with the rest of their slices; else all of it is released."""
        pods = _with_slices(job, pods)
        if not self._goes_on_without(job, pods):
            self.requeue(job, reason, message, blamed, now)
            return
        self._count_failure(job, max(pod.attempt for pod in pods), reason)
        if job.request.gang:
            # It has all that it needs: it waits longer for the others, and does not end by them.
            job.failures = min(job.failures, self.policy.max_attempts - 1)
        elif self._failed_too_often(job, reason, message, now):
            return
        self.out.writes.failures[job.id] = job.failures
        note = Note(job.id, job.state, reason, message, (("pods", len(pods)),))
        self.out.writes.notes.append(note)
        at = self._backed_off(job, now)
        leaves = [(p, PodRequeued(job.id, *p.key, at, blamed)) for p in pods if p.leaving is None]
        self.leave.pods(job, leaves, Cause(reason, message), now)

    def _tell(self, job: LiveJob, pods: list[LivePod], now: float) -> None:
        """Tell those that will have to go with these pods."""
        if job.leaving is None and job.state in HOLDING:
            alone = self._goes_on_without(job, pods)
            self.leave.tell(job, _with_slices(job, pods) if alone else job.pods.values(), now)

    def _is_news(self, job: LiveJob, pod: LivePod) -> bool:
        """Whether nobody here asked for the pod's deletion, in a job that wants to be told."""
        asked = job.leaving or pod.leaving or pod.delete_sent_at
        return bool(job.notice_s) and not asked and job.state in HOLDING

    def _goes_on_without(self, job: LiveJob, pods: list[LivePod]) -> bool:
        """Whether others of its pods have a place or have done their work, of a gang its least."""
        if job.leaving is not None or job.state not in HOLDING:
            return False
        gone = job.request.go_together(pod.key for pod in pods)
        return job.request.goes_on_with(
            key
            for key, pod in job.pods.items()
            if key not in gone and pod.leaving is None and pod.state not in (P.FAILED, P.RELEASED)
        )

    def _count_failure(self, job: LiveJob, attempt: int, reason: str) -> None:
        """Count a failed placement, once for all pods of an attempt."""
        if reason != NO_ANSWER and attempt > job.failed_attempt:
            job.failed_attempt = attempt
            job.failures += 1

    def _failed_too_often(self, job: LiveJob, reason: str, message: str, now: float) -> bool:
        """End the job at the limit of failures in a row."""
        if reason == NO_ANSWER or job.failures < self.policy.max_attempts:
            return False
        text = f"{message}. Placement {job.failures} of {self.policy.max_attempts} that failed"
        self._end(job, Kind.FAILED, reason, text, now)
        return True

    def _backed_off(self, job: LiveJob, now: float) -> float:
        wait = self.policy.backoff_base_s * 2 ** max(0, job.failures - 1)
        return now + min(wait, self.policy.backoff_cap_s)

    def _forgive(self, job: LiveJob, pod: LivePod) -> None:
        """A pod runs that was placed after the last failure: failures no longer follow in a row.
        A gang that is not up yet has to come up first."""
        alone = not job.request.gang or job.state == JobState.RUNNING
        if alone and job.failures and pod.attempt > job.failed_attempt:
            job.failures = self.out.writes.failures[job.id] = 0

    def resume_leaving(self, job: LiveJob, now: float) -> None:
        """A job found at start whose pods were being deleted when the last scheduler stopped."""
        if job.state in TERMINAL:
            done = job.state == JobState.SUCCEEDED
            self._leave(job, JobEnded(job.id, succeeded=done), None, now)
        else:
            if job.reason in TOLD:
                self.leave.tell(job, job.pods.values(), now)
            self._leave(job, JobRequeued(job.id, job.not_before, front=job.front), None, now)

    def _end(self, job: LiveJob, kind: Kind, reason: str, message: str, now: float) -> None:
        step(self.out, job, kind, reason, message, failures=job.failures)
        last_word = JobEnded(job.id, succeeded=kind == Kind.SUCCEEDED)
        self._leave(job, last_word, Cause(reason, message), now)

    def _leave(
        self, job: LiveJob, last_word: JobEnded | JobRequeued, cause: Cause | None, now: float
    ) -> None:
        self.admitted.pop(job.id, None)
        self.leave.job(job, last_word, cause, now)


def _with_slices(job: LiveJob, pods: list[LivePod]) -> list[LivePod]:
    """The pods, and those that cannot go on without them."""
    keys = job.request.go_together(pod.key for pod in pods)
    others = (p for key, p in job.pods.items() if key in keys and p.state not in OVER)
    return pods + [pod for pod in others if pod not in pods]
