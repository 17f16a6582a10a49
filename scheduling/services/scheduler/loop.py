"""The thread in which a scheduler runs its cycles.

It runs one for every cluster at each tick of Celery beat, and for a single cluster as soon as
something is new there, a decision is due, or a doorbell rings. All of these ring one alarm. Ticks
and doorbells come through the broker. If ticks are missing, this thread's own clock rings instead,
so that scheduling continues without broker and beat.
"""

import logging
import threading
import time

from django.conf import settings
from django.db import connection

from scheduling.models import Cluster
from scheduling.services.common import doorbell
from scheduling.services.scheduler import alive
from scheduling.services.scheduler.cycle import Scheduler, scheduler
from tenants.outage import Outage, trouble_of

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after a failure
STOP_WITHIN_S = 1.5  # then the process ends without waiting for the thread
# How many ticks must be missing before the thread's own clock rings, and before that is reported.
MISSED_TICKS, TOLD_TICKS = 3, 10


class Loop:
    """Owns a scheduler: no other thread calls it between `start` and `stop`."""

    def __init__(self, owned: Scheduler) -> None:
        self._scheduler = owned
        self._doorbells: set[int] = set()  # clusters whose doorbell rang and was not answered
        self._ticked = False  # since the last round
        self._ticked_at = 0.0  # by the monotonic clock
        self._beat = Outage(log, "Celery beat", "the scheduler goes by its own clock")
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._database = Outage(log, "The database", "nothing is decided until it answers")
        self._busy = Outage(log, "A busy database", "nothing is decided until there is a turn")

    def start(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="cycles", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the running cycle, and let standbys take over at once."""
        if self._thread is None:
            return
        self._stopped.set()
        self._scheduler.alarm.wake()
        self._thread.join(STOP_WITHIN_S)
        if self._thread.is_alive():
            log.warning("a cycle takes too long to be waited for; it writes nothing more")
            self._scheduler.abandon()
        self._thread = None

    def tick(self) -> None:
        """Note a tick of beat: it is time for a cycle of every cluster."""
        self._ticked, self._ticked_at = True, time.monotonic()
        self._scheduler.alarm.wake()

    def hear(self, cluster_id: int) -> None:
        """Note that the doorbell of the cluster rang."""
        self._doorbells.add(cluster_id)
        self._scheduler.alarm.ring(cluster_id)

    def _run(self) -> None:
        round_at = self._ticked_at = time.monotonic()
        while not self._stopped.is_set():
            wanted = self._scheduler.alarm.wait(round_at)
            try:
                alive.sign(settings.KANT_ALIVE_FILE)  # also if nothing can be decided
                if self._ticked or time.monotonic() >= round_at:
                    self._ticked = False
                    self._tell_of_beat()
                    wanted |= self._clusters()
                    round_at = self._own_clock()
                for cluster_id in wanted:
                    self._cycle(cluster_id)
                self._database.over()
                self._busy.over()
            except Exception as error:
                trouble = trouble_of(error)
                if trouble is not None:
                    (self._busy if trouble.code == "busy" else self._database).began(error)
                else:
                    log.exception("a tick failed")
                self._stopped.wait(RETRY_S)
            finally:
                # A broken connection would not be reopened. The pool checks a connection before it
                # lends it, which costs 0.1 ms for each wake; but a pass that found it broken, as
                # after a restart of the database, would lose the session of its cluster.
                connection.close()
        self._scheduler.stop()
        connection.close()

    def _own_clock(self) -> float:
        """Return when the next round is due if no tick is heard before."""
        period = settings.KANT_CYCLE_SECONDS
        return max(time.monotonic() + period, self._ticked_at + MISSED_TICKS * period)

    def _tell_of_beat(self) -> None:
        silent = time.monotonic() - self._ticked_at
        if silent < MISSED_TICKS * settings.KANT_CYCLE_SECONDS:
            self._scheduler.own_clock = False
            self._beat.over()
        elif silent > TOLD_TICKS * settings.KANT_CYCLE_SECONDS:
            self._scheduler.own_clock = True
            self._beat.began(TimeoutError(f"no tick for {silent:.0f} s"))

    def _clusters(self) -> set[int]:
        """Return the active clusters, and those led here that may no longer be active."""
        active = Cluster.objects.filter(is_active=True).values_list("id", flat=True)
        return {*active, *(cluster_id for cluster_id, _ in list(self._scheduler.keeper.held))}

    def _cycle(self, cluster_id: int) -> None:
        if self._stopped.is_set():
            return
        if cluster_id in self._doorbells:
            self._doorbells.discard(cluster_id)
            doorbell.heard(cluster_id)
        self._scheduler.run(cluster_id)


loop = Loop(scheduler)
