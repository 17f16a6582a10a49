"""The facts by which plain pods are judged: tenants, queues, limits, GPU types, and the cluster.

All of it is read once for the pods of a pass, by as many statements for a thousand pods as for one.
A document is checked once for all pods that ask for the same.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import msgspec
from django.db import connection

from scheduling.job_fields.definition import JobDocument
from scheduling.job_fields.faults import Faults
from scheduling.job_fields.nouns import check_values
from scheduling.kube.seam import PodFacts
from scheduling.kube.translate.manifests import TENANT
from scheduling.kube.translate.plain_pods import GANG, GANG_SIZE
from scheduling.kube.workloads.members import gang_of
from scheduling.models import Cluster
from scheduling.services.clusters import namespace_rights
from scheduling.services.common.asked_once import AskedOnce
from scheduling.services.jobs import waiting_limits
from scheduling.services.jobs.capacity import Installed, refuse_what_never_fits
from scheduling.services.jobs.orders import (
    Order,
    known_gpu_types,
    refuse_anywhere,
    refuse_inactive,
)
from scheduling.services.jobs.validation import job_spec
from scheduling.services.plain_pods.gpu_resources import of_its_resource
from scheduling.services.plain_pods.queue_names import QueueNames
from scheduling.services.plain_pods.rules import refuse_what_may_not_be_named
from scheduling.services.plain_pods.spec import PodSets, Refused, document_of, refusal_of
from scheduling.services.queues import entry
from tenants.database import rows
from tenants.errors import DomainError
from tenants.models import Queue, Tenant
from tenants.tree import Tree

# The fields of a document that differ between pods that ask for the same.
OWN = ("name", "labels")
FRESH_S = 10.0
NAMED_LATELY = 4  # sets of tenants and queues that `renew` reads again, too
AHEAD_S = 3.0  # how much earlier it is read again between passes, which come every second
TOO_MANY_WAITING = "TooManyWaiting"


class Accepted(NamedTuple):
    """An order that tenant, queue and cluster accept, with the job's own name and labels.

    Pods that ask for the same share the order.
    """

    order: Order
    name: str
    labels: Mapping[str, str]


class WhichParties(NamedTuple):
    """Which tenants and queues to read: ids of tenants, ids of queues' owners, names of queues."""

    tenants: tuple[int, ...]
    owners: tuple[int, ...]
    queues: tuple[str, ...]


class Parties(NamedTuple):
    """Tenants and queues as they were read."""

    tenants: Sequence[Tenant]
    queues: Sequence[Queue]


class Shelf:
    """Facts that hardly ever change, kept by a scheduler from pass to pass.

    They are forgotten after FRESH_S, or when the settings change with which they were read.

    - `is_read`: they may be older than the current transaction.
    - `orders`: by what pods ask for, orders that were judged by nothing else.
    - `prepared`: what was made of these orders.
    """

    def __init__(self) -> None:
        self.is_read = False
        self.orders: dict[bytes, Order] = {}
        self.prepared: dict[int, Any] = {}
        self._held: dict[WhichParties, Parties] = {}
        self._named: dict[WhichParties, None] = {}  # what was asked for, the last at the end
        self._settings: tuple[object, ...] = ()
        self._until = 0.0

    def as_of(self, settings: tuple[object, ...]) -> Self:
        """Return the facts, forgotten if outdated. `settings` are from session/memory/look.py."""
        if settings != self._settings or time.monotonic() > self._until:
            self.forget()
            self._settings = settings
        return self

    def renew(self, cluster_id: int, settings: tuple[object, ...]) -> None:
        """Read facts again that will soon be too old, so that the next pass need not wait for it.

        Only if pods were judged by them. Call this between passes; `settings` as for `as_of`.
        """
        if not self._settings or time.monotonic() < self._until - AHEAD_S:
            return
        self.forget()
        self._settings = settings
        self.of(cluster_id)
        _ = self.tree, self.installed.pools, self.gpu_types
        self._named = dict.fromkeys([*self._named][-NAMED_LATELY:])
        for asked in [*self._named]:
            self.held(asked)
        self.is_read = True

    def forget(self) -> None:
        """Read everything again, as nodes or other things may have changed."""
        for name in ("cluster", "tree", "installed", "gpu_types"):
            self.__dict__.pop(name, None)
        for kept in (self.orders, self.prepared, self._held):
            kept.clear()
        self.is_read, self._until = False, time.monotonic() + FRESH_S

    def held(self, asked: WhichParties) -> Parties:
        """Return these tenants and queues, read the first time."""
        if asked not in self._held:
            self._held[asked] = _read(asked, locks=False)
            self._named.pop(asked, None)
            self._named[asked] = None
        return self._held[asked]

    def of(self, cluster_id: int) -> Cluster:
        self._cluster_id = cluster_id
        return self.cluster

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.objects.get(id=self._cluster_id)

    @cached_property
    def tree(self) -> Tree:
        return Tree()

    @cached_property
    def installed(self) -> Installed:
        return Installed(self.cluster)

    @cached_property
    def gpu_types(self) -> list[str]:
        return known_gpu_types()


