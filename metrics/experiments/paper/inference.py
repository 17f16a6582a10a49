"""paper-inference: E-Spread against spread and E-Binpack on the inference clusters i7, i2, a10.

In addition to GAR and GFR by cluster size: wholly free nodes left for large inference, and how far
apart the replicas of a service are (replicas on one node and in one leaf, mean over time and over
services with at least two replicas; fewer is safer). E-Spread runs with and without consolidation;
`moves_a_day` counts moved replicas. `gfr_floor` and `gfr_foresight` (foresight.py) say what the
demand allows under any policy. In `i2, shared` 44 % of the pods ask for a fraction of a GPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metrics.experiments.bounds import foresight
from metrics.experiments.comparison import Bar, Comparison, at_least, at_most
from metrics.experiments.runs import Figures, Task, Watching, policy, simulate, unlimited
from scheduling.engine.decisions import CycleResult
from scheduling.simulator import inference
from scheduling.simulator.nodes import engine_nodes, sized
from scheduling.simulator.workload import DAY

LOOK_S = 3600.0
# By name: the strategy, and whether replicas are consolidated.
VARIANTS = {
    "spread": ("spread", False),
    "e-spread": ("e-spread", True),
    "e-spread, unmoved": ("e-spread", False),
    "e-binpack": ("e-binpack", False),
}
SCENARIOS = {
    "i7": ("i7", False),
    "i2": ("i2", False),
    "a10": ("a10", False),
    "i2, shared": ("i2", True),
}


class _Apart(Watching):
    """Records once an hour how the replicas of each service are spread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._look_at = self.settings.warm_up_s
        self._on_node: list[float] = []
        self._in_leaf: list[float] = []

    def _carry_out(self, result: CycleResult, now: float) -> None:
        super()._carry_out(result, now)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look()

    def _look(self) -> None:
        places: dict[str, list[str]] = {}
        for run in self.jobs.values():
            if run.places:
                on = places.setdefault(run.arrival.job.tenant, [])
                on.extend(p.node for p in run.places.values())
        leaf = self.nodes
        for nodes in places.values():
            if len(nodes) > 1:
                self._on_node.append(len(nodes) / len(set(nodes)))
                self._in_leaf.append(len(nodes) / len({leaf[n].topology[0] for n in nodes}))

    def figures(self) -> Figures:
        return {
            "replicas_a_node": sum(self._on_node) / len(self._on_node) if self._on_node else None,
            "replicas_a_leaf": sum(self._in_leaf) / len(self._in_leaf) if self._in_leaf else None,
            "moves_a_day": sum(self.observer.jobs.moves) / self.now * DAY,
        }


def services(task: Task) -> Figures:
    """Run one inference cluster under one policy."""
    name, sharing = task.more["cluster"], task.more["sharing"]
    cluster = inference.CLUSTERS[name]
    nodes = inference.zoned(engine_nodes(sized(f"{cluster.nodes}x8")))
    model = nodes[0].gpu_model
    arrivals = inference.generate(
        cluster, gpu_model=model, seed=task.seed, hours=task.hours, sharing=sharing
    )
    tenants, quotas = unlimited(arrivals, nodes)
    made = inference.figures(cluster, arrivals, task.hours)
    found = simulate(
        task,
        nodes,
        arrivals,
        simulation_type=_Apart,
        tenants=tenants,
        # Quota does not limit services: the demand never exceeds the cluster.
        quotas=quotas,
    )
    marks = foresight.marks(arrivals, cluster.nodes, hours=task.hours, warm_up_h=task.warm_up_h)
    return {**found, **marks, **{f"made_{key}": value for key, value in made.items()}}


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    return [
        Task(
            run=services,
            scenario=scenario,
            name=name,
            policy=policy("best-effort-fifo", strategy, consolidation=moved),
            seed=0,
            hours=options["hours"],
            warm_up_h=options["warm_up_h"],
            more={"cluster": cluster, "sharing": sharing},
        )
        for scenario, (cluster, sharing) in SCENARIOS.items()
        for name, (strategy, moved) in VARIANTS.items()
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    summary = {name: scenarios[name]["summary"]["e-spread"] for name in SCENARIOS}
    growing = [summary[name]["gfr_mean"] for name in ("i7", "i2", "a10")]
    known = None not in growing
    return [
        at_most("i2: mean GFR under E-Spread", summary["i2"]["gfr_mean"], 0.065),
        at_least("i2: mean GAR under E-Spread", summary["i2"]["gar_mean"], 0.93),
        *(_free_nodes(name, scenarios[name]["summary"]) for name in ("i7", "i2")),
        Bar(
            "GFR grows as clusters shrink: a10 less i7, points",
            100 * (growing[2] - growing[0]) if known else None,
            "i7 < i2 < a10",
            growing == sorted(growing) if known else None,
        ),
    ]


def _free_nodes(name: str, summary: Mapping[str, Figures]) -> Bar:
    free, spread = (summary[s]["idle_nodes_mean"] for s in ("e-spread", "spread"))
    if free is None or spread is None:
        return Bar(f"{name}: whole free nodes under E-Spread", free, "≥ 1.5 × spread's, some", None)
    # Spread may leave no wholly free node; then any number is more.
    return Bar(
        f"{name}: whole free nodes under E-Spread, {spread:.3g} under spread",
        free,
        f"≥ 1.5 × {spread:.3g}, some",
        free >= 1.5 * spread and free > 0,
    )


STUDY = Comparison(
    name="paper-inference",
    help="E-Spread against spread and E-Binpack on inference clusters",
    tasks=tasks,
    bars=bars,
    hours=336.0,
    columns=(
        "idle_nodes_mean",
        "replicas_a_node",
        "replicas_a_leaf",
        "moves_a_day",
        "gfr_floor",
        "gfr_foresight",
    ),
).study()
