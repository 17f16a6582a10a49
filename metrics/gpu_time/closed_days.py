"""Finished days that are not stored yet, measured once for all readers.

After an upgrade or an import the worker needs minutes to store months of days. Until then, results
that can no longer change are cached, so a repeated request costs only what is new.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import date
from hashlib import sha256

from django.core.cache import cache

from metrics.gpu_time.accounting import Amount, Key, Sums, measured_with_borrowed
from metrics.gpu_time.borrowing import BorrowedKey
from metrics.gpu_time.days import ONE_DAY, midnight
from tenants.outage import REDIS_ERRORS

FORGET_S = 3600


def closed_days(
    begin: date, end: date, tenants: Collection[int]
) -> Iterator[tuple[Key | BorrowedKey, Amount]]:
    """Yield what these tenants held, lost and borrowed on the finished days of [begin, end).

    `tenants` must be all tenants. Without Redis every caller measures again.
    """
    named = f"gpu-time-2:{sha256(repr(sorted(tenants)).encode()).hexdigest()}"
    keys = {
        begin + i * ONE_DAY: f"{named}:{begin + i * ONE_DAY}" for i in range((end - begin).days)
    }
    told: dict[str, Sums] = {}
    with suppress(*REDIS_ERRORS):
        told = cache.get_many(keys.values())
    new: dict[str, Sums] = {}
    for first, after in _spans([day for day, key in keys.items() if key not in told]):
        new |= {keys[day]: sums for day, sums in _measured(first, after).items()}
    with suppress(*REDIS_ERRORS):
        cache.set_many(new, FORGET_S)
    for key in keys.values():
        yield from new[key] if key in new else told[key]


def _spans(days: list[date]) -> Iterator[tuple[date, date]]:
    """Yield the sorted days as gapless spans, each with its first day and the day after its
    last."""
    while days:
        length = next((i for i, day in enumerate(days) if day != days[0] + i * ONE_DAY), len(days))
        yield days[0], days[length - 1] + ONE_DAY
        days = days[length:]


def _measured(begin: date, end: date) -> dict[date, Sums]:
    """Measure by day; each day has an entry."""
    found: dict[date, Sums] = {begin + i * ONE_DAY: [] for i in range((end - begin).days)}
    for key, amount in measured_with_borrowed(midnight(begin), midnight(end)):
        found[key.day].append((key, amount))
    return found
