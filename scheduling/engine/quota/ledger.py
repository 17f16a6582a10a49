"""Who owes how much to whom: the ledger of loans, worked out from the quota book on request.

Nothing is stored, so the ledger balances whatever happened to quotas, modes or the tree. What a
tenant borrowed is attributed to its jobs that started last; lenders are used in the order of their
names.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduling.engine.native import copied_by_fields
from scheduling.engine.quota.accounts import Account, Cohort
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.types import BEYOND


@dataclass(frozen=True, slots=True)
class Loan:
    """`milli` of `gpu_model` that `borrower` uses of `lender`'s quota, through `job_id`.

    `lender` is "" if nobody lends it: the quota was taken back or cut while the job ran. `since` is
    the start of the job.
    """

    borrower: str
    lender: str
    gpu_model: str
    milli: int
    job_id: str
    since: float


copied_by_fields(Loan)


def ledger(book: QuotaBook, gpu_model: str | None = None) -> tuple[Loan, ...]:
    """Return all loans, or those of one GPU model, by model, borrower and job."""
    cohorts: dict[int, Cohort] = {}
    for account in book.accounts():
        if gpu_model in (None, account.gpu_model):
            cohorts.setdefault(id(account.cohort), account.cohort)
    holders = _holders(book)
    return tuple(loan for cohort in cohorts.values() for loan in _of_group(cohort, holders))


# Account -> the jobs that count at it: (start, job, milli-GPU).
_Holders = Mapping[Account, Sequence[tuple[float, str, int]]]


def _holders(book: QuotaBook) -> _Holders:
    found: defaultdict[Account, list[tuple[float, str, int]]] = defaultdict(list)
    for job_id, booking in book.bookings.items():
        for model, whole in booking.held.items():
            milli = whole + -(-booking.beyond.get(model, 0) // BEYOND)
            for account in book.chain(booking.tenant, model):
                if account.over:
                    found[account].append((booking.since, job_id, milli))
    return found


def _of_group(cohort: Cohort, holders: _Holders) -> Iterator[Loan]:
    members = sorted(cohort.members, key=lambda a: a.tenant)
    idle = {a.tenant: a.lendable for a in members if a.lendable}
    for borrower in members:
        above = borrower.parent.tenant if borrower.parent else ""
        for job_id, borrowed, since in _borrowing_jobs(borrower, holders.get(borrower, ())):
            left = borrowed
            while left:
                lender = next(iter(idle), above)
                part = min(left, idle.get(lender, left))
                yield Loan(borrower.tenant, lender, borrower.gpu_model, part, job_id, since)
                left -= part
                if lender in idle:
                    idle[lender] -= part
                    if not idle[lender]:
                        del idle[lender]


def _borrowing_jobs(
    account: Account, holders: Sequence[tuple[float, str, int]]
) -> Iterator[tuple[str, int, float]]:
    """Yield (job, borrowed milli, since) of an account, the job that started last first.

    An account may borrow for its children although no single job exceeds anything; what no job
    explains is yielded under job "".
    """
    left = account.over
    if not left:
        return
    for since, job_id, held in sorted(holders, reverse=True):
        part = min(left, held)
        yield job_id, part, since
        left -= part
        if not left:
            return
    yield "", left, 0.0
