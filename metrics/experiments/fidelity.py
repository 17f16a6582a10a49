"""fidelity: a run of the embedded cluster, recorded in its database, against its replay in the
simulator under the same policy.

A seed draws the jobs: gangs, services, fractions, priorities, dependencies and cancellations of
several tenants, more than the cluster can hold. They are submitted at their times to a scheduler
process that leads an embedded cluster, both created by the study. What the database then contains
is simulated (docs/traces.md, "A cluster's own history") and compared: which pod was placed where,
in which order, and the five metrics, computed by the same functions (`metrics.fidelity`). The time
that binding takes is measured in the run and passed to the simulator.
"""

import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

from django.utils import timezone
from numpy.random import PCG64, Generator

from metrics import fidelity
from metrics.benches import stage
from metrics.experiments.comparison import at_most, paired_by_seed, summarised
from metrics.experiments.comparison import lines as comparison_lines
from metrics.experiments.study import Progress, Runner, Study, StudyError, parse_seeds
from scheduling.cluster_process import ClusterProcess
from scheduling.engine.states import OPEN
from scheduling.models import Cluster, Job
from scheduling.queries import history
from scheduling.services.clusters.changes import create_cluster
from scheduling.services.jobs.submit import cancel_job, submit_job
from scheduling.services.policies.changes import change_policy
from tenants.errors import Conflict
from tenants.models import User
from tenants.services.gpu_types import create_gpu_type
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota
from tenants.services.tenant_terms import TenantTerms
from tenants.services.tenants import create_tenant

NODES, PER_LEAF, LOAD = 12, 3, 1.25
SECONDS, QUICK_SECONDS = 60.0, 20.0  # of submissions
LONGEST_S = 8.0  # run time of a job
OVER_WITHIN_S = 90.0  # after the last submission
SHARES = {"alpha": 50, "beta": 30, "gamma": 20}  # of the cluster's GPUs, in percent
SIZES = ((1, 0.34), (2, 0.16), (4, 0.16), (8, 0.16), (16, 0.12), (32, 0.06))
POLICY = {
    "preemption": [],
    "queueing": "backfill",
    "strategies": {
        "training": "e-binpack", "inference": "e-spread", "development": "e-binpack",
    },
}  # fmt: skip
LIVE, SIMULATED, SCENARIO = "embedded cluster", "simulator", "replay"
WITHIN = 0.01  # by which the five metrics may differ, relative
MAIN_METRICS = ("gar_mean", "sor_mean", "gfr_mean")
BY_JOB = ("wait_mean_s", "jtted_nodes", "jtted_groups")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seeds", default="1-3", help="a run each (default %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help=f"one run of {QUICK_SECONDS:g} s of submissions"
    )


# --- what is submitted ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TimedOrder:
    """A job to submit at `at` seconds: its document, the earlier order that it waits for, and how
    long after its submission its owner cancels it; None = neither."""

    at: float
    document: dict[str, Any]
    after: int | None
    cancel_after_s: float | None


