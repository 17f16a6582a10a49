"""Jobs and pods that give their places back after a failure, and wait again or end."""

from collections.abc import Callable, Iterable, Set

from scheduling.engine.deltas import JobEnded, JobRequeued, PodRequeued
from scheduling.engine.states import HOLDING, TERMINAL, JobState
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.verdict import counted
from scheduling.kube.seam import PodFacts
from scheduling.models.jobs import DRAINED, POD_FAILED, PREEMPTED, RESIZED
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.live import OVER, Cause, KeptPod, LiveJob, LivePod, Note
from scheduling.session.pods import pod as kant_pods
from scheduling.session.pods.leave import Leaving
from scheduling.session.pods.scope import SharedScope
from scheduling.session.pods.steps import Evidence, advance, step

# The columns of a job that is no longer placed: its wait continues (metrics.md, JWTD).
UNPLACED: dict[str, None] = {"admitted_at": None, "bound_at": None, "running_at": None}
# The API server took no pod or binding for a long time: neither job nor node is at fault.
NO_ANSWER = "ApiServerFailed"
POD_DELETED, EVICTED = "PodDeleted", "PodEvicted"
# Reasons for which running pods are warned to save their work before they are deleted.
TOLD = frozenset({PREEMPTED, DRAINED, "NodeLost", EVICTED})
COMING = frozenset({P.INTENDED, P.BOUND})  # states of pods with a place that do not run yet


