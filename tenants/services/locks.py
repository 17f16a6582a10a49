"""The order in which transactions lock rows, so that no two wait for each other.

First tenants or GPU types, by id; then the rows below them: queues, quotas, members, webhooks,
edits. A reference to a tenant locks its row too, but only at the commit, when rows below it are
already locked. A deletion of the tenant would then wait for these rows, and their transaction for
the deletion.
"""

from collections.abc import Iterable

from django.db import connection

from tenants.models import GpuType, Tenant


def keep(kind: type[Tenant | GpuType], ids: Iterable[int | None]) -> None:
    """Keep these rows from being deleted until the end of the transaction; ignore None.

    Other transactions may still change and keep them. Call this before locking anything below these
    rows. The lock is the one that the database takes for a reference. SQLite has one writer at a
    time and needs none.
    """
    wanted = sorted({each for each in ids if each is not None})
    if not wanted or not connection.features.has_select_for_update:
        return
    table = connection.ops.quote_name(kind._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT 1 FROM {table} WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE", [wanted]
        )


def in_turn(kind: type[Tenant | GpuType], ids: Iterable[int]) -> list[int]:
    """Lock the existing rows among these until the end of the transaction; return their ids.

    Others that call this for one of the rows wait, and nobody changes or deletes it. Transactions
    that only refer to it go on.
    """
    rows = kind._default_manager.select_for_update(no_key=True).filter(id__in=set(ids))
    return list(rows.order_by("id").values_list("id", flat=True))


def alone(kind: type[Tenant | GpuType], id_: int) -> bool:
    """Lock a row that is about to be deleted; transactions that refer to it wait too. Return False
    when it no longer exists."""
    return kind._default_manager.select_for_update().filter(id=id_).exists()
