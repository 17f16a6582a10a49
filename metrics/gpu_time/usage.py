"""Reads GPU time: stored days, and days not stored yet from the placements."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.db.models import QuerySet, Sum
from django.db.models.functions import TruncMonth

from metrics.gpu_time.accounting import (
    Amount,
    Key,
    NamesNow,
    measured,
    measured_with_borrowed,
    written_until,
)
from metrics.gpu_time.borrowing import BorrowedKey
from metrics.gpu_time.closed_days import closed_days
from metrics.gpu_time.days import ONE_DAY, midnight
from metrics.gpu_time.totals import LAG
from metrics.models import BorrowedDay, GpuUseDay, UsageDay, UsageLedger
from scheduling.queries.gpu_use import MILLI_MS_PER_GPU_HOUR

MOST_DAYS = 3660  # of a period
MEASURES = ("gpu_hours", "lost_gpu_hours", "pods_started")
BORROWED = "borrowed_gpu_hours"
USE = ("measured_gpu_hours", "idle_gpu_hours")
_DAYS = re.compile(r"([1-9][0-9]{0,3})d")

# What an answer may be grouped by, and the matching field of `UsageDay` and `Key`.
DIMENSIONS = {
    "tenant": "tenant_id",
    "user": "user_id",
    "gpu_type": "gpu_model",
    "kind": "kind",
    "cluster": "cluster_id",
    "day": "day",
    "month": "day",
}
# Quota covers all clusters, users and kinds of jobs, so borrowing cannot be split by these.
OF_QUOTA = frozenset({"tenant", "gpu_type", "day", "month"})
# GPU activity is stored by these.
OF_USE = frozenset({"tenant", "gpu_type", "cluster", "day", "month"})
MOST_ROWS = 50_000  # of a REST answer, and of a file


class WrongPeriod(ValueError):
    """`parameter` is wrong; the text says how, and what to write."""

    def __init__(self, parameter: str, text: str) -> None:
        super().__init__(text)
        self.parameter = parameter


class TooManyUsageRows(ValueError):
    """More rows than the caller can take; the text says how many, and what to ask for."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"There are more than {most:,} rows, which is the limit. Ask for a shorter period, "
            "for one tenant, or with fewer fields in `by`."
        )


@dataclass(frozen=True, slots=True)
class Period:
    """Whole days in UTC, including `until`."""

    since: date
    until: date

    @property
    def end(self) -> datetime:
        return midnight(self.until) + ONE_DAY


def period_of(since: str, until: str, today: date) -> Period:
    """Return the period that two texts name ("" = not given); raise WrongPeriod.

    `since`: a date, or a number of days like "30d", including today; default: the first of the
    month. `until`: a date; default: today.
    """
    last = _date("until", until) if until else today
    if (days := _DAYS.fullmatch(since)) and not until:
        return _checked(Period(today - timedelta(days=int(days[1]) - 1), today))
    if days:
        raise WrongPeriod(
            "since", f"{since} counts back from today; if you give until, write a date."
        )
    first = _date("since", since) if since else today.replace(day=1)
    if first > today:
        raise WrongPeriod("since", f"{first} is in the future; it is {today} in UTC.")
    if last < first:
        raise WrongPeriod("until", f"{last} is before {first}, the first day of the period.")
    return _checked(Period(first, min(last, today)))


def _checked(period: Period) -> Period:
    if (length := (period.until - period.since).days + 1) > MOST_DAYS:
        text = f"The period has {length:,} days; the limit is {MOST_DAYS:,} (ten years)."
        raise WrongPeriod("since", text)
    return period


def _date(parameter: str, text: str) -> date:
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            return date.fromisoformat(text)
    except ValueError:
        pass  # e.g. the 31st of February: reported like any text that is not a date
    or_days = ", or a number of days like 30d" if parameter == "since" else ""
    raise WrongPeriod(
        parameter, f"{text[:40]!r} is not a date; write one like 2030-01-31{or_days}."
    )


@dataclass(frozen=True, slots=True)
class UsageScope:
    """Whose GPU time is asked for. `tenants`: primary keys; None = all, including deleted ones.
    `cluster` None and `gpu_model` "": all."""

    period: Period
    tenants: frozenset[int] | None = None
    gpu_model: str = ""
    cluster: int | None = None

    def has(self, key: Key | BorrowedKey) -> bool:
        return (
            (self.tenants is None or key.tenant_id in self.tenants)
            and self.gpu_model in ("", key.gpu_model)
            and (isinstance(key, BorrowedKey) or self.cluster in (None, key.cluster_id))
        )


# What a row is about: one text per dimension, in the order asked for; None = no submitter.
Labels = tuple[str | None, ...]


