"""What priced moves have lost and what was used meanwhile, by rows (docs/decisions/0095)."""

from datetime import datetime, timedelta

from django.db.models import Sum
from django.db.models.functions import Coalesce, Greatest, Least

from scheduling.engine.deltas import MovesBefore
from scheduling.engine.running.last_look import KEPT_S
from scheduling.engine.types import MILLI
from scheduling.models import ClusterPolicy, JobEvent
from scheduling.models.held import HELD
from scheduling.models.jobs import MOVED
from scheduling.session.memory.past import Seconds, held_since


def moves_before(cluster_id: int, scope: str, at: datetime) -> MovesBefore:
    """Return use and loss in a scope before `at`, as far back as the budget reaches.

    It reaches no further than the last change of the policy, which may have started a new budget.
    """
    since = at - timedelta(seconds=KEPT_S)
    policy = ClusterPolicy.objects.filter(cluster=cluster_id).values_list("updated_at", flat=True)
    if (changed := policy.first()) is not None:
        since = min(max(since, changed), at)
    return MovesBefore(_used(cluster_id, scope, since, at), _lost(cluster_id, scope, since, at))


def _used(cluster_id: int, scope: str, since: datetime, at: datetime) -> float:
    begun, until = since.timestamp(), at.timestamp()
    ended = Coalesce(Least(Seconds("ended_at"), until), until)
    rows = (
        held_since(since, at)
        .order_by()
        .values_list("job__cluster_id", "job__scope")
        .annotate(total=Sum(HELD * (ended - Greatest(Seconds("intended_at"), begun))))
    )
    used = {(cluster, of): float(total) for cluster, of, total in rows}
    return used.get((cluster_id, scope), 0.0) / MILLI


def _lost(cluster_id: int, scope: str, since: datetime, at: datetime) -> float:
    moves = JobEvent.objects.filter(
        reason=MOVED, at__gte=since, at__lt=at, job__cluster=cluster_id, job__scope=scope
    )
    # Replicas lose nothing; their moves record no cost.
    told = moves.order_by().values_list("evidence", flat=True)
    return sum(float(evidence.get("cost_gpu_s", 0.0)) for evidence in told)
