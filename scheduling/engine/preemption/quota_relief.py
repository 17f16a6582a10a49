"""Quota during a preemption plan: what the book would say if victims were gone."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.demand.never import demand_of
from scheduling.engine.demand.pools import Pools
from scheduling.engine.preemption.candidates import EvictionCandidate, PodAt
from scheduling.engine.preemption.solver import price_of
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.quota.borrowing import Refusal
from scheduling.engine.types import JobRequest

_Held = tuple[str, frozenset[str]]  # the tenant of a unit, and the GPU models that it holds


class Trial:
    """The quota book with the holdings of some units taken out; `trial` puts them back."""

    def __init__(self, book: QuotaBook) -> None:
        self.book = book
        self.out: dict[EvictionCandidate, float] = {}  # unit -> since when its job has been booked

    def take(self, unit: EvictionCandidate) -> None:
        job = unit.record.job
        self.out[unit] = self.book.bookings[job.id].since
        for pod, p in zip(unit.pods, unit.places, strict=True):
            model, milli = unit.record.pods[pod]
            self.book.unbook(job.id, model, milli, p.beyond)

    def give_back(self, unit: EvictionCandidate) -> None:
        job, since = unit.record.job, self.out.pop(unit)
        for pod, p in zip(unit.pods, unit.places, strict=True):
            model, milli = unit.record.pods[pod]
            self.book.book(job.id, job.tenant, model, milli, since, beyond=p.beyond)

    def refuses(self, job: JobRequest, pools: Pools, candidate: Candidate) -> bool:
        models = tuple(s.gpu_models[0] if s.gpus else "" for s in candidate.job.pod_sets)
        asked = demand_of(candidate.job, models, candidate.counts, pools)
        return self.book.refusal_of(job.tenant, asked) is not None


@contextmanager
def trial(book: QuotaBook, units: Iterable[EvictionCandidate]) -> Iterator[Trial]:
    """Take units out of the book for a while; afterwards the book is as before."""
    at = (book.version, book.loosened, book.tightened)
    booked, returned = book.booked.copy(), book.returned.copy()
    books = Trial(book)
    try:
        for unit in units:
            books.take(unit)
        yield books
    finally:
        for unit in list(books.out):
            books.give_back(unit)
        book.version, book.loosened, book.tightened = at
        book.booked, book.returned = booked, returned


def allows_without(
    book: QuotaBook,
    tenant: str,
    asked: Mapping[str, int],
    taken: Iterable[tuple[str, Mapping[str, int]]],
) -> bool:
    """Return whether quota would allow `asked` if these tenants gave back this much (milli)."""
    if book.refusal_of(tenant, asked) is None:
        return True
    with book.without(taken):
        return book.refusal_of(tenant, asked) is None


def relieve(
    book: QuotaBook,
    tenant: str,
    asked: Mapping[str, int],
    units: list[EvictionCandidate],
    gone: Iterable[EvictionCandidate] = (),
) -> list[EvictionCandidate] | None:
    """Return the cheapest units whose going lets quota allow `asked`, in addition to `gone`.

    If the request is within the guarantee of its tenant, units of the tenant's nearest relatives go
    first. None if no choice of units is enough.
    """
    gone = list(gone)
    if not gone and book.refusal_of(tenant, asked) is None:
        return []
    by_right = not any(book.would_borrow(tenant, m, milli) for m, milli in asked.items())
    far: dict[str, int] = {}
    for unit in units if by_right else ():
        other = unit.record.job.tenant
        if other not in far:
            far[other] = min(book.distance(tenant, other, model) for model in asked)
    alike: dict[_Held, list[EvictionCandidate]] = {}  # the most expensive first
    for unit in sorted(units, key=_price, reverse=True):
        models = frozenset(unit.record.pods[pod][0] for pod in unit.pods)
        alike.setdefault((unit.record.job.tenant, models), []).append(unit)
    with trial(book, gone) as books:
        while (no := book.refusal_of(tenant, asked)) is not None:
            helpful = [held for held in alike if _helps(book, held, no)]
            if not helpful:
                return None
            cheapest = min(
                helpful, key=lambda held: (*_near(alike[held][-1], far), _price(alike[held][-1]))
            )
            books.take(alike[cheapest].pop())
            if not alike[cheapest]:
                del alike[cheapest]
        taken = [unit for unit in books.out if unit not in gone]
        last = sorted(taken, key=lambda u: (*_near(u, far), u.order))
        for unit in reversed(last):
            books.give_back(unit)
            if book.refusal_of(tenant, asked) is not None:
                books.take(unit)
        return sorted((u for u in books.out if u not in gone), key=lambda u: u.order)


def _near(unit: EvictionCandidate, far: Mapping[str, int]) -> tuple[bool, int]:
    """Return a sort key: units that would reclaim go last, among others distant relatives do."""
    return unit.rank[0], far.get(unit.record.job.tenant, 0)


def _price(unit: EvictionCandidate) -> tuple[int, tuple[int, str, tuple[PodAt, ...]]]:
    return price_of(unit), unit.order


def _helps(book: QuotaBook, held: _Held, no: Refusal) -> bool:
    """Return whether units of this kind can turn the refusal.

    They can if they are charged to the account that refuses, or borrow in its cohort.
    """
    tenant, models = held
    model = no.account.gpu_model
    if model not in models:
        return False
    chain = book.chain(tenant, model)
    if no.account in chain:
        return True
    return any(a.cohort is no.account.cohort and a.over > 0 for a in chain)
