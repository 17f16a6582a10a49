"""How often passwords may be guessed: at the sign-in page and over REST together."""

import hashlib
import logging

from django.core.cache import cache

from tenants.outage import REDIS_ERRORS, Outage

logger = logging.getLogger(__name__)

# For one user name from one address, before further passwords are not looked at.
ATTEMPTS = 10
WINDOW_S = 300

_outage = Outage(logger, "Redis", "wrong passwords are not counted and may be guessed")


def too_many(name: str, address: str) -> bool:
    """Whether there were too many attempts in the window, this one included.

    To be asked before the password is looked at: many at once are not let through either. While
    Redis is away nothing is counted: who has to mend it has to be able to sign in.
    """
    try:
        number = _count(_key(name, address))
    except REDIS_ERRORS as error:
        _outage.began(error)
        return False
    _outage.over()
    return number > ATTEMPTS


def _count(key: str) -> int:
    """How many attempts there were in the window, this one included."""
    if cache.add(key, 1, WINDOW_S):
        return 1
    try:
        return cache.incr(key)
    except ValueError:  # it has expired since
        cache.add(key, 1, WINDOW_S)
        return 1


def forget(name: str, address: str) -> None:
    """Begin the count anew: the password was right."""
    try:
        cache.delete(_key(name, address))
    except REDIS_ERRORS as error:
        _outage.began(error)


def _key(name: str, address: str) -> str:
    return "attempts:" + hashlib.sha256(f"{address} {name}".encode()).hexdigest()
