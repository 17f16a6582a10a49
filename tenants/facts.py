"""What quotas and tenants need to know about scheduling, which this package must not import.

The scheduling app registers the one provider when it is ready.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from tenants.effects import Aftermath, Effects, PlannedTenant
from tenants.models import Queue, Quota, User

HIDDEN = ""  # stands for all tenants that somebody may not see


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use of one tenant's quota of one GPU type, its children's included, in milli-GPU.

    `lent` is what tenants that are not below it use. `borrowed_from` and `lent_to`: {tenant:
    milli}, the most first; a tenant above it lends what it has left for those below. What nobody
    lends, since a quota was cut while jobs ran, is in `borrowed` alone. `fixed`: of what is used,
    by jobs that cannot be preempted.
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
        """Borrowed by jobs that cannot be preempted: no lender can take it back."""
        return max(0, min(self.fixed - self.guaranteed, self.borrowed))

    def seen_by(self, visible: Container[str]) -> "QuotaUse":
        """The same for somebody who may see these tenants; of the others the sum is HIDDEN's."""
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
    """A job and the milli-GPU of one GPU type it holds now."""

    job_id: str
    name: str
    milli: int


@dataclass(frozen=True, slots=True)
class JobCount:
    """Jobs of a tenant: names of those not over (at most a few), and how many of each."""

    open: int
    ended: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """Jobs of a queue that are not over: how many wait and run, names of a few of them, and the
    milli-GPU they hold by GPU type."""

    waiting: int
    running: int
    examples: tuple[str, ...]
    held: Mapping[str, int]

    @property
    def open(self) -> int:
        return self.waiting + self.running


class SchedulingFacts(Protocol):
    def installed_milli(self, gpu_type: str) -> int | None:
        """Milli-GPU of all active clusters, installed or such as an autoscaler may add; None while
        no node is known at all."""

    def may_come_milli(self, gpu_type: str) -> int:
        """Of that what an autoscaler may add."""

    def holdings(self, tenant_ids: Collection[int], gpu_type: str) -> list[JobHolding]:
        """What jobs of these tenants hold now, the latest submitted first."""

    def quota_uses(self, instead: Quota | None = None) -> dict[tuple[str, str], QuotaUse]:
        """{(tenant, GPU type): its use}; as if one quota were stored `instead` of what is."""

    def quota_effects(
        self,
        viewer: User,
        after: Mapping[tuple[str, str], Quota | None],
        planned: Mapping[str, PlannedTenant],
    ) -> Effects:
        """What it would do to jobs if these quotas, by tenant and GPU type, were stored, None = if
        there were none, and these tenants were as planned."""

    def queue_effects(self, viewer: User, queue: Queue) -> Effects:
        """What it would do to jobs if a queue were as this row says."""

    def aftermath(
        self,
        since: datetime,
        until: datetime,
        *,
        gpu_types: Sequence[str],
        cluster: str,
        told: Sequence[str],
    ) -> Aftermath:
        """What happened to jobs of these GPU types, or of a cluster, of all where none is named;
        `told`: ids of jobs that were told to start."""

    def job_count(self, tenant_id: int) -> JobCount: ...

    def job_kinds(self) -> tuple[str, ...]:
        """What jobs can be for."""

    def queue_load(self, tenant_id: int, queue: str) -> QueueLoad: ...

    def queue_named_by(self, tenant: str, queue: str) -> list[str]:
        """The clusters whose maps of queue names lead to it."""

    def queue_loads(self) -> dict[tuple[int, str], QueueLoad]:
        """{(tenant, queue): its load}, without examples; queues without open jobs are left out."""

    def reserved_namespaces(self) -> Mapping[str, str]:
        """{namespace that can be no tenant's own: why, in a sentence}."""

    def gpu_type_in_use(self, gpu_type: str) -> bool:
        """Whether a job that is not over asks for it, or a node of a cluster has it."""


_provider: list[SchedulingFacts] = []


def register(provider: SchedulingFacts) -> None:
    _provider[:] = [provider]


def scheduling() -> SchedulingFacts:
    return _provider[0]
