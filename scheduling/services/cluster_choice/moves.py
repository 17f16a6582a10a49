"""Move waiting jobs that Kant placed on a cluster to another one, if that gains them enough.

The engine is asked for each cluster, on a copy of the state that this process keeps or on one built
from rows. A job moves by one guarded update under the lease of the cluster that it leaves: a
scheduler that was about to place it there finds the job's version gone, and a placed job is left as
it is.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from scheduling.engine.cluster_choice.choice import (
    MIN_STAY_S,
    ClusterChosen,
    ClusterOutlook,
    choose,
    gains,
    labels_in_common,
)
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.deltas import JobEnded, JobSubmitted
from scheduling.engine.rehearse import copied, reserved_at, standing, try_start
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import OPEN, WAITING, JobEventKind
from scheduling.engine.verdict import Reason
from scheduling.kube.seam import KeepsAway
from scheduling.models import Cluster, Job, JobConstraints, JobEvent, Placement, StartEstimate
from scheduling.queries.known import CannotTell, Known, kept_away, surroundings_of
from scheduling.queries.standstill import silence
from scheduling.queries.starts import told_start
from scheduling.queries.whatif.state import KeptState
from scheduling.services.cluster_choice.submission import refuse_on
from scheduling.services.cluster_choice.told import document_of
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.common.lease import hold_all
from scheduling.services.jobs.capacity import Installed
from scheduling.services.jobs.document import document_of as job_document
from scheduling.services.jobs.validation import JobSpec, job_spec
from scheduling.session.memory import load
from tenants.errors import DomainError, Invalid

log = logging.getLogger(__name__)

MOST = 100  # jobs examined in one round, in queue order
EVERY_S = 5.0  # at most this often
SHARE = 0.05  # of a core, at most

# Returns the state of a cluster that this process keeps; None = it keeps none.
Keeps = Callable[[Cluster], KeptState | None]


def nothing_is_kept(_: Cluster) -> None:
    """Keep no state: everything is read from rows."""


def may_move() -> QuerySet[Job]:
    """Return jobs that wait for any cluster and never had a place.

    What a job left where it ran (its pods' history, often its checkpoints) stays with that cluster,
    and so does the job. A job that waits for others stays with them.
    """
    waiting = Job.objects.filter(
        any_cluster=True, state__in=list(WAITING), held=False, attempt=0, after=[], after_ok=[]
    )
    return waiting.exclude(id__in=Placement.objects.filter(job__any_cluster=True).values("job_id"))


def is_wanted(now: datetime) -> bool:
    """Whether a job has waited long enough to move, and there is another cluster."""
    waited = may_move().filter(submitted_at__lt=now - timedelta(seconds=MIN_STAY_S))
    return waited.exists() and Cluster.objects.count() > 1


@dataclass(slots=True)
class Mover:
    """Moves jobs; each process has one, and two do no harm.

    `rest_until`: by the monotonic clock.
    """

    keeps: Keeps = nothing_is_kept
    rest_until: float = 0.0

    def turn(self) -> bool:
        """Look at waiting jobs if it is time to. Return whether any job may move."""
        if not may_move().exists():
            return False
        if time.monotonic() >= self.rest_until:
            cpu = time.process_time()
            move_waiting(timezone.now(), self.keeps)
            spent = time.process_time() - cpu
            self.rest_until = time.monotonic() + max(EVERY_S, spent / SHARE)
        return True


def move_waiting(now: datetime, keeps: Keeps = nothing_is_kept) -> list[Job]:
    """Move each job that gains enough; return those that moved, as they were before."""
    active = list(Cluster.objects.filter(is_active=True).order_by("name"))
    jobs = list(
        may_move()
        .filter(Q(start_not_before=None) | Q(start_not_before__lte=now))
        .select_related("tenant", "cluster", "estimate")
        .prefetch_related("pod_sets")
        .order_by("-priority", "submitted_at", "id")[:MOST]
    )
    asked = {cluster.pk: _AskedCluster(cluster, now, keeps) for cluster in active}
    awaited = _awaited(jobs)
    moved = []
    for job in jobs:
        if len(asked.keys() - {job.cluster_id}) and str(job.pk) not in awaited:
            try:
                if _look(job, asked, now):
                    moved.append(job)
            except (DomainError, ValueError) as error:  # its rows do not say what it asks for
                log.warning("job %s stays where it is: %s", job.pk, error)
    return moved


def move(
    job: Job, to: Cluster, chosen: ClusterChosen, outlooks: Sequence[ClusterOutlook], now: datetime
) -> bool:
    """Send a job to another cluster.

    Returns False if somebody changed or placed it since it was read, or if the cluster no longer
    takes such jobs.
    """
    left = job.cluster
    told = document_of(chosen, outlooks, now, (job.chosen or {"moves": 0})["moves"] + 1)
    with transaction.atomic():
        # The scheduler there locks this row first and holds it while it writes.
        hold_all(left.pk)
        as_read = may_move().filter(pk=job.pk, version=job.version, cluster=left, state=job.state)
        if not Cluster.objects.filter(pk=to.pk, is_active=True, takes_any=True).exists():
            return False
        if str(job.pk) in _awaited([job]):
            return False
        changed = as_read.update(
            cluster=to,
            scope=WHOLE,
            version=job.version + 1,
            cluster_choice=told,
            reason=Reason.PENDING_EVALUATION.value,
            message="Waits for the next scheduling cycle.",
            evidence={},
            reason_at=now,
            reserved_start=None,
            reserved_nodes=[],
            blocked_since=None,
            stands_at=None,
        )
        if not changed:
            return False
        # What was found out about it there says nothing here.
        JobConstraints.objects.filter(job=job).delete()
        StartEstimate.objects.filter(job=job).delete()
        JobEvent.objects.create(
            job=job,
            at=now,
            kind=JobEventKind.ROUTED.value,
            from_state=job.state,
            to_state=job.state,
            message=chosen.summary,
            evidence={"from_cluster": left.name, "to_cluster": to.name},
        )
        for cluster in (left, to):
            ring_after_commit(cluster.pk)
    return True


def _awaited(jobs: Sequence[Job]) -> set[str]:
    """Return those of these jobs that other open jobs wait for, by job or array id."""
    clusters = {job.cluster_id for job in jobs}
    rows = Job.objects.filter(cluster__in=clusters, state__in=list(OPEN))
    rows = rows.exclude(after=[], after_ok=[])
    links = rows.order_by().values_list("after", "after_ok")
    named = {name for after, after_ok in links for name in (*after, *after_ok)}
    return {str(job.pk) for job in jobs if {str(job.pk), str(job.array_id)} & named}


def _look(job: Job, asked: dict[int, "_AskedCluster"], now: datetime) -> bool:
    """Ask all clusters about one job, and move it if it gains enough."""
    question = _Question(job, now)
    at_home = asked.get(job.cluster_id)
    here = at_home.of_waiting(question) if at_home else _inactive(job)
    if here.starts_now:
        return False
    others = {pk: each.of_new(question) for pk, each in asked.items() if pk != job.cluster_id}
    chosen_at = datetime.fromisoformat(job.chosen["at"]) if job.chosen else job.submitted_at
    stayed, moves = (now - chosen_at).total_seconds(), (job.chosen or {"moves": 0})["moves"]
    better = {
        pk: there
        for pk, there in others.items()
        if gains(here, there, stayed, moves, now.timestamp())
    }
    chosen = choose([here, *better.values()], now.timestamp()) if better else None
    went = False
    for pk, there in others.items():
        if chosen is not None and there.name == chosen.name:
            went = move(job, asked[pk].cluster, chosen, [here, *others.values()], now)
        if there.starts_now and not (went and chosen and there.name == chosen.name):
            asked[pk].forget(question)
    if went and at_home is not None:
        at_home.forget(question)
    return went


def _inactive(job: Job) -> ClusterOutlook:
    return ClusterOutlook(job.cluster.name, silent="no longer active")


class _Question:
    """What one job asks of each cluster."""

    def __init__(self, job: Job, now: datetime) -> None:
        self.job, self.now = job, now
        self.live = load.live_job(job, job.tenant.name, list(job.pod_sets.all()))
        self.spec: JobSpec = job_spec(job_document(job))

    @property
    def id(self) -> str:
        return str(self.job.pk)


class _AskedCluster:
    """Answers questions about one cluster, with a state in which its own waiting jobs go first.

    A job that moves there stays in that state, so that no two jobs are sent to the same places.
    """

    def __init__(self, cluster: Cluster, now: datetime, keeps: Keeps) -> None:
        self.cluster, self._now, self._keeps = cluster, now, keeps
        self._silent = silence(cluster, now)
        # A job that waits here leaves as soon as another cluster can run it.
        self._closed = "" if cluster.takes_any else "takes only jobs that name it"
        self._installed = Installed(cluster)
        self._states: dict[str, SchedulerState] = {}

    def of_waiting(self, question: _Question) -> ClusterOutlook:
        """Return the outlook of a job that waits here."""
        job = question.job
        if self._silent or self._closed:
            return self._outlook(question, silent=self._silent or self._closed)
        try:
            state = self._state(job.scope)
        except CannotTell as error:
            return self._outlook(question, silent=str(error))
        record = state.jobs.get(question.id)
        if record is None:
            return self._outlook(question, why="its scheduler has not read it yet")
        if record.started_at is not None:
            return self._outlook(question, starts_now=True)
        verdict, told = record.verdict, told_start(job, self._now)
        start_at = reserved_at(state, question.id)
        if told is not None and told.p50 is not None and not told.overdue:
            start_at = told.p50.timestamp()
        if verdict is not None and verdict.will_never_run:
            return self._outlook(question, refused=verdict.summary)
        why = verdict.summary.rstrip(".") if verdict is not None else ""
        return self._outlook(question, start_at=start_at, why=why)

    def of_new(self, question: _Question) -> ClusterOutlook:
        """Return the outlook of a job that waits elsewhere.

        A job that would start stays in the state.
        """
        if self._silent:
            return self._outlook(question, silent=self._silent)
        if self._closed:
            return self._outlook(question, refused=self._closed)
        try:
            refuse_on(self._installed, question.spec)
            live = question.live
            company = surroundings_of(self.cluster, live)
            request = kept_away(live.request, company, self._keepers())
            state = self._state(WHOLE if self._kept else self._rows.scope_of(request))
        except Invalid as error:
            return self._outlook(question, refused=error.detail)
        except CannotTell as error:
            return self._outlook(question, silent=str(error))
        tried = try_start(state, JobSubmitted(request), self._at(state))
        if tried.places is not None:
            level = request.preferred_level or request.pod_sets[0].preferred_level
            groups = tried.places.leaves if level == "leaf" else 0
            return self._outlook(question, starts_now=True, groups=groups)
        self.forget(question)
        verdict = tried.verdict
        if verdict is not None and verdict.will_never_run:
            return self._outlook(question, refused=verdict.summary)
        why = verdict.summary.rstrip(".") if verdict is not None else ""
        return self._outlook(question, start_at=tried.start_at, why=why)

    def forget(self, question: _Question) -> None:
        """Remove the job from the states: it is not here, or no longer."""
        for state in self._states.values():
            if question.id in state.jobs:
                run_cycle(state, [JobEnded(question.id)], self._at(state))

    @cached_property
    def _kept(self) -> KeptState | None:
        kept = self._keeps(self.cluster)
        return kept if kept is not None and kept.rows.nodes else None

    @cached_property
    def _rows(self) -> Known:
        return Known(self.cluster)

    def _keepers(self) -> set[KeepsAway]:
        return self._kept.rows.keepers() if self._kept else self._rows.keepers

    def _state(self, scope: str) -> SchedulerState:
        if scope not in self._states:
            if self._kept:
                state = copied(self._kept.state)
            else:
                state = standing(self._rows.facts(scope), self._now.timestamp())
            run_cycle(state, [], self._at(state))
            self._states[scope] = state
        return self._states[scope]

    def _at(self, state: SchedulerState) -> float:
        return max(self._now.timestamp(), state.cluster.now)

    def _outlook(self, question: _Question, **known: object) -> ClusterOutlook:
        labels = labels_in_common(self.cluster.labels, question.job.preferred_cluster_labels)
        outlook = ClusterOutlook(self.cluster.name, labels=labels)
        return replace(outlook, **known)  # type: ignore[arg-type]
