"""What waiting jobs ask for, by their pod sets."""

from collections.abc import Collection

from django.db.models import BigIntegerField, ExpressionWrapper, F, QuerySet
from django.db.models.functions import Cast

from scheduling.engine.states import WAITING
from scheduling.models import Cluster, PodSet

# PostgreSQL multiplies in the type of the factors, which is too small for the product.
ASKED_MILLI = ExpressionWrapper(
    Cast("count", BigIntegerField()) * F("gpus") * F("gpu_milli"), output_field=BigIntegerField()
)


def waiting_sets(cluster: Cluster | None, tenants: Collection[int] | None) -> QuerySet[PodSet]:
    """Return the pod sets of waiting jobs, unordered. `tenants`: by primary key; None = all."""
    rows = PodSet.objects.filter(job__state__in=list(WAITING)).order_by()
    if cluster is not None:
        rows = rows.filter(job__cluster=cluster)
    if tenants is not None:
        rows = rows.filter(job__tenant__in=tenants)
    return rows
