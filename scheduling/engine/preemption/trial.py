"""Choices of victims for one way to start a job, tried on a statement (paper 3.2.3).

At each topology level the cheapest choice by GPU count is looked for. Then the job is really placed
there, and a victim that still fits beside it keeps its place (a reprieve). Other choices are tried
in the same way, so that the record of a preemption tells what they would have cost.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.admission.hot_spares import idle_nodes, takes_spares
from scheduling.engine.admission.limits import jobs_to_stop, stops_enough
from scheduling.engine.admission.start import place_on
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import admits
from scheduling.engine.decisions import Alternative
from scheduling.engine.native import copied_by_fields
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.placement.pod_rules import devices_at, frees
from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.preemption.candidates import EvictionCandidate, bookings_of
from scheduling.engine.preemption.emptied_nodes import Emptied
from scheduling.engine.preemption.exact_solver import least_of, spots_of
from scheduling.engine.preemption.quota_relief import relieve, trial
from scheduling.engine.preemption.ranks import Loss, loss_of
from scheduling.engine.preemption.reprieve import can_return
from scheduling.engine.preemption.solver import Room, Scan, cheapest, others
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.running.holdings import HeldPod, Holdings, freed, row_of
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement
from scheduling.engine.types import MILLI, JobRequest, PodPlacement, PodSetSpec

# In percent: what a narrower topology level may cost, compared with the cheapest choice. Slices
# name the level that they need, so a narrower one is worth nothing to them.
NARROW_AT = 125
# With more eligible units than this, not all of them are evicted when no choice has sufficed.
TRY_ALL_UNITS = 1000
# How many other choices at the level of the plan are tried, the cheapest by count first.
OTHERS_TRIED = 2


@dataclass(slots=True)
class Plan:
    """Victims, and the places that the job then gets.

    `others`: choices that would do as well, out of `examined` that were tried. `returning`: victims
    that would evict somebody in turn.
    """

    candidate: Candidate
    placements: tuple[PodPlacement, ...]
    units: list[EvictionCandidate]
    others: tuple[Alternative, ...] = ()
    examined: int = 0
    returning: list[str] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """The GPU-seconds that all victims lose."""
        return sum(unit.cost for unit in self.units)

    @property
    def loss(self) -> Loss:
        """What plans are compared by."""
        return loss_of(self.units)

    @property
    def jobs(self) -> int:
        """How many jobs lose pods."""
        return len({unit.record.job.id for unit in self.units})


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """The cheapest victims found at one topology level; level "" is the whole pool.

    `first`: victims that go for quota; `weight` leaves them out if they go at every level. `rooms`:
    for each group looked at, the room of each pod set; the group of the victims comes first.
    """

    level: str
    weight: int
    first: list[EvictionCandidate]
    units: list[EvictionCandidate]
    rooms: list[list[Room]]


copied_by_fields(LevelChoice)


def plan_for(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    asked: dict[str, int],
    units: list[EvictionCandidate],
) -> Plan | None:
    """Return the plan that costs least, or up to a quarter more within a narrower level.

    `asked`: GPU-milli by GPU model. `units`: who may be evicted. The cluster is left unchanged.
    """
    first = _first(state, record, asked, units)
    if first is None:
        return None
    scopes = _scopes(state, record, candidate, units, first)
    if first:
        scopes = _by_places(state, record, candidate, asked, units, first, scopes)
    percent = 100 if any(s.slice_size for s in candidate.job.pod_sets) else NARROW_AT
    limit = min((scope.weight for scope in scopes), default=0) * percent // 100
    narrow = [scope for scope in scopes if scope.weight <= limit]
    dear = sorted((s for s in scopes if s.weight > limit), key=lambda s: s.weight)
    failed = 0
    for at, scope in enumerate(ordered := [*narrow, *dear]):
        plan = _try(state, record, _at_level(candidate, scope.level), [*scope.first, *scope.units])
        if plan is not None:
            choices = _other_choices(state, record, asked, units, scope.first, scope)
            choices += [(s.level, [*s.first, *s.units]) for s in ordered[at + 1 :]]
            return _compared(state, record, candidate, plan, scope.level, choices, failed)
        failed += 1
    if len(units) > TRY_ALL_UNITS:
        few = _of_few_nodes(state, candidate, units)
        if not few:
            return None
        units = list(dict.fromkeys((*first, *few)))
    plan = _try(state, record, candidate, units)
    if plan is not None:
        plan.examined = failed
    return plan


def _by_places(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    asked: dict[str, int],
    units: list[EvictionCandidate],
    first: list[EvictionCandidate],
    scopes: list[LevelChoice],
) -> list[LevelChoice]:
    """Return the choices, replaced at each level where choosing by places first is cheaper.

    A replacement takes the cheapest victims for places, and in addition those that have to go for
    quota; the original takes victims for quota first.
    """
    found = {scope.level: scope for scope in scopes}
    for scope in _scopes(state, record, candidate, units, []):
        rest = [unit for unit in units if unit not in scope.units]
        beside = _first(state, record, asked, rest, scope.units)
        if beside is None:
            continue
        weight = _weight([*scope.units, *beside]) - _weight(first)
        known = found.get(scope.level)
        if known is None or weight < known.weight:
            found[scope.level] = replace(scope, weight=max(weight, 0), first=beside)
    names = (*state.cluster.levels, HYPER_NODE, "")
    return sorted(found.values(), key=lambda scope: names.index(scope.level))


def _first(
    state: SchedulerState,
    record: JobRecord,
    asked: dict[str, int],
    units: list[EvictionCandidate],
    gone: list[EvictionCandidate] | None = None,
) -> list[EvictionCandidate] | None:
    """Return the cheapest units that let quota and limits allow the job, in addition to `gone`.

    None if no units do.
    """
    gone = gone or []
    first = relieve(state.book, record.job.tenant, asked, units, gone)
    to_stop = jobs_to_stop(state, record)
    if first is None or not to_stop:
        return first
    for unit in sorted(units, key=lambda u: u.order):
        if stops_enough(state, to_stop, _stopped([*gone, *first])):
            break
        tenant = unit.record.job.tenant
        short = [name for name in state.book.lineage(tenant) if name in to_stop]
        if unit.whole and unit not in first and short:
            first.append(unit)
    return first if stops_enough(state, to_stop, _stopped([*gone, *first])) else None


def _stopped(units: Iterable[EvictionCandidate]) -> list[str]:
    """Return the tenant of each job that stops."""
    return [unit.record.job.tenant for unit in units if unit.whole]


def could_suffice(
    state: SchedulerState, needs: dict[str, int], units: list[EvictionCandidate]
) -> bool:
    """Return whether what is free and what the units hold together cover the needs."""
    held: dict[str, int] = {}
    for unit in units:
        for pod in unit.pods:
            model, milli = unit.record.pods[pod]
            held[model] = held.get(model, 0) + milli
    return bool(units) and all(
        state.cluster.free_milli(m) + held.get(m, 0) >= milli for m, milli in needs.items()
    )


def _of_few_nodes(
    state: SchedulerState, candidate: Candidate, units: list[EvictionCandidate]
) -> list[EvictionCandidate]:
    """Return all units on cheap nodes that together hold the job without them."""
    cluster, held = state.cluster, Holdings()
    weight: dict[str, int] = {}
    rows: list[HeldPod] = []
    for unit in units:
        for node in unit.on:
            weight[node] = weight.get(node, 0) + unit.weight
        sets = unit.record.job.pod_sets
        for p in unit.places:
            rows.append(row_of(0.0, cluster.slot_of.get(p.node, -1), 0, p, sets[p.pod_set]))
    held.put("", rows)
    gone = freed([held], 0.0, len(cluster.names))
    nodes = set(Emptied(cluster, candidate, gone).least(weight))
    return [unit for unit in units if not nodes.isdisjoint(unit.on)]


def _other_choices(
    state: SchedulerState,
    record: JobRecord,
    asked: dict[str, int],
    units: list[EvictionCandidate],
    first: list[EvictionCandidate],
    scope: LevelChoice,
) -> list[tuple[str, list[EvictionCandidate]]]:
    """Return choices at the level of the plan: in other groups, or without one of the victims."""
    already = frozenset(first)
    found: list[list[EvictionCandidate]] = []
    for joint in scope.rooms[1:]:
        if (chosen := _of_rooms(joint, already)) is not None:
            found.append([*first, *chosen])
    for joint in scope.rooms[:1]:
        found += [[*first, *chosen] for chosen in others(joint, scope.units, already)]
    for unit in first[-1:]:
        rest = _first(state, record, asked, [u for u in units if u is not unit])
        if rest is not None:
            found.append(list(dict.fromkeys([*rest, *scope.units])))
    found.sort(key=lambda chosen: (_weight(chosen), len(chosen)))
    return [(scope.level, chosen) for chosen in found[:OTHERS_TRIED]]


def _compared(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    plan: Plan,
    level: str,
    choices: list[tuple[str, list[EvictionCandidate]]],
    failed: int,
) -> Plan:
    """Return the plan with its alternatives, or a cheaper alternative at the same level."""
    done = {frozenset(plan.units): (level, plan)}
    for at, units in choices:
        if frozenset(units) in done:
            continue
        other = _try(state, record, _at_level(candidate, at), units)
        if other is None:
            failed += 1
            continue
        done.setdefault(frozenset(other.units), (at, other))
        if at == level and other.loss < plan.loss:
            plan = other
    rest = [(at, other) for at, other in done.values() if not set(plan.units).issubset(other.units)]
    plan.others = tuple(
        Alternative(_words(at, at == level), other.jobs, other.cost) for at, other in rest
    )
    plan.examined = failed + len(rest)
    return plan


def _words(level: str, same: bool) -> str:
    if same:
        return "other victims"
    return f"within one {level}" if level else "anywhere in the pool"


def _at_level(candidate: Candidate, level: str) -> Candidate:
    job = candidate.job
    if not level or job.preferred_level or job.required_level:
        return candidate
    return candidate._replace(job=replace(job, preferred_level=level))


def _scopes(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    units: list[EvictionCandidate],
    first: list[EvictionCandidate],
) -> list[LevelChoice]:
    """Return the best choice at each level that could hold the job, the narrowest level first.

    `first`: units that go anyway.
    """
    already = frozenset(first)
    job = candidate.job
    sets = [(s, n) for s, n in zip(job.pod_sets, candidate.counts, strict=True) if s.gpus and n]
    if len(sets) == 1:
        levels = _levels(state, job, *sets[0])
    else:
        levels = (job.required_level,)
    avoid = candidate.avoid
    scans = [_scan(state, s, n, tuple(filter(None, levels)), units, avoid) for s, n in sets]
    spots = spots_of(state, record, sets, units, avoid)
    counted = _plain(sets) and not any(spot.shared for spot in spots or ())
    found = []
    for level in levels:
        if len(scans) == 1:
            groups = [[room] for room in scans[0].rooms(level)]
        else:
            groups = [[scan.room for scan in scans]]
        chosen = [(_of_rooms(joint, already), joint) for joint in groups]
        possible = [(units, joint) for units, joint in chosen if units is not None]
        rooms: list[list[Room]] = []
        taken: list[EvictionCandidate] | None = None
        if possible:
            best = min(range(len(possible)), key=lambda i: _weight(possible[i][0]))
            taken, joint = possible.pop(best)
            rooms = [joint, *(other for _, other in possible)]
        if spots is not None:
            exact = least_of(state, job, sets, spots, level, already)
            if exact is None:
                continue
            if taken is None or not counted or _weight(exact) < _weight(taken):
                taken = exact
        if taken is not None:
            found.append(LevelChoice(level, _weight(taken), first, taken, rooms))
    return found


def _plain(sets: list[tuple[PodSetSpec, int]]) -> bool:
    """Return whether rooms tell all that matters about where the pods may be."""
    s = sets[0][0]
    apart = s.slice_size or s.max_per_node or s.max_per_leaf
    devices = s.rules is not None and s.rules.devices
    beside = s.cpu_milli or s.memory_mib or s.nics or any(s.extended.values())
    return len(sets) == 1 and not (apart or beside or devices)


def _of_rooms(
    joint: list[Room], first: frozenset[EvictionCandidate]
) -> list[EvictionCandidate] | None:
    """Return the cheapest victims that make room for every pod set; None if none do."""
    chosen: list[EvictionCandidate] = []
    for room in joint:
        more = cheapest(room, first.union(chosen))
        if more is None:
            return None
        chosen += more
    return chosen


def _weight(units: list[EvictionCandidate]) -> int:
    return sum(unit.weight for unit in units)


def _levels(state: SchedulerState, job: JobRequest, s: PodSetSpec, count: int) -> tuple[str, ...]:
    """Return the levels with a large enough group, narrowest first, then "" if none is required."""
    required = job.required_level or ("" if s.slice_size else s.required_level)
    names = (*state.cluster.levels, HYPER_NODE)
    needs = count * state.pools.least_per_pod(s, s.gpu_models[0])
    wide = {n for at, n in enumerate(names) if _holds(state, s.gpu_models[0], at) >= needs}
    if required:
        return (required,) if required in wide else ()
    if count == 1:
        return ("",)
    preferred = {job.preferred_level, s.preferred_level}
    return (*(n for n in names if n in wide and (n != HYPER_NODE or n in preferred)), "")


def _holds(state: SchedulerState, model: str, at: int) -> int:
    return state.pools.largest_group(model, at) * MILLI


def _scan(
    state: SchedulerState,
    s: PodSetSpec,
    pods: int,
    levels: tuple[str, ...],
    units: list[EvictionCandidate],
    avoid: frozenset[str],
) -> Scan:
    cluster, model = state.cluster, s.gpu_models[0]
    milli = state.pools.milli_per_pod(s, model)
    names = (*cluster.levels, HYPER_NODE)
    number = {name: at for at, name in enumerate(names)}
    groups_of = state.pools.groups_of

    def free_of(name: str) -> int | None:
        slot = cluster.slot_of.get(name)
        node = None if slot is None else cluster.facts[slot]
        if slot is None or node is None or not cluster.usable[slot] or name in avoid:
            return None
        if node.gpu_model != model or not admits(node, s):
            return None
        return cluster.free[slot] * MILLI + (sum(cluster.partial[slot].values()) % MILLI)

    wanted = -(-milli // MILLI)
    idle = {}
    for slot, free in enumerate(cluster.free):
        if free >= wanted and (left := free_of(cluster.names[slot])) is not None:
            idle[cluster.names[slot]] = left
    scan = Scan(milli, pods, free_of, idle, levels, lambda at, n: groups_of[n][number[at]])
    scan.read(units)
    return scan


def _try(
    state: SchedulerState, record: JobRecord, candidate: Candidate, units: list[EvictionCandidate]
) -> Plan | None:
    """Evict, place, and let every unit return that still fits; then undo everything."""
    to_stop = jobs_to_stop(state, record)
    if to_stop and not stops_enough(state, to_stop, _stopped(units)):
        return None
    statement = Statement(state.cluster)
    returned: set[EvictionCandidate] = set()
    idle = idle_nodes(state.policy, state.cluster)
    held = {unit: tuple(bookings_of(state.cluster, unit)) for unit in units}
    with trial(state.book, units) as books:
        for unit in units:
            for pod in unit.pods:
                statement.evict((unit.record.job.id, *pod))
        placed = place_on(statement, state, candidate, candidate.avoid, idle)
        # For a job that is no gang, fewer pods may be placed, but nobody is evicted for fewer.
        if (
            isinstance(placed, PlacementFailure)
            or len(placed) < sum(candidate.counts)
            or books.refuses(record.job, state.pools, candidate)
        ):
            statement.rollback()
            return None
        for unit in sorted(units, key=lambda u: u.order, reverse=True):
            if not can_return(state.cluster, held[unit]):
                continue
            stay = (u for u in units if u is not unit and u not in returned)
            if to_stop and not stops_enough(state, to_stop, _stopped(stay)):
                continue
            books.give_back(unit)
            mark = statement.checkpoint()
            for booking in held[unit]:
                statement.put_back(unit.record.job.id, booking)
            refused = books.refuses(record.job, state.pools, candidate)
            refused = refused or not _have_devices(state.cluster, candidate.job, placed)
            if refused or takes_spares(state.policy, state.cluster, record.job, idle):
                statement.rollback(mark)
                books.take(unit)
                continue
            returned.add(unit)
    statement.rollback()
    return Plan(candidate, placed, [unit for unit in units if unit not in returned])


def _have_devices(cluster: ClusterState, job: JobRequest, placed: Iterable[PodPlacement]) -> bool:
    """Return whether the nodes have the devices that the pods claim there."""
    counts = Counter((p.node, p.pod_set) for p in placed)
    found = ((devices_at(job.pod_sets[index], node), n) for (node, index), n in counts.items())
    return all(of is None or frees(cluster, of, n) for of, n in found)
