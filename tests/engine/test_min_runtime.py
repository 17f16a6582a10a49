"""A job keeps its places for its tenant's minimum run time, or else for the policy's."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.preemption.candidates import Victims
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.types import (
    PodPlacement,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Settings, TimedChange
from tests.engine.scenario import job, node, play
from tests.simulator.runs import arrival, machines, rows

SCENARIOS = {
    "that of its tenant goes before the policy's, be it longer or shorter": """
        nodes  H100: 8 8 8
        quota  a H100 64 | b H100 64 | c H100 64
        tenant a min_runtime_s=300
        tenant b min_runtime_s=10
        policy best-effort-fifo, preemption=priority, min_runtime_s=60
        at 0
          + long  a 1x8 H100 -> starts on n0
          + short b 1x8 H100 -> starts on n1
          + usual c 1x8 H100 -> starts on n2
        at 1
          + one   c 1x8 H100 p9 -> InsufficientGpus
        at 10
          one     -> WaitingForPreemption
          short   -> preempted for one
          + two   c 1x8 H100 p9 -> InsufficientGpus
        at 60
          two     -> WaitingForPreemption
          usual   -> preempted for two
          + three c 1x8 H100 p9 -> InsufficientGpus
        at 299
          three   -> InsufficientGpus
        at 300
          three   -> WaitingForPreemption
          long    -> preempted for three
    """,
    "of several tenants above, the nearest that has one counts": """
        nodes  H100: 8 8
        tree   mid < top | leaf < mid | other < top
        quota  leaf H100 64 | other H100 64
        tenant top min_runtime_s=100
        tenant mid min_runtime_s=0
        policy best-effort-fifo, preemption=priority, min_runtime_s=500
        at 0
          + below leaf  1x8 H100 -> starts on n0
          + aside other 1x8 H100 -> starts on n1
        at 1
          + one   other 1x8 H100 p9 -> WaitingForPreemption
          below   -> preempted for one
          + two   other 1x8 H100 p9 -> InsufficientGpus
        at 99
        at 100
          two     -> WaitingForPreemption
          aside   -> preempted for two
    """,
    "lenders wait for it too": """
        nodes  H100: 8
        quota  a H100 0 | b H100 8
        tenant a min_runtime_s=300
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + debtor a 1x8 H100 -> starts borrowing 8
        at 200
          + owner  b 1x8 H100 -> InsufficientGpus
        at 300
          owner    -> WaitingForPreemption
          debtor   -> preempted for owner
    """,
    "what was backfilled keeps its places, too": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        tenant b min_runtime_s=90
        policy backfill, backfill_after_s=60, preemption=backfill, min_runtime_s=0
        at 0
          + r1   a 1x8 H100 -> starts on n0
          + r2   a 1x4 H100 -> starts on n1
          + head a 2x8 H100 -> InsufficientGpus
          + fill b 1x4 H100 -> starts on n1
        at 70
          ends r1
          ends r2
          head -> InsufficientGpus
        at 90
          head -> WaitingForPreemption
          fill -> preempted for head
    """,
    "a change holds for who runs": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=20
        at 0
          + low  a 1x8 H100    -> starts
        at 1
          + high a 1x8 H100 p9 -> InsufficientGpus
        at 10
          tenant a min_runtime_s=500
        at 20
          high -> InsufficientGpus
        at 100
          tenant a min_runtime_s=0
          high -> WaitingForPreemption
          low  -> preempted for high
    """,
    "a replica of a tenant with one of its own moves when it is over": """
        nodes  H100: 4 4
        quota  a H100 64
        tenant a min_runtime_s=500
        policy best-effort-fifo, consolidation=yes, min_runtime_s=0
        at 0
          + hold a 1x3 H100                     -> starts on n0
          + end  a 1x1 H100                     -> starts on n0
          + kept a 1x1 H100 pods kind=inference -> starts on n1
        at 400
          ends end
        at 499
        at 500
          kept -> moves 0 from n1 to n0
    """,
    "who waits for its end is told when that is": """
        nodes  H100: 8 8
        quota  a H100 8 | b H100 8
        tenant a min_runtime_s=300
        policy best-effort-fifo, preemption=reclaim,priority, min_runtime_s=0
        at 0
          + lent   a 1x8 H100    -> starts
          + other  a 1x8 H100    -> starts borrowing 8
        at 50
          + owner  b 1x8 H100    -> InsufficientGpus protected_until=300
          + second b 1x8 H100    -> InsufficientGpus asked=8
          + high   a 1x4 H100 p9 -> WaitingForQuota protected_until=300
        at 60
          tenant a min_runtime_s=400
          owner    -> InsufficientGpus protected_until=400
          high     -> WaitingForQuota protected_until=400
        at 70
          tenant a
          policy best-effort-fifo, preemption=reclaim,priority, min_runtime_s=500
          owner    -> InsufficientGpus protected_until=500
        at 80
          policy best-effort-fifo, preemption=reclaim,priority, min_runtime_s=90
          owner    -> InsufficientGpus protected_until=90
    """,
    "an overdue head takes who has run long enough soon, not who would lose least in an hour": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        tenant b min_runtime_s=3600
        policy backfill, backfill_after_s=10, preemption=backfill, min_runtime_s=60
        at 0
          + r1   a 1x4 H100 -> starts on n0
          + r2   a 1x4 H100 -> starts on n0
          + r3   a 1x4 H100 -> starts on n1
          + r4   a 1x4 H100 -> starts on n1
          + head a 1x8 H100 -> InsufficientGpus
        at 2
          ends r1
          + usual a 1x4 H100 -> starts on n0
        at 5
          ends r3
          + long b 1x4 H100 -> starts on n1
        at 30
          ends r2
          ends r4
          head  -> FragmentedCapacity
        at 61
        at 62
          head  -> WaitingForPreemption
          usual -> preempted for head
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_minimum_run_times(name: str) -> None:
    play(SCENARIOS[name])


@pytest.mark.parametrize(
    ("least", "passes"), [(None, True), (0.0, True), (60.0, True), (60.5, False), (3600.0, False)]
)
def test_who_is_protected_longer_than_the_policy_says_passes_no_overdue_head(
    least: float | None, passes: bool
) -> None:
    """Such a job could not be preempted when the head needs its place. The head waits for two
    nodes, one of which is free until 1000."""
    tenants = (TenantSpec("a"), TenantSpec("b", min_runtime_s=least))
    quotas = tuple(QuotaSpec(tenant.id, "H100", 64_000) for tenant in tenants)
    policy = Policy(
        QueueingPolicy.BACKFILL,
        backfill_after_s=10,
        preemption=(PreemptionKind.BACKFILL,),
        min_runtime_s=60.0,
    )
    stream = [
        arrival("before", 0.0, 1000.0, tenant="a"),
        arrival("head", 1.0, 100.0, pods=2, tenant="a"),
        arrival("small", 20.0, 5000.0, gpus=4, tenant="b"),
    ]
    outcome = Simulation(machines(2), stream, policy=policy, tenants=tenants, quotas=quotas).run()
    found = rows(outcome)
    assert found["head"][0] == 1000.0
    assert found["small"][0] == 1100.0  # its last start
    assert list(outcome.observer.jobs.preemptions) == [0, 0, int(passes)]


def test_a_job_that_a_change_lets_pass_starts_at_once() -> None:
    world = play("""
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        tenant b min_runtime_s=3600
        policy backfill, backfill_after_s=10, preemption=backfill
        at 0
          + before a 1x8 H100 -> starts
          + head   a 2x8 H100 -> InsufficientGpus
        at 20
          + small  b 1x4 H100 -> ReservedForHead
        at 21
          tenant b min_runtime_s=60
          small -> starts
    """)
    assert world.state.book.min_runtimes == {"b": 60.0}


def test_a_change_on_the_timeline_of_a_simulation() -> None:
    """A change takes effect at its instant, also for running jobs."""
    tenants = (TenantSpec("a", min_runtime_s=800.0), TenantSpec("b", "a"))
    quotas = (QuotaSpec("a", "H100", 64_000),)
    policy = Policy(preemption=(PreemptionKind.PRIORITY,))
    stream = [
        arrival("low", 0.0, 5000.0, gpus=8, tenant="b"),
        arrival("high", 10.0, 100.0, gpus=8, priority=5, tenant="a"),
    ]

    def start_of_high(changes: list[TimedChange]) -> float:
        run = Simulation(
            machines(1), stream, policy=policy, tenants=tenants, quotas=quotas, changes=changes
        )
        return rows(run.run())["high"][0]

    less = (TenantSpec("a", min_runtime_s=800.0), TenantSpec("b", "a", min_runtime_s=0.0))
    assert start_of_high([]) == 800.0
    assert start_of_high([TimedChange(200.0, d.TenantsChanged(less, quotas))]) == 200.0


KINDS = (PreemptionKind.PRIORITY, PreemptionKind.RECLAIM, PreemptionKind.BACKFILL)
RUNS = {  # the job, when which of its pods run, and when it becomes preemptible
    "a gang: since the last of its pods runs": ("2x4 H100", {20: [0], 100: [1]}, 160),
    "a service pod by pod": ("1x8 H100 pods", {100: [0]}, 160),
    "one that never runs: at its gang timeout": ("2x4 H100", {20: [0]}, 300),
    "one that runs at once": ("2x4 H100", {0: [0, 1]}, 60),
}


def told_of_runs(kind: PreemptionKind) -> SchedulerState:
    """Return one node, which `low` of tenant a is to fill and tenant b may take back."""
    policy = Policy(preemption=(kind,), min_runtime_s=60, gang_timeout_s=300, max_preemptions=1)
    quotas = (QuotaSpec("a", "H100", 0), QuotaSpec("b", "H100", 8_000))
    state = SchedulerState(policy=policy, told_of_runs=True)
    facts = [
        d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), quotas),
        d.NodeChanged(node("n0", 8)),
    ]
    run_cycle(state, facts, 0.0)
    return state


def preempted_at(
    state: SchedulerState, tells: dict[int, list[d.Delta]], until: int = 400
) -> int | None:
    """Return the first second with a victim, among those of `tells` and those at which the engine
    wants a cycle."""
    times = set(tells)
    at = 0.0
    while times:
        at = min(times)
        times.remove(at)
        result = run_cycle(state, tells.get(int(at), []), at)
        if result.preempted:
            return int(at)
        if result.next_at is not None and at < result.next_at <= until:
            times.add(result.next_at)
    return None


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("restart", [False, True])
def test_it_counts_from_when_all_pods_run(name: str, kind: PreemptionKind, restart: bool) -> None:
    asks, runs, expected = RUNS[name]
    low = job("low", "a", *asks.replace(" pods", ",pods").split(","))
    high = job("high", "b", "1x8 H100", "p9", at=1.0)
    state = told_of_runs(kind)
    tells: dict[int, list[d.Delta]] = {1: [d.JobSubmitted(high)]}
    for at, pods in runs.items():
        told = d.PodsRunning("low", float(at), tuple((0, ordinal) for ordinal in pods))
        tells.setdefault(at, []).append(told)
    if restart:
        size = 8 // low.pod_sets[0].count
        places = tuple(
            PodPlacement(0, i, "n0", tuple(range(i * size, (i + 1) * size)), 1000)
            for i in range(low.pod_sets[0].count)
        )
        since = {ordinal: float(at) for at, pods in runs.items() for ordinal in pods}
        running_at = tuple(since.get(p.ordinal) for p in places)
        restored = d.JobRestored(low, places, 0.0, running_at=running_at)
        tells = {120 if expected > 120 else 30: [restored, d.JobSubmitted(high)]}
    else:
        run_cycle(state, [d.JobSubmitted(low)], 0.0)
    assert preempted_at(state, tells) == expected


def test_without_a_minimum_nobody_is_protected_before_it_runs() -> None:
    state = told_of_runs(PreemptionKind.PRIORITY)
    policy = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0)
    low, high = job("low", "a", "1x8 H100"), job("high", "b", "1x8 H100", "p9")
    run_cycle(state, [d.PolicyChanged(policy), d.JobSubmitted(low)], 0.0)
    assert preempted_at(state, {1: [d.JobSubmitted(high)]}) == 1


def test_a_simulated_job_is_protected_since_it_runs() -> None:
    """Its pods start to run 100 s after they get their places."""
    policy = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=60)
    stream = [
        arrival("low", 0.0, 5000.0, gpus=8),
        arrival("high", 10.0, 100.0, gpus=8, priority=5),
    ]
    quotas = (QuotaSpec("a", "H100", 64_000),)
    run = Simulation(
        machines(1),
        stream,
        policy=policy,
        tenants=(TenantSpec("a"),),
        quotas=quotas,
        settings=Settings(bind_delay_s=100.0),
    )
    assert rows(run.run())["high"][0] == 160.0


def test_a_gang_that_grew_may_go_in_the_next_cycle() -> None:
    """The assumed run is over, so only this very cycle protects the new pods; the gang as a whole
    is protected from its start."""
    world = play("""
        nodes  H100: 4 4
        quota  a H100 8
        policy best-effort-fifo, preemption=priority, min_runtime_s=60
        at 0
          + other a 1x4 H100 -> starts
          + low   a 2x4 H100 min=1 -> starts 1 pod
        at 100
          ends other
          low -> starts 1 pod
    """)
    state, urgent = world.state, job("urgent", "a", "1x8 H100", "p9")
    run_cycle(state, [d.JobSubmitted(urgent, held=True)], 100.0)
    asked = {"H100": 8000}
    claim = Claim(state, state.jobs["urgent"], asked, asked, borrows=False, overdue=False)
    grew = Victims(state, claim, 100.0, frozenset({"low"}))
    assert not grew.units()
    assert grew.protected_until == 100.0
    assert [unit.whole for unit in Victims(state, claim, 100.0, frozenset()).units()] == [True]
