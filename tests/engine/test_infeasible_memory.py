"""Kant forgets that something did not fit as soon as it might fit, whatever the cause.

The cluster remembers shapes, the lanes of the queue remember failed attempts, and lanes with a
standing answer are not tried at all. The tests try every kind of delta that can make room on every
kind of obstacle, and then random histories: a job that still waits could not be placed on a cluster
without memory either.
"""

import random
from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.demand.shapes import choices, narrowed
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.statement import Statement
from scheduling.engine.types import (
    DEFAULT_QUEUE,
    Apart,
    Device,
    JobKind,
    JobRequest,
    Near,
    Nic,
    Node,
    NodeRules,
    PodPlacement,
    PodRules,
    PodSetSpec,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QueueSpec,
    QuotaSpec,
    Taint,
    TenantSpec,
)
from tests.cases import seeds

GPUS = 4
STRATEGIES = ("binpack", "spread", "e-binpack", "e-spread", "fragmentation")
AMPLE = tuple(QuotaSpec("t", m, 10**9) for m in ("H100", "L4"))
ROW = PodSetSpec("pods", 2, GPUS, ("H100",), required_level="leaf")
ONE = PodSetSpec("pods", 1, GPUS, ("H100",))


def machine(name: str, **facts) -> Node:
    known = {
        "gpu_model": "H100",
        "devices": tuple(Device(i, memory_mib=80_000) for i in range(GPUS)),
        "nics": tuple(Nic(i) for i in range(2)),
        "topology": ("l0", "s0", "x"),
        "cpu_milli": 32_000,
        "memory_mib": 64_000,
        "extended": {"fpga": 1},
        "labels": {"disk": "ssd"},
    }
    return Node(name, **(known | facts))


def ask(name: str, *pod_sets: PodSetSpec, **facts) -> JobRequest:
    return JobRequest(name, "t", 0.0, pod_sets, **facts)


def on(node: str, devices: int = GPUS, ordinal: int = 0) -> PodPlacement:
    return PodPlacement(0, ordinal, node, tuple(range(devices)), 1000)


