"""Jobs of plain pods that are made, and decided about, before anything is queried or locked.

One statement writes them and is their transaction (docs/decisions/0073). It fences itself and
checks that what they were made from still holds; if not, it writes nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Model

from scheduling.models import JobPod
from scheduling.services.common.bulk import Rows, Statement, Write, cursor_for, parts_of
from scheduling.services.common.lease import Lease, fence_sql, lost
from scheduling.services.plain_pods.books import Premises
from tenants.database import planned
from tenants.models import Queue, Tenant


@dataclass(frozen=True, slots=True)
class StillSo:
    """The condition that none of these pods has a job, and tenants and queues are unchanged.

    For PostgreSQL only.
    """

    uids: Collection[str]
    premises: Premises

    def write(
        self, lease: Lease, writes: Sequence[Write], told: Sequence[tuple[Rows, str]]
    ) -> list[list[Any]] | None:
        """Write all of these if the condition holds.

        Of `told` rows, return what their column expressions (SQL of one value) give, in any order.
        None = the condition no longer holds, and nothing is written. Raises LeaseLost.
        """
        asked = cursor_for([*writes, *(rows for rows, _ in told)])
        where = "EXISTS (SELECT FROM so)"
        parts = [*self._parts(lease)]
        found, lists = [one.statement(where) for one in writes if len(one)], list[str]()
        for rows, column in told:
            if len(rows):
                lists.append(f"(SELECT json_agg(r) FROM t{len(found)})")
                found.append(rows.statement(where, f"{column} AS r"))
            else:
                lists.append("'[]'::json")
        written, params = parts_of(found)
        sql = f"WITH {', '.join(sql for sql, _ in parts)}, {written} "
        sql += (
            f"SELECT (SELECT COUNT(*) FROM fenced), (SELECT COUNT(*) FROM so), {', '.join(lists)}"
        )
        with asked as cursor:
            cursor.execute(sql, [*(value for _, values in parts for value in values), *params])
            is_fenced, is_so, *answers = cursor.fetchone()
        if not is_fenced:
            raise lost(lease)
        return answers if is_so else None

    def holds(self) -> bool:
        """Whether the condition holds; if so, it holds to the end of the fenced transaction."""
        parts = self._parts(None)
        with planned.cursor() as cursor:
            sql = f"WITH {', '.join(sql for sql, _ in parts)} SELECT COUNT(*) FROM so"
            cursor.execute(sql, [value for _, values in parts for value in values])
            return bool(cursor.fetchone()[0])

    def _parts(self, lease: Lease | None) -> list[Statement]:
        """Return the parts of a statement that check the condition and the lease.

        `so` has a row if the condition holds, `fenced` if the lease does.

        `lease` None = the lease holds. Rows are locked one after another, in the order of
        submissions.
        """
        table = connection.ops.quote_name(JobPod._meta.db_table)
        fence, of_fence = ("SELECT 1", []) if lease is None else fence_sql(lease)
        tenants, of_tenants = _held(Tenant, self.premises.tenants, "fenced", "NO KEY UPDATE")
        queues, of_queues = _held(Queue, self.premises.queues, "tenants", "UPDATE")
        counts = [f"(SELECT COUNT(*) FROM {name}) = %s::bigint" for name in ("tenants", "queues")]
        so = f"SELECT FROM fenced WHERE {' AND '.join(counts)} AND NOT EXISTS "
        so += f"(SELECT FROM {table} WHERE uid = ANY(%s::uuid[]))"
        of_so = [len(self.premises.tenants), len(self.premises.queues), [*self.uids]]
        return [
            (f"fenced AS ({fence})", of_fence),
            (f"tenants AS ({tenants})", of_tenants),
            (f"queues AS ({queues})", of_queues),
            (f"so AS ({so})", of_so),
        ]


def _held(model: type[Model], versions: Any, behind: str, lock: str) -> Statement:
    """Return SQL for the rows that have these versions by id, locked if `behind` has a row."""
    table = connection.ops.quote_name(model._meta.db_table)
    sql = (
        f"SELECT m.id FROM {table} m "
        "JOIN unnest(%s::bigint[], %s::bigint[]) AS was(id, version) "
        "ON m.id = was.id AND m.version = was.version "
        f"WHERE EXISTS (SELECT FROM {behind}) ORDER BY m.id FOR {lock} OF m"
    )
    return sql, [[*versions], [*versions.values()]]
