"""`max_running` never makes a job wait for one of lower priority (see scenario.py)."""

import random

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    MILLI,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from tests.cases import seeds
from tests.engine.scenario import job, node, play

SCENARIOS = {
    "at its limit a tenant's higher job takes the place of its lower one": """
        nodes  H100: 8 8
        quota  a H100 16
        tenant a max_running=1
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x1 H100    -> starts
        at 10
          + high a 1x1 H100 p9 -> WaitingForPreemption
          low  -> preempted for high
        at 11
          gone low
          high -> starts
          low  -> WaitingForQuota running=1 max_running=1
    """,
    "not that of one as important as it": """
        nodes  H100: 8
        quota  a H100 8
        tenant a max_running=1
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + first  a 1x1 H100 p9 -> starts
        at 10
          + second a 1x1 H100 p9 -> WaitingForQuota running=1 max_running=1
    """,
    "without that kind of preemption it waits": """
        nodes  H100: 8
        quota  a H100 8
        tenant a max_running=1
        policy best-effort-fifo, preemption=backfill, min_runtime_s=0
        at 0
          + low  a 1x1 H100    -> starts
        at 10
          + high a 1x1 H100 p9 -> WaitingForQuota running=1 max_running=1
    """,
    "one that runs and gets more places counts once": """
        nodes  H100: 4 4 | L4: 4
        quota  a H100 16 | a L4 4 | b H100 4
        tenant a max_running=2
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  b 1x4 H100 -> starts
        at 10
          + web  a 2x4 H100 pods p9 -> starts 1 pod
          low  -> preempted for web
        at 20
          + next a 1x1 L4 -> starts
    """,
    "so it does at the limit of a queue": """
        nodes  H100: 4 4 | L4: 4
        quota  a H100 16 | a L4 4 | b H100 4
        queue  a/default max_running=2
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  b 1x4 H100 -> starts
        at 10
          + web  a 2x4 H100 pods p9 -> starts 1 pod
          low  -> preempted for web
        at 20
          + next a 1x1 L4 -> starts
    """,
    "the limit of a tenant above: the lowest of all below it goes": """
        nodes  H100: 8 8
        quota  dept H100 16 | a H100 8 | b H100 8
        tree   a < dept | b < dept
        tenant dept max_running=2
        policy strict-fifo, preemption=priority, min_runtime_s=0
        at 0
          + mid  a 1x1 H100 p5 -> starts
          + low  b 1x1 H100    -> starts
        at 10
          + high a 1x1 H100 p9 -> WaitingForPreemption
          low  -> preempted for high
    """,
    "limits at two levels: one job that counts at both is enough": """
        nodes  H100: 8 8
        quota  dept H100 16 | a H100 8 | b H100 8
        tree   a < dept | b < dept
        tenant a max_running=1
        tenant dept max_running=2
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + other b 1x1 H100    -> starts
          + low   a 1x1 H100 p1 -> starts
        at 10
          + high  a 1x1 H100 p9 -> WaitingForPreemption
          low   -> preempted for high
    """,
    "who makes room for it is also the one that stops, no second job": """
        nodes  H100: 8
        quota  a H100 8
        tenant a max_running=2
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + small a 1x1 H100    -> starts
          + large a 1x7 H100    -> starts
        at 10
          + high  a 1x7 H100 p9 -> WaitingForPreemption
          large -> preempted for high
    """,
    "a service stops with all its pods, an elastic gang too": """
        nodes  H100: 8 8
        quota  a H100 16
        tenant a max_running=2
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + service a 3x1 H100 pods  -> starts
          + elastic a 3x1 H100 min=1 p3 -> starts
        at 10
          + high    a 1x1 H100 p9 -> WaitingForPreemption
          service -> preempted 3 pods
        at 11
          gone service
          high    -> starts
        at 12
          + next    a 1x1 H100 p9 -> WaitingForPreemption
          elastic -> preempted 3 pods
    """,
    "on whichever GPU model it runs": """
        nodes  H100: 8 | L4: 4
        quota  a H100 8 | a L4 4
        tenant a max_running=1
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x1 L4      -> starts
        at 10
          + high a 1x1 H100 p9 -> WaitingForPreemption
          low  -> preempted for high
    """,
    "who may not be preempted keeps its place": """
        nodes  H100: 8
        quota  a H100 8
        tenant a max_running=1
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x1 H100 fixed -> starts
        at 10
          + high a 1x1 H100 p9 -> WaitingForQuota running=1 max_running=1
    """,
    "in its minimum run time it is protected, and the reason says until when": """
        nodes  H100: 8
        quota  a H100 8
        tenant a max_running=1
        policy best-effort-fifo, preemption=priority, min_runtime_s=60
        at 0
          + low  a 1x1 H100    -> starts
        at 10
          + high a 1x1 H100 p9 -> WaitingForQuota running=1 protected_until=60
        at 60
          high -> WaitingForPreemption
          low  -> preempted for high
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_limit_of_jobs(name: str) -> None:
    play(SCENARIOS[name])


TENANTS = ("dept", "a", "b", "c")


@pytest.mark.parametrize("seed", seeds(30))
def test_at_a_limit_nobody_waits_for_a_lower_priority(seed: int) -> None:
    """On a cluster with enough room, every job that counts at the limit of a waiting job and could
    make way alone has at least its priority; and no limit is ever exceeded."""
    rng = random.Random(seed)
    limits = {name: rng.choice((None, 1, 2, 3)) for name in TENANTS}
    parents = {"dept": None, "a": "dept", "b": "dept", "c": None}
    tenants = tuple(TenantSpec(n, parents[n], max_running=limits[n]) for n in TENANTS)
    policy = Policy(
        rng.choice(tuple(QueueingPolicy)),
        preemption=rng.choice(((PreemptionKind.PRIORITY,), tuple(PreemptionKind))),
        min_runtime_s=0,
        max_preemptions=1 << 30,
    )
    state = SchedulerState()
    nodes = [d.NodeChanged(node(f"n{i}", 8)) for i in range(16)]
    quotas = tuple(QuotaSpec(n, "H100", (600 if n == "dept" else 200) * MILLI) for n in TENANTS)
    deltas: list[d.Delta] = [*nodes, d.TenantsChanged(tenants, quotas), d.PolicyChanged(policy)]
    alive: list[str] = []
    below = {"dept": {"dept", "a", "b"}, "a": {"a"}, "b": {"b"}, "c": {"c"}}
    for step in range(60):
        if rng.random() < 0.3 and alive:
            deltas.append(d.JobEnded(alive.pop(rng.randrange(len(alive)))))
        else:
            words = [w for w in ("pods", "min=1") if rng.random() < 0.3]
            words.append(f"p{rng.choice((0, 3, 9))}")
            asks = rng.choice(("1x1 H100", "2x2 H100", "3x1 H100"))
            alive.append(f"j{step}")
            new = job(alive[-1], rng.choice(TENANTS), asks, *words, at=float(step))
            deltas.append(d.JobSubmitted(new))
        while True:
            result = run_cycle(state, deltas, step + 0.0)
            deltas = []
            for victim in result.preempted:
                if victim.whole:
                    deltas.append(d.JobRequeued(victim.job_id, step + 0.0))
                else:
                    deltas += [d.PodEnded(victim.job_id, *pod) for pod in victim.pods]
            if not deltas:
                break
        running = {
            n: [r for r in state.running.values() if r.job.tenant in below[n]] for n in below
        }
        for name, limit in limits.items():
            assert limit is None or len(running[name]) <= limit
        for name in alive:
            record = state.jobs[name]
            if record.started_at is not None:
                continue
            full = [
                running[n]
                for n in TENANTS
                if record.job.tenant in below[n] and len(running[n]) == limits[n]
            ]
            in_all = [r for r in running["dept"] + running["c"] if all(r in jobs for jobs in full)]
            spared = [r for r in in_all if r.job.id not in record.preempted_by]
            assert full, record.verdict
            assert all(r.job.priority >= record.job.priority for r in spared), (name, spared)
