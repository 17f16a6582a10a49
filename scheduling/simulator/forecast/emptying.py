"""Which partly used nodes to empty so that nodes are wholly free or a gang starts, and the price.

The engine itself places the jobs on these nodes elsewhere. A trial does what a drain of the nodes
does: nothing new comes to them, all their pods leave at once, and when the last is gone they take
jobs again.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import Delta, NodeChanged, NodeRemoved, OtherPodChanged
from scheduling.engine.types import MILLI, JobKind, JobRequest, Node
from scheduling.simulator.forecast.cheapest_nodes import cheapest_nodes
from scheduling.simulator.forecast.effects import Change, Course
from scheduling.simulator.forecast.ground import Ground
from scheduling.simulator.forecast.scene import Scene
from scheduling.simulator.model import TimedChange

OPEN_AFTER_S = 1.0  # of simulated time, in which all that leave are placed again
MOST_CYCLES = 100
MOST_TRIALS = 12
LASTING_S = 1e9  # run time of all jobs, so that none ends meanwhile
HYPER_NODE = "hyper-node"


@dataclass(frozen=True, slots=True)
class Goal:
    """What to reach: `nodes` more whole nodes of a GPU model, or the start of a waiting `job`."""

    gpu_model: str
    nodes: int = 0
    job: str = ""


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Nodes of a GPU model: with healthy GPUs, with all of them free, with some of them free."""

    nodes: int
    idle: int
    fragmented: int

    @property
    def gfr(self) -> float:
        """The GPU node fragmentation ratio, 0 to 1."""
        return self.fragmented / self.nodes if self.nodes else 0.0


@dataclass(frozen=True, slots=True)
class JobMove:
    """`pods` of a job leave nodes and are placed on `targets`; `whole`: all of the job moves.

    `lost_gpu_s`: GPU-seconds of work that have to be repeated.
    """

    job: str
    pods: int
    whole: bool
    lost_gpu_s: float
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EmptyingPlan:
    """`nodes` are emptied by `moves`.

    `starts`: jobs that start as a result. `gained`: how many more nodes are whole before these
    start. `reached`: whether that is the goal.
    """

    nodes: tuple[str, ...]
    moves: tuple[JobMove, ...]
    starts: tuple[str, ...]
    before: NodeFigures
    after: NodeFigures
    gained: int
    reached: bool

    @property
    def lost_gpu_s(self) -> float:
        return sum(move.lost_gpu_s for move in self.moves)


class _EmptyingRun(Course):
    """The instant at which nodes are emptied, and the one at which they take jobs again."""

    def __init__(self, ground: Ground, names: Collection[str], model: str) -> None:
        scene = ground.scene
        change: list[Change] = []
        for node in (n for n in scene.nodes if n.name in names):
            closed = NodeChanged(replace(node, schedulable=False))
            change += [NodeRemoved(node.name), closed]
            change.append(TimedChange(scene.now + OPEN_AFTER_S, NodeChanged(node)))
        lasting = dict.fromkeys((job.id for job in _jobs_of(scene)), LASTING_S)
        until = scene.now + OPEN_AFTER_S
        super().__init__(
            ground, lasting, change, until=until, most_cycles=MOST_CYCLES, enough=lambda: False
        )
        self._model, self._opens = model, until
        self.emptied: NodeFigures | None = None
        self.targets: dict[str, dict[str, None]] = {}
        self.starts_all()

    def _carry_out(self, result: CycleResult, now: float) -> None:
        for part in result.started:
            if part.job_id in self._ran:
                targets = self.targets.setdefault(part.job_id, {})
                targets.update(dict.fromkeys(p.node for p in part.placements))
        super()._carry_out(result, now)

    def _change(self, delta: Delta) -> None:
        if self.now >= self._opens and self.emptied is None:
            self.emptied = self.figures()
        super()._change(delta)

    def _is_over(self) -> bool:
        return self.cycles >= self._most_cycles

    def figures(self) -> NodeFigures:
        return figures_of(self.state.cluster, self._model)


def figures_of(cluster: ClusterState, model: str) -> NodeFigures:
    nodes = idle = fragmented = 0
    for slot, node in enumerate(cluster.facts):
        if node is None or node.gpu_model != model or not node.healthy_gpus:
            continue
        used = cluster.allocated[slot]
        nodes += 1
        idle += used == 0
        fragmented += 0 < used < node.healthy_gpus * MILLI
    return NodeFigures(nodes, idle, fragmented)


def plan_for(ground: Ground, goal: Goal, enough: Callable[[], bool]) -> EmptyingPlan:
    """Return the cheapest plan found for the goal until it is `enough`, or the nearest to it."""
    scene = ground.scene
    base = _EmptyingRun(ground, (), goal.gpu_model)
    before = base.figures()
    best = EmptyingPlan((), (), (), before, before, 0, _is_reached(goal, 0, base.starts))
    load = _Load(scene, goal.gpu_model)
    trials = 0
    for group, count in _tries(scene, goal, load, before.idle):
        skipped: set[str] = set()
        while not best.reached and trials < MOST_TRIALS and not (trials and enough()):
            names = load.cheapest(group, count, skipped)
            if len(names) < count:
                break
            trials += 1
            trial = _EmptyingRun(ground, frozenset(names), goal.gpu_model)
            homeless = [job for job, stop in trial.stops.items() if stop.again != scene.now]
            if homeless:  # there is no room elsewhere for the jobs on these nodes
                skipped.update(name for name in names if load.on[name].intersection(homeless))
                continue
            found = _plan(base, trial, names, load, goal)
            if found.reached or found.gained > best.gained:
                best = found
            break
        if best.reached:
            break
    return best


