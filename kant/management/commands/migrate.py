"""Django's `migrate`, one at a time: every pod of Kant runs it before it starts."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connections

LOCK = 0x6B616E74  # "kant" in ASCII; a database used only for Kant has no other lock with this key


class Command(migrate.Command):
    """A second process waits and then finds nothing left to do (docs/decisions/0030)."""

    def handle(self, *args: Any, **options: Any) -> None:
        connection = connections[options["database"]]
        if connection.vendor != "postgresql":
            super().handle(*args, **options)
            return
        with connection.cursor() as cursor:
            # A lock of the connection, not of a transaction: each migration has its own
            # transaction.
            cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        try:
            super().handle(*args, **options)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
