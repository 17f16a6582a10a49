"""How much quotas guaranteed over a period: what they guarantee now, and back from there by the
changes that the audit trail tells."""

from collections import Counter
from datetime import datetime

from metrics.totals import MICROSECOND
from tenants.models import AuditRecord, Quota


def guaranteed(begin: datetime, end: datetime) -> Counter[tuple[str, str]]:
    """Milli-GPU x milliseconds guaranteed in [begin, end), by names of tenant and GPU type."""
    quotas = Quota.objects.order_by().values_list(
        "tenant__name", "gpu_type__name", "guaranteed_milli"
    )
    held = {(tenant, gpu_type): milli for tenant, gpu_type, milli in quotas}
    until = dict.fromkeys(held, end)
    sums: Counter[tuple[str, str]] = Counter()

    def count(key: tuple[str, str], since: datetime) -> None:
        """Its amount was the same from then to where it is counted already."""
        if since < until.setdefault(key, end):
            sums[key] += held.get(key, 0) * ((until[key] - since) // MICROSECOND)
            until[key] = since

    changes = AuditRecord.objects.filter(
        action__in=("quota.changed", "quota.deleted"), at__gt=begin
    ).order_by("-at", "-id")
    for subject, at, before in changes.values_list("subject", "at", "before"):
        tenant, _, gpu_type = subject.partition(" / ")
        count((tenant, gpu_type), at)
        held[tenant, gpu_type] = round(1000 * before["guaranteed"]) if before else 0
    for key in held:
        count(key, begin)
    return Counter({key: (us + 500) // 1000 for key, us in sums.items()})
