"""What each tenant uses, borrows and lends now, by the scheduler's own book of quotas."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Sum

from scheduling.engine import types
from scheduling.engine.queueing.ledger import ledger
from scheduling.engine.queueing.quota import QuotaBook
from scheduling.engine.verdict import gpus
from scheduling.models import Placement
from scheduling.models.jobs import LIVE_PLACEMENTS
from tenants.models import Quota, Tenant


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use of one tenant's quota of one GPU model, its children's included, in milli-GPU. `lent` is
    what tenants that are not below it use."""

    tenant: str
    gpu_model: str
    guaranteed: int
    used: int
    borrowed: int
    lent: int

    @property
    def own(self) -> int:
        return self.used - self.borrowed


def quota_uses(book: QuotaBook | None = None) -> list[QuotaUse]:
    """Every quota with what is held of it over all clusters, by tenant and GPU model."""
    book = book or quota_book()
    lent: dict[tuple[str, str], int] = {}
    for loan in ledger(book):
        if loan.lender in book.lineage(loan.borrower):
            continue  # what the children use is used already
        key = (loan.lender, loan.gpu_model)
        lent[key] = lent.get(key, 0) + loan.milli
    return [
        QuotaUse(
            a.tenant,
            a.gpu_model,
            a.guaranteed,
            a.used,
            min(a.over, a.used),
            lent.get((a.tenant, a.gpu_model), 0),
        )
        for a in book.accounts()
    ]


def use_of(tenant: str, gpu_model: str) -> QuotaUse | None:
    """The use of one quota; None where there is none."""
    uses = quota_uses()
    return next((u for u in uses if (u.tenant, u.gpu_model) == (tenant, gpu_model)), None)


def quota_book() -> QuotaBook:
    """The book as the scheduler keeps it, from the placements that hold GPUs now."""
    book = QuotaBook()
    parents = dict(Tenant.objects.order_by().values_list("name", "parent__name"))
    book.replace(
        [types.Tenant(name, parent) for name, parent in parents.items()],
        [
            types.Quota(
                q.tenant.name,
                q.gpu_type.name,
                q.guaranteed_milli,
                types.QuotaMode(q.mode),
                q.borrow_limit_milli,
                q.lend_limit_milli,
            )
            for q in Quota.objects.select_related("tenant", "gpu_type")
        ],
    )
    held = (
        Placement.objects.filter(state__in=LIVE_PLACEMENTS)
        .order_by("job__submitted_at")
        .values_list("job_id", "job__tenant__name", "gpu_model", "job__submitted_at")
        .annotate(milli=Sum("held_milli"))
    )
    for job_id, tenant, model, submitted_at, milli in held:
        book.book(str(job_id), tenant, model, milli, submitted_at.timestamp())
    return book


def never_allowed(tenant: str, sets: Iterable[tuple[Sequence[str], int]]) -> str:
    """Why quotas can never let pod sets start together, "" when they may; each set is its
    acceptable GPU models and its milli-GPU, and runs on one of them."""
    book = quota_book()
    named: dict[str, int] = {}
    for models, milli in sets:
        most = max((book.ceiling(tenant, model) for model in models), default=0)
        if len(models) == 1:
            named[models[0]] = named.get(models[0], 0) + milli
        elif milli > most:
            return (
                f"It asks for {milli / types.MILLI:g} GPUs of one type; tenant {tenant} can never "
                f"hold more than {most / types.MILLI:g} of any, borrowing included."
            )
    for model, milli in named.items():
        if not book.chain(tenant, model):
            return f"Tenant {tenant} has no quota for {model}."
        if not book.could_ever(tenant, {model: milli}):
            return (
                f"It asks for {gpus(milli, model)}; tenant {tenant} can never hold more than "
                f"{gpus(book.ceiling(tenant, model), model)}, borrowing included."
            )
    return ""


def headroom(book: QuotaBook, tenant: str, gpu_model: str) -> int:
    """The most milli-GPU the tenant's quotas let it take more of a model now, by whole GPUs."""
    low, high = 0, book.ceiling(tenant, gpu_model) // types.MILLI
    while low < high:
        middle = (low + high + 1) // 2
        if book.refusal(tenant, gpu_model, middle * types.MILLI) is None:
            low = middle
        else:
            high = middle - 1
    return low * types.MILLI
