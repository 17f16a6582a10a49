"""Answers that are kept with what they answer: a request that is sent twice happens once."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from django.db import IntegrityError

from tenants.models import IdempotencyKey


class KeyTaken(Exception):
    """The key of a request is there already: nothing was done for it."""


class Receipt(NamedTuple):
    """Of a request that came with a key. `answered`: the row with the answer to what was made."""

    user_id: int
    key: str
    answered: Callable[[Any], IdempotencyKey]

    @property
    def whose(self) -> tuple[int, str]:
        return self.user_id, self.key


def taken(receipts: Collection[Receipt]) -> set[tuple[int, str]]:
    """Whose keys are there already."""
    if not receipts:
        return set()
    rows = IdempotencyKey.objects.filter(
        user_id__in={one.user_id for one in receipts}, key__in={one.key for one in receipts}
    )
    return {one.whose for one in receipts}.intersection(rows.values_list("user_id", "key"))


def keep(receipts: Sequence[tuple[Receipt, Any]]) -> None:
    """Keep the answers to what was made, in the transaction that makes it. Raises KeyTaken where
    a key came meanwhile, and then that has to be undone."""
    # In one order: of two transactions that bring the same keys one waits for the other.
    ordered = sorted(receipts, key=lambda each: each[0].whose)
    rows = [receipt.answered(made) for receipt, made in ordered]
    if not rows:
        return
    try:
        IdempotencyKey.objects.bulk_create(rows)
    except IntegrityError as error:
        raise KeyTaken from error
