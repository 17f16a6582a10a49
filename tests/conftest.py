"""Settings of every test: a private folder for what Kant writes, quick password hashes."""

import os

import pytest
from django.db import connections

# pytest-playwright keeps an event loop in the main thread; Django would refuse ORM calls there.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


@pytest.fixture(autouse=True)
def _quick_and_private(settings, tmp_path):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.VAR_DIR = tmp_path / "var"


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix):
    """A pool that was filled while tests were collected would go on with the database that is no
    test's."""
    for connection in connections.all():
        if connection.vendor == "postgresql":
            connection.close_pool()