class Requeueing:
    """What a cluster's jobs do when a placement fails (paper 3.2.4).

    Each of `before_leaving` is called with a job, and why, before the job gives all its places
    back.
    """

    def __init__(self, scope: SharedScope, leave: Leaving) -> None:
        self.scope = scope
        self.out = scope.out
        self.leave = leave
        self.before_leaving: list[
            Callable[[LiveJob, JobEnded | JobRequeued, Cause | None], None]
        ] = []

    def requeue(
        self, job: LiveJob, reason: str, message: str, avoided_nodes: tuple[str, ...], now: float
    ) -> None:
        """Release a job whose placement failed; it waits again, or fails after too many tries.

        A job of plain pods waits again only if certainly none of them was bound.
        """
        if job.leaving is not None or job.state not in HOLDING:
            return
        if job.plain and not _is_unbound(job):
            if reason in (EVICTED, "PodLost", POD_DELETED):
                why = EVICTED if reason == EVICTED else POD_DELETED
                self.end(job, Kind.CANCELLED, why, message, now)
            else:
                self.end(job, Kind.FAILED, reason, message, now)
            return
        if reason != NO_ANSWER:
            job.failures.count(job.attempt)
        if self._failed_too_often(job, reason, message, now):
            return
        job.front = job.state == JobState.RUNNING
        at = self._backed_off(job.failures.number, now)
        self.wait_again(job, Cause(reason, message), (), at, avoided_nodes, now)

    def crashed(self, job: LiveJob, pod: LivePod, message: str, now: float) -> None:
        """Place a pod again whose own program failed, or end the job if no restart is left.

        The pod is placed again alone if the job can do without it; otherwise all of the job is. The
        failed pod is kept for its log until its successor fails, too.
        """
        if job.state not in HOLDING:
            advance(self.out, job, pod, P.FAILED, message)
            return
        if job.restarts >= job.max_restarts:
            advance(self.out, job, pod, P.FAILED, message)
            times = counted(job.restarts, "time", "times")
            told = f"{message}. It was restarted {times}" if job.restarts else message
            self.end(job, Kind.FAILED, POD_FAILED, told, now)
            return
        job.restarts += 1
        self.leave.keep(job, pod.key, KeptPod(pod.attempt, job.namespace, pod.name, pod.uid))
        self.out.writes.restarts[job.id] = job.restarts
        record: Evidence = (("restarts", job.restarts), ("max_restarts", job.max_restarts))
        message = f"{message}. Restart {job.restarts} of {job.max_restarts}"
        cause = Cause(POD_FAILED, message)
        pods = with_slices(job, [pod])
        if not self.goes_on_without(job, pods):
            at = self._crash_backed_off(job, pod, job.pods.values(), now)
            advance(self.out, job, pod, P.FAILED, message)
            job.front = False
            self.wait_again(job, cause, record, at, (), now)
            return
        at = self._crash_backed_off(job, pod, pods, now)
        record = (("pods", len(pods)), *record)
        self.out.writes.notes.append(Note(job.id, job.state, *cause, record))
        leaves = [(p, PodRequeued(job.id, *p.key, at)) for p in pods if p.leaving is None]
        self.leave.pods(job, leaves, cause, now)
        advance(self.out, job, pod, P.FAILED, message)

    def crashed_before(self, facts: PodFacts) -> None:
        """Note a pod without a placement if its program failed before a restart.

        A scheduler that did not see it fail then knows of it, too.
        """
        who = kant_pods.identity(facts.labels) if facts.owned else None
        job = self.scope.jobs.get(who[0]) if who else None
        if not who or not job or facts.deleting or not kant_pods.has_crashed(facts):
            return
        _, attempt, key = who
        if (facts.namespace, facts.name) == (job.namespace, kant_pods.name_of(job, attempt, *key)):
            self.leave.keep(job, key, KeptPod(attempt, facts.namespace, facts.name, facts.uid))

    def wait_again(
        self,
        job: LiveJob,
        cause: Cause,
        record: Evidence,
        at: float,
        avoided_nodes: tuple[str, ...],
        now: float,
    ) -> None:
        """Give back all places of the job; it is placed again at `at` or later."""
        job.not_before = at
        step(
            self.out,
            job,
            Kind.REQUEUED,
            cause.reason,
            cause.text,
            record,
            failures=job.failures.number,
            not_before=at,
            front=job.front,
            **UNPLACED,
        )
        for pod in job.pods.values():
            if pod.state in OVER and pod.uid and not job.keeps(pod):
                self.leave.delete(job, pod, now)
        self.leaves(job, JobRequeued(job.id, at, avoided_nodes, job.front), cause, now)

    def displaced(
        self,
        job: LiveJob,
        pods: list[LivePod],
        reason: str,
        message: str,
        avoided_nodes: tuple[str, ...],
        now: float,
    ) -> None:
        """Place pods again that cannot stay where they were placed.

        If the job can do without them, only they and the rest of their slices are placed again;
        otherwise all of the job is released.
        """
        pods = with_slices(job, pods)
        if not self.goes_on_without(job, pods):
            self.requeue(job, reason, message, avoided_nodes, now)
            return
        # A gang that can continue has all it needs. Failures of its other pods only delay these
        # pods and do not end the job.
        failures = job.surplus if job.request.gang else job.failures
        if reason != NO_ANSWER:
            failures.count(max(pod.attempt for pod in pods))
        if failures is job.failures:
            if self._failed_too_often(job, reason, message, now):
                return
            self.out.writes.failures[job.id] = failures.number
        note = Note(job.id, job.state, reason, message, (("pods", len(pods)),))
        self.out.writes.notes.append(note)
        at = self._backed_off(failures.number, now)
        leaves = [
            (p, PodRequeued(job.id, *p.key, at, avoided_nodes)) for p in pods if p.leaving is None
        ]
        self.leave.pods(job, leaves, Cause(reason, message), now)

    def tell(self, job: LiveJob, pods: list[LivePod], now: float) -> None:
        """Warn the pods that will have to go together with these."""
        if job.leaving is None and job.state in HOLDING:
            alone = self.goes_on_without(job, pods)
            self.leave.tell(job, with_slices(job, pods) if alone else job.pods.values(), now)

    def is_news(self, job: LiveJob, pod: LivePod) -> bool:
        """Whether the pod's deletion is news here, in a job that wants a warning."""
        asked = job.leaving or pod.leaving or pod.delete_sent_at
        return bool(job.notice_s) and not asked and job.state in HOLDING

    def let_surplus_go(self, job: LiveJob, now: float) -> None:
        """Let pods beyond the job's count leave, those with the highest ordinals first.

        They are warned to save their work if the job wants that. Pods without a place are no longer
        waited for.
        """
        job.complete = job.has_all()
        if job.leaving is not None or job.state not in HOLDING:
            return
        if pods := job.beyond_count():
            text = f"Its job asks for {counted(job.request.pods, 'pod', 'pods')} now"
            self.leave.tell(job, pods, now)
            leaves = [(p, PodRequeued(job.id, *p.key, 0.0)) for p in pods]
            self.leave.pods(job, leaves, Cause(RESIZED, text), now)

    def is_there(self, job: LiveJob, away: Set[P]) -> bool:
        """Whether no pod of the job is in these states; of an elastic gang, none that it needs."""
        few = sum(job.tally[state] for state in away)
        if not few or not job.request.elastic:
            return not few
        if len(job.pods) - few < sum(s.least for s in job.request.pod_sets):
            return False
        return self.goes_on_without(job, [p for p in job.pods.values() if p.state in away])

    def is_done(self, job: LiveJob) -> bool:
        """Whether all pods have done their work.

        An elastic gang does not wait for pods that it got later and that have not run yet.
        """
        done = job.tally[P.SUCCEEDED]
        if done == len(job.pods) or not (done and job.request.elastic):
            return done == len(job.pods)
        if done + sum(job.tally[state] for state in COMING) < len(job.pods):
            return False
        others = [p for p in job.pods.values() if p.state != P.SUCCEEDED]
        never_ran = all(p.later or p.leaving is not None for p in others)
        return never_ran and self.goes_on_without(job, others)

    def goes_on_without(self, job: LiveJob, pods: list[LivePod]) -> bool:
        """Whether enough other pods have a place or are done: any one, or a gang's minimum."""
        if job.leaving is not None or job.state not in HOLDING:
            return False
        gone = job.request.go_together(pod.key for pod in pods)
        return job.request.goes_on_with(
            key
            for key, pod in job.pods.items()
            if key not in gone and pod.leaving is None and pod.state not in (P.FAILED, P.RELEASED)
        )

    def _failed_too_often(self, job: LiveJob, reason: str, message: str, now: float) -> bool:
        """End the job if it reached the limit of failures in a row."""
        number, most = job.failures.number, self.scope.policy.max_attempts
        if reason == NO_ANSWER or number < most:
            return False
        text = f"{message}. Placement {number} of {most} that failed"
        self.end(job, Kind.FAILED, reason, text, now)
        return True

    def _backed_off(self, number: int, now: float) -> float:
        # A larger exponent would overflow; the cap is reached long before.
        wait = self.scope.policy.backoff_base_s * 2 ** min(max(0, number - 1), 64)
        return now + min(wait, self.scope.policy.backoff_cap_s)

    def _crash_backed_off(
        self, job: LiveJob, pod: LivePod, restarted: Iterable[LivePod], now: float
    ) -> float:
        """Return until when these pods wait.

        A pod that held its place longer than the longest back-off does not count as failing in a
        row.
        """
        in_a_row = now - pod.placed_at <= self.scope.policy.backoff_cap_s
        number = 1 + (job.crashes.get(pod.key, 0) if in_a_row else 0)
        job.crashes = {**job.crashes, **dict.fromkeys((p.key for p in restarted), number)}
        return self._backed_off(number, now)

    def release_late(self, job: LiveJob, now: float) -> None:
        """Give back the places of a gang that did not start in time.

        An elastic gang gives back only those of the late pods, if it can do without them.
        """
        if job.state == JobState.RUNNING and not any(job.tally[s] for s in COMING):
            del self.scope.starting[job.id]
            return
        due = now - self.scope.policy.gang_timeout_s
        if max(job.admitted_at, self.scope.sees_since) >= due:
            return
        coming = (p for p in job.pods.values() if p.state in COMING and p.leaving is None)
        # Pods that an elastic gang got later have their own deadline.
        late = [p for p in coming if p.placed_at < due]
        if late:
            running = job.tally[P.RUNNING] + job.tally[P.SUCCEEDED]
            waited = now - min(p.placed_at for p in late)
            text = f"Only {running} of {len(job.pods)} pods ran {waited:.0f} s after the placement"
            avoided_nodes = tuple(sorted({p.place.node for p in late}))
            self.displaced(job, late, "GangTimeout", text, avoided_nodes, now)

    def forgive(self, job: LiveJob, pod: LivePod) -> None:
        """Reset the count of failures in a row: a pod placed after the last failure runs.

        The count of a whole gang is reset when the gang comes up.
        """
        failures = job.surplus if job.request.gang else job.failures
        if failures.number and pod.attempt > failures.attempt:
            failures.number = 0
            if failures is job.failures:
                self.out.writes.failures[job.id] = 0

    def resume_leaving(self, job: LiveJob, now: float) -> None:
        """Let a job found at start leave whose pods the last scheduler was deleting."""
        if job.state in TERMINAL:
            done = job.state == JobState.SUCCEEDED
            self.leaves(job, JobEnded(job.id, succeeded=done), None, now)
        else:
            if job.reason in TOLD:
                self.leave.tell(job, job.pods.values(), now)
            self.leaves(job, JobRequeued(job.id, job.not_before, front=job.front), None, now)

    def end(self, job: LiveJob, kind: Kind, reason: str, message: str, now: float) -> None:
        step(self.out, job, kind, reason, message, failures=job.failures.number)
        last_word = JobEnded(job.id, succeeded=kind == Kind.SUCCEEDED)
        self.leaves(job, last_word, Cause(reason, message), now)

    def leaves(
        self, job: LiveJob, last_word: JobEnded | JobRequeued, cause: Cause | None, now: float
    ) -> None:
        for told in self.before_leaving:
            told(job, last_word, cause)
        self.scope.starting.pop(job.id, None)
        self.leave.job(job, last_word, cause, now)


def _is_unbound(job: LiveJob) -> bool:
    """Whether certainly no pod of the job was bound."""
    return all(p.state is P.INTENDED and not p.in_flight for p in job.pods.values())


def with_slices(job: LiveJob, pods: list[LivePod]) -> list[LivePod]:
    """Return the pods, and those that cannot continue without them."""
    keys = job.request.go_together(pod.key for pod in pods)
    others = (p for key, p in job.pods.items() if key in keys and p.state not in OVER)
    return pods + [pod for pod in others if pod not in pods]
