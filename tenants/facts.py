"""The facts about scheduling that quotas and tenants need, since this package must not import that
app.

The scheduling app registers the only provider in its `ready`.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from tenants.effects import Aftermath, Effects, PlannedTenant
from tenants.models import Queue, Quota, User

HIDDEN = ""  # stands for all tenants that the reader may not see


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use of one tenant's quota of one GPU type, including its children's use, in milli-GPU.

    `lent` is what tenants outside its subtree use. `borrowed_from` and `lent_to`: {tenant: milli},
    largest first; a tenant above it lends what it has left for its children. When a quota was cut
    while jobs ran, some use may have no lender: that part is in `borrowed` alone. `fixed`: the part
    of the use by non-preemptible jobs.
    """

    tenant: str
    gpu_model: str
    guaranteed: int
    used: int
    borrowed: int
    lent: int
    borrowed_from: Mapping[str, int]
    lent_to: Mapping[str, int]
    fixed: int = 0

    @property
    def own(self) -> int:
        return self.used - self.borrowed

    @property
    def stuck(self) -> int:
        """Borrowed by non-preemptible jobs: no lender can reclaim it."""
        return max(0, min(self.fixed - self.guaranteed, self.borrowed))

    def seen_by(self, visible: Container[str]) -> "QuotaUse":
        """Return the same for a reader who may see these tenants; HIDDEN stands for the sum of the
        others."""
        return replace(
            self,
            borrowed_from=_seen(self.borrowed_from, visible),
            lent_to=_seen(self.lent_to, visible),
        )


def _seen(amounts: Mapping[str, int], visible: Container[str]) -> dict[str, int]:
    seen = {name: milli for name, milli in amounts.items() if name in visible}
    hidden = sum(amounts.values()) - sum(seen.values())
    return {**seen, HIDDEN: hidden} if hidden else seen


@dataclass(frozen=True, slots=True)
class JobHolding:
    """A job, and the milli-GPU of one GPU type that it holds now."""

    job_id: str
    name: str
    milli: int


@dataclass(frozen=True, slots=True)
class JobCount:
    """Jobs of a tenant: names of a few open ones, and how many are open and ended."""

    open: int
    ended: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """Open jobs of a queue: how many wait and run, names of a few, and the milli-GPU that they hold
    by GPU type."""

    waiting: int
    running: int
    examples: tuple[str, ...]
    held: Mapping[str, int]

    @property
    def open(self) -> int:
        return self.waiting + self.running


class SchedulingFacts(Protocol):
    def installed_milli(self, gpu_type: str) -> int | None:
        """Milli-GPU of all active clusters, including what an autoscaler may add; None while no
        node is known."""

    def may_come_milli(self, gpu_type: str) -> int:
        """The part of `installed_milli` that an autoscaler may add."""

    def holdings(self, tenant_ids: Collection[int], gpu_type: str) -> list[JobHolding]:
        """What jobs of these tenants hold now, the latest submitted first."""

    def quota_uses(self, instead: Quota | None = None) -> dict[tuple[str, str], QuotaUse]:
        """{(tenant, GPU type): its use}, computed with one quota stored `instead` of the current
        one."""

    def quota_effects(
        self,
        viewer: User,
        after: Mapping[tuple[str, str], Quota | None],
        planned: Mapping[str, PlannedTenant],
    ) -> Effects:
        """What would happen to jobs with these quotas by tenant and GPU type (None = no quota) and
        with these tenants as planned."""

    def queue_effects(self, viewer: User, queue: Queue) -> Effects:
        """What would happen to jobs if a queue were as this row says."""

    def aftermath(
        self,
        since: datetime,
        until: datetime,
        *,
        gpu_types: Sequence[str],
        cluster: str,
        told: Sequence[str],
    ) -> Aftermath:
        """What happened to jobs of these GPU types, or of a cluster; to all jobs when neither is
        named. `told`: ids of the jobs that were predicted to start."""

    def job_count(self, tenant_id: int) -> JobCount: ...

    def job_kinds(self) -> tuple[str, ...]:
        """The kinds of jobs."""

    def queue_load(self, tenant_id: int, queue: str) -> QueueLoad: ...

    def queue_named_by(self, tenant: str, queue: str) -> list[str]:
        """The clusters whose maps of queue names lead to this queue."""

    def queue_loads(self) -> dict[tuple[int, str], QueueLoad]:
        """{(tenant, queue): its load}, without names of jobs; queues without open jobs are left
        out."""

    def reserved_namespaces(self) -> Mapping[str, str]:
        """{namespace that no tenant may own: the reason, in a sentence}."""

    def gpu_type_in_use(self, gpu_type: str) -> bool:
        """Whether an open job asks for this GPU type, or a node of a cluster has it."""


_provider: list[SchedulingFacts] = []


def register(provider: SchedulingFacts) -> None:
    _provider[:] = [provider]


def scheduling() -> SchedulingFacts:
    return _provider[0]
