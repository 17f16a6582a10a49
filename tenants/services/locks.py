"""The order in which transactions lock rows, so that two of them never wait for each other.

First tenants or GPU types, by their id, then what is below them: queues, quotas, members,
webhooks, edits. A reference to a tenant locks its row too, but only at the commit, when rows below
it are held already; whoever deletes the tenant would wait for these, and they for the deletion.
"""

from collections.abc import Iterable

from django.db import connection

from tenants.models import GpuType, Tenant


def keep(kind: type[Tenant | GpuType], ids: Iterable[int | None]) -> None:
    """Until the end of the transaction nobody deletes these rows (a None is none of them); others
    may change them and keep them, too. To be called before anything below them is locked.

    It is what the database does itself for a reference. SQLite has one writer at a time.
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
    """Those of these rows that are there; until the end of the transaction others that ask for one
    of them wait, and nobody changes or deletes it. What only refers to it goes on."""
    rows = kind._default_manager.select_for_update(no_key=True).filter(id__in=set(ids))
    return list(rows.order_by("id").values_list("id", flat=True))


def alone(kind: type[Tenant | GpuType], id_: int) -> bool:
    """Lock a row that is about to be deleted: whoever refers to it waits, too. False where it is
    not there any more."""
    return kind._default_manager.select_for_update().filter(id=id_).exists()
