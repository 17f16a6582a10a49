"""How long jobs wait: without their run time; a gang counts once, other jobs pod by pod."""

import random

import pytest

from metrics.definitions import Wait, job_waits
from metrics.simulate.results import summary
from scheduling.engine.types import JobKind, Policy, PreemptionKind
from scheduling.simulator.faults import faults_of
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Settings
from tests.simulator.runs import arrival, machines, simulation


class Watched(Simulation):
    """Records, independently of the observer, which pods have a place at each instant."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen = []
        self.finished = set()

    def _decide(self, now):
        super()._decide(now)
        self.note(now)

    def _end(self, payload):
        job, pod = self.jobs.get(payload[0]), payload[2:4]
        had = job is not None and pod in (job.places or ())
        super()._end(payload)
        if had and pod not in (job.places or ()):
            self.finished.add((payload[0], pod))

    def note(self, now):
        self.seen.append((now, {k: set(r.places or ()) for k, r in self.jobs.items()}))


@pytest.mark.parametrize("seed", range(6))
def test_waits_are_those_of_somebody_who_watches(seed):
    rng = random.Random(seed)
    nodes, arrivals, at = machines(4), [], 0.0
    for i in range(60):
        at += rng.choice((0.0, 4.0, 30.0))
        gang = rng.random() < 0.5
        arrivals.append(
            arrival(
                f"j{i:02}", at, rng.choice((40.0, 150.0, 400.0)), pods=rng.choice((1, 2, 3)),
                gpus=rng.choice((2, 4, 8)), priority=rng.choice((0, 0, 0, 5)), gang=gang,
                kind=JobKind.TRAINING if gang else JobKind.INFERENCE,
            )
        )  # fmt: skip
    run = simulation(
        arrivals,
        of=Watched,
        nodes=4,
        policy=Policy(preemption=(PreemptionKind.PRIORITY,)),
        settings=Settings(evict_s=3.0, stop_s=1500.0),
        faults=faults_of(nodes, per_1000_node_days=20_000.0, seed=seed),
    )
    outcome = run.run()
    found = summary(outcome, nodes)["waits"]["all"]
    columns = outcome.observer.jobs
    rows = {job_id: i for i, job_id in enumerate(columns.ids)}
    waits = []
    for one in arrivals:
        job = one.job
        end = columns.ended[rows[job.id]]
        end = outcome.ended_at if end != end else end
        units = [None] if job.gang else [(0, n) for n in range(job.pods)]
        for unit in units:
            total, since, first, has = 0.0, job.submitted_at, None, False
            for at, places in run.seen:
                if not job.submitted_at <= at <= end or job.id not in places:
                    continue
                has_now = bool(places[job.id]) if unit is None else unit in places[job.id]
                if has_now and not has:
                    total, first = total + at - since, at if first is None else first
                if has and not has_now:
                    since = at
                has = has_now
            has = has or (job.id, unit) in run.finished
            until_first = (end if first is None else first) - job.submitted_at
            waited = total if has else total + end - since
            waits.append(Wait(waited, has, until_first, first is not None))
    assert outcome.observer.preempted
    assert outcome.observer.requeues
    expected = job_waits(waits).row()
    assert found["first_start"] == pytest.approx(expected.pop("first_start"))
    assert {key: found[key] for key in expected} == pytest.approx(expected)
