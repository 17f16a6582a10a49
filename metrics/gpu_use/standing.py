"""How far it is known how busy GPUs are."""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from metrics.models import GpuUseLedger
from tenants.models import User


@dataclass(frozen=True, slots=True)
class UseTold:
    """`asked`: whether a Prometheus is named. `until`: up to when it was read, None = not yet.
    `trouble`: what is wrong with it, "" = nothing, or the reader is no operator."""

    asked: bool
    until: datetime | None
    trouble: str


def told(viewer: User) -> UseTold:
    """As the viewer may know it."""
    row = GpuUseLedger.objects.first() if settings.KANT_PROMETHEUS else None
    trouble = row.trouble if row is not None and viewer.is_operator else ""
    return UseTold(bool(settings.KANT_PROMETHEUS), row.until if row is not None else None, trouble)
