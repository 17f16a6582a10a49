"""Kant's settings with quick password hashes, for tests and the processes that they start: a hash
that is slow by design costs as much as ten tests."""

from kant.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
