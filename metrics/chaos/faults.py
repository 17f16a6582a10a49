"""The faults of a chaos run: what each does, what ends it, and which ones a round has.

Faults of one round affect different parts (`FaultKind.of`), so each can be ended on its own.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

from metrics.benches.programs import Program
from metrics.benches.stage import GPUS
from metrics.chaos.shape import LEASE_S, NODES, SCHEDULERS, ProductionShape

End = Callable[[], None]
SHORT_S = (1.0, 4.0)  # how long a fault lasts
OUTLIVES_LEASE_S = (LEASE_S + 2.0, LEASE_S + 5.0)
SECOND, THIRD = 0.4, 0.1  # shares of rounds with that many faults
CLOCK_STEP_S = 30
RESOURCES = ("pods", "nodes", "")


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault. `of`: the part it affects. `begin` starts it and returns a function that
    ends it."""

    name: str
    of: str
    begin: Callable[[ProductionShape, Random], End]
    lasts_s: tuple[float, float] = SHORT_S


# --- processes ------------------------------------------------------------------------------------
def _kill(*names: str) -> Callable[[ProductionShape, Random], End]:
    def begin(shape: ProductionShape, _: Random) -> End:
        programs = [_program(shape, name) for name in names]
        for program in programs:
            program.kill()
        return lambda: _start(programs)

    return begin


def _freeze(name: str) -> Callable[[ProductionShape, Random], End]:
    def begin(shape: ProductionShape, _: Random) -> End:
        program = _program(shape, name)
        program.freeze()
        return program.thaw

    return begin


def _restart_postgres(shape: ProductionShape, _: Random) -> End:
    program = shape.programs["postgres"]
    program.end(signal.SIGINT)  # it ends all sessions and then exits
    return program.start


def _program(shape: ProductionShape, name: str) -> Program:
    """Return a program by name, or by a scheduler's current role."""
    if name in ("leader", "standby"):
        leader = shape.leader()
        name = leader if name == "leader" else next(n for n in SCHEDULERS if n != leader)
    return shape.programs[name]


def _start(programs: list[Program]) -> None:
    for program in programs:
        program.start()


def _clock(sign: int) -> Callable[[ProductionShape, Random], End]:
    def begin(shape: ProductionShape, random: Random) -> End:
        name = _program(shape, random.choice(["leader", "standby"])).name
        shape.set_clock(name, sign * CLOCK_STEP_S)
        return lambda: shape.set_clock(name, 0)

    return begin


# --- the Kubernetes API ---------------------------------------------------------------------------
def _requests(name: str, make: Callable[[Random], dict[str, Any]]) -> Callable[..., End]:
    """Return a fault of the embedded cluster; `heal` ends it with all others of its kind."""

    def begin(shape: ProductionShape, random: Random) -> End:
        fields = {"fault": name, **make(random)}
        status, answer = shape.kubernetes("POST", "/sim/faults", fields)
        if status not in (201, 202):
            raise RuntimeError(f"the embedded cluster refuses {fields}: {answer}")
        return lambda: None

    return begin


def _any(random: Random) -> dict[str, Any]:
    return {"verb": random.choice(["bind", "create", "delete", "list", ""])}


def _written(random: Random) -> dict[str, Any]:
    verb = random.choice(["bind", "create", "delete"])
    return {"verb": verb, "resource": "pods", "count": random.randint(2, 8)}


def _node(random: Random) -> dict[str, Any]:
    return {"node": f"h100-{random.randrange(NODES):04}"}


