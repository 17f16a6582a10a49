"""Who may act on a scope of a cluster: a lease row with a fencing token.

A lease alone does not stop a scheduler that slept through its expiry. So every write transaction of
a scheduler begins with `fence`. It fails once the token has moved on, and on PostgreSQL it holds
the row until the transaction ends, so that nobody takes over in the middle.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q

from scheduling.engine.shards.division import WHOLE, WIDE
from scheduling.models import SchedulerLease
from scheduling.services.common.bulk import Statement, Write, cursor_for, parts_of, write_together


class LeaseLost(Exception):
    """Another scheduler leads the scope now; whatever was being written is rolled back."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of `holder` to write for a scope of a cluster until `expires_at`.

    `asked_by`: another scheduler that wants to take it over, "" = none.
    """

    cluster_id: int
    holder: str
    token: int
    expires_at: datetime
    scope: str = WHOLE
    asked_by: str = ""

    def __str__(self) -> str:
        scope = f"scope {self.scope} of " if self.scope else ""
        return f"{scope}cluster {self.cluster_id}"


def take_or_renew(
    cluster_id: int, holder: str, *, now: datetime, seconds: float, scope: str = WHOLE
) -> Lease | None:
    """Renew the lease of the scope for `holder`, or take it if it is free; None = another has it.

    The token grows with every change of holder. A holder that renews late keeps its token if nobody
    took the lease in between: nobody else can have written. Holders are never reused.
    """
    SchedulerLease.objects.get_or_create(cluster_id=cluster_id, scope=scope)
    until = now + timedelta(seconds=seconds)
    this = Q(cluster_id=cluster_id, scope=scope)
    mine = this & Q(holder=holder) & ~Q(expires_at=None)
    free = this & (Q(expires_at=None) | Q(expires_at__lte=now))
    if not SchedulerLease.objects.filter(mine).update(expires_at=until):
        taken = SchedulerLease.objects.filter(free).update(
            holder=holder, expires_at=until, token=F("token") + 1, asked_by=""
        )
        if not taken:
            return None
    row = SchedulerLease.objects.get(this)
    if row.holder != holder:
        return None
    return Lease(cluster_id, holder, row.token, until, scope, row.asked_by)


def renew(lease: Lease, *, now: datetime, seconds: float) -> Lease | None:
    """Renew the lease until `seconds` after `now`; None = it was lost or given back.

    Unlike `take_or_renew`, never take a free lease.
    """
    until = now + timedelta(seconds=seconds)
    rows = SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, scope=lease.scope, token=lease.token, holder=lease.holder
    )
    if not rows.exclude(expires_at=None).update(expires_at=until):
        return None
    asked_by = rows.values_list("asked_by", flat=True).first()
    return None if asked_by is None else replace(lease, expires_at=until, asked_by=asked_by)


def fence(lease: Lease, **columns: Any) -> None:
    """Raise LeaseLost if the token has moved on. Call this first in every write transaction.

    `columns`: what else to write to the lease's row.
    """
    row = SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, scope=lease.scope, token=lease.token, holder=lease.holder
    )
    if not row.update(holder=lease.holder, **columns):
        raise lost(lease)


def lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"{lease.holder} no longer leads {lease}")


def write_fenced(lease: Lease, *writes: Write, **columns: Any) -> None:
    """Write all of these, and `columns` of the lease's row, in a transaction of their own.

    On PostgreSQL one statement does it all. Raises LeaseLost.
    """
    if connection.vendor != "postgresql":
        with transaction.atomic():
            fence(lease, **columns)
            write_together(*writes)
        return
    where = "EXISTS (SELECT FROM t0)"
    asked = cursor_for(writes)
    told = [fence_sql(lease, **columns), *(one.statement(where) for one in writes if len(one))]
    parts, params = parts_of(told)
    with asked as cursor:
        cursor.execute(f"WITH {parts} SELECT COUNT(*) FROM t0", params)
        [count] = cursor.fetchone()
    if not count:
        raise lost(lease)


def fence_sql(lease: Lease, **columns: Any) -> Statement:
    """Return `fence` as a part of a statement; it returns a row unless the token has moved on."""
    meta, quote = SchedulerLease._meta, connection.ops.quote_name
    known = {field.name: field for field in meta.concrete_fields}
    fields = [known[name] for name in columns]
    sets = ", ".join(f"{quote(str(field.column))} = %s" for field in fields) or "holder = holder"
    values = [
        field.get_db_prep_save(value, connection)
        for field, value in zip(fields, columns.values(), strict=True)
    ]
    sql = (
        f"UPDATE {quote(meta.db_table)} SET {sets} WHERE cluster_id = %s AND scope = %s "
        "AND token = %s AND holder = %s RETURNING 1"
    )
    return sql, [*values, lease.cluster_id, lease.scope, lease.token, lease.holder]


def hold_all(cluster_id: int) -> None:
    """Keep all schedulers of the cluster from writing until the transaction ends.

    Every scheduler's transaction begins with one of these rows, so that two transactions that
    change many jobs cannot deadlock. A transaction that needs several rows takes the wide scope's
    first, as here.
    """
    rows = SchedulerLease.objects.filter(cluster_id=cluster_id)
    scopes = rows.order_by().values_list("scope", flat=True)
    for scope in sorted(scopes, key=lambda name: (name != WIDE, name)):
        rows.filter(scope=scope).update(holder=F("holder"))


def give_back(lease: Lease) -> None:
    """Let another scheduler take over at once instead of after the expiry."""
    SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, scope=lease.scope, token=lease.token, holder=lease.holder
    ).update(expires_at=None)


# --- several schedulers of one cluster ------------------------------------------------------------
def ask_for_share(cluster_id: int, holder: str, scopes: Sequence[str], now: datetime) -> None:
    """Ask the scheduler with the most of these scopes for one, if it leads two more than `holder`.

    It hands the scope over when it renews. This is only a wish: nothing depends on it.
    """
    rows = SchedulerLease.objects.filter(
        cluster_id=cluster_id, scope__in=scopes, expires_at__gt=now
    ).order_by("scope")
    leads = Counter({holder: 0})
    leads.update(row.holder for row in rows)
    busiest, most = max(leads.items(), key=lambda item: (item[1], item[0]))
    if most - leads[holder] < 2 or any(row.asked_by == holder for row in rows):
        return
    theirs = [row for row in rows if row.holder == busiest and not row.asked_by]
    for row in theirs[:1]:
        SchedulerLease.objects.filter(pk=row.pk, token=row.token, asked_by="").update(
            asked_by=holder
        )


def hand_over(lease: Lease, now: datetime, seconds: float) -> None:
    """Give the lease to the scheduler that asked for it.

    The caller has ended its session of the scope. If the other scheduler is gone, the lease expires
    and anyone may take it.
    """
    SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, scope=lease.scope, token=lease.token, holder=lease.holder
    ).update(
        holder=lease.asked_by,
        asked_by="",
        token=F("token") + 1,
        expires_at=now + timedelta(seconds=seconds),
    )
