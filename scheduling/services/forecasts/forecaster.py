"""Estimate when waiting jobs start, cluster by cluster, within a share of a core."""

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from scheduling.engine.shards.division import WIDE
from scheduling.engine.states import OPEN, WAITING
from scheduling.models import Cluster, Forecasting, Job
from scheduling.queries.known import FITS_NO_SHARD, CannotTell, Known, scene_at, scopes_of
from scheduling.queries.standstill import standstill
from scheduling.queries.whatif.state import KeptState
from scheduling.services.forecasts.answers import Answers, OutOfTime, WorkFailed
from scheduling.services.forecasts.lessons import Lessons
from scheduling.services.forecasts.told import note_starts, write_estimates
from scheduling.session.memory.look import look
from scheduling.simulator.forecast import bands
from scheduling.simulator.forecast.bands import Bands, bands_of
from scheduling.simulator.forecast.coming import Coming
from scheduling.simulator.forecast.ground import Ground, ground_of
from scheduling.simulator.forecast.run_times import RunTimes

log = logging.getLogger(__name__)

SHARE = 0.05  # of a core, at most
EVERY_S = 3.0  # at most this often
AT_LEAST_S = 60.0  # at least this often, even if only time has passed
ENOUGH_S = 2.0  # of CPU time, after which only the required runs ahead are made
MOST_S = 20.0  # of CPU time for a pass over one scope, after which runs ahead stop where they are
HARD_S = 30.0  # after which a pass is killed; one step of the engine can take that long
SILENT = timedelta(seconds=120)  # a pass over a long queue takes that long
NEW = timedelta(seconds=3)  # most jobs start sooner and need no forecast
NO_SHARD = f"{FITS_NO_SHARD} There is no estimate of when that will be."


@dataclass(slots=True)
class _KeptCluster:
    """What is kept of a cluster between two passes; times in seconds of the monotonic clock."""

    learned: Lessons
    signature: Any = None
    passed_at: float = 0.0
    rest_until: float = 0.0


@dataclass(slots=True)
class Forecaster:
    """Makes the forecasts; one per process.

    `holder`: its name in the rows. `answers`: keeps the states of clusters and answers questions
    meanwhile; None = everything is read again each time, and nobody asks.
    """

    holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    answers: Answers | None = None
    _known: dict[int, _KeptCluster] = field(default_factory=dict)

    def turn(self) -> int:
        """Make a pass over each cluster that is due.

        Returns how many clusters with waiting jobs are this process's.
        """
        wanted = 0
        for cluster in clusters_with_waiting():
            if not claim(cluster, self.holder, timezone.now()):
                self._known.pop(cluster.pk, None)
                continue
            wanted += 1
            self._look(cluster)
        return wanted

    def _look(self, cluster: Cluster) -> None:
        known = self._known.get(cluster.pk)
        if known is None:
            known = self._known[cluster.pk] = _KeptCluster(Lessons(cluster))
        clock = time.monotonic()
        if clock < known.rest_until:
            return
        cpu, beside = time.process_time(), 0.0
        signature = signature_of(cluster)
        if signature != known.signature or clock > known.passed_at + AT_LEAST_S:
            beside = foretell(cluster, known.learned, self.answers)
            known.signature, known.passed_at = signature, time.monotonic()
        spent = time.process_time() - cpu + beside
        known.rest_until = time.monotonic() + max(EVERY_S, spent / SHARE)


