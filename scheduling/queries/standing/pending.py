"""Why jobs wait for GPUs: waiting jobs by reason and GPU type."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min, Sum
from django.db.models.fields.json import KeyTextTransform

from scheduling.engine.verdict import NEVER, Reason
from scheduling.models import Cluster
from scheduling.queries.standing.waiting import ASKED_MILLI, waiting_sets


@dataclass(frozen=True, slots=True)
class PendingReason:
    """How many jobs wait for a reason, and for how many GPUs of a type.

    `gpu_type`: the first that they accept, "" = any. A job with several pod sets counts for the
    type of each. `reason` "" = not examined yet. `never`: no state of the cluster could start them.
    `since`: when the first was submitted.
    """

    reason: str
    gpu_type: str
    jobs: int
    milli: int
    since: datetime
    never: bool


def pending(
    *,
    tenants: Collection[int] | None,
    cluster: Cluster | None = None,
    gpu_type: str | None = None,
) -> list[PendingReason]:
    """Return the reasons, most GPUs first. `tenants`: by primary key, None = all.

    Takes one statement.
    """
    by = "job__held", "job__reason", KeyTextTransform(0, "gpu_models")
    sums = (
        waiting_sets(cluster, tenants)
        .values_list(*by)
        .annotate(
            jobs=Count("job", distinct=True),
            milli=Sum(ASKED_MILLI),
            since=Min("job__submitted_at"),
        )
    )
    found: dict[tuple[str, str], PendingReason] = {}
    for held, told, model, jobs, amount, since in sums:
        # A user who sets a hold sees it at once, before a cycle finds it.
        reason, model = Reason.ON_HOLD if held else told, model or ""
        if gpu_type is None or model == gpu_type:
            one = PendingReason(reason, model, jobs, amount, since, reason in NEVER)
            key = reason, model
            found[key] = _together(found[key], one) if key in found else one
    return sorted(found.values(), key=lambda one: (-one.milli, one.reason, one.gpu_type))


def _together(a: PendingReason, b: PendingReason) -> PendingReason:
    return PendingReason(
        a.reason, a.gpu_type, a.jobs + b.jobs, a.milli + b.milli, min(a.since, b.since), a.never
    )
