"""Places that are kept for a job because it is the turn of its tenant, its user or its queue.

Where whatever fits passes a blocked job, small jobs would take each GPU that becomes free before a
large one ever finds room, whatever their shares. So nodes are kept for the first job in the order
of each GPU model that finds no room: until it starts, and only if with it its tenant holds no
more, by weight, than the tenant that would pass it. Inside a tenant with several queues the same
holds of its queue. The nodes are those that will have room first when others' jobs end, of tenants
that hold more if these suffice: as they declare, or when such jobs usually do. For a queue that
misses several jobs of its part they are as many.
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

# How long a job for which no nodes would ever have room is not looked at again.
IN_VAIN_S = 60.0
# For how many jobs of a queue nodes empty at once: each of them stands idle in part meanwhile.
MOST_AT_ONCE = 4

_End = tuple[float, str, list[tuple[int, int]]]  # when, the job, its pods that end then


def comes_before(
    state: SchedulerState, standings: Standings | None, record: JobRecord, by: JobRecord
) -> bool:
    """Whether places are kept for the job from `by`: where their branches of the tree part, its own
    has no larger share with the job than the other has now. Without fair share (`standings` None)
    tenants are no branches, only the queues of each."""
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
    """Whether the nodes need not be chosen anew."""
    return now < turn.until and turn.chosen_by == state.memo.nodes


def choose(
    state: SchedulerState,
    standings: Standings | None,
    record: JobRecord,
    taken: frozenset[str],
    now: float,
) -> Turn:
    """The nodes that will have room for the job first, apart from those `taken` by jobs ahead. No
    nodes where none ever will."""
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
    """Which ends the nodes are chosen by, the better first: of those that hold more than it would,
    where only tenants and users are told apart; of the other queues of its tenant, which the turn
    of its own is taken from; of all but its own like, as what these leave is for it anyway and
    gives it no more; of all."""
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
    """More nodes, where its queue holds less than its part by several jobs of the class: so that
    these need not wait for one node after the other."""
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
    """Whether both are of one tenant, and of one queue where it is ordered by these."""
    mine, theirs = record.job, other.job
    if mine.tenant != theirs.tenant:
        return False
    return mine.queue == theirs.queue or mine.tenant not in state.queues.ordered


def _ends(state: SchedulerState, models: set[str], now: float) -> list[_End]:
    """When running jobs that hold GPUs of the models are expected to end, in order. Of those of a
    node that declare nothing the last ends later than each is expected to: so a node on which few
    are left is whole sooner than one of many, and is not given up for it."""
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
    """Nodes of the job when the fewest of the ends have come to pass after which it fits, and how
    many these are; no nodes where it never does."""
    statement = Statement(state.cluster)
    marks = [0]  # of the statement, when so many have ended

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
