"""Answers stored together with what a request created, so that a repeated request takes effect
once."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from django.db import IntegrityError

from tenants.models import IdempotencyKey


class KeyTaken(Exception):
    """The key of a request is already stored: nothing was done for it."""


class Receipt(NamedTuple):
    """A request with a key. `answered` makes the row that holds the answer."""

    user_id: int
    key: str
    answered: Callable[[Any], IdempotencyKey]

    @property
    def whose(self) -> tuple[int, str]:
        return self.user_id, self.key


def taken(receipts: Collection[Receipt]) -> set[tuple[int, str]]:
    """Return the user and key of each receipt that is already stored."""
    if not receipts:
        return set()
    rows = IdempotencyKey.objects.filter(
        user_id__in={one.user_id for one in receipts}, key__in={one.key for one in receipts}
    )
    return {one.whose for one in receipts}.intersection(rows.values_list("user_id", "key"))


def keep(receipts: Sequence[tuple[Receipt, Any]]) -> None:
    """Store the answers in the transaction that creates what they describe. Raises KeyTaken when a
    key was stored meanwhile; the caller must then roll back."""
    # In a fixed order: of two transactions with the same keys one waits for the other.
    ordered = sorted(receipts, key=lambda each: each[0].whose)
    rows = [receipt.answered(made) for receipt, made in ordered]
    if not rows:
        return
    try:
        IdempotencyKey.objects.bulk_create(rows)
    except IntegrityError as error:
        raise KeyTaken from error
