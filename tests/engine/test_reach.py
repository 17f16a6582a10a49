"""What no plan could change is known without making one; as soon as a plan could help, it is
made."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.preemption import preempt
from scheduling.engine.preemption import trial as planning
from scheduling.engine.types import (
    JobRequest,
    PodPlacement,
    PodSetSpec,
    Policy,
    PreemptionKind,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from tests.cases import NIGHTLY, seeds
from tests.engine.scenario import job, node

KINDS = (PreemptionKind.PRIORITY, PreemptionKind.RECLAIM)
POLICY = Policy(preemption=KINDS, min_runtime_s=60.0)
GPUS, NOW = 4, 1_000.0


class Plans:
    """Counts the plans that are made."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self._plan_for = preempt.plan_for
        patch.setattr(preempt, "plan_for", self._counted)

    def _counted(self, *args):
        self.made += 1
        return self._plan_for(*args)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    return Plans(monkeypatch)


def cluster(nodes: int = 4, **facts) -> SchedulerState:
    """Nodes of 4 GPUs in leaves of two; tenants a and b may use all of them."""
    state = SchedulerState(policy=POLICY)
    quotas = tuple(QuotaSpec(t, "H100", nodes * GPUS * 1000) for t in "ab")
    known: list[d.Delta] = [d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), quotas)]
    for n in range(nodes):
        known.append(d.NodeChanged(node(f"n{n}", GPUS, topology=(f"l{n // 2}",), **facts)))
    run_cycle(state, known, 0.0)
    return state


def on(n: int, *devices: int, milli: int = 1000) -> PodPlacement:
    return PodPlacement(0, 0, f"n{n}", devices, milli)


def runs(name: str, place: PodPlacement, *words: str, at: float = 0.0) -> d.JobRestored:
    shape = f"1x{len(place.devices) * place.milli / 1000:g} H100"
    return d.JobRestored(job(name, "a", shape, *words), (place,), at)


def holds(*words: str) -> list[d.Delta]:
    """On each of four nodes a job that must stay holds one GPU, and preemptible jobs hold three."""
    facts: list[d.Delta] = []
    for n in range(4):
        facts.append(runs(f"stays-{n}", on(n, 0), "fixed", *words))
        facts.append(runs(f"goes-{n}", on(n, 1, 2, 3)))
    return facts


# The running jobs, a job of p5 that waits in vain, what changes that, and who then makes room.
OBSTACLES = {
    "a GPU of each node": (holds(), "1x4 H100", (), [d.JobEnded("stays-2")], {"goes-2"}),
    "the CPU of a node": (
        holds("cpu_milli=100000"),
        "1x2 H100",
        ("cpu_milli=50000",),
        [d.JobEnded("stays-1")],
        {"goes-1"},
    ),
    "a group of the network": (
        holds(),
        "3x3 H100",
        ("required_level=leaf",),
        [d.NodeChanged(node("n2", GPUS, topology=("l0",)))],
        {"goes-0", "goes-1", "goes-2"},
    ),
    "nodes for replicas": (
        holds(),
        "5x1 H100",
        ("max_per_node=1",),
        [d.NodeChanged(node("n4", 1))],
        {f"goes-{n}" for n in range(4)},
    ),
    "a device for a share": (
        [runs(f"s{n}{i}", on(n, i, milli=600), "fixed") for n in range(4) for i in range(4)]
        + [runs(f"g{n}{i}", on(n, i, milli=400)) for n in range(4) for i in range(4)],
        "1x0.7 H100",
        (),
        [d.JobEnded("s12")],
        {"g12"},
    ),
    "a disruption budget": (
        [*holds(), *(d.DisruptionBudget(f"goes-{n}", 0) for n in range(4))],
        "2x3 H100",
        (),
        [d.DisruptionBudget("goes-3", 1)],
        {"goes-0", "goes-3"},
    ),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("what", OBSTACLES)
def test_no_plan_is_made_that_cannot_succeed(what: str, plans: Plans) -> None:
    facts, asks, words, cure, victims = OBSTACLES[what]
    state = cluster()
    run_cycle(state, facts, NOW)
    waits = job("waits", "b", asks, "p5", *words, at=NOW)
    assert not run_cycle(state, [d.JobSubmitted(waits)], NOW).preempted
    # One preemptible job ends and another starts in its place: neither changes anything.
    ends = next(it for it in facts if isinstance(it, d.JobRestored) and it.job.preemptible)
    for at in (NOW + 100, NOW + 200):
        run_cycle(state, [d.JobEnded(ends.job.id)], at)
        run_cycle(state, [replace(ends, started_at=at)], at)
        run_cycle(state, [], at + 60)
    assert plans.made == 0
    assert "waits" not in state.promised
    found = run_cycle(state, cure, NOW + 300).preempted
    assert {victim.job_id for victim in found} == victims
    assert plans.made == 1


def test_quota_that_refuses_whoever_goes_needs_no_plan(plans: Plans) -> None:
    state = cluster()
    own = tuple(QuotaSpec(t, "H100", 8_000, Sharing.ISOLATED) for t in "ab")
    facts = [
        d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), own),
        runs("other", on(0, 0, 1, 2, 3)),
    ]
    for n, name, *words in ((1, "low"), (2, "equal", "p5")):
        asked = job(name, "b", "1x4 H100", *words)
        facts.append(d.JobRestored(asked, (on(n, 0, 1, 2, 3),), 0.0))
    waits = job("waits", "b", "2x4 H100", "p5", at=NOW)
    run_cycle(state, [*facts, d.JobSubmitted(waits)], NOW)
    run_cycle(state, [d.JobEnded("other")], NOW + 1)
    assert plans.made == 0
    found = run_cycle(state, [d.JobEnded("equal")], NOW + 2).preempted
    assert {victim.job_id for victim in found} == {"low"}


