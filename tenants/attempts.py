"""How often passwords may be guessed: at the sign-in page and over REST together."""

import hashlib

from django.core.cache import cache

# For one user name from one address, before further passwords are not looked at.
ATTEMPTS = 10
WINDOW_S = 300


def too_many(name: str, address: str) -> bool:
    """Whether there were too many attempts in the window, this one included.

    To be asked before the password is looked at: many at once are not let through either.
    """
    key = _key(name, address)
    if cache.add(key, 1, WINDOW_S):
        return False
    try:
        return cache.incr(key) > ATTEMPTS
    except ValueError:  # it has expired since
        cache.add(key, 1, WINDOW_S)
        return False


def forget(name: str, address: str) -> None:
    """Begin the count anew: the password was right."""
    cache.delete(_key(name, address))


def _key(name: str, address: str) -> str:
    return "attempts:" + hashlib.sha256(f"{address} {name}".encode()).hexdigest()
