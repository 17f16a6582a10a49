"""One scheduling cycle of a cluster, from the lease to the effects. Called by the task alone."""

import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.utils import timezone

from scheduling.kube.seam import KubeError
from scheduling.models import Cluster
from scheduling.services import doorbell, projection
from scheduling.services.apply import apply_decisions
from scheduling.services.lease import Lease, LeaseLost, give_back, take_or_renew
from scheduling.session import Pass, Session

log = logging.getLogger(__name__)

LINGER_S = 0.02  # while binds are on their way, wait this long for their ends before returning
BUDGET_S = 1.0  # one call returns after this, so that other clusters get their turn
PROJECT_S = 1.0  # how often node rows and the status line are written
RETRY_S = 5.0  # a cluster that cannot be reached is tried again after this


@dataclass(slots=True)
class Led:
    """A cluster that this process leads."""

    session: Session
    lease: Lease
    projected_at: float = 0.0


class Scheduler:
    """The clusters that this process leads. One thread runs its cycles."""

    def __init__(self, holder: str = "") -> None:
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.led: dict[int, Led] = {}
        self._retry_at: dict[int, float] = {}
        self._bells: dict[int, Bell] = {}

    def run(self, cluster_id: int, *, budget_s: float = BUDGET_S) -> None:
        """Run passes for the cluster until nothing is new, if this process may lead it."""
        doorbell.heard(cluster_id)
        deadline = time.monotonic() + budget_s
        try:
            led = self._lead(cluster_id)
            while led is not None:
                self._pass(led)
                more = led.session.pending or (
                    led.session.busy and led.session.wait_for_news(LINGER_S)
                )
                if not more and not led.session.news.is_set():
                    break
                if time.monotonic() > deadline:
                    doorbell.ring(cluster_id)
                    break
            if led is not None:
                self._project(led)
        except LeaseLost as error:
            log.warning("%s", error)
            self._drop(cluster_id)
        except Exception:
            # What memory holds may no longer be what rows say: rebuild it from both truths.
            log.exception("cycle of cluster %s failed; its session is rebuilt", cluster_id)
            self._drop(cluster_id)
            self._retry_at[cluster_id] = time.monotonic() + RETRY_S

    def stop(self) -> None:
        """End all sessions and let standbys take over at once."""
        for cluster_id, led in list(self.led.items()):
            self._drop(cluster_id)
            give_back(led.lease)

    # --- leading ----------------------------------------------------------------------------------
    def _lead(self, cluster_id: int) -> Led | None:
        """The led cluster, or None when another scheduler leads it or it cannot be reached."""
        led = self.led.get(cluster_id)
        if led is not None:
            self._renew(led)
            return led
        if time.monotonic() < self._retry_at.get(cluster_id, 0.0):
            return None
        lease = take_or_renew(
            cluster_id, self.holder, now=timezone.now(), seconds=settings.KANT_LEASE_SECONDS
        )
        return self._open(cluster_id, lease) if lease is not None else None

    def _renew(self, led: Led) -> None:
        """Renew the lease once a third of it has passed; raises LeaseLost."""
        now, seconds = timezone.now(), settings.KANT_LEASE_SECONDS
        if led.lease.expires_at - now > timedelta(seconds=seconds * 2 / 3):
            return
        lease = take_or_renew(led.lease.cluster_id, self.holder, now=now, seconds=seconds)
        if lease is None or lease.token != led.lease.token:
            raise LeaseLost(f"another scheduler leads cluster {led.lease.cluster_id} now")
        led.lease = lease
        # Past its lease this process must not bind: another one may lead by then.
        led.session.gateway.fence(time.monotonic() + seconds)

    def _open(self, cluster_id: int, lease: Lease) -> Led | None:
        cluster = Cluster.objects.filter(id=cluster_id, is_active=True).first()
        if cluster is None:
            return None
        session: Session | None = None
        bell = self._bells[cluster_id] = Bell(cluster_id)
        try:
            session = Session(cluster, on_news=bell.ring)
            session.gateway.fence(time.monotonic() + settings.KANT_LEASE_SECONDS)
            session.start(time.time())
        except KubeError as error:
            log.error("cluster %s: %s", cluster.name, error)
            projection.write_status(
                cluster_id, connected=False, message=str(error), now=timezone.now()
            )
            self._retry_at[cluster_id] = time.monotonic() + RETRY_S
            self._drop(cluster_id)
            return None
        led = self.led[cluster_id] = Led(session, lease)
        session.gone_nodes |= projection.forget_unknown_nodes(lease, set(session.nodes))
        log.info("leading cluster %s with token %d", cluster.name, lease.token)
        return led

    def _drop(self, cluster_id: int) -> None:
        led = self.led.pop(cluster_id, None)
        if led is not None:
            led.session.stop()
        bell = self._bells.pop(cluster_id, None)
        if bell is not None:
            bell.stop()

    # --- one pass ---------------------------------------------------------------------------------
    def _pass(self, led: Led) -> None:
        now = time.time()
        part: Pass | None = led.session.decide(now)
        while part is not None:
            stale: set[str] = set()
            if part.writes:
                self._renew(led)
                stale = apply_decisions(led.lease, part.writes, datetime.fromtimestamp(now, UTC))
            led.session.finish(part, stale, now)
            part = part.later

    def _project(self, led: Led) -> None:
        clock = time.monotonic()
        if clock - led.projected_at < PROJECT_S:
            return
        led.projected_at = clock
        session = led.session
        changed, gone = session.take_changed_nodes()
        now = timezone.now()
        if changed or gone:
            projection.write_nodes(led.lease, session.state.cluster, changed, gone, now)
        projection.write_status(
            session.cluster_id, connected=session.connected, message=session.trouble, now=now
        )


class Bell:
    """Rings for news of a cluster from a thread of its own: the door's loop must not wait for a
    broker, and a broker that is away must not stop the door."""

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self._wanted = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"bell-{cluster_id}", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        self._stopped = True
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped:
                return
            try:
                doorbell.ring(self.cluster_id)
            except Exception as error:  # the tick comes anyway
                log.warning("cannot ring for cluster %s: %s", self.cluster_id, error)
                time.sleep(1.0)


scheduler = Scheduler()
