"""A head that could not start even if every running job ended blocks nobody and says what it lacks.
It is the head again as soon as that comes back."""

import random
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.admission.out_of_service import within_reach
from scheduling.engine.types import Nic, Taint
from tests.cases import seeds
from tests.engine.scenario import job, node, play

NAMES = ("n0", "n1", "n2", "n3")
# 4 nodes of 8 GPUs, two nodes in a leaf; a running job holds 1 GPU.
POLICIES = (
    "strict-fifo",
    "best-effort-fifo",
    "backfill, backfill_after_s=5",
    "backfill, backfill_after_s=5, preemption=backfill",
    "strict-fifo, preemption=priority,reclaim",
    "backfill, backfill_after_s=5, preemption=priority,reclaim,backfill",
    "strict-fifo, fair_share=yes",
    "backfill, backfill_after_s=5, fair_share=yes",
)


def gpu_node(name, **facts):
    leaf = f"l{int(name[1:]) // 2}"
    return node(name, 8, topology=(leaf, "", ""), nics=tuple(Nic(i) for i in range(8)), **facts)


def bad(name, *devices):
    whole = gpu_node(name)
    return replace(
        whole, devices=tuple(replace(it, healthy=it.index not in devices) for it in whole.devices)
    )


# What happens to n3, and how the reason describes it.
OUTAGES = {
    "cordoned": (
        d.NodeChanged(gpu_node("n3", schedulable=False, out_of_service="cordoned")),
        "n3 (cordoned)",
    ),
    "out of service": (d.NodeChanged(gpu_node("n3", schedulable=False)), "n3 (out of service)"),
    "not ready": (
        d.NodeChanged(gpu_node("n3", taints=(Taint("node.kubernetes.io/not-ready"),))),
        "n3 (tainted node.kubernetes.io/not-ready)",
    ),
    "a bad GPU": (d.NodeChanged(bad("n3", 6)), "n3 (1 of 8 GPUs out of service)"),
    "an unnamed bad GPU": (
        d.NodeChanged(gpu_node("n3", unnamed_unhealthy=2)),
        "n3 (2 of 8 GPUs out of service)",
    ),
    "pods of others": (
        d.OtherPodChanged("theirs", "n3", 2, 1000, 1000),
        "n3 (2 of 8 GPUs held by pods outside Kant)",
    ),
}
RETURNS = (d.NodeChanged(gpu_node("n3")), d.OtherPodRemoved("theirs"))


def cluster(policy, *, runs=True):
    world = play(f"""
        nodes  H100: 8@l0 8@l0 8@l1 8@l1
        quota  a H100 640 isolated | b H100 640 isolated | a L4 640 | b L4 640
        policy {policy}
        at 0
    """)
    world.pending += [d.NodeChanged(gpu_node(name)) for name in NAMES]
    world.cycle(0.5)
    if runs:
        world.pending.append(d.JobSubmitted(job("r", "b", "4x1 H100", "max_per_node=1", "p9")))
        assert [s.job_id for s in world.cycle(1.0).started] == ["r"]
    return world


