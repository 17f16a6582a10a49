"""The two simulated runs of a replay: the baseline under the old settings, and the run with the
change."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median
from typing import Any

from metrics import definitions
from metrics.models import Replay
from metrics.replays import quotas
from metrics.replays.scenario import NodeShape, changed_nodes
from metrics.simulate import results as simulation
from scheduling.engine.deltas import PolicyChanged, TenantsChanged
from scheduling.engine.states import WAITING
from scheduling.engine.types import MILLI, Node, Policy, QueueSpec
from scheduling.models import Job
from scheduling.policy.document import to_policy
from scheduling.queries import history
from scheduling.session.memory.load import tenancy
from scheduling.session.memory.queues import queues, released
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival, Settings, TimedChange
from scheduling.simulator.observe import NEVER, PoolBook
from scheduling.simulator.run import TraceError

MOST_JOBS = 200_000
POINTS = 240  # of a series
READ = 0.3  # share of the time that reading the history takes
SAME_S = 1.0  # starts no further apart count as equal

Figures = dict[str, Any]
Tell = Callable[[float], None]  # receives the progress in 0..1
Tenancy = tuple[float, TenantsChanged]  # the second of the period from which it holds


class ReplayError(Exception):
    """Why there is no result, and what to do, in sentences."""


# --- what was recorded ----------------------------------------------------------------------------
@dataclass(slots=True)
class Jobs:
    """The jobs of a period, with counts of those that are not fully known.

    `carried_over`: submitted before the period. `open_ended`: not over yet. `gave_up`: cancelled or
    failed before their run time was known. `declared`: the part of these that has never started and
    runs for its declared time if it starts here. `unknown`: ids of the others; if they start, they
    hold their places until they give up, or to the end. `held`: still on hold. `unreadable`: why
    rows are left out.
    """

    arrivals: list[Arrival] = field(default_factory=list)
    carried_over: int = 0
    open_ended: int = 0
    gave_up: int = 0
    declared: int = 0
    unknown: set[str] = field(default_factory=set)
    held: int = 0
    unreadable: list[str] = field(default_factory=list)

    def add(self, arrival: Arrival, *, waits: bool) -> None:
        """Add an arrival. `waits`: the job still waits today."""
        job = arrival.job
        self.carried_over += arrival.submitted_at < 0
        self.held += arrival.not_before == math.inf
        if arrival.duration_s == math.inf:
            gave_up = arrival.cancel_after_s is not None
            self.gave_up += gave_up
            self.open_ended += not gave_up
            if job.declared_s is not None and (gave_up or waits):
                self.declared += 1
                arrival = replace(arrival, duration_s=float(job.declared_s))
            else:
                self.unknown.add(job.id)
        self.arrivals.append(arrival)


def jobs_of(window: history.Window, seconds: float, tell: Tell) -> Jobs:
    """Return the jobs that were open in the first `seconds` of the window; raise ReplayError when
    there are none or too many."""
    waiting = Job.objects.filter(cluster=window.cluster, state__in=list(WAITING))
    wait = {str(job_id) for job_id in waiting.values_list("pk", flat=True)}
    found = Jobs()
    for one in history.arrivals_of(window):
        if isinstance(one, history.HistoryError):
            found.unreadable.append(str(one))
        elif one.submitted_at >= seconds:
            break
        elif len(found.arrivals) == MOST_JOBS:
            raise ReplayError(
                f"More than {MOST_JOBS:,} jobs waited or ran in this period. Choose a shorter one."
            )
        else:
            found.add(one, waits=one.job.id in wait)
            tell(max(0.0, one.submitted_at / seconds))
    if not found.arrivals:
        raise ReplayError("No readable job waited or ran in this period. Choose another period.")
    return found


# --- one run --------------------------------------------------------------------------------------
class PeriodRun:
    """One simulated run of the period; the constructor carries it out. Raises ReplayError."""

    def __init__(
        self,
        jobs: Jobs,
        nodes: Sequence[Node],
        policy: Policy,
        tenancies: Sequence[Tenancy],
        queues: tuple[QueueSpec, ...],
        past: Sequence[TimedChange],
        seconds: float,
        tell: Tell,
    ) -> None:
        """`tenancies`: tenants and quotas at the start, then each change in the period. `past`:
        what was held before the period."""
        self._nodes, self._seconds, self._unknown = nodes, seconds, jobs.unknown
        _, first = tenancies[0]
        simulated = Simulation(
            nodes,
            jobs.arrivals,
            policy=policy,
            tenants=first.tenants,
            quotas=first.quotas,
            queues=queues,
            settings=Settings(
                sample_s=max(1.0, seconds / POINTS),
                warm_up_s=-history.RUNNING_AT,
                stop_s=seconds,
            ),
            # A job that waits forever must wait to the end of the period, even if nothing else
            # happens.
            changes=[
                *past,
                *(TimedChange(at, tenancy) for at, tenancy in tenancies[1:]),
                TimedChange(seconds + 1.0, PolicyChanged(policy)),
            ],
            start=history.RUNNING_AT,
        )
        try:
            with simulation.no_collection():
                self.outcome = simulated.run(
                    lambda now, _events, _jobs: tell(max(0.0, now / seconds))
                )
        except TraceError as error:
            raise ReplayError(f"The history cannot be simulated: {error}.") from error
        # Extend the series to the end of the period, even if the last job ended earlier.
        self.outcome.observer.sample_until(seconds)
        for book in self.outcome.pools.values():
            book.advance(seconds)
        rows = self.outcome.observer.jobs
        # For the jobs of the period, the seconds that each waited in total; NaN = it has no place.
        waited = simulation.waited_s(self.outcome)
        self.waits = {rows.ids[i]: waited[i] for i in range(len(rows)) if rows.submitted[i] >= 0}

    @property
    def never(self) -> Collection[str]:
        """Jobs that could never have run."""
        return self.outcome.never.keys()

    def figures(self, left_out: Collection[str]) -> Figures:
        """Return the figures of the run; jobs in `left_out` count in no wait and no JTTED."""
        found = simulation.summary(self.outcome, self._nodes, left_out=left_out)
        books = self.outcome.pools
        gar, _ = self._series()
        return {
            "gpus": sum(self._gpus(model) for model in books),
            "gar": median(gar) if gar else None,
            **_shares(books.values()),
            "gpu_hours": sum(book.milli_s for book in books.values()) / 3.6e6,
            "unknown_gpu_hours": self._held_by_unknown() / 3.6e6,
            "pools": [
                {
                    "gpu_type": model,
                    "gpus": self._gpus(model),
                    "gar": found["pools"][model]["gar_median"],
                    **_shares([book]),
                }
                for model, book in sorted(books.items())
            ],
            "jwtd": [{"size": size, **row} for size, row in found["waits"].items()],
            "tenants": [{"tenant": name, **row} for name, row in found["tenants"].items()],
            "jtted": [
                {
                    "size": size,
                    "jobs": row["jobs"],
                    "node_deviation": row["nodes"],
                    "group_deviation": row["groups"],
                }
                for size, row in found["jtted"].items()
            ],
            "jobs": found["jobs"],
            "never_runnable": len(self.never),
            **{
                name: found[name]
                for name in ("preempted_jobs", "preemptions", "moves", "lost_gpu_hours")
            },
        }

    def curve(self, left_out: Collection[str]) -> definitions.WaitCurve:
        """Return the total waits of all jobs but these."""
        rows = self.outcome.observer.jobs
        counted = [
            i for i in range(len(rows)) if rows.submitted[i] >= 0 and rows.ids[i] not in left_out
        ]
        return simulation.job_waits(self.outcome, counted).in_all

    def series(self) -> dict[str, list[float | None]]:
        """Return mean GPUs allocated in the interval before each instant of `at`, and GFR at that
        instant."""
        _, gpus = self._series()
        nodes = {model: book.nodes for model, book in self.outcome.pools.items() if book.nodes}
        series = {model: self.outcome.pools[model].series for model in nodes}
        gfr = [
            definitions.ratio(
                sum(series[m].gfr[i] * count for m, count in nodes.items()), sum(nodes.values())
            )
            for i in range(len(gpus))
        ]
        return {"gpus": list(gpus), "gfr": gfr}

    def at(self) -> list[float]:
        """Return the instants of the series, in seconds of the period."""
        return next((list(book.series.at) for book in self.outcome.pools.values()), [])

    def _series(self) -> tuple[list[float], list[float]]:
        """Return GAR of all pools together at each instant, and GPUs allocated in the interval
        before it."""
        pools = [
            (self._gpus(model), book.series)
            for model, book in self.outcome.pools.items()
            if self._gpus(model)
        ]
        total = sum(gpus for gpus, _ in pools)
        points = range(len(self.at()) if pools else 0)
        return (
            [sum(gpus * series.gar[i] for gpus, series in pools) / total for i in points],
            [sum(gpus * series.sor[i] for gpus, series in pools) for i in points],
        )

    def _held_by_unknown(self) -> float:
        """Return the GPU-milli-seconds since the last start of each job whose run time is
        unknown."""
        rows = self.outcome.observer.jobs
        held = 0.0
        for i, job_id in enumerate(rows.ids):
            if job_id in self._unknown and not math.isnan(rows.started[i]):
                end = self._seconds if math.isnan(rows.ended[i]) else rows.ended[i]
                held += rows.milli[i] * max(0.0, end - max(rows.started[i], 0.0))
        return held

    def _gpus(self, model: str) -> int:
        """Return the GPUs that the pool offers throughout."""
        return int(self.outcome.pools[model].available) // MILLI


def _shares(books: Collection[PoolBook]) -> dict[str, float | None]:
    return {
        "sor": definitions.ratio(sum(b.milli_s for b in books), sum(b.offered_s for b in books)),
        "gfr": definitions.ratio(sum(b.fragmented_s for b in books), sum(b.nodes_s for b in books)),
    }


# --- both -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Runs:
    """The history under the policy as of the replay's request and the quotas as they were, and
    under both as changed."""

    jobs: Jobs
    baseline: PeriodRun
    changed: PeriodRun

    @property
    def left_out(self) -> frozenset[str]:
        """Jobs that could not have run in one of the runs; the waits of both runs leave them
        out."""
        return frozenset(self.baseline.never) | frozenset(self.changed.never)

    def starts(self) -> dict[str, int]:
        """Return how many jobs of the period wait less, more or the same in total with the change,
        or have their places in only one of the runs."""
        counts = dict.fromkeys(("earlier", "later", "same", "gained", "lost", "neither"), 0)
        for _, before, after in self._both():
            counts[_moved(before, after)] += 1
        return counts

    def hardest_hit(self, most: int) -> list[tuple[str, float, float]]:
        """Return (id, total wait before, total wait with the change) in seconds for jobs that wait
        longer but still start, worst first."""
        later = [one for one in self._both() if _moved(*one[1:]) == "later"]
        return sorted(later, key=lambda one: (one[1] - one[2], one[0]))[:most]

    def _both(self) -> Iterator[tuple[str, float, float]]:
        for job_id, before in self.baseline.waits.items():
            yield job_id, before, self.changed.waits.get(job_id, NEVER)


def _moved(before: float, after: float) -> str:
    if math.isnan(before):
        return "neither" if math.isnan(after) else "gained"
    if math.isnan(after):
        return "lost"
    if abs(after - before) <= SAME_S:
        return "same"
    return "earlier" if after < before else "later"


def simulated(replay: Replay, now: datetime, tell: Tell) -> Runs:
    """Compute both runs of a replay from what is known at `now`; raise ReplayError."""
    window = history.Window(replay.cluster, replay.since, now)
    seconds = window.at(replay.until)
    jobs = jobs_of(window, seconds, _part(tell, 0.0, READ))
    nodes = list(history.nodes_of(replay.cluster))
    other = changed_nodes(
        nodes, {NodeShape(c["gpu_type"], c["gpus"]): c["change"] for c in replay.nodes}
    )
    for fleet in (nodes, other):
        if not any(node.devices for node in fleet):
            raise ReplayError("There is no node with GPUs on which the jobs could run.")
    tenants = tenancy(replay.cluster_id).tenants
    lines = released(queues(replay.cluster_id))

    def tenancies(changes: Sequence[quotas.Document]) -> list[Tenancy]:
        over_time = quotas.over_time(replay.since, replay.until, changes)
        return [(window.at(at), TenantsChanged(tenants, found)) for at, found in over_time]

    def run(
        fleet: Sequence[Node], policy: Policy, changes: Sequence[quotas.Document], told: Tell
    ) -> PeriodRun:
        past = history.held_before(window, policy)
        return PeriodRun(jobs, fleet, policy, tenancies(changes), lines, past, seconds, told)

    before, after = to_policy(replay.policy_before), to_policy(replay.policy)
    half = (READ + 1.0) / 2
    baseline = run(nodes, before, (), _part(tell, READ, half))
    changed = run(other, after, replay.quotas, _part(tell, half, 1.0))
    return Runs(jobs, baseline, changed)


def _part(tell: Tell, begin: float, end: float) -> Tell:
    """Return a `Tell` for the part of the progress from `begin` to `end`."""
    return lambda share: tell(begin + share * (end - begin))
