"""How the database would answer a query: by which index, without a clock."""

from unittest import mock

from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants.database import planned


def plan(sql):
    """The plan of a captured query, as if the tables were large."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
        else:
            for name in ("seqscan", "sort", "nestloop"):
                cursor.execute(f"SET LOCAL enable_{name} = off")
            cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def queries(act, *words):
    """The queries of `act` that have all of these words in them, with their values."""
    as_text = mock.patch.object(planned, "cursor", connection.cursor)
    with as_text, CaptureQueriesContext(connection) as captured:
        act()
    return [q["sql"] for q in captured if all(word in q["sql"] for word in words)]


def query(act, *words):
    """The one query of `act` that has all of these words in it."""
    (found,) = queries(act, *words)
    return found
