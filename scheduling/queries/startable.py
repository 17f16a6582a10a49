"""How large a new job could be and start now, by GPU type.

That is what is free, less what quotas, reservations and waiting jobs leave. The engine answers.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from django.db.models import Count, Max, Q, Sum

from scheduling.engine.cycle import SchedulerState
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.rehearse import Rise, rise, standing
from scheduling.engine.types import JobRequest
from scheduling.engine.verdict import NEVER
from scheduling.models import Cluster, NodeRecord
from scheduling.queries import quota_use
from scheduling.queries.kept import kept, kept_before
from scheduling.queries.known import CannotTell, Known
from scheduling.queries.standstill import standstill
from scheduling.queries.whatif.by_rows import asked_or
from scheduling.queries.whatif.climbs import Climb, Climbed
from scheduling.queries.whatif.questions import StartableNow
from tenants.models import GpuType, User

# How many of the tenants that could take most of a GPU type are tried.
MAX_TENANTS = 3


@dataclass(frozen=True, slots=True)
class Startable:
    """The largest new job of a tenant on a GPU type that would start now without preemption.

    The job is a gang without a declared run time: one pod of 1, 2, 4 ... GPUs, or 1, 2, 4 ... pods
    with all GPUs of a node.

    - `gpus`: its size; `in_leaf`: the same within one leaf group (None: no such groups are known).
    - `free`: GPUs that nobody holds, in all clusters.
    - `refused`: the next size, which would not start, and `why`; None = none is larger.
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
        """Why, for a place that already names the GPU type."""
        return self.why.replace(f"{self.gpu_type} GPU", "GPU")

    @property
    def is_never(self) -> bool:
        return self.reason in NEVER


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer: `rows` in the order of GPU types.

    `troubles`: clusters of which nothing can be said, and why. `as_of`: the oldest time of what is
    known.
    """

    rows: tuple[Startable, ...]
    troubles: tuple[str, ...]
    as_of: datetime | None

    @property
    def several_clusters(self) -> bool:
        return len({row.cluster for row in self.rows}) > 1


def startable(user: User, tenants: Sequence[str]) -> Answer:
    """Return what a user could start for the best of these tenants; reused while fresh."""
    return kept(_key(user, tenants), lambda: _asked(user, tenants))


def told_before(user: User, tenants: Sequence[str]) -> Answer | None:
    """Return the last answer, however old; None = nobody has asked for long."""
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
            climbs, told = _climbed(cluster, user, tenants, book)
        except CannotTell as error:
            troubles.append(str(error))
            continue
        if cluster.last_cycle_at is not None:
            seen.append(cluster.last_cycle_at)
        for climb, climbed in zip(climbs, told, strict=True):
            best = found.get(climb.gpu_type)
            if best is None or climbed.gpus > best.gpus:
                found[climb.gpu_type] = _row(climb, climbed, cluster)
        for pool in _pools(cluster):
            free[pool.gpu_model] = free.get(pool.gpu_model, 0) + pool.free
    rows = tuple(
        replace(found[name], free=free[name])
        for name in GpuType.objects.order_by("name").values_list("name", flat=True)
        if name in found
    )
    return Answer(rows, tuple(troubles), min(seen, default=None))


class _NodesOfType(NamedTuple):
    """The nodes of a GPU type on which pods may start, counted in GPUs."""

    gpu_model: str
    per_node: int
    installed: int
    free: int
    leaves: int


def _pools(cluster: Cluster) -> list[_NodesOfType]:
    nodes = NodeRecord.objects.filter(
        cluster=cluster, gpus__gt=0, schedulable=True, healthy_gpus__gt=0
    )
    found = (
        nodes.values("gpu_model")
        .annotate(
            per_node=Max("gpus"),
            installed=Sum("gpus"),
            free=Sum("free_gpus"),
            leaves=Count("id", filter=~Q(leaf="")),
        )
        .order_by("gpu_model")
    )
    return [_NodesOfType(**one) for one in found]


def _climbed(
    cluster: Cluster, user: User, tenants: Sequence[str], book: QuotaBook
) -> tuple[list[Climb], list[Climbed]]:
    """Ask the engine about a cluster, for the tenants with most left of a GPU type.

    Returns the questions and the answers. Raises CannotTell, Crowded.
    """
    if why := standstill(cluster):
        raise CannotTell(why)
    climbs = []
    for pool in _pools(cluster):
        left = {name: quota_use.headroom(book, name, pool.gpu_model) for name in tenants}
        first = sorted(tenants, key=lambda name: (-left[name], name))[:MAX_TENANTS]
        climbs += [
            Climb(
                pool.gpu_model, name, str(user.pk), pool.per_node, pool.installed, pool.leaves > 0
            )
            for name in first
        ]
    now = time.time()

    def by_rows() -> list[Climbed]:
        states = _StatesOfRows(Known(cluster), now)
        return [climb.climbed(states.rise, now) for climb in climbs]

    if not climbs:  # this raises if no node is known at all
        return [], by_rows()
    return climbs, asked_or(cluster.pk, StartableNow(tuple(climbs), now), by_rows)


def _row(climb: Climb, climbed: Climbed, cluster: Cluster) -> Startable:
    reason = why = climbed.trouble
    if climbed.verdict is not None:
        reason, why = climbed.verdict.reason.value, climbed.verdict.summary
    return Startable(
        climb.gpu_type,
        climb.tenant,
        cluster.name,
        climbed.gpus,
        climbed.in_leaf,
        0,
        climbed.refused,
        "" if climbed.trouble else reason,
        why,
    )


class _StatesOfRows:
    """Asks the engine about one cluster, on states that are built from rows once."""

    def __init__(self, known: Known, now: float) -> None:
        self._known, self._now = known, now
        self._states: dict[str, SchedulerState] = {}

    def rise(self, jobs: Iterable[JobRequest]) -> tuple[Rise, str]:
        """Return how far the jobs rise, each in its own shard, and why no more can be said."""
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
