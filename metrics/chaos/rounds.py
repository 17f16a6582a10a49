"""A chaos run: rounds of faults under load, the checks after each, and the final checks."""

import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from metrics.chaos import faults, invariants
from metrics.chaos.faults import FaultRunner
from metrics.chaos.invariants import GangWatch, Violation, agree_within
from metrics.chaos.load import Submitters
from metrics.chaos.shape import ProductionShape

# Only a failure takes this long, however busy the machine is.
SETTLE_WITHIN_S = 180.0
DRAIN_WITHIN_S = 300.0  # after the last job ended: requeued jobs wait longest
MANY = 10  # of one kind of violation at once; further ones are only counted
COUNTS = {
    "jobs": "SELECT count(*) FROM scheduling_job",
    "placements": "SELECT count(*) FROM scheduling_placement",
    "preemptions": "SELECT count(*) FROM scheduling_jobevent WHERE kind = 'PREEMPTED'",
    "requeued": "SELECT count(*) FROM scheduling_jobevent WHERE kind = 'REQUEUED'",
    "leader_changes": "SELECT sum(token) FROM scheduling_schedulerlease",
}
STATES = "SELECT state, count(*) FROM scheduling_job GROUP BY state ORDER BY state"


class ChaosRun:
    """A number of rounds in one production shape. Raises what ProductionShape raises."""

    def __init__(self, shape: ProductionShape, count: int, seed: int) -> None:
        self._shape = shape
        self._count = count
        self._seed = seed
        self._tell = shape.tell
        self._faults = FaultRunner(shape)
        self._submitters = Submitters(shape, seed)
        self._gangs = GangWatch(shape, self._submitters)
        self._doubles = 0
        self._blamed = 0  # submissions whose errors have been reported
        self.done = 0
        self.violations: list[Violation] = []

    def carry_out(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Run all rounds, or until `stopped`, then the final checks; return the figures."""
        begun = time.monotonic()
        chosen = faults.rounds(self._seed)
        with self._submitters, self._gangs:
            while self.done < self._count and not stopped():
                self.done += 1
                self._round(self.done, next(chosen))
            self._tell("no more faults: all has to end")
            self._gangs.calm = True
            self._after(None, [("not all ends", self._unended)], DRAIN_WITHIN_S)
            self._check(None, "history", invariants.histories_broken(self._shape))
        return self._figures(time.monotonic() - begun)

    def _round(self, number: int, kinds: list[faults.FaultKind]) -> None:
        begun = time.monotonic()
        names = " + ".join(kind.name for kind in kinds)
        self._tell(f"round {number} of {self._count}: {names}")
        self._gangs.calm = False
        self._submitters.submit(number)
        random = Random(f"round {self._seed} {number}")
        time.sleep(random.uniform(0.2, 2.0))  # so that the fault hits submissions in flight
        self._faults.happen(kinds, random)
        self._gangs.calm = True
        settled = [("not answered", self._unanswered), ("books differ", self._books)]
        self._after(number, settled, SETTLE_WITHIN_S)
        self._tell(
            f"  {time.monotonic() - begun:.0f} s, {len(self._submitters.made)} submissions, "
            f"{len(self.violations)} violations"
        )

    # --- what has to hold -------------------------------------------------------------------------
    def _after(
        self,
        number: int | None,
        settled: Iterable[tuple[str, Callable[[], list[str]]]],
        within_s: float,
    ) -> None:
        """Wait for what must become true eventually, then check what must always be true."""
        for name, wrong in settled:
            self._check(number, name, agree_within(wrong, within_s))
        made = self._submitters.made
        self._check(number, "lost or doubled", invariants.jobs_lost_or_doubled(self._shape, made))
        doubles = invariants.no_device_twice(self._shape)
        self._check(number, "device twice", doubles[self._doubles :])
        self._doubles = len(doubles)
        gangs, self._gangs.found = self._gangs.found, []
        self._check(number, "gang half bound", gangs)
        blamed = [f"{each.name} {fault}" for each in made for fault in each.faults]
        self._check(number, "answer", blamed[self._blamed :])
        self._blamed = len(blamed)

    def _check(self, number: int | None, invariant: str, details: Iterable[str]) -> None:
        found = list(details)
        told = found[:MANY]
        if len(found) > MANY:
            told.append(f"and {len(found) - MANY} more")
        for detail in told:
            self._tell(f"  VIOLATION {invariant}: {detail}")
            self.violations.append(Violation(number, invariant, detail))

    def _unanswered(self) -> list[str]:
        return [f"{each.name}: {each.answers}" for each in self._submitters.unanswered()]

    def _books(self) -> list[str]:
        if not self._shape.led():
            return ["no scheduler leads"]
        return invariants.books_differ(self._shape)

    def _unended(self) -> list[str]:
        return [*self._unanswered(), *invariants.left_over(self._shape), *self._books()]

    # --- figures ----------------------------------------------------------------------------------
    def _figures(self, seconds: float) -> dict[str, Any]:
        rows = self._shape.rows
        _, audit = self._shape.kubernetes("GET", "/sim/audit?node=-")
        statuses = sorted(self._submitters.statuses().items())
        return {
            "rounds": self.done,
            "seed": self._seed,
            "seconds": round(seconds, 1),
            "faults": dict(sorted(self._faults.counts.items())),
            "submissions": len(self._submitters.made),
            "answers": {str(status): count for status, count in statuses},
            **{name: int(rows(query)[0][0] or 0) for name, query in COUNTS.items()},
            "states": dict(rows(STATES)),
            "holdings": audit["open"] + audit["closed"],
            "gangs_seen": len(self._gangs.seen),
            "violations": [each._asdict() for each in self.violations],
            "kept": self._shape.keep() if self.violations else "",
        }
