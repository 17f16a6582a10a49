"""Kant's settings with fast password hashes, for tests and the processes that they start: one hash
that is slow by design costs as much as ten tests."""

from kant.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
