"""The key figures at the top of the pages of quotas and tenants."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, QuerySet, Sum

from scheduling.engine.states import WAITING
from scheduling.engine.verdict import Reason
from scheduling.models import Job
from scheduling.queries.selectors import accepting
from tenants.facts import QuotaUse
from tenants.models import Tenant

WAITS_FOR_QUOTA = Reason.WAITING_FOR_QUOTA.value


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """Figures of some tenants, in milli-GPU: what the topmost of them use and are guaranteed; how
    many tenants borrow; and how many jobs wait for quota. `reason`: the filter that lists these
    jobs."""

    used: int
    guaranteed: int
    borrowers: int
    waiting: int
    waiting_milli: int
    reason: str = WAITS_FOR_QUOTA


def quota_standing(
    seen: QuerySet[Job], tenants: Sequence[Tenant], uses: Iterable[QuotaUse], gpu: str = ""
) -> QuotaStanding:
    """Compute the figures. `seen`: the jobs that the reader may see; `uses`: of all tenants; `gpu`:
    "" = all types."""
    ids, names = {t.pk for t in tenants}, {t.name for t in tenants}
    tops = {t.name for t in tenants if t.parent_id not in ids}
    own = [u for u in uses if u.tenant in names and gpu in ("", u.gpu_model)]
    waits = seen.filter(state__in=list(WAITING), reason=WAITS_FOR_QUOTA, tenant__in=ids)
    waits = accepting(waits, gpu) if gpu else waits
    found = waits.order_by().aggregate(jobs=Count("pk"), milli=Sum("gpu_milli", default=0))
    return QuotaStanding(
        used=sum(u.used for u in own if u.tenant in tops),
        guaranteed=sum(u.guaranteed for u in own if u.tenant in tops),
        borrowers=len({u.tenant for u in own if u.borrowed}),
        waiting=found["jobs"],
        waiting_milli=found["milli"],
    )
