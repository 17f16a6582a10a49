"""The machine of random steps through the cycle (cycles.py), with queues that come, change, are
held and released, and jobs that move between them. A scheduler that remembers decides as one that
tries every job."""

import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from scheduling.engine import deltas as d
from scheduling.engine.types import QueueSpec
from tests.cases import examples, histories
from tests.engine.cycles import HARD, SORTS, Cycles
from tests.engine.scenario import ASKS
from tests.engine.test_cycle_machine import _without_bounds  # noqa: F401

NAMES = ("default", "x", "y")


class QueueCycles(Cycles):
    queue_names = NAMES

    def __init__(self) -> None:
        super().__init__(leaves=False)
        self.queues: tuple[QueueSpec, ...] = ()

    @rule(seed=st.integers(0, 10**6))
    def change_queues(self, seed: int) -> None:
        """Set any queues of two tenants, each with any settings, or none at all."""
        rng = random.Random(seed)
        names = [(t, n) for t in "ab" for n in NAMES if rng.random() < 0.8] * (rng.random() < 0.9)
        self.queues = tuple(
            QueueSpec(
                tenant,
                name,
                weight=rng.choice((0.5, 1.0, 4.0)),
                rank=rng.choice((0, 0, 0, 1)),
                fifo=(order := rng.random()) < 0.2,
                fair_users=order > 0.7,
                held=rng.random() < 0.25,
                why=rng.choice(("", "", "Racks.")),
                max_running=rng.choice((None, None, None, 0, 2)),
                max_milli=rng.choice(({}, {}, {"H100": 9000}, {"L4": 500})),
            )
            for tenant, name in names
        )
        self.disturbed |= self.promised
        self.pending.append(d.QueuesChanged(self.queues))

    @rule(pick=st.integers(0, 99), to=st.sampled_from(NAMES))
    def move(self, pick: int, to: str) -> None:
        """Move a waiting job to another queue."""
        if name := self._some(pick):
            record = self.state.jobs.get(name)
            if record is None or record.started_at is not None or record.left:
                return
            self.disturbed.add(name)
            self.alive[name] = replace(self.alive[name], queue=to)
            again = d.JobSubmitted(self.alive[name], record.not_before, record.held)
            self.pending.append(again)

    @invariant()
    def what_queues_hold_is_what_their_jobs_hold(self) -> None:
        if self.pending:
            return
        queues = self.state.queues
        held: dict[tuple[str, str], dict[str, float]] = {}
        for record in self.state.jobs.values():
            for model, milli in record.pods.values():
                if milli and record.job.tenant in queues.tenants:
                    of = held.setdefault((record.job.tenant, record.job.queue), {})
                    of[model] = of.get(model, 0) + milli
        known = {n: {m: v for m, v in of.items() if v} for n, of in queues._holds.items()}
        assert {n: of for n, of in known.items() if of} == held

    @invariant()
    def classes_are_of_one_queue_that_is_not_held(self) -> None:
        if self.pending:
            return
        for eq_class in self.state.queue.eq_classes:
            jobs = [self.state.jobs[key.job_id].job for key in eq_class.jobs]
            assert {(j.tenant, j.queue) for j in jobs} == {(eq_class.tenant, eq_class.queue)}
            assert (eq_class.tenant, eq_class.queue) not in self.state.queues.held
        for name, record in self.state.jobs.items():
            if (aside := record.aside) is not None:
                of = record.job.tenant, record.job.queue
                assert of in self.state.queues.held
                assert any(aside is eq_class for eq_class in self.state.aside_of[of])
                assert any(key.job_id == name for key in aside.jobs)

    def teardown(self) -> None:
        """Release all queues and remove their limits."""
        self.queues = tuple(
            replace(q, held=False, max_running=None, max_milli={}) for q in self.queues
        )
        self.pending.append(d.QueuesChanged(self.queues))
        super().teardown()


TestQueueCycles = QueueCycles.TestCase
TestQueueCycles.settings = settings(
    max_examples=examples(20), stateful_step_count=30, deadline=None
)


# Faults that these seeds once exposed: turns, and the jobs that waited for them, relied on what
# queues held when the cycle began. Victims depended on when the cycle ran, for plans that placed
# fewer pods than requested, shared devices, or took pods that had just grown.
FOUND = (10, 5000000, 5000002, 5000007, 5000008, 5000009, 901401, 900087, 900888)


@pytest.mark.parametrize("seed", histories(6, FOUND))
def test_a_busy_cluster_with_queues_keeps_every_rule(seed: int) -> None:
    """Take many more steps than Hypothesis does, with the weights of a cluster in use. Every second
    history is long enough for queues to be owed what makes others wait."""
    rng = random.Random(seed)
    world = QueueCycles()
    for step in range(300):
        draw, pick = rng.random(), rng.randrange(100)
        if step % 100 == 0:
            world.switch_policy(step // 100 + seed, preempt=seed % 3 != 2, users=True)
        if step % 12 == 3:
            world.change_queues(rng.randrange(10**6))
        if draw < 0.35:
            world.submit(
                rng.choice(ASKS),
                rng.choice("abc"),
                rng.choice((0, 0, 5, 9)),
                rng.random() < 0.7,
                rng.random() < 0.05,
                rng.choice((0, 0, 0, 30)),
                rng.choice((0, 0, 20, 100)),
                rng.random() < 0.3,
                rng.choice((*SORTS, *HARD)),
            )
        elif draw < 0.45:
            world.end(pick)
        elif draw < 0.55:
            world.victim_is_gone(pick)
        elif draw < 0.6:
            world.move(pick, rng.choice(NAMES))
        elif draw < 0.64:
            rng.choice((world.requeue, world.hold_or_release, world.pod_ends, world.pod_fails))(
                pick
            )
        else:
            world.cycle(rng.choice((1, 60, 1800) if seed % 2 == 0 else (1, 10, 60)))
            world.no_device_holds_more_than_one_gpu()
            world.books_equal_what_is_placed()
            world.what_queues_hold_is_what_their_jobs_hold()
            world.classes_are_of_one_queue_that_is_not_held()
            world.no_job_is_lost_or_twice()
    world.teardown()
