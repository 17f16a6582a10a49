"""What people keep of the table of jobs: its columns, and views of it under a name."""

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
    """Columns of the table for this user, in any browser; none = the usual ones."""
    with _table_of(user) as table:
        table.columns = list(columns)


def keep_view(user: User, name: str, query: str) -> None:
    """Keep a view under a name; one of that name is replaced.

    Raises Invalid naming `name`, Conflict where there are MOST_VIEWS.
    """
    name = " ".join(name.split())
    if not name:
        raise Invalid.field("name", "Give the view a name.")
    if len(name) > LONGEST_NAME:
        raise Invalid.field("name", f"Give it a name of at most {LONGEST_NAME} characters.")
    if len(query) > LONGEST_QUERY:
        raise Invalid.field("name", "The filters are too long to be kept. Shorten the search.")
    with _table_of(user) as table:
        if all(view["name"] != name for view in table.views) and len(table.views) >= MOST_VIEWS:
            raise Conflict(f"You keep {MOST_VIEWS} views already. Remove one first.")
        others = [view for view in table.views if view["name"] != name]
        table.views = sorted([*others, {"name": name, "query": query}], key=lambda v: v["name"])


def remove_view(user: User, name: str) -> None:
    """Raises NotFound where the user keeps no such view."""
    with _table_of(user) as table:
        rest = [view for view in table.views if view["name"] != name]
        if len(rest) == len(table.views):
            raise NotFound(f"You keep no view “{name}”.")
        table.views = rest


@contextmanager
def _table_of(user: User) -> Iterator[JobTable]:
    """The row of the user, written when the block ends well."""
    with transaction.atomic():
        JobTable.objects.get_or_create(user=user)
        table = JobTable.objects.select_for_update().get(user=user)
        yield table
        table.save()
