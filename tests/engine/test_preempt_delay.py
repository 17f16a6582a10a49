"""A job takes no place by priority or reclaim until it has waited as long as the policy says."""

import math

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import PodPlacement, Policy, PreemptionKind, QuotaSpec, TenantSpec
from scheduling.simulator.loop import Simulation
from tests.engine.scenario import job, node, play
from tests.simulator.runs import arrival, machines, rows

SCENARIOS = {
    "by priority: not before, exactly then, with nothing else happening": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts on n0
        at 1
          + next a 1x8 H100    -> starts on n1
        at 10
          + high a 1x8 H100 p9 submitted_at=10 -> InsufficientGpus preempts_from=40
        at 39
          high   -> InsufficientGpus
        at 40
          high   -> WaitingForPreemption
          next   -> preempted for high
    """,
    "by reclaim": """
        nodes  H100: 8
        quota  a H100 0 | b H100 8
        policy best-effort-fifo, preemption=reclaim, preempt_after_s=30, min_runtime_s=0
        at 0
          + debtor a 1x8 H100 -> starts borrowing 8
        at 10
          + owner  b 1x8 H100 submitted_at=10 -> InsufficientGpus preempts_from=40
        at 39.5
        at 40
          owner    -> WaitingForPreemption
          debtor   -> preempted for owner
    """,
    "room that comes by itself is taken at once, and nobody loses anything": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + low  a 1x8 H100 -> starts
        at 10
          + high a 1x8 H100 p9 submitted_at=10 -> InsufficientGpus
        at 20
          ends low
          high   -> starts
        at 40
    """,
    "who has waited for long enough waits for the protection of others as ever": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=500
        at 0
          + low   a 1x8 H100    -> starts
        at 10
          + high  a 1x8 H100 p9 submitted_at=10 -> InsufficientGpus preempts_from=40
        at 110
          high    -> InsufficientGpus protected_until=500
        at 500
          high    -> WaitingForPreemption
          low     -> preempted for high
    """,
    "it counts from the release": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts
          + high a 1x8 H100 p9
          hold high
        at 20
          release high
          high -> InsufficientGpus preempts_from=50
        at 49
        at 50
          high -> WaitingForPreemption
          low  -> preempted for high
    """,
    "it counts from the start time": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts
          + high a 1x8 H100 p9
          change high not_before=20
        at 20
          high -> InsufficientGpus preempts_from=50
        at 49
        at 50
          high -> WaitingForPreemption
          low  -> preempted for high
    """,
    "it counts from the end of the job before it": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + first a 1x8 H100 p9 -> starts
          + low   a 1x8 H100    -> starts
          + high  a 2x8 H100 p9 after=first -> OnHold
        at 15
          ends first
          high -> InsufficientGpus preempts_from=45
        at 44
        at 45
          high -> WaitingForPreemption
          low  -> preempted for high
    """,
    "a service that loses pods while it waits for others begins anew when they are gone": """
        nodes  H100: 4
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + low a 1x2 H100 fixed        -> starts
        at 100
          + svc a 3x1 H100 pods p5 submitted_at=100     -> starts 2 pods
        at 110
          + top a 1x1 H100 p9 submitted_at=50 -> WaitingForPreemption
          svc   -> preempted 1 pod
        at 112
          pod-gone svc 1
          top   -> starts
        at 115
          change low preemptible=yes
        at 130
        at 141
        at 142
          svc   -> WaitingForPreemption
          low   -> preempted for svc
    """,
    "a requeued job waits anew, from the end of its back-off": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + high a 1x8 H100 p9 -> starts
        at 50
          requeue high
          + low  a 1x8 H100    -> starts
        at 55
          high -> InsufficientGpus preempts_from=85
        at 84
        at 85
          high -> WaitingForPreemption
          low  -> preempted for high
    """,
    "who asks for something else does not wait anew": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + low  a 1x8 H100 p5 -> starts
        at 10
          + high a 1x8 H100 p1 submitted_at=10 -> InsufficientGpus
        at 35
          change high priority=9
        at 40
          high -> WaitingForPreemption
          low  -> preempted for high
    """,
    "whose promised places are lost does not wait anew": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + low  a 1x8 H100 -> starts on n0
        at 1
          + next a 1x8 H100 -> starts on n1
        at 10
          + high a 1x8 H100 p9 submitted_at=10 -> InsufficientGpus
        at 40
          high   -> WaitingForPreemption
          next   -> preempted for high
        at 45
          node-lost n1
          high   -> WaitingForPreemption
          low    -> preempted for high
    """,
    "who may preempt does not wait for one like it, ahead of it, that may not yet": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, preempt_after_s=30, min_runtime_s=0
        at 0
          + low    a 1x8 H100    -> starts on n0
        at 1
          + next   a 1x8 H100    -> starts on n1
        at 5
          + second a 1x8 H100 p5 submitted_at=5  -> InsufficientGpus
        at 30
          + first  a 1x8 H100 p9 submitted_at=30 -> InsufficientGpus
        at 35
          second   -> WaitingForPreemption
          next     -> preempted for second
        at 59
        at 60
          first    -> WaitingForPreemption
          low      -> preempted for first
    """,
    "what was backfilled past an overdue head makes room for it however short it has waited": """
        nodes  H100: 8 8
        quota  a H100 64
        policy backfill, backfill_after_s=20, preemption=backfill,priority, preempt_after_s=600
        at 0
          + r1   a 1x8 H100    -> starts on n0
          + r2   a 1x4 H100    -> starts on n1
        at 1
          + head a 2x8 H100 p9 submitted_at=1 -> InsufficientGpus preempts_from=601
          + fill a 1x4 H100    -> starts on n1
        at 21
          head   -> InsufficientGpus
        at 30
          ends r1
          head   -> InsufficientGpus
        at 70
          ends r2
          head   -> WaitingForPreemption
          fill   -> preempted for head
    """,
    "what an overdue head was not passed by it takes by priority, later": """
        nodes  H100: 8 8
        quota  a H100 64
        policy backfill, backfill_after_s=20, preemption=backfill,priority, preempt_after_s=60
        at 0
          + r1   a 1x8 H100    -> starts on n0
          + r2   a 1x4 H100    -> starts on n1
        at 1
          + head a 2x8 H100 p9 submitted_at=1 -> InsufficientGpus
          + fill a 1x4 H100    -> starts on n1
        at 60
        at 61
          head   -> WaitingForPreemption
          r1     -> preempted for head
          r2     -> preempted for head
          fill   -> preempted for head
    """,
    "a change of the policy holds for who waits, who is told at once": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=20
        at 0
          + low  a 1x8 H100    -> starts
        at 10
          + high a 1x8 H100 p9 submitted_at=10 -> InsufficientGpus protected_until=20
        at 15
          policy best-effort-fifo, preemption=priority, min_runtime_s=20, preempt_after_s=600
          high   -> InsufficientGpus preempts_from=610
        at 30
          policy best-effort-fifo, preemption=priority, min_runtime_s=20, preempt_after_s=40
          high   -> InsufficientGpus preempts_from=50
        at 40
          policy best-effort-fifo, preemption=reclaim, min_runtime_s=20, preempt_after_s=40
          high   -> InsufficientGpus asked=8
        at 60
          policy best-effort-fifo, preemption=priority, min_runtime_s=20, preempt_after_s=40
          high   -> WaitingForPreemption
          low    -> preempted for high
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_who_waits_before_it_preempts(name: str) -> None:
    play(SCENARIOS[name])


@pytest.mark.parametrize(
    ("kinds", "words", "told"),
    [
        ((PreemptionKind.PRIORITY,), ("p9",), True),
        ((PreemptionKind.PRIORITY,), (), False),  # outranks no job
        ((PreemptionKind.PRIORITY,), ("p9", "preempts=no"), False),
        ((PreemptionKind.RECLAIM,), ("p9",), False),  # no job borrows
        ((PreemptionKind.BACKFILL,), ("p9",), False),
        ((), ("p9",), False),
    ],
)
def test_only_who_could_preempt_somebody_is_told_from_when_on(
    kinds: tuple[PreemptionKind, ...], words: tuple[str, ...], told: bool
) -> None:
    state = SchedulerState(policy=Policy(preemption=kinds, preempt_after_s=1.5))
    facts = [
        d.NodeChanged(node("n0", 8)),
        d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)),
        d.JobSubmitted(job("low", "a", "1x8 H100")),
    ]
    run_cycle(state, facts, 100.0)
    waits = run_cycle(state, [d.JobSubmitted(job("it", "a", "1x8 H100", *words, at=200.0))], 200.0)
    (verdict,) = (told.verdict for told in waits.waiting)
    assert verdict.evidence.get("preempts_from") == (201.5 if told else None)
    text = "It may preempt others once it has waited for 1.5 seconds."
    assert (text in verdict.summary) == told


