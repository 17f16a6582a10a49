"""Turns: places that are kept for a job because its tenant, user or queue comes next.

If every job that fits passes a blocked job, small jobs take each GPU that becomes free before a
large one finds room, whatever the shares are. Kant therefore keeps nodes, for each GPU model, for
the first job in the order that finds no room, until that job starts. It does so only if the tenant,
with the job, holds no more for its weight than the tenant that would pass it. Inside a tenant with
several queues the same holds for queues.

Kant keeps the nodes that will have room first when jobs of others end, by declared run times or by
how long such jobs usually go on. If possible it waits only for jobs of tenants that hold more. If a
queue is several jobs below its part, Kant keeps nodes for several jobs.
"""

from scheduling.engine.admission.candidates import Candidate, ask_of, candidates
from scheduling.engine.admission.start import place_on
from scheduling.engine.cluster.lifetimes import SHORTEST_S, mean_left
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.queue.fair_share import User
from scheduling.engine.queue.job import JobRecord, Turn
from scheduling.engine.queue.standings import Standing, Standings
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement

# Seconds until a job is tried again for which no nodes would ever have room.
IN_VAIN_S = 60.0
# For at most this many jobs of a queue nodes empty at once: each such node is partly idle
# meanwhile.
MOST_AT_ONCE = 4

_End = tuple[float, str, list[tuple[int, int]]]  # when, the job, its pods that end then


def comes_before(
    state: SchedulerState, standings: Standings | None, record: JobRecord, by: JobRecord
) -> bool:
    """Return whether Kant keeps places for the job from the job `by`.

    Compare their branches at the point where their paths through the tree part: that of `record`,
    together with the job, may hold no larger share than that of `by` holds now. Without fair share
    (`standings` is None) only the queues of one tenant are compared, not tenants.
    """
    tenant = record.job.tenant
    if tenant == by.job.tenant and tenant in state.queues.ordered:
        starts = [start for way in ask_of(state, record).ways for start in way.starts]
        return any(state.queues.comes_before(record.job, start, by.job) for start in starts)
    if standings is None:
        return False
    mine, theirs = _path(standings, record), _path(standings, by)
    for at, other in zip(mine, theirs, strict=False):
        if at is not other:
            starts = [start for way in ask_of(state, record).ways for start in way.starts]
            return any(standings.with_more(at, start) <= other.share for start in starts)
    return False


def _path(standings: Standings, record: JobRecord) -> list[Standing]:
    path = standings.path(record.job.tenant)
    if standings.of_users:
        path.append(standings.of(record.job.tenant, record.job.user))
    return path


def stands(state: SchedulerState, turn: Turn, now: float) -> bool:
    """Return whether the nodes of the turn need not be chosen anew."""
    return now < turn.until and turn.chosen_by == state.memo.nodes


def choose(
    state: SchedulerState,
    standings: Standings | None,
    record: JobRecord,
    taken: frozenset[str],
    now: float,
) -> Turn:
    """Return the nodes that will have room for the job first, without those `taken` by jobs ahead.

    The turn has no nodes if none will ever have room.
    """
    facts, avoid = state.memo.nodes, taken.union(record.avoided_nodes)
    for candidate in candidates(state, record, frozenset()):
        ends = _ends(state, {m for s in candidate.job.pod_sets for m in s.gpu_models}, now)
        for ending in _to_wait_for(state, standings, record, ends):
            nodes, ended = _first_fit(state, candidate, avoid, ending)
            if nodes:
                last = ending[ended - 1][0] if ended else now
                nodes |= _for_more(state, record, candidate, avoid | nodes, ending)
                return Turn(nodes, max(last, now + SHORTEST_S), facts)
    return Turn(frozenset(), now + IN_VAIN_S, facts)


def _to_wait_for(
    state: SchedulerState, standings: Standings | None, record: JobRecord, ends: list[_End]
) -> list[list[_End]]:
    """Return sets of ends to choose the nodes by, the best set first.

    1. If only tenants and users are compared: ends of jobs whose tenant (or user) holds more than
       this one would. If the tenant orders its queues: ends of jobs in its other queues, from which
       the turn is taken.
    2. All ends but those of its own tenant or queue. What these leave goes to the job anyway.
    3. All ends.
    """
    others = [end for end in ends if not _alike(state, record, state.jobs[end[1]])]
    if record.job.tenant in state.queues.ordered:
        own = [end for end in others if state.jobs[end[1]].job.tenant == record.job.tenant]
        return [own, others, ends]
    more: dict[User, bool] = {}
    for _, job_id, _ in ends:
        by = state.jobs[job_id]
        user = (by.job.tenant, by.job.user)
        if user not in more:
            more[user] = comes_before(state, standings, record, by)
    of_more = [end for end in ends if more[(job := state.jobs[end[1]].job).tenant, job.user]]
    return [of_more, others, ends]


