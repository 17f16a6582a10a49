"""The page of GPU-hours by tenant and user, with its chart and its CSV file."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from metrics import definitions
from metrics.gpu_time import usage
from metrics.gpu_time.accounting import Amount
from metrics.gpu_time.days import ONE_DAY, midnight
from metrics.gpu_time.guarantees import guaranteed
from metrics.gpu_time.usage import Labels, Period, UsageScope, gpu_hours
from metrics.gpu_use.standing import told
from metrics.pages import charts
from metrics.pages.operations.views import figure_answer
from scheduling.pages.tenants.tenants import in_tree_order
from tenants.models import Tenant
from tenants.names import tenant_names
from tenants.permissions import access_of, lineage
from tenants.selectors import parents_by_id, subtree_ids, visible_tenants
from tenants.web.csv_files import csv_answer
from tenants.web.pages import UnknownFilter, actor_of, page_login_required, to_list, unknown_names

FILTERS = ("since", "until", "tenant")
USERS_SHOWN = 50
MOST_DAYS = 92  # that a chart shows individually


@dataclass(slots=True)
class UsageRow:
    """What a tenant or user used. `by_model`: milli-GPU x milliseconds held of each GPU model.

    `guaranteed`: the same for its guarantee; `borrowed`: for what it held above its guarantee.
    `tenant` is None for a user and for a deleted tenant.
    """

    name: str | None
    tenant: Tenant | None = None
    depth: int = 0
    amount: Amount = field(default_factory=Amount)
    by_model: Counter[str] = field(default_factory=Counter)
    guaranteed: Counter[str] = field(default_factory=Counter)
    borrowed: Counter[str] = field(default_factory=Counter)
    models: list[str] = field(default_factory=list)

    def add(self, model: str, amount: Amount) -> None:
        self.amount.add(amount)
        self.by_model[model] += amount.held

    @property
    def cells(self) -> list[tuple[str, str, float | None, str]]:
        """For each GPU model of the table: its name, GPU-hours, their share of the guaranteed ones,
        and GPU-hours borrowed ("" = none)."""
        return [
            (
                model,
                hours_text(self.by_model[model]),
                definitions.ratio(self.by_model[model], self.guaranteed[model]),
                hours_text(self.borrowed[model]) if self.borrowed[model] else "",
            )
            for model in self.models
        ]

    @property
    def borrowed_hours(self) -> str:
        return hours_text(self.borrowed.total())

    @property
    def hours(self) -> str:
        return hours_text(self.amount.held)

    @property
    def lost(self) -> str:
        return hours_text(self.amount.lost)

    @property
    def idle(self) -> str:
        return hours_text(self.amount.idle)

    @property
    def idle_share(self) -> float | None:
        return definitions.ratio(self.amount.idle, self.amount.measured)


def hours_text(amount: int) -> str:
    """Format milli-GPU x milliseconds as GPU-hours: "1,234", "12.5", "0.04", "0"."""
    hours = gpu_hours(amount)
    decimals = 0 if hours >= 100 or hours == 0 else 1 if hours >= 1 else 2
    return f"{hours:,.{decimals}f}" if hours == 0 or hours >= 0.005 else "<0.01"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the reader looks at, from the query string. Errors there are in `unknown`, and then
    nothing is shown. `tenant` None: all that the reader may see, which are in `tenants`."""

    scope: UsageScope
    tenant: Tenant | None
    tenants: list[Tenant]
    unknown: dict[str, UnknownFilter]


def chosen(request: HttpRequest) -> Chosen:
    unknown = unknown_names(request, FILTERS)
    today = timezone.now().date()
    given = {name: request.GET.get(name, "") for name in FILTERS}
    try:
        period = usage.period_of(given["since"], given["until"], today)
    except usage.WrongPeriod as error:
        period, name = usage.period_of("", "", today), error.parameter
        unknown[name] = UnknownFilter(name, given[name], str(error).rstrip("."))
    tenants = list(visible_tenants(request.user))
    tenant = next((t for t in tenants if t.name == given["tenant"]), None)
    ids = access_of(request.user).visible_tenants()
    if tenant is not None:
        ids = frozenset(subtree_ids(tenant.pk))
        tenants = [t for t in tenants if t.pk in ids]
    elif given["tenant"]:
        text = tenant_names(request.user).none_such(given["tenant"])
        unknown["tenant"] = UnknownFilter("tenant", given["tenant"], text)
    return Chosen(UsageScope(period, ids), tenant, tenants, unknown)


def known(request: HttpRequest) -> Chosen:
    """Return the choice; raise Http404 for an invalid parameter."""
    found = chosen(request)
    for unknown in found.unknown.values():
        raise Http404(f"{unknown.text}.")
    return found


