"""Take thousands of random steps through the cycle (cycles.py)."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.cycle import SchedulerState
from scheduling.engine.lifecycle import reorganise
from scheduling.engine.preemption import preempt
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.types import PreemptionKind, QuotaSpec, Sharing
from tests.cases import examples, histories
from tests.engine.cycles import HARD, NODES, SORTS, TENANTS, Cycles
from tests.engine.scenario import ASKS


@pytest.fixture(autouse=True, scope="module")
def _without_bounds() -> Iterator[None]:
    """Lift the bound on plans per cycle, so that both schedulers decide alike: one that remembers
    failures has plans left for other jobs, and would decide differently. Moves are tried more often
    than usual. The scheduler that asks every job makes every plan, however hopeless, except with
    the compiled core, which calls itself directly (test_plans_left_out.py)."""
    may_succeed_at = preempt.may_succeed_at

    def asked(state: SchedulerState, claim: Claim, candidate: Candidate, now: float) -> float:
        if not state.memo.remembers:
            return now
        return may_succeed_at(state, claim, candidate, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preempt, "may_succeed_at", asked)
        patch.setattr(preempt, "PLANS_PER_CYCLE", 1 << 30)
        patch.setattr(reorganise, "LOOK_S", 5.0)
        yield


REPLICAS = (
    "1x1 H100", "1x2 H100", "1x3 H100", "1x8 H100", "1x1 L4", "2x1 L4", "1x0.5 L4", "2x1 H100|L4",
)  # fmt: skip

TestCycles = Cycles.TestCase
TestCycles.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)


# Faults that these seeds once exposed: a service whose pods had left waited for ever; what a job
# waited to borrow changed behind it; a job with promised places was missed by fairness, or counted
# as in the way; a foreign pod makes a spare node usable; a gang took places from the job for which
# it had given pods up.
FOUND = (4161, 6126, 41050, 6073, 41054, 9154)
# What a job was told depended on how often a cycle asked: a job came to wait for a limit as one
# behind it started; a turn given in the walk put its job before another's. Two replicas of one
# service moved at once, and the first one's place was kept for ever; a gang whose CPU exceeds that
# of all nodes together closed its pool while too few GPUs were free. While only new jobs were
# considered, three changes went unnoticed: those that only time brings; the end of a job that held
# nothing, at a job limit; and a job that closed its tenant's quota reaching its limit.
LATER = (
    *(683426, 106, 171, 703076, 494592, 611862, 4000050),
    *(900492, 900690, 900777, 901029),
)


SEEDS = histories(6, LATER + FOUND)
SEEN: dict[int, Counter[PreemptionKind]] = {}  # by seed, how many jobs lost places by each kind


@pytest.mark.parametrize("seed", SEEDS)
def test_a_busy_cluster_keeps_every_rule(seed: int) -> None:
    SEEN[seed] = history(seed)


def test_the_histories_preempt_by_every_kind() -> None:
    """The histories must cover every kind, or they would prove little; a single history may consist
    of jobs that never preempt."""
    seen = Counter[PreemptionKind]()
    for seed in SEEDS:
        seen += SEEN[seed] if seed in SEEN else history(seed)
        if len(seen) == len(PreemptionKind):
            break
    assert set(seen) == set(PreemptionKind)


def history(seed: int) -> Counter[PreemptionKind]:
    """Take many more steps than Hypothesis does, with the weights of a cluster in use. Return how
    many jobs lost places by each kind of preemption."""
    rng = random.Random(seed)
    sorts = SORTS if seed in FOUND else (*SORTS, *HARD)
    world = Cycles(leaves=seed not in FOUND)
    seen = Counter[PreemptionKind]()
    services = seed % 3 == 2  # mostly replicas, which may be moved
    count = 0
    for step in range(300):
        draw, pick = rng.random(), rng.randrange(100)
        if step % 120 == 0:
            users = seed not in FOUND
            world.switch_policy(step // 120 + seed, preempt=step % 360 != 240, users=users)
        if seed not in FOUND and step % 9 == 4:
            world.turns_fixed_or_not(pick)
        if seed not in FOUND and step % 20 == 7:
            world.protect_or_not(pick)
        if seed not in FOUND and step % 6 == 1:
            world.resize(pick, 1 + step // 6 % 9)
            world.surplus_is_gone(pick)
        if draw < (0.25 if services else 0.35):
            world.submit(
                rng.choice(REPLICAS if services else ASKS),
                rng.choice("abc"),
                rng.choice((0, 0, 5, 9)),
                rng.random() < (0.1 if services else 0.7),
                rng.random() < 0.05,
                rng.choice((0, 0, 0, 30)),
                rng.choice((0, 0, 20, 100)),
                rng.random() < 0.3,
                rng.choice(("kind=inference", rng.choice(sorts)) if services else sorts),
            )
        elif draw < 0.45:
            world.end(pick)
        elif draw < 0.6:
            world.victim_is_gone(pick)
        elif draw < 0.64:
            rng.choice((world.requeue, world.hold_or_release, world.pod_ends, world.pod_fails))(
                pick
            )
        elif draw < 0.65:
            world.budget(pick, rng.choice((None, 0, 1, 5)))
        elif draw < 0.655:
            world.others_come_or_go(rng.choice(sorted(NODES)), rng.choice((0, 0, 1, 3)))
        elif draw < 0.66:
            world.checkpoint(pick)
        elif draw < 0.665:
            world.device_breaks(rng.choice(sorted(NODES)), pick % 8)
        elif draw < 0.68:
            world.node_comes_or_goes(rng.choice(sorted(NODES)), rng.random() < 0.8)
        elif draw < 0.69:
            sizes = rng.choices((0, 4000, 8000, 12000), k=8)
            keys = [(t.id, m) for t in TENANTS for m in ("H100", "L4")]
            world.change_quotas(
                tuple(
                    QuotaSpec(*key, size, rng.choice(list(Sharing)))
                    for key, size in zip(keys, sizes, strict=True)
                ),
                rng.choice((None, None, None, 3)),
            )
        else:
            world.cycle(rng.choice((1, 10, 60)))
            world.no_device_holds_more_than_one_gpu()
            world.books_equal_what_is_placed()
            world.who_owes_whom_adds_up()
            world.no_job_is_lost_or_twice()
            world.what_is_exposed_is_what_runs()
            world.what_users_hold_is_what_their_jobs_hold()
            for victim in world.leaving[count:]:
                if victim.by:  # otherwise it was moved
                    seen[victim.kind] += 1
            count = len(world.leaving)
    world.teardown()
    return seen
