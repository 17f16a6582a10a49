"""Write what one pass decided, in one short, fenced transaction of guarded, batched updates.

What cannot conflict is written together. A thousand jobs that take the same step are one UPDATE.
Its WHERE names the state and version that each of them must still have. If fewer rows changed, the
rows are checked one by one, and jobs that somebody else wrote first are returned as stale: nothing
of their step is written.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import QuerySet

from scheduling.engine.decisions import Blocked, Reservation, Waiting
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.verdict import Verdict
from scheduling.models import Job, JobConstraints, JobEvent, NodeOrder, Placement
from scheduling.models.held import columns_of
from scheduling.models.jobs import PlacementState as P
from scheduling.services.common.bulk import Changed, Ids, Rows, insert, write_together
from scheduling.services.common.lease import Lease, fence, write_fenced
from scheduling.services.plain_pods.ahead import StillSo
from scheduling.services.plain_pods.new_jobs import NewRows
from scheduling.services.plain_pods.take_up import TakenUp
from scheduling.services.scheduler.ruled import Elsewhere, jobs_to_put_back
from scheduling.services.scheduler.territory import (
    ask_for_nodes,
    check_own,
    claim,
    hand_over_nodes,
    hold_scopes,
    route_jobs,
)
from scheduling.session.memory.constraints import Document
from scheduling.session.memory.live import (
    OF_PODS,
    OVER,
    LiveJob,
    LivePod,
    Note,
    PodStep,
    ReasonChange,
    Transition,
    Writes,
)
from tenants.database.chunks import chunks

POD_COLUMNS = (
    "state", "message", "reason", "pod_uid", "bound_at", "running_at", "ended_at", "held_from",
)  # fmt: skip
PLACE = "json_build_array(id, job_id, pod_set, ordinal)"
# The time stamp that a step sets, besides state and version.
STAMPS = {
    Kind.ADMITTED: "admitted_at",
    Kind.RUNNING: "running_at",
    Kind.SUCCEEDED: "ended_at",
    Kind.FAILED: "ended_at",
    Kind.CANCELLED: "ended_at",
}


class Committed(NamedTuple):
    """The result of a pass's writes.

    - `stale`: ids of jobs that somebody else changed first, including `put_back` and `taken_back`.
    - `put_back`: jobs that have to wait for other scopes (`ruled`).
    - `taken_back`: new jobs that are not written, as what they were made from has changed.
    - `events`: ids of the events about what memory already knows.
    """

    stale: set[str]
    events: Sequence[int] = ()
    put_back: Set[str] = frozenset()
    taken_back: Set[str] = frozenset()


def apply_decisions(
    lease: Lease,
    writes: Writes,
    now: datetime,
    taken: TakenUp | None = None,
    elsewhere: Elsewhere | None = None,
) -> Committed:
    """Write everything or nothing. Raises LeaseLost.

    `taken`: plain pods taken up before the decision, in a transaction that continues and is fenced,
    unless they were taken up ahead. `elsewhere`: None in an undivided cluster.
    """
    if taken is None and writes.is_of_pods:
        write_fenced(lease, _pods(writes, now), _jobs(writes, set(), writes.stand_at, now))
        return Committed(set())
    ahead = taken.ahead if taken is not None else None
    is_so = True
    if taken is not None and ahead is not None and _is_about(writes, taken.made):
        written = _at_once(lease, ahead, writes, now, taken)
        if written is not None:
            return written
        is_so = False
    goes_on = taken is not None and ahead is None
    with transaction.atomic(savepoint=not goes_on):
        if not goes_on:
            fence(lease)
        taken_back = set[str]()
        if taken is None:
            taken = TakenUp(NewRows(), [], Ids())
        elif ahead is not None and not (is_so and ahead.holds()):
            taken_back.update(taken.made.ids)
            taken = TakenUp(NewRows(), [], Ids())
        fresh = taken.made
        put_back = set[str]()
        if elsewhere is not None and writes.intents:
            hold_scopes(lease, writes.routes)  # first, as the scopes kept out below hold such rows
            put_back = jobs_to_put_back(lease, writes.intents, elsewhere, now)
        stale = put_back | taken_back
        done: list[Transition] = []
        for batch in _rounds(writes.transitions):
            done += _advance([t for t in batch if t.job_id not in stale], fresh, stale, now)
        intents = [i for i in writes.intents if i[0].id not in stale]
        if lease.scope != WHOLE:
            check_own(lease, (pod.place.node for _, pod in intents))
        events: list[JobEvent | dict[str, Any]] = [_event(t, now) for t in done]
        # A waiting job may have moved to another cluster meanwhile.
        mine = Job.objects.filter(cluster_id=lease.cluster_id)
        stand_at = _stand(mine, writes.stand_at, fresh)
        events += _write_reasons(mine, writes, taken, stale, now)
        if (
            writes.staying
            or writes.reservations
            or writes.blocked
            or writes.constraints
            or writes.stand_as_submitted
        ):
            fresh.write()  # the writes below look up their jobs
        _write_staying(writes.staying, now)
        _write_reservations(mine, writes.reservations)
        _write_blocked(mine, writes.blocked)
        for chunk in chunks(writes.stand_as_submitted):
            mine.filter(id__in=chunk).update(stands_at=None)
        _write_constraints(mine, writes.constraints)
        events += [_noted(note, now) for note in writes.notes if note.job_id not in stale]
        # In a divided cluster new jobs are routed first, as news.
        known = len(events) + (len(fresh.events) if lease.scope == WHOLE else 0)
        of_fresh = fresh.events
        events = [*of_fresh, *events] if lease.scope == WHOLE else [*events, *of_fresh]
        events += taken.followed
        places, ids = taken.ids.take((Placement, len(intents)), (JobEvent, len(events)))
        write_together(
            *fresh.tables,
            _intents(intents, places, now),
            _pods(writes, now),
            _jobs(writes, stale, stand_at, now),
            _events(events, ids),
        )
        insert(_write_scopes(lease, writes, now))
        if writes.opened:
            orders = NodeOrder.objects.filter(cluster_id=lease.cluster_id, plan__isnull=False)
            orders.filter(node__in=writes.opened).delete()
    for (_, pod), row_id in zip(intents, places, strict=True):
        pod.row, pod.placed_at = row_id, now.timestamp()
    # An id without an event is no gap in which one may still appear.
    events_known = [*ids[:known], *taken.ids.left(JobEvent)]
    return Committed(stale, events_known, put_back, taken_back)


# --- what one statement can write -----------------------------------------------------------------
def _is_about(writes: Writes, fresh: NewRows) -> bool:
    """Whether it concerns only jobs that are not written yet, and pods that have places."""
    others = {"offers", "transitions", "intents", "reasons"} | OF_PODS
    if any(getattr(writes, name) for name in writes.__slots__ if name not in others):
        return False
    ids = [t.job_id for t in writes.transitions] + [job.id for job, _ in writes.intents]
    ids += [change.job_id for change in writes.reasons]
    ids += writes.stand_at
    return all(job_id in fresh for job_id in ids)


def _at_once(
    lease: Lease, ahead: StillSo, writes: Writes, now: datetime, taken: TakenUp
) -> Committed | None:
    """Write all of it if what it was made from still holds; otherwise return None."""
    fresh, nobody = taken.made, set[str]()
    done = [t for batch in _rounds(writes.transitions) for t in _advance(batch, fresh, nobody, now)]
    mine = Job.objects.none()  # no job has a row yet
    events: list[JobEvent | dict[str, Any]] = [*fresh.events, *(_event(t, now) for t in done)]
    events += _write_reasons(mine, writes, taken, nobody, now)
    found = ahead.write(
        lease,
        [
            *fresh.tables,
            _pods(writes, now),
            _jobs(writes, nobody, _stand(mine, writes.stand_at, fresh), now),
        ],
        [
            (_intents(writes.intents, None, now), PLACE),
            (_events(events, None), "id"),
        ],
    )
    if found is None:
        return None
    places, ids = found
    row_of = {(job_id, pod_set, ordinal): row_id for row_id, job_id, pod_set, ordinal in places}
    for job, pod in writes.intents:
        pod.row, pod.placed_at = row_of[job.id, *pod.key], now.timestamp()
    return Committed(nobody, ids)


# --- jobs -----------------------------------------------------------------------------------------
def _rounds(transitions: Iterable[Transition]) -> Iterator[list[Transition]]:
    """Yield the first step of every job, then the second …: a job's steps depend on each other."""
    rounds: list[list[Transition]] = []
    count: dict[str, int] = defaultdict(int)
    for step in transitions:
        nth = count[step.job_id]
        count[step.job_id] = nth + 1
        if nth == len(rounds):
            rounds.append([])
        rounds[nth].append(step)
    return iter(rounds)