BUSY = ask("busy", PodSetSpec("pods", 1, GPUS, ("H100",)))
WEB = ask("web", PodSetSpec("pods", 2, GPUS // 2, ("H100",)), gang=False)
AHEAD = ask("ahead", replace(ROW, required_level=""), priority=9)
FAIR = Policy(QueueingPolicy.STRICT_FIFO, fair_share=True)
OTHER = replace(AHEAD, tenant="u", submitted_at=-1.0, priority=0)
SICK = tuple(Device(i, healthy=i != 0, memory_mib=80_000) for i in range(GPUS))
SMALL = tuple(Device(i, memory_mib=40_000) for i in range(GPUS))
RUNS = d.JobRestored(BUSY, (on("n0"),), 0.0)
SERVES = d.JobRestored(WEB, (PodPlacement(0, 0, "n0", (0, 1), 1000),), 0.0, ((0, 1),))
FOREIGN = d.OtherPodChanged("u", "n0", 1, 0, 0)
NEXT_DOOR = d.OtherPodChanged("u", "n9", rules=PodRules(("db",)))  # on a node of another scope
FOLLOWS = replace(ONE, rules=PodRules(near=Near("db", ("disk",))))
AVOIDS = replace(ONE, rules=PodRules(apart=(Apart("db", "disk"),)))


def node_is(**facts) -> list[d.Delta]:
    return [d.NodeChanged(machine("n0", **facts))]


def neighbour(**facts) -> d.Delta:
    return d.NeighbourChanged("n9", machine("n9", schedulable=False, **facts))


def behind_another_tenant(policy: Policy) -> list[d.Delta]:
    quotas = (*AMPLE, *(replace(quota, tenant="u") for quota in AMPLE))
    full = d.JobRestored(BUSY, (on("n1"),), 0.0)
    return [
        *(*node_is(), d.NodeChanged(machine("n1")), full, d.JobSubmitted(OTHER)),
        *(d.PolicyChanged(policy), d.TenantsChanged((TenantSpec("t"), TenantSpec("u")), quotas)),
    ]


# The state of the cluster, the waiting job, and the delta that makes room for it.
CURES = {
    "a node comes": ([], ONE, node_is()),
    "a node comes back": ([*node_is(), d.NodeRemoved("n0")], ONE, node_is()),
    "a node is uncordoned": (node_is(schedulable=False), ONE, node_is()),
    "a taint goes": (node_is(taints=(Taint("x"),)), ONE, node_is()),
    "a label comes": (
        node_is(labels={}),
        replace(ONE, nodes=NodeRules({"disk": "ssd"})),
        node_is(),
    ),
    "a GPU gets well": (node_is(devices=SICK), ONE, node_is()),
    "GPUs with more memory": (
        node_is(devices=SMALL),
        PodSetSpec("pods", 1, 1, ("H100",), gpu_memory_mib=60_000),
        node_is(),
    ),
    "a NIC gets well": (
        node_is(nics=(Nic(0), Nic(1, healthy=False))),
        replace(ONE, nics=2),
        node_is(),
    ),
    "more CPU": (node_is(cpu_milli=1_000), replace(ONE, cpu_milli=2_000), node_is()),
    "more memory": (node_is(memory_mib=1_000), replace(ONE, memory_mib=2_000), node_is()),
    "more pods": (node_is(max_pods=0), ONE, node_is()),
    "an extended resource": (node_is(extended={}), replace(ONE, extended={"fpga": 1}), node_is()),
    "a node moves to the other's leaf": (
        [*node_is(topology=("l1", "s0", "x")), d.NodeChanged(machine("n1"))],
        ROW,
        node_is(),
    ),
    "a foreign pod goes": ([*node_is(), FOREIGN], ONE, [d.OtherPodRemoved("u")]),
    "a foreign pod asks for less": (
        [*node_is(), FOREIGN],
        ONE,
        [d.OtherPodChanged("u", "n0", 0, 0, 0)],
    ),
    "a foreign pod with an extended resource goes": (
        [*node_is(), d.OtherPodChanged("u", "n0", extended={"fpga": 1})],
        replace(ONE, extended={"fpga": 1}),
        [d.OtherPodRemoved("u")],
    ),
    "a foreign pod moves": (
        [*node_is(), FOREIGN],
        ONE,
        [d.OtherPodChanged("u", "n9", 1, 0, 0)],
    ),
    "a neighbour comes": ([*node_is(), NEXT_DOOR], FOLLOWS, [neighbour()]),
    "a neighbour goes": (
        [*node_is(), neighbour(), NEXT_DOOR],
        AVOIDS,
        [d.NeighbourChanged("n9", None)],
    ),
    "the label of a neighbour changes": (
        [*node_is(), neighbour(), NEXT_DOOR],
        AVOIDS,
        [neighbour(labels={"disk": "hdd"})],
    ),
    "a pod comes to a neighbour": ([*node_is(), neighbour()], FOLLOWS, [NEXT_DOOR]),
    "a pod leaves a neighbour": (
        [*node_is(), neighbour(), NEXT_DOOR],
        AVOIDS,
        [d.OtherPodRemoved("u")],
    ),
    "somebody else's pod comes onto the only spare": (
        [*node_is(), d.PolicyChanged(Policy(spare_nodes={"H100": 1}))],
        replace(ONE, gpus=3),
        [FOREIGN],
    ),
    "a pod of Kant holds less than before": (
        [*node_is(extended={"fpga": 1}), SERVES, d.PodHoldsMore("web", 0, 0, {"fpga": 1})],
        replace(ONE, gpus=1, extended={"fpga": 1}),
        [d.PodHoldsMore("web", 0, 0)],
    ),
    "a job ends": ([*node_is(), RUNS], ONE, [d.JobEnded("busy")]),
    "a job fails": ([*node_is(), RUNS], ONE, [d.JobEnded("busy", False)]),
    "a job is requeued": ([*node_is(), RUNS], ONE, [d.JobRequeued("busy", 99.0)]),
    "a pod ends": ([*node_is(), SERVES], replace(ONE, gpus=3), [d.PodEnded("web", 0, 0)]),
    "a pod is requeued": (
        [*node_is(), SERVES],
        replace(ONE, gpus=3),
        [d.PodRequeued("web", 0, 0, 99.0)],
    ),
    "a job is found elsewhere": (
        [*node_is(), d.NodeChanged(machine("n1", schedulable=False)), RUNS],
        ONE,
        [d.JobRestored(BUSY, (on("n1"),), 0.0)],
    ),
    "the strategy changes": (
        [*node_is(), d.PolicyChanged(Policy(spare_nodes={"H100": 1}))],
        ONE,
        [d.PolicyChanged(Policy())],
    ),
    "who is ahead is held": (
        [
            *node_is(),
            d.NodeChanged(machine("n1")),
            d.JobRestored(BUSY, (on("n1"),), 0.0),
            d.PolicyChanged(Policy(QueueingPolicy.STRICT_FIFO)),
            d.JobSubmitted(AHEAD),
        ],
        ONE,
        [d.JobSubmitted(AHEAD, held=True)],
    ),
    "who is ahead holds more in another scope": (
        behind_another_tenant(FAIR),
        ONE,
        [d.OtherScopesChanged((("u", "", "H100", 5_000),), (("H100", 8),))],
    ),
    "who is ahead held more in the past": (
        behind_another_tenant(replace(FAIR, usage_half_life_s=600.0)),
        ONE,
        [d.PastUse((("u", "", "H100", 40_000.0),))],
    ),
    "its queue is owed more": (
        [
            *node_is(),
            d.NodeChanged(machine("n1")),
            d.JobRestored(BUSY, (on("n1"),), 0.0),
            d.PolicyChanged(Policy(QueueingPolicy.STRICT_FIFO)),
            d.QueuesChanged((QueueSpec("t", DEFAULT_QUEUE), QueueSpec("t", "other"))),
            d.JobSubmitted(replace(OTHER, tenant="t", queue="other")),
        ],
        ONE,
        [d.QueueDebts((("t", DEFAULT_QUEUE, 20.0), ("t", "other", -20.0)), 6.0)],
    ),
    "who is ahead asks for more than there is": (
        [
            *node_is(),
            d.NodeChanged(machine("n1")),
            d.JobRestored(BUSY, (on("n1"),), 0.0),
            d.PolicyChanged(Policy(QueueingPolicy.STRICT_FIFO)),
            d.JobSubmitted(AHEAD),
        ],
        ONE,
        [d.JobChanged(replace(AHEAD, pod_sets=(replace(ROW, required_level="", count=9),)))],
    ),
    "a quota comes": (
        [*node_is(), d.TenantsChanged((TenantSpec("t"),), (QuotaSpec("t", "H100", 1_000),))],
        ONE,
        [d.TenantsChanged((TenantSpec("t"),), AMPLE)],
    ),
}


@pytest.mark.parametrize("name", CURES)
def test_what_makes_room_is_noticed_at_once(name: str) -> None:
    """Other jobs of the same shape do not hide it: neither an earlier one nor one that arrives with
    the cure."""
    before, pod_set, cure = CURES[name]
    state = SchedulerState()
    tenants = d.TenantsChanged((TenantSpec("t"),), AMPLE)
    waiting = [d.JobSubmitted(ask(f"j{i}", pod_set)) for i in range(2)]
    run_cycle(state, [tenants, *before, *waiting], 1.0)
    for now in (2.0, 3.0):
        assert not run_cycle(state, [], now).started
    for now in (4.0, 5.0):
        assert not run_cycle(state, [d.JobSubmitted(ask(f"k{now:g}", pod_set))], now).started
    started = {start.job_id for start in run_cycle(state, cure, 6.0).started}
    assert "j0" in started


PREEMPTS = Policy(preemption=tuple(PreemptionKind), min_runtime_s=0.0, max_preemptions=1)
# What keeps a job of higher priority from taking a place, and what removes the obstacle.
PERMISSIONS = {
    "the disruption budget is raised": (
        [d.DisruptionBudget("busy", 0)],
        [d.DisruptionBudget("busy", 1)],
    ),
    "the history turns out another": (
        [d.JobHistory("busy", ("somebody",))],
        [d.JobHistory("busy")],
    ),
    "a job may be preempted more often": (
        [d.JobHistory("busy", ("somebody",))],
        [d.PolicyChanged(replace(PREEMPTS, max_preemptions=2))],
    ),
    "a kind of preemption is allowed": (
        [d.PolicyChanged(replace(PREEMPTS, preemption=(PreemptionKind.RECLAIM,)))],
        [d.PolicyChanged(PREEMPTS)],
    ),
    "the priority of a running job falls": (
        [d.JobSubmitted(replace(BUSY, priority=9))],
        [d.JobSubmitted(BUSY)],
    ),
    "its queue is released": (
        [d.QueuesChanged((QueueSpec("t", DEFAULT_QUEUE, held=True),))],
        [d.QueuesChanged(())],
    ),
    "a job that holds nothing ends, at a limit of jobs": (
        [
            d.TenantsChanged((TenantSpec("t", max_running=1),), AMPLE),
            d.JobRestored(replace(WEB, id="idle"), (), 0.0),
        ],
        [d.JobEnded("idle")],
    ),
    "one that waits to be placed again is requeued, at a limit of jobs": (
        [
            d.TenantsChanged((TenantSpec("t", max_running=1),), AMPLE),
            d.JobRestored(replace(WEB, id="idle"), (), 0.0),
        ],
        [d.JobRequeued("idle", 99.0)],
    ),
    "a job that was fixed may be preempted": (
        [d.JobRestored(replace(BUSY, preemptible=False), RUNS.placements, 0.0)],
        [d.JobRestored(BUSY, RUNS.placements, 0.0)],
    ),
}


@pytest.mark.parametrize("name", PERMISSIONS)
def test_what_allows_a_preemption_is_noticed_at_once(name: str) -> None:
    forbidden, allowed = PERMISSIONS[name]
    state = SchedulerState(policy=PREEMPTS)
    tenants = d.TenantsChanged((TenantSpec("t"),), AMPLE)
    urgent = d.JobSubmitted(ask("urgent", ONE, priority=9))
    run_cycle(state, [tenants, *node_is(), RUNS, *forbidden, urgent], 1.0)
    for now in (2.0, 3.0):
        assert not run_cycle(state, [], now).preempted
    told = run_cycle(state, allowed, 4.0).preempted
    assert [(victim.job_id, victim.by) for victim in told] == [("busy", "urgent")]


def test_every_kind_of_delta_is_tried_or_can_make_no_room() -> None:
    lists = [*(cure for _, _, cure in CURES.values()), *(p for _, p in PERMISSIONS.values())]
    tried = {type(delta) for deltas in lists for delta in deltas}
    makes_no_room = {d.Checkpointed, d.MovesBefore, d.PodsRunning, d.RunTimesLearned}
    assert tried | makes_no_room == set(get_args(d.Delta)) - {d.NodeRemoved}


def random_node(rng: random.Random, name: str) -> Node:
    """Return a node on which any fact may be an obstacle."""
    return machine(
        name,
        gpu_model=rng.choice(("H100", "H100", "L4")),
        devices=tuple(
            Device(i, healthy=rng.random() < 0.9, memory_mib=rng.choice((40_000, 80_000)))
            for i in range(rng.choice((2, 4, 4)))
        ),
        nics=tuple(Nic(i, healthy=rng.random() < 0.8) for i in range(2)),
        topology=(leaf := rng.choice(("l0", "l1")), "s0" if leaf == "l0" else "s1", "x"),
        cpu_milli=rng.choice((1_000, 32_000)),
        memory_mib=rng.choice((1_000, 64_000)),
        max_pods=rng.choice((1, 110)),
        extended=rng.choice(({}, {"fpga": 1})),
        labels=rng.choice(({}, {"disk": "ssd"})),
        taints=rng.choice(((), (), (Taint("x"),))),
        schedulable=rng.random() < 0.8,
        zone=rng.choice(("", "", "inference")),
    )


def random_job(rng: random.Random, name: str) -> JobRequest:
    gpus = rng.choice((1, 1, 2, 4))
    pod_set = PodSetSpec(
        "pods",
        rng.choice((1, 1, 2, 3)),
        gpus,
        rng.choice((("H100",), ("L4",), ("H100", "L4"), ())),
        gpu_milli=rng.choice((1000, 400)) if gpus == 1 else 1000,
        cpu_milli=rng.choice((0, 2_000)),
        memory_mib=rng.choice((0, 2_000)),
        nics=rng.choice((0, 0, 1)),
        extended=rng.choice(({}, {}, {"fpga": 1})),
        nodes=NodeRules(rng.choice(({}, {}, {"disk": "ssd"}))),
        required_level=rng.choice(("", "", "leaf")),
        max_per_node=rng.choice((None, None, 1)),
    )
    kind = rng.choice((JobKind.TRAINING, JobKind.INFERENCE))
    return ask(name, pod_set, gang=rng.random() < 0.7, kind=kind)


def random_delta(rng: random.Random, state: SchedulerState, number: int) -> d.Delta:
    name = f"n{rng.randrange(5)}"
    running = sorted(state.running)
    job_id = rng.choice(running) if running else ""
    pods = sorted(state.jobs[job_id].pods) if job_id else []
    pod = rng.choice(pods) if pods else (0, 0)
    choices: list[d.Delta] = [
        d.NodeChanged(random_node(rng, name)),
        d.NodeRemoved(name),
        d.OtherPodChanged(f"u{rng.randrange(4)}", name, rng.choice((0, 1, 2)), 500, 500),
        d.OtherPodRemoved(f"u{rng.randrange(4)}"),
        d.PolicyChanged(
            Policy(
                strategies=dict.fromkeys(JobKind, rng.choice(STRATEGIES)),
                spare_nodes=rng.choice(({}, {"H100": 1})),
            )
        ),
        d.JobEnded(job_id, rng.random() < 0.5),
        d.JobRequeued(job_id, 0.0, (name,)),
        d.PodRequeued(job_id, *pod, 0.0),
        d.PodEnded(job_id, *pod),
        d.JobSubmitted(random_job(rng, f"j{number}")),
        *resized(rng, state),
    ]
    return rng.choice(choices)


def resized(rng: random.Random, state: SchedulerState) -> list[d.Delta]:
    """Change the number of pods of a job that waits or is not a gang."""
    records = (state.jobs[name] for name in sorted(state.jobs))
    jobs = [record.job for record in records if record.eq_class or not record.job.gang]
    if not jobs:
        return []
    job = rng.choice(jobs)
    first, *others = job.pod_sets
    least, size = first.min_count or 1, first.slice_size or 1
    first = replace(first, count=size * max(-(-least // size), rng.randint(1, 6) // size))
    return [d.JobChanged(replace(job, pod_sets=(first, *others)))]


def test_nobody_waits_who_could_be_placed_without_memory() -> None:
    """With ample quota and no reservations, exactly the jobs wait that a fresh look refuses too."""
    cured: Counter[type] = Counter()
    tried = seeds(6, usual=36)
    looked = sum(_history(random.Random(seed), cured) for seed in tried)
    assert looked > 800 * len(tried)
    kinds = {d.NodeChanged, d.OtherPodChanged, d.JobEnded, d.JobRequeued, d.PodEnded, d.PodRequeued}
    assert kinds <= {kind for kind, starts in cured.items() if starts}


def _history(rng: random.Random, cured: Counter[type]) -> int:
    state = SchedulerState()
    run_cycle(state, [d.TenantsChanged((TenantSpec("t"),), AMPLE)], 0.0)
    looked = 0
    for step in range(250):
        delta = random_delta(rng, state, step)
        now = 10.0 * step
        result = run_cycle(state, [delta], now)
        new = delta.job.id if isinstance(delta, d.JobSubmitted) else ""
        cured[type(delta)] += sum(start.job_id != new for start in result.started)
        for eq_class in state.queue.eq_classes:
            record = state.jobs[eq_class.head]
            looked += 1
            assert not fits_afresh(state, record), (step, delta, record.job, record.verdict)
    return looked


def fits_afresh(state: SchedulerState, record: JobRecord) -> bool:
    job, known = record.job, state.pools.models()
    return any(_fits(state, record, narrowed(job, models)) for models in choices(job, known))


def _fits(state: SchedulerState, record: JobRecord, job: JobRequest) -> bool:
    copy = state.cluster.copy()
    copy.infeasible = {}
    statement = Statement(copy)
    spares = {
        model: copy.index.pools[model].bits[copy.index.pools[model].top].bit_count()
        for model in state.policy.spare_nodes
        if model in copy.index.pools
    }
    placed = place_job(
        statement,
        job,
        strategy=state.strategy_of(job),
        counts=record.missing(),
        avoid=frozenset(record.avoided_nodes),
    )
    if isinstance(placed, PlacementFailure):
        return False
    return all(
        copy.index.pools[m].bits[copy.index.pools[m].top].bit_count()
        >= min(n, state.policy.spare_nodes[m])
        for m, n in spares.items()
    )
