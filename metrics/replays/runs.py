"""The two simulated runs of a replay: the history as it was decided, and as it would have been."""

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
READ = 0.3  # of the time goes by until the history is read
SAME_S = 1.0  # starts no further apart are the same

Figures = dict[str, Any]
Tell = Callable[[float], None]  # how much is done, in 0..1
Tenancy = tuple[float, TenantsChanged]  # from which second of the period on


class ReplayError(Exception):
    """Why there is no result, in sentences, with the remedy."""


# --- what was recorded ----------------------------------------------------------------------------
@dataclass(slots=True)
class Jobs:
    """The jobs of a period, and how many of them are not all known.

    `carried_over`: were submitted before it. `open_ended`: are not over yet. `gave_up`: were
    cancelled, or failed, before it was known how long they would have run. `declared`: those of
    them that have not started to this day, and run as long as they declared where they start here.
    `unknown`: ids of the others; where they start they hold their places until they give up, or to
    the end. `held`: on hold to this day. `unreadable`: why rows are left out.
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
        """`waits`: the job still does."""
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
    """The jobs that were open in the first `seconds` of the window; raises ReplayError for none,
    and for too many."""
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
        raise ReplayError("No job that can be read waited or ran in this period. Choose another.")
    return found


# --- one run --------------------------------------------------------------------------------------
class PeriodRun:
    """The period once more; carried out when it is made. Raises ReplayError."""

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
        """`tenancies`: tenants and quotas at the start, then as they change in the period. `past`:
        what was held before it."""
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
            # Who waits for ever waits to the end of the period, though nothing else is to come.
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
        # To the end of the period also where its last job ended before.
        self.outcome.observer.sample_until(seconds)
        for book in self.outcome.pools.values():
            book.advance(seconds)
        rows = self.outcome.observer.jobs
        # Of the jobs of the period, seconds that each waited in all; NaN = it has no place.
        waited = simulation.waited_s(self.outcome)
        self.waits = {rows.ids[i]: waited[i] for i in range(len(rows)) if rows.submitted[i] >= 0}

    @property
    def never(self) -> Collection[str]:
        """Jobs that could not have run at all."""
        return self.outcome.never.keys()

    def figures(self, left_out: Collection[str]) -> Figures:
        """What the run comes to; `left_out` are jobs that count in no wait and no JTTED."""
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
        """JWTD of all jobs but these, waiting in all."""
        rows = self.outcome.observer.jobs
        counted = [
            i for i in range(len(rows)) if rows.submitted[i] >= 0 and rows.ids[i] not in left_out
        ]
        return simulation.job_waits(self.outcome, counted).in_all

    def series(self) -> dict[str, list[float | None]]:
        """Mean GPUs allocated in each interval before an instant of `at`, and GFR then."""
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
        """The instants of the series, in seconds of the period."""
        return next((list(book.series.at) for book in self.outcome.pools.values()), [])

    def _series(self) -> tuple[list[float], list[float]]:
        """GAR of all pools together at each instant, and GPUs allocated in the interval before."""
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
        """GPU-milli-seconds since the last start of each job of which nobody knows how long it
        runs."""
        rows = self.outcome.observer.jobs
        held = 0.0
        for i, job_id in enumerate(rows.ids):
            if job_id in self._unknown and not math.isnan(rows.started[i]):
                end = self._seconds if math.isnan(rows.ended[i]) else rows.ended[i]
                held += rows.milli[i] * max(0.0, end - max(rows.started[i], 0.0))
        return held

    def _gpus(self, model: str) -> int:
        """GPUs that the pool offers, all the time."""
        return int(self.outcome.pools[model].available) // MILLI


def _shares(books: Collection[PoolBook]) -> dict[str, float | None]:
    return {
        "sor": definitions.ratio(sum(b.milli_s for b in books), sum(b.offered_s for b in books)),
        "gfr": definitions.ratio(sum(b.fragmented_s for b in books), sum(b.nodes_s for b in books)),
    }


# --- both -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Runs:
    """The history under the policy as it was when the replay was asked for and the quotas as they
    were, and under both as they are tried."""

    jobs: Jobs
    baseline: PeriodRun
    changed: PeriodRun

    @property
    def left_out(self) -> frozenset[str]:
        """Jobs that could not have run in one of them: waits of both are those of all others."""
        return frozenset(self.baseline.never) | frozenset(self.changed.never)

    def starts(self) -> dict[str, int]:
        """How many jobs of the period wait less in all, more or the same with the change, or have
        their places only in one of the runs."""
        counts = dict.fromkeys(("earlier", "later", "same", "gained", "lost", "neither"), 0)
        for _, before, after in self._both():
            counts[_moved(before, after)] += 1
        return counts

    def hardest_hit(self, most: int) -> list[tuple[str, float, float]]:
        """(id, wait in all as it was, with the change) in seconds of the jobs that wait longer and
        start still, the worst first."""
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
    """Both runs of a replay, by what is known at `now`; raises ReplayError."""
    window = history.Window(replay.cluster, replay.since, now)
    seconds = window.at(replay.until)
    jobs = jobs_of(window, seconds, _part(tell, 0.0, READ))
    nodes = list(history.nodes_of(replay.cluster))
    other = changed_nodes(
        nodes, {NodeShape(c["gpu_type"], c["gpus"]): c["change"] for c in replay.nodes}
    )
    for fleet in (nodes, other):
        if not any(node.devices for node in fleet):
            raise ReplayError("There is no node with GPUs to run the jobs on.")
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
    """Tells of a part of the whole that lasts from `begin` to `end` of it."""
    return lambda share: tell(begin + share * (end - begin))
