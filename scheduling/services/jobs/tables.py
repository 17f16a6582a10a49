"""What users keep of the job table: its columns, and named views."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import transaction

from scheduling.models import JobTable
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import User

MOST_VIEWS = 30
LONGEST_NAME = 60
LONGEST_QUERY = 1000


def keep_columns(user: User, columns: Sequence[str]) -> None:
    """Keep the table's columns for this user, in any browser; none = the usual ones."""
    with _table_of(user) as table:
        table.columns = list(columns)


def keep_view(user: User, name: str, query: str) -> None:
    """Keep a view under a name, replacing one of that name.

    Raises Invalid naming `name`, Conflict if there are MOST_VIEWS already.
    """
    name = " ".join(name.split())
    if not name:
        raise Invalid.field("name", "Give the view a name.")
    if len(name) > LONGEST_NAME:
        raise Invalid.field("name", f"Give it a name of at most {LONGEST_NAME} characters.")
    if len(query) > LONGEST_QUERY:
        raise Invalid.field("name", "The filters are too long to be saved. Shorten the search.")
    with _table_of(user) as table:
        if all(view["name"] != name for view in table.views) and len(table.views) >= MOST_VIEWS:
            raise Conflict(f"You already have {MOST_VIEWS} views. Remove one first.")
        others = [view for view in table.views if view["name"] != name]
        table.views = sorted([*others, {"name": name, "query": query}], key=lambda v: v["name"])


def remove_view(user: User, name: str) -> None:
    """Remove a view. Raises NotFound if the user has no such view."""
    with _table_of(user) as table:
        rest = [view for view in table.views if view["name"] != name]
        if len(rest) == len(table.views):
            raise NotFound(f"You have no view “{name}”.")
        table.views = rest


@contextmanager
def _table_of(user: User) -> Iterator[JobTable]:
    """Yield the user's row; write it if the block ends without an error."""
    with transaction.atomic():
        JobTable.objects.get_or_create(user=user)
        table = JobTable.objects.select_for_update().get(user=user)
        yield table
        table.save()