KINDS = (
    FaultKind("kill-leader", "schedulers", _kill("leader")),
    FaultKind("kill-standby", "schedulers", _kill("standby")),
    FaultKind("kill-schedulers", "schedulers", _kill(*SCHEDULERS)),
    FaultKind("freeze-leader", "schedulers", _freeze("leader"), OUTLIVES_LEASE_S),
    FaultKind("freeze-standby", "schedulers", _freeze("standby"), OUTLIVES_LEASE_S),
    FaultKind("clock-forward", "schedulers", _clock(1), OUTLIVES_LEASE_S),
    FaultKind("clock-back", "schedulers", _clock(-1), OUTLIVES_LEASE_S),
    FaultKind("restart-postgres", "postgres", _restart_postgres),
    FaultKind("kill-postgres", "postgres", _kill("postgres")),
    FaultKind("freeze-postgres", "postgres", _freeze("postgres")),
    FaultKind("kill-redis", "redis", _kill("redis")),
    FaultKind("freeze-redis", "redis", _freeze("redis")),
    FaultKind("kill-apiserver", "apiserver", _kill("apiserver")),
    FaultKind("freeze-apiserver", "apiserver", _freeze("apiserver")),
    FaultKind("restart-apiserver", "apiserver", _requests("restart", lambda _: {"down_s": 2.0})),
    FaultKind(
        "slow-apiserver",
        "apiserver",
        _requests("slow-replies", lambda r: {"count": 0, "delay_ms": r.choice([300, 1500])}),
    ),
    FaultKind("kill-web", "web", _kill("web")),
    FaultKind("freeze-web", "web", _freeze("web")),
    FaultKind("kill-worker", "worker", _kill("worker")),
    FaultKind("freeze-worker", "worker", _freeze("worker")),
    FaultKind("kill-beat", "beat", _kill("beat")),
    FaultKind("freeze-beat", "beat", _freeze("beat")),
    FaultKind("drop-watches", "watches", _requests("drop-watches", lambda _: {})),
    FaultKind(
        "expire-watches",
        "watches",
        _requests("expire-watches", lambda r: {"resource": r.choice(RESOURCES)}),
    ),
    FaultKind(
        "too-many-requests",
        "requests",
        _requests("too-many-requests", lambda r: {**_any(r), "count": 10, "retry_after_s": 1}),
    ),
    FaultKind("lose-replies", "requests", _requests("lose-reply", _written)),
    FaultKind("node-down", "nodes", _requests("node-down", _node)),
    FaultKind(
        "gpu-bad",
        "nodes",
        _requests("gpu-bad", lambda r: {**_node(r), "gpu": r.randrange(GPUS)}),
    ),
)
# These begin first: they need the API server, and the database, which knows who leads.
_FIRST = ("watches", "requests", "nodes", "schedulers")


def rounds(seed: int) -> Iterator[list[FaultKind]]:
    """Yield the faults of each round, determined by the seed. Every kind occurs equally often, in
    random order, alone or combined."""
    random = Random(f"faults {seed}")
    deck: list[FaultKind] = []
    while True:
        chosen: list[FaultKind] = []
        wanted = 1 + (random.random() < SECOND) + (random.random() < THIRD)
        while len(chosen) < wanted:
            if not deck:
                deck = list(KINDS)
                random.shuffle(deck)
            taken = {kind.of for kind in chosen}
            free = next((kind for kind in deck if kind.of not in taken), None)
            if free is None:
                break
            deck.remove(free)
            chosen.append(free)
        yield sorted(chosen, key=lambda kind: kind.of not in _FIRST)


class FaultRunner:
    """Carries out the faults of rounds. `counts`: how often each kind occurred."""

    def __init__(self, shape: ProductionShape) -> None:
        self._shape = shape
        self.counts: Counter[str] = Counter()

    def happen(self, kinds: list[FaultKind], random: Random) -> None:
        """Begin all faults, wait, and end them, whatever fails in between; then wait until all
        parts serve."""
        lasts_s = max(random.uniform(*kind.lasts_s) for kind in kinds)
        with ExitStack() as ends:
            for kind in kinds:
                ends.callback(kind.begin(self._shape, random))
                self.counts[kind.name] += 1
            time.sleep(lasts_s)
        self.heal()

    def heal(self) -> None:
        """Wait until killed programs run again, and end the cluster's faults."""
        while True:
            self._shape.wait_up()  # raises ChaosError if that takes too long
            try:
                self._shape.kubernetes("DELETE", "/sim/faults")
            except OSError:
                continue  # the API server was restarted in between
            return
