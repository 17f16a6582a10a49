"""What submissions ask of an installation, each fact read once for all jobs of a request."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any
from uuid import UUID

from django.utils import timezone

from scheduling.engine.types import DEFAULT_QUEUE
from scheduling.job_fields.definition import ANY_CLUSTER
from scheduling.job_fields.faults import SLUG
from scheduling.models import Cluster
from scheduling.services.cluster_choice.submission import (
    ClusterChooser,
    refuse_everywhere,
    refuse_on,
)
from scheduling.services.cluster_choice.told import ChosenForJob
from scheduling.services.common.asked_once import AskedOnce
from scheduling.services.common.lease import hold_all
from scheduling.services.jobs.capacity import Installed
from scheduling.services.jobs.dependencies import Known, awaited_by, refuse_bad_dependencies
from scheduling.services.jobs.orders import Order, refuse_anywhere, refuse_inactive
from scheduling.services.jobs.submission.standing import Installation, standing
from scheduling.services.jobs.validation import JobSpec, job_spec
from scheduling.services.queues.entry import Submitter, entered, fitted
from tenants.errors import Conflict, Invalid, NotAllowed
from tenants.models import Queue, Tenant, User
from tenants.permissions import Access, access_of, access_within
from tenants.selectors import seen
from tenants.tree import Tree

ONLY_NAMED = "Cluster “{}” accepts only jobs that name it."


class CommonGround:
    """What all submissions have in common, as of one instant: tenants, queues and clusters.

    `documents`: those that orders will be made of, of these users.
    """

    def __init__(self, users: Collection[int], documents: Sequence[Mapping[str, Any]]) -> None:
        self._users, self._documents = users, documents
        self._once = AskedOnce()

    @cached_property
    def here(self) -> Installation:
        tenants = _names(document.get("tenant") for document in self._documents)
        queues = _names(document.get("queue") or DEFAULT_QUEUE for document in self._documents)
        return standing(self._users, tenants, queues)

    @cached_property
    def tree(self) -> Tree:
        """The tenants that documents name, and all above them."""
        return Tree(self.here.tenants.values())

    @cached_property
    def chooser(self) -> ClusterChooser:
        return ClusterChooser(list(self.here.clusters.values()), timezone.now())

    def installed(self, cluster: Cluster) -> Installed:
        pools = self.here.pools.get(cluster.pk, {})
        return self._once(cluster.pk, lambda: Installed(cluster, pools))


class Acceptance:
    """What one user may use.

    `documents`: those of the user. `ground`: what was read for all users together.
    """

    def __init__(
        self,
        actor: User,
        documents: Sequence[Mapping[str, Any]],
        ground: CommonGround | None = None,
    ) -> None:
        self.actor = actor
        self._documents = documents
        self._ground = ground or CommonGround([actor.pk], documents)
        self._once = AskedOnce()

    @property
    def _standing(self) -> Installation:
        return self._ground.here

    @property
    def tree(self) -> Tree:
        """The tenants that documents name, and all above them."""
        return self._ground.tree

    @cached_property
    def _who(self) -> Submitter:
        access = access_within(self.actor, self.tree.parents, self._standing.roles[self.actor.pk])
        return Submitter(self.actor, access)

    @cached_property
    def _access(self) -> Access:
        """The user's rights in all tenants: jobs may wait for jobs of tenants not named here."""
        return access_of(self.actor)

    @cached_property
    def _awaited(self) -> Known:
        """What the jobs of all documents wait for."""
        return awaited_by(self._access, map(_ids, self._documents))

    def order_of(self, document: Mapping[str, Any]) -> Order:
        """Return the order that a job document makes. Raises like `submit.submit_job`."""
        spec = job_spec(document)
        tenant = self._once(("tenant", spec.job.tenant), lambda: self._tenant(spec.job.tenant))
        name = spec.job.queue
        queue = self._once(("queue", tenant.pk, name), lambda: self._queue(tenant, name))
        spec = fitted(queue, document, spec)
        clusters = self._clusters(spec.job.cluster)
        refuse_anywhere(spec, tenant, self.tree, self._standing.gpu_types)
        only = len(clusters) == 1 and (spec.job.cluster or clusters[0].takes_any)
        if spec.job.cluster != ANY_CLUSTER and only:
            movable = self._refuse_on(clusters[0], spec)
            return Order(spec, tenant, clusters[0], queue, awaits_movable=movable)
        choice = self._choice(clusters, spec)
        before = bool(spec.job.after or spec.job.after_ok)
        return Order(spec, tenant, choice.cluster, queue, choice, before)

    def keep_beside(self, orders: Collection[Order]) -> None:
        """Keep the jobs that these orders wait for where they are until the transaction ends.

        Must be called first in it. Raises Conflict if one has moved to another cluster since it was
        read.
        """
        waiting = [order for order in orders if order.awaits_movable]
        if not waiting:
            return
        for cluster_id in sorted({order.cluster.pk for order in waiting}):
            hold_all(cluster_id)
        known = awaited_by(self._access, (_wanted(order.spec) for order in waiting))
        for order in waiting:
            try:
                refuse_bad_dependencies(known, order.cluster, _wanted(order.spec))
            except Invalid as error:
                raise Conflict(
                    f"{error.detail} The job has just moved there. Submit again."
                ) from None

    def _tenant(self, name: str) -> Tenant:
        access = self._who.access
        tenant = seen(access, self._standing.tenants.get(name), name)
        if not access.may_submit(tenant.pk):
            raise NotAllowed(
                f"Submitting to tenant “{tenant.name}” needs the role engineer or tenant-admin "
                "there. Ask one of its tenant admins for a role."
            )
        refuse_inactive(tenant)
        return tenant

    def _queue(self, tenant: Tenant, name: str) -> Queue:
        return entered(self._who, tenant, name, self._standing.queues.get((tenant.pk, name)))

    def _clusters(self, name: str) -> list[Cluster]:
        """Return the named cluster, or all active ones."""
        clusters = self._standing.clusters
        if name and name != ANY_CLUSTER:
            if name in clusters:
                return [clusters[name]]
            names = ", ".join(clusters) or "none"
            raise Invalid.field(
                "cluster", f"There is no active cluster {name!r}. Active clusters: {names}."
            )
        if not clusters:
            raise Invalid.field(
                "cluster", "There is no active cluster. Ask an operator to add one."
            )
        return list(clusters.values())

    def _refuse_on(self, cluster: Cluster, spec: JobSpec) -> bool:
        """Raise Invalid if the job can never run on the cluster.

        Returns whether it waits for jobs that may move to another one.
        """
        refuse_on(self._ground.installed(cluster), spec)
        if not (spec.job.after or spec.job.after_ok):
            return False
        return refuse_bad_dependencies(self._awaited, cluster, _wanted(spec))

    def _choice(self, clusters: Sequence[Cluster], spec: JobSpec) -> ChosenForJob:
        faults: dict[str, Invalid] = {}
        for cluster in clusters:
            try:
                if not cluster.takes_any:
                    raise Invalid.field("cluster", ONLY_NAMED.format(cluster.name))
                self._refuse_on(cluster, spec)
            except Invalid as error:
                faults[cluster.name] = error
        if len(faults) == len(clusters):
            raise refuse_everywhere(faults)
        refused = {name: fault.detail for name, fault in faults.items()}
        return self._ground.chooser.choose(spec, refused)


def _wanted(spec: JobSpec) -> dict[str, list[str]]:
    return {"after": spec.job.after, "after_ok": spec.job.after_ok}


def _ids(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what a document waits for, as far as it can be ids; the rest names no job."""
    given = {name: document.get(name) or () for name in ("after", "after_ok")}
    return {
        name: [str(one) for one in many if _is_id(one)]
        for name, many in given.items()
        if isinstance(many, list | tuple)
    }


def _is_id(one: object) -> bool:
    try:
        return isinstance(one, UUID) or bool(UUID(str(one)))
    except ValueError:
        return False


def _names(given: Iterable[object]) -> set[str]:
    """Return those that can be names; checking each document reports the others."""
    return {name for name in given if isinstance(name, str) and SLUG.fullmatch(name)}