def _for_more(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    avoid: frozenset[str],
    ends: list[_End],
) -> frozenset[str]:
    """Return more nodes if the queue is several jobs of the class below its part.

    These jobs then need not wait for one node after the other.
    """
    starts = [start for way in ask_of(state, record).ways for start in way.starts]
    if record.eq_class is None or not starts:
        return frozenset()
    jobs = min(state.queues.missed(record.job, starts[0]), len(record.eq_class.jobs), MOST_AT_ONCE)
    found = frozenset[str]()
    for _ in range(jobs - 1):
        nodes, _ = _first_fit(state, candidate, avoid | found, ends)
        if not nodes:
            break
        found |= nodes
    return found


def _alike(state: SchedulerState, record: JobRecord, other: JobRecord) -> bool:
    """Return whether both jobs are of one tenant, and of one queue if it orders its queues."""
    mine, theirs = record.job, other.job
    if mine.tenant != theirs.tenant:
        return False
    return mine.queue == theirs.queue or mine.tenant not in state.queues.ordered


def _ends(state: SchedulerState, models: set[str], now: float) -> list[_End]:
    """Return when running jobs that hold GPUs of these models are expected to end, in order.

    On each node, jobs that declare nothing are taken to end one after the other, the last of them
    later than its own mean. A node with few such jobs left is therefore whole sooner than a node
    with many, and is not given up for it.
    """
    ends: list[_End] = []
    means: dict[str, list[tuple[float, str, int]]] = {}  # by node, of what declares nothing
    for job_id, record in state.running.items():
        pods = [pod for pod, (model, _) in sorted(record.pods.items()) if model in models]
        groups = [pods] if record.job.gang else [[pod] for pod in pods]
        places = state.cluster.held_by(job_id)
        for group in groups if pods else ():
            age, declared = now - record.placed_since(group[0]), record.job.declared_s
            left = mean_left(declared, age)
            if declared is None:
                for node in {places[pod].placement.node for pod in group}:
                    means.setdefault(node, []).append((left, job_id, len(ends)))
            elif age < declared:
                left = declared - age
            ends.append((now + left, job_id, group))
    for of_node in means.values():
        of_node.sort()
        at, left_over = now, len(of_node)
        for mean, job_id, index in of_node:
            at, left_over = at + mean / left_over, left_over - 1
            before, _, group = ends[index]
            ends[index] = (max(before, at), job_id, group)
    ends.sort(key=lambda end: end[:2])
    return ends


def _first_fit(
    state: SchedulerState, candidate: Candidate, avoid: frozenset[str], ends: list[_End]
) -> tuple[frozenset[str], int]:
    """Return nodes on which the job fits after the fewest ends, and the number of these ends.

    No nodes if it never fits.
    """
    statement = Statement(state.cluster)
    marks = [0]  # checkpoints of the statement, by the number of ends

    def placed_after(count: int) -> frozenset[str]:
        if count < len(marks):
            statement.rollback(marks[count])
            del marks[count + 1 :]
        for _, job_id, pods in ends[len(marks) - 1 : count]:
            for pod in pods:
                statement.evict((job_id, *pod))
            marks.append(statement.checkpoint())
        found = place_on(statement, state, candidate, avoid)
        if isinstance(found, PlacementFailure):
            return frozenset()
        statement.rollback(marks[count])
        return frozenset(p.node for p in found)

    low, high, step = 0, min(1, len(ends)), 1
    nodes = placed_after(high)
    while not nodes and high < len(ends):
        low, high, step = high, min(high + step, len(ends)), step * 2
        nodes = placed_after(high)
    while nodes and high - low > 1:
        middle = (low + high) // 2
        fewer = placed_after(middle)
        low, high, nodes = (low, middle, fewer) if fewer else (middle, high, nodes)
    statement.rollback()
    return nodes, high