def _advance(
    transitions: Iterable[Transition], fresh: NewRows, stale: set[str], now: datetime
) -> list[Transition]:
    """Take these steps; add to `stale`, and return the steps that were taken.

    The rows of `fresh` jobs have yet to be written.
    """
    groups: dict[tuple[Any, ...], list[Transition]] = defaultdict(list)
    done: list[Transition] = []
    for t in transitions:
        if t.job_id in fresh:
            fresh.change(t.job_id, **_job_values(t, now))
            done.append(t)
            continue
        same = (t.kind, t.from_state, t.version, t.reason, t.message, t.columns, t.evidence)
        groups[same].append(t)
    for group in groups.values():
        first = group[0]
        values = _job_values(first, now)
        for chunk in chunks(group):
            rows = Job.objects.filter(state=first.from_state, version=first.version)
            ids = [t.job_id for t in chunk]
            if rows.filter(id__in=ids).update(**values) == len(ids):
                done += chunk
                continue
            # Somebody else wrote one of them first. Jobs that took the step have all its values: a
            # person's cancellation leads to the same state and version.
            written = {name: value for name, value in values.items() if name != "evidence"}
            taken = Job.objects.filter(id__in=ids, **written).values_list("id", flat=True)
            mine = {str(i) for i in taken}
            done += [t for t in chunk if t.job_id in mine]
            stale.update(t.job_id for t in chunk if t.job_id not in mine)
    return done


