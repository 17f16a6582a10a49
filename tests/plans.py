"""Tell how the database would answer a query, by its indexes rather than by time."""

from unittest import mock

from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants.database import planned


def plan(sql):
    """Return the plan of a captured query, as if the tables were large."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
        else:
            for name in ("seqscan", "sort", "nestloop"):
                cursor.execute(f"SET LOCAL enable_{name} = off")
            cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def queries(act, *words):
    """Return the queries of `act` that contain all of these words, with their values."""
    as_text = mock.patch.object(planned, "cursor", connection.cursor)
    with as_text, CaptureQueriesContext(connection) as captured:
        act()
    return [q["sql"] for q in captured if all(word in q["sql"] for word in words)]


def query(act, *words):
    """Return the only query of `act` that contains all of these words."""
    (found,) = queries(act, *words)
    return found
