"""The thread in which a scheduler runs its cycles: for every cluster at each tick, and for one
cluster as soon as something is new there. Doorbells come through the broker; nothing else does, so
that scheduling goes on while the broker is away.
"""

import logging
import threading
import time

from django.conf import settings
from django.db import connection

from scheduling.models import Cluster
from scheduling.services import doorbell
from scheduling.services.cycle import Scheduler, scheduler
from tenants.outage import Outage, trouble_of

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after a failure
STOP_WITHIN_S = 20.0  # Kubernetes gives a process 30


class Loop:
    """Owns a scheduler: no other thread calls it between `start` and `stop`."""

    def __init__(self, owned: Scheduler) -> None:
        self._scheduler = owned
        self._doorbells: set[int] = set()  # that rang and were not taken note of
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._database = Outage(log, "The database", "nothing is decided until it answers")
        self._busy = Outage(log, "A busy database", "nothing is decided until there is a turn")

    def start(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="cycles", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the cycle at work, and let standbys take over at once."""
        if self._thread is None:
            return
        self._stopped.set()
        self._scheduler.alarm.wake()
        self._thread.join(STOP_WITHIN_S)
        if self._thread.is_alive():
            log.warning("a cycle takes too long to be waited for; standbys wait for the lease")
        self._thread = None

    def hear(self, cluster_id: int) -> None:
        """The doorbell of the cluster rang."""
        self._doorbells.add(cluster_id)
        self._scheduler.alarm.ring(cluster_id)

    def _run(self) -> None:
        tick_at = time.monotonic()
        while not self._stopped.is_set():
            wanted = self._scheduler.alarm.wait(tick_at)
            try:
                if time.monotonic() >= tick_at:
                    tick_at = time.monotonic() + settings.KANT_CYCLE_SECONDS
                    wanted |= self._clusters()
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
                connection.close()  # one that broke would not be opened again
        self._scheduler.stop()
        connection.close()

    def _clusters(self) -> set[int]:
        """Those that are active, and those that are led and may be so no longer."""
        active = Cluster.objects.filter(is_active=True).values_list("id", flat=True)
        return {*active, *(cluster_id for cluster_id, _ in self._scheduler.led)}

    def _cycle(self, cluster_id: int) -> None:
        if self._stopped.is_set():
            return
        if cluster_id in self._doorbells:
            self._doorbells.discard(cluster_id)
            doorbell.heard(cluster_id)
        self._scheduler.run(cluster_id)


loop = Loop(scheduler)
