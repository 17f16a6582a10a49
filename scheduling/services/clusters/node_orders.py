"""Cordon and drain nodes, and lift such orders. The nodes' scheduler carries them out."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from scheduling.models import Cluster, NodeOrder, NodeRecord, Placement
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.selectors import no_node
from scheduling.services.common.doorbell import ring_after_commit
from tenants.errors import Conflict, FieldError, Invalid, NotAllowed, NotFound
from tenants.models import User
from tenants.services import audit
from tenants.services.audit import Why
from tenants.services.transactions import unit_of_work

CORDONED, DRAINS, UNCORDONED = "node.cordoned", "node.drained", "node.uncordoned"
LATEST = timedelta(days=366)
# How long until a plan that some pod blocks is given up.
PLAN_WITHIN = timedelta(minutes=30)


def order_node(
    actor: User,
    cluster: Cluster,
    node: str,
    *,
    drains: bool,
    evict_at: datetime | None = None,
    why: Why,
    dry_run: bool = False,
) -> NodeOrder:
    """Cordon a node; with `drains`, also let the pods of its jobs leave.

    They leave from `evict_at` on without waiting for their ends; None = the drain waits for them.
    Replaces an earlier order. Raises NotAllowed, NotFound, Invalid naming each field, Conflict if
    the node already has this order.
    """
    _operators_only(actor)
    _refuse([*why.faults(required=True), *time_faults(evict_at, drains=drains)])
    _known(cluster, node)
    with unit_of_work(dry_run):
        before = _locked(cluster, node)
        _refuse_again(before, node, drains=drains, evict_at=evict_at)
        order = NodeOrder(cluster=cluster, node=node, drains=drains, evict_at=evict_at)
        _order(actor, order, before, why)
        ring_after_commit(cluster.pk)
    return order


def empty_nodes(
    actor: User,
    cluster: Cluster,
    nodes: Sequence[str],
    *,
    why: Why,
    plan: uuid.UUID | None = None,
    dry_run: bool = False,
) -> list[NodeOrder]:
    """Let all pods of jobs leave these nodes at once, all or nothing.

    The nodes take jobs again by themselves when all of them are empty, or `PLAN_WITHIN` later.
    `plan`: the id by which their orders belong together, None = a new one. Raises like
    `order_node`, and Conflict if one of the nodes already has an order.
    """
    _operators_only(actor)
    _refuse([*why.faults(required=True)])
    now, plan = timezone.now(), plan or uuid.uuid4()
    orders = [
        NodeOrder(
            cluster=cluster,
            node=node,
            drains=True,
            evict_at=now,
            plan=plan,
            opens_at=now + PLAN_WITHIN,
        )
        for node in dict.fromkeys(nodes)
    ]
    with unit_of_work(dry_run):
        for order in orders:
            _known(cluster, order.node)
            if (before := _locked(cluster, order.node)) is not None:
                raise Conflict(f"Node “{order.node}” is {_word(before)} already, by {before.by}.")
            _order(actor, order, None, why)
        ring_after_commit(cluster.pk)
    return orders


def lift_order(
    actor: User, cluster: Cluster, node: str, *, why: Why, dry_run: bool = False
) -> NodeOrder:
    """Let jobs use a node again. A drain ends; pods that have not been told to leave stay.

    Returns the lifted order. Raises NotAllowed, Invalid without a reason, NotFound, Conflict if
    there is no order.
    """
    _operators_only(actor)
    _refuse([*why.faults(required=True)])
    with unit_of_work(dry_run):
        before = _locked(cluster, node)
        if before is None:
            _known(cluster, node)
            raise _nothing_to_lift(node)
        NodeOrder.objects.filter(pk=before.pk).delete()
        _record(actor, UNCORDONED, cluster, node, before, None, why)
        ring_after_commit(cluster.pk)
    return before


def refuse_orders(
    cluster: Cluster, nodes: Sequence[str], *, drains: bool, evict_at: datetime | None
) -> None:
    """Raise Conflict if `order_node` would refuse any of these nodes, for the first of them."""
    found = {order.node: order for order in _orders_of(cluster, nodes)}
    for node in nodes:
        _refuse_again(found.get(node), node, drains=drains, evict_at=evict_at)


def refuse_lifts(cluster: Cluster, nodes: Sequence[str]) -> None:
    """Raise Conflict if `lift_order` would refuse any of these nodes, for the first of them."""
    found = {order.node for order in _orders_of(cluster, nodes)}
    for node in nodes:
        if node not in found:
            raise _nothing_to_lift(node)


def subject_of_node(cluster: str, node: str) -> str:
    """Return the name of a node in the audit trail."""
    return f"{cluster} / {node}"


def time_faults(evict_at: datetime | None, *, drains: bool) -> Iterator[FieldError]:
    """Yield what is wrong with the time at which pods would leave, in an order or its preview."""
    if evict_at is not None and not drains:
        yield FieldError(
            ("evict_at",), "Only a drain has a deadline. Leave this out, or drain the node."
        )
    if evict_at is not None and evict_at > timezone.now() + LATEST:
        yield FieldError(("evict_at",), "Must be within a year.")


def _operators_only(actor: User) -> None:
    if not actor.is_operator:
        raise NotAllowed("Only operators can cordon and drain nodes.")


def _refuse(faults: list[FieldError]) -> None:
    if faults:
        raise Invalid.fields(faults)


def _known(cluster: Cluster, node: str) -> None:
    if not NodeRecord.objects.filter(cluster=cluster, name=node).exists():
        raise NotFound(no_node(cluster, node))


def _locked(cluster: Cluster, node: str) -> NodeOrder | None:
    return NodeOrder.objects.select_for_update().filter(cluster=cluster, node=node).first()


def _orders_of(cluster: Cluster, nodes: Sequence[str]) -> QuerySet[NodeOrder]:
    return NodeOrder.objects.filter(cluster=cluster, node__in=nodes)


def _refuse_again(
    before: NodeOrder | None, node: str, *, drains: bool, evict_at: datetime | None
) -> None:
    if before is not None and (before.drains, before.evict_at) == (drains, evict_at):
        raise Conflict(f"Node “{node}” is {_word(before)} already, by {before.by}: {before.reason}")


def _nothing_to_lift(node: str) -> Conflict:
    return Conflict(
        f"Node “{node}” is neither cordoned nor drained by Kant. If somebody cordoned it outside "
        "Kant, uncordon it there, e.g. with kubectl."
    )


def _order(actor: User, order: NodeOrder, before: NodeOrder | None, why: Why) -> None:
    """Write and record an order, replacing the one before."""
    if before is not None:
        order.pk, order.version = before.pk, before.version + 1
    drained = before if before and before.drains else None
    order.pods = drained.pods if drained else _pods_on(order.cluster, order.node)
    order.reason, order.by, order.at = why.reason.strip(), actor.get_username(), timezone.now()
    order.save()
    action = DRAINS if order.drains else CORDONED
    _record(actor, action, order.cluster, order.node, before, order, why)


def _pods_on(cluster: Cluster, node: str) -> int:
    # Of all clusters: filtered by cluster, SQLite walks through every job it ever had.
    live = Placement.objects.filter(node=node, state__in=LIVE_PLACEMENTS)
    return sum(of == cluster.pk for of in live.values_list("job__cluster_id", flat=True))


def _word(order: NodeOrder) -> str:
    return "being drained" if order.drains else "cordoned"


def _record(
    actor: User,
    action: str,
    cluster: Cluster,
    node: str,
    before: NodeOrder | None,
    after: NodeOrder | None,
    why: Why,
) -> None:
    audit.record(
        actor,
        action,
        subject_of_node(cluster.name, node),
        before=_document(before) if before else None,
        after=_document(after) if after else None,
        reason=why.reason.strip(),
        source=why.source,
    )


def _document(order: NodeOrder) -> dict[str, Any]:
    return {
        "drains": order.drains,
        "evict_at": order.evict_at.isoformat() if order.evict_at else None,
        "reason": order.reason,
        "by": order.by,
        "opens_at": order.opens_at.isoformat() if order.opens_at else None,
    }
