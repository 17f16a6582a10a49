"""What backfill promises, on random histories: the head is never delayed, and nobody starves.

The simulator plays the shell: jobs arrive, start, end, lose their nodes and are preempted as the
engine decides.
"""

import random

import pytest

from scheduling.engine.decisions import CycleResult
from scheduling.engine.queueing.waiting import order_key
from scheduling.engine.types import Policy, PreemptionKind, QueueingPolicy
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Fault
from tests.simulator.runs import arrival, machines, rows, simulation

NODES = 6
# (pods, GPUs of each): from one GPU to the whole cluster
SIZES = ((1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (4, 8), (NODES, 8))


def history(rng, jobs, *, every, longest=200.0, declare=lambda _, duration: duration, **more):
    """Random gangs, on average one in `every` seconds."""
    at, found = 0.0, []
    for number in range(jobs):
        pods, gpus = rng.choice(SIZES)
        duration = float(rng.randint(1, int(longest)))
        wishes = {"declared_s": declare(rng, duration), "tenant": rng.choice("ab")}
        wishes |= {name: pick(rng) for name, pick in more.items()}
        found.append(arrival(f"j{number:03}", at, duration, pods=pods, gpus=gpus, **wishes))
        at += rng.choice((0, 1, 2 * every))
    return found


class Watched(Simulation):
    """A run that notes what each head was told: job -> the times of its reservations, in order."""

    def _carry_out(self, result: CycleResult, now: float) -> None:
        for told in result.reservations:
            self.told.setdefault(told.job_id, []).append(told.start_at)
        super()._carry_out(result, now)


@pytest.mark.parametrize("seed", range(8))
def test_the_head_starts_no_later_than_it_was_ever_told(seed: int) -> None:
    """Declared times hold and all jobs are of one priority: each reservation is kept."""
    rng = random.Random(seed)
    policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=rng.choice((0, 50, 10_000)))
    run = simulation(history(rng, 120, every=12), nodes=NODES, policy=policy)
    run.__class__, run.told = Watched, {}
    outcome = rows(run.run())
    assert all(state == "SUCCEEDED" for _, _, state in outcome.values())
    heads = overtakers = 0
    for job_id, times in run.told.items():
        known = [at for at in times if at is not None]
        heads += len(known) > 0
        started = outcome[job_id][0]
        assert all(started <= at + 1e-6 for at in known), (job_id, known, started)
        assert known == sorted(known, reverse=True), (job_id, known)
        overtakers += sum(
            other > job_id and start < started for other, (start, _, _) in outcome.items()
        )
    assert heads > 5
    assert overtakers > 5, "nothing was backfilled: the history proves nothing"


def liar(rng: random.Random, duration: float) -> float | None:
    """No run time, a right one, or one that is far too short or too long."""
    return rng.choice((None, duration, max(1.0, duration / 4), duration * 3))


@pytest.mark.parametrize("declared", [False, True], ids=["none declared", "wrongly declared"])
@pytest.mark.parametrize("seed", range(4))
def test_no_head_starves_under_a_stream_of_small_jobs(seed: int, declared: bool) -> None:
    """From when all before it have started, a job waits at most the threshold and a run time;
    where jobs declare three times what they run, also for the longest of these declared times."""
    rng = random.Random(seed)
    longest, after = 60.0, 30.0
    bound = after + longest + (3 * longest if declared else 0)
    declare = liar if declared else lambda *_: None
    policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=after)
    stream = history(rng, 250, every=4, longest=longest, declare=declare)
    outcome = rows(simulation(stream, nodes=NODES, policy=policy).run())
    head_at, waits = 0.0, []
    for job in sorted((a.job for a in stream), key=order_key):
        started, _, state = outcome[job.id]
        assert state == "SUCCEEDED"
        waits.append(started - max(head_at, job.submitted_at))
        head_at = max(head_at, started)
    assert max(waits) > after, "no head was ever blocked for long: the history proves nothing"
    assert max(waits) <= bound


@pytest.mark.parametrize("queueing", QueueingPolicy)
@pytest.mark.parametrize("seed", range(3))
def test_everything_ends_and_the_system_comes_to_rest(seed: int, queueing: QueueingPolicy) -> None:
    """With faults, priorities, lent quota and every kind of preemption: each job that could run
    has run to its end, once."""
    rng = random.Random(seed)
    policy = Policy(
        queueing,
        backfill_after_s=40,
        preemption=tuple(PreemptionKind),
        min_runtime_s=5,
        max_preemptions=3,
    )
    stream = history(
        rng,
        120,
        every=10,
        declare=liar,
        priority=lambda r: r.choice((0, 0, 0, 5, 9)),
        preemptible=lambda r: r.random() < 0.9,
    )
    names = [node.name for node in machines(NODES)]
    faults = [
        Fault(float(rng.randint(0, 1500)), rng.choice(names), float(rng.randint(10, 200)))
        for _ in range(8)
    ]
    # Each tenant is guaranteed half: the other half is borrowed, and comes back.
    half = NODES * 8 * 1000 // 2
    run = simulation(stream, nodes=NODES, policy=policy, quota=half, faults=faults)
    outcome = run.run()
    assert outcome.waiting == 0
    assert not outcome.never
    assert {state for _, _, state in rows(outcome).values()} == {"SUCCEEDED"}
    assert not run.state.jobs
    assert sum(outcome.observer.jobs.preemptions) > 0
