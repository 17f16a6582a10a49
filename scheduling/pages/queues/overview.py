"""The page of all queues: what waits in each at which stage, its head, what runs."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.models import Cluster
from scheduling.pages.polled import polled
from scheduling.pages.tenants.tenants import in_tree_order
from scheduling.queries.queues.stages import STAGES, QueueNow, queues_now
from tenants.models import DEFAULT_QUEUE, Queue, QueueState, Tenant
from tenants.names import Names, tenant_names
from tenants.permissions import Access, access_of, lineage
from tenants.selectors import visible_queues, visible_tenants
from tenants.web.pages import (
    UnknownFilter,
    live_or_whole,
    page_login_required,
    unknown_names,
    unknown_values,
)

QUEUES_PER_PAGE = 60
FILTERS = ("q", "tenant", "state")
# Stage → its name and its meaning.
STAGE_WORDS = {
    "tenant-queue": ("Tenant queue", "On hold, or without quota yet"),
    "quota-admitted": ("Quota admitted", "Has quota, waits its turn"),
    "global-queue": ("Global queue", "Its turn has come; waits for room"),
    "being-placed": ("Being placed", "Room is being made, or pods are being bound"),
}


@dataclass(frozen=True, slots=True)
class Limit:
    """What jobs of a queue hold of a GPU type; `most`: limit in milli-GPU, None = no limit."""

    gpu_model: str
    held: int
    most: int | None

    @property
    def over(self) -> int:
        return 0 if self.most is None else max(0, self.held - self.most)


@dataclass(frozen=True, slots=True)
class QueueRow:
    now: QueueNow
    depth: int
    may_change: bool

    @property
    def stages(self) -> list[tuple[str, int]]:
        """(title of the stage, jobs in it), in order."""
        return [(STAGE_WORDS[stage][0], self.now.stages[stage]) for stage in STAGES]

    @property
    def limits(self) -> list[Limit]:
        return limits_of(self.now)


def limits_of(now: QueueNow) -> list[Limit]:
    """Return an entry for each GPU type that is held or limited."""
    most = now.queue.max_gpus
    return [
        Limit(
            model,
            now.held.get(model, 0),
            round(1000 * most[model]) if model in most else None,
        )
        for model in sorted({*now.held, *most})
    ]


def in_order(queues: Iterable[Queue], tenants: Sequence[Tenant]) -> list[tuple[Queue, int]]:
    """Return queues with their tenant's depth in the tree: for each tenant the default queue, then
    by rank."""
    of_tenant: dict[int, list[Queue]] = {}
    for queue in queues:
        of_tenant.setdefault(queue.tenant_id, []).append(queue)
    return [
        (queue, depth)
        for tenant, depth in in_tree_order(tenants)
        for queue in sorted(
            of_tenant.get(tenant.pk, ()),
            key=lambda q: (q.name != DEFAULT_QUEUE, -q.rank, q.name),
        )
    ]


@page_login_required
@require_GET
def queues(request: HttpRequest) -> HttpResponse:
    access = access_of(request.user)
    return polled(request, access, lambda: _queues(request, access), alike=True)


def _queues(request: HttpRequest, access: Access) -> HttpResponse:
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    unknown = unknown_names(request, FILTERS, "page") | unknown_filters(request.user, filters)
    tenants = list(visible_tenants(request.user))
    found = [] if unknown else filtered(list(visible_queues(request.user)), filters, tenants)
    ordered = in_order(found, tenants)
    rows = [
        QueueRow(now, depth, access.may_administer(now.queue.tenant_id))
        for now, (_, depth) in zip(queues_now([q for q, _ in ordered]), ordered, strict=True)
    ]
    context = {
        "nav": "queues",
        "page": Paginator(rows, QUEUES_PER_PAGE).get_page(request.GET.get("page")),
        "stages": totals(rows),
        "standing": standing_of(rows),
        # The table of jobs cannot filter by part of a queue's name, or by its state.
        "all_jobs": not (filters["q"] or filters["state"]),
        "filters": filters,
        "filtered": any(filters.values()),
        "unknown": unknown,
        "tenants": tenants,
        "states": QueueState.choices,
        "clusters": Cluster.objects.filter(is_active=True),
        "may_create": any_to_administer(access, tenants),
    }
    return render(request, live_or_whole(request, "scheduling/queues/queues.html"), context)


def any_to_administer(access: Access, tenants: Iterable[Tenant]) -> bool:
    return any(access.may_administer(tenant.pk) for tenant in tenants)


@dataclass(frozen=True, slots=True)
class QueuesStanding:
    """How many jobs wait in some queues, and since when the oldest. `not_open`: (state, its title,
    number of queues in it) for each such state that occurs."""

    waiting: int
    oldest: datetime | None
    not_open: list[tuple[str, str, int]]


def standing_of(rows: Collection[QueueRow]) -> QueuesStanding:
    states = Counter(row.now.queue.state for row in rows)
    return QueuesStanding(
        waiting=sum(row.now.waiting for row in rows),
        oldest=min((row.now.oldest for row in rows if row.now.oldest), default=None),
        not_open=[
            (value, title, states[value])
            for value, title in QueueState.choices
            if value != QueueState.OPEN and states[value]
        ],
    )


def totals(rows: Iterable[QueueRow]) -> list[dict[str, Any]]:
    """Return for each stage its words and the number of jobs in it, over all queues."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.now.stages)
    return staged(counts)


def staged(counts: Counter[str]) -> list[dict[str, Any]]:
    return [
        {"title": title, "text": text, "jobs": counts[stage]}
        for stage, (title, text) in STAGE_WORDS.items()
    ]


def unknown_filters(user: Any, filters: dict[str, str]) -> dict[str, UnknownFilter]:
    """Return the filters that name nothing known, by parameter name."""
    known = {
        "tenant": tenant_names(user),
        "state": Names("state of a queue", fixed=tuple(QueueState.values)),
    }
    return unknown_values(filters, known)


def filtered(
    queues: list[Queue], filters: dict[str, str], tenants: Sequence[Tenant]
) -> list[Queue]:
    """Apply the filters; that of a tenant includes all below it."""
    if filters["q"]:
        text = filters["q"].casefold()
        queues = [q for q in queues if text in f"{q.tenant.name}/{q.name} {q.title}".casefold()]
    if filters["state"]:
        queues = [q for q in queues if q.state == filters["state"]]
    if filters["tenant"]:
        parents = {t.pk: t.parent_id for t in tenants}
        top = next(t.pk for t in tenants if t.name == filters["tenant"])
        queues = [q for q in queues if top in lineage(parents, q.tenant_id)]
    return queues
