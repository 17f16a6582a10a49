"""Set up every test: a private folder for Kant's files, and objects that are made only once."""

import gc
import os
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import count

import pytest
from django.conf import settings as django_settings
from django.core.management.commands import flush
from django.db import connection, connections
from django.template import Template
from django.test.signals import template_rendered
from django.utils import timezone
from whitenoise.middleware import WhiteNoiseMiddleware

from kant.management.commands import migrate
from scheduling import compiled
from tests import cases, rewritten
from tests.kept import kept

# pytest-playwright keeps an event loop in the main thread, where Django would refuse ORM calls.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

# Tests, and the processes that they start, keep cluster files in their own folders.
os.environ.setdefault("KANT_ACCESS_DIRS", "/")
django_settings.KANT_ACCESS_DIRS = ["/"]

# A command that runs in the test process would reconfigure logging to the captured output of its
# test, which is closed for all later tests.
django_settings.LOGGING_CONFIG = None

# The pytest-django fixtures that give a test its database.
DATABASE = {"db", "transactional_db", "live_server"}

FOLDERS = count()  # number the tests' folders within this process

cases.load_profile()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    with rewritten.by_one(session.config.args):
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config, items):
    """Leave out tests that need the interpreted core if the core is compiled. `stored` marks the
    tests that are worth a second database: by day one in three of a test's parameter values, which
    differ in what is stored more than in how."""
    tried = Counter()
    for item in items:
        if not uses_database(item):
            continue
        test = (item.parent, item.originalname) if hasattr(item, "callspec") else item
        if cases.NIGHTLY or tried[test] % 3 == 0:
            item.add_marker("stored")
        tried[test] += 1
    if compiled.in_use():
        left_out = [item for item in items if item.get_closest_marker("interpreted")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("interpreted")]


def uses_database(item):
    return item.get_closest_marker("django_db") is not None or not DATABASE.isdisjoint(
        item.fixturenames
    )


def pytest_collection_finish(session):
    """Keep the collected objects to the end."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _private(settings, tmp_path_factory):
    """Create the folder only when a test needs it: pytest scans the folders of all earlier tests to
    number the next one, which costs more than a test once there are thousands."""
    settings.VAR_DIR = tmp_path_factory.getbasetemp() / f"private-{next(FOLDERS)}" / "var"


@pytest.fixture(scope="session", autouse=True)
def _static_files_found_once():
    """Make the middleware once: each test client would make it anew, and looking through all static
    files took a tenth of a test's time."""
    found = {}
    look = WhiteNoiseMiddleware.add_files_from_finders

    def add(self):
        asked = (self.static_prefix, repr(django_settings.STATICFILES_DIRS))
        if asked not in found:
            look(self)
            found[asked] = dict(self.files)
        self.files.update(found[asked])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", add)
        yield


@pytest.fixture(scope="session", autouse=True)
def _pages_tell_their_context(django_test_environment):
    """Copy the context of the whole page only. A test client copies the context of each template,
    and a page has hundreds of them, mostly form widgets."""

    def render(template, context):
        if context.template is template and not (template.name or "").startswith("django/forms/"):
            template_rendered.send(sender=template, template=template, context=context)
        return template.nodelist.render(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Template, "_render", render)
        yield


@pytest.fixture
def now(monkeypatch):
    """Stop Kant's clock at this time, so that no day ends within the test."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)
    return now


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix, tmp_path_factory):
    """Clear the connection pool: one filled during collection would keep a database that belongs to
    no test. In memory, the first migration, which makes the database, would be that of whichever
    test ran first."""
    for each in connections.all():
        if each.vendor == "postgresql":
            each.close_pool()
    if connection.vendor == "sqlite":
        _migrate_once(tmp_path_factory)


def _migrate_once(tmp_path_factory):
    """Make the tables once and copy them: running all migrations takes each process seconds. Tests
    whose rows are not in a rolled-back transaction get a fresh copy, since emptying all tables
    takes ten times as long."""
    really = migrate.Command.handle

    def handle(self, *args, **options):
        migrate.Command.handle = really

        def make(folder):
            self.handle(*args, **options)
            with closing(sqlite3.connect(folder / "kant.sqlite3")) as file:
                connection.connection.backup(file)

        folder = kept(tmp_path_factory, "migrated", make)

        def copy(*_, **__):
            connection.ensure_connection()
            with closing(sqlite3.connect(folder / "kant.sqlite3")) as file:
                file.backup(connection.connection)

        copy()
        flush.Command.handle = copy

    migrate.Command.handle = handle


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup, django_db_blocker):
    """Stop PostgreSQL from gathering statistics at arbitrary moments, because tests look at its
    plans."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for table in connection.introspection.table_names(cursor):
                cursor.execute(f'ALTER TABLE "{table}" SET (autovacuum_enabled = false)')
