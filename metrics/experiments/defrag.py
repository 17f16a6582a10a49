"""defrag: what defragmentation by policy gains, and what it costs.

The calibrated workload at load 1.05 under E-Binpack and best-effort FIFO: without moves; with
consolidation, which moves only replicas and so does nothing here; and with budgets for the share of
GPU time that moves may lose. No job saves its work, so one that moves starts over; in the last run
all jobs save every half hour. Leaving takes 30 s; restarting takes a minute, which counts as lost
too. `lost_share`: lost over held GPU time; `whole_wait_s`: the mean wait of jobs of whole nodes,
weighted by their number per size.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from metrics import definitions
from metrics.experiments.comparison import Bar, Comparison, at_most, over
from metrics.experiments.runs import Figures, Task, Watching, drawn, policy, simulate
from metrics.simulate.inputs import fleet_of
from scheduling.simulator import workload
from scheduling.simulator.model import Settings
from scheduling.simulator.nodes import engine_nodes
from scheduling.simulator.workload import DAY

SCENARIO = "load 1.05"
EVICT_S, RESTART_S = 30.0, 60.0
WHOLE = definitions.SIZE_LABELS[3:]  # 8 GPUs and more
CHECKPOINT_S = 1800.0
BASE, MOST, SAVING = "unmoved", "defrag 0.5 %", "defrag 0.5 %, work is saved"
POLICIES: Mapping[str, Mapping[str, Any]] = {
    BASE: {},
    "consolidation": {"consolidation": True},
    "defrag 0.1 %": {"defrag_loss": 0.001},
    "defrag 0.25 %": {"defrag_loss": 0.0025},
    MOST: {"defrag_loss": 0.005},
    SAVING: {"defrag_loss": 0.005},
}
GFR, LOST = 0.01, 0.005


class _Moves(Watching):
    def figures(self) -> Figures:
        return {"moves_a_day": sum(self.observer.jobs.moves) / self.now * DAY}


def moved(task: Task) -> Figures:
    """Run the calibrated workload under one policy."""
    fleet = fleet_of(task.fleet)
    nodes = engine_nodes(fleet)
    arrivals = list(drawn(task, fleet.gpus, nodes[0]))
    tenants, quotas = workload.tenants_of(fleet.gpus, nodes[0].gpu_model)
    found = simulate(task, nodes, arrivals, simulation_type=_Moves, tenants=tenants, quotas=quotas)
    waits = found["wait_mean_s"]
    sizes = Counter(definitions.size_class(a.job.gpu_milli) for a in arrivals)
    known = [size for size in WHOLE if waits.get(size) is not None]
    waited = sum(waits[size] * sizes[size] for size in known)
    return {
        **found,
        "mean_wait_s": waits.get("all"),
        "whole_wait_s": over(waited, sum(sizes[size] for size in known)),
    }


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    return [
        Task(
            run=moved,
            scenario=SCENARIO,
            name=name,
            policy=policy("best-effort-fifo", "e-binpack", **terms),
            seed=0,
            hours=options["hours"],
            warm_up_h=options["warm_up_h"],
            variant=workload.VARIANTS["load-1.05"],
            settings=Settings(
                evict_s=EVICT_S,
                restart_s=RESTART_S,
                checkpoint_s=CHECKPOINT_S if name == SAVING else None,
            ),
        )
        for name, terms in POLICIES.items()
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    summary = scenarios[SCENARIO]["summary"]
    base, most = summary[BASE], summary[MOST]
    return [
        at_most("mean GFR where moves may lose 0.5 % of GPU time", most["gfr_mean"], GFR),
        at_most("GPU time lost there", most["lost_share"], LOST),
        at_most(
            "mean wait of jobs of whole nodes there, over that without moves",
            over(most["whole_wait_s"], base["whole_wait_s"]),
            1.1,
        ),
    ]


STUDY = Comparison(
    name="defrag",
    help="defragmentation by policy: GFR, and the work that moves lose",
    tasks=tasks,
    bars=bars,
    seeds="1-5",
    hours=336.0,
    quick_hours=72.0,
    columns=("lost_share", "moves_a_day", "mean_wait_s", "whole_wait_s"),
).study()
