"""How the schedulers of clusters and shards fare.

Who leads, how busy it is, what is left to do, and what to do if one scheduler is not enough.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from scheduling.engine.shards.division import WIDE
from scheduling.models import Cluster
from scheduling.queries.selectors import Leader, leaders_of
from scheduling.queries.standstill import standstill
from scheduling.session.pace import FAILURES, LATELY_S

# Busy for more than this part of the time: in a larger burst, jobs wait for the scheduler.
BUSY = 0.5
FAILS = {result.lower() for result in FAILURES}


@dataclass(frozen=True, slots=True)
class LedScope:
    """The scheduler of a scope of a cluster, "" = the whole cluster.

    Over the last `over_s` seconds: `passes` that changed something, their mean `pass_s`,
    `binds_a_s`, `failed` requests, and the part of the time (0 to 1) in which it was `busy`, in the
    engine (`decide`) and in the database (`write`). `spark`: pods bound a second, oldest first.
    `waits`: sentences on what stands still or is too slow, and what to do; empty if one scheduler
    is enough.
    """

    cluster: Cluster
    leader: Leader
    since: datetime | None
    standstill: str
    over_s: float
    passes: int
    pass_s: float | None
    binds_a_s: float
    failed: int
    busy: float
    decide: float
    write: float
    spark: list[float]
    failures: list[tuple[str, str, int]]
    waits: list[str]


def scheduler_states(clusters: list[Cluster], now: datetime) -> list[LedScope]:
    """Return the schedulers of active clusters, by the names of cluster and scope."""
    return [
        _state(cluster, leader, standstill(cluster), now)
        for cluster in clusters
        if cluster.is_active
        for leader in leaders_of(cluster, now)
    ]


def _state(cluster: Cluster, leader: Leader, stands: str, now: datetime) -> LedScope:
    pace = leader.pace
    lately, over = pace.lately(now.timestamp())
    share = 1 / over if over else 0.0
    busy, decide, write = (
        min(seconds * share, 1.0) for seconds in (lately.seconds, lately.decide, lately.write)
    )
    failures = [(effect, result, n) for (effect, result), n in pace.effects.items()]
    return LedScope(
        cluster=cluster,
        leader=leader,
        since=datetime.fromtimestamp(pace.since, UTC) if pace.since and leader.holder else None,
        standstill=stands,
        over_s=over,
        passes=lately.passes,
        pass_s=lately.seconds / lately.passes if lately.passes else None,
        binds_a_s=lately.bound * share,
        failed=lately.failed,
        busy=busy,
        decide=decide,
        write=write,
        spark=_binds(leader, now.timestamp()),
        failures=sorted(one for one in failures if one[1] in FAILS),
        waits=_waits(leader, stands, busy, decide, write),
    )


def _binds(leader: Leader, now: float) -> list[float]:
    """Return the pods bound a second between the marks of its counts, and since the last mark."""
    marks = [mark for mark in leader.pace.marks if mark.at > now - 2 * LATELY_S]
    if not marks:
        return []
    ends = [*((mark.at, mark.bound) for mark in marks), (now, leader.pace.bound)]
    return [
        (bound - before) / (at - begin) if at > begin else 0.0
        for (begin, before), (at, bound) in pairwise(ends)
    ]


def _waits(leader: Leader, stands: str, busy: float, decide: float, write: float) -> list[str]:
    if not leader.holder:
        return [
            "No scheduler leads it, so no pod starts here. Start a scheduler process; it takes a "
            "free lease within seconds."
        ]
    found = [stands] if stands else []
    if wrong := leader.pace.work["wrong"]:
        found.append(
            f"{wrong} remembered answers were wrong. This is a bug in Kant: please report the "
            "line “wrong answer remembered” of its log."
        )
    if busy > BUSY and write > decide:
        found.append(
            "Most of its time goes to the database: give PostgreSQL faster disks or more memory. "
            "More schedulers do not help."
        )
    elif busy > BUSY:
        more = "more shards" if leader.scope and leader.scope != WIDE else "shards"
        found.append(
            f"One scheduler is not enough: divide the cluster into {more} in its policy, and run "
            "a scheduler process for each."
        )
    return found
