"""GPU time by tenant and user, a day at a time: measured from placements, and written for each day
that is over, so that it outlives its jobs (docs/decisions/0019)."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Min, Q

from metrics.models import UsageDay, UsageLedger
from metrics.totals import LAG, MICROSECOND
from scheduling.models import Cluster, JobEvent, Placement
from scheduling.models.jobs import PREEMPTED
from scheduling.selectors import complete_from
from tenants.models import Tenant, User

ONE_DAY = timedelta(days=1)
CHUNK = 500  # ids in one IN list, rows of one INSERT


class Key(NamedTuple):
    """Whose GPU time of which day it is; `user_id` None: no user of Kant submitted it."""

    day: date
    cluster_id: int
    tenant_id: int
    user_id: int | None
    gpu_model: str
    kind: str


@dataclass(slots=True)
class Amount:
    """`held`, `lost`: milli-GPU x milliseconds. `pods`: how many began to hold GPUs."""

    held: int = 0
    lost: int = 0
    pods: int = 0

    def add(self, other: "Amount") -> None:
        self.held += other.held
        self.lost += other.lost
        self.pods += other.pods


def midnight(day: date) -> datetime:
    """The beginning of a day in UTC."""
    return datetime.combine(day, time(), UTC)


# --- from placements --------------------------------------------------------------------------
def measured(begin: datetime, end: datetime) -> dict[Key, Amount]:
    """What was held and lost in [begin, end), a day at a time, rounded to a millisecond at the
    end. One pass over what held GPUs at any time in it, and one over its preemptions."""
    sums: defaultdict[Key, Amount] = defaultdict(Amount)
    rows = (
        Placement.objects.filter(Q(ended_at=None) | Q(ended_at__gt=begin))
        .filter(held_from__lt=end, held_milli__gt=0)
        .order_by()
        .values_list(
            "job__cluster", "job__tenant", "job__user", "gpu_model", "job__kind",
            "held_milli", "held_from", "ended_at",
        )
    )  # fmt: skip
    for cluster, tenant, user, model, kind, milli, begun, ended in rows.iterator(chunk_size=2000):
        assert begun is not None  # held_from < end
        if begun >= begin:
            sums[Key(begun.date(), cluster, tenant, user, model, kind)].pods += 1
        for day, length in _days_of(max(begun, begin), min(ended or end, end)):
            key = Key(day, cluster, tenant, user, model, kind)
            sums[key].held += milli * (length // MICROSECOND)
    for amount in sums.values():
        amount.held = (amount.held + 500) // 1000
    for key, lost in _lost(begin, end).items():
        sums[key].lost += lost
    return dict(sums)


def _days_of(begin: datetime, end: datetime) -> Iterator[tuple[date, timedelta]]:
    """The days of a span, and how much of it lies in each; nothing where it ends before it
    begins."""
    while begin < end:
        day = begin.date()
        until = min(midnight(day + ONE_DAY), end)
        yield day, until - begin
        begin = until


def _lost(begin: datetime, end: datetime) -> dict[Key, int]:
    """What preemptions in [begin, end) cost, by the day of the preemption. A job on several GPU
    models lost of each as much as it held of it."""
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
        left = round(evidence["cost_gpu_s"] * 1_000_000)  # GPU-seconds
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
    """The pods of these jobs in [begin, end): GPU model, milli-GPU, name, and from when to when."""
    found: defaultdict[UUID, list[tuple[str, int, str, datetime, datetime | None]]]
    found, ids = defaultdict(list), list(jobs)
    for first in range(0, len(ids), CHUNK):
        rows = Placement.objects.filter(
            Q(ended_at=None) | Q(ended_at__gte=begin),
            job__in=ids[first : first + CHUNK],
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
    """Write the days that are over and not written yet, each in a transaction of its own; returns
    the midnight before which everything is written."""
    ledger = _ledger(now)
    # An event is dated before its transaction commits.
    today = (now - LAG).date()
    if ledger.until < today:
        days: dict[date, list[tuple[Key, Amount]]] = defaultdict(list)
        for key, amount in measured(midnight(ledger.until), midnight(today)).items():
            days[key.day].append((key, amount))
        names, day = Names.read(), ledger.until
        while day < today:
            _write(day, [_row(key, amount, names) for key, amount in days.pop(day, ())])
            day += ONE_DAY
    return midnight(max(ledger.until, today))


def written_until() -> UsageLedger | None:
    """How far the days are written; None before the first run."""
    return UsageLedger.objects.first()


def _ledger(now: datetime) -> UsageLedger:
    found = written_until()
    if found is not None:
        return found
    # Of jobs that ended before this, some are gone: the first whole day after it is complete.
    since = complete_from()
    if since is not None:
        whole = (since + ONE_DAY - timedelta.resolution).date()
        first = {"until": whole, "complete_from": whole}
    else:
        begun = Placement.objects.aggregate(first=Min("held_from"))["first"]
        first = {"until": min(begun or now, now).date()}
    return UsageLedger.objects.get_or_create(pk=1, defaults=first)[0]


def _write(day: date, rows: list[UsageDay]) -> None:
    """Once, whoever comes first."""
    with transaction.atomic():
        if UsageLedger.objects.filter(until=day).update(until=day + ONE_DAY):
            UsageDay.objects.bulk_create(rows, batch_size=CHUNK)


@dataclass(frozen=True, slots=True)
class Names:
    """What clusters, tenants and users are called now, by primary key."""

    clusters: Mapping[int, str]
    tenants: Mapping[int, str]
    users: Mapping[int, str]

    @classmethod
    def read(cls) -> "Names":
        return cls(
            dict(Cluster.objects.order_by().values_list("pk", "name")),
            dict(Tenant.objects.order_by().values_list("pk", "name")),
            dict(User.objects.order_by().values_list("pk", "username")),
        )


def _row(key: Key, amount: Amount, names: Names) -> UsageDay:
    return UsageDay(
        **key._asdict(),
        cluster_name=names.clusters[key.cluster_id],
        tenant_name=names.tenants[key.tenant_id],
        # Empty for a user who was deleted this moment.
        user_name="" if key.user_id is None else names.users.get(key.user_id, ""),
        held=amount.held,
        lost=amount.lost,
        pods=amount.pods,
    )