@page_login_required
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    now, found = timezone.now(), chosen(request)
    groupings = (("tenant", "gpu_type"), ("user", "gpu_type"))
    of_tenants, of_users = ({}, {}) if found.unknown else usage.usages(found.scope, groupings, now)
    by_tenant, by_user = _tenant_rows(found.tenants, of_tenants), _user_rows(of_users)
    total = usage.total_of(of_users.values())
    busy = usage.total_of(of_tenants.values())
    ledger = usage.days_known()
    since, borrowed_from = ledger.complete_from, ledger.borrowed_from
    period = found.scope.period
    borrowed_known = borrowed_from is None or borrowed_from <= period.since
    if not found.unknown:
        _add_guarantees(by_tenant, period)
    models = sorted({m for row in by_tenant.values() for m in row.by_model + row.guaranteed})
    for row in (*by_tenant.values(), *by_user.values()):
        row.models = models
    users = sorted(by_user.values(), key=lambda row: (-row.amount.held, row.name or ""))
    context = {
        "nav": "usage",
        "chosen": found,
        "period": period,
        "today": now.date(),
        "periods": _periods(period, now.date(), found.tenant.name if found.tenant else ""),
        "unknown": found.unknown,
        "models": models,
        "tenants": [r for r in by_tenant.values() if r.amount or r.guaranteed],
        "users": users[:USERS_SHOWN],
        "more_users": max(0, len(users) - USERS_SHOWN),
        "used": bool(total),
        "hours": hours_text(total.held),
        "lost": hours_text(total.lost),
        "pods": total.pods,
        "lost_share": definitions.ratio(total.lost, total.held),
        "idle": hours_text(busy.idle),
        "idle_share": definitions.ratio(busy.idle, busy.measured),
        "measured_share": definitions.ratio(busy.measured, busy.held),
        "busy": told(actor_of(request)),
        "complete_from": since if since and since > period.since else None,
        "borrowed_from": None if borrowed_known else borrowed_from,
        "last_written": ledger.until - ONE_DAY if ledger.pk else None,
    }
    return render(request, "metrics/usage/usage.html", context)


def _tenant_rows(tenants: list[Tenant], amounts: Mapping[Labels, Amount]) -> dict[str, UsageRow]:
    """Return rows of tenants in tree order; each includes all tenants below it."""
    parents, names = parents_by_id(), {t.pk: t.name for t in tenants}
    rows = {t.name: UsageRow(t.name, t, depth) for t, depth in in_tree_order(tenants)}
    above = {t.name: [names[i] for i in lineage(parents, t.pk) if i in names] for t in tenants}
    for (tenant, model), amount in amounts.items():
        assert tenant is not None
        assert model is not None
        own = replace(amount, borrowed=0)
        if own:
            for name in above.get(tenant, [tenant]):
                rows.setdefault(name, UsageRow(name)).add(model, own)
        # Already includes all below.
        if amount.borrowed:
            rows.setdefault(tenant, UsageRow(tenant)).borrowed[model] += amount.borrowed
    return rows


def _user_rows(amounts: Mapping[Labels, Amount]) -> dict[str | None, UsageRow]:
    rows: dict[str | None, UsageRow] = {}
    for (user, model), amount in amounts.items():
        assert model is not None
        rows.setdefault(user, UsageRow(user)).add(model, amount)
    return rows


def _add_guarantees(rows: Mapping[str, UsageRow], period: Period) -> None:
    """A tenant's quota covers all below it, so it is not added to theirs."""
    end = min(period.end, timezone.now())
    for (tenant, model), amount in guaranteed(midnight(period.since), end).items():
        if tenant in rows and amount:
            rows[tenant].guaranteed[model] += amount


def _periods(period: Period, today: date, tenant: str) -> list[tuple[str, str, bool]]:
    """Return the selectable periods: title, query string, whether it is the current choice."""
    month = today.replace(day=1)
    last = Period((month - ONE_DAY).replace(day=1), month - ONE_DAY)
    kept = {"tenant": tenant} if tenant else {}
    offered: tuple[tuple[str, dict[str, str], Period], ...] = (
        ("This month", {}, Period(month, today)),
        ("Last month", {"since": str(last.since), "until": str(last.until)}, last),
        ("Last 7 days", {"since": "7d"}, Period(today - timedelta(days=6), today)),
        ("Last 30 days", {"since": "30d"}, Period(today - timedelta(days=29), today)),
    )
    return [(title, urlencode(query | kept), one == period) for title, query, one in offered]


@page_login_required
@require_safe
def chart(request: HttpRequest) -> HttpResponse:
    scope = known(request).scope
    period = scope.period
    days = [period.since + timedelta(days=i) for i in range((period.until - period.since).days + 1)]
    unit = "day" if len(days) <= MOST_DAYS else "month"
    names = (str(day)[: 10 if unit == "day" else 7] for day in days)
    found: dict[str, dict[str, float]] = {name: defaultdict(float) for name in names}
    for (name, model), amount in usage.usage(scope, (unit, "gpu_type"), timezone.now()).items():
        assert name is not None
        assert model is not None
        found[name][model] = gpu_hours(amount.held)
    return figure_answer(request, charts.gpu_hours(found, unit))


@page_login_required
@require_safe
def as_csv(request: HttpRequest, name: str, by: tuple[str, ...]) -> HttpResponse:
    """Return the page's numbers as CSV, with each tenant on its own as in REST. If there are too
    many rows, redirect to the page with an error."""
    scope = known(request).scope
    name = f"{name}-{scope.period.since}-{scope.period.until}.csv"
    try:
        rows = usage.usage(scope, by, timezone.now(), usage.MOST_ROWS)
    except usage.TooManyUsageRows as error:
        messages.error(request, str(error), extra_tags="bad")
        return to_list(reverse("usage"), request.GET)
    return csv_answer(name, *usage.as_table(by, usage.items(by, rows)))
