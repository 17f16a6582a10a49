"""What is learned of a cluster from its rows: run times, arrivals, how true estimates were."""

from datetime import datetime, timedelta

from django.utils import timezone

from scheduling.models import Cluster, Job, StartEstimate
from scheduling.session.memory import load
from scheduling.simulator.forecast.bands import Band
from scheduling.simulator.forecast.calibration import Calibration
from scheduling.simulator.forecast.coming import KEPT as ARRIVALS_KEPT
from scheduling.simulator.forecast.coming import Coming
from scheduling.simulator.forecast.likeness import Traits
from scheduling.simulator.forecast.run_times import Basis, RunTimes

PAST = timedelta(days=30)
MOST_RUNS = 5000  # that are read at once: the newest


class Lessons:
    """Kept as long as its process lives; `catch_up` reads what is new."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.run_times, self.coming, self.calibration = RunTimes(), Coming(), Calibration()
        begin = timezone.now() - PAST
        self._ended = self._submitted = self._started = begin

    def catch_up(self) -> None:
        self._ended = self._learn_runs(self._ended)
        self._submitted = self._learn_arrivals(self._submitted)
        self._started = self._learn_starts(self._started)

    def _learn_runs(self, since: datetime) -> datetime:
        rows = Job.objects.filter(
            cluster=self._cluster, ended_at__gt=since, admitted_at__isnull=False
        ).order_by("-ended_at")
        found = rows.values_list(
            "tenant__name", "user_id", "name", "gpu_milli", "declared_s", "admitted_at", "ended_at"
        )[:MOST_RUNS]
        for tenant, user, name, milli, declared, begun, ended in reversed(found):
            assert begun is not None
            assert ended is not None  # ended_at > since
            traits = Traits(tenant, str(user or ""), name, milli, declared)
            self.run_times.ended(traits, max(0.0, (ended - begun).total_seconds()))
            since = ended
        return since

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
            if row.first_as_of is not None and row.first_basis:
                p10, p50, p90 = row.first_runs
                told = Band(p10, p50, p90, Basis(row.first_basis), "")
                self.calibration.started(
                    told, row.first_as_of.timestamp(), row.started_at.timestamp()
                )
        return since
