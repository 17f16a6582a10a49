"""A job while the simulator runs it, and the outcome of a run."""

from dataclasses import dataclass

from scheduling.engine.native import copied_by_fields
from scheduling.engine.types import PodPlacement
from scheduling.simulator.model import Arrival, Pod, Settings
from scheduling.simulator.observe import Observer, PoolBook


class TraceError(ValueError):
    """An impossible arrival: its time goes backwards, or its duration is negative."""


@dataclass(slots=True, init=False)
class Run:
    """A job known to the shell: its row, the work that is left, and its places while it runs.

    - `unit`: the number of its first row in the observer's table of waits.
    - `epoch`: grows with every interruption; events of an earlier epoch no longer count.
    - `evicted`: how often each pod was preempted; `stops`: preempted or lost with its node.
    - `stopped_at`: since when the job has been leaving its places; `given_up`: it was cancelled
      since then.
    - `begun`: when each pod got its place, if on its own; otherwise all did at `since`.
    - `ends`: the end of each pod that has its own; `moving`: the ends of pods that are moving to
      another node.
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
        """Return the number of this pod's row in the table of waits."""
        job = self.arrival.job
        if job.gang:
            return self.unit
        number = self.unit + pod[1]
        for s in job.pod_sets[: pod[0]]:
            number += s.count
        return number

    def evict(self, pod: Pod, usual_s: float) -> float:
        """Count a preemption of the pod; return the seconds until it is gone.

        `usual_s`: from the end of its notice on, unless more is known of this pod.
        """
        before = self.evicted.get(pod, 0)
        self.evicted[pod] = before + 1
        self.stops[pod] = self.stops.get(pod, 0) + 1
        known = (self.arrival.leaves_s or {}).get(pod, ())
        return known[before] if before < len(known) else self.arrival.notice_s + usual_s

    def displaced(self, pod: Pod) -> None:
        """Note that the pod lost its place, and is missing until it has another one."""
        self.stops[pod] = self.stops.get(pod, 0) + 1
        self.moving.pop(pod, None)
        self.missing += not self.arrival.job.gang

    def working_from(self, since: float, settings: Settings) -> tuple[float, float]:
        """Return when a pod with a place `since` then began to run, and when its work went on."""
        bound = since + settings.bind_delay_s
        return bound, bound + (settings.restart_s if self.attempts > 1 else 0.0)

    def interrupt(self, now: float, settings: Settings) -> float:
        """Keep what was saved of its work; return how many seconds that is."""
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
    """The outcome of a run. `partial`: it was cancelled before its end."""

    observer: Observer
    pools: dict[str, PoolBook]
    ended_at: float
    events: int
    cycles: int
    partial: bool
    never: dict[str, str]  # job id -> why it can never run
    waiting: int


copied_by_fields(RunOutcome)
