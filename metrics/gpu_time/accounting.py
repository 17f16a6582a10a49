"""GPU time by tenant and user, one day at a time.

It is measured from placements and stored for each finished day, so that it outlives the jobs
(docs/decisions/0019).
"""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Min, Q

from metrics.gpu_time.borrowing import BorrowedKey, Borrowing, rounded
from metrics.gpu_time.days import ONE_DAY, days_of, midnight
from metrics.gpu_time.totals import LAG, MICROSECOND
from metrics.models import BorrowedDay, UsageDay, UsageLedger
from scheduling.engine.types import BEYOND
from scheduling.models import Cluster, JobEvent, Placement
from scheduling.models.jobs import PREEMPTED
from scheduling.queries.selectors import complete_from
from tenants.database.chunks import CHUNK, chunks
from tenants.models import Tenant, User

BUDGET_S = 5.0  # per run, once a minute: other background work shares the worker


class Key(NamedTuple):
    """Whose GPU time of which day it is; `user_id` None: no user of Kant submitted the job."""

    day: date
    cluster_id: int
    tenant_id: int
    user_id: int | None
    gpu_model: str
    kind: str


@dataclass(slots=True)
class Amount:
    """`held`, `lost`, `borrowed`: milli-GPU x milliseconds. `pods`: how many began to hold GPUs.

    `borrowed` is that of a tenant with all below it, so the values of two tenants are never added;
    None: it does not belong to one tenant, or is unknown. `measured`: the part of `held` for which
    GPU activity is known; `idle`: the part of `measured` in which the GPUs did nothing.
    """

    held: int = 0
    lost: int = 0
    pods: int = 0
    borrowed: int | None = 0
    measured: int = 0
    idle: int = 0

    def __bool__(self) -> bool:
        return bool(self.held or self.lost or self.pods or self.borrowed or self.measured)

    def add(self, other: "Amount") -> None:
        self.held += other.held
        self.lost += other.lost
        self.pods += other.pods
        self.measured += other.measured
        self.idle += other.idle
        if self.borrowed is not None:
            self.borrowed = None if other.borrowed is None else self.borrowed + other.borrowed


Sums = list[tuple[Key | BorrowedKey, Amount]]


