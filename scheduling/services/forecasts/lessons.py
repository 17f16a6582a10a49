"""What is learned of a cluster from its rows: run times, arrivals, accuracy of estimates."""

from datetime import datetime

from django.utils import timezone

from scheduling.engine.states import WAITING
from scheduling.models import Cluster, Job, StartEstimate
from scheduling.queries.whatif.state import KeptState
from scheduling.session.memory import load
from scheduling.session.memory.ended_runs import LEARNED_FROM, learn_runs
from scheduling.simulator.forecast.bands import Band
from scheduling.simulator.forecast.calibration import KEPT, Calibration, ToldBand
from scheduling.simulator.forecast.coming import KEPT as ARRIVALS_KEPT
from scheduling.simulator.forecast.coming import Coming
from scheduling.simulator.forecast.run_times import Basis, RunTimes


class Lessons:
    """What its process has learned. `catch_up` reads what is new."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.coming, self.calibration = Coming(), Calibration()
        self._run_times = RunTimes()
        begin = timezone.now() - LEARNED_FROM
        self._ended = self._submitted = self._started = begin

    def catch_up(self) -> None:
        self._submitted = self._learn_arrivals(self._submitted)
        self._started = self._learn_starts(self._started)
        self._learn_waits()

    def run_times_now(self, kept: KeptState | None) -> RunTimes:
        """Return the run times that the kept state has learned; without one, read them here."""
        if kept is not None:
            return kept.run_times
        self._ended = learn_runs(self._run_times, self._cluster.pk, self._ended)
        return self._run_times

    def _learn_arrivals(self, since: datetime) -> datetime:
        rows = Job.objects.filter(cluster=self._cluster, submitted_at__gt=since)
        newest = rows.order_by("-submitted_at").values_list("id", "submitted_at")
        found = list(newest[:ARRIVALS_KEPT])
        jobs, _ = load.jobs([str(job_id) for job_id, _ in found])
        for job in jobs:
            self.coming.came(job.request, job.name)
        return found[0][1] if found else since

    def _learn_starts(self, since: datetime) -> datetime:
        rows = StartEstimate.objects.filter(job__cluster=self._cluster, started_at__gt=since)
        for row in rows.order_by("started_at"):
            assert row.started_at is not None
            since = row.started_at
            if told := _first_of(row):
                self.calibration.started(told, row.started_at.timestamp())
        return since

    def _learn_waits(self) -> None:
        rows = StartEstimate.objects.filter(
            job__cluster=self._cluster,
            job__state__in=list(WAITING),
            started_at__isnull=True,
            first_as_of__isnull=False,
        ).order_by("-first_as_of")
        told = [first for row in reversed(rows[:KEPT]) if (first := _first_of(row))]
        self.calibration.waiting(told, timezone.now().timestamp())


def _first_of(row: StartEstimate) -> ToldBand | None:
    """Return the first estimate of a job."""
    if row.first_as_of is None or row.first_p10 is None or row.first_p90 is None:
        return None
    p10, p50, p90 = row.first_runs
    return ToldBand(
        Band(p10, p50, p90, Basis(row.first_basis), ""),
        row.first_p10.timestamp(),
        row.first_p90.timestamp(),
        row.first_as_of.timestamp(),
    )
