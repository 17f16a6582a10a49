"""The forecast that follows the cluster says what a fresh what-if copy would say at every step."""

import random

import pytest

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.backfill.planned_start import expected_start
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.deltas import (
    JobEnded,
    JobRequeued,
    JobSubmitted,
    NodeChanged,
    PodEnded,
    TenantsChanged,
)
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.queue.job import Expected
from scheduling.engine.running import forecast
from scheduling.engine.statement import Statement
from scheduling.engine.types import (
    Device,
    JobKind,
    JobRequest,
    Node,
    PodSetSpec,
    Policy,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from tests.cases import seeds, some

NODES, GPUS = 12, 4


def afresh(state: SchedulerState, candidate: Candidate, now: float) -> Expected | None:
    """Return when and where the pods fit with the fewest ends: ends one more pod at a time on a
    copy."""
    models = {m for s in candidate.job.pod_sets for m in s.gpu_models}
    ends: dict[tuple[float, str, float], list[tuple[int, int]]] = {}
    for job_id, record in state.jobs.items():
        if record.started_at is None or record.job.declared_s is None:
            continue
        if not any(model in models for model, _ in record.pods.values()):
            continue
        for pod in record.pods:
            since = record.started_at if record.job.gang else record.placed_at[pod]
            due = since + record.job.declared_s
            ends.setdefault((max(now, due), job_id, due), []).append(pod)
    copy = state.cluster.copy()
    for (at, job_id, _), pods in sorted(ends.items()):
        for pod in pods:
            copy.release(job_id, *pod)
        statement = Statement(copy)
        placed = place_job(
            statement,
            candidate.job,
            strategy=state.strategy_of(candidate.job),
            counts=candidate.counts,
        )
        statement.rollback()
        if not isinstance(placed, PlacementFailure):
            # If several pods may end at any moment, the forecast takes the latest of their due
            # times.
            late = max((due for _, _, due in ends if due <= now), default=at)
            return Expected(late if at <= now else at, frozenset(p.node for p in placed))
    return None


def node(number: int, schedulable: bool = True) -> Node:
    return Node(
        f"n{number:02}",
        gpu_model="H100",
        devices=tuple(Device(i) for i in range(GPUS)),
        topology=(f"leaf-{number // 3}", f"spine-{number // 6}", "core"),
        cpu_milli=32_000,
        memory_mib=64_000,
        schedulable=schedulable,
    )


def request(rng: random.Random, number: int, now: float) -> JobRequest:
    gpus = rng.choice((1, 1, 2, 3, 4))
    pod_set = PodSetSpec(
        "main",
        rng.choice((1, 1, 2, 3, 6)),
        gpus,
        ("H100",),
        gpu_milli=rng.choice((1000, 300)) if gpus == 1 else 1000,
        cpu_milli=rng.choice((0, 0, 4_000)),
        required_level=rng.choice(("", "", "", "leaf", "spine")),
    )
    declared = None if rng.random() < 0.02 else rng.choice((5.0, 20.0, 60.0, 200.0))
    gang = rng.random() < 0.7
    return JobRequest(f"j{number:04}", "t", now, (pod_set,), gang=gang, declared_s=declared)


@pytest.mark.parametrize("strategy", some(["e-binpack", "binpack", "spread", "fragmentation"]))
@pytest.mark.parametrize("seed", seeds(3))
def test_following_says_what_a_fresh_copy_says(strategy: str, seed: int) -> None:
    rng = random.Random(seed)
    policy = Policy(queueing=QueueingPolicy.BACKFILL, strategies=dict.fromkeys(JobKind, strategy))
    state = SchedulerState(policy=policy)
    quota = QuotaSpec("t", "H100", 1000 * NODES * GPUS)
    run_cycle(
        state,
        [
            TenantsChanged((TenantSpec("t"),), (quota,)),
            *(NodeChanged(node(i)) for i in range(NODES)),
        ],
        0.0,
    )
    asked = found = 0
    for step in range(150):
        now = 3.0 * step
        running = sorted(state.running)
        deltas = [JobSubmitted(request(rng, step, now))]
        for name in running:
            draw = rng.random()
            if draw < 0.08:
                deltas.append(JobEnded(name))
            elif draw < 0.10:
                deltas.append(JobRequeued(name, now))
            elif draw < 0.15 and not state.jobs[name].job.gang and state.jobs[name].pods:
                deltas.append(PodEnded(name, *rng.choice(sorted(state.jobs[name].pods))))
        if rng.random() < 0.05:
            deltas.append(NodeChanged(node(rng.randrange(NODES), rng.random() < 0.7)))
        run_cycle(state, deltas, now)
        if strategy == "fragmentation" and not state.cluster.typical:
            continue  # each copy would learn the typical mix from its own remaining pods
        for eq_class in list(state.queue.eq_classes)[:3]:
            job = state.jobs[eq_class.head].job
            candidate = Candidate(job, tuple(s.count for s in job.pod_sets))
            expected = afresh(state, candidate, now)
            assert expected_start(state, candidate, now) == expected, (step, job)
            asked += 1
            found += expected is not None
    assert asked > 100
    assert found > 20


def test_what_nobody_asks_for_any_more_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MAX_UNREAD", 20)
    policy = Policy(queueing=QueueingPolicy.BACKFILL)
    state = SchedulerState(policy=policy)
    quota = QuotaSpec("t", "H100", 1000 * NODES * GPUS)
    nodes = [NodeChanged(node(i)) for i in range(NODES)]
    run_cycle(state, [TenantsChanged((TenantSpec("t"),), (quota,)), *nodes], 0.0)

    def job(name: str, count: int) -> JobRequest:
        return JobRequest(
            name, "t", 0.0, (PodSetSpec("main", count, GPUS, ("H100",)),), declared_s=60.0
        )

    run_cycle(state, [JobSubmitted(job("full", NODES - 1)), JobSubmitted(job("head", NODES))], 1.0)
    assert expected_start(state, Candidate(job("head", NODES), (NODES,)), 1.0) is not None
    run_cycle(state, [JobEnded("head")], 2.0)
    [followed] = state.cluster.followers
    for n in range(forecast.MAX_UNREAD + 1):
        run_cycle(state, [JobSubmitted(job(f"j{n}", 1))], 3.0 + n)
        run_cycle(state, [JobEnded(f"j{n}")], 3.5 + n)
    assert len(followed) > forecast.MAX_UNREAD
    run_cycle(state, [], 3.0 + forecast.MAX_UNREAD)
    assert (state.forecasts, state.cluster.followers) == ({}, [])
