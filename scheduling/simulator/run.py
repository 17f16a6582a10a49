"""A job while the simulator runs it, and what is left when the run is over."""

from dataclasses import dataclass

from scheduling.engine.native import copied_by_fields
from scheduling.engine.types import PodPlacement
from scheduling.simulator.model import Arrival, Pod, Settings
from scheduling.simulator.observe import Observer, PoolBook


class TraceError(ValueError):
    """An arrival that cannot be: its time goes backwards, or its duration is negative."""


@dataclass(slots=True, init=False)
class Run:
    """A job the shell knows: its row, what is left of its work, and its places while it runs.

    `epoch` grows with every interruption: what was to happen in an earlier one does not.
    `evicted`: how often each pod was preempted, `stops`: or lost its node. `stopped_at`: since when
    the job is leaving its places, `given_up` if it was cancelled since then.
    `begun`: when each pod got its place that did so on its own, else all at `since`.
    `ends`: when each pod ends that has an end of its own, `moving` when those that are on their way
    to another node do. `unit`: the number of its first row in the observer's table of waits.
    """

    arrival: Arrival
    row: int
    unit: int
    left_s: float
    saved_s: float
    epoch: int
    since: float
    attempts: int
    missing: int
    places: dict[Pod, PodPlacement] | None
    evicted: dict[Pod, int]
    stops: dict[Pod, int]
    stopped_at: float | None
    given_up: bool
    begun: dict[Pod, float]
    ends: dict[Pod, float]
    moving: dict[Pod, float]

    def __init__(self, arrival: Arrival, row: int, unit: int) -> None:
        self.arrival = arrival
        self.row = row
        self.unit = unit
        self.left_s = arrival.duration_s
        self.missing = arrival.job.pods
        self.saved_s = 0.0
        self.epoch = 0
        self.since = 0.0
        self.attempts = 0
        self.places = None
        self.evicted = {}
        self.stops = {}
        self.stopped_at = None
        self.given_up = False
        self.begun = {}
        self.ends = {}
        self.moving = {}

    def unit_of(self, pod: Pod) -> int:
        """The number of the row in the table of waits that tells of this pod."""
        job = self.arrival.job
        if job.gang:
            return self.unit
        number = self.unit + pod[1]
        for s in job.pod_sets[: pod[0]]:
            number += s.count
        return number

    def evict(self, pod: Pod, usual_s: float) -> float:
        """Count a pod's preemption; how long it takes to go this time, `usual_s` if not known."""
        before = self.evicted.get(pod, 0)
        self.evicted[pod] = before + 1
        self.stops[pod] = self.stops.get(pod, 0) + 1
        known = (self.arrival.leaves_s or {}).get(pod, ())
        return known[before] if before < len(known) else usual_s

    def displaced(self, pod: Pod) -> None:
        """The pod lost its place, and is missing until it has another one."""
        self.stops[pod] = self.stops.get(pod, 0) + 1
        self.moving.pop(pod, None)
        self.missing += not self.arrival.job.gang

    def working_from(self, since: float, settings: Settings) -> tuple[float, float]:
        """When a pod with a place `since` then ran, and when its work went on."""
        bound = since + settings.bind_delay_s
        return bound, bound + (settings.restart_s if self.attempts > 1 else 0.0)

    def interrupt(self, now: float, settings: Settings) -> float:
        """Keep what was saved of its work; returns how many seconds of it."""
        _, began = self.working_from(self.since, settings)
        stopped = now if self.stopped_at is None else self.stopped_at
        worked = min(self.left_s, max(0.0, stopped - began))
        step = settings.checkpoint_s
        saved = worked - worked % step if step else 0.0
        self.left_s -= saved
        self.saved_s += saved
        self.stopped_at = None
        self.missing = self.arrival.job.pods
        return saved


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The end of a run. `partial`: it was cancelled before its end."""

    observer: Observer
    pools: dict[str, PoolBook]
    ended_at: float
    events: int
    cycles: int
    partial: bool
    never: dict[str, str]  # job id -> why it can never run
    waiting: int


copied_by_fields(RunOutcome)
