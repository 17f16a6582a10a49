"""The global queue of a cluster: all jobs that wait their turn, in the order of its scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

from django.db.models import QuerySet

from scheduling.models import Cluster, Job, SchedulerLease
from scheduling.queries.queues.stages import first_by_model
from scheduling.queries.queues.waiting_order import WaitingOrder, standing_in
from tenants.models import User
from tenants.names import Names
from tenants.permissions import access_of


@dataclass(frozen=True, slots=True)
class Place:
    """A job and its place, from 1.

    If the viewer may not see its tenant, only its size is shown. `heads`: the GPU models of which
    it is the first.
    """

    number: int
    job: Job
    visible: bool
    heads: tuple[str, ...]

    @property
    def pk(self) -> UUID:
        return self.job.pk


@dataclass(frozen=True)
class GlobalQueue:
    """The queue of one scheduler: of the whole cluster, or of a shard."""

    standing: WaitingOrder

    @cached_property
    def ids(self) -> list[UUID]:
        return self.standing.ids()

    def numbered(self, among: QuerySet[Job] | None = None) -> list[tuple[int, UUID]]:
        """Return (place, job) of all jobs, or of these."""
        every = list(enumerate(self.ids, 1))
        if among is None:
            return every
        meant = set(among.order_by().values_list("id", flat=True))
        return [(number, job) for number, job in every if job in meant]

    def places(self, viewer: User, numbered: Sequence[tuple[int, UUID]]) -> list[Place]:
        """Return places as the viewer may see them, without jobs that left meanwhile."""
        access = access_of(viewer)
        heads: Mapping[str, UUID] = first_by_model(self.standing, self.ids)
        rows = Job.objects.select_related("tenant", "cluster", "user").prefetch_related("pod_sets")
        jobs = rows.in_bulk([job for _, job in numbered])
        return [
            Place(
                number,
                jobs[pk],
                access.may_view(jobs[pk].tenant_id),
                tuple(sorted(model for model, job in heads.items() if job == pk)),
            )
            for number, pk in numbered
            if pk in jobs
        ]


def global_queue(cluster: Cluster, scope: str) -> GlobalQueue:
    return GlobalQueue(standing_in(cluster.pk, scope))


def scopes_of(cluster: Cluster) -> list[str]:
    """Return the shards with a queue of their own, if several schedulers share the cluster."""
    leases = SchedulerLease.objects.filter(cluster=cluster).exclude(scope="")
    return list(leases.order_by("scope").values_list("scope", flat=True))


def shard_names(scopes: Sequence[str]) -> Names:
    return Names("shard", fixed=tuple(scopes))
