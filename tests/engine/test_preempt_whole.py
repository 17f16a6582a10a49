"""No job loses a place for less than was requested, or without need; and on few nodes the loss is
the least possible, whichever devices pods share.

The oracle tries every choice of victims by placing the preemptor on what they leave.
"""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.admission.candidates import Candidate, ask_of
from scheduling.engine.admission.start import place_on
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.demand.never import demand_of, needs_of
from scheduling.engine.demand.shapes import narrowed
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.preemption.candidates import EvictionCandidate, Victims
from scheduling.engine.preemption.ranks import rank
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.preemption.trial import plan_for
from scheduling.engine.statement import Statement
from scheduling.engine.types import Policy, PreemptionKind, QuotaSpec, TenantSpec
from tests.cases import seeds
from tests.engine.scenario import job, node

NOW = 1_000.0
HELD = ("1x0.3 L4", "1x0.5 L4", "2x0.5 L4", "1x1 L4", "1x1 H100", "1x2 H100")
ASKED = ("2x1 L4", "1x2 L4", "2x2 H100", "1x2+1x1 H100+L4", "1x1+1x2 H100+L4", "3x1 L4")


def busy_cluster(rng: random.Random) -> SchedulerState:
    """Two nodes of each model, nearly full of small jobs of various ages and priorities."""
    state = SchedulerState(policy=Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0.0))
    quotas = tuple(QuotaSpec("t", model, 10**9) for model in ("H100", "L4"))
    nodes = [(f"{model}-{i}", model) for model in ("H100", "L4") for i in range(2)]
    facts: list[d.Delta] = [d.NodeChanged(node(name, 3, model)) for name, model in nodes]
    run_cycle(state, [*facts, d.TenantsChanged((TenantSpec("t"),), quotas)], 0.0)
    for n in range(16):
        words = [f"p{rng.choice((0, 0, 2))}", *rng.choice((("pods",), ()))]
        came = d.JobSubmitted(job(f"r{n}", "t", rng.choice(HELD), *words, at=float(n)))
        run_cycle(state, [came], 20.0 * n)
    waiting = [name for name, record in state.jobs.items() if record.started_at is None]
    over = [name for name in state.jobs if name not in waiting and rng.random() < 0.2]
    run_cycle(state, [d.JobEnded(name) for name in (*waiting, *over)], NOW - 1)
    return state


def question(
    state: SchedulerState, rng: random.Random
) -> tuple[Candidate, dict[str, int], list[EvictionCandidate]]:
    """Return the waiting job, how many of its pods are to be placed, and the units that may go for
    it."""
    gang = rng.random() < 0.5
    request = job("by", "t", rng.choice(ASKED), "p5", *(() if gang else ("pods",)), at=NOW)
    run_cycle(state, [d.JobSubmitted(request, 0.0, True)], NOW)
    record = state.jobs["by"]
    counts = tuple(s.count for s in request.pod_sets)
    candidate = Candidate(narrowed(request, ask_of(state, record).ways[0].models), counts)
    models = tuple(s.gpu_models[0] for s in candidate.job.pod_sets)
    asked = demand_of(request, models, counts, state.pools)
    needs = needs_of(request, models, counts, state.pools)
    claim = Claim(state, record, asked, needs, borrows=False, overdue=False)
    units = Victims(state, claim, NOW, frozenset()).units()
    units = [unit for unit in units if rng.random() < 0.8]
    rank(state, claim, units)
    return candidate, asked, units


def _choices(units: list[EvictionCandidate]) -> Iterator[tuple[EvictionCandidate, ...]]:
    """Yield all sets of units, the lightest first."""
    found = [some for n in range(len(units) + 1) for some in combinations(units, n)]
    return iter(sorted(found, key=_weight))


def _weight(units: tuple[EvictionCandidate, ...]) -> int:
    return sum(unit.weight for unit in units)


def makes_room(
    state: SchedulerState, candidate: Candidate, units: tuple[EvictionCandidate, ...]
) -> bool:
    statement = Statement(state.cluster)
    for unit in units:
        for pod in unit.pods:
            statement.evict((unit.record.job.id, *pod))
    placed = place_on(statement, state, candidate, frozenset())
    statement.rollback()
    return not isinstance(placed, PlacementFailure) and len(placed) == sum(candidate.counts)


@pytest.mark.parametrize("seed", seeds(240))
def test_all_that_was_asked_for_finds_room_at_the_least_loss(seed: int) -> None:
    rng = random.Random(seed)
    state = busy_cluster(rng)
    candidate, asked, units = question(state, rng)
    # Keep the number small enough to try every choice.
    units = sorted(units, key=lambda u: u.order)[:9]
    plan = plan_for(state, state.jobs["by"], candidate, asked, units)
    least = next((some for some in _choices(units) if makes_room(state, candidate, some)), None)
    assert (plan is None) == (least is None)
    if plan is not None and least is not None:
        assert len(plan.placements) == sum(candidate.counts)
        assert _weight(tuple(plan.units)) == _weight(least)


def test_the_clusters_have_victims_and_shared_devices() -> None:
    """The clusters must have both, or the other tests would prove nothing."""
    victims, shared = 0, 0
    for seed in range(20):
        rng = random.Random(seed)
        state = busy_cluster(rng)
        candidate, asked, units = question(state, rng)
        plan = plan_for(state, state.jobs["by"], candidate, asked, units)
        victims += plan is not None and bool(plan.units)
        shared += plan is not None and any(
            p.milli < 1000 for unit in plan.units for p in unit.places
        )
    assert victims > 5
    assert shared > 2