def usage(
    scope: UsageScope, by: Sequence[str], now: datetime, most: int | None = None
) -> dict[Labels, Amount]:
    """Return GPU time by some of DIMENSIONS, sorted by their texts. Every job counts for its own
    tenant, not for its ancestors.

    Borrowing is that of a tenant with all below it. Only rows of tenants, grouped by nothing but
    OF_QUOTA and over all clusters, have it, and only if it is known for all their days. Raises
    TooManyUsageRows for more than `most` rows, before reading more.
    """
    (found,) = usages(scope, [by], now, most)
    if most is not None and len(found) > most:
        raise TooManyUsageRows(most)
    return found


def usages(
    scope: UsageScope,
    groupings: Sequence[Sequence[str]],
    now: datetime,
    most: int | None = None,
) -> list[dict[Labels, Amount]]:
    """Return `usage` for several groupings at the same moment; days not stored yet are measured
    once for all of them."""
    told = [_tells_borrowed(scope, by) for by in groupings]
    names = NamesNow.read()
    while True:
        known = days_known()
        until = known.until
        found = list(_open(scope, until, now, any(told), names.tenants))
        sums = [
            _summed(scope, by, until, found, tells, most)
            for by, tells in zip(groupings, told, strict=True)
        ]
        # If a day was stored in between, its jobs may already be deleted: read again.
        if days_known().until == until:
            break
    borrowed_from = known.borrowed_from or date.min
    answers = []
    for by, amounts, tells in zip(groupings, sums, told, strict=True):
        for key, amount in amounts.items():
            first = max([scope.period.since, *(part for part in key if isinstance(part, date))])
            if not tells or first < borrowed_from:
                amount.borrowed = None
        named = _texts(by, amounts, names)
        merged: defaultdict[Labels, Amount] = defaultdict(Amount)
        for key, amount in amounts.items():
            merged[tuple(of[part] for of, part in zip(named, key, strict=True))].add(amount)
        rows = sorted(merged.items(), key=lambda row: tuple(text or "" for text in row[0]))
        answers.append(dict(rows))
    return answers


def _tells_borrowed(scope: UsageScope, by: Sequence[str]) -> bool:
    return "tenant" in by and OF_QUOTA.issuperset(by) and scope.cluster is None


def _summed(
    scope: UsageScope,
    by: Sequence[str],
    until: date,
    found: Iterable[tuple[Key | BorrowedKey, Amount]],
    told: bool,
    most: int | None,
) -> dict[tuple[Any, ...], Amount]:
    """Return the stored amounts plus those `found` for open days, by values of the dimensions.
    `told`: include borrowing."""
    sums: defaultdict[tuple[Any, ...], Amount] = defaultdict(Amount)
    for part, amount in _written(scope, by, until, most):
        sums[part].add(amount)
    for key, amount in found:
        if told or isinstance(key, Key):
            sums[tuple(_part(name, getattr(key, DIMENSIONS[name])) for name in by)].add(amount)
    if told:
        for part, amount in _written_borrowed(scope, by, until, most):
            sums[part].add(amount)
    if OF_USE.issuperset(by):
        for part, amount in _written_use(scope, by, most):
            sums[part].add(amount)
    return sums


def total_of(amounts: Iterable[Amount]) -> Amount:
    """Return their sum, without `borrowed`: what tenants borrow does not add up."""
    total = Amount(borrowed=None)
    for amount in amounts:
        total.add(amount)
    return total


def days_known() -> UsageLedger:
    """Return up to when the days are stored, and from when on they are complete."""
    return written_until() or UsageLedger(until=date.min)


def _written(
    scope: UsageScope, by: Sequence[str], until: date, most: int | None
) -> Iterator[tuple[tuple[Any, ...], Amount]]:
    rows = _in_scope(UsageDay.objects.all(), scope, until)
    if scope.cluster is not None:
        rows = rows.filter(cluster_id=scope.cluster)
    for key, sums in _sums(rows, by, most, "held", "lost", "pods"):
        yield key, Amount(*sums)


def _written_borrowed(
    scope: UsageScope, by: Sequence[str], until: date, most: int | None
) -> Iterator[tuple[tuple[Any, ...], Amount]]:
    rows = _in_scope(BorrowedDay.objects.all(), scope, until)
    for key, (borrowed,) in _sums(rows, by, most, "borrowed"):
        yield key, Amount(borrowed=borrowed)


def _written_use(
    scope: UsageScope, by: Sequence[str], most: int | None
) -> Iterator[tuple[tuple[Any, ...], Amount]]:
    """Includes today: activity is stored as it is measured."""
    rows = _in_scope(GpuUseDay.objects.all(), scope, date.max)
    if scope.cluster is not None:
        rows = rows.filter(cluster_id=scope.cluster)
    for key, (known, idle) in _sums(rows, by, most, "measured", "idle"):
        yield key, Amount(measured=known, idle=idle)


