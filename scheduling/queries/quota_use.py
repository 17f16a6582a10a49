"""What each tenant now uses, borrows and lends, by the scheduler's own book of quotas."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from django.db.models import Min, Q, Sum

from scheduling.engine import types
from scheduling.engine.quota.book import QuotaBook, QuotaBooking
from scheduling.engine.quota.ledger import ledger
from scheduling.engine.verdict import gpus
from scheduling.models import Placement
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from tenants.facts import QuotaUse
from tenants.models import Quota, Tenant


def quota_uses(book: QuotaBook | None = None) -> list[QuotaUse]:
    """Return every quota with what is held of it in all clusters, by tenant and GPU model."""
    book = book or quota_book()
    borrowed_from: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    lent_to: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for loan in ledger(book):
        # What a tenant's own jobs use of its children's quotas is within its own quota.
        if loan.lender and loan.borrower not in book.lineage(loan.lender):
            borrowed_from[loan.borrower, loan.gpu_model][loan.lender] += loan.milli
        # What the children use is already used.
        if loan.lender not in book.lineage(loan.borrower):
            lent_to[loan.lender, loan.gpu_model][loan.borrower] += loan.milli
    nobody = Counter[str]()
    found = []
    for a in book.accounts():
        key = a.tenant, a.gpu_model
        lenders, borrowers = borrowed_from.get(key, nobody), lent_to.get(key, nobody)
        found.append(
            QuotaUse(
                a.tenant,
                a.gpu_model,
                a.guaranteed,
                a.used,
                min(a.over, a.used),
                borrowers.total(),
                dict(lenders.most_common()),
                dict(borrowers.most_common()),
                a.non_preemptible,
            )
        )
    return found


def use_of(tenant: str, gpu_model: str) -> QuotaUse | None:
    """Return the use of one quota; None = there is none."""
    uses = quota_uses()
    return next((u for u in uses if (u.tenant, u.gpu_model) == (tenant, gpu_model)), None)


QuotaKey = tuple[str, str]  # tenant, GPU model
# The columns that `terms_of` reads.
TERMS = (
    "tenant__name", "gpu_type__name", "guaranteed_milli", "mode", "borrow_limit_milli",
    "lend_limit_milli",
)  # fmt: skip


def quota_book(
    instead: Mapping[QuotaKey, Quota | None] | None = None,
    more: Mapping[tuple[str, str, bool], int] | None = None,
    *,
    parents: Mapping[str, str | None] | None = None,
    by_job: bool = False,
) -> QuotaBook:
    """Return the book as the scheduler keeps it, from the placements that hold GPUs now.

    - `instead`: quotas as if stored (None = no quota).
    - `more`: further milli-GPU held, by (tenant, GPU model, whether by non-preemptible jobs).
    - `parents`: of all tenants, by name, if read before.
    - `by_job`: with a booking for each job; otherwise the book does not know which job holds what.
    """
    # By columns: a model instance for each row takes longer than all the rest.
    stored = Quota.objects.order_by().values_list(*TERMS)
    quotas: dict[QuotaKey, types.QuotaSpec | None] = {}
    for tenant, model, guaranteed, mode, *limits in stored:
        quotas[tenant, model] = types.QuotaSpec(
            tenant, model, guaranteed, types.Sharing(mode), *limits
        )
    for key, quota in (instead or {}).items():
        quotas[key] = None if quota is None else terms_of(quota)
    if parents is None:
        parents = dict(Tenant.objects.order_by().values_list("name", "parent__name"))
    held = {} if by_job else _held()
    for (tenant, model, is_fixed), milli in (more or {}).items():
        all_milli, fixed = held.get((tenant, model), (0.0, 0.0))
        held[tenant, model] = (
            max(0.0, all_milli + milli), max(0.0, fixed + (milli if is_fixed else 0)),
        )  # fmt: skip
    book = QuotaBook()
    if by_job:
        book.bookings.update(_bookings())
    book.replace(
        [types.TenantSpec(name, parent) for name, parent in parents.items()],
        [terms for _, terms in sorted(quotas.items()) if terms is not None],
        [(*key, *amounts) for key, amounts in held.items()],
    )
    return book


def _held() -> dict[QuotaKey, tuple[float, float]]:
    """Return what jobs of each tenant hold, and the part of non-preemptible jobs."""
    non_preemptible = Sum(HELD, filter=Q(job__preemptible=False), default=0.0)
    rows = (
        Placement.objects.filter(state__in=LIVE_PLACEMENTS)
        .order_by()
        .values_list("job__tenant__name", "gpu_model")
        .annotate(milli=Sum(HELD), non_preemptible=non_preemptible)
    )
    return {(tenant, model): (milli, fixed) for tenant, model, milli, fixed in rows}


def _bookings() -> dict[str, QuotaBooking]:
    """Return what each job holds, by id, and since when its pods were decided."""
    rows = (
        Placement.objects.filter(state__in=LIVE_PLACEMENTS)
        .order_by()
        .values_list("job", "job__tenant__name", "job__preemptible", "gpu_model")
        .annotate(milli=Sum("held_milli"), more=Sum("held_beyond"), since=Min("intended_at"))
    )
    found: dict[str, QuotaBooking] = {}
    for job, tenant, preemptible, model, milli, more, since in rows:
        booking = found.setdefault(
            str(job), QuotaBooking(tenant, since.timestamp(), not preemptible)
        )
        booking.since = min(booking.since, since.timestamp())
        carried, booking.beyond[model] = divmod(more, types.BEYOND)
        booking.held[model] = milli + carried
    return found


def terms_of(quota: Quota) -> types.QuotaSpec:
    """Return a row as the engine knows it."""
    return types.QuotaSpec(
        quota.tenant.name,
        quota.gpu_type.name,
        quota.guaranteed_milli,
        types.Sharing(quota.mode),
        quota.borrow_limit_milli,
        quota.lend_limit_milli,
    )


def never_allowed(
    book: QuotaBook,
    tenant: str,
    sets: Iterable[tuple[Sequence[str], int]],
    *,
    non_preemptible: bool,
) -> str:
    """Return why quotas can never let pod sets start together; "" = they may.

    Each set has its acceptable GPU models and its milli-GPU, and runs on one of the models.
    """
    limits = (
        "by jobs that are not preemptible"
        if non_preemptible and book.reclaims
        else "borrowing included"
    )
    named: dict[str, int] = {}
    for models, milli in sets:
        most = max(
            (book.ceiling(tenant, model, non_preemptible=non_preemptible) for model in models),
            default=0,
        )
        if len(models) == 1:
            named[models[0]] = named.get(models[0], 0) + milli
        elif milli > most:
            return (
                f"It asks for {milli / types.MILLI:g} GPUs of one type; tenant {tenant} can never "
                f"hold more than {most / types.MILLI:g} of any, {limits}."
            )
    for model, milli in named.items():
        if not book.chain(tenant, model):
            return f"Tenant {tenant} has no quota for {model}."
        most = book.ceiling(tenant, model, non_preemptible=non_preemptible)
        if milli > most:
            return (
                f"It asks for {gpus(milli, model)}; tenant {tenant} can never hold more than "
                f"{gpus(most, model)}, {limits}."
            )
    return ""


def headroom(book: QuotaBook, tenant: str, gpu_model: str) -> int:
    """Return the most milli-GPU of a model that quotas let the tenant take now, in whole GPUs."""
    low, high = 0, book.ceiling(tenant, gpu_model) // types.MILLI
    while low < high:
        middle = (low + high + 1) // 2
        if book.refusal(tenant, gpu_model, middle * types.MILLI) is None:
            low = middle
        else:
            high = middle - 1
    return low * types.MILLI