# --- from placements --------------------------------------------------------------------------
def measured(
    begin: datetime, end: datetime, borrowing: Borrowing | None = None
) -> dict[Key, Amount]:
    """Return what was held and lost in [begin, end), by day, rounded to a millisecond at the end.

    It reads once what held GPUs in that time, and once the preemptions. `borrowing` receives
    everything that was held.
    """
    sums: defaultdict[Key, Amount] = defaultdict(Amount)
    rows = (
        Placement.objects.filter(Q(ended_at=None) | Q(ended_at__gt=begin))
        .filter(held_from__lt=end, held_milli__gt=0)
        .order_by(*(["held_from"] if borrowing else []))
        .values_list(
            "job__cluster", "job__tenant", "job__user", "gpu_model", "job__kind",
            "held_milli", "held_beyond", "held_from", "ended_at",
        )
    )  # fmt: skip
    for row in rows.iterator(chunk_size=2000):
        cluster, tenant, user, model, kind, milli, beyond, begun, ended = row
        assert begun is not None  # because held_from < end
        held = milli * BEYOND + beyond
        if begun >= begin:
            sums[Key(begun.date(), cluster, tenant, user, model, kind)].pods += 1
        for day, length in days_of(max(begun, begin), min(ended or end, end)):
            key = Key(day, cluster, tenant, user, model, kind)
            sums[key].held += held * (length // MICROSECOND)
        if borrowing is not None:
            borrowing.hold(tenant, model, held, begun, ended)
    for amount in sums.values():
        amount.held = rounded(amount.held)
    for key, lost in _lost(begin, end).items():
        sums[key].lost += lost
    return dict(sums)


def measured_with_borrowed(begin: datetime, end: datetime) -> Sums:
    """Return the same, plus what tenants borrowed."""
    borrowing = Borrowing(begin, end)
    found: Sums = [*measured(begin, end, borrowing).items()]
    found += [(key, Amount(borrowed=milli_ms)) for key, milli_ms in borrowing.sums().items()]
    return found


def _lost(begin: datetime, end: datetime) -> dict[Key, int]:
    """Return what preemptions in [begin, end) cost, by the day of the preemption. A job on several
    GPU models loses of each in proportion to what it held."""
    events = JobEvent.objects.filter(reason=PREEMPTED, at__gte=begin, at__lt=end).order_by()
    told = [
        row
        for row in events.values_list(
            "job_id", "at", "evidence", "job__cluster", "job__tenant", "job__user", "job__kind"
        )
        if row[2].get("cost_gpu_s")
    ]
    held = _held_by({row[0] for row in told}, begin, end)
    sums: defaultdict[Key, int] = defaultdict(int)
    for job_id, at, evidence, cluster, tenant, user, kind in told:
        left = round(evidence["cost_gpu_s"] * 1_000_000)  # GPU-seconds to milli-GPU x milliseconds
        named = evidence.get("which", "")
        models: Counter[str] = Counter()
        for model, milli, pod, begun, ended in held[job_id]:
            if begun <= at <= (ended or at) and (not named or pod in named.split(",")):
                models[model] += milli
        total = models.total()
        for model, milli in sorted(models.items()):
            part = left * milli // total
            sums[Key(at.date(), cluster, tenant, user, model, kind)] += part
            left, total = left - part, total - milli
    return sums


def _held_by(
    jobs: Collection[UUID], begin: datetime, end: datetime
) -> Mapping[UUID, Sequence[tuple[str, int, str, datetime, datetime | None]]]:
    """Return the pods of these jobs in [begin, end): GPU model, milli-GPU, name, start and end."""
    found: defaultdict[UUID, list[tuple[str, int, str, datetime, datetime | None]]]
    found = defaultdict(list)
    for ids in chunks(list(jobs)):
        rows = Placement.objects.filter(
            Q(ended_at=None) | Q(ended_at__gte=begin),
            job__in=ids,
            intended_at__lt=end,
            held_milli__gt=0,
        )
        for job_id, model, milli, pod, begun, ended in rows.order_by().values_list(
            "job_id", "gpu_model", "held_milli", "pod_name", "intended_at", "ended_at"
        ):
            found[job_id].append((model, milli, pod, begun, ended))
    return found


# --- what is written ----------------------------------------------------------------------------
def account(now: datetime) -> datetime:
    """Store the finished days that are not stored yet, one by one, until BUDGET_S have passed.

    Returns the midnight before which everything is stored.
    """
    deadline = time.monotonic() + BUDGET_S
    # An event's time lies before the commit of its transaction.
    today, day = (now - LAG).date(), _ledger(now).until
    names = NamesNow.read()
    while day < today:
        borrowing = Borrowing(midnight(day), midnight(day + ONE_DAY))
        amounts = measured(midnight(day), midnight(day + ONE_DAY), borrowing)
        _write(
            day,
            [_row(key, amount, names) for key, amount in amounts.items()],
            [_borrowed(key, amount, names) for key, amount in borrowing.sums().items()],
        )
        day = _ledger(now).until
        if time.monotonic() > deadline:
            break
    return midnight(day)


def written_until() -> UsageLedger | None:
    """Return up to when the days are stored; None before the first run."""
    return UsageLedger.objects.first()


def _ledger(now: datetime) -> UsageLedger:
    found = written_until()
    if found is not None:
        return found
    # Some jobs that ended before this are gone; the first whole day after it is complete.
    since = complete_from()
    if since is not None:
        whole = (since + ONE_DAY - timedelta.resolution).date()
        first = {"until": whole, "complete_from": whole, "borrowed_from": whole}
    else:
        begun = Placement.objects.aggregate(first=Min("held_from"))["first"]
        first = {"until": min(begun or now, now).date()}
    return UsageLedger.objects.get_or_create(pk=1, defaults=first)[0]


def _write(day: date, rows: Iterable[UsageDay], borrowed: Iterable[BorrowedDay]) -> None:
    """Store a day unless another worker already has."""
    with transaction.atomic():
        if UsageLedger.objects.filter(until=day).update(until=day + ONE_DAY):
            UsageDay.objects.bulk_create(rows, batch_size=CHUNK)
            BorrowedDay.objects.bulk_create(borrowed, batch_size=CHUNK)


@dataclass(frozen=True, slots=True)
class NamesNow:
    """The current names of clusters, tenants and users, by primary key."""

    clusters: Mapping[int, str]
    tenants: Mapping[int, str]
    users: Mapping[int, str]

    @classmethod
    def read(cls) -> "NamesNow":
        return cls(
            dict(Cluster.objects.order_by().values_list("pk", "name")),
            dict(Tenant.objects.order_by().values_list("pk", "name")),
            dict(User.objects.order_by().values_list("pk", "username")),
        )


def _row(key: Key, amount: Amount, names: NamesNow) -> UsageDay:
    return UsageDay(
        **key._asdict(),
        cluster_name=names.clusters[key.cluster_id],
        tenant_name=names.tenants[key.tenant_id],
        # Empty for a user who was deleted a moment ago.
        user_name="" if key.user_id is None else names.users.get(key.user_id, ""),
        held=amount.held,
        lost=amount.lost,
        pods=amount.pods,
    )


def _borrowed(key: BorrowedKey, amount: int, names: NamesNow) -> BorrowedDay:
    return BorrowedDay(**key._asdict(), tenant_name=names.tenants[key.tenant_id], borrowed=amount)
