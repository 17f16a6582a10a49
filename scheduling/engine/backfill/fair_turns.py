"""Places that are kept for a job because it is its tenant's turn by fair share.

Where whatever fits passes a blocked job, small jobs would take each GPU that becomes free before a
large one ever finds room, whatever their shares. So nodes are kept for the first job in the order
of each GPU model that finds no room: until it starts, and only if with it its tenant holds no
more, by weight, than the tenant that would pass it. The nodes are those that will have room first
when jobs of such tenants end: as they declare, or when such jobs usually do.
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

_End = tuple[float, str, list[tuple[int, int]]]  # when, the job, its pods that end then


def comes_before(
    state: SchedulerState, standings: Standings, record: JobRecord, by: JobRecord
) -> bool:
    """Whether places are kept for the job from `by`: where their branches of the tree part, its own
    has no larger share with the job than the other has now."""
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
    standings: Standings,
    record: JobRecord,
    taken: frozenset[str],
    now: float,
) -> Turn:
    """The nodes that will have room for the job first, apart from those `taken` by jobs ahead: when
    jobs of those have ended that hold more, else of all. No nodes where none ever will."""
    facts, avoid = state.memo.nodes, taken.union(record.avoided_nodes)
    for candidate in candidates(state, record, frozenset()):
        ends = _ends(state, {m for s in candidate.job.pod_sets for m in s.gpu_models}, now)
        more: dict[User, bool] = {}
        for _, job_id, _ in ends:
            by = state.jobs[job_id]
            user = (by.job.tenant, by.job.user)
            if user not in more:
                more[user] = comes_before(state, standings, record, by)
        of_more = [end for end in ends if more[(job := state.jobs[end[1]].job).tenant, job.user]]
        for ending in (of_more, ends):
            nodes, ended = _first_fit(state, candidate, avoid, ending)
            if nodes:
                last = ending[ended - 1][0] if ended else now
                return Turn(nodes, max(last, now + SHORTEST_S), facts)
    return Turn(frozenset(), now + IN_VAIN_S, facts)


def _ends(state: SchedulerState, models: set[str], now: float) -> list[_End]:
    """When running jobs that hold GPUs of the models are expected to end, in order."""
    ends: list[_End] = []
    for job_id, record in state.running.items():
        pods = [pod for pod, (model, _) in sorted(record.pods.items()) if model in models]
        groups = [pods] if record.job.gang else [[pod] for pod in pods]
        for group in groups if pods else ():
            age, declared = now - record.placed_since(group[0]), record.job.declared_s
            left = mean_left(declared, age)
            if declared is not None and age < declared:
                left = declared - age
            ends.append((now + left, job_id, group))
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
