"""What holds for every test: a private folder for what Kant writes, and what is found once."""

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

# pytest-playwright keeps an event loop in the main thread; Django would refuse ORM calls there.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

# Tests keep the files of their clusters in folders of their own; so do processes that they start.
os.environ.setdefault("KANT_ACCESS_DIRS", "/")
django_settings.KANT_ACCESS_DIRS = ["/"]

# A command in the process of the tests would set up logs anew, to go where the output of its own
# test goes: for all tests that follow that is closed.
django_settings.LOGGING_CONFIG = None

# The fixtures of pytest-django by which a test gets its database.
DATABASE = {"db", "transactional_db", "live_server"}

FOLDERS = count()  # by which each test is told from the others of its process

cases.load_profile()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    with rewritten.by_one(session.config.args):
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config, items):
    """What machine code does not allow runs where the core is interpreted. `stored` are the tests
    that are worth a second database: by day one in three of the values that one test tries, which
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
    """What was collected stays to the end."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _private(settings, tmp_path_factory):
    """Nothing is made there before it is needed: pytest looks through the folders of all tests
    that have gone before to number the next one, which for thousands costs more than a test."""
    settings.VAR_DIR = tmp_path_factory.getbasetemp() / f"private-{next(FOLDERS)}" / "var"


@pytest.fixture(scope="session", autouse=True)
def _static_files_found_once():
    """Each test client has the middleware made anew, and a tenth of a test's time went into looking
    through all static files."""
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
    """A test client copies the context of each template: a page has hundreds, of which widgets of
    forms are most. Tests look at that of the whole page alone."""

    def render(template, context):
        if context.template is template and not (template.name or "").startswith("django/forms/"):
            template_rendered.send(sender=template, template=template, context=context)
        return template.nodelist.render(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Template, "_render", render)
        yield


@pytest.fixture
def now(monkeypatch):
    """The time, at which Kant's clock stands still: no day ends within the test."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)
    return now


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix, tmp_path_factory):
    """A pool that was filled while tests were collected would go on with the database that is no
    test's. In memory the first migration, by which it is made, is that of whoever came first."""
    for each in connections.all():
        if each.vendor == "postgresql":
            each.close_pool()
    if connection.vendor == "sqlite":
        _migrate_once(tmp_path_factory)


def _migrate_once(tmp_path_factory):
    """The history of migrations takes each process seconds: one makes the tables and keeps them,
    which the others copy. Whose rows are no part of a transaction that is taken back has them
    copied again: to empty all tables takes ten times as long."""
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
    """PostgreSQL gathers no statistics whenever it comes to it: tests look at its plans."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for table in connection.introspection.table_names(cursor):
                cursor.execute(f'ALTER TABLE "{table}" SET (autovacuum_enabled = false)')