def _sums(
    rows: QuerySet[Any], by: Sequence[str], most: int | None, *measures: str
) -> Iterator[tuple[tuple[Any, ...], list[int]]]:
    if "month" in by:
        rows = rows.annotate(month=TruncMonth("day"))
    columns = {name: "month" if name == "month" else DIMENSIONS[name] for name in by}
    sums = rows.order_by().values(*dict.fromkeys(columns.values())).annotate(*map(Sum, measures))
    if most is not None:
        sums = sums[: most + 1]
    for number, row in enumerate(sums.iterator(chunk_size=2000)):
        if number == most:
            raise TooManyUsageRows(most)
        key = tuple(row[columns[name]] for name in by)
        yield key, [int(row[f"{measure}__sum"]) for measure in measures]


def _in_scope(rows: QuerySet[Any], scope: UsageScope, until: date) -> QuerySet[Any]:
    """Select the days before `until`, of any cluster."""
    rows = rows.filter(day__gte=scope.period.since, day__lte=scope.period.until, day__lt=until)
    if scope.tenants is not None:
        rows = rows.filter(tenant_id__in=scope.tenants)
    return rows.filter(gpu_model=scope.gpu_model) if scope.gpu_model else rows


def _open(
    scope: UsageScope, until: date, now: datetime, told: bool, tenants: Collection[int]
) -> Iterator[tuple[Key | BorrowedKey, Amount]]:
    """Yield the days not stored yet. `told`: include borrowing. `tenants`: all existing ones."""
    first = max(scope.period.since, until)
    over = max(first, min((now - LAG).date(), scope.period.until + ONE_DAY))
    found = list(closed_days(first, over, tenants))
    begin, end = midnight(over), min(scope.period.end, now)
    if begin < end:
        found += measured_with_borrowed(begin, end) if told else measured(begin, end).items()
    for key, amount in found:
        if scope.has(key) and (told or isinstance(key, Key)):
            yield key, amount


def _part(name: str, value: Any) -> Any:
    return value.replace(day=1) if name == "month" else value


# --- texts ----------------------------------------------------------------------------------------
def _texts(
    by: Sequence[str], keys: Collection[tuple[Any, ...]], now: NamesNow
) -> list[Mapping[Any, str | None]]:
    """Return {value: its text} for each dimension asked for."""
    named = {"tenant": now.tenants, "user": now.users, "cluster": now.clusters}
    found: list[Mapping[Any, str | None]] = []
    for at, name in enumerate(by):
        values = {key[at] for key in keys}
        if name in named:
            found.append(_names(name, values, named[name]))
        elif name == "month":
            found.append({value: f"{value:%Y-%m}" for value in values})
        else:
            found.append({value: str(value) for value in values})
    return found


def _names(name: str, ids: Collection[int | None], now: Mapping[int, str]) -> dict[Any, Any]:
    """Return current names, or the last name of something that was deleted."""
    names: dict[int | None, str | None] = {i: now.get(i) for i in ids if i is not None}
    names[None] = None
    if gone := [i for i, known in names.items() if known is None and i is not None]:
        kept = {"tenant": (GpuUseDay, BorrowedDay, UsageDay), "cluster": (GpuUseDay, UsageDay)}
        for days in kept.get(name, (UsageDay,)):
            rows = days.objects.filter(**{f"{name}_id__in": gone}).order_by("day")
            for i, known in rows.values_list(f"{name}_id", f"{name}_name"):
                names[i] = known or None
    return names


def gpu_hours(amount: int) -> float:
    """Convert milli-GPU x milliseconds to GPU-hours, to a millionth."""
    return round(amount / MILLI_MS_PER_GPU_HOUR, 6)


def measures(amount: Amount) -> dict[str, float | int | None]:
    """Return an amount as people read it, keyed by MEASURES and USE."""
    values = (gpu_hours(amount.held), gpu_hours(amount.lost), amount.pods)
    use = (gpu_hours(part) if amount.measured else None for part in (amount.measured, amount.idle))
    return dict(zip((*MEASURES, *USE), (*values, *use), strict=True))


def items(by: Sequence[str], rows: Mapping[Labels, Amount]) -> list[dict[str, Any]]:
    """Return rows as REST and CSV output them."""
    return [
        {
            **dict(zip(by, labels, strict=True)),
            **measures(amount),
            BORROWED: None if amount.borrowed is None else gpu_hours(amount.borrowed),
        }
        for labels, amount in rows.items()
    ]


def as_table(
    by: Sequence[str], found: Iterable[Mapping[str, Any]]
) -> tuple[list[str], Iterator[list[Any]]]:
    """Return `items` as columns and rows."""
    columns = [*by, *MEASURES, BORROWED, *USE]
    return columns, ([row[name] for name in columns] for row in found)
