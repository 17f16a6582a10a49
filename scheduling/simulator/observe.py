"""What a run leaves behind: one row per job, and exact integrals and series per pool.

Memory grows by a few numbers per job and by samples, never by events.
"""

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from scheduling.engine.states import JobState
from scheduling.engine.types import JobRequest, Node, PodPlacement, held_milli
from scheduling.simulator.journal import MOVED, PREEMPTED, REQUEUED, SENT, RunJournal

NEVER = float("nan")
DIGITS = 9  # of GPU-milli; smaller remainders only come from adding fractions up
WAITING, SUCCEEDED, FAILED, CANCELLED, RUNNING = range(5)
ENDS = {
    JobState.SUCCEEDED: SUCCEEDED,
    JobState.FAILED: FAILED,
    JobState.CANCELLED: CANCELLED,
}
STATE_NAMES = ("WAITING", "SUCCEEDED", "FAILED", "CANCELLED", "RUNNING")


class WaitColumns:
    """How long jobs wait: a gang as one, other jobs pod by pod (times in seconds, NaN = never).

    `row`: the job's row in `JobColumns`. `first`: the first start. `since`: the begin of the
    present wait; NaN while it has its place. `waited`: the time that it waited before.
    """

    def __init__(self) -> None:
        self.row = array("l")
        self.first = array("d")
        self.since = array("d")
        self.waited = array("d")

    def __len__(self) -> int:
        return len(self.row)

    def add(self, row: int, count: int, submitted: float) -> int:
        """Add `count` rows for a job; return the number of the first."""
        number = len(self.row)
        for _ in range(count):
            self.row.append(row)
            self.first.append(NEVER)
            self.since.append(submitted)
            self.waited.append(0.0)
        return number

    def start(self, number: int, now: float) -> None:
        """Note that it has its place from now on; do nothing if it had one."""
        since = self.since[number]
        if since == since:  # False for NaN
            self.waited[number] += now - since
            self.since[number] = NEVER
            if self.first[number] != self.first[number]:
                self.first[number] = now

    def stop(self, number: int, now: float) -> None:
        """Note that it lost its place and waits again."""
        self.since[number] = now