def _job_values(t: Transition, now: datetime) -> dict[str, Any]:
    values: dict[str, Any] = {
        "state": t.to_state.value,
        "version": t.version + 1,
        "reason": t.reason,
        "message": t.message,
        "evidence": dict(t.evidence),
        "reason_at": now,
        **dict(t.columns),
    }
    if t.kind in (Kind.QUOTA_RESERVED, Kind.QUOTA_LOST):
        # The job keeps waiting; its reason is written with the reasons.
        for name in ("reason", "message", "evidence", "reason_at"):
            del values[name]
    if t.kind in STAMPS:
        values[STAMPS[t.kind]] = now
    if isinstance(values.get("not_before"), float):
        values["not_before"] = datetime.fromtimestamp(values["not_before"], UTC)
    return values


def _event(t: Transition, now: datetime) -> dict[str, Any]:
    """Return an event's columns: a model instance would cost more than all that follows."""
    evidence = {"evidence": dict(t.evidence)} if t.evidence else {}
    return evidence | {
        "job_id": t.job_id,
        "at": now,
        "kind": t.kind.value,
        "from_state": t.from_state.value,
        "to_state": t.to_state.value,
        "reason": t.reason,
        "message": t.message,
    }


def _noted(note: Note, now: datetime) -> JobEvent:
    return JobEvent(
        job_id=note.job_id,
        at=now,
        kind=Kind.REASON.value,
        from_state=note.state.value,
        to_state=note.state.value,
        reason=note.reason,
        message=note.message,
        evidence=dict(note.evidence),
    )