def orders(seed: int, seconds: float, gpus: int) -> list[TimedOrder]:
    """Return jobs of about `LOAD` times what this many GPUs can do in that time."""
    rng = Generator(PCG64(seed))
    sizes, shares = zip(*SIZES, strict=True)
    made: list[TimedOrder] = []
    at = work = 0.0
    while work < LOAD * gpus * seconds:
        size = int(rng.choice(sizes, p=shares))
        run_s = min(LONGEST_S, max(1.0, float(rng.lognormal(1.2, 0.6))))
        draw = rng.random(5)
        pods, each = (size // 8, 8) if size > 8 else (1, size)
        document: dict[str, Any] = {
            "name": f"job-{len(made):04}",
            "tenant": str(rng.choice(list(SHARES), p=[s / 100 for s in SHARES.values()])),
            "kind": "inference" if draw[0] < 0.15 else "training",
            "priority": 100 if draw[1] < 0.1 else 0,
            # Half of the jobs declare their true run time, the others up to three times as much.
            "declared_s": int(run_s * (1 if draw[2] < 0.5 else 1 + 2 * draw[2])) + 1,
            "gpus": each,
            "gpu_type": stage.MODEL,
            "replicas": pods,
            "cpu_milli": 1000,
            "annotations": {"sim.kant.io/run-seconds": f"{run_s:.3f}"},
        }
        if document["kind"] == "inference":
            document |= {"gang": False, "gpus": 1, "replicas": min(size, 4)}
        elif size == 1 and draw[3] < 0.2:
            document["gpu_milli"] = 500
        work += document["gpus"] * document["replicas"] * run_s
        made.append(
            TimedOrder(
                at=at,
                document=document,
                after=len(made) - 1 if made and draw[3] > 0.9 else None,
                cancel_after_s=float(rng.uniform(0.5, 4.0)) if draw[4] < 0.05 else None,
            )
        )
        at += float(rng.exponential(1.0))
    # Rescale so that the jobs span exactly the given time, whatever the draws.
    scale = seconds / max(at, 1e-9)
    return [TimedOrder(o.at * scale, o.document, o.after, o.cancel_after_s) for o in made]


# --- the live run ---------------------------------------------------------------------------------
def live_run(seed: int, seconds: float, folder: Path) -> history.Window:
    """Submit to an embedded cluster and wait until everything is over; raise RuntimeError."""
    fleet = stage.inventory(folder / "fleet.yaml", NODES, per_leaf=PER_LEAF)
    process = ClusterProcess(str(fleet), folder / "cluster")
    process.start()
    try:
        operator = User.objects.filter(username="fidelity").first()
        operator = operator or User.objects.create_user("fidelity", is_operator=True)
        cluster = _organisation(operator, process.kubeconfig)
        with stage.scheduler():
            since = timezone.now()
            _submit(operator, orders(seed, seconds, NODES * stage.GPUS))
            _wait_for_the_end(cluster)
            return history.Window(cluster, since, timezone.now())
    finally:
        process.stop()


def _organisation(operator: User, kubeconfig: Path) -> Cluster:
    access = {"access": {"kubeconfig": str(kubeconfig)}}
    cluster = create_cluster(operator, "fidelity", access, source="command")
    change_policy(operator, cluster, POLICY, expected_version=0, source="command")
    gpu_type = create_gpu_type(operator, stage.MODEL, memory_mib=81559, source="command")
    for name, percent in SHARES.items():
        tenant = create_tenant(operator, name, TenantTerms(title=name), source="command")
        change_quota(
            operator,
            QuotaChange(tenant, gpu_type, 0, "fidelity", "command"),
            QuotaTerms(NODES * stage.GPUS * percent * 10),
        )
    return cluster


def _submit(operator: User, made: list[TimedOrder]) -> None:
    """Submit every job, and make every cancellation, at its time."""
    began = time.monotonic()
    due: list[tuple[float, int, str]] = [(o.at, i, "submit") for i, o in enumerate(made)]
    heapify(due)
    ids: dict[int, str] = {}
    while due:
        at, number, what = heappop(due)
        time.sleep(max(0.0, began + at - time.monotonic()))
        order = made[number]
        if what == "cancel":
            with suppress(Conflict):  # it is already over
                cancel_job(operator, Job.objects.get(pk=ids[number]))
            continue
        after = {} if order.after is None else {"after": [ids[order.after]]}
        ids[number] = str(submit_job(operator, {**order.document, **after}).pk)
        if order.cancel_after_s is not None:
            heappush(due, (at + order.cancel_after_s, number, "cancel"))


def _wait_for_the_end(cluster: Cluster) -> None:
    deadline = time.monotonic() + OVER_WITHIN_S
    left = cluster.jobs.filter(state__in=list(OPEN))
    while left.exists():
        if time.monotonic() > deadline:
            job = left.first()
            raise RuntimeError(
                f"{left.count()} jobs were not over {OVER_WITHIN_S:.0f} s after the last "
                f"submission; {job.name} is {job.state}: {job.message}"  # type: ignore[union-attr]
            )
        time.sleep(0.1)
    time.sleep(1.5)  # node rows are written once a second


# --- the study ------------------------------------------------------------------------------------
def run(options: dict[str, Any], progress: Progress, _: Runner) -> dict[str, Any]:
    """Run the seeds one by one, because real time is recorded."""
    seeds = parse_seeds(options["seeds"])
    if options["quick"]:
        seeds = seeds[:1]
    seconds = QUICK_SECONDS if options["quick"] else SECONDS
    found: dict[str, dict[int, fidelity.Figures]] = {LIVE: {}, SIMULATED: {}}
    runs: list[dict[str, Any]] = []
    partial = False
    progress(0, len(seeds))
    try:
        for seed in seeds:
            live, simulated, comparison = one(seed, seconds)
            found[LIVE][seed], found[SIMULATED][seed] = live, simulated
            runs.append(comparison)
            progress(len(runs), len(seeds))
    except KeyboardInterrupt:
        partial = True
    except RuntimeError as error:
        raise StudyError(f"fidelity: {error}") from None
    scenario: dict[str, Any] = {"baseline": LIVE, "summary": {}, "paired": {}}
    if runs:
        scenario["summary"] = {name: summarised(list(of.values())) for name, of in found.items()}
        scenario["paired"] = {SIMULATED: paired_by_seed(found[SIMULATED], found[LIVE])}
    return {
        "experiment": STUDY.name,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "partial": partial,
        "quick": options["quick"],
        "seeds": seeds[: len(runs)],
        "hours": round(seconds / 3600, 4),
        "warm_up_hours": 0.0,
        "columns": ["sor_mean"],
        **scenario,
        "scenarios": {SCENARIO: scenario} if runs else {},
        "runs": runs,
        "bars": _bars(runs),
    }


def one(seed: int, seconds: float) -> tuple[fidelity.Figures, fidelity.Figures, dict[str, Any]]:
    """Do a live run and its replay; return the figures of both, and their comparison."""
    with tempfile.TemporaryDirectory(prefix="kant-fidelity-") as name:
        folder = Path(name)
        with stage.own_database(folder):
            window = live_run(seed, seconds, folder)
            return compared(window, seed)


def compared(
    window: history.Window, seed: int
) -> tuple[fidelity.Figures, fidelity.Figures, dict[str, Any]]:
    """Return the figures of a recorded window and of its replay, and how much they differ."""
    live = fidelity.recorded(window)
    delay = fidelity.bind_delay(live)
    simulated = fidelity.replayed(window, delay)
    nodes = tuple(history.nodes_of(window.cluster))
    of_live, of_simulated = fidelity.figures(live, nodes), fidelity.figures(simulated, nodes)
    same = _same(live.order(), simulated.order())
    return (
        of_live,
        of_simulated,
        {
            "seed": seed,
            "seconds": window.seconds,
            "placements": len(live.holds),
            "same_order_until": same,
            "same_order": same == len(live.holds) == len(simulated.holds),
            "bind_delay_s": delay,
            "heard_after_s": fidelity.heard_after(window),
            "deviations": _deviations(of_live, of_simulated),
        },
    )


def _same(live: list[Any], simulated: list[Any]) -> int:
    """Return how many placements agree, counted from the first."""
    for number, (one_, other) in enumerate(zip(live, simulated, strict=False)):
        if one_ != other:
            return number
    return min(len(live), len(simulated))


def _deviations(live: fidelity.Figures, simulated: fidelity.Figures) -> dict[str, float | None]:
    """Return the relative differences of the means that the bars check."""
    pairs = {name: (live[name], simulated[name]) for name in MAIN_METRICS}
    pairs |= {n: (live[n].get("all"), simulated[n].get("all")) for n in BY_JOB}
    return {name: abs(b - a) / a if a and b is not None else None for name, (a, b) in pairs.items()}


def _bars(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not runs:
        return []
    apart = sum(1 for r in runs if not r["same_order"])
    bars = [at_most("runs whose placements differ in order or place", apart, 0)]
    for name in (*MAIN_METRICS, *BY_JOB):
        known = [r["deviations"][name] for r in runs if r["deviations"][name] is not None]
        bars.append(
            at_most(f"{name}: largest relative difference", max(known, default=None), WITHIN)
        )
    return [{"claim": b.claim, "value": b.value, "limit": b.limit, "holds": b.holds} for b in bars]


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of both sides, then for each run its measurements and deviations."""
    yield from comparison_lines(document)
    for r in document["runs"]:
        order = "same order and places" if r["same_order"] else (
            f"the same up to placement {r['same_order_until']}"
        )  # fmt: skip
        yield (
            f"seed {r['seed']}: {r['placements']} placements in {r['seconds']:.0f} s, {order}; "
            f"bound {1000 * r['bind_delay_s']:.0f} ms after the decision, jobs heard of "
            f"{1000 * r['heard_after_s']:.0f} ms after submission (means)"
        )


STUDY = Study(
    name="fidelity",
    help="a run of the embedded cluster replayed by the simulator: same placements and metrics",
    add_arguments=add_arguments,
    run=run,
    lines=lines,
)
