"""Quota counts GPU shares by memory as exact fractions, for every tenant above: three thirds are
one GPU, whatever comes and goes, and on unlike GPUs the memory of the one taken counts."""

from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.quota.ledger import ledger
from scheduling.engine.types import (
    MILLI,
    JobRequest,
    Policy,
    PreemptionKind,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from tests.cases import examples
from tests.engine.test_shares_by_memory import ASKS, gpus, share

TREE = (TenantSpec("root"), TenantSpec("a", "root"), TenantSpec("b", "root"), TenantSpec("c", "a"))
MEMORIES = (24_576, 46_068, 8_192, 81_559)


def opened(quotas, *nodes, policy=None):
    state = SchedulerState()
    deltas = [d.TenantsChanged(TREE, quotas), d.PolicyChanged(policy or Policy())]
    run_cycle(state, [*deltas, *map(d.NodeChanged, nodes)], 0.0)
    return state


def exactly(pod_set, memory):
    if not pod_set.gpu_memory_mib:
        return Fraction(pod_set.gpu_milli)
    return max(Fraction(pod_set.gpu_memory_mib * MILLI, memory), Fraction(1))


def held_of(state, memory_of):
    """Return what each tenant and its subtree hold, in exact GPU-milli."""
    held = {tenant.id: Fraction(0) for tenant in TREE}
    for record in state.running.values():
        sets = record.job.pod_sets
        for p in state.cluster.placements_of(record.job.id):
            for tenant in state.book.lineage(record.job.tenant):
                held[tenant] += exactly(sets[p.pod_set], memory_of[p.node])
    return held


STEPS = st.lists(
    st.one_of(
        st.tuples(ASKS, st.sampled_from("abc"), st.integers(1, 3), st.booleans()),
        st.integers(0, 30),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=examples(120))
@given(
    st.lists(st.sampled_from(MEMORIES), min_size=1, max_size=4, unique=True),
    st.lists(
        st.sampled_from((0, 333, 500, 999, 1_000, 1_001, 2_000, 9_000)), min_size=4, max_size=4
    ),
    STEPS,
)
def test_an_account_has_used_the_thousandths_in_the_exact_sum(memories, sizes, steps):
    """Isolated tenants: jobs within the exact guarantees start, others wait. A number ends the job
    that arrived that many steps before."""
    memory_of = {f"n{at}": memory for at, memory in enumerate(memories)}
    nodes = [gpus(name, memory, 30) for name, memory in memory_of.items()]
    guaranteed = {tenant.id: size for tenant, size in zip(TREE, sizes, strict=True)}
    quotas = tuple(QuotaSpec(t, "A", size, Sharing.ISOLATED) for t, size in guaranteed.items())
    state = opened(quotas, *nodes)
    now, known = 0.0, []
    for number, step in enumerate(steps):
        now += 1.0
        if isinstance(step, int):
            if known:
                job = known.pop(step % len(known))
                run_cycle(state, [d.JobEnded(job.id)], now)
        else:
            ask, tenant, count, preemptible = step
            sets = (share(ask.gpu_memory_mib, ask.gpu_milli, count),)
            job = JobRequest(f"j{number}", tenant, now, sets, preemptible=preemptible)
            known.append(job)
            before = held_of(state, memory_of)
            run_cycle(state, [d.JobSubmitted(job)], now)
            fitting = [m for m in memories if m >= ask.gpu_memory_mib]
            if fitting:
                more = count * exactly(ask, min(fitting))
                line = set(state.book.lineage(tenant))
                # "a" has an account of its own beside its child's: what the child leaves of the
                # guarantee.
                own = guaranteed["a"] - guaranteed["c"]
                within = all(before[t] + more <= guaranteed[t] for t in line)
                if tenant == "a":
                    within &= before["a"] - before["c"] + more <= max(own, 0)
                if within:
                    assert job.id in state.running
        held = held_of(state, memory_of)
        for tenant, amount in held.items():
            account = state.book.account(tenant, "A")
            assert account.used == floor(amount)
            assert account.used <= guaranteed[tenant]
    for job in known:
        run_cycle(state, [d.JobEnded(job.id)], now + 1.0)
    for account in state.book.accounts():
        assert (account.used, account.beyond, account.non_preemptible, account.fixed_beyond) == (
            0,
            0,
            0,
            0,
        )
    assert not state.book.bookings
    assert not state.usage.tenants.now


@pytest.mark.parametrize(
    ("memory", "asked", "pods", "used"),
    [
        (24_576, 8_192, 3, 1_000),
        (81_920, 1_024, 80, 1_000),
        (81_920, 1_024, 1, 12),
        (24_576, 8_192, 2, 666),
    ],
)
@pytest.mark.parametrize("separate", [True, False])
def test_pods_on_gpus_of_their_own_add_up_too(memory, asked, pods, used, separate):
    quotas = (QuotaSpec("root", "A", 10 * MILLI), QuotaSpec("b", "A", 10 * MILLI))
    state = opened(quotas, *(gpus(f"n{at}", memory) for at in range(pods)))
    job = JobRequest(
        "j", "b", 0.0, (share(asked, count=pods),), strategy="spread" if separate else ""
    )
    run_cycle(state, [d.JobSubmitted(job)], 1.0)
    for tenant in ("b", "root"):
        assert state.book.account(tenant, "A").used == used


@settings(max_examples=examples(150))
@given(
    st.lists(st.sampled_from(MEMORIES), min_size=1, max_size=3),
    st.lists(ASKS, min_size=1, max_size=25),
    ASKS,
    st.integers(1, 3),
)
def test_who_preempts_frees_what_it_needs_and_no_more(memories, low, ask, count):
    """Exactly what it needs is freed, on the device."""
    memory_of = {f"n{at}": memory for at, memory in enumerate(memories)}
    nodes = [gpus(name, memory, 2) for name, memory in memory_of.items()]
    policy = Policy(preemption=(PreemptionKind.PRIORITY,))
    quotas = (QuotaSpec("root", "A", 99 * MILLI), QuotaSpec("b", "A", 99 * MILLI))
    state = opened(quotas, *nodes, policy=policy)
    jobs = [JobRequest(f"low{i}", "b", float(i), (asked,)) for i, asked in enumerate(low)]
    run_cycle(state, [d.JobSubmitted(job) for job in jobs], 50.0)
    places = {job.id: state.cluster.placements_of(job.id) for job in jobs}
    high = JobRequest("high", "b", 99.0, (replace(ask, count=count),), priority=9)
    out = run_cycle(state, [d.JobSubmitted(high)], 1_000.0)
    gone = [p.job_id for p in out.preempted]
    run_cycle(state, [d.JobRequeued(name, 9_999.0) for name in gone], 1_001.0)
    fitting = [m for m in memories if m >= ask.gpu_memory_mib]
    room = sum(2 * floor(MILLI / exactly(ask, m)) for m in fitting)
    assert ("high" in state.running) == (count <= room)
    held = dict.fromkeys(((name, at) for name in memory_of for at in (0, 1)), Fraction(0))
    for record in state.running.values():
        for p in state.cluster.placements_of(record.job.id):
            part = exactly(record.job.pod_sets[0], memory_of[p.node])
            held[p.node, p.devices[0]] += part
    assert max(held.values()) <= MILLI
    for name in gone:
        ((p,), (pod_set,)) = places[name], state.jobs[name].job.pod_sets
        assert held[p.node, p.devices[0]] + exactly(pod_set, memory_of[p.node]) > MILLI


@settings(max_examples=examples(150))
@given(
    st.lists(st.sampled_from(MEMORIES), min_size=1, max_size=3),
    st.lists(st.one_of(st.tuples(ASKS, st.integers(1, 4)), st.integers(0, 30)), max_size=30),
    st.sampled_from(("binpack", "e-binpack", "spread", "e-spread")),
)
def test_a_gang_of_shares_starts_iff_the_devices_hold_it_exactly(memories, steps, strategy):
    """This holds whatever the totals of a pool of unlike GPUs say. A number ends the job that
    arrived that many steps before."""
    memory_of = {f"n{at}": memory for at, memory in enumerate(memories)}
    quotas = (QuotaSpec("root", "A", 99 * MILLI), QuotaSpec("b", "A", 99 * MILLI))
    state = opened(quotas, *(gpus(name, memory, 2) for name, memory in memory_of.items()))
    left = {(name, at): Fraction(MILLI) for name in memory_of for at in (0, 1)}
    for number, step in enumerate(steps):
        if isinstance(step, int):
            if state.running:
                gone = sorted(state.running)[step % len(state.running)]
                for p in state.cluster.placements_of(gone):
                    held = exactly(state.jobs[gone].job.pod_sets[0], memory_of[p.node])
                    left[p.node, p.devices[0]] += held
                run_cycle(state, [d.JobEnded(gone)], float(number))
            continue
        ask, count = step
        name = f"j{number}"
        job = JobRequest(name, "b", float(number), (replace(ask, count=count),), strategy=strategy)
        room = sum(
            milli // exactly(ask, memory_of[node])
            for (node, _), milli in left.items()
            if memory_of[node] >= ask.gpu_memory_mib
        )
        run_cycle(state, [d.JobSubmitted(job)], float(number))
        assert (name in state.running) == (count <= room)
        if name not in state.running:
            run_cycle(state, [d.JobEnded(name)], float(number))
        for p in state.cluster.placements_of(name):
            left[p.node, p.devices[0]] -= exactly(ask, memory_of[p.node])


def test_a_borrower_owes_all_that_it_borrowed():
    quotas = (QuotaSpec("root", "A", 2_000), QuotaSpec("a", "A", 1_000), QuotaSpec("b", "A", 1_000))
    state = opened(quotas, gpus("n0", 24_576, 2))
    jobs = [JobRequest(f"j{i}", "b", float(i), (share(8_192),)) for i in range(6)]
    run_cycle(state, [d.JobSubmitted(job) for job in jobs], 10.0)
    assert len(state.running) == 6
    account = state.book.account("b", "A")
    assert (account.used, account.over) == (2_000, 1_000)
    owed = [loan.milli for loan in ledger(state.book) if loan.borrower == "b"]
    assert sum(owed) == 1_000
    assert all(loan.job_id for loan in ledger(state.book))


@pytest.mark.parametrize("asked", [(share(), 3), (share(16_384), 2), (share(8_192), 1)])
def test_a_lender_gets_its_guarantee_back_from_shares_by_memory(asked):
    pod_set, gone = asked
    quotas = (QuotaSpec("root", "A", 1_000), QuotaSpec("a", "A", 1_000), QuotaSpec("b", "A", 0))
    policy = Policy(preemption=(PreemptionKind.RECLAIM,))
    state = opened(quotas, gpus("n0", 24_576), policy=policy)
    jobs = [JobRequest(f"j{i}", "b", float(i), (share(8_192),)) for i in range(3)]
    run_cycle(state, [d.JobSubmitted(job) for job in jobs], 10.0)
    out = run_cycle(state, [d.JobSubmitted(JobRequest("back", "a", 20.0, (pod_set,)))], 1_000.0)
    assert len({p.job_id for p in out.preempted}) == gone
