"""Whom a preemption takes first: the ranks of units, and the weight of losing each.

A victim that comes back by its own right evicts the next job: a job within its tenant's guarantee
reclaims from borrowers that stayed, and a job of higher priority preempts jobs of lower priority.
Units are therefore ranked, and a unit of a higher rank goes only if the lower ranks cannot make
room. Jobs that would reclaim come last, then those of higher priority. A unit with many more GPUs
than are asked for ranks behind the others of its priority, because what it leaves would stand idle.
A preemptor that takes back what its tenant is guaranteed takes it, among equals, from the nearest
relatives first. Inside a rank the loss in GPU-seconds decides.
"""

from collections.abc import Iterable, Mapping

from scheduling.engine.preemption.candidates import EvictionCandidate
from scheduling.engine.preemption.cost import loss_by
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import MILLI, PreemptionKind

# A unit of up to this many times the GPUs that are asked for ranks as if it had just as many; one
# of up to the square of it ranks one step behind, and so on.
IDLE_FACTOR = 4

Rank = tuple[bool, int, int, int]  # reclaims, priority, how much too large, how far related
Loss = tuple[tuple[Rank, int], ...]


def rank(state: SchedulerState, claim: Claim, units: list[EvictionCandidate]) -> None:
    """Set `rank`, `weight` and `order` of the units.

    Any unit of a rank weighs more than all units of lower ranks together.
    """
    asked = sum(claim.asked.values())
    owners = _owners(state, claim, units, asked)
    far = _far(state, claim, units)
    own: dict[EvictionCandidate, int] = {}
    for unit in units:
        own[unit], job = _loss(unit), unit.record.job
        related = far.get(job.tenant, 0)
        unit.rank = (unit in owners, job.priority, _too_large(unit, asked), related)
    factor: dict[Rank, int] = {}
    below = 0
    for at in sorted({unit.rank for unit in units}):
        factor[at] = below + 1
        below += factor[at] * sum(loss for unit, loss in own.items() if unit.rank == at)
    for unit, loss in own.items():
        unit.weight = factor[unit.rank] * loss
        last_first = tuple([(-pod_set, -ordinal) for pod_set, ordinal in unit.pods])
        unit.order = (unit.weight, unit.record.job.id, last_first)


def loss_of(units: Iterable[EvictionCandidate]) -> Loss:
    """Return the loss by rank, the highest rank first; the plan with the smaller loss is better."""
    found: dict[Rank, int] = {}
    for unit in units:
        found[unit.rank] = found.get(unit.rank, 0) + _loss(unit)
    return tuple(sorted(found.items(), reverse=True))


def _loss(unit: EvictionCandidate) -> int:
    return loss_by(unit.cost, sum(unit.on.values()))


def _far(state: SchedulerState, claim: Claim, units: list[EvictionCandidate]) -> dict[str, int]:
    """Return by tenant the levels between the preemptor's account and the nearest shared account.

    Empty if the preemptor does not take back what its tenant is guaranteed.
    """
    if claim.borrows or PreemptionKind.RECLAIM not in state.policy.preemption or not claim.asked:
        return {}
    book, by = state.book, claim.record.job.tenant
    tenants = {unit.record.job.tenant for unit in units}
    return {t: min([book.distance(by, t, model) for model in claim.asked]) for t in tenants}


def _too_large(unit: EvictionCandidate, asked: int) -> int:
    held, steps = sum(unit.on.values()), 0
    most = asked * IDLE_FACTOR
    while 0 < most < held:
        most *= IDLE_FACTOR
        steps += 1
    return steps


def _owners(
    state: SchedulerState, claim: Claim, units: list[EvictionCandidate], asked: int
) -> set[EvictionCandidate]:
    """Return the units that would reclaim what they lost.

    Of each tenant these are the units beyond what it has borrowed, while another tenant borrows.
    """
    if PreemptionKind.RECLAIM not in state.policy.preemption:
        return set()
    of_tenant: dict[str, list[EvictionCandidate]] = {}
    for unit in units:
        of_tenant.setdefault(unit.record.job.tenant, []).append(unit)
    tenants = {tenant for tenant, _ in state.preemptible_jobs.groups()}.union(of_tenant)
    borrowed = {
        (tenant, model): _borrowed(state, tenant, model)
        for tenant in sorted(tenants)
        for model in claim.asked
    }
    debtors = {tenant for (tenant, _), milli in borrowed.items() if milli}
    found: set[EvictionCandidate] = set()
    for tenant, mine in of_tenant.items():
        if not debtors.difference((tenant,)):
            continue
        left = {model: borrowed[tenant, model] for model in claim.asked}
        for unit in sorted(mine, key=lambda u: _first(u, asked)):
            held = _held(unit)
            if unit.record.job.preempts and not any(left.get(model, 0) > 0 for model in held):
                found.add(unit)
            for model, milli in held.items():
                left[model] = left.get(model, 0) - milli
    return found


def _first(
    unit: EvictionCandidate, asked: int
) -> tuple[int, int, float, str, tuple[tuple[int, int], ...]]:
    job, gpus = unit.record.job, sum(unit.on.values()) / MILLI
    return job.priority, _too_large(unit, asked), unit.cost / gpus, job.id, unit.pods


def _held(unit: EvictionCandidate) -> Mapping[str, int]:
    held: dict[str, int] = {}
    for pod in unit.pods:
        model, milli = unit.record.pods[pod]
        held[model] = held.get(model, 0) + milli
    return held


def _borrowed(state: SchedulerState, tenant: str, model: str) -> int:
    """Return how much (milli) a tenant could lose and would still borrow when it came back."""
    book = state.book
    chain = book.chain(tenant, model)
    if not any(account.over > 0 for account in chain):
        return 0

    def still(lost: int) -> bool:
        with book.without([(tenant, {model: lost})]):
            return book.would_borrow(tenant, model, 1)

    low, high = 0, chain[0].used
    if not still(low):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        if still(middle):
            low = middle
        else:
            high = middle
    return low