class Premises(NamedTuple):
    """What must still hold when jobs are written that were made before their transaction.

    Versions of tenants and queues, by id.
    """

    tenants: Mapping[int, int]
    queues: Mapping[int, int]


class Books:
    """What is known in one transaction, to its end, of what pods of a cluster may use.

    `ahead`: known before the transaction; this is right as far as `premises` hold. None = premises
    do not suffice, since waiting jobs must be counted or a queue must be made.
    """

    def __init__(self, shelf: Shelf, *, ahead: bool = False) -> None:
        self.cluster = shelf.cluster
        self.premises: Premises | None = None
        self._shelf = shelf
        self._ahead = ahead
        self._tree = shelf.tree
        self._tenants: dict[int, Tenant] = {}
        self._queues: dict[tuple[int, str], Queue] = {}
        self._once = AskedOnce()
        self._waiting = Counter[tuple[int, str]]()  # jobs by tenant and queue
        self._waiting_below = Counter[int]()  # jobs of a limited tenant and those below it
        self._orders: dict[bytes, Order] = shelf.orders if ahead else {}

    def names_for(self, pods: Sequence[PodFacts]) -> QueueNames:
        """Return what queue names mean to these pods of one namespace."""
        cluster, of_namespace = self.cluster, ""
        if not all(TENANT in pod.labels for pod in pods):
            of_namespace = namespace_rights.only_tenant(cluster, self._tree, pods[0].namespace)
        return QueueNames(cluster.name, cluster.queue_map, of_namespace)

    def hold(self, named: Iterable[tuple[str, str]]) -> None:
        """Read and lock these (tenant, queue) if they exist; count jobs waiting in limited ones.

        Nobody then changes or deletes them before the jobs are written. Ahead of the transaction
        they are only read.
        """
        queues = {(self._tree.id_of(tenant), queue) for tenant, queue in named}
        mine = {tenant_id for tenant_id, _ in queues if tenant_id is not None}
        above = {b.id for each in mine for b in self._tree.above(each) if b.max_waiting is not None}
        tenants, owners = (tuple(sorted(some)) for some in (mine | above, mine))
        asked = WhichParties(tenants, owners, tuple(sorted({name for _, name in queues})))
        held = self._shelf.held(asked) if self._ahead else _read(asked, locks=True)
        self._tenants = {tenant.pk: tenant for tenant in held.tenants}
        self._queues = {(queue.tenant_id, queue.name): queue for queue in held.queues}
        if not self._ahead:
            self._count_waiting()
        elif queues <= self._queues.keys() and not any(
            one.max_waiting is not None for some in held for one in some
        ):
            self.premises = Premises(*({one.pk: one.version for one in some} for some in held))

    def _count_waiting(self) -> None:
        limited = [t.pk for t in self._tenants.values() if t.max_waiting is not None]
        below = {tenant_id: self._tree.below(tenant_id) for tenant_id in limited}
        of = {q.tenant_id for q in self._queues.values() if q.max_waiting is not None}
        ids = of.union(*below.values())
        if not ids:
            return
        self._waiting.update(waiting_limits.waiting_in(ids))
        for (tenant, _), jobs in self._waiting.items():
            for tenant_id in limited:
                if tenant in below[tenant_id]:
                    self._waiting_below[tenant_id] += jobs

    def accept(self, sets: PodSets) -> Accepted:
        """Return the order of the job that pods of a unit become. Raises Refused."""
        tenant = self._tenant_of(sets)
        namespace = sets[0][0].pod.namespace
        if no := namespace_rights.refusal(self.cluster, self._tree, namespace, tenant):
            raise Refused("TenantNotAllowed", no)
        pods = [(one.pod, one.of_job["priority"]) for part in sets for one in part]
        refuse_what_may_not_be_named(self.cluster.job_rules, pods)
        try:
            return self._accepted(tenant, sets)
        except DomainError as error:
            raise refusal_of(error, sets) from None

    def take_in(self, order: Order) -> None:
        """Count one more waiting job. Raises Refused if it is one too many."""
        tenant, queue = order.tenant, order.queue
        key = tenant.pk, queue.name
        above = [self._tenants[b.id] for b in self._tree.above(tenant.pk) if b.id in self._tenants]
        limited = [each for each in above if each.max_waiting is not None]
        try:
            for each in sorted(limited, key=lambda each: each.pk):
                waiting_limits.refuse_more(each, self._waiting_below[each.pk], 1)
            entry.refuse_more(tenant, queue, self._waiting[key], 1)
            if key not in self._queues:
                entry.take_in(queue, 1)
                self._queues[key] = queue
        except DomainError as error:
            raise Refused(TOO_MANY_WAITING, error.detail) from None
        self._waiting[key] += 1
        self._waiting_below.update(each.pk for each in limited)

    def _tenant_of(self, sets: PodSets) -> Tenant:
        name = sets[0][0].of_job["tenant"]
        tenant = self._tenants.get(self._tree.id_of(name) or 0)
        if tenant is None:
            text = f"There is no tenant “{name}”. Set the label {TENANT} to an existing tenant."
            raise Refused("UnknownTenant", text)
        try:
            refuse_inactive(tenant)
        except DomainError as error:
            raise Refused("TenantInactive", error.detail) from None
        return tenant

    def _accepted(self, tenant: Tenant, sets: PodSets) -> Accepted:
        document = of_its_resource(
            document_of(sets, self.cluster.name), sets, self._shelf.installed
        )
        apart = _apart(sets[0][0].pod)
        own = {name: document[name] for name in OWN}
        common = {name: value for name, value in document.items() if name not in OWN}
        alike = msgspec.json.encode((common, apart))
        order = self._orders.get(alike)
        if order is None:
            order = self._orders[alike] = self._order(tenant, document, apart)
        else:
            faults = Faults()
            check_values(JobDocument, own, (), faults)
            faults.raise_if_any()
        return Accepted(order, **own)

    def _order(self, tenant: Tenant, document: Mapping[str, Any], apart: str) -> Order:
        spec = job_spec(document)
        queue = self._queue(tenant, spec.job.queue)
        spec = entry.fitted(queue, document, spec)
        refuse_anywhere(spec, tenant, self._tree, self._shelf.gpu_types)
        refuse_what_never_fits(self._shelf.installed, spec, apart)
        return Order(spec, tenant, self.cluster, queue)

    def _queue(self, tenant: Tenant, name: str) -> Queue:
        """Return the queue, asked for once. Raises like `entry.queue_to_enter`."""
        return self._once((tenant.pk, name), lambda: self._entered(tenant, name))

    def _entered(self, tenant: Tenant, name: str) -> Queue:
        queue = self._queues.get((tenant.pk, name))
        if queue is None:
            return entry.queue_to_enter(None, tenant, name)  # raises, unless to be made
        entry.refuse_entry(None, tenant, queue)
        return queue


