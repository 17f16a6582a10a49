"""Before a job is submitted: would it start now, and if not, why and when?

The engine answers (`engine.rehearse`), on a state that a process keeps current (`whatif`), or else
on one built from rows (`known`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from scheduling.engine.deltas import JobSubmitted
from scheduling.engine.demand.pools import Pools
from scheduling.engine.rehearse import (
    Instead,
    Places,
    QuotaOutlook,
    Rehearsal,
    quota_terms,
    review,
    standing,
    submitted,
)
from scheduling.engine.shards.division import WHOLE, WIDE
from scheduling.engine.states import WAITING
from scheduling.engine.types import JobRequest, PreemptionKind
from scheduling.engine.verdict import Verdict, counted
from scheduling.models import Cluster, Job
from scheduling.queries import quota_use
from scheduling.queries.explain import Reserved, Start, explain_job, policy_in_use
from scheduling.queries.kept import kept, kept_before
from scheduling.queries.known import (
    FITS_NO_SHARD,
    CannotTell,
    Known,
    kept_away,
    surroundings_of,
)
from scheduling.queries.queues.waiting_order import JobAhead
from scheduling.queries.standstill import standstill
from scheduling.queries.whatif.by_rows import asked_or
from scheduling.queries.whatif.questions import DryRun, Review
from scheduling.session.memory import load
from scheduling.session.memory.live import LiveJob
from tenants.models import GpuType, User

FORECASTS = ("reservation", "forecast")
OVERDUE = (
    "It starts when jobs end that have run longer than they declared; by their declared run "
    "times there would already be room."
)
DUE_S = 1.0  # running jobs are declared to end by now, or within this


class Outlook(StrEnum):
    """What would become of the job in the next cycle. `unknown`: nobody can tell."""

    STARTS = "starts"
    MAKES_ROOM = "makes-room"
    WAITS = "waits"
    NEVER = "never"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OtherRequest:
    """A change of the request with which the job would start now.

    Another GPU type, or fewer pods; for an elastic gang, a smaller minimum.
    """

    text: str
    places: Places
    gpu_type: str | None = None
    count: int | None = None
    min_count: int | None = None


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What would become of a job that is not submitted yet, by what was known at `as_of`.

    `preempts`: how many jobs would make room for it. `reason`, `evidence` and `remedies` are those
    of a waiting job, `position` and `ahead` its place in the queue as in `explain`.
    """

    outlook: Outlook
    summary: str
    as_of: datetime | None
    quota: tuple[QuotaOutlook, ...]
    places: Places | None = None
    preempts: int = 0
    reason: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()
    position: int | None = None
    ahead: tuple[JobAhead, ...] = ()
    reservation: Reserved | None = None
    start: Start | None = None
    alternatives: tuple[OtherRequest, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """What anyone who submits it anyway has to know."""
        return [self.summary] if self.outlook is Outlook.NEVER else []


def rehearse_job(viewer: User, job: Job) -> Rehearsed:
    """Ask about a job as `submit_job` returns it with `dry_run`."""
    live = load.live_job(job, job.tenant.name, list(job.pod_sets.all()))
    if why := standstill(job.cluster):
        return _by_quota_alone(live.request, why, job.cluster)
    asked = JobSubmitted(live.request, live.not_before, job.held)
    question = DryRun(asked, surroundings_of(job.cluster, live), time.time())
    try:
        said = asked_or(job.cluster_id, question, lambda: _rehearsed_by_rows(job, live))
    except CannotTell as error:
        return _by_quota_alone(live.request, str(error), job.cluster)
    return _told(viewer, job, live.request, said)


def _rehearsed_by_rows(job: Job, live: LiveJob) -> Rehearsal:
    """Rehearse a new job on a state built from rows. Raises CannotTell."""
    known = Known(job.cluster)
    job.scope = known.scope_of(live.request)
    request = kept_away(live.request, surroundings_of(job.cluster, live), known.keepers)
    # The scheduler of a shard may not know the jobs that this one waits for.
    before = (*live.request.after, *live.request.after_ok)
    held = job.held or (job.scope != WHOLE and bool(load.open_among(before)))
    now = time.time()
    asked = JobSubmitted(request, live.not_before, held)
    return submitted(standing(known.facts(job.scope), now), asked, now)


def review_job(viewer: User, job: Job) -> Rehearsed | None:
    """Ask the same about a waiting job; None = it no longer waits.

    `explain` only has what the scheduler said. The answer is reused while it is fresh.
    """
    if job.state not in WAITING:
        return None
    return kept(_key(viewer, job), lambda: _reviewed(viewer, job))


def reviewed_before(viewer: User, job: Job) -> Rehearsed | None:
    """Return the last answer for the job as it is, however old; None = nobody asked."""
    return kept_before(_key(viewer, job), Rehearsed) if job.state in WAITING else None


def _key(viewer: User, job: Job) -> str:
    return f"review:{job.pk}:{job.version}:{viewer.pk}"


def _reviewed(viewer: User, job: Job) -> Rehearsed | None:
    job = copy(job)  # the answer is written into it
    try:
        request = load.live_job(job, job.tenant.name, list(job.pod_sets.all())).request
    except ValueError as error:  # its rows do not say what it asks for
        text = f"Kant cannot tell whether it would start now: {error}."
        return Rehearsed(Outlook.UNKNOWN, text, job.cluster.last_cycle_at, ())
    if why := standstill(job.cluster):
        return _by_quota_alone(request, why, job.cluster)
    question, now = Review(str(job.pk)), time.time()
    try:
        said = asked_or(job.cluster_id, question, lambda: _reviewed_by_rows(job), since=now)
    except CannotTell as error:
        return _by_quota_alone(request, str(error), job.cluster)
    return _told(viewer, job, request, said) if said is not None else None


def _reviewed_by_rows(job: Job) -> Rehearsal | None:
    """Review a waiting job on a state built from rows. Raises CannotTell."""
    known = Known(job.cluster)
    if job.scope == WIDE:
        raise CannotTell(FITS_NO_SHARD)
    now = time.time()
    return review(standing(known.facts(job.scope), now), str(job.pk), now)


def _by_quota_alone(request: JobRequest, why: str, cluster: Cluster) -> Rehearsed:
    book, as_of = quota_use.quota_book(), cluster.last_cycle_at
    book.reclaim(PreemptionKind.RECLAIM in policy_in_use(cluster.pk).preemption)
    terms = tuple(quota_terms(request, Pools(), book))
    non_preemptible = not request.preemptible
    never = quota_use.never_allowed(
        book, request.tenant, _least_of(request), non_preemptible=non_preemptible
    )
    if never:
        return Rehearsed(Outlook.NEVER, never, as_of, terms)
    text = f"Kant cannot tell whether it would start now. {why}"
    return Rehearsed(Outlook.UNKNOWN, text, as_of, terms)


def _least_of(request: JobRequest) -> Iterator[tuple[Sequence[str], int]]:
    """Yield the least that must start together: each set's acceptable GPU types and milli-GPU."""
    known = tuple(GpuType.objects.values_list("name", flat=True))
    with_gpus = [s for s in request.pod_sets if s.gpus]
    for s in with_gpus if request.gang else with_gpus[:1]:
        yield s.gpu_models or known, (s.least if request.gang else 1) * s.milli_per_pod


# --- what people see ------------------------------------------------------------------------------
def _told(viewer: User, job: Job, request: JobRequest, said: Rehearsal) -> Rehearsed:
    """Return the answer in the terms of an explained job."""
    verdict = said.verdict
    if verdict is not None:
        job.reason, job.message = verdict.reason.value, verdict.summary
        job.evidence = {**verdict.evidence, "remedies": list(verdict.remedies)}
    # For a waiting job, the page shows the reservation of its scheduler.
    new = job.reserved_start is None
    if new and said.reservation is not None and said.reservation.start_at is not None:
        job.reserved_start = datetime.fromtimestamp(said.reservation.start_at, UTC)
        job.reserved_nodes = list(said.reservation.nodes)
    if new and said.stands_at is not None:
        job.stands_at = datetime.fromtimestamp(said.stands_at, UTC)
    explained = explain_job(viewer, job)
    outlook = _outlook(said)
    waits = verdict is not None
    start = explained.start if outlook is not Outlook.STARTS else None
    if said.room_at is not None:
        text = (
            "By the declared run times of running jobs there is room for it then, if no other "
            "job takes it."
        )
        start = Start(datetime.fromtimestamp(said.room_at, UTC), "forecast", text)
    if new and start is not None and start.basis in FORECASTS and _is_due(start.at):
        start = Start(None, "unknown", OVERDUE)
    return Rehearsed(
        outlook,
        _summary(outlook, request, said),
        job.cluster.last_cycle_at,
        said.quota,
        said.places,
        len(said.preempted),
        explained.reason if waits else "",
        explained.evidence if waits else {},
        explained.remedies if waits else (),
        explained.position,
        explained.ahead,
        explained.reservation,
        start,
        tuple(_alternative(request, other) for other in said.instead),
    )


def _is_due(at: datetime | None) -> bool:
    """Whether the time should have come already, although the job does not start."""
    return at is not None and at.timestamp() <= time.time() + DUE_S


def _outlook(said: Rehearsal) -> Outlook:
    if said.places is not None:
        return Outlook.STARTS
    if said.preempted:
        return Outlook.MAKES_ROOM
    never = said.verdict is not None and said.verdict.will_never_run
    return Outlook.NEVER if never else Outlook.WAITS


def _summary(outlook: Outlook, request: JobRequest, said: Rehearsal) -> str:
    if said.places is not None:
        text = f"It would start now: {_pods(said.places, request.pods)}."
        if said.places.pods == request.pods or said.verdict is None:
            return text
        why = "Why no more" if request.gang else "Why the others wait"
        return f"{text} {why}: {said.verdict.summary}"
    if outlook is Outlook.MAKES_ROOM:
        jobs = counted(len(said.preempted), "job has", "jobs have")
        return f"It would start as soon as {jobs} made room for it."
    return _of(said.verdict)


def _of(verdict: Verdict | None) -> str:
    return verdict.summary if verdict else ""


def _pods(places: Places, wanted: int) -> str:
    """ "3 of 4 pods on 2 nodes in 1 leaf"."""
    pods = counted(places.pods, "pod", "pods")
    if places.pods < wanted:
        pods = f"{places.pods} of {counted(wanted, 'pod', 'pods')}"
    text = f"{pods} on {counted(places.nodes, 'node', 'nodes')}"
    return f"{text} in {counted(places.leaves, 'leaf', 'leaves')}" if places.leaves else text


def _alternative(request: JobRequest, other: Instead) -> OtherRequest:
    if other.gpu_model:
        text = f"On {other.gpu_model}: {_pods(other.places, request.pods)}."
        return OtherRequest(text, other.places, gpu_type=other.gpu_model)
    if request.elastic:
        text = f"With min_count {other.pods}: {_pods(other.places, request.pods)}."
        return OtherRequest(text, other.places, min_count=other.pods)
    text = f"With fewer pods: {_pods(other.places, 0)}."
    return OtherRequest(text, other.places, count=other.pods)
