"""Up to when GPU activity is known."""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from metrics.models import GpuUseLedger
from tenants.models import User


@dataclass(frozen=True, slots=True)
class UseTold:
    """`asked`: a Prometheus is configured. `until`: up to when it was read; None = not yet.
    `trouble`: what is wrong with it; "" = nothing, or the reader is not an operator."""

    asked: bool
    until: datetime | None
    trouble: str


def told(viewer: User) -> UseTold:
    """Return what the viewer may know of it."""
    row = GpuUseLedger.objects.first() if settings.KANT_PROMETHEUS else None
    trouble = row.trouble if row is not None and viewer.is_operator else ""
    return UseTold(bool(settings.KANT_PROMETHEUS), row.until if row is not None else None, trouble)
