"""Run times of ended jobs, for the forecast to learn from."""

from datetime import datetime, timedelta

from scheduling.models import Job
from scheduling.simulator.forecast.likeness import Traits
from scheduling.simulator.forecast.run_times import RunTimes

LEARNED_FROM = timedelta(days=30)
MOST_RUNS = 5000  # the newest runs, read at once


def learn_runs(known: RunTimes, cluster_id: int, since: datetime) -> datetime:
    """Learn the newest runs that ended after `since`; return when the last of them ended."""
    rows = Job.objects.filter(
        cluster_id=cluster_id, ended_at__gt=since, admitted_at__isnull=False
    ).order_by("-ended_at")
    found = rows.values_list(
        "tenant__name", "user_id", "name", "gpu_milli", "declared_s", "submitted_at",
        "admitted_at", "ended_at",
    )[:MOST_RUNS]  # fmt: skip
    for tenant, user, name, milli, declared, submitted, begun, ended in reversed(found):
        assert begun is not None
        assert ended is not None  # ended_at > since
        traits = Traits(tenant, str(user or ""), name, milli, declared)
        ran_s = max(0.0, (ended - begun).total_seconds())
        known.ended(traits, ran_s, submitted.timestamp())
        since = ended
    return since
