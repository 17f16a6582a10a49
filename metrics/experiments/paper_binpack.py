"""paper-binpack: E-Binpack against native placement (the paper's figures on GAR, SOR, GFR,
JWTD and JTTED), on 8,000 GPUs.

Load 1.05: only a saturated cluster shows what a placement policy gains, in a stable one the
allocation is the load. Load 0.92: what it does to waits. Both orders are best-effort FIFO, so
that placement alone differs; plain best fit stands beside them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metrics.experiments.comparison import Bar, Comparison, at_least, at_most
from metrics.experiments.runs import Task, policy, training
from scheduling.simulator.workload import VARIANTS

SATURATED, STABLE = "load 1.05", "load 0.92"
LARGE_SIZES = ("16", "32", "64", "128", "256", "512", "1024", "2048+")
SMALL_SIZES = ("1", "2–7")
POLICIES = {"native": "native", "kant": "e-binpack", "binpack": "binpack"}


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    return [
        Task(
            run=training,
            scenario=scenario,
            name=name,
            policy=policy("best-effort-fifo", strategy),
            seed=0,
            hours=options["hours"],
            warm_up_h=options["warm_up_h"],
            variant=VARIANTS[variant],
        )
        for scenario, variant in ((SATURATED, "load-1.05"), (STABLE, "calibrated"))
        for name, strategy in POLICIES.items()
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    saturated = scenarios[SATURATED]
    gain = saturated["paired"]["kant"]
    kant, native = saturated["summary"]["kant"], saturated["summary"]["native"]
    found = [
        at_least("median SOR over native's, load 1.05", gain["sor_median"]["ratio"], 1.07),
        at_least("median GAR over native's, load 1.05", gain["gar_median"]["ratio"], 1.07),
        at_least(
            "native's mean GFR over Kant's, load 1.05", native["gfr_mean"] / kant["gfr_mean"], 6
        ),
        at_most("Kant's mean GFR, load 1.05", kant["gfr_mean"], 0.03),
    ]
    stable = scenarios[STABLE]
    kant, native = stable["summary"]["kant"], stable["summary"]["native"]
    for size in LARGE_SIZES:
        of, to = kant["wait_mean_s"].get(size), native["wait_mean_s"].get(size)
        ratio = of / to if of is not None and to else None
        found.append(at_most(f"mean wait over native's, {size} GPUs, load 0.92", ratio, 0.5))
    for size in SMALL_SIZES:
        wait = kant["wait_mean_s"].get(size)
        found.append(at_most(f"mean wait in s, {size} GPUs, load 0.92", wait, 600))
    for size in LARGE_SIZES:
        of, to = kant["jtted_groups"].get(size), native["jtted_groups"].get(size)
        # Gangs of whole nodes use the fewest nodes under every strategy: groups tell them apart.
        lower = None if of is None or to is None else of < to
        ratio = of / to if of is not None and to else None
        found.append(
            Bar(f"JTTED groups over native's, {size} GPUs, load 0.92", ratio, "< 1", lower)
        )
    return found


STUDY = Comparison(
    name="paper-binpack",
    help="E-Binpack against native placement: GAR, SOR, GFR, waits, JTTED",
    tasks=tasks,
    bars=bars,
    columns=("sor_mean", "idle_nodes_mean"),
).study()
