"""Events of jobs and changes by people, newest first, as far as a user may see them."""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar
from uuid import UUID

from django.db.models import Model, Q, QuerySet

from scheduling.engine.states import JobEventKind as Kind
from scheduling.models import Cluster, Job, JobEvent, Placement
from scheduling.models.jobs import DRAINED, LIVE_PLACEMENTS, MOVED, PREEMPTED
from tenants.database.keyset import BadCursor, packed, unpacked
from tenants.models import AuditRecord, User
from tenants.names import Names
from tenants.permissions import access_of
from tenants.selectors import visible_audit_records
from tenants.services.audit import ACTIONS

PERIOD = timedelta(days=1)  # the default period
LONGEST = timedelta(days=31)

# Names for several kinds of job events.
THEMES: dict[str, tuple[Kind, ...]] = {
    "starts": (Kind.ADMITTED, Kind.RUNNING),
    "ends": (Kind.SUCCEEDED, Kind.FAILED, Kind.CANCELLED),
    "losses": (Kind.PREEMPTED, Kind.REQUEUED),
    "jobs": tuple(Kind),
}
CHANGES = "changes"  # all changes by people, except of jobs
# Reasons of a job that loses or moves some of its pods and continues.
PARTS_LOST = (PREEMPTED, MOVED, DRAINED)
SUBJECTS = tuple(dict.fromkeys(action.partition(".")[0] for action in ACTIONS))
# What changes a cluster; the rest concerns the whole organisation.
OF_CLUSTERS = ("cluster", "node", "policy")


def event_kinds() -> Names:
    """Return all names of kinds of events."""
    return Names("kind of events", fixed=(*THEMES, CHANGES, *Kind, *SUBJECTS, *ACTIONS))