def _write_reasons(
    mine: QuerySet[Job], writes: Writes, taken: TakenUp, stale: set[str], now: datetime
) -> list[JobEvent]:
    """Write reasons of waiting jobs, equal ones together; return events of changed reasons."""
    latest = {change.job_id: change for change in writes.reasons if change.job_id not in stale}
    groups: dict[tuple[str, str, str], list[ReasonChange]] = defaultdict(list)
    placed, held = {job.id for job, _ in writes.intents}, taken.held()
    for change in latest.values():
        if change.job_id in held:
            continue  # from now on its pod says why it waits
        verdict = change.verdict
        if change.job_id in taken.made:
            if change.job_id not in placed:
                taken.made.change(change.job_id, **_reason_values(verdict, now))
            continue
        numbers = repr(sorted(verdict.evidence.items()))
        groups[verdict.reason.value, verdict.summary, numbers].append(change)
    for group in groups.values():
        values = _reason_values(group[0].verdict, now)
        for chunk in chunks([change.job_id for change in group]):
            mine.filter(id__in=chunk, state__in=list(WAITING)).update(**values)
    return [
        JobEvent(
            job_id=change.job_id,
            at=now,
            kind=Kind.REASON.value,
            from_state=change.state.value,
            to_state=change.state.value,
            reason=change.verdict.reason.value,
            message=change.verdict.summary,
            evidence=dict(change.verdict.evidence),
        )
        for change in latest.values()
        if change.is_noted
    ]


def _reason_values(verdict: Verdict, now: datetime) -> dict[str, Any]:
    return {
        "reason": verdict.reason.value,
        "message": verdict.summary,
        "evidence": {**verdict.evidence, "remedies": list(verdict.remedies)},
        "reason_at": now,
    }


def _write_staying(staying: Iterable[Waiting], now: datetime) -> None:
    """Write why running jobs get no more pods, for people to see."""
    for told in staying:
        verdict = told.verdict
        growth = {
            "reason": verdict.reason.value,
            "summary": verdict.summary,
            "evidence": dict(verdict.evidence),
            "at": now.isoformat(),
        }
        Job.objects.filter(id=told.job_id, state__in=list(HOLDING)).update(growth=growth)


def _write_constraints(mine: QuerySet[Job], constraints: Mapping[str, Document | None]) -> None:
    """Write what the engine is told of jobs beyond their rows; None = nothing any more."""
    for chunk in chunks(sorted(constraints)):
        there = mine.filter(id__in=chunk).values_list("id", flat=True)
        rows = [
            JobConstraints(job_id=job_id, document=document)
            for job_id in there
            if (document := constraints[str(job_id)]) is not None
        ]
        over = [job_id for job_id in chunk if constraints[job_id] is None]
        if over:
            JobConstraints.objects.filter(job_id__in=over).delete()
        JobConstraints.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["job"], update_fields=["document"]
        )


def _write_reservations(mine: QuerySet[Job], reservations: Iterable[Reservation]) -> None:
    """Write where and when blocked heads are expected to start, for people to see."""
    for known in reservations:
        at = None if known.start_at is None else datetime.fromtimestamp(known.start_at, UTC)
        mine.filter(id=known.job_id).update(reserved_start=at, reserved_nodes=list(known.nodes))


def _write_blocked(mine: QuerySet[Job], changes: Iterable[Blocked]) -> None:
    """Write since when heads are blocked, for the next scheduler."""
    for job in changes:
        at = None if job.since is None else datetime.fromtimestamp(job.since, UTC)
        mine.filter(id=job.job_id).update(blocked_since=at)


def _stand(
    mine: QuerySet[Job], stand_at: Mapping[str, float], fresh: NewRows
) -> Mapping[str, float]:
    """Set since when jobs stand in the queue on new rows; return it for the other jobs."""
    others = []
    for job_id, at in stand_at.items():
        if job_id in fresh:
            fresh.change(job_id, stands_at=datetime.fromtimestamp(at, UTC))
        else:
            others.append(job_id)
    found: dict[str, float] = {}
    for chunk in chunks(others):
        here = mine.filter(id__in=chunk).order_by().values_list("id", flat=True)
        found.update((str(job_id), stand_at[str(job_id)]) for job_id in here)
    return found