@pytest.mark.parametrize(
    ("submitted_at", "not_before", "at"),
    [(995.0, 0.0, 1025.0), (970.0, 0.0, 1000.0), (10.0, 999.0, 1029.0), (2000.0, 0.0, 1030.0)],
)
def test_a_scheduler_that_begins_anew_counts_from_the_submission_or_the_end_of_the_back_off(
    submitted_at: float, not_before: float, at: float
) -> None:
    state = SchedulerState(
        policy=Policy(preemption=(PreemptionKind.PRIORITY,), preempt_after_s=30.0)
    )
    low, high = job("low", "a", "1x8 H100"), job("high", "a", "1x8 H100", "p9", at=submitted_at)
    facts = [
        d.NodeChanged(node("n0", 8)),
        d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)),
    ]
    run_cycle(state, [*facts, d.JobSubmitted(low)], 0.0)
    found = run_cycle(state, [d.JobSubmitted(high, not_before)], 1000.0)
    if at > 1000.0:
        assert not found.preempted
        assert found.next_at == at
        found = run_cycle(state, [], math.nextafter(at, 0.0))
        assert not found.preempted
        found = run_cycle(state, [], at)
    assert [victim.by for victim in found.preempted] == ["high"]


def test_what_was_released_before_the_scheduler_began_counts_from_there() -> None:
    state = SchedulerState(
        policy=Policy(preemption=(PreemptionKind.PRIORITY,), preempt_after_s=30.0)
    )
    places = (PodPlacement(0, 0, "n0", tuple(range(8)), 1000),)
    facts = [
        d.NodeChanged(node("n0", 8)),
        d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)),
        d.JobRestored(job("low", "a", "1x8 H100"), places, 0.0),
        d.JobSubmitted(job("high", "a", "1x8 H100", "p9")),
        d.JobHistory("high", back_at=990.0),
        d.JobHistory("low", back_at=995.0),  # it waits for nothing
    ]
    found = run_cycle(state, facts, 1000.0)
    assert not found.preempted
    assert found.next_at == 1020.0
    assert run_cycle(state, [], 1020.0).preempted


@pytest.mark.parametrize(("after_s", "starts_at"), [(0.0, 100.0), (45.0, 145.0), (900.0, 500.0)])
def test_in_a_simulation_nothing_but_time_lets_it_preempt(after_s: float, starts_at: float) -> None:
    policy = Policy(
        preemption=(PreemptionKind.PRIORITY,), min_runtime_s=60.0, preempt_after_s=after_s
    )
    stream = [
        arrival("low", 0.0, 500.0, gpus=8, tenant="a"),
        arrival("high", 100.0, 50.0, gpus=8, priority=5, tenant="a"),
    ]
    tenants, quotas = (TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)
    run = Simulation(machines(1), stream, policy=policy, tenants=tenants, quotas=quotas)
    outcome = run.run()
    assert rows(outcome)["high"][0] == starts_at
    assert list(outcome.observer.jobs.preemptions) == [int(starts_at < 500.0), 0]
