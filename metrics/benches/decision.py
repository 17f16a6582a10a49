"""`manage.py bench decision`: placing and releasing one small pod, against a naive scan."""

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

from metrics.benches.naive import Fixture, cluster, naive_find, seconds
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.statement import Statement
from scheduling.engine.types import (
    Apart,
    JobKind,
    JobRequest,
    NodeRules,
    PodRules,
    PodSetSpec,
    Spread,
    Toleration,
)

SMALL, LARGE = 1_000, 12_500
ROUNDS = 300
TURNS = 9


def place_and_release(fixture: Fixture, job: JobRequest, strategy: str) -> None:
    """Make one whole decision: count what the job asks for, as for every new job, then shape, find,
    devices, NICs, book, commit, release."""
    fixture.state.asks(job.pod_sets)
    statement = Statement(fixture.state)
    if isinstance(place_job(statement, job, strategy=strategy), PlacementFailure):
        raise RuntimeError(f"{job.id} has to fit, the bench times successful decisions")
    statement.commit()
    fixture.state.release_job(job.id)


POD = PodSetSpec("pods", 1, 1, gpu_models=("H800",), cpu_milli=4_000, memory_mib=8_000)


# Pods with rules about others; every hundredth node has one.
EVERY = 100
RULES = {
    "apart": PodRules(("group",), apart=(Apart("group", "host"),)),
    "spread": PodRules(("group",), spread=(Spread("group", "rack", 200),)),
}


def _with_rules(rules: PodRules) -> float:
    """Return the seconds of a decision about such a pod on the large cluster."""
    fixture = cluster(LARGE)
    _speak(fixture, rules)
    job = JobRequest("bench", "tenant", 0.0, (replace(POD, rules=rules),))
    work = partial(place_and_release, fixture, job, "e-binpack")
    work()
    return seconds(work, rounds=ROUNDS)


def _speak(fixture: Fixture, rules: PodRules) -> None:
    """Put pods of these rules' groups on some nodes."""
    for number, node in enumerate(filter(None, list(fixture.state.facts))):
        labels = {**node.labels, "host": node.name, "rack": node.topology[0]}
        fixture.state.upsert_node(replace(node, labels=labels))
        if not number % EVERY:
            member = PodRules(rules.groups)
            fixture.state.upsert_other_pod(node.name, node.name, 0, 0, 0, {}, member)


def _of_no_concern() -> float:
    """Return the cost of a pod without rules on a cluster where others have rules, relative to one
    without any; the median over turns."""
    job = JobRequest("bench", "tenant", 0.0, (POD,))
    without, beside = cluster(LARGE), cluster(LARGE)
    _speak(beside, RULES["apart"])
    found = []
    for _ in range(TURNS):
        costs = [
            seconds(partial(place_and_release, each, job, "e-binpack"), rounds=ROUNDS)
            for each in (without, beside)
        ]
        found.append(costs[1] / costs[0])
    return median(found)


def _of_rules() -> dict[str, float]:
    """Measure the cost of rules between pods: for pods with rules, and for pods next to them."""
    figures = {f"rules_{name}_us": _with_rules(rules) * 1e6 for name, rules in RULES.items()}
    return figures | {"rules_of_others": _of_no_concern()}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rules", action="store_true", help="only what rules between pods cost")


def run(rules: bool) -> dict[str, float]:
    """Return the figures named in the bars: ratios inside this process, plus the microseconds
    behind them. `rules`: only those of rules between pods."""
    figures = _of_rules()
    if rules:
        return figures
    plain = JobRequest("bench", "tenant", 0.0, (POD,))
    tolerant = tuple(Toleration("kind", "Equal", f"kind-{i}") for i in range(0, 16, 2))
    picky = replace(POD, nodes=NodeRules(tolerations=tolerant))
    classes = JobRequest("bench", "tenant", 0.0, (picky,))
    declared = JobRequest("bench", "tenant", 0.0, (POD,), declared_s=7_200.0)
    share = JobRequest("bench", "tenant", 0.0, (replace(POD, gpu_milli=300),))
    service = JobRequest("bench", "tenant", 0.0, (POD,), gang=False, kind=JobKind.INFERENCE)
    leaf_set = PodSetSpec("pods", 2, 8, gpu_models=("H800",), required_level="leaf")
    leaf = JobRequest("bench", "tenant", 0.0, (leaf_set,))
    cases: dict[str, tuple[JobRequest, str, Callable[[int], Fixture]]] = {
        "growth": (plain, "e-binpack", cluster),
        "growth_classes": (classes, "e-binpack", partial(cluster, classes=16)),
        "growth_declared": (declared, "e-binpack", cluster),
        "growth_fractions": (share, "e-binpack", partial(cluster, shares=True)),
        "growth_espread": (service, "e-spread", partial(cluster, zone_share=0.2)),
        "growth_required_leaf": (leaf, "e-binpack", cluster),
    }
    for name, (job, strategy, build) in cases.items():
        cost = {}
        for size in (SMALL, LARGE):
            fixture = build(size)
            work = partial(place_and_release, fixture, job, strategy)
            work()
            cost[size] = seconds(work, rounds=ROUNDS)
            if name == "growth" and size == LARGE:
                scan = partial(naive_find, fixture.naive, plain.pod_sets[0])
                naive = seconds(scan, rounds=5)
                figures["naive_over_kant"] = naive / cost[size]
                figures["naive_find_us"] = naive * 1e6
        figures[name] = cost[LARGE] / cost[SMALL]
        figures[f"{name}_us"] = cost[LARGE] * 1e6
    return figures
