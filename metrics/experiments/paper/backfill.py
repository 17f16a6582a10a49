"""paper-backfill: strict FIFO, best-effort FIFO and backfill on 8,000 GPUs at load 1.05.

Jobs of 256 GPUs and more go first. The curve shows the trade-off of the head's threshold: how long
a blocked head waits before it preempts the jobs that were backfilled past it. Every job is safe
from preemption for a quarter of an hour: with half an hour more work is lost, with five minutes
more jobs are preempted. For comparison there is what the arrived work would occupy in any order
(arrived.py): in some weeks of some seeds it does not fill the fleet. The default is one week,
because the queue of an overloaded month grows until one seed takes an hour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metrics.experiments.bounds import arrived
from metrics.experiments.comparison import Bar, Comparison, at_least, at_most, over, ratio_of
from metrics.experiments.runs import Task, policy, training
from scheduling.engine.types import PreemptionKind
from scheduling.simulator.workload import VARIANTS

MAIN, CURVE = "load 1.05", "load 1.05, over the head threshold"
THRESHOLDS_S = (60.0, 600.0, 7200.0, 21600.0)
DEFAULT_THRESHOLD_S = 3600.0
MIN_RUNTIME_S = 900.0
LARGEST = ("1024", "2048+")
BOUND, ARRIVED = "load 1.05, in any order", "arrived work"


def _backfill(threshold: float) -> Any:
    return policy(
        "backfill",
        "e-binpack",
        preemption=(PreemptionKind.BACKFILL,),
        backfill_after_s=threshold,
        min_runtime_s=MIN_RUNTIME_S,
        learned_run_times=False,  # the paper's backfill has none
    )


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    base = Task(
        run=training,
        scenario=MAIN,
        name="strict-fifo",
        policy=policy("strict-fifo", "e-binpack"),
        seed=0,
        hours=options["hours"],
        warm_up_h=options["warm_up_h"],
        # The paper's backfill knows no run times; the study `walltime` declares them.
        variant=replace(VARIANTS["load-1.05"], declared=False),
    )
    best_effort = policy("best-effort-fifo", "e-binpack")
    main = [
        base,
        replace(base, name="best-effort-fifo", policy=best_effort),
        replace(base, name="backfill", policy=_backfill(DEFAULT_THRESHOLD_S)),
    ]
    curve = [
        replace(base, scenario=CURVE, name=f"{t:g} s", policy=_backfill(t)) for t in THRESHOLDS_S
    ]
    return [*main, *curve, replace(base, scenario=BOUND, name=ARRIVED, run=arrived.run)]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    main = scenarios[MAIN]
    summary, gain = main["summary"], main["paired"]["backfill"]
    backfill, strict = summary["backfill"], summary["strict-fifo"]
    most = scenarios[BOUND]["summary"][ARRIVED]
    best, own = summary["best-effort-fifo"]["sor_median"], backfill["sor_median"]
    behind = None if best is None or own is None else 100 * (best - own)
    found = [
        at_least(
            "median SOR over strict FIFO's",
            ratio_of(gain["sor_median"]),
            1.05,
            bound=over(most["sor_median"], strict["sor_median"]),
        ),
        at_most("median SOR behind best-effort's, points", behind, 1),
        at_most("share of jobs preempted", backfill["preempted_share"], 0.03),
        at_least(
            "SOR less what was lost over strict FIFO's",
            ratio_of(gain["sor_net"]),
            1.03,
            bound=over(most["sor_net"], strict["sor_net"]),
        ),
    ]
    for size in LARGEST:
        ratio = over(backfill["wait_mean_s"].get(size), strict["wait_mean_s"].get(size))
        found.append(at_most(f"mean wait over strict FIFO's, {size} GPUs", ratio, 1.5))
    return found


STUDY = Comparison(
    name="paper-backfill",
    help="strict, best-effort and backfill order: SOR, waits of large jobs, preemptions",
    tasks=tasks,
    bars=bars,
    columns=("sor_mean", "sor_net", "preempted_share"),
    hours=168.0,
).study()
