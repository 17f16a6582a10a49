"""Settings of every test: a private folder for what Kant writes, quick password hashes."""

import gc
import os

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections
from django.utils import timezone

from scheduling import compiled
from tests import cases

# pytest-playwright keeps an event loop in the main thread; Django would refuse ORM calls there.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

# Tests keep the files of their clusters in folders of their own; so do processes that they start.
os.environ.setdefault("KANT_ACCESS_DIRS", "/")
django_settings.KANT_ACCESS_DIRS = ["/"]

cases.load_profile()


def pytest_collection_modifyitems(config, items):
    """What machine code does not allow runs where the core is interpreted."""
    if compiled.in_use():
        left_out = [item for item in items if item.get_closest_marker("interpreted")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("interpreted")]


def pytest_collection_finish(session):
    """What was collected stays to the end."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _quick_and_private(settings, tmp_path):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.VAR_DIR = tmp_path / "var"


@pytest.fixture
def now(monkeypatch):
    """The time, at which Kant's clock stands still: no day ends within the test."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)
    return now


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix):
    """A pool that was filled while tests were collected would go on with the database that is no
    test's."""
    for each in connections.all():
        if each.vendor == "postgresql":
            each.close_pool()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup, django_db_blocker):
    """PostgreSQL gathers no statistics whenever it comes to it: tests look at its plans."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for table in connection.introspection.table_names(cursor):
                cursor.execute(f'ALTER TABLE "{table}" SET (autovacuum_enabled = false)')