def test_it_is_asked_again_when_what_keeps_a_node_has_run_long_enough(plans: Plans) -> None:
    state = cluster()
    facts = holds()
    facts += [runs("young", on(2, 0), at=NOW - 10), d.JobEnded("stays-2")]
    run_cycle(state, [*facts[:-2], facts[-1], facts[-2]], NOW)
    waits = job("waits", "b", "1x4 H100", "p5", at=NOW)
    result = run_cycle(state, [d.JobSubmitted(waits)], NOW)
    assert plans.made == 0
    assert result.next_at == NOW + 50
    assert not run_cycle(state, [], NOW + 49).preempted
    found = run_cycle(state, [], NOW + 50).preempted
    assert {victim.job_id for victim in found} == {"goes-2", "young"}


WORDS = (
    (), ("required_level=leaf",), ("max_per_node=1",), ("cpu_milli=20000",), ("pods",),
    ("memory_mib=30000",), ("pods", "max_per_node=1"), ("required_level=leaf", "slice_size=1"),
    ("required_level=leaf", "cpu_milli=9000"), ("preferred_level=leaf",), ("max_per_leaf=2",),
)  # fmt: skip
SHAPES = ("1x4", "2x4", "3x2", "4x1", "2x3", "6x1", "1x0.5", "3x0.5", "3x0.3", "2x2+1x1")


