"""What a job's page shows beyond its row: its dependencies and preemptions on either side."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scheduling.engine.states import JobEventKind
from scheduling.engine.types import PreemptionKind
from scheduling.models import Job, JobEvent
from scheduling.models.jobs import MOVED, PREEMPTED, ROOM_MADE
from scheduling.queries import selectors

EVENTS_SHOWN = 100
DEPENDENCIES_SHOWN = 20
WHY = {
    PreemptionKind.PRIORITY: "which has a higher priority",
    PreemptionKind.RECLAIM: "whose tenant took back quota that it had lent",
    PreemptionKind.BACKFILL: "which had waited too long after this job passed it",
}
# By the kind of the event; a job that loses only some of its pods continues.
OUTCOMES: dict[str, str] = {
    JobEventKind.PREEMPTED: "It went back to its queue",
    JobEventKind.FAILED: "It ended, because Kant cannot create its pod again",
}


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job, or an array, that must end first.

    `first` is an array's first job. Both are None if the reader may not see it.
    """

    id: str
    job: Job | None
    first: Job | None = None


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Jobs of one kind of dependency; `more` counts those not shown."""

    title: str
    shown: tuple[Dependency, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """Why pods had to leave: for which job, and GPU-seconds lost.

    `by` None = the reader may not see that job. `outcome`: what became of the job, as a sentence.
    `total`: what all jobs lost that made room with it. `alternatives`: what other choices would
    have cost, in the scheduler's words.
    """

    by: Job | None
    why: str
    pods: int
    outcome: str
    cost: float
    total: float
    alternatives: str


@dataclass(frozen=True, slots=True)
class RoomMade:
    """Pods that make room for this job, and the GPU-seconds that all of them lose.

    `jobs`: those that the reader may see. `others`: how many more there are.
    """

    jobs: tuple[Job, ...]
    others: int
    pods: int
    total: float


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the list of events."""

    event: JobEvent
    preemption: Preemption | None
    room: RoomMade | None

    @property
    def named_by_reason(self) -> bool:
        """Whether its reason, not its kind, names what happened."""
        return bool(self.preemption or self.room) or self.event.reason == MOVED


@dataclass(frozen=True, slots=True)
class Story:
    dependencies: tuple[Dependencies, ...]
    happenings: tuple[Happening, ...]


def story_of(user: Any, job: Job) -> Story:
    """Return the story, newest events first. Other jobs are named only if `user` may see them."""
    events = list(selectors.events_of(job).order_by("-id")[:EVENTS_SHOWN])
    shown = [*job.after[:DEPENDENCIES_SHOWN], *job.after_ok[:DEPENDENCIES_SHOWN]]
    named = [i for e in events for i in _named(e)]
    known = _jobs(user, [*shown, *named])
    arrays = _arrays(user, [i for i in shown if i not in known])
    groups = (
        ("After the end of", job.after),
        ("After the success of", job.after_ok),
    )
    return Story(
        dependencies=tuple(
            _dependencies(title, ids, known, arrays) for title, ids in groups if ids
        ),
        happenings=tuple(Happening(e, _preemption(e, known), _room(e, known)) for e in events),
    )


def _jobs(user: Any, ids: Iterable[str]) -> dict[str, Job]:
    rows = selectors.visible_jobs(user).prefetch_related(None).filter(id__in=set(ids))
    return {str(row.pk): row for row in rows}


def _arrays(user: Any, ids: Iterable[str]) -> dict[str, Job]:
    """Return {array: its first job}."""
    rows = selectors.visible_jobs(user).prefetch_related(None)
    firsts = rows.filter(array_id__in=set(ids), array_index=0)
    return {str(row.array_id): row for row in firsts}


def _dependencies(
    title: str, ids: list[str], known: dict[str, Job], arrays: dict[str, Job]
) -> Dependencies:
    shown = tuple(Dependency(i, known.get(i), arrays.get(i)) for i in ids[:DEPENDENCIES_SHOWN])
    return Dependencies(title, shown, len(ids) - len(shown))


def _named(event: JobEvent) -> list[str]:
    """Return the ids of the other jobs that an event is about."""
    if _tells(event, PREEMPTED, "by"):
        return [event.evidence["by"]]
    if _tells(event, ROOM_MADE, "victims"):
        return str(event.evidence["victims"]).split(",")
    return []


def _tells(event: JobEvent, reason: str, name: str) -> bool:
    """Whether an event of this reason has this evidence."""
    return event.reason == reason and name in event.evidence


def _preemption(event: JobEvent, known: dict[str, Job]) -> Preemption | None:
    record = event.evidence
    if not _tells(event, PREEMPTED, "by"):
        return None
    return Preemption(
        by=known.get(record["by"]),
        why=WHY[PreemptionKind(record["kind"])],
        pods=record["pods"],
        outcome=OUTCOMES.get(event.kind, "It went on with the others"),
        cost=record["cost_gpu_s"],
        total=record.get("total_gpu_s", record["cost_gpu_s"]),
        alternatives=record.get("alternatives", ""),
    )


def _room(event: JobEvent, known: dict[str, Job]) -> RoomMade | None:
    record = event.evidence
    if not _tells(event, ROOM_MADE, "victims"):
        return None
    jobs = tuple(known[i] for i in _named(event) if i in known)
    return RoomMade(jobs, record["jobs"] - len(jobs), record["pods"], record["total_gpu_s"])