def _read(asked: WhichParties, *, locks: bool) -> Parties:
    """Read these tenants, and the queues of these names that `owners` have.

    `locks`: nobody changes them until the transaction ends; they are locked in the same order as by
    submissions.
    """
    tenants, owners, names = asked
    quote = connection.ops.quote_name
    tenant, queue = (quote(model._meta.db_table) for model in (Tenant, Queue))
    locks = locks and connection.features.has_select_for_update
    no_key, key = (" FOR NO KEY UPDATE", " FOR UPDATE") if locks else ("", "")
    found = rows.ask(
        f"""
        WITH t AS (
            SELECT * FROM {tenant} WHERE id IN ({rows.marks(tenants)}) ORDER BY id{no_key}
        ), q AS (
            SELECT * FROM {queue} WHERE tenant_id IN ({rows.marks(owners)})
                AND name IN ({rows.marks(names)}) ORDER BY id{key}
        )
        SELECT {rows.listed(rows.as_json(Tenant, "t"), "t")},
            {rows.listed(rows.as_json(Queue, "q"), "q")}
        """,
        [*tenants, *owners, *names],
    )
    assert found is not None  # it selects lists
    of_tenants, of_queues = (one or [] for one in found)
    return Parties(
        [rows.row(Tenant, told) for told in of_tenants],
        [rows.row(Queue, told) for told in of_queues],
    )


def _apart(pod: PodFacts) -> str:
    """Return how to let the pods of its gang start one by one."""
    if GANG in pod.labels or not gang_of(pod):
        return f"leave {GANG} and {GANG_SIZE} out"
    return f'set the annotation {GANG_SIZE} to "1"'
