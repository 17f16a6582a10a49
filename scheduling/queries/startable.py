"""How large a new job could be and start now, by GPU type: what is free, less what quotas,
reservations and those who wait leave it. The engine is asked, by what rows tell (`known`)."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter

from scheduling.engine.cycle import SchedulerState
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.rehearse import Rise, rise, standing
from scheduling.engine.types import JobRequest, PodSetSpec
from scheduling.engine.verdict import NEVER
from scheduling.models import Cluster, NodeRecord
from scheduling.queries import quota_use
from scheduling.queries.kept import kept, kept_before
from scheduling.queries.known import CannotTell, Known
from tenants.models import GpuType, User

# Of tenants that could take most of a GPU type, so many are asked for.
MAX_TENANTS = 3


@dataclass(frozen=True, slots=True)
class Startable:
    """The largest new job of a tenant on a GPU type that would start now and preempt nobody: a gang
    that declares no run time, of one pod of 1, 2, 4 ... GPUs, or of 1, 2, 4 ... pods with all GPUs
    of a node.

    `gpus`, and `in_leaf` within one leaf group (None: no such groups are known); `free`: GPUs that
    nobody holds, in all clusters. `refused`: the next size, which would not start, and why; None =
    none is greater.
    """

    gpu_type: str
    tenant: str
    cluster: str
    gpus: int
    in_leaf: int | None
    free: int
    refused: int | None
    reason: str
    why: str

    @property
    def brief(self) -> str:
        """Why, where the GPU type is said beside it."""
        return self.why.replace(f"{self.gpu_type} GPU", "GPU")

    @property
    def is_never(self) -> bool:
        return self.reason in NEVER


@dataclass(frozen=True, slots=True)
class Answer:
    """`rows` in order of the GPU types; `troubles`: of which clusters nothing can be told, and why;
    `as_of`: what is known of the cluster that was looked at longest ago."""

    rows: tuple[Startable, ...]
    troubles: tuple[str, ...]
    as_of: datetime | None

    @property
    def several_clusters(self) -> bool:
        return len({row.cluster for row in self.rows}) > 1


def startable(user: User, tenants: Sequence[str]) -> Answer:
    """What a user could start for the best of these tenants, told again while that is fresh."""
    return kept(_key(user, tenants), lambda: _asked(user, tenants))


def told_before(user: User, tenants: Sequence[str]) -> Answer | None:
    """The last answer, however old; None where nobody asked for long."""
    return kept_before(_key(user, tenants), Answer)


def _key(user: User, tenants: Sequence[str]) -> str:
    return f"startable:{user.pk}:{','.join(sorted(tenants))}"


def _asked(user: User, tenants: Sequence[str]) -> Answer:
    if not tenants:
        return Answer((), (), None)
    book = quota_use.quota_book()
    found: dict[str, Startable] = {}
    free: dict[str, int] = {}
    troubles, seen = [], []
    for cluster in Cluster.objects.filter(is_active=True).order_by("name"):
        try:
            looks = _Looks(Known(cluster), user, book)
        except CannotTell as error:
            troubles.append(str(error))
            continue
        if cluster.last_cycle_at is not None:
            seen.append(cluster.last_cycle_at)
        for gpu_type, nodes in looks.pools.items():
            free[gpu_type] = free.get(gpu_type, 0) + sum(n.free_gpus for n in nodes)
            row = looks.best(gpu_type, tenants)
            if gpu_type not in found or row.gpus > found[gpu_type].gpus:
                found[gpu_type] = row
    rows = tuple(
        replace(found[name], free=free[name])
        for name in GpuType.objects.order_by("name").values_list("name", flat=True)
        if name in found
    )
    return Answer(rows, tuple(troubles), min(seen, default=None))


class _Looks:
    """Questions to the engine about one cluster, on states that are made once."""

    def __init__(self, known: Known, user: User, book: QuotaBook) -> None:
        self._known, self._user, self._book = known, user, book
        self._now = time.time()
        self._states: dict[str, SchedulerState] = {}
        self.pools = _pools(known.nodes)

    def best(self, gpu_type: str, tenants: Sequence[str]) -> Startable:
        """What could start on a GPU type for the best of these tenants."""
        left = {name: quota_use.headroom(self._book, name, gpu_type) for name in tenants}
        first = sorted(tenants, key=lambda name: (-left[name], name))[:MAX_TENANTS]
        rows = [self._row(gpu_type, name) for name in first]
        return max(rows, key=lambda row: row.gpus)

    def _row(self, gpu_type: str, tenant: str) -> Startable:
        nodes = self.pools[gpu_type]
        per_node = max(node.gpus for node in nodes)
        sizes = _sizes(per_node, sum(node.gpus for node in nodes))
        said, trouble = self._rise(self._jobs(gpu_type, tenant, per_node, sizes))
        started = said.started
        next_size = sizes[started] if started < len(sizes) else None
        reason = why = trouble
        if said.verdict is not None:
            reason, why = said.verdict.reason.value, said.verdict.summary
        return Startable(
            gpu_type,
            tenant,
            self._known.cluster.name,
            sizes[started - 1] if started else 0,
            self._in_leaf(gpu_type, tenant, per_node, sizes[:started]),
            0,
            next_size,
            "" if trouble else reason,
            why,
        )

    def _in_leaf(
        self, gpu_type: str, tenant: str, per_node: int, sizes: Sequence[int]
    ) -> int | None:
        """The largest of sizes that start anywhere which starts within one leaf group, too."""
        if not any(node.leaf for node in self.pools[gpu_type]):
            return None
        inside = [size for size in sizes if size <= per_node]
        wider = sizes[len(inside) :]
        jobs = self._jobs(gpu_type, tenant, per_node, wider, required_level="leaf")
        inside += wider[: self._rise(jobs)[0].started]
        return inside[-1] if inside else 0

    def _jobs(
        self, gpu_type: str, tenant: str, per_node: int, sizes: Iterable[int], **fields: str
    ) -> Iterator[JobRequest]:
        for size in sizes:
            pods = max(1, size // per_node)
            pod_set = PodSetSpec("worker", pods, min(size, per_node), (gpu_type,))
            yield JobRequest(
                f"startable {gpu_type} {tenant}",
                tenant,
                self._now,
                (pod_set,),
                user=str(self._user.pk),
                **fields,  # type: ignore[arg-type]
            )

    def _rise(self, jobs: Iterable[JobRequest]) -> tuple[Rise, str]:
        """How far it goes, each job asked about in its own shard; and why more cannot be told."""
        asked: list[tuple[str, JobRequest]] = []
        trouble = ""
        try:
            for job in jobs:
                asked.append((self._known.scope_of(job), job))
        except CannotTell as error:
            trouble = str(error)
        started, said = 0, Rise(0, None, None)
        for scope, group in groupby(asked, itemgetter(0)):
            said = rise(self._state(scope), [job for _, job in group], self._now)
            started += said.started
            if said.verdict is not None:
                return Rise(started, said.places, said.verdict), ""
        return Rise(started, said.places, None), trouble

    def _state(self, scope: str) -> SchedulerState:
        if scope not in self._states:
            self._states[scope] = standing(self._known.facts(scope), self._now)
        return self._states[scope]


def _pools(nodes: Iterable[NodeRecord]) -> Mapping[str, list[NodeRecord]]:
    """The nodes of each GPU type on which pods may start."""
    found: dict[str, list[NodeRecord]] = {}
    for node in nodes:
        if node.gpus and node.schedulable and node.healthy_gpus:
            found.setdefault(node.gpu_model, []).append(node)
    return dict(sorted(found.items()))


def _sizes(per_node: int, installed: int) -> list[int]:
    """1, 2, 4 ... GPUs below a node's, then those of 1, 2, 4 ... whole nodes."""
    sizes, size = [], 1
    while size < per_node:
        sizes.append(size)
        size *= 2
    size = per_node
    while size <= installed:
        sizes.append(size)
        size *= 2
    return sizes
