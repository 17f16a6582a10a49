"""The scheduling cycles of a cluster, from the leases to the effects. Called by the loop alone."""

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from scheduling.engine.queueing.fairness import Shares
from scheduling.engine.shards import WHOLE, scopes_of
from scheduling.kube.seam import KubeError
from scheduling.models import Cluster
from scheduling.services import projection
from scheduling.services.alarm import Alarm, Key
from scheduling.services.apply import apply_decisions
from scheduling.services.lease import (
    Lease,
    LeaseLost,
    ask_for_share,
    give_back,
    hand_over,
    take_or_renew,
)
from scheduling.services.recovery import take_up_pods
from scheduling.services.territory import settle, take_nodes
from scheduling.session import Pass, Reopen, Session
from scheduling.session.divided import declared_shards, retired_scopes

log = logging.getLogger(__name__)

LINGER_S = 0.02  # while binds are on their way, wait this long for their ends before returning
BUDGET_S = 1.0  # one call returns after this, so that other clusters get their turn
PROJECT_S = 1.0  # how often node rows and the status line are written
SCOPES_S = 1.0  # how often is looked which scopes there are, and whether they are shared fairly
DISTRUST_S = 60.0  # a scheduler that could not lead asks nobody for a scope for so long
RETRY_S = 5.0  # a cluster that cannot be reached is tried again after this


@dataclass(slots=True)
class Led:
    """A scope of a cluster that this process leads."""

    session: Session
    lease: Lease
    renewed_at: float  # by the monotonic clock: the other one may be set back
    projected_at: float = 0.0
    told: tuple[Shares, int] | None = None  # shares and passes as last written


