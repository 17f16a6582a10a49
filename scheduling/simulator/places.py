"""The places of a run's pods in the observer's books: taken, given back, and work lost."""

from collections.abc import Iterable

from scheduling.engine.types import PodPlacement, held_milli
from scheduling.simulator.model import Pod, Settings
from scheduling.simulator.observe import Observer
from scheduling.simulator.run import Run


class RunPlaces:
    """Keeps the places of each run and the books of `observer` in step. Times in seconds."""

    def __init__(self, observer: Observer, settings: Settings) -> None:
        self._observer = observer
        self._journal = observer.journal
        self._settings = settings

    def take(self, run: Run, p: PodPlacement, now: float) -> None:
        assert run.places is not None
        where = (p.pod_set, p.ordinal)
        run.places[where] = p
        self._observer.jobs.waits.start(run.unit_of(where), now)
        if self._journal is not None:
            self._journal.take(run.row, p, now)
        self._observer.took(p.node, held_milli(p), now, run.arrival.job.tenant)

    def give_back(self, run: Run, where: Pod, now: float) -> PodPlacement:
        """Take one pod's place from it; return the place."""
        assert run.places is not None
        p = run.places.pop(where)
        if self._journal is not None:
            self._journal.give_back(run.row, where[0], where[1], now)
        self._observer.took(p.node, -held_milli(p), now, run.arrival.job.tenant)
        return p

    def wait_again(self, run: Run, pods: Iterable[Pod], now: float) -> None:
        """Note that these pods lost their places; a gang that goes on does not wait for them."""
        for where in pods:
            if self._journal is not None:
                self._journal.lose(run.row, where[0], where[1])
            if not run.arrival.job.gang:
                self._observer.jobs.waits.stop(run.unit_of(where), now)

    def release(self, run: Run, now: float) -> None:
        """Take all places from a run that has ended or was interrupted."""
        tenant = run.arrival.job.tenant
        for where, p in (run.places or {}).items():
            self._observer.took(p.node, -held_milli(p), now, tenant)
            if self._journal is not None:
                self._journal.give_back(run.row, where[0], where[1], now)
        run.places = None
        run.begun.clear()
        run.ends.clear()
        run.moving.clear()
        run.epoch += 1

    def interrupt(self, run: Run, now: float) -> None:
        """Interrupt a run: it keeps its work up to the last checkpoint and loses the rest."""
        saved = run.interrupt(now, self._settings)
        for p in (run.places or {}).values():
            self.lose(run, p, saved, now)
        if run.arrival.job.gang:
            self._observer.jobs.waits.stop(run.unit, now)
        self.wait_again(run, run.places or (), now)
        self.release(run, now)
        self._observer.jobs.started[run.row] = float("nan")

    def lose(self, run: Run, p: PodPlacement, saved: float, now: float) -> None:
        """Note a stopped pod: of the time that it held its place, only `saved` seconds served."""
        since = run.begun.get((p.pod_set, p.ordinal), run.since)
        bound, began = run.working_from(since, self._settings)
        # A restart in between was counted when it began.
        self._observer.lost(run.row, p, since, bound)
        self._observer.lost(run.row, p, began + saved, now)
