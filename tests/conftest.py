"""Settings of every test: a private folder for what Kant writes, quick password hashes."""

import os

import pytest

# pytest-playwright keeps an event loop in the main thread; Django would refuse ORM calls there.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


@pytest.fixture(autouse=True)
def _quick_and_private(settings, tmp_path):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.VAR_DIR = tmp_path / "var"
