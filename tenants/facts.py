"""What quotas and tenants need to know about scheduling, which this package must not import.

The scheduling app registers the one provider when it is ready.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Holding:
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


class SchedulingFacts(Protocol):
    def installed_milli(self, gpu_type: str) -> int | None:
        """Installed milli-GPU of all active clusters; None while no node is known at all."""

    def holdings(self, tenant_ids: Collection[int], gpu_type: str) -> list[Holding]:
        """What jobs of these tenants hold now, the latest submitted first."""

    def used_milli(self) -> dict[tuple[int, int], int]:
        """{(tenant, GPU type) by primary keys: milli-GPU held by it and all tenants below}."""

    def job_count(self, tenant_id: int) -> JobCount: ...

    def gpu_type_in_use(self, gpu_type: str) -> bool:
        """Whether a job that is not over asks for it, or a node of a cluster has it."""


_provider: list[SchedulingFacts] = []


def register(provider: SchedulingFacts) -> None:
    _provider[:] = [provider]


def scheduling() -> SchedulingFacts:
    return _provider[0]
