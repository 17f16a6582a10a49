"""openb-fgd: how full a cluster with fractional GPUs gets, compared with published policies.

The openb inflation protocol: 1,213 nodes start empty. The pods of a list are shuffled by seed, and
random clones are appended until 130 % of the GPUs have been asked for. Pods arrive one by one,
never leave, and are dropped if they fit nowhere. The result is the share of milli-GPU allocated
when 100 % and 130 % have been asked for. Each pod is submitted to the engine as a job and decided
in a cycle, under a policy with the row's strategy and quotas that stop nobody. Jobs without GPUs
may use GPU nodes, because this cluster has no others.

Published: Q. Weng et al., "Beware of Fragmentation", USENIX ATC 2023 (FGD and five other policies,
ten seeds each).
"""

import random
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from metrics.experiments.comparison import paired_by_seed, summarised
from metrics.experiments.study import Progress, Runner, Study, StudyError, parse_seeds
from metrics.simulate.inputs import fleet_of, lines_of
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.deltas import Delta, JobEnded, JobSubmitted, NodeChanged, TenantsChanged
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import (
    MILLI,
    CpuJobs,
    JobKind,
    JobRequest,
    Node,
    PodSetSpec,
    Policy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.simulator.nodes import engine_nodes
from scheduling.simulator.traces.openb import Pod, machines, pods
from scheduling.simulator.traces.table import TraceFormatError, table

NODES = "openb_node_list_gpu_node"
LIST = "openb_pod_list_"
SUFFIXES = (".csv", ".csv.gz", ".csv.xz")
ASKED = (1.0, 1.3)  # shares of the capacity at which the allocation is read
DEFAULT_SEEDS = "42-51"
PUBLISHED = {"fgd": "06-FGD", "bestfit": "05-BestFit"}
DEFAULT_POLICIES = "fragmentation,e-binpack,binpack,native"
FORMER = {"fragmentation-gradient": "fragmentation"}  # earlier names of the option
TENANT = "openb"


class FgdTask(NamedTuple):
    """One run."""

    pod_list: Path
    nodes: Path
    policy: str
    seed: int


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the pod lists")
    parser.add_argument("--seeds", default=DEFAULT_SEEDS, help="like 42-51 or 1,2,5")
    parser.add_argument("--lists", help="names of pod lists, comma separated (default: all)")
    parser.add_argument(
        "--policy",
        default=DEFAULT_POLICIES,
        help=f"placement strategies, comma separated, of {', '.join(STRATEGIES)} "
        "(default %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="only the first two seeds")


def plan(options: dict[str, Any]) -> tuple[Callable[[FgdTask], list[float]], list[FgdTask]]:
    """Return the tasks of all lists, policies and seeds; raise StudyError for what cannot be
    run."""
    seeds = parse_seeds(options["seeds"])[: 2 if options["quick"] else None]
    folder = _folder(options)
    chosen = _chosen_lists(folder, options["lists"])
    named = [FORMER.get(part.strip(), part) for part in options["policy"].split(",")]
    policies = _names(",".join(named), STRATEGIES, "--policy", "policies")
    nodes = _beside(folder, NODES)
    for path in (nodes, *chosen.values()):
        _checked(path)
    tasks = [FgdTask(chosen[c], nodes, p, seed) for c in chosen for p in policies for seed in seeds]
    return inflate, tasks


def _folder(options: dict[str, Any]) -> Path:
    return _folder_of_lists(None if options["data"] is None else Path(options["data"]))


def run(options: dict[str, Any], progress: Progress, runner: Runner) -> dict[str, Any]:
    """Return a row for each list and policy; raise StudyError before the first run starts."""
    one, tasks = plan(options)
    published = _published(_folder(options))
    found: dict[tuple[str, str], list[list[float]]] = {}
    shares: dict[str, dict[int, dict[str, float]]] = {}
    ran: dict[str, list[int]] = {}
    partial = False
    try:
        for task, result in runner(one, tasks, progress):
            found.setdefault((_list_name(task.pod_list), task.policy), []).append(result)
            ran.setdefault(task.policy, []).append(task.seed)
            # Runs of two policies on the same list and seed form a pair.
            of = shares.setdefault(task.policy, {})
            of[len(of)] = {"gar_at_100": result[0] / 100, "gar_mean": result[1] / 100}
    except KeyboardInterrupt:
        partial = True
    rows = [_row(*key, results, published) for key, results in found.items()]
    seeds = {name: list(dict.fromkeys(run)) for name, run in ran.items()}
    baseline = next(iter(shares), None)
    return {
        "experiment": STUDY.name,
        "partial": partial,
        "seeds": list(dict.fromkeys(chain.from_iterable(seeds.values()))),
        "baseline": baseline,
        "summary": {
            name: {**summarised(list(of.values())), "seeds": len(seeds[name])}
            for name, of in shares.items()
        },
        "paired": {
            name: paired_by_seed(of, shares[baseline])
            for name, of in shares.items()
            if baseline is not None and name != baseline
        },
        "rows": rows,
    }


def inflate(task: FgdTask) -> list[float]:
    """Run once: return the percentages allocated at 100 % and at 130 % asked for, and the CPU
    seconds."""
    began = time.process_time()
    nodes, listed = _machines(task.nodes), _pods(task.pod_list)
    capacity = MILLI * sum(len(node.devices) for node in nodes)
    policy = Policy(
        strategies=dict.fromkeys(JobKind, task.policy), cpu_jobs_on_gpu_nodes=CpuJobs.FREELY
    )
    state = SchedulerState(policy=policy)
    enough = 2 * int(ASKED[-1] * capacity)
    models = sorted({node.gpu_model for node in nodes})
    quotas = tuple(QuotaSpec(TENANT, model, enough) for model in models)
    news: list[Delta] = [TenantsChanged((TenantSpec(TENANT),), quotas), *map(NodeChanged, nodes)]
    asked = allocated = 0
    read: list[float] = []
    for number, pod in enumerate(_arrivals(listed, capacity, task.seed)):
        job = _job(pod, number)
        news.append(JobSubmitted(job))
        found = run_cycle(state, news, float(number))
        dropped = not any(started.job_id == job.id for started in found.started)
        news = [JobEnded(job.id, succeeded=False)] if dropped else []
        allocated += 0 if dropped else pod.milli
        asked += pod.milli
        while len(read) < len(ASKED) and asked >= ASKED[len(read)] * capacity:
            read.append(100 * allocated / capacity)
    return [*read, time.process_time() - began]


def _job(pod: Pod, number: int) -> JobRequest:
    """Return a pod of the list as a job of one pod."""
    only = PodSetSpec(
        "pod",
        1,
        pod.gpus,
        gpu_models=pod.gpu_models,
        gpu_milli=pod.gpu_milli if pod.gpus else MILLI,
        cpu_milli=pod.cpu_milli,
        memory_mib=pod.memory_mib,
    )
    return JobRequest(f"pod-{number}", TENANT, float(number), (only,))


def _arrivals(listed: list[Pod], capacity: int, seed: int) -> Iterator[Pod]:
    """Yield the shuffled pods, then random clones, until the last share of ASKED is asked for."""
    chance = random.Random(seed)
    order = list(listed)
    chance.shuffle(order)
    asked, number = 0, 0
    while asked < ASKED[-1] * capacity:
        pod = order[number] if number < len(order) else listed[chance.randrange(len(listed))]
        number += 1
        asked += pod.milli
        yield pod


def _row(
    pod_list: str,
    policy: str,
    results: list[list[float]],
    published: dict[tuple[str, str], tuple[float, float]],
) -> dict[str, Any]:
    at_100, at_130, seconds = zip(*results, strict=True)
    row: dict[str, Any] = {"list": pod_list, "policy": policy}
    for name, values in (("100", at_100), ("130", at_130)):
        row[f"mean_at_{name}"] = statistics.fmean(values)
        row[f"sd_at_{name}"] = statistics.stdev(values) if len(values) > 1 else None
    row["seeds"] = len(results)
    row["cpu_seconds"] = sum(seconds)
    for short, name in PUBLISHED.items():
        known = published.get((pod_list, name), (None, None))
        row[f"published_{short}_at_100"], row[f"published_{short}_at_130"] = known
    return row


# --- files ------------------------------------------------------------------------------------
def _folder_of_lists(data: Path | None) -> Path:
    """Return the folder with pod lists: this one or `openb` in it."""
    root = data or settings.KANT_TRACES
    for folder in (root, root / "openb"):
        if folder.is_dir() and any(_list_name(p) for p in folder.iterdir()):
            return Path(folder)
    raise StudyError(
        f"--data {root}: has no {LIST}NAME.csv (or .gz, .xz); fetch them from "
        "hkust-adsl/kubernetes-scheduler-simulator, or set KANT_TRACES"
    )


def _list_name(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.startswith(LIST) and path.name.endswith(suffix):
            return path.name.removeprefix(LIST).removesuffix(suffix)
    return ""


def _chosen_lists(folder: Path, wanted: str | None) -> dict[str, Path]:
    # In reverse, so that the plain .csv wins if a list exists twice.
    found = {_list_name(p): p for p in sorted(folder.iterdir(), reverse=True)}
    known = {name: found[name] for name in sorted(found) if name}
    if wanted is None:
        return known
    return {name: known[name] for name in _names(wanted, known, "--lists", "lists")}


def _names(text: str, known: dict[str, Any], option: str, noun: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise StudyError(f"{option}: {name!r} is unknown; the {noun} are {', '.join(known)}")
    return names


def _beside(folder: Path, name: str) -> Path:
    """Return a file that belongs to the lists: next to them, else among the known traces."""
    for place in (folder, settings.KANT_TRACES / "openb"):
        for suffix in SUFFIXES:
            if (place / f"{name}{suffix}").is_file():
                return Path(place / f"{name}{suffix}")
    raise StudyError(f"{folder}: has no {name}.csv; fetch it from alibaba/clusterdata")


def _published(folder: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """Return published means at 100 and 130 by (list, policy); empty if the table is missing."""
    for place in (folder, folder / "fgd", folder.parent / "fgd", settings.KANT_TRACES / "fgd"):
        path = place / "published_allocation.csv"
        if path.is_file():
            break
    else:
        return {}
    columns = [f"allocated_pct_at_{at}_mean" for at in (100, 130)]
    try:
        return {
            (row.text("pod_list"), row.text("policy")): (
                row.number(columns[0]),
                row.number(columns[1]),
            )
            for row in table(lines_of(path), ("pod_list", "policy", *columns))
        }
    except TraceFormatError as error:
        raise StudyError(f"{path}: {error}") from None


def _checked(path: Path) -> None:
    """Read a file once in this process, so that a bad row stops the study at its start."""
    try:
        if path.name.startswith(NODES):
            if not any(machine.gpus for machine in machines(lines_of(path))):
                raise StudyError(f"{path}: no machine has a GPU")
        elif not any(p.milli for p in _pods(path)):
            raise StudyError(f"{path}: no pod asks for a GPU, so nothing can be inflated")
    except TraceFormatError as error:
        raise StudyError(f"{path}: {error}") from None


@lru_cache(maxsize=2)
def _machines(path: Path) -> tuple[Node, ...]:
    return engine_nodes(fleet_of(str(path)))


@lru_cache(maxsize=4)
def _pods(path: Path) -> list[Pod]:
    return pods(lines_of(path))


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the rows as a table for people."""
    yield f"{'list':14} {'policy':22} {'at 100 %':>9} {'FGD':>7} {'at 130 %':>9} {'FGD':>7} seeds"
    for row in document["rows"]:
        fgd = [row[f"published_fgd_at_{at}"] for at in (100, 130)]
        published = [f"{value:7.2f}" if value is not None else f"{'–':>7}" for value in fgd]
        yield (
            f"{row['list']:14} {row['policy']:22} {row['mean_at_100']:9.2f} {published[0]} "
            f"{row['mean_at_130']:9.2f} {published[1]} {row['seeds']:5}"
        )


STUDY = Study(
    name="openb-fgd",
    help="allocation of a cluster with fractional GPUs against published policies",
    add_arguments=add_arguments,
    run=run,
    lines=lines,
    plan=plan,
)
