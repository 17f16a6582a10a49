"""What was held in the past, by the rows of placements (docs/decisions/0033)."""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import FloatField, Func, Q, QuerySet, Sum
from django.db.models.functions import Coalesce, Greatest, Least, Power

from scheduling.engine.deltas import PastUse
from scheduling.engine.types import Policy
from scheduling.models import Placement
from scheduling.models.held import HELD

FADED = 20  # half-lives after which a millionth is left, so it no longer counts


class Seconds(Func):
    """A time in seconds since the epoch, to the millisecond."""

    arity = 1
    output_field = FloatField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        template = "((julianday(%(expressions)s) - 2440587.5) * 86400.0)"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        template = "CAST(EXTRACT(EPOCH FROM %(expressions)s) AS double precision)"
        return self.as_sql(compiler, connection, template=template, **context)


def half_life_of(policy: Policy) -> float:
    """Return the half-life of past use in the order of jobs, in seconds; 0 = it does not count."""
    return policy.usage_half_life_s if policy.fair_share else 0.0


def held_since(since: datetime, at: datetime) -> QuerySet[Placement]:
    """Return placements that held GPUs at any time between these two, in all clusters.

    Filtered by cluster, SQLite would look at each of the cluster's jobs, not at what ended since.
    """
    ended = Q(ended_at=None) | Q(ended_at__gt=since)
    return Placement.objects.filter(ended, intended_at__lt=at, held_milli__gt=0)


def past_use(cluster_id: int, half_life_s: float, at: datetime) -> PastUse:
    """Return what jobs of the cluster held before `at`, weighted by age.

    Use counts half as much every `half_life_s` seconds. A steady holding comes out as exactly what
    is held.
    """
    half_life_s = float(half_life_s)  # the database divides by the type that Django derives from it
    faded_s = FADED * half_life_s

    def kept(column: str) -> Power:
        """Return the weight at `at` of the use before a time; 1 for what is still held."""
        age = Greatest(Least(Seconds(column) - at.timestamp(), 0.0), -faded_s)
        return Power(2.0, age / half_life_s)

    held = Coalesce(kept("ended_at"), 1.0) - kept("intended_at")
    since = at - timedelta(seconds=faded_s)
    rows = (
        held_since(since, at)
        .order_by("job__tenant__name", "job__user_id", "gpu_model")
        .values_list("job__tenant__name", "job__user_id", "gpu_model", "job__cluster_id")
        .annotate(total=Sum(HELD * held))
    )
    return PastUse(
        tuple(
            (tenant, str(user or ""), model, milli)
            for tenant, user, model, cluster, milli in rows
            if cluster == cluster_id
        )
    )
