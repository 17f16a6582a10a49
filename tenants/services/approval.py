"""Approval of large quota changes by a second person, where the installation demands it."""

from django.conf import settings

from tenants.errors import Conflict
from tenants.services.quota_terms import in_words


def most_alone() -> int | None:
    """Return the most milli-GPU that one person may change alone; None = no limit."""
    limit: float | None = settings.KANT_QUOTA_APPROVAL_GPUS
    return None if limit is None else round(1000 * limit)


def needs_approval(changed_milli: int) -> bool:
    limit = most_alone()
    return limit is not None and changed_milli > limit


def check_alone(changed_milli: int) -> None:
    """Raise Conflict when a change of this size needs a second person."""
    if needs_approval(changed_milli):
        raise Conflict(
            f"This changes {in_words(changed_milli)}; changes of more than "
            f"{in_words(most_alone() or 0)} need a second person's approval. Make the change in "
            "a draft, which waits for approval."
        )