def _jobs(writes: Writes, stale: set[str], stand_at: Mapping[str, float], now: datetime) -> Changed:
    """Return the columns that change for jobs.

    These are the numbers of failures and restarts, since when they stand in the queue, and when all
    that they need was bound: from then on they count as scheduled (metrics.md).
    """
    stands_at = {i: datetime.fromtimestamp(at, UTC) for i, at in stand_at.items()}
    bound = {i: _time(at, now) for i, at in writes.bound_jobs.items() if i not in stale}
    told: dict[str, Mapping[str, Any]] = {
        "bound_at": bound,
        "failures": writes.failures,
        "restarts": writes.restarts,
        "stands_at": stands_at,
    }
    columns = {name: new for name, new in told.items() if new}
    jobs = dict.fromkeys(job_id for new in columns.values() for job_id in new)
    rows = [(job_id, *(new.get(job_id) for new in columns.values())) for job_id in jobs]
    return Changed(Job, [*columns], rows, kept=columns)


def _events(events: Sequence[JobEvent | dict[str, Any]], ids: Sequence[int] | None) -> Rows:
    """Return rows of events. `ids` None: the table assigns them."""
    rows = Rows(JobEvent, with_ids=ids is not None)
    blank = rows.prepare(JobEvent())
    for number, event in enumerate(events):
        own = {} if ids is None else {"id": ids[number]}
        if isinstance(event, JobEvent):
            rows.add(rows.prepare(event), **own)
        else:
            rows.add(blank, **own, **event)
    return rows


def _write_scopes(lease: Lease, writes: Writes, now: datetime) -> list[JobEvent]:
    """Write what changes hands between scopes; after the pods, whose ends free the nodes."""
    if writes.claims:
        claim(lease, writes.claims, now)
    for handover in writes.handovers:
        hand_over_nodes(lease, handover)
    if writes.wanted is not None:
        ask_for_nodes(lease, writes.wanted)
    return route_jobs(lease, writes.routes, now)


# --- pods -----------------------------------------------------------------------------------------
def _intents(
    intents: Sequence[tuple[LiveJob, LivePod]], ids: Sequence[int] | None, now: datetime
) -> Rows:
    """Return rows of intents. `ids` None: the table assigns them."""
    rows = Rows(Placement, with_ids=ids is not None)
    blank = rows.prepare(Placement(intended_at=now))
    for number, (job, pod) in enumerate(intents):
        own = {} if ids is None else {"id": ids[number]}
        rows.add(
            blank,
            **own,
            job_id=job.id,
            attempt=pod.attempt,
            namespace=job.namespace,
            pod_name=pod.name,
            gpu_model=pod.gpu_model,
            **columns_of(pod.place),
        )
    return rows


def _pods(writes: Writes, now: datetime) -> Changed:
    """Return what each pod has become, and from when it counts as allocated (metrics.md).

    A pod that took several steps in one pass gets its last state.
    """
    merged: dict[int, tuple[PodStep, PodStep]] = {}
    for step in writes.steps:
        if step.pod.row:
            first = merged.get(step.pod.row, (step, step))[0]
            merged[step.pod.row] = (first, step)
    values: dict[str, Any]
    rows: dict[int, dict[str, Any]] = {}
    for row, (first, last) in merged.items():
        values = rows[row] = {"state": last.to_state.value, "message": last.message}
        values["reason"] = last.pod.reason
        if first.from_state == P.INTENDED and last.to_state != P.RELEASED:
            values |= {"pod_uid": last.pod.uid, "bound_at": _time(first.at, now)}
        if last.to_state is P.RUNNING:
            values["running_at"] = now
        if last.to_state in OVER:
            values["ended_at"] = now
    for pod, at in writes.held:
        if pod.row:
            rows.setdefault(pod.row, {})["held_from"] = _time(at, now)
    once = ("held_from",)
    names = [name for name in POD_COLUMNS if any(name in values for values in rows.values())]
    new = [(row, *(values.get(name) for name in names)) for row, values in rows.items()]
    return Changed(Placement, names, new, kept={*names}.difference(once), once=once)


def _time(at: float, now: datetime) -> datetime:
    """Return when something happened: the reported time, or else `now`."""
    return datetime.fromtimestamp(at, UTC) if at else now
