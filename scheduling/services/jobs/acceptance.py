"""What submissions ask of an installation, each read once for all jobs of a request."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from scheduling.models import Cluster
from scheduling.services.jobs.capacity import Installed, refuse_what_never_fits
from scheduling.services.jobs.dependencies import refuse_bad_dependencies
from scheduling.services.jobs.orders import (
    Order,
    known_gpu_types,
    refuse_inactive,
    refuse_unknown_gpu_types,
)
from scheduling.services.jobs.priority_limits import refuse_too_high
from scheduling.services.jobs.rules import refuse_what_may_not_be_named
from scheduling.services.jobs.spec import job_spec
from scheduling.services.queues.entry import Submitter, fitted, queue_to_enter
from tenants.errors import DomainError, Invalid, NotAllowed
from tenants.models import Queue, Tenant, User
from tenants.permissions import access_of
from tenants.selectors import tenant_by_name
from tenants.tree import Tree

T = TypeVar("T")


class Acceptance:
    """What one user may use, as of one instant: tenants, queues, clusters and what they have."""

    def __init__(self, actor: User) -> None:
        self.actor = actor
        self.tree = Tree()
        self._who = Submitter(actor, access_of(actor, self.tree.parents))
        self._answers: dict[tuple[object, ...], Any] = {}

    @cached_property
    def _gpu_types(self) -> list[str]:
        return known_gpu_types()

    @cached_property
    def _clusters(self) -> dict[str, Cluster]:
        return {c.name: c for c in Cluster.objects.filter(is_active=True)}

    def order_of(self, document: Mapping[str, Any]) -> Order:
        """What a job document orders, where it may. Raises as `submit.submit_job`."""
        spec = job_spec(document)
        tenant = self._once(("tenant", spec.job.tenant), lambda: self._tenant(spec.job.tenant))
        name = spec.job.queue
        queue = self._once(("queue", tenant.pk, name), lambda: self._queue(tenant, name))
        spec = fitted(queue, document, spec)
        cluster = self._cluster(spec.job.cluster)
        refuse_too_high(self.tree, tenant.pk, spec.job.priority)
        refuse_what_may_not_be_named(cluster.job_rules, spec)
        refuse_unknown_gpu_types(spec, self._gpu_types)
        installed = self._once(("installed", cluster.pk), lambda: Installed(cluster))
        refuse_what_never_fits(installed, spec)
        if spec.job.after or spec.job.after_ok:
            wanted = {"after": spec.job.after, "after_ok": spec.job.after_ok}
            refuse_bad_dependencies(self._who.access, cluster, wanted)
        return Order(spec, tenant, cluster, queue)

    def _once(self, key: tuple[object, ...], ask: Callable[[], T]) -> T:
        """The answer to a question that is asked once; a refusal is raised again."""
        if key not in self._answers:
            try:
                self._answers[key] = ask()
            except DomainError as error:
                self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, DomainError):
            raise answer
        known: T = answer
        return known

    def _tenant(self, name: str) -> Tenant:
        access = self._who.access
        tenant = tenant_by_name(access, name)
        if not access.may_submit(tenant.pk):
            raise NotAllowed(
                f"Submitting to tenant “{tenant.name}” needs the role engineer or tenant-admin "
                "there. Ask one of its tenant admins."
            )
        refuse_inactive(tenant)
        return tenant

    def _queue(self, tenant: Tenant, name: str) -> Queue:
        return queue_to_enter(self._who, tenant, name)

    def _cluster(self, name: str) -> Cluster:
        """The named cluster, or the only active one."""
        if name in self._clusters:
            return self._clusters[name]
        names = ", ".join(sorted(self._clusters)) or "none"
        if name:
            raise Invalid.field(
                "cluster", f"There is no active cluster {name!r}. Active clusters: {names}."
            )
        if len(self._clusters) != 1:
            raise Invalid.field(
                "cluster", f"Say which cluster to run on. Active clusters: {names}."
            )
        return next(iter(self._clusters.values()))