class Scheduler:
    """The scopes of clusters that this process leads. One thread runs their cycles."""

    def __init__(self, holder: str = "") -> None:
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.led: dict[Key, Led] = {}
        self._scopes: dict[int, tuple[list[str], float]] = {}
        self._retry_at: dict[Key, float] = {}
        self.alarm = Alarm()

    def run(self, cluster_id: int, *, budget_s: float = BUDGET_S) -> None:
        """Run passes for the scopes of the cluster that this process may lead, in turn, until
        nothing is new."""
        if not Cluster.objects.filter(id=cluster_id, is_active=True).exists():
            self._leave_alone(cluster_id)
            return
        deadline = time.monotonic() + budget_s
        keys: list[Key] = []
        with self._guarded((cluster_id, WHOLE)):
            keys = [(cluster_id, scope) for scope in self._scopes_to_lead(cluster_id)]
        for key in keys:
            with self._guarded(key):
                self._lead(key)
        active = [key for key in keys if key in self.led]
        while active:
            for key in active:
                with self._guarded(key):
                    self._pass(self.led[key])
            active = [key for key in active if self._has_more(key)]
            if active and time.monotonic() > deadline:
                self.alarm.ring(cluster_id)
                break
        for key in keys:
            if key in self.led:
                with self._guarded(key):
                    self._project(self.led[key])

    def stop(self) -> None:
        """End all sessions and let standbys take over at once."""
        for key, led in list(self.led.items()):
            self._drop(key)
            give_back(led.lease)

    def _has_more(self, key: Key) -> bool:
        if key not in self.led:
            return False
        session = self.led[key].session
        more = session.pending or (session.busy and session.wait_for_news(LINGER_S))
        return more or session.news.is_set()

    @contextmanager
    def _guarded(self, key: Key) -> Iterator[None]:
        """What goes wrong in one scope ends its session, and nothing else."""
        try:
            yield
        except LeaseLost as error:
            log.warning("%s", error)
            self._drop(key)
        except Reopen as reason:
            log.info("%s", reason)
            self._drop(key)
            self._scopes.pop(key[0], None)
        except Exception as error:
            # What memory holds may no longer be what rows say: rebuild it from both truths.
            log.exception("cycle of %s failed; its session is rebuilt", _named(key))
            self._drop(key)
            self._retry_at[key] = time.monotonic() + RETRY_S
            text = f"A scheduling cycle failed ({type(error).__name__}); the log has the details."
            self._tell(key[0], text)

    def _tell(self, cluster_id: int, trouble: str) -> None:
        """Show that nobody schedules the cluster now, and why."""
        try:
            projection.write_status(
                cluster_id, connected=False, message=trouble, now=timezone.now()
            )
        except DatabaseError as error:  # perhaps what went wrong already
            log.error("cannot write the status of cluster %s: %s", cluster_id, error)

    # --- leading ----------------------------------------------------------------------------------
    def _scopes_to_lead(self, cluster_id: int) -> list[str]:
        """The scopes of the cluster, and those it had and that still own something."""
        known, until = self._scopes.get(cluster_id, ([], 0.0))
        undivided = known == [WHOLE] and (cluster_id, WHOLE) in self.led
        if undivided or time.monotonic() < until:
            return known
        try:
            shards = declared_shards(cluster_id)
        except (TypeError, ValueError) as error:
            log.error("shards of cluster %s cannot be read: %s", cluster_id, error)
            return known
        known = list(scopes_of(shards))
        if shards and not self._failed_lately(cluster_id):
            ask_for_share(cluster_id, self.holder, known, timezone.now())
        known += retired_scopes(cluster_id, known)
        self._scopes[cluster_id] = (known, time.monotonic() + SCOPES_S)
        return known

    def _leave_alone(self, cluster_id: int) -> None:
        """The cluster was deactivated or removed."""
        for key in [key for key in self.led if key[0] == cluster_id]:
            lease = self.led[key].lease
            self._drop(key)
            give_back(lease)
            log.info("%s is left alone: it is not active", lease)
            self._tell(cluster_id, "")

    def _failed_lately(self, cluster_id: int) -> bool:
        """Whether this process could not use a lease that it had; then it asks for no more."""
        now = time.monotonic()
        failed = (at for key, at in self._retry_at.items() if key[0] == cluster_id)
        return any(now < at + DISTRUST_S for at in failed)

    def _lead(self, key: Key) -> None:
        """Take or keep the lead of a scope, unless another scheduler has it or the cluster cannot
        be reached."""
        led = self.led.get(key)
        if led is not None:
            self._renew(led)
            return
        if time.monotonic() < self._retry_at.get(key, 0.0):
            return
        cluster_id, scope = key
        clock = time.monotonic()
        lease = take_or_renew(
            cluster_id,
            self.holder,
            now=timezone.now(),
            seconds=settings.KANT_LEASE_SECONDS,
            scope=scope,
        )
        if lease is not None:
            self._open(key, lease, clock)

    def _renew(self, led: Led, *, at_once: bool = False) -> None:
        """Renew the lease, if not at once then when a third of it has passed; raises LeaseLost."""
        clock, seconds = time.monotonic(), settings.KANT_LEASE_SECONDS
        if not at_once and clock - led.renewed_at < seconds / 3:
            return
        now, old = timezone.now(), led.lease
        lease = take_or_renew(
            old.cluster_id, self.holder, now=now, seconds=seconds, scope=old.scope
        )
        if lease is None or lease.token != old.token:
            raise LeaseLost(f"another scheduler leads {old} now")
        led.lease, led.renewed_at = lease, clock
        if lease.asked_by:
            self._drop((lease.cluster_id, lease.scope))
            hand_over(lease, now, seconds)
            raise Reopen(f"{lease} is handed over to {lease.asked_by}, which leads less")
        # Past its lease this process must not bind: another one may lead by then.
        led.session.gateway.fence(clock + seconds)

    def _open(self, key: Key, lease: Lease, taken_at: float) -> None:
        cluster_id, scope = key
        cluster = Cluster.objects.get(id=cluster_id)
        for other, led in list(self.led.items()):
            with self._guarded(other):
                self._renew(led, at_once=True)  # listing a large cluster takes a while
        # Read after the lease was taken: what is declared later makes the session end.
        shards = declared_shards(cluster_id)
        session = Session(cluster, partial(self.alarm.ring, cluster_id), scope, shards)
        led = Led(session, lease, taken_at)
        try:
            session.gateway.fence(taken_at + settings.KANT_LEASE_SECONDS)
            session.connect(time.time())
            facts = session.nodes.facts
            settle(lease, shards, facts)
            if scope in scopes_of(shards):
                at_home = [facts[name] for name in sorted(session.nodes.unclaimed)]
                mine = take_nodes(lease, at_home, timezone.now())
                own = {name: facts[name].node for name in mine & facts.keys()}
                take_up_pods(lease, session.first_pods, own, timezone.now())
                session.restore(mine, time.time())
                self.led[key] = led
                log.info("leading %s, “%s”, with token %d", lease, cluster.name, lease.token)
        except KubeError as error:
            log.error("cluster %s: %s", cluster.name, error)
            self._tell(cluster_id, str(error))
            self._retry_at[key] = time.monotonic() + RETRY_S
        finally:
            if key not in self.led:
                session.stop()
                self._drop(key)
        if scope not in scopes_of(shards):
            give_back(lease)  # all it had belongs to others now

    def _drop(self, key: Key) -> None:
        led = self.led.pop(key, None)
        if led is not None:
            led.session.stop()
        self.alarm.ring_at(key, None)

    # --- one pass ---------------------------------------------------------------------------------
    def _pass(self, led: Led) -> None:
        for decide in (led.session.decide_due, led.session.decide):
            began, changed = time.perf_counter(), False
            part: Pass | None = decide()
            while part is not None:
                stale: set[str] = set()
                if part.writes:
                    self._renew(led)
                    at = datetime.fromtimestamp(part.at, UTC)
                    stale = apply_decisions(led.lease, part.writes, at)
                led.session.finish(part, stale)
                changed |= bool(part.writes or part.effects)
                part = part.later
            if changed:
                led.session.pace.took(time.perf_counter() - began)
        self.alarm.ring_at((led.lease.cluster_id, led.lease.scope), led.session.next_at)

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
        shares, pace = session.state.shares(), session.pace
        if (shares, pace.passes) != led.told:
            projection.write_leader(led.lease, shares, pace)
            led.told = shares, pace.passes


def _named(key: Key) -> str:
    return f"scope {key[1]} of cluster {key[0]}" if key[1] else f"cluster {key[0]}"


scheduler = Scheduler()
