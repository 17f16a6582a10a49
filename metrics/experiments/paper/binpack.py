"""paper-binpack: E-Binpack against native placement (the paper's figures on GAR, SOR, GFR, JWTD and
JTTED), on 8,000 GPUs.

Load 1.05 shows what a placement policy gains, since in a cluster that is not saturated the
allocation is simply the load. Load 0.92 shows its effect on waits. Both orders are best-effort
FIFO, so that only the placement differs. For comparison there are plain best fit and, as a bound,
the same queue with all GPUs in one machine (undivided.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metrics.experiments.bounds import undivided
from metrics.experiments.comparison import Bar, Comparison, at_least, at_most, over, ratio_of
from metrics.experiments.runs import Task, policy, training
from scheduling.simulator.workload import VARIANTS

SATURATED, STABLE = "load 1.05", "load 0.92"
LARGE_SIZES = ("16", "32", "64", "128", "256", "512", "1024", "2048+")
SMALL_SIZES = ("1", "2–7")
POLICIES = {"native": "native", "kant": "e-binpack", "binpack": "binpack"}
BOUND = "undivided"


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    return [
        Task(
            run=undivided.run if name == BOUND else training,
            scenario=scenario,
            name=name,
            policy=policy("best-effort-fifo", strategy),
            seed=0,
            hours=options["hours"],
            warm_up_h=options["warm_up_h"],
            variant=VARIANTS[variant],
        )
        for scenario, variant in ((SATURATED, "load-1.05"), (STABLE, "calibrated"))
        for name, strategy in (*POLICIES.items(), (BOUND, "binpack"))
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    saturated = scenarios[SATURATED]
    gain = saturated["paired"]["kant"]
    most = saturated["paired"][BOUND]
    kant, native = saturated["summary"]["kant"], saturated["summary"]["native"]
    found = [
        at_least(
            f"median {metric} over native's, load 1.05",
            ratio_of(gain[key]),
            1.07,
            bound=ratio_of(most[key]),
        )
        for metric, key in (("SOR", "sor_median"), ("GAR", "gar_median"))
    ]
    found += [
        at_least(
            "native's mean GFR over Kant's, load 1.05",
            over(native["gfr_mean"], kant["gfr_mean"]),
            6,
        ),
        at_most("Kant's mean GFR, load 1.05", kant["gfr_mean"], 0.03),
    ]
    stable = scenarios[STABLE]
    kant, native = stable["summary"]["kant"], stable["summary"]["native"]
    waits, before = kant["wait_mean_s"], native["wait_mean_s"]
    least = stable["summary"][BOUND]["wait_mean_s"]
    for size in LARGE_SIZES:
        ratio, bound = (over(w.get(size), before.get(size)) for w in (waits, least))
        claim = f"mean wait over native's, {size} GPUs, load 0.92"
        found.append(at_most(claim, ratio, 0.5, bound))
    for size in SMALL_SIZES:
        claim = f"mean wait in s, {size} GPUs, load 0.92"
        found.append(at_most(claim, waits.get(size), 600, least.get(size)))
    for size in LARGE_SIZES:
        of, to = kant["jtted_groups"].get(size), native["jtted_groups"].get(size)
        # Gangs of whole nodes use the fewest nodes under every strategy; only groups show a
        # difference.
        lower = None if of is None or to is None else of < to
        claim = f"JTTED groups over native's, {size} GPUs, load 0.92"
        found.append(Bar(claim, over(of, to), "< 1", lower))
    return found


STUDY = Comparison(
    name="paper-binpack",
    help="E-Binpack against native placement: GAR, SOR, GFR, waits, JTTED",
    tasks=tasks,
    bars=bars,
    columns=("sor_mean", "idle_nodes_mean"),
).study()
