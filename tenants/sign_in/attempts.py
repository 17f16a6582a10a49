"""How often passwords may be guessed: at the sign-in page and over REST together."""

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

# For one user name from one address, before further passwords are not looked at.
ATTEMPTS = 10
# For all user names from one address: one password may be tried on many.
ADDRESS_ATTEMPTS = 50
WINDOW_S = 300
# Each look at a password costs a tenth of a second of CPU; so many at once in a process, and for so
# long the others wait for their turn.
AT_ONCE, TURN_S = 1, 5.0

_outage = Outage(logger, "Redis", "wrong passwords are not counted and may be guessed")


class Busy(Exception):
    """So many passwords are being looked at that this one had no turn."""


_turns = threading.BoundedSemaphore(AT_ONCE)


@contextmanager
def turn() -> Iterator[None]:
    """To look at a password within; raises Busy."""
    if not _turns.acquire(timeout=TURN_S):
        raise Busy
    try:
        yield
    finally:
        _turns.release()


def client_address(request: HttpRequest) -> str:
    """Where a request comes from: its peer or, where that is one of KANT_TRUSTED_PROXIES, who that
    one, and trusted ones before it, say it comes from."""
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
    """Whether there were too many attempts in the window, this one included: for the user name
    from the address, or from the address for whatever name.

    To be asked before the password is looked at: many at once are not let through either. While
    Redis is away nothing is counted: who has to mend it has to be able to sign in.
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
    """How many attempts there were in the window, this one included."""
    if cache.add(key, 1, WINDOW_S):
        return 1
    try:
        return cache.incr(key)
    except ValueError:  # it has expired since
        cache.add(key, 1, WINDOW_S)
        return 1


def forget(name: str, address: str) -> None:
    """Begin the count anew: the password was right. Of the address one attempt is taken back: who
    knows one password may guess no more of others."""
    try:
        cache.delete(_key(name, address))
        with suppress(ValueError):  # it has expired since
            cache.decr(_key("", address))
    except REDIS_ERRORS as error:
        _outage.began(error)


def _key(name: str, address: str) -> str:
    return "attempts:" + hashlib.sha256(f"{_whose(address)} {name}".encode()).hexdigest()


def _whose(address: str) -> str:
    """As what an address counts. Whoever has an IPv6 address has all of its /64 (RFC 6177)."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
    return address
