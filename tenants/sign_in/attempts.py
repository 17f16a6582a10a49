"""Limits on guessing passwords, shared by the sign-in page and REST."""

import hashlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address, ip_network

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest

from tenants.outage import REDIS_ERRORS, Outage

logger = logging.getLogger(__name__)

# Per user name and address, before further passwords are refused unchecked.
ATTEMPTS = 10
# Per address over all user names: one password may be tried on many.
ADDRESS_ATTEMPTS = 50
WINDOW_S = 300
# Checking a password costs a tenth of a second of CPU: at most AT_ONCE checks run in a process, and
# others wait up to TURN_S seconds.
AT_ONCE, TURN_S = 1, 5.0

_outage = Outage(logger, "Redis", "wrong passwords are not counted and may be guessed")


class Busy(Exception):
    """Too many password checks are running; this one got no turn."""


_turns = threading.BoundedSemaphore(AT_ONCE)


@contextmanager
def turn() -> Iterator[None]:
    """Hold a turn to check a password; raise Busy."""
    if not _turns.acquire(timeout=TURN_S):
        raise Busy
    try:
        yield
    finally:
        _turns.release()


def client_address(request: HttpRequest) -> str:
    """Return where a request comes from: its peer or, if that is one of KANT_TRUSTED_PROXIES, the
    last untrusted address in X-Forwarded-For."""
    address: str = request.META.get("REMOTE_ADDR", "")
    said = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    while said and _is_trusted(address):
        before = said.pop().strip()
        if not _is_address(before):
            break
        address = before
    return address


def _is_trusted(address: str) -> bool:
    networks = [ip_network(each, strict=False) for each in settings.KANT_TRUSTED_PROXIES]
    return _is_address(address) and any(ip_address(address) in each for each in networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def too_many(name: str, address: str) -> bool:
    """Count this attempt, and return whether there are too many in the window: for this user name
    and address, or for this address in total.

    Call this before checking the password, so that concurrent attempts are limited too. While Redis
    is down nothing is counted, because whoever has to repair it must be able to sign in.
    """
    try:
        number = _count(_key(name, address))
        in_all = _count(_key("", address))
    except REDIS_ERRORS as error:
        _outage.began(error)
        return False
    _outage.over()
    return number > ATTEMPTS or in_all > ADDRESS_ATTEMPTS


def _count(key: str) -> int:
    """Count one attempt; return how many there were in the window."""
    if cache.add(key, 1, WINDOW_S):
        return 1
    try:
        return cache.incr(key)
    except ValueError:  # it has expired in between
        cache.add(key, 1, WINDOW_S)
        return 1


def forget(name: str, address: str) -> None:
    """Reset the count after a correct password. The address's total only drops by this attempt:
    knowing one password must not allow guessing more of others."""
    try:
        cache.delete(_key(name, address))
        with suppress(ValueError):  # it has expired in between
            cache.decr(_key("", address))
    except REDIS_ERRORS as error:
        _outage.began(error)


def _key(name: str, address: str) -> str:
    return "attempts:" + hashlib.sha256(f"{_whose(address)} {name}".encode()).hexdigest()


def _whose(address: str) -> str:
    """Return what to count an address as: for IPv6 its /64, all of which one user has (RFC
    6177)."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
    return address