@dataclass(frozen=True, slots=True)
class EventsWanted:
    """Which events are wanted.

    - `kind`: of `event_kinds`, "" = all.
    - `tenants`: by primary key, None = all.
    - `node`: events of jobs that had places there in this time, and changes of the node; "" = all.
    - `cluster`, `job`: None = all.

    The period is at most LONGEST.
    """

    since: datetime
    until: datetime
    kind: str = ""
    tenants: Collection[int] | None = None
    cluster: Cluster | None = None
    node: str = ""
    job: UUID | None = None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event; either `event` or `record` is set, the row that it comes from.

    `kind`: of a job's event, or an action of the audit trail. `subject`: the name of the job, or
    what was changed. `by`: "" = Kant itself.
    """

    at: datetime
    kind: str
    subject: str
    tenant: str | None
    cluster: str | None
    reason: str
    message: str
    by: str
    event: JobEvent | None = None
    record: AuditRecord | None = None

    @property
    def job(self) -> Job | None:
        return self.event.job if self.event else None

    @property
    def key(self) -> tuple[str, str]:
        """A key that is unique among events."""
        source = RECORDS if self.event is None else EVENTS
        return source, str((self.event or self.record).pk)  # type: ignore[union-attr]


def period(
    since: datetime | None, until: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    """Return the period to look at; the default is PERIOD up to now.

    Raises ValueError that says what is wrong.
    """
    end = until or now
    begin = since or end - PERIOD
    if begin >= end:
        raise ValueError("Must be before the end of the period.")
    if end - begin > LONGEST:
        raise ValueError(f"The period is at most {LONGEST.days} days long.")
    return begin, end


EVENTS, RECORDS = "job", "change"  # the order within one instant
Row = TypeVar("Row", bound=Model)


def stream(
    user: User, wanted: EventsWanted, limit: int, cursor: str | None = None
) -> tuple[list[StreamEvent], str | None]:
    """Return the newest `limit` events after a cursor, and the next cursor (None = no more).

    Takes two statements for an operator. Raises BadCursor.
    """
    last = None if cursor is None else _read(cursor)
    rows = heapq.merge(
        _found(_job_events(user, wanted), last, EVENTS, limit + 1, _of_job),
        _found(_records(user, wanted), last, RECORDS, limit + 1, _of_record),
        key=lambda one: (one.at, one.key[0] == EVENTS),
        reverse=True,
    )
    page = list(islice(rows, limit + 1))
    if len(page) <= limit:
        return page, None
    end = page[limit - 1]
    return page[:limit], packed([end.at.astimezone(UTC).isoformat(), *end.key])


MOST_COUNTED = 10_000  # of a kind; beyond that people see “more”


def counts(user: User, wanted: EventsWanted, kinds: Iterable[str]) -> list[int]:
    """Return how many of the wanted events are of each of these kinds.

    `wanted.kind` is ignored. At most one more than MOST_COUNTED.
    """
    found = []
    for kind in kinds:
        of_kind = replace(wanted, kind=kind)
        rows = _records(user, of_kind) if kind == CHANGES else _job_events(user, of_kind)
        found.append(rows.order_by()[: MOST_COUNTED + 1].count())
    return found


@dataclass(frozen=True, slots=True)
class _Last:
    """The event after which a page begins."""

    at: datetime
    source: str
    pk: int | UUID


def _read(cursor: str) -> _Last:
    at, source, pk = unpacked(cursor, 3)
    if not all(isinstance(part, str) for part in (at, source, pk)) or source not in (
        EVENTS,
        RECORDS,
    ):
        raise BadCursor
    try:
        moment = datetime.fromisoformat(at)
        known: int | UUID = UUID(pk) if source == RECORDS else int(pk)
        if moment.tzinfo is None or (isinstance(known, int) and not 0 < known < 2**63):
            raise BadCursor
        return _Last(moment.astimezone(UTC), source, known)
    except (ValueError, OverflowError) as error:
        raise BadCursor from error


def _found(
    rows: QuerySet[Row],
    last: _Last | None,
    source: str,
    limit: int,
    shown: Callable[[Row], StreamEvent],
) -> Iterator[StreamEvent]:
    if last is not None:
        behind = Q(at__lt=last.at)
        if source == last.source:
            behind |= Q(at=last.at, pk__lt=last.pk)
        elif last.source == EVENTS:
            behind |= Q(at=last.at)
        # Repeated on its own: databases use an index for this, not for an "or".
        rows = rows.filter(behind, at__lte=last.at)
    return map(shown, rows.order_by("-at", "-pk")[:limit])


def _job_events(user: User, wanted: EventsWanted) -> QuerySet[JobEvent]:
    rows = JobEvent.objects.filter(at__gte=wanted.since, at__lte=wanted.until).select_related(
        "job__tenant", "job__cluster"
    )
    for tenants in (access_of(user).visible_tenants(), wanted.tenants):
        if tenants is not None:
            rows = rows.filter(job__tenant__in=tenants)
    if wanted.cluster is not None:
        rows = rows.filter(job__cluster=wanted.cluster)
    if wanted.job is not None:
        rows = rows.filter(job=wanted.job)
    if wanted.node:
        # By when they ended, as there is an index for that.
        lasted = Q(ended_at__gte=wanted.since) | Q(state__in=LIVE_PLACEMENTS)
        there = Placement.objects.filter(
            lasted, node=wanted.node, intended_at__lte=wanted.until
        ).values("job")
        rows = rows.filter(job__in=there)
    if wanted.kind in THEMES:
        kinds = Q(kind__in=THEMES[wanted.kind])
        rows = rows.filter(kinds | Q(reason__in=PARTS_LOST) if wanted.kind == "losses" else kinds)
    elif wanted.kind:
        rows = rows.filter(kind=wanted.kind) if wanted.kind in set(Kind) else rows.none()
    return rows


def _records(user: User, wanted: EventsWanted) -> QuerySet[AuditRecord]:
    rows = visible_audit_records(user).filter(at__gte=wanted.since, at__lte=wanted.until)
    if wanted.job is not None or wanted.kind in THEMES or wanted.kind in set(Kind):
        return rows.none()
    if wanted.tenants is not None:
        rows = rows.filter(tenant__in=wanted.tenants)
    if wanted.cluster is not None:
        rows = rows.filter(_of_cluster(wanted.cluster.name))
    if wanted.node:
        rows = rows.filter(action__startswith="node.", subject__endswith=f" / {wanted.node}")
    if wanted.kind not in ("", CHANGES):
        rows = rows.filter(Q(action=wanted.kind) | Q(action__startswith=f"{wanted.kind}."))
    return rows


def _of_cluster(name: str) -> Q:
    about = Q()
    for subject in OF_CLUSTERS:
        about |= Q(action__startswith=f"{subject}.")
    return about & (Q(subject=name) | Q(subject__startswith=f"{name} / "))


def _of_job(event: JobEvent) -> StreamEvent:
    job = event.job
    return StreamEvent(
        at=event.at,
        kind=event.kind,
        subject=job.name,
        tenant=job.tenant.name,
        cluster=job.cluster.name,
        reason=event.reason,
        message=event.message,
        by=event.actor,
        event=event,
    )


def _of_record(record: AuditRecord) -> StreamEvent:
    of_cluster = record.action.partition(".")[0] in OF_CLUSTERS
    return StreamEvent(
        at=record.at,
        kind=record.action,
        subject=record.subject,
        tenant=record.tenant.name if record.tenant else None,
        cluster=record.subject.partition(" / ")[0] if of_cluster else None,
        reason="",
        message=record.reason,
        by=record.actor_name,
        record=record,
    )
