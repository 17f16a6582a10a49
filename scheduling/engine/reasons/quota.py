"""The reasons of jobs that quota refuses: what their tenant has, borrows and is owed."""

from collections.abc import Sequence

from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.quota.borrowing import Refusal
from scheduling.engine.types import MILLI
from scheduling.engine.verdict import Reason, Verdict, counted, gpus

OWING_NAMED = 3  # the most tenants named in the evidence


def quota_verdict(book: QuotaBook, tenant: str, refusal: Refusal) -> Verdict:
    """Return the reason of a job of the tenant that quota refuses, with the account's numbers."""
    account = refusal.account
    by_right = not book.would_borrow(tenant, account.gpu_model, refusal.asked)
    if by_right and refusal.reason is Reason.WAITING_FOR_QUOTA and not refusal.non_preemptible:
        owing = book.debtors(tenant, account.gpu_model)
        if owing:
            return _owed(book, tenant, refusal, owing)
    numbers: dict[str, int | float | str] = {
        "tenant": account.tenant,
        "gpu_model": account.gpu_model,
        "asked": refusal.asked / MILLI,
        "used": account.used / MILLI,
        "guaranteed": account.guaranteed / MILLI,
        "borrowed": account.over / MILLI,
        "left": refusal.allowed / MILLI,
    }
    asked = gpus(refusal.asked, account.gpu_model)
    if refusal.non_preemptible:
        numbers["non_preemptible"] = account.non_preemptible / MILLI
        text = (
            f"Non-preemptible jobs of tenant {account.tenant} hold "
            f"{account.non_preemptible / MILLI:g} of its guaranteed "
            f"{gpus(account.guaranteed, account.gpu_model)}. This one needs {asked}, and "
            "such jobs cannot borrow."
        )
        return Verdict(
            Reason.WAITING_FOR_QUOTA,
            text,
            numbers,
            (
                "wait until such jobs of the tenant end",
                "submit it as preemptible",
                "ask for a larger quota",
            ),
        )
    if refusal.reason is Reason.BORROW_LIMIT_REACHED:
        numbers["borrow_limit"] = account.borrow_limit / MILLI
        text = (
            f"Tenant {account.tenant} may borrow at most "
            f"{gpus(account.borrow_limit, account.gpu_model)}; {asked} more would exceed that."
        )
        return Verdict(
            Reason.BORROW_LIMIT_REACHED,
            text,
            numbers,
            ("wait until jobs of the tenant end", "raise the borrow limit"),
        )
    if account.shared:
        text = (
            f"Needs {asked}. The idle quota of tenant {account.tenant} and what others can lend "
            f"come to {refusal.allowed / MILLI:g}."
            if refusal.allowed > 0
            else f"Needs {asked}. Tenant {account.tenant} has used its quota, and no other tenant "
            "has idle quota to lend."
        )
        remedies = ("wait until jobs of the tenant or of lenders end", "make the job smaller")
    else:
        text = (
            f"Tenant {account.tenant} uses {account.used / MILLI:g} of its "
            f"{gpus(account.guaranteed, account.gpu_model)}; this job needs {asked}."
        )
        remedies = ("wait until jobs of the tenant end", "make the job smaller")
    return Verdict(Reason.WAITING_FOR_QUOTA, text, numbers, remedies)


def _owed(
    book: QuotaBook, tenant: str, refusal: Refusal, owing: Sequence[tuple[str, int]]
) -> Verdict:
    """Return the reason of a request within a guarantee from which others have borrowed."""
    model = refusal.account.gpu_model
    own = book.account(tenant, model)
    who, milli = owing[0]
    numbers: dict[str, int | float | str] = {
        "tenant": tenant,
        "gpu_model": model,
        "asked": refusal.asked / MILLI,
        "used": own.used / MILLI if own else 0.0,
        "guaranteed": own.guaranteed / MILLI if own else 0.0,
        "left": refusal.allowed / MILLI,
        "owed_by": ", ".join(name for name, _ in owing[:OWING_NAMED]),
        "owed": sum(amount for _, amount in owing) / MILLI,
    }
    others = len(owing) - 1
    also = f" and {counted(others, 'other tenant', 'other tenants')} more" if others else ""
    text = (
        f"Tenant {tenant} is guaranteed the {gpus(refusal.asked, model)} that this job needs: "
        f"tenant {who} has borrowed {milli / MILLI:g}{also}."
    )
    helps = f"wait until jobs of tenant {who} end"
    if book.reclaims:
        return Verdict(Reason.WAITING_FOR_QUOTA, text, numbers, (helps,))
    policy = "ask an operator to allow reclaim in the policy of the cluster"
    return Verdict(Reason.WAITING_FOR_QUOTA, text, numbers, (helps, policy))
