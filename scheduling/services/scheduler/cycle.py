"""The scheduling cycles of a cluster, from the leases to the effects. Only the loop calls them."""

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from scheduling.engine.queue.fair_share import Shares
from scheduling.engine.shards.division import WHOLE, scopes_of
from scheduling.engine.types import Shard
from scheduling.kube.door.gateway import STOP_WITHIN_S as GATEWAY_STOP_S
from scheduling.kube.seam import KubeError
from scheduling.models import Cluster
from scheduling.services.common.lease import (
    Lease,
    LeaseLost,
    ask_for_share,
    give_back,
    hand_over,
    take_or_renew,
)
from scheduling.services.plain_pods.take_up import TakenUp
from scheduling.services.scheduler import projection
from scheduling.services.scheduler.alarm import Alarm, Key
from scheduling.services.scheduler.apply import Committed, apply_decisions
from scheduling.services.scheduler.debts import DebtsWritten
from scheduling.services.scheduler.keeper import Keeper, Led
from scheduling.services.scheduler.recovery import take_up_pods
from scheduling.services.scheduler.ruled import Elsewhere
from scheduling.services.scheduler.standing import LastWritten
from scheduling.services.scheduler.taking import Taking
from scheduling.services.scheduler.territory import settle, take_nodes
from scheduling.session.changes import Inactive, Reopen
from scheduling.session.memory import load
from scheduling.session.memory.divided import declared_shards, retired_scopes
from scheduling.session.pace import Backlog
from scheduling.session.passes import Pass
from scheduling.session.session import Session

log = logging.getLogger(__name__)

LINGER_S = 0.02  # while binds are under way, wait this long for their results before returning
BUDGET_S = 1.0  # one call returns after this, to give other clusters their turn
PROJECT_S = 1.0  # how often node rows and the status line are written; half as often under load
SCOPES_S = 1.0  # how often to check which scopes exist and whether they are shared fairly
DISTRUST_S = 60.0  # how long a scheduler that could not lead asks nobody for a scope
RETRY_S = 5.0  # how long until a cluster that could not be reached is tried again
EARLY = 1 / 4  # of the lease, after which it is renewed between passes
LIST_S = 0.5  # how long to wait for a first list; a longer one must not hold up other clusters
STOP_WITHIN_S = 1.0  # all sessions together
NOTHING = Committed(set())