def submit(world, name, asks, *words, at, tenant="a"):
    world.pending.append(d.JobSubmitted(job(name, tenant, asks, *words, at=at)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("outage", OUTAGES)
def test_nobody_waits_for_it_and_it_comes_back(policy, outage):
    what, said = OUTAGES[outage]
    world = cluster(policy)
    world.pending.append(what)
    submit(world, "head", "4x8 H100", "p5", at=2.0)
    world.cycle(2.0)
    verdict = world.state.jobs["head"].verdict
    assert said in verdict.summary
    assert "Other jobs do not wait for it" in verdict.summary
    assert verdict.evidence["lacking_nodes"] == 1
    assert not verdict.will_never_run
    world.cycle(60.0)
    for at in range(61, 91):  # small jobs, of its own and of another tenant
        submit(world, f"small-{at}", "1x1 H100", at=float(at), tenant="ab"[at % 2])
        result = world.cycle(float(at))
        assert [s.job_id for s in result.started] == [f"small-{at}"]
        assert not result.preempted
        world.pending.append(d.JobEnded(f"small-{at}"))
    world.pending += RETURNS
    world.cycle(100.0)
    world.cycle(110.0)
    assert "lacking_nodes" not in world.state.jobs["head"].verdict.evidence
    submit(world, "behind", "1x1 H100", at=120.0)
    passes = policy.startswith("best-effort") or "preemption=backfill" in policy
    passes |= "reclaim,backfill" in policy
    assert [s.job_id for s in world.cycle(120.0).started] == ["behind"] * passes
    world.pending.append(d.JobEnded("r"))
    world.cycle(125.0)
    if passes:
        world.pending.append(d.JobEnded("behind"))
    world.cycle(130.0)
    assert world.state.jobs["head"].started_at is not None


def cordon(*names):
    return [d.NodeChanged(gpu_node(name, schedulable=False)) for name in names]


# Heads too large for the nodes that are left, and the pools that each still reserves.
HEADS = {
    "nodes": ("4x8 H100", (), cordon("n3"), set()),
    "an elastic gang": ("5x8 H100", ("min=4",), cordon("n3"), set()),
    "two pod sets": ("3x8+1x8 H100", (), cordon("n3"), set()),
    "pods per node": ("4x1 H100", ("max_per_node=1",), cordon("n3"), set()),
    "CPU": ("4x1 H100", ("cpu_milli=100000",), cordon("n3"), set()),
    "a leaf": ("16x1 H100", ("required_level=leaf",), [*cordon("n3"), *cordon("n1")], set()),
    "slices": ("4x6 H100", ("required_level=leaf", "slice_size=2"), cordon("n3"), set()),
    "one GPU model of two": ("4x8 H100|L4", (), cordon("n3"), {"L4"}),
    "both GPU models": ("4x8 L4|H100", (), cordon("n3", "n4"), set()),
    "a GPU model each": ("1x8+4x8 H100+L4", (), cordon("n4"), set()),
    "single pods": ("2x8 H100", ("pods",), cordon(*NAMES), set()),
    "no GPUs": ("3x0 *", ("cpu_milli=100000",), cordon("c1"), set()),
}
# The same head when the remaining nodes can hold it.
ENOUGH = {name: head for name, head in HEADS.items() if name not in ("no GPUs", "single pods")}


def mixed(policy):
    """Besides the H100 nodes, add four L4 nodes and three without GPUs."""
    world = cluster(policy, runs=False)
    world.pending += [d.NodeChanged(node(f"n{i}", 8, "L4")) for i in range(4, 8)]
    world.pending += [d.NodeChanged(node(f"c{i}", 0, "")) for i in range(3)]
    for at, asks in enumerate(("8x1 H100", "8x1 L4")):
        submit(world, f"r{at}", asks, "p9", "strategy=spread", at=0.5)
    submit(world, "rc", "3x0 *", "p9", "cpu_milli=60000", "strategy=spread", at=0.5)
    assert len(world.cycle(1.0).started) == 3
    return world


@pytest.mark.parametrize("policy", ["strict-fifo", "backfill, backfill_after_s=5"])
@pytest.mark.parametrize("name", HEADS)
def test_it_keeps_the_pools_where_it_could_start_and_no_others(name, policy):
    asks, words, outage, keeps = HEADS[name]
    world = mixed(policy)
    for delta in outage:
        facts = delta.node
        known = world.state.cluster.node(facts.name)
        world.pending.append(d.NodeChanged(replace(known, schedulable=False)))
    submit(world, "head", asks, "p5", *words, at=2.0)
    world.cycle(2.0)
    assert within_reach(world.state, world.state.jobs["head"]) == keeps
    verdict = world.state.jobs["head"].verdict
    assert ("lacking_nodes" in verdict.evidence) == (not keeps)
    world.cycle(30.0)
    submit(world, "h", "1x1 H100", at=40.0)
    submit(world, "l", "1x1 L4", at=40.0)
    submit(world, "c", "1x0 *", "cpu_milli=1000", at=40.0)
    usable = {"h"} if len(outage) < len(NAMES) else set()
    waits = {{"H100": "h", "L4": "l"}[model] for model in keeps}
    started = {s.job_id for s in world.cycle(40.0).started}
    assert started == (usable | {"l", "c"}) - waits


@pytest.mark.parametrize("policy", ["strict-fifo", "backfill, backfill_after_s=5"])
@pytest.mark.parametrize("name", ENOUGH)
def test_a_node_more_and_it_is_waited_for(name, policy):
    asks, words, *_ = ENOUGH[name]
    world = mixed(policy)
    submit(world, "head", asks, "p5", *words, at=2.0)
    result = world.cycle(2.0)
    if result.started:
        return
    world.cycle(30.0)
    assert "lacking_nodes" not in world.state.jobs["head"].verdict.evidence
    submit(world, "h", "1x1 H100", at=40.0)
    submit(world, "l", "1x1 L4", at=40.0)
    kept = within_reach(world.state, world.state.jobs["head"])
    started = {s.job_id for s in world.cycle(40.0).started}
    assert started == {n for n, model in (("h", "H100"), ("l", "L4")) if model not in kept}


@pytest.mark.parametrize("policy", ["strict-fifo", "backfill, backfill_after_s=5"])
def test_while_it_avoids_a_node_that_it_needs_nobody_waits(policy):
    world = cluster(policy + ", blame_s=100", runs=False)
    submit(world, "head", "4x8 H100", "p5", at=2.0)
    (start,) = world.cycle(2.0).started
    assert start.job_id == "head"
    world.pending.append(d.JobRequeued("head", 3.0, ("n2",)))
    submit(world, "small", "4x1 H100", at=3.0)
    assert [s.job_id for s in world.cycle(3.0).started] == ["small"]
    assert "Kant avoids n2 until" in world.state.jobs["head"].verdict.summary
    world.cycle(50.0)
    submit(world, "behind", "1x1 H100", at=60.0)
    assert [s.job_id for s in world.cycle(60.0).started] == ["behind"]
    world.cycle(104.0)  # the node is no longer avoided
    submit(world, "later", "1x1 H100", at=120.0)
    assert world.cycle(120.0).started == ()


@pytest.mark.parametrize("policy", ["strict-fifo", "backfill, backfill_after_s=5"])
def test_nor_does_anybody_wait_for_a_job_that_only_spares_would_hold(policy):
    world = cluster(policy + ", spare_nodes=H100:1", runs=False)
    submit(world, "r", "3x1 H100", "p9", "max_per_node=1", at=1.0)
    assert [s.job_id for s in world.cycle(1.0).started] == ["r"]
    submit(world, "head", "4x8 H100", "p5", at=2.0)
    world.cycle(2.0)
    world.cycle(30.0)
    assert "kept as spares" in world.state.jobs["head"].verdict.summary
    submit(world, "small", "1x1 H100", at=40.0)
    assert [s.job_id for s in world.cycle(40.0).started] == ["small"]


def test_a_reservation_ends_when_a_node_fails_and_comes_again_with_it():
    world = cluster("backfill, backfill_after_s=5", runs=False)
    submit(world, "r", "4x1 H100", "max_per_node=1", "s=100", at=1.0)
    world.cycle(1.0)
    submit(world, "head", "4x8 H100", at=2.0)
    (reserved,) = world.cycle(2.0).reservations
    assert (reserved.job_id, reserved.start_at) == ("head", 101.0)
    world.pending += cordon("n3")
    submit(world, "small", "3x1 H100", "s=1000", at=10.0)
    result = world.cycle(10.0)
    assert [s.job_id for s in result.started] == ["small"]
    assert [(r.job_id, r.start_at) for r in result.reservations] == [("head", None)]
    world.pending.append(RETURNS[0])
    (reserved,) = world.cycle(20.0).reservations
    assert (reserved.job_id, reserved.start_at) == ("head", 1010.0)


def test_what_quota_refuses_besides_is_not_kept_for_it_either():
    world = play("""
        nodes  H100: 8 8 8 8
        quota  a H100 16 | b H100 16
        policy strict-fifo
        at 0
          + r  b 1x8 H100 -> starts
          + r2 a 1x8 H100 -> starts
        at 1
          + head a 4x8 H100 p5 -> WaitingForQuota
          + x  a 1x1 H100 -> BehindInQueue
          + y  b 1x16 H100 -> ExceedsCapacity
    """)
    world.pending.append(d.NodeChanged(node("n3", 8, schedulable=False)))
    assert [s.job_id for s in world.cycle(2.0).started] == ["x"]
    verdict = world.state.jobs["head"].verdict
    assert verdict.reason == "WaitingForQuota"
    assert "n3" in verdict.summary
    world.pending += [d.NodeChanged(node("n3", 8)), d.JobSubmitted(job("z", "a", "1x1 H100", at=9))]
    assert world.cycle(9.0).started == ()


ASKS = ("1x8 H100", "4x8 H100", "3x4 H100", "2x8+1x4 H100", "6x2 H100", "1x1 H100", "2x8 H100|L4")
WORDS = ((), ("s=20",), ("s=200",), ("required_level=leaf",), ("pods",), ("max_per_node=1",))


@pytest.mark.parametrize("seed", seeds(30))
def test_others_are_decided_about_as_if_it_had_not_come(seed):
    """Run random jobs and outages, with and without a head that always lacks a node."""
    rng = random.Random(seed)
    policy = rng.choice([p for p in POLICIES if "fair_share" not in p])
    twins = [cluster(policy, runs=False) for _ in range(2)]
    for with_head, world in enumerate(twins):
        world.pending += cordon("n3")
        if with_head:
            submit(world, "head", "4x8 H100", "p7", tenant="b", at=1.0)
        world.cycle(1.0)
    running: set[str] = set()
    for at in range(2, 60):
        deltas = []
        if rng.random() < 0.6:
            words = (*rng.choice(WORDS), f"p{rng.choice((0, 5, 9))}")
            request = job(f"j{at}", rng.choice("ab"), rng.choice(ASKS), *words, at=float(at))
            deltas.append(d.JobSubmitted(request))
        if running and rng.random() < 0.5:
            gone = rng.choice(sorted(running))
            running.discard(gone)
            deltas.append(d.JobEnded(gone))
        if rng.random() < 0.15:
            name = rng.choice(NAMES[:3])
            deltas += [*cordon(name)] if rng.random() < 0.5 else [d.NodeChanged(gpu_node(name))]
        results = []
        for world in twins:
            world.pending += deltas
            results.append(world.cycle(5.0 * at))
        one, other = results
        assert one.started == other.started
        assert one.preempted == other.preempted
        gone = {p.job_id for p in one.preempted if p.whole}
        running = (running | {s.job_id for s in one.started}) - gone
        for world in twins:
            for p in one.preempted:
                if p.whole:
                    world.pending.append(d.JobRequeued(p.job_id, 0.0))
                else:
                    world.pending += [d.PodEnded(p.job_id, *pod) for pod in p.pods]
