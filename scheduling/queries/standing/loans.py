"""Who now borrows how much of whose guarantee, since when, for which jobs, and who wants it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from scheduling.engine.quota.ledger import Loan, ledger
from scheduling.engine.types import PreemptionKind
from scheduling.models import Cluster, Job
from scheduling.queries.explain import policy_in_use
from scheduling.queries.quota_use import QuotaKey, quota_book
from scheduling.queries.standing.holders import asked_for
from tenants.models import User
from tenants.selectors import visible_names

NOBODY = ""  # lends what no guarantee covers any more


@dataclass(frozen=True, slots=True)
class LoanJob:
    """A job that has a part of a loan since it has places.

    `job`: the row, None = the reader may not see it.
    """

    job: Job | None
    milli: int
    since: datetime | None


@dataclass(slots=True)
class StandingLoan:
    """What a tenant, with all below it, holds of a GPU type beyond its guarantee.

    It comes out of the idle guarantee of the lender.

    - `borrower`, `lender`: None = the reader may not see it.
    - `lender` NOBODY: since the jobs started, the owner has come to use it, or a quota was cut.
    - `wanted_milli`: the part of the loan that waiting jobs of the lender, and those below it, ask
      for, without the borrower's own.
    - `since`: the start of the first of the `jobs`, which are the borrower's last to start.
    """

    borrower: str | None
    lender: str | None
    gpu_type: str
    milli: int = 0
    wanted_milli: int = 0
    jobs: list[LoanJob] = field(default_factory=list)

    @property
    def since(self) -> datetime | None:
        return min((one.since for one in self.jobs if one.since), default=None)


@dataclass(slots=True)
class LoanSum:
    """What a tenant borrows and lends in all, of all GPU types examined.

    `tenant` None = those that the reader may not see, together. `wanted_milli`: what owners ask
    back of what it borrows. `asked_milli`: what it asks back of what it lends. The sums do not add
    up over tenants: if one borrows from its parent, the parent borrows for it.
    """

    tenant: str | None
    borrowed_milli: int = 0
    wanted_milli: int = 0
    lent_milli: int = 0
    asked_milli: int = 0


@dataclass(frozen=True, slots=True)
class LoanLedger:
    """All loans, those of which most is wanted back first.

    `reclaiming`: the clusters whose policy takes back loans by preemption; elsewhere they come back
    as jobs end.
    """

    loans: list[StandingLoan]
    reclaiming: list[str]

    @property
    def sums(self) -> list[LoanSum]:
        """The sums by tenant, largest borrower first; without the lender NOBODY."""
        found: dict[str | None, LoanSum] = {}
        for loan in self.loans:
            borrower = found.setdefault(loan.borrower, LoanSum(loan.borrower))
            borrower.borrowed_milli += loan.milli
            borrower.wanted_milli += loan.wanted_milli
            if loan.lender != NOBODY:
                lender = found.setdefault(loan.lender, LoanSum(loan.lender))
                lender.lent_milli += loan.milli
                lender.asked_milli += loan.wanted_milli
        return sorted(
            found.values(), key=lambda one: (-one.borrowed_milli, -one.lent_milli, one.tenant or "")
        )

    @property
    def orphaned(self) -> bool:
        """Whether something is borrowed from nobody."""
        return any(one.lender == NOBODY for one in self.loans)


def loans(
    viewer: User, tenants: Collection[str] | None = None, gpu_type: str | None = None
) -> LoanLedger:
    """Return the loans of which the viewer sees one end.

    `tenants`: those at one end, by name; None = any, as for `gpu_type`. The number of statements
    does not grow with the jobs.
    """
    book, names = quota_book(by_job=True), visible_names(viewer)
    wanted = _wanted({t: tuple(book.lineage(t)) for t in book.tenants})
    of_pair: defaultdict[tuple[str, str, str], list[Loan]] = defaultdict(list)
    for loan in ledger(book, gpu_type):
        ends = {loan.borrower, loan.lender}
        # What a tenant's own jobs use of its children's quotas is within its own quota.
        inside = loan.lender and loan.borrower in book.lineage(loan.lender)
        if not inside and ends & names and (tenants is None or ends & set(tenants)):
            of_pair[loan.borrower, loan.lender, loan.gpu_model].append(loan)
    carried = {loan.job_id for found in of_pair.values() for loan in found if loan.job_id}
    rows = {
        str(job.pk): job
        for job in Job.objects.filter(id__in=carried).select_related("tenant", "user")
        if job.tenant.name in names
    }
    found = []
    for (borrower, lender, model), parts in of_pair.items():
        milli = sum(part.milli for part in parts)
        asked = wanted[lender, model]
        if lender in book.lineage(borrower):  # a lender's own child asks it, too
            asked -= wanted[borrower, model]
        found.append(
            StandingLoan(
                borrower if borrower in names else None,
                lender if lender in names or lender == NOBODY else None,
                model,
                milli,
                min(milli, asked),
                _jobs(parts, rows),
            )
        )
    found.sort(key=lambda one: (-one.wanted_milli, -one.milli, one.gpu_type, one.borrower or ""))
    reclaiming = [
        cluster.name
        for cluster in Cluster.objects.filter(is_active=True)
        if PreemptionKind.RECLAIM in policy_in_use(cluster.pk).preemption
    ]
    return LoanLedger(found, reclaiming)


def _jobs(parts: Iterable[Loan], rows: dict[str, Job]) -> list[LoanJob]:
    """Return each job once, latest start first, then what no single job explains."""
    sums: Counter[tuple[str, float]] = Counter()
    for part in parts:
        sums[part.job_id, part.since] += part.milli
    return [
        LoanJob(rows.get(job_id), milli, datetime.fromtimestamp(since, UTC) if job_id else None)
        for (job_id, since), milli in sums.items()
    ]


def _wanted(lineages: dict[str, tuple[str, ...]]) -> Counter[QuotaKey]:
    """Return what waiting jobs of each tenant and those below it ask for, in milli-GPU by type."""
    found: Counter[QuotaKey] = Counter()
    for (tenant, model), milli in asked_for(None, None, ("job__tenant__name",)).items():
        for above in lineages.get(tenant, ()):
            found[above, model] += milli
    return found