class JobColumns:
    """Results of jobs in order of arrival, as flat columns (times in seconds, NaN = never).

    `started`: when all pods of the job (gang or not) were placed for the last time. `nodes` and
    `groups`: how many of these that placement used. `models`: the GPU model that it used; before,
    the first one asked for. `lost_milli_s`: work thrown away. `unit`: the number of the job's first
    row in `waits`.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.tenants: list[str] = []
        self.models: list[str] = []
        self.milli = array("q")
        self.pods = array("q")
        self.gang = array("b")
        self.priority = array("q")
        self.submitted = array("d")
        self.started = array("d")
        self.ended = array("d")
        self.state = array("b")
        self.preemptions = array("l")
        self.requeues = array("l")
        self.moves = array("l")
        self.nodes = array("l")
        self.groups = array("l")
        self.lost_milli_s = array("d")
        self.unit = array("l")
        self.waits = WaitColumns()

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, job: JobRequest) -> int:
        """Add a row; return its number."""
        first = ""
        for s in job.pod_sets:
            if s.gpu_models:
                first = s.gpu_models[0]
                break
        self.ids.append(job.id)
        self.tenants.append(job.tenant)
        self.models.append(first)
        self.milli.append(job.gpu_milli)
        self.pods.append(job.pods)
        self.gang.append(job.gang)
        self.priority.append(job.priority)
        self.submitted.append(job.submitted_at)
        self.started.append(NEVER)
        self.ended.append(NEVER)
        self.state.append(WAITING)
        for column in (self.preemptions, self.requeues, self.moves, self.nodes, self.groups):
            column.append(0)
        self.lost_milli_s.append(0.0)
        row, units = len(self.ids) - 1, 1 if job.gang else job.pods
        self.unit.append(self.waits.add(row, units, job.submitted_at))
        return row


@dataclass(slots=True)
class PoolSeries:
    """A pool sampled at equal spacing; `sor` is exact for the time since the sample before."""

    at: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    gar: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    sor: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    gfr: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    idle_nodes: array = field(default_factory=lambda: array("l"))  # type: ignore[type-arg]


class PoolBook:
    """One pool during the run: its present values, and their integrals since the warm-up."""

    __slots__ = (
        "allocated",
        "available",
        "before",
        "began",
        "fragmented",
        "fragmented_s",
        "idle",
        "lost_milli_s",
        "milli_s",
        "nodes",
        "nodes_s",
        "offered_s",
        "series",
        "since",
    )

    def __init__(self, since: float) -> None:
        self.fragmented = self.nodes = self.idle = 0
        self.available: float = 0.0
        self.allocated: float = 0.0
        self.milli_s = self.offered_s = self.fragmented_s = self.nodes_s = 0.0
        self.lost_milli_s = 0.0
        self.since = self.began = since
        self.before = (0.0, 0.0)
        self.series = PoolSeries()

    def advance(self, now: float) -> None:
        """Integrate the values that held until now up to `now`."""
        span = now - self.since
        if span > 0:
            self.milli_s += self.allocated * span
            self.offered_s += self.available * span
            self.fragmented_s += self.fragmented * span
            self.nodes_s += self.nodes * span
            self.since = now

    def reset(self, now: float) -> None:
        """Forget what was integrated, because the warm-up is over."""
        self.advance(now)
        self.milli_s = self.offered_s = self.fragmented_s = self.nodes_s = 0.0
        self.lost_milli_s = 0.0
        self.began = now
        self.before = (0.0, 0.0)
        self.series = PoolSeries()

    def lose(self, milli: float, begin: float, end: float) -> None:
        """Note that GPU-milli held from `begin` to `end` served nothing.

        The part in the warm-up does not count. If `end` is before `begin`, the loss is taken back.
        """
        self.lost_milli_s += milli * (max(end, self.began) - max(begin, self.began))

    def sample(self, at: float) -> None:
        self.advance(at)
        held, offered = self.milli_s - self.before[0], self.offered_s - self.before[1]
        self.before = (self.milli_s, self.offered_s)
        series = self.series
        series.at.append(at)
        series.gar.append(self.allocated / self.available if self.available else NEVER)
        series.sor.append(held / offered if offered else NEVER)
        series.gfr.append(self.fragmented / self.nodes if self.nodes else NEVER)
        series.idle_nodes.append(self.idle)


class NodeBook:
    """One node: what it offers, what is allocated on it, and its pool.

    `available`, `fragmented` and `idle`: as the pool counts it.
    """

    __slots__ = (
        "allocated",
        "available",
        "fragmented",
        "group",
        "idle",
        "in_service",
        "installed",
        "offered",
        "pool",
    )

    def __init__(self, pool: PoolBook, group: str) -> None:
        self.pool = pool
        self.group = group
        self.offered = self.installed = 0
        self.allocated: float = 0.0
        self.available: float = 0.0
        self.in_service = self.fragmented = self.idle = False


class TenantBook:
    """What a tenant holds now, and its GPU-milli-seconds.

    Those add up as amount x time when something is given back, minus amount x time when it is
    taken.
    """

    __slots__ = ("held", "milli_s")

    def __init__(self) -> None:
        self.held: float = 0.0
        self.milli_s = 0.0


class Observer:
    """Keeps the books of nodes and pools; told of every placement, release and node change."""

    def __init__(
        self,
        start: float,
        sample_s: float,
        journal: RunJournal | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        """`clusters`: the cluster of each node, if there are several."""
        self.jobs = JobColumns()
        self.clusters: Mapping[str, str] = clusters or {}
        self.journal = journal
        self.start = start
        self.sample_s = sample_s
        self.pools: dict[str, PoolBook] = {}
        self.tenants: dict[str, TenantBook] = {}
        self.nodes: dict[str, NodeBook] = {}
        # Totals since the warm-up; `preempted` are rows of `jobs`.
        self.preempted: set[int] = set()
        self.preemptions = self.moves = self.requeues = 0
        self._next = start + sample_s

    @property
    def tenant_milli_s(self) -> dict[str, float]:
        """GPU-milli-seconds by tenant since the warm-up, complete after `finish`."""
        return {tenant: book.milli_s for tenant, book in self.tenants.items()}

    def node_changed(self, node: Node, now: float) -> None:
        """Take in a node as it is now; its pool is its GPU model (on its cluster, if several)."""
        book = self.nodes.get(node.name)
        if book is None:
            cluster = self.clusters.get(node.name)
            name = f"{node.gpu_model} on {cluster}" if cluster else node.gpu_model
            pool = self.pools.setdefault(name, PoolBook(now))
            book = self.nodes[node.name] = NodeBook(pool, node.topology[0] or node.name)
        book.pool.advance(now)
        healthy, before = node.healthy_gpus, book.in_service
        book.in_service = node.schedulable and healthy > 0
        book.pool.nodes += book.in_service - before
        book.offered = healthy * 1000 if node.schedulable else 0
        book.installed = len(node.devices) * 1000
        self._count(book)
        if self.journal is not None:
            self.journal.nodes.append((now, node))

    def took(self, name: str, milli: float, now: float, tenant: str) -> None:
        """Note GPU-milli that a tenant's job took on a node (negative: gave back)."""
        holder = self.tenants.get(tenant)
        if holder is None:
            holder = self.tenants[tenant] = TenantBook()
        holder.held = round(holder.held + milli, DIGITS)
        holder.milli_s -= milli * now
        book = self.nodes[name]
        book.pool.advance(now)
        book.pool.allocated = round(book.pool.allocated + milli, DIGITS)
        book.allocated = round(book.allocated + milli, DIGITS)
        self._count(book)

    def lost(self, row: int, p: PodPlacement, begin: float, end: float) -> None:
        """Note that what a job held in a place from `begin` to `end` served nothing."""
        milli = held_milli(p)
        self.jobs.lost_milli_s[row] += milli * (end - begin)
        self.nodes[p.node].pool.lose(milli, begin, end)
        if self.journal is not None:
            self.journal.losses.append((row, p, begin, end))

    def started(self, row: int, now: float, model: str, places: Collection[PodPlacement]) -> None:
        """Note that all pods of a job have places; it may not have named the GPU model."""
        jobs = self.jobs
        jobs.started[row] = now
        jobs.models[row] = model
        jobs.nodes[row], jobs.groups[row] = self.used(places)

    def was_preempted(self, row: int, now: float) -> None:
        if self.journal is not None:
            self.journal.events.append((now, row, PREEMPTED))
        self.jobs.preemptions[row] += 1
        self.preemptions += 1
        self.preempted.add(row)

    def was_moved(self, row: int, now: float) -> None:
        if self.journal is not None:
            self.journal.events.append((now, row, MOVED))
        self.jobs.moves[row] += 1
        self.moves += 1

    def was_sent(self, row: int, now: float, cluster: str) -> None:
        """Note that the job waits on that cluster from now on."""
        if self.journal is not None:
            self.journal.events.append((now, row, f"{SENT} {cluster}"))

    def was_requeued(self, row: int, now: float) -> None:
        if self.journal is not None:
            self.journal.events.append((now, row, REQUEUED))
        self.jobs.requeues[row] += 1
        self.requeues += 1

    def _count(self, book: NodeBook) -> None:
        """Update how the node counts for its pool."""
        pool, allocated, offered = book.pool, book.allocated, book.offered
        available = offered if offered > allocated else allocated
        fragmented = book.in_service and 0 < allocated < offered
        idle = book.in_service and allocated == 0 and offered == book.installed
        pool.available += available - book.available
        pool.fragmented += fragmented - book.fragmented
        pool.idle += idle - book.idle
        book.available, book.fragmented, book.idle = available, fragmented, idle

    def sample_until(self, now: float) -> None:
        """Take every sample that is due by `now`."""
        while self._next <= now:
            for pool in self.pools.values():
                pool.sample(self._next)
            self._next += self.sample_s

    def end_warm_up(self, now: float) -> None:
        for pool in self.pools.values():
            pool.reset(now)
        self.preempted.clear()
        self.preemptions = self.moves = self.requeues = 0
        for holder in self.tenants.values():
            holder.milli_s = -holder.held * now
        self._next = now + self.sample_s

    def used(self, placements: Collection[PodPlacement]) -> tuple[int, int]:
        """Return how many nodes and leaf groups these places use."""
        if len(placements) == 1:
            return 1, 1
        nodes = {p.node for p in placements}
        return len(nodes), len({self.nodes[n].group for n in nodes})

    def finish(self, now: float) -> Mapping[str, PoolBook]:
        """Close the books, at most once; return the pools that have nodes with GPUs."""
        self.sample_until(now)
        for pool in self.pools.values():
            pool.advance(now)
        for holder in self.tenants.values():
            holder.milli_s += holder.held * now
        with_gpus = {id(book.pool) for book in self.nodes.values() if book.installed}
        return {model: pool for model, pool in self.pools.items() if id(pool) in with_gpus}