def crowd(rng: random.Random) -> list[d.Delta]:
    """Full and nearly full nodes of 32 cores and 64,000 MiB, used by whole GPUs and by shares. The
    tenants have too little quota for some jobs."""
    modes = list(Sharing)
    quotas = tuple(
        QuotaSpec(t, "H100", rng.choice((6_000, 12_000, 24_000)), rng.choice(modes)) for t in "ab"
    )
    facts: list[d.Delta] = [d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), quotas)]
    for n in range(6):
        left = list(range(GPUS))
        while left and rng.random() < 0.95:
            share = rng.choice((300, 500, 700)) if rng.random() < 0.3 else 1000
            size = 1 if share < 1000 else rng.randint(1, min(3, len(left)))
            devices, left = left[:size], left[size:]
            for part in range(1000 // share):
                pods = PodSetSpec(
                    "pods",
                    1,
                    size,
                    ("H100",),
                    gpu_milli=share,
                    cpu_milli=rng.choice((500, 4_000, 12_000)) // (1000 // share),
                    memory_mib=rng.choice((500, 8_000, 24_000)) // (1000 // share),
                )
                name = f"r{n}-{devices[0]}-{part}"
                asked = JobRequest(
                    name, rng.choice("ab"), 0.0, (pods,), preemptible=rng.random() < 0.75
                )
                at = NOW - rng.choice((10, 30, 300, 300))
                facts.append(d.JobRestored(asked, (on(n, *devices, milli=share),), at))
                if rng.random() < 0.15:
                    facts.append(d.DisruptionBudget(name, rng.choice((0, 1))))
    return facts


def crowded(seed: int) -> tuple[SchedulerState, JobRequest]:
    """Return a cluster, and a new job whose priority is above that of all running jobs."""
    rng = random.Random(seed)
    state = cluster(6, cpu_milli=32_000, memory_mib=64_000, max_pods=rng.choice((3, 5, 110)))
    run_cycle(state, crowd(rng), NOW)
    waits = job("waits", "b", f"{rng.choice(SHAPES)} H100", "p5", *rng.choice(WORDS), at=NOW)
    return state, replace(waits, required_level=rng.choice(("", "", "", "leaf")))


@pytest.mark.interpreted
def test_what_is_said_to_be_in_vain_is_never_planned_with_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[float] = []
    may_succeed_at = preempt.may_succeed_at

    def asked(state, claim, candidate, now):
        """Record the answer, but let every plan be tried."""
        said.append(may_succeed_at(state, claim, candidate, now))
        return now

    monkeypatch.setattr(preempt, "may_succeed_at", asked)
    plans = Plans(monkeypatch)
    succeeded = failed = in_vain = 0
    tried = seeds(400, usual=1200)
    for seed in tried:
        state, waits = crowded(seed)
        deltas: list[d.Delta] = [d.JobSubmitted(waits)]
        promised = -math.inf
        for at in (NOW, NOW + 30, NOW + 50):
            said.clear()
            plans.made = 0
            result = run_cycle(state, deltas, at)
            if result.started or not said:
                break
            if result.preempted:
                assert min(said) <= at, f"seed {seed}: {waits}"
                assert promised <= at, f"seed {seed}: {waits}"
                succeeded += 1
                break
            failed += plans.made > 0
            in_vain += plans.made > 0 and min(said) > at
            promised = min(said)
            deltas = []
    print(f"{succeeded} plans, {failed} failed, {in_vain} of them foreseen")
    assert succeeded > len(tried) / 4
    assert in_vain > 0.9 * failed > 0.45 * len(tried)


def test_where_units_are_too_many_to_try_all_nodes_that_hold_the_job_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, cost = Counter[int](), Counter[int]()
    tried = seeds(400, usual=1200)
    for seed in tried:
        for most in (planning.TRY_ALL_UNITS, 0):
            state, waits = crowded(seed)
            monkeypatch.setattr(planning, "TRY_ALL_UNITS", most)
            result = run_cycle(state, [d.JobSubmitted(waits)], NOW)
            monkeypatch.undo()
            found[most] += bool(result.preempted)
            cost[most] += sum(victim.cost_gpu_s for victim in result.preempted)
    tried_all = found.pop(planning.TRY_ALL_UNITS)
    print(f"{found[0]} of {tried_all}, {cost[0]:.0f} for {cost[planning.TRY_ALL_UNITS]:.0f} GPU-s")
    assert tried_all > len(tried) / 4
    assert found[0] >= (0.95 if NIGHTLY else 0.9) * tried_all
    assert cost[0] <= cost[planning.TRY_ALL_UNITS]


def test_a_gang_makes_room_where_there_is_cpu_beside_those_who_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "TRY_ALL_UNITS", 0)
    state = cluster()
    # By GPU count alone, n0 and n1 would be cheapest.
    facts = [runs(f"goes-{n}", on(n, 0, 1, 2), at=NOW - 800 + 100 * (n < 2)) for n in range(4)]
    facts += [runs(f"stays-{n}", on(n, 3), "fixed", "cpu_milli=100000") for n in range(2)]
    waits = job("waits", "b", "2x3 H100", "p5", "cpu_milli=50000", at=NOW)
    found = run_cycle(state, [*facts, d.JobSubmitted(waits)], NOW).preempted
    assert {victim.job_id for victim in found} == {"goes-2", "goes-3"}
