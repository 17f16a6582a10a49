"""Gangs of several pod sets against brute force, on small empty clusters of unlike nodes: Kant
places those that fit and reports those that do not."""

import random
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.demand.cpu_jobs import kept_off_gpus
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.statement import Statement
from scheduling.engine.types import (
    CpuJobs,
    JobRequest,
    PodSetSpec,
    Policy,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from tests.engine.fleet import cluster_of, gpu_node
from tests.engine.scenario import play

LEVELS = ("leaf", "spine")
# Some hyper-nodes span leaves, and some leaves span hyper-nodes.
ACROSS = (*LEVELS, "hyper-node")


def group_of(node, level: str) -> str:
    return node.hyper_node if level == "hyper-node" else node.topology[LEVELS.index(level)]


def some_nodes(rng: random.Random, models: tuple[str, ...], levels: tuple[str, ...]):
    for at in range(rng.randint(1, 6)):
        leaf = rng.randrange(3)
        model = rng.choice(models)
        yield gpu_node(
            f"n{at}",
            gpus=rng.choice((2, 4, 8)) if model else 0,
            model=model,
            hyper_node=rng.choice(("h0", "h1", "h2", "")) if levels is ACROSS else "",
            leaf=f"l{leaf}",
            spine=f"s{leaf // 2}",
            cpu_milli=rng.choice((4_000, 8_000, 16_000)),
            memory_mib=rng.choice((8_000, 16_000)),
            extended={"fpga": rng.randrange(3)},
        )


def a_set(
    rng: random.Random, name: str, models: tuple[str, ...], levels: tuple[str, ...]
) -> PodSetSpec:
    count = rng.randint(1, 5)
    wish = {}
    if levels is ACROSS and rng.random() < 0.4:
        wish[rng.choice(("preferred_level", "balance_level"))] = rng.choice(levels)
    if rng.random() < (0.6 if levels is ACROSS else 0.3):
        wish["required_level"] = rng.choice(levels)
        sizes = [n for n in (2, 3) if count % n == 0]
        if sizes and rng.random() < 0.5:
            wish["slice_size"] = rng.choice(sizes)
    if not wish.get("slice_size") and rng.random() < 0.2:
        wish["min_count"] = rng.randint(1, count)
    gpus = rng.choice((0, 1, 1, 2, 3, 4))
    with_gpus = tuple(m for m in models if m)
    accepted = rng.choice(((with_gpus[0],), with_gpus, with_gpus[::-1]))
    return PodSetSpec(
        name,
        count,
        gpus,
        accepted if gpus else rng.choice(((), accepted)),
        cpu_milli=rng.choice((1_000, 2_000, 3_000, 5_000)),
        memory_mib=rng.choice((0, 0, 3_000, 5_000)),
        extended=rng.choice(({}, {}, {}, {"fpga": 1})),
        max_per_node=rng.choice((None, None, None, 1, 2)),
        max_per_leaf=rng.choice((None, None, None, 2, 3)),
        **wish,
    )


def fits_by_brute_force(nodes, job: JobRequest) -> bool:
    """Whether some placement of the minimum of all pod sets keeps every rule."""
    models = sorted({n.gpu_model for n in nodes})
    choices = [
        [{m} for m in accepted] if s.gpus else [set(accepted)]
        for s in job.pod_sets
        for accepted in [[m for m in s.gpu_models or models if m in models]]
    ]
    level = job.required_level
    for chosen in product(*choices):
        for key in {group_of(n, level) for n in nodes} - {""} if level else [""]:
            here = [n for n in nodes if not key or group_of(n, level) == key]
            if _lay(here, job, chosen):
                return True
    return False


def _lay(nodes, job, chosen) -> bool:
    sets = job.pod_sets

    @cache
    def place(index: int, left: tuple) -> bool:
        """Try the pod sets from this one on, on what is left of each node."""
        if index == len(sets):
            return True
        s = sets[index]
        return any(place(index + 1, after) for after in ways(index, 0, left, s.least, (), ()))

    def ways(index, number, left, pods, in_leaf, in_group):
        """Yield what is left of the nodes for every way to place this many pods from this node
        on."""
        s = sets[index]
        if number == len(nodes):
            if pods == 0 and _grouped(s, dict(in_group)):
                yield left
            return
        node = nodes[number]
        most = pods if node.gpu_model in chosen[index] else 0
        if s.required_level and not group_of(node, s.required_level):
            most = 0
        gpus, cpu, memory, fpga = left[number]
        leaf = node.topology[0]
        had = dict(in_leaf).get(leaf, 0)
        for n in range(most, -1, -1):
            if n and (
                n * s.gpus > gpus
                or n * s.cpu_milli > cpu
                or n * s.memory_mib > memory
                or n * s.extended.get("fpga", 0) > fpga
                or n > (s.max_per_node or n)
                or had + n > (s.max_per_leaf or had + n)
            ):
                continue
            rest = (
                gpus - n * s.gpus,
                cpu - n * s.cpu_milli,
                memory - n * s.memory_mib,
                fpga - n * s.extended.get("fpga", 0),
            )
            counts = dict(in_group)
            if s.required_level and n:
                group = group_of(node, s.required_level)
                counts[group] = counts.get(group, 0) + n
            yield from ways(
                index,
                number + 1,
                (*left[:number], rest, *left[number + 1 :]),
                pods - n,
                tuple({**dict(in_leaf), leaf: had + n}.items()),
                tuple(counts.items()),
            )

    start = tuple(
        (len(n.devices), n.cpu_milli, n.memory_mib, n.extended.get("fpga", 0)) for n in nodes
    )
    return place(0, start)


def _grouped(s: PodSetSpec, counts: dict[str, int]) -> bool:
    if not s.required_level:
        return True
    if s.slice_size:
        return all(n % s.slice_size == 0 for n in counts.values())
    return len([n for n in counts.values() if n]) <= 1


def a_case(seed: int, levels: tuple[str, ...]):
    rng = random.Random(seed)
    models = rng.choice((("A",), ("A",), ("A", "B"), ("A", ""), ("A", "B", "")))
    nodes = list(some_nodes(rng, models, levels))
    sets = tuple(a_set(rng, f"s{i}", models, levels) for i in range(rng.choice((1, 2, 2, 3))))
    level = rng.choice(("", "", "", *levels))
    near = rng.choice(("", "", *levels)) if levels is ACROSS else ""
    return nodes, JobRequest("x", "t", 0.0, sets, required_level=level, preferred_level=near)


@pytest.mark.parametrize("levels", [LEVELS, ACROSS], ids=["nested", "across"])
@pytest.mark.parametrize("strategy", ["e-binpack", "binpack", "spread"])
def test_what_fits_an_empty_cluster_is_placed_and_nothing_else(strategy, levels):
    placed = 0
    for seed in range(600):
        nodes, job = a_case(seed, levels)
        state = cluster_of(*nodes)
        statement = Statement(state)
        found = place_job(statement, job, strategy=strategy)
        fits = fits_by_brute_force(nodes, job)
        assert (not isinstance(found, PlacementFailure)) == fits, (seed, job, found)
        placed += fits
        if isinstance(found, PlacementFailure):
            assert not found.gave_up
            continue
        keeps_every_rule(nodes, job, found)
        statement.rollback()
    assert 100 < placed < 500


def keeps_every_rule(nodes, job, found) -> None:
    by_name = {n.name: n for n in nodes}
    for name, node in by_name.items():
        here = [job.pod_sets[p.pod_set] for p in found if p.node == name]
        assert sum(s.gpus for s in here) <= len(node.devices)
        assert sum(s.cpu_milli for s in here) <= node.cpu_milli
        assert sum(s.memory_mib for s in here) <= node.memory_mib
        assert sum(s.extended.get("fpga", 0) for s in here) <= node.extended["fpga"]
    for index, s in enumerate(job.pod_sets):
        mine = [p for p in found if p.pod_set == index]
        assert s.least <= len(mine) <= s.count
        assert not s.gpus or len({by_name[p.node].gpu_model for p in mine}) == 1
        for limit, key in (
            (s.max_per_node, lambda p: p.node),
            (s.max_per_leaf, lambda p: by_name[p.node].topology[0]),
        ):
            keys = [key(p) for p in mine]
            assert limit is None or max(keys.count(k) for k in keys) <= limit
        if s.required_level:
            mine.sort(key=lambda p: p.ordinal)
            size = s.slice_size or len(mine)
            for first in range(0, len(mine), size):
                slice_ = mine[first : first + size]
                (group,) = {group_of(by_name[p.node], s.required_level) for p in slice_}
                assert group
    if job.required_level:
        assert len({group_of(by_name[p.node], job.required_level) for p in found}) == 1


@pytest.mark.parametrize("levels", [LEVELS, ACROSS], ids=["nested", "across"])
def test_who_never_fits_is_told_so_and_the_others_are_not(levels):
    """The cycle places them, under a policy that lets no job pass a waiting one."""
    never = 0
    for seed in range(600):
        nodes, job = a_case(seed, levels)
        if not any(n.gpu_model for n in nodes):
            continue
        fits = fits_by_brute_force(nodes, kept_off_gpus(job, CpuJobs.FREELY))
        policy = Policy(QueueingPolicy.STRICT_FIFO, cpu_jobs_on_gpu_nodes=CpuJobs.FREELY)
        state = SchedulerState(policy=policy)
        quotas = tuple(QuotaSpec("t", m, 1_000_000) for m in ("A", "B"))
        deltas = [d.NodeChanged(n) for n in nodes] + [d.TenantsChanged((TenantSpec("t"),), quotas)]
        small = PodSetSpec("small", 1, 1, cpu_milli=1_000)
        behind = JobRequest("behind", "t", 1.0, (small,))
        result = run_cycle(state, [*deltas, d.JobSubmitted(job), d.JobSubmitted(behind)], 1.0)
        started = {s.job_id for s in result.started}
        assert (job.id in started) == fits, seed
        if not fits:
            verdict = state.jobs[job.id].verdict
            assert verdict.will_never_run, (seed, verdict)
            assert "behind" in started
            never += 1
    assert never > 50


@pytest.mark.parametrize(
    ("nodes", "sets", "kept"),
    [
        (64, "33x5+33x5", 64),
        (64, "33x5+32x5", 64),
        (640, "330x5+330x5", 640),
        (4, "3x6+2x6", 4),
    ],
)
@pytest.mark.parametrize("policy", ["strict-fifo", "backfill, backfill_after_s=5"])
def test_pod_sets_that_fit_alone_but_not_together_close_nothing(nodes, sets, kept, policy):
    world = play(f"""
        nodes  H100: {"8 " * nodes}
        quota  a H100 {8 * nodes} | b H100 {8 * nodes}
        policy {policy}
        at 0
          + head a {sets} H100 p5 -> ExceedsCapacity possible_pods={kept}
          + b0   b 1x8 H100       -> starts
        at 100
          + b1   b 1x8 H100       -> starts
    """)
    summary = world.state.jobs["head"].verdict.summary
    assert f"Empty nodes hold at most {kept} of the" in summary


@pytest.mark.parametrize("sizes", [(300, 500), (300, 700, 200), (333, 250)])
def test_shares_of_several_sizes_fill_the_devices(sizes):
    """On each of 6 GPUs, as many pods of a mixture as one GPU holds."""
    counts = [6 * max(n for n in range(4) if n * size <= 1000 // len(sizes)) for size in sizes]
    sets = tuple(
        PodSetSpec(f"s{at}", max(count, 1), 1, ("A",), gpu_milli=size)
        for at, (size, count) in enumerate(zip(sizes, counts, strict=True))
    )
    state = cluster_of(*(gpu_node(f"n{i}", gpus=2, model="A") for i in range(3)))
    found = place_job(Statement(state), JobRequest("x", "t", 0.0, sets), strategy="spread")
    assert not isinstance(found, PlacementFailure)


def test_a_share_by_memory_is_placed_on_gpus_of_unlike_memory():
    nodes = [gpu_node("n0", gpus=1, model="A"), gpu_node("n1", gpus=1, model="A")]
    nodes[1] = replace(nodes[1], devices=(replace(nodes[1].devices[0], memory_mib=40_000),))
    pods = PodSetSpec("pods", 3, 1, ("A",), gpu_memory_mib=40_000)
    found = place_job(
        Statement(cluster_of(*nodes)), JobRequest("x", "t", 0.0, (pods,)), strategy="e-binpack"
    )
    assert sorted((p.node, p.milli) for p in found) == [("n0", 500), ("n0", 500), ("n1", 1000)]


def test_more_of_an_elastic_gang_stays_where_its_least_is():
    """A set that must be in one leaf grows in that leaf, even where the sets compete for room."""
    nodes = [gpu_node(f"n{i}", model="A", leaf=f"l{i // 2}") for i in range(4)]
    sets = (
        PodSetSpec("one", 6, 4, ("A",), min_count=2, required_level="leaf"),
        PodSetSpec("two", 6, 4, ("A",), min_count=2, required_level="leaf"),
    )
    found = place_job(
        Statement(cluster_of(*nodes)), JobRequest("x", "t", 0.0, sets), strategy="e-binpack"
    )
    for index in range(2):
        leaves = {p.node[1] in "01" for p in found if p.pod_set == index}
        assert len(leaves) == 1


@pytest.mark.parametrize("sets", [8, 32])
def test_more_sets_than_tables_can_hold_are_given_up_and_cost_nothing(sets: int) -> None:
    """Tables for that many sets would exceed memory and the range of integers."""
    state = cluster_of(*(gpu_node(f"n{i}") for i in range(4)))
    pod_sets = tuple(PodSetSpec(f"s{i}", 3, 3) for i in range(sets))
    found = place_job(Statement(state), JobRequest("x", "t", 0.0, pod_sets), strategy="e-binpack")
    assert isinstance(found, PlacementFailure)


def test_pods_without_gpus_lie_on_nodes_of_several_models_and_grow_there():
    """This holds where no single pool has room for all pods, also for pods that come later."""
    nodes = [gpu_node(f"n{i}", gpus=8 if m else 0, model=m) for i, m in enumerate(("A", "B", ""))]
    state = cluster_of(*nodes[:2])
    sets = (
        PodSetSpec("train", 1, 8, ("A",), cpu_milli=8_000),
        PodSetSpec("data", 3, 0, cpu_milli=120_000, min_count=2),
    )
    job = JobRequest("x", "t", 0.0, sets)
    for after in (("n0", "n0", "n1"), ("n0", "n0", "n1", "n2")):
        statement = Statement(state)
        found = place_job(statement, job, strategy="e-binpack")
        assert not isinstance(found, PlacementFailure)
        statement.commit()
        assert sorted(b.placement.node for b in state.held_by("x").values()) == sorted(after)
        state.upsert_node(nodes[2])


@pytest.mark.parametrize("wish", ["preferred_level", "balance_level"])
def test_a_wish_for_hyper_nodes_keeps_nobody_from_nodes_that_are_in_none(wish):
    nodes = [gpu_node(f"n{i}", model="A", hyper_node="h" * (i < 2)) for i in range(3)]
    pods = PodSetSpec("pods", 3, 8, ("A",), **{wish: "hyper-node"})
    for strategy in ("e-binpack", "binpack", "spread"):
        job = JobRequest("x", "t", 0.0, (pods,))
        found = place_job(Statement(cluster_of(*nodes)), job, strategy=strategy)
        assert not isinstance(found, PlacementFailure)
        assert {p.node for p in found} == {"n0", "n1", "n2"}


def test_more_of_an_elastic_gang_stays_in_the_group_of_the_job_and_in_that_of_its_set():
    """A hyper-node spans two leaves, and the job must be in one."""
    nodes = [gpu_node(f"n{i}", model="A", leaf=f"l{i}", hyper_node="h") for i in range(2)]
    sets = (
        PodSetSpec("one", 4, 4, ("A",), min_count=1, required_level="hyper-node"),
        PodSetSpec("two", 1, 4, ("A",)),
    )
    job = JobRequest("x", "t", 0.0, sets, required_level="leaf")
    found = place_job(Statement(cluster_of(*nodes)), job, strategy="e-binpack")
    assert not isinstance(found, PlacementFailure)
    assert len({p.node for p in found}) == 1