def _plan(
    base: _EmptyingRun, trial: _EmptyingRun, names: Sequence[str], load: "_Load", goal: Goal
) -> EmptyingPlan:
    emptied = trial.emptied or trial.figures()
    before = base.figures()
    gained = emptied.idle - before.idle
    moves = [
        JobMove(
            job, stop.pods, stop.whole, load.lost(job, stop.lost_gpu_s), tuple(trial.targets[job])
        )
        for job, stop in trial.stops.items()
        if job in trial.targets
    ]
    moves.sort(key=lambda move: (-move.lost_gpu_s, move.job))
    moved = {move.job for move in moves}
    starts = tuple(j for j in trial.starts if j not in base.starts and j not in moved)
    reached = _is_reached(goal, gained, trial.starts)
    return EmptyingPlan(
        tuple(names), tuple(moves), starts, before, trial.figures(), gained, reached
    )


def _is_reached(goal: Goal, gained: int, starts: Collection[str]) -> bool:
    return goal.job in starts if goal.job else gained >= goal.nodes


def _tries(
    scene: Scene, goal: Goal, load: "_Load", idle: int
) -> Iterator[tuple[Sequence[str], int]]:
    """Yield among which nodes how many are to be emptied, what may suffice first."""
    everywhere = sorted(load.on)
    job = next((job for job in scene.waiting if job.id == goal.job), None)
    if job is None:
        yield everywhere, goal.nodes
        return
    whole = max((n.healthy_gpus for n in scene.nodes if n.gpu_model == goal.gpu_model), default=1)
    need = math.ceil(job.gpu_milli / MILLI / whole)
    level = job.required_level or next(filter(None, (s.required_level for s in job.pod_sets)), "")
    if not level:
        first = max(1, need - idle)
        yield from ((everywhere, count) for count in dict.fromkeys((first, first + 1, need)))
        return
    yield from load.groups(scene, level, need)


class _Load:
    """What runs on partly used nodes of a GPU model that can be emptied.

    `on`: node -> its jobs. Also what each job would lose.
    """

    def __init__(self, scene: Scene, model: str) -> None:
        self._jobs = {fact.job.id: fact.job for fact in scene.running}
        self._cost: dict[str, float] = {}
        used: dict[str, int] = {}
        on: dict[str, set[str]] = {}
        for fact in scene.running:
            held = 0
            for place in fact.placements:
                milli = place.milli * len(place.devices)
                held += milli
                used[place.node] = used.get(place.node, 0) + milli
                on.setdefault(place.node, set()).add(fact.job.id)
            age = max(0.0, scene.now - fact.started_at)
            self._cost[fact.job.id] = self.lost(fact.job.id, held / MILLI * age)
        others = {f.node for f in scene.facts if isinstance(f, OtherPodChanged) and f.gpus}
        self._model = model
        self.used = used
        self.nodes = {n.name: n for n in scene.nodes if n.gpu_model == model and n.schedulable}
        self.on = {
            name: on[name]
            for name, node in self.nodes.items()
            if name not in others
            and 0 < used.get(name, 0) < node.healthy_gpus * MILLI
            and all(self._jobs[job].preemptible for job in on[name])
        }

    def lost(self, job_id: str, gpu_s: float) -> float:
        """Return the loss of a job; replicas have no work to lose."""
        job = self._jobs[job_id]
        return 0.0 if job.kind is JobKind.INFERENCE and not job.gang else gpu_s

    def cheapest(
        self, among: Iterable[str], count: int, skipped: Collection[str]
    ) -> tuple[str, ...]:
        """Return `count` of the nodes, those that together cost least."""
        open_to = (name for name in among if name not in skipped)
        return cheapest_nodes(open_to, count, self.on, self._cost, self.used)

    def groups(self, scene: Scene, level: str, need: int) -> Iterator[tuple[Sequence[str], int]]:
        """Yield the groups of a network level that could hold `need` whole nodes, cheapest first.

        Each as its nodes that can be emptied, and how many of them have to be.
        """
        members: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            group = _group_of(scene, node, level)
            if group:
                members.setdefault(group, []).append(node)
        found: list[tuple[float, str, list[str], int]] = []
        for group, nodes in members.items():
            idle = sum(not self.used.get(node.name) for node in nodes)
            here = [node.name for node in nodes if node.name in self.on]
            short = max(1, need - idle)
            names = self.cheapest(here, short, ())
            if len(names) == short:
                jobs = {job for name in names for job in self.on[name]}
                found.append((sum(self._cost[job] for job in jobs), group, here, short))
        yield from ((here, short) for _, _, here, short in sorted(found))


def _group_of(scene: Scene, node: Node, level: str) -> str:
    if level == HYPER_NODE:
        return node.hyper_node
    places: Mapping[str, str] = dict(zip(scene.levels, node.topology, strict=False))
    return places.get(level, "")


def _jobs_of(scene: Scene) -> Iterator[JobRequest]:
    yield from (fact.job for fact in scene.running)
    yield from scene.waiting
    yield from scene.held
