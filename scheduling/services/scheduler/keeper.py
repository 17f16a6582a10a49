"""Keep the leases of a scheduler while one long step holds up its thread.

Such steps read rows, restore a cluster, run a cycle of many jobs, or wait for a transaction.
"""

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.conf import settings
from django.db import connection
from django.utils import timezone

from scheduling.services.common.lease import Lease, LeaseLost, renew
from scheduling.services.plain_pods.books import Shelf
from scheduling.services.scheduler import alive
from scheduling.services.scheduler.alarm import Key
from scheduling.services.scheduler.ruled import Neighbours
from scheduling.session.session import Session

log = logging.getLogger(__name__)

# A step that takes longer hangs, and another scheduler may fare better. Listing is no step.
STUCK_S = 600.0


@dataclass(slots=True)
class Led:
    """A scope of a cluster whose lease this process has, and its session."""

    session: Session
    lease: Lease
    renewed_at: float  # by the monotonic clock: the other one may be set back
    opened_at: float = field(default_factory=time.monotonic)
    lost: bool = False
    shelf: Shelf = field(default_factory=Shelf)
    neighbours: Neighbours = field(default_factory=Neighbours)

    def renew(self) -> None:
        """Renew the lease. Raises LeaseLost. Any thread may call it."""
        clock, seconds = time.monotonic(), settings.KANT_LEASE_SECONDS
        lease = None if self.lost else renew(self.lease, now=timezone.now(), seconds=seconds)
        if lease is None:
            self.lost = True
            self.session.gateway.end()  # from here on another scheduler acts
            raise LeaseLost(f"another scheduler leads {self.lease} now")
        self.lease, self.renewed_at = lease, clock
        # Past its lease this process must not bind: another one may lead by then.
        self.session.gateway.fence(clock + seconds)

    def is_due(self, part: float) -> bool:
        """Whether that part of the lease has passed."""
        return time.monotonic() - self.renewed_at >= part * settings.KANT_LEASE_SECONDS


class Keeper:
    """A thread that renews leases that the scheduler, busy with a step, does not get to renew.

    `held`: all scopes that the process leads; only the scheduler's thread changes it.
    """

    def __init__(self) -> None:
        self.held: dict[Key, Led] = {}
        self._step_at: float | None = None  # when the current step began; None = idle
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Mark the scheduler as at work: a long step meanwhile costs it no lease."""
        self.next_step()
        try:
            yield
        finally:
            self._step_at = None

    def next_step(self) -> None:
        """Note that a step is over and the next begins."""
        alive.sign(settings.KANT_ALIVE_FILE)
        self._step_at = time.monotonic()

    def keep(self, key: Key, led: Led) -> None:
        self.held[key] = led
        if self._thread is None:
            self._thread = threading.Thread(
                target=_keep, args=(weakref.ref(self), self._stopped), name="leases", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread without waiting for it. A later `keep` starts another one."""
        self._stopped.set()
        self._stopped, self._thread = threading.Event(), None

    def renew_late(self) -> None:
        """Renew leases that the scheduler should have renewed long ago."""
        for led in list(self.held.values()):
            since = self._step_at
            if since is None or time.monotonic() - since > STUCK_S or led.lost:
                continue
            if led.is_due(1 / 2):
                try:
                    led.renew()
                except LeaseLost as error:
                    log.warning("%s", error)


def _keep(keeper: "weakref.ref[Keeper]", stopped: threading.Event) -> None:
    """Renew late leases; end with the keeper, whose scheduler may be dropped without `stop`."""
    while not stopped.wait(settings.KANT_LEASE_SECONDS / 8):
        kept = keeper()
        if kept is None:
            return
        try:
            kept.renew_late()
        except Exception:
            log.exception("a lease is not renewed; it is tried again")
        finally:
            del kept
            connection.close()  # a broken connection would not be reopened