def foretell(cluster: Cluster, learned: Lessons, answers: Answers | None = None) -> float:
    """Make one pass: note starts, learn, run ahead and write; return CPU seconds of children.

    If nobody schedules the cluster, or running ahead fails, the last estimates stay, as of their
    time.
    """
    began, beside = time.process_time(), 0.0
    note_starts(cluster)
    learned.catch_up()
    try:
        known = _known(cluster, answers)
    except CannotTell:
        return beside
    now, runs, waiting = time.time(), [0], 0
    kept = known if isinstance(known, KeptState) else None
    policy = known.rows.policy if isinstance(known, KeptState) else known.policy
    run_times = learned.run_times_now(kept)
    for scope in scopes_of(policy):
        begin = _ground_of(known, scope, now)
        if answers is None:
            found = bands_from(begin, run_times, learned.coming)
        else:
            work = partial(bands_from, begin, run_times, learned.coming)
            try:
                found, spent = answers.beside(work, round(HARD_S))
            except OutOfTime:
                found, spent = _nothing_known(cluster, scope, now), HARD_S
            except WorkFailed as failed:
                log.error("no new estimates of cluster %s: %s", cluster.name, failed)
                return beside + failed.cpu_s
            beside += spent
        runs.append(found.runs)
        waiting += len(found.bands) + len(found.none)
        write_estimates(found, learned.calibration)
    if policy.shards:
        wide = Job.objects.filter(cluster=cluster, scope=WIDE, state__in=list(WAITING)).order_by()
        none = {str(job_id): NO_SHARD for job_id in wide.values_list("id", flat=True)}
        waiting += len(none)
        write_estimates(Bands(now, 0, {}, none), learned.calibration)
    Forecasting.objects.filter(cluster=cluster).update(
        as_of=datetime.fromtimestamp(now, timezone.get_default_timezone()),
        waiting=waiting,
        runs=max(runs),
        cpu_s=time.process_time() - began + beside,
    )
    return beside


def _nothing_known(cluster: Cluster, scope: str, now: float) -> Bands:
    """Return estimates that say nothing, for a scope whose pass was killed."""
    jobs = Job.objects.filter(cluster=cluster, scope=scope, state__in=list(WAITING)).order_by()
    ids = (str(job_id) for job_id in jobs.values_list("id", flat=True))
    return Bands(now, 0, {}, dict.fromkeys(ids, bands.NO_TIME))


def bands_from(begin: Callable[[], Ground], run_times: RunTimes, coming: Coming) -> Bands:
    """Estimate the waiting jobs of a scope, from what its scheduler would be told at its start."""
    began = time.process_time()
    until, most, ground = began + ENOUGH_S, began + MOST_S, begin()
    return bands_of(
        ground,
        run_times,
        coming,
        seed=int(ground.scene.now),
        most=bands.RUNS,
        enough=lambda: time.process_time() > until,
        left=lambda: max(0.0, most - time.process_time()),
    )


def _known(cluster: Cluster, answers: Answers | None) -> Known | KeptState:
    """Return what rows say of the cluster now. Raises CannotTell."""
    if why := standstill(cluster):
        raise CannotTell(why)
    kept = answers.keep(cluster) if answers is not None else None
    return Known(cluster) if kept is None else kept


def _ground_of(known: Known | KeptState, scope: str, now: float) -> Callable[[], Ground]:
    """Return a function that makes the ground for runs.

    That takes long, so it is called in their process; rows are read here.
    """
    if isinstance(known, KeptState):
        return partial(known.ground, now)
    return partial(ground_of, scene_at(known.facts(scope), now))


# --- whose turn it is -----------------------------------------------------------------------------
def clusters_with_waiting() -> QuerySet[Cluster]:
    """Return active clusters on which a job has waited longer than NEW."""
    waiting = Job.objects.filter(
        state__in=list(WAITING), submitted_at__lt=timezone.now() - NEW
    ).order_by()
    return Cluster.objects.filter(
        is_active=True, pk__in=waiting.values("cluster_id").distinct()
    ).order_by("pk")


def signature_of(cluster: Cluster) -> tuple[Any, ...]:
    """Return a value that changes with every job, tenant, quota, queue and policy."""
    jobs = Job.objects.filter(cluster=cluster, state__in=list(OPEN)).order_by()
    counted = jobs.aggregate(Count("id"), Sum("version"))
    return (*counted.values(), *look(cluster.pk).settings)


def claim(cluster: Cluster, holder: str, now: datetime) -> bool:
    """Claim the forecasts of the cluster for this process; False = another live one has them."""
    Forecasting.objects.get_or_create(cluster=cluster)
    free = Q(holder=holder) | Q(alive_at__isnull=True) | Q(alive_at__lt=now - SILENT)
    rows = Forecasting.objects.filter(free, cluster=cluster)
    return bool(rows.update(holder=holder, alive_at=now))


def let_go(holder: str) -> None:
    """Give up all claims as the process ends; another may start at once."""
    Forecasting.objects.filter(holder=holder).update(alive_at=None)


def is_wanted(now: datetime) -> bool:
    """Whether a job waits on a cluster for which no process makes forecasts."""
    alive = Forecasting.objects.filter(alive_at__gte=now - SILENT).values("cluster_id")
    return clusters_with_waiting().exclude(pk__in=alive).exists()
