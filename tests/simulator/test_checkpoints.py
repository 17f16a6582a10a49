"""Gangs that save their work: the engine knows of the checkpoints and prices losses by them."""

import random

import pytest

from scheduling.engine.types import Policy, PreemptionKind
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Settings
from tests.cases import seeds
from tests.simulator.runs import arrival, simulation

PRIORITY = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0)


class Priced(Simulation):
    """Adds up the losses that the engine expects of preemptions and moves."""

    cost_gpu_s = 0.0

    def _carry_out(self, result, now):
        for one in (*result.preempted, *result.moved):
            self.cost_gpu_s += one.cost_gpu_s
        super()._carry_out(result, now)


@pytest.mark.parametrize(("checkpoint_s", "victim"), [(None, "young"), (60.0, "saved")])
def test_who_has_just_saved_its_work_is_preempted_rather(checkpoint_s, victim):
    jobs = [
        arrival("saved", 0, 1000),
        arrival("young", 50, 1000),
        arrival("high", 65, 10, priority=9),
    ]
    settings = Settings(checkpoint_s=checkpoint_s)
    observer = simulation(jobs, policy=PRIORITY, settings=settings).run().observer
    assert [n for n, k in zip(observer.jobs.ids, observer.jobs.preemptions, strict=True) if k] == [
        victim
    ]


@pytest.mark.parametrize("seed", seeds(10, usual=20))
def test_the_engine_knows_what_is_lost_by_what_it_decides(seed):
    rng = random.Random(seed)
    jobs, at = [], 0.0
    for i in range(60):
        at += rng.expovariate(1 / 40)
        gpus, pods = rng.choice(((1, 1), (2, 1), (4, 1), (8, 1), (8, 2)))
        priority = rng.choice((0, 0, 0, 5, 9))
        jobs.append(
            arrival(f"j{i}", at, rng.expovariate(1 / 300), gpus=gpus, pods=pods, priority=priority)
        )
    policy = Policy(
        preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0, defrag_loss=rng.choice((0.0, 0.1))
    )
    settings = Settings(checkpoint_s=rng.choice((7.0, 45.0, 120.0)))
    run = simulation(jobs, policy=policy, nodes=3, settings=settings, of=Priced)
    outcome = run.run()
    assert sum(outcome.observer.jobs.preemptions) > 0
    assert sum(outcome.observer.jobs.lost_milli_s) / 1000 == pytest.approx(run.cost_gpu_s)