class Scheduler:
    """The scopes of clusters that this process leads. One thread runs their cycles.

    `led` are those that are scheduled. For its other leases, nodes and pods are still being listed,
    however long that takes.
    """

    def __init__(self, holder: str = "") -> None:
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.keeper = Keeper()
        self.led: dict[Key, Led] = {}
        self._listing: dict[Key, Listing] = {}
        self._written: dict[Key, Written] = {}
        self._ending: dict[Key, Session] = {}  # gateways that did not stop in time
        self._scopes: dict[int, tuple[list[str], float]] = {}
        self._retry_at: dict[Key, float] = {}
        self.alarm = Alarm()
        self.own_clock = False  # ticks of beat are missing; for pages

    def run(self, cluster_id: int, *, budget_s: float = BUDGET_S) -> None:
        """Run passes for the cluster's scopes that this process may lead, until nothing is new."""
        with self.keeper.at_work():
            self._run(cluster_id, budget_s)

    def _run(self, cluster_id: int, budget_s: float) -> None:
        if not (self._leads_all_it_has(cluster_id) or _is_active(cluster_id)):
            self._leave_alone(cluster_id)
            return
        deadline = time.monotonic() + budget_s
        keys: list[Key] = []
        with self._guarded((cluster_id, WHOLE)):
            keys = [(cluster_id, scope) for scope in self._scopes_to_lead(cluster_id)]
        for key in keys:
            self.keeper.next_step()
            with self._guarded(key):
                self._lead(key)
        active = [key for key in keys if key in self.led and not self._rests(key)]
        while active:
            for key in active:
                self.keeper.next_step()
                with self._guarded(key):
                    self._pass(self.led[key])
            active = [key for key in active if self._has_more(key)]
            if active and time.monotonic() > deadline:
                self.alarm.ring(cluster_id)
                break
        for key in keys:
            self.keeper.next_step()
            with self._guarded(key):
                if key in self.led:
                    self._project(key, self.led[key])
                    self._renew(self.led[key], EARLY)  # so that no pod waits for it
                elif key in self._listing:
                    self._tell_of_list(key, self._listing[key])

    def stop(self) -> None:
        """End all sessions and let standbys take over at once."""
        self.keeper.stop()
        held = dict(self.keeper.held)
        for led in held.values():
            led.session.gateway.end()
        deadline = time.monotonic() + STOP_WITHIN_S
        for key in held:
            self._drop(key, max(deadline - time.monotonic(), 0.0))
        for led in held.values():
            give_back(led.lease)

    def abandon(self) -> None:
        """Let standbys take over at once although a step is under way, without waiting for it.

        The scheduler's thread sends nothing from here on, and its writes are fenced.
        """
        self.keeper.stop()
        for led in list(self.keeper.held.values()):
            led.lost = True
            led.session.gateway.end()
            give_back(led.lease)

    def _has_more(self, key: Key) -> bool:
        if key not in self.led or self._rests(key):
            return False
        session = self.led[key].session
        more = session.pending or (session.busy and session.wait_for_news(LINGER_S))
        return more or session.news.is_set()

    def _rests(self, key: Key) -> bool:
        """Whether to collect more news first; the alarm rings when that is done."""
        session = self.led[key].session
        rest = session.rest()
        if rest and (session.news.is_set() or session.pending):
            until = time.time() + rest
            self.alarm.ring_at(key, min(until, session.next_at or until))
        return rest > 0.0

    @contextmanager
    def _guarded(self, key: Key) -> Iterator[None]:
        """End the session of a scope in which something goes wrong, and nothing else."""
        try:
            yield
        except LeaseLost as error:
            log.warning("%s", error)
            self._drop(key)
        except Reopen as reason:
            log.info("%s", reason)
            self._drop(key)
            self._scopes.pop(key[0], None)
        except Inactive:
            self._leave_alone(key[0])
        except Exception as error:
            # Memory may no longer match the rows: rebuild it from both systems of record.
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
        except DatabaseError as error:  # perhaps the original error
            log.error("cannot write the status of cluster %s: %s", cluster_id, error)

    # --- leading ----------------------------------------------------------------------------------
    def _leads_all_it_has(self, cluster_id: int) -> bool:
        """Whether each session of the cluster reads the cluster's row in each pass."""
        held = [key for key in self.keeper.held if key[0] == cluster_id]
        return bool(held) and all(key in self.led for key in held)

    def _scopes_to_lead(self, cluster_id: int) -> list[str]:
        """Return the scopes of the cluster, and former ones that still own something."""
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
        """Drop a cluster that was deactivated or removed."""
        for key in [key for key in self.keeper.held if key[0] == cluster_id]:
            lease = self.keeper.held[key].lease
            self._drop(key)
            give_back(lease)
            log.info("%s is left alone: it is not active", lease)
            self._tell(cluster_id, "")

    def _failed_lately(self, cluster_id: int) -> bool:
        """Whether this process failed to use a lease lately; then it asks for no more."""
        now = time.monotonic()
        failed = (at for key, at in self._retry_at.items() if key[0] == cluster_id)
        return any(now < at + DISTRUST_S for at in failed)

    def _lead(self, key: Key) -> None:
        """Take or keep the lead of a scope, if possible.

        It is not if another scheduler has it or the cluster cannot be reached.
        """
        led = self.keeper.held.get(key)
        if led is not None:
            self._renew(led)
            if key in self._listing:
                self._go_on(key, self._listing[key])
            elif not led.session.gateway.is_alive:
                raise Reopen(f"the gateway of {led.lease} has ended")
            return
        ending = self._ending.get(key)
        if ending is not None:
            # A second session would list the same again, and so would each after it.
            if ending.gateway.is_alive and not ending.stop(0.0):
                return
            del self._ending[key]
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

    def _renew(self, led: Led, part: float = 1 / 3) -> None:
        """Renew the lease once this part of it has passed. Raises LeaseLost."""
        if not led.lost and not led.is_due(part):
            return
        led.renew()
        lease = led.lease
        if lease.asked_by:
            self._drop((lease.cluster_id, lease.scope))
            hand_over(lease, timezone.now(), settings.KANT_LEASE_SECONDS)
            raise Reopen(f"{lease} is handed over to {lease.asked_by}, which leads less")

    def _open(self, key: Key, lease: Lease, taken_at: float) -> None:
        """Begin to list the cluster, with a lease just taken."""
        cluster_id, scope = key
        try:
            cluster = Cluster.objects.get(id=cluster_id)
            # Read after taking the lease: a later declaration then ends the session.
            shards = declared_shards(cluster_id)
            ring, share = partial(self.alarm.ring, cluster_id), settings.KANT_CHECK_SHARE
            session = Session(cluster, ring, scope, shards, check_share=share)
        except KubeError as error:
            self._give_up(key, lease, error)
            return
        led = Led(session, lease, taken_at)
        session.gateway.fence(taken_at + settings.KANT_LEASE_SECONDS)
        self.keeper.keep(key, led)
        self._listing[key] = Listing(led, cluster, shards)
        session.connect()
        session.gateway.wait_settled(LIST_S)
        self._go_on(key, self._listing[key])

    def _go_on(self, key: Key, listing: "Listing") -> None:
        """Lead the scope from here on, once its cluster is listed."""
        led, session = listing.led, listing.led.session
        try:
            if not session.gateway.is_synced():
                if listing.is_outdated():
                    raise Reopen(f"cluster {key[0]} is reached in another way from now on")
                return
            leads = self._take_over(listing)
        except KubeError as error:
            self._drop(key)
            self._give_up(key, led.lease, error)
            return
        del self._listing[key]
        if leads:
            self.led[key] = led
            log.info("leading %s, “%s”, token %d", led.lease, listing.cluster.name, led.lease.token)
        else:
            self._drop(key)
            give_back(led.lease)  # all it had belongs to others now

    def _take_over(self, listing: "Listing") -> bool:
        """Take up what rows and cluster say of the scope; False = the scope no longer exists.

        Raises LeaseLost; what was written before stays, and the next leader begins with it.
        """
        led, session, shards = listing.led, listing.led.session, listing.shards

        def still_leads() -> None:
            self.keeper.next_step()
            self._renew(led)

        session.listed(time.time())
        facts = session.nodes.facts
        still_leads()
        settle(led.lease, shards, facts)
        if led.lease.scope not in scopes_of(shards):
            return False
        still_leads()
        at_home = [facts[name] for name in sorted(session.nodes.unclaimed)]
        mine = take_nodes(led.lease, at_home, timezone.now())
        own = {name: facts[name].node for name in mine & facts.keys()}
        still_leads()
        take_up_pods(led.lease, session.first_pods, own, timezone.now(), still_leads)
        session.restore(mine, time.time(), still_leads)
        return True

    def _give_up(self, key: Key, lease: Lease, error: KubeError) -> None:
        """Give up the lease: this process cannot lead the cluster now, but perhaps another can."""
        log.error("%s: %s", _named(key), error)
        self._retry_at[key] = time.monotonic() + RETRY_S
        give_back(lease)
        self._tell(key[0], str(error))

    def _tell_of_list(self, key: Key, listing: "Listing") -> None:
        """Show that the scheduler is at work although nothing can be decided yet."""
        clock = time.monotonic()
        alone = all(cluster_id != key[0] for cluster_id, _ in self.led)
        if alone and clock - listing.told_at >= PROJECT_S:
            listing.told_at = clock
            gateway, took = listing.led.session.gateway, clock - listing.led.opened_at
            text = "Its nodes and pods are still being listed: "
            text += f"{gateway.waiting} objects after {took:.0f} s."
            self._tell(key[0], f"{text} {gateway.trouble}".strip())

    def _drop(self, key: Key, within: float = GATEWAY_STOP_S) -> None:
        self.led.pop(key, None)
        self._listing.pop(key, None)
        self._written.pop(key, None)
        led = self.keeper.held.pop(key, None)
        if led is not None and not led.session.stop(within):
            log.error("the gateway of %s does not end; it sends nothing more", _named(key))
            self._ending[key] = led.session
        self.alarm.ring_at(key, None)

    # --- one pass ---------------------------------------------------------------------------------
    def _pass(self, led: Led) -> None:
        session = led.session
        for decides in (lambda _: session.decide_due(), session.decide):
            began, changed = time.perf_counter(), False
            self._renew(led)
            with Taking(led) as taking:
                part: Pass | None = decides(taking)
                written = self._write(led, part, part.at, taking.taken) if part else NOTHING
            while part is not None:
                session.finish(part, *written)
                changed |= bool(part.writes or part.effects)
                part = part.later
                if part is not None:
                    self._renew(led)
                    written = self._write(led, part, time.time())  # later things happen later
            if changed:
                session.pace.took(time.perf_counter() - began)
        self.alarm.ring_at((led.lease.cluster_id, led.lease.scope), session.next_at)

    def _write(self, led: Led, part: Pass, at: float, taken: TakenUp | None = None) -> Committed:
        self.keeper.next_step()
        if not part.writes:
            return NOTHING
        began, as_of = time.perf_counter(), datetime.fromtimestamp(at, UTC)
        elsewhere = None
        if led.lease.scope != WHOLE:
            pods = led.session.life.foreign
            elsewhere = Elsewhere(led.neighbours, pods.placed, pods.groups.is_known)
        written = apply_decisions(led.lease, part.writes, as_of, taken, elsewhere)
        led.session.pace.spent("write", time.perf_counter() - began)
        return written

    def _project(self, key: Key, led: Led) -> None:
        clock = time.monotonic()
        written = self._written.setdefault(key, Written())
        session = led.session
        if clock - written.at < PROJECT_S * (2 if session.is_loaded else 1):
            return
        written.at = clock
        if session.nodes.dirty or session.nodes.gone:
            led.shelf.forget()
        changed, gone = session.take_changed_nodes()
        now, shares, pace = timezone.now(), session.state.shares(), session.pace
        status = projection.status(
            session.cluster_id,
            connected=session.connected,
            message=session.trouble or session.gateway.remarks,
            now=now,
        )
        pace.mark(now.timestamp())
        marked = pace.marks[-1].at
        told, columns = (shares, pace.passes, marked, self.own_clock, session.backlog), {}
        if told != written.told:
            columns = projection.leader(
                shares, pace, own_clock=self.own_clock, backlog=session.backlog
            )
        nodes = session.state.cluster
        projection.write_nodes(led.lease, nodes, changed, gone, now, status, **columns)
        written.told = told
        written.order.tell(led.lease, session.state, pace.passes)
        written.debts.tell(led.lease, session.state)
        if led.lease.scope == WHOLE:  # in a divided cluster it is read again each time
            led.shelf.renew(session.cluster_id, session.settings)


@dataclass(slots=True)
class Written:
    """What was last written of a scope, for pages and for the next scheduler.

    `told`: shares, passes, when these were last marked, whose clock rings, and the backlog.
    """

    at: float = 0.0
    told: tuple[Shares, int, float, bool, Backlog] | None = None
    order: LastWritten = field(default_factory=LastWritten)
    debts: DebtsWritten = field(default_factory=DebtsWritten)


@dataclass(slots=True)
class Listing:
    """A scope whose cluster is being listed, with cluster and shards as of when that began."""

    led: Led
    cluster: Cluster
    shards: Sequence[Shard]
    told_at: float = 0.0

    def is_outdated(self) -> bool:
        """Whether the cluster is now reached in another way."""
        row = Cluster.objects.get(id=self.cluster.pk)
        return load.reached_by(row) != load.reached_by(self.cluster)


def _is_active(cluster_id: int) -> bool:
    return Cluster.objects.filter(id=cluster_id, is_active=True).exists()


def _named(key: Key) -> str:
    return f"scope {key[1]} of cluster {key[0]}" if key[1] else f"cluster {key[0]}"


scheduler = Scheduler()
