"""GPU shares by memory are exact: a device holds exactly as many pods as its MiB allow, beside
shares in thousandths, on GPUs of unlike memory, in any order."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine import deltas as d
from scheduling.engine.cluster.columns import Booking
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.placement.empty import pods_when_empty
from scheduling.engine.placement.explain import explain
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.preemption.reprieve import can_return
from scheduling.engine.statement import Statement
from scheduling.engine.types import (
    MILLI,
    JobKind,
    JobRequest,
    PodPlacement,
    PodSetSpec,
    Policy,
    PreemptionKind,
    QuotaSpec,
    TenantSpec,
)
from scheduling.engine.verdict import Reason
from tests.cases import examples
from tests.engine.fleet import cluster_of, gpu_node
from tests.engine.test_placement_machine import columns_of


def gpus(name, memory, count=1, model="A"):
    node = gpu_node(name, gpus=count, model=model)
    devices = tuple(replace(device, memory_mib=memory) for device in node.devices)
    return replace(node, devices=devices, max_pods=1_000)


def share(memory=0, milli=MILLI, count=1, **fields):
    return PodSetSpec("main", count, 1, ("A",), milli, memory, **fields)


def put(state, name, pod_set, strategy="", gang=True):
    statement = Statement(state)
    kind = JobKind.TRAINING if gang else JobKind.INFERENCE
    job = JobRequest(name, "t", 0.0, (pod_set,), gang=gang, kind=kind)
    found = place_job(statement, job, strategy=strategy or "e-binpack")
    if isinstance(found, PlacementFailure):
        statement.rollback()
        return None
    return found


FULL = [
    (24_576, 8_192, 3),
    (24_576, 4_096, 6),
    (46_068, 15_356, 3),
    (81_920, 1_024, 80),
    (81_559, 27_186, 3),
    (24_576, 24_575, 1),
    (24_576, 24_576, 1),
    (24_576, 12_289, 1),
    (24_576, 8_193, 2),
    (7, 1, 7),
]


@pytest.mark.parametrize(("memory", "asked", "fit"), FULL)
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_device_holds_as_many_as_its_memory(memory, asked, fit, strategy):
    state = cluster_of(gpus("n0", memory))
    before = columns_of(state)[1]
    for number in range(fit):
        (place,) = put(state, f"j{number}", share(asked), strategy)
        assert 0 < place.milli <= MILLI
    assert put(state, "more", share(asked), strategy) is None
    assert state.allocated_milli("A") <= MILLI
    assert pods_when_empty(gpus("n0", memory), share(asked)) == fit
    for number in range(fit):
        state.release_job(f"j{number}")
    assert (state.partial[0], state.remainders, state.free[0]) == ({}, {}, 1)
    assert columns_of(state)[1] == before


@pytest.mark.parametrize(("memory", "asked", "fit"), FULL)
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("gang", [True, False])
def test_a_job_of_as_many_pods_fills_its_devices(memory, asked, fit, strategy, gang):
    state = cluster_of(gpus("n0", memory, 2), gpus("n1", memory))
    found = put(state, "all", share(asked, count=3 * fit), strategy, gang)
    assert found is not None
    assert len(found) == 3 * fit
    assert put(state, "more", share(asked), strategy) is None


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_what_is_left_of_a_device_is_never_overfilled(strategy):
    state = cluster_of(gpus("n0", 24_576))
    assert put(state, "a", share(8_192), strategy)
    assert put(state, "b", share(8_192), strategy)
    assert put(state, "c", share(8_200), strategy) is None
    assert put(state, "d", share(milli=334), strategy) is None
    assert put(state, "e", share(milli=333), strategy)
    assert put(state, "f", share(24), strategy) is None  # a share is at least 1/1000


def test_pod_sets_of_unlike_shares_fill_unlike_devices_together():
    """8,192 + 16,384 of 24,576 and 15,356 + 30,712 of 46,068: the only solution, by brute force."""
    state = cluster_of(gpus("n0", 24_576), gpus("n1", 46_068))
    sets = (
        PodSetSpec("a", 1, 1, ("A",), gpu_memory_mib=30_712),
        PodSetSpec("b", 1, 1, ("A",), gpu_memory_mib=15_356),
        PodSetSpec("c", 1, 1, ("A",), gpu_memory_mib=16_384),
        PodSetSpec("d", 1, 1, ("A",), gpu_memory_mib=8_192),
    )
    found = place_job(Statement(state), JobRequest("x", "t", 0.0, sets), strategy="spread")
    assert not isinstance(found, PlacementFailure)
    assert [p.node for p in sorted(found)] == ["n1", "n1", "n0", "n0"]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("level", ["leaf", "spine", "hyper-node"])
@pytest.mark.parametrize("of_job", [True, False])
def test_a_group_is_as_large_as_what_all_its_gpus_hold_together(strategy, level, of_job):
    """GPUs of one model with unlike memory; the gang needs all of them."""
    sizes = {"n0": 24_576, "n1": 40_000, "n2": 46_068, "n3": 80_000}
    nodes = [
        replace(gpus(name, memory, 2), topology=("l0", "s0", ""), hyper_node="h0")
        for name, memory in sizes.items()
    ]
    far = replace(gpus("far", 80_000, 2), topology=("l1", "s1", ""), hyper_node="h1")
    fit = 2 * sum(memory // 20_000 for memory in sizes.values())  # n3 holds 8 of these
    for pods, fits in ((fit, True), (fit + 1, False), (9, True)):
        wish = {"required_level": level}
        asked = share(20_000, count=pods, **({} if of_job else wish))
        job = JobRequest("j", "t", 0.0, (asked,), **(wish if of_job else {}))
        state = cluster_of(*nodes, far)
        found = place_job(Statement(state), job, strategy=strategy)
        assert (not isinstance(found, PlacementFailure)) == fits, pods
        if fits:
            assert {p.node for p in found} <= set(sizes)
        else:
            told = explain(state, job, found).evidence
            assert told.get("best_group_pods", told.get("possible_pods")) == fit


ASKS = st.one_of(
    st.sampled_from((1_000, 333, 334, 500, 1)).map(lambda milli: share(milli=milli)),
    st.sampled_from((8_192, 8_200, 4_096, 15_356, 12_288, 24_576, 100)).map(share),
)
MEMORIES = (24_576, 46_068, 8_192)


@settings(max_examples=examples(150))
@given(
    st.lists(st.sampled_from(MEMORIES), min_size=1, max_size=3),
    st.lists(st.one_of(ASKS, st.integers(0, 30)), max_size=30),
    st.sampled_from(sorted(STRATEGIES)),
)
def test_a_pod_is_placed_iff_a_device_holds_it_exactly(memories, steps, strategy):
    """A number ends the pod that arrived that many steps before."""
    nodes = {f"n{at}": memory for at, memory in enumerate(memories)}
    state = cluster_of(*(gpus(name, memory, 2) for name, memory in nodes.items()))
    held = {}
    left = {(name, at): Fraction(1) for name in nodes for at in range(2)}

    def part(s, memory):
        if not s.gpu_memory_mib:
            return Fraction(s.gpu_milli, MILLI)
        return max(Fraction(s.gpu_memory_mib, memory), Fraction(1, MILLI))

    def end(name):
        p, took = held.pop(name)
        left[p.node, p.devices[0]] += took
        state.release_job(name)

    for number, step in enumerate(steps):
        if isinstance(step, int):
            if held:
                end(list(held)[step % len(held)])
            continue
        fits = any(part(step, nodes[name]) <= room for (name, _), room in left.items())
        found = put(state, f"j{number}", step, strategy)
        assert (found is not None) == fits
        if found is not None:
            (p,) = found
            took = part(step, nodes[p.node])
            assert Fraction(p.milli, MILLI) <= took
            left[p.node, p.devices[0]] -= took
            held[f"j{number}"] = p, took
        assert min(left.values()) >= 0
        assert columns_of(state.copy()) == columns_of(state)
        charged = sum(p.milli for p, _ in held.values())
        assert state.allocated_milli("A") == charged
    for name in list(held):
        end(name)
    assert state.allocated_milli("A") == 0
    assert not state.remainders
    assert not any(state.partial)
    assert set(state.free) == {2}


def cycles(quota, *nodes, preemption=()):
    state = SchedulerState()
    policy = Policy(preemption=preemption)
    deltas = [
        d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "A", quota),)),
        d.PolicyChanged(policy),
        *map(d.NodeChanged, nodes),
    ]
    run_cycle(state, deltas, 0.0)
    return state


@pytest.mark.parametrize(("memory", "asked", "fit"), [f for f in FULL if f[2] > 1])
@pytest.mark.parametrize("separate", [True, False])
def test_the_quota_of_a_gpu_lets_as_many_start(memory, asked, fit, separate):
    state = cycles(MILLI, gpus("n0", memory))
    pods = [1] * fit if separate else [fit]
    jobs = [
        JobRequest(f"j{at}", "a", float(at), (share(asked, count=count),))
        for at, count in enumerate(pods)
    ]
    run_cycle(state, [d.JobSubmitted(job) for job in jobs], 1.0)
    assert sum(len(record.pods) for record in state.running.values()) == fit
    assert state.book.account("a", "A").used == fit * asked * MILLI // memory
    assert state.cluster.allocated_milli("A") <= MILLI


@pytest.mark.parametrize("asked", [share(), share(24_576), share(16_384), share(milli=666)])
def test_who_holds_shares_by_memory_makes_way(asked):
    """Three jobs hold the GPU; together they hold all of it."""
    preemption = (PreemptionKind.PRIORITY,)
    state = cycles(10 * MILLI, gpus("n0", 24_576), preemption=preemption)
    low = [JobRequest(f"j{at}", "a", float(at), (share(8_192),)) for at in range(3)]
    run_cycle(state, [d.JobSubmitted(job) for job in low], 1.0)
    high = JobRequest("high", "a", 5.0, (asked,), priority=9)
    out = run_cycle(state, [d.JobSubmitted(high)], 1_000.0)
    gone = 3 if asked.gpu_memory_mib in (0, 24_576) and asked.gpu_milli == MILLI else 2
    assert len({p.job_id for p in out.preempted}) == gone


@pytest.mark.parametrize("memory", [8_192, 8_200])
def test_who_lacks_a_few_mib_is_told_that_gpus_lack(memory):
    """Two thirds are held; a third is free."""
    state = cycles(10 * MILLI, gpus("n0", 24_576))
    held = [JobRequest(f"j{at}", "a", float(at), (share(8_192),)) for at in range(2)]
    held.append(JobRequest("fill", "a", 3.0, (share(memory),)))
    out = run_cycle(state, [d.JobSubmitted(job) for job in held], 10.0)
    waiting = {w.job_id: w.verdict.reason for w in out.waiting}
    assert waiting == ({} if memory == 8_192 else {"fill": Reason.INSUFFICIENT_GPUS})


def test_places_are_kept_only_for_who_still_fits():
    state = cluster_of(gpus("n0", 24_576))
    third = JobRequest("third", "t", 0.0, (share(8_192),))
    (place,) = put(state, "third", third.pod_sets[0])
    assert put(state, "two", share(8_192, count=2))
    state.release_job("third")
    assert can_return(state, [Booking(place, third.pod_sets[0])])
    more = replace(third, pod_sets=(share(8_193),))
    assert not can_return(state, [Booking(place, more.pod_sets[0])])
    assert put(state, "little", share(25))
    assert not can_return(state, [Booking(place, third.pod_sets[0])])


@pytest.mark.parametrize("strategy", ["binpack", "e-binpack", "spread", "e-spread"])
def test_a_partly_used_device_is_looked_for_where_it_fits_exactly(strategy):
    """The used device of n0 has 8,192 MiB left, that of n1 8,276 MiB."""
    state = cluster_of(gpus("n0", 24_576, 2), gpus("n1", 24_576, 2))
    job = JobRequest("held", "t", 0.0, (share(16_384), share(16_300)))
    state.book(job, PodPlacement(0, 0, "n0", (0,), 666))
    state.book(job, PodPlacement(1, 0, "n1", (0,), 663))
    (place,) = put(state, "x", share(8_200), strategy)
    if strategy in ("binpack", "e-binpack"):
        assert (place.node, place.devices) == ("n1", (0,))
    assert len(state.held_by("x")) == 1
