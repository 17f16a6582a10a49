"""REST for nodes: read, cordon, drain and uncordon them, and preview the effects."""

from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.filters import NodeFilter
from scheduling.api.node_serializers import (
    DrainInput,
    EmptyInput,
    NodeEffectsOutput,
    NodeOrdersOutput,
    NodeOutput,
    NodePlanInput,
    NodePlanOutput,
    NodePreviewInput,
    NodeReason,
)
from scheduling.models import Cluster, NodeRecord
from scheduling.queries import selectors
from scheduling.queries.nodes.defragment import defragmentation
from scheduling.queries.nodes.effects import NodeAct, NodeEffects, NodesMeant, node_effects
from scheduling.queries.nodes.orders import NodeTask, order_of, orders_of, tasks_of
from scheduling.services.clusters.node_orders import (
    empty_nodes,
    lift_order,
    order_node,
    refuse_lifts,
    refuse_orders,
    time_faults,
)
from scheduling.services.clusters.plan_orders import WholeNodes
from tenants.api.base import ListView, View, rehearsed
from tenants.api.effects import DryRunWithEffects, effects_body
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape
from tenants.errors import Invalid, NotAllowed, NotFound
from tenants.models import User
from tenants.permissions import access_of
from tenants.services.audit import API, Why


class NodesView(ListView):
    shapes = {
        "GET": Shape(NodeOutput, many=True),
    }

    page_order = ("name",)
    filterset_class = NodeFilter
    queryset = NodeRecord.objects.none()
    serializer_class = NodeOutput

    def get_queryset(self) -> QuerySet[NodeRecord]:
        return selectors.nodes_of(selectors.cluster_by_name(self.kwargs["name"]))

    def get_serializer_context(self) -> dict[str, Any]:
        cluster = selectors.cluster_by_name(self.kwargs["name"])
        tasks = {task.node: task for task in orders_of(cluster)}
        own = {"tasks": tasks, "access": access_of(self.actor)}
        return {**super().get_serializer_context(), **own}

    def get(self, _request: Request, name: str) -> Response:  # noqa: ARG002
        return self.page(NodeOutput)


class NodeView(View):
    shapes = {
        "GET": Shape(NodeOutput),
    }

    def get(self, _request: Request, name: str, node: str) -> Response:
        cluster = selectors.cluster_by_name(name)
        return Response(_shown(self.actor, cluster, node, order_of(cluster.pk, node)))


class NodeActionView(View):
    """An operator's action on a node."""

    shapes: ClassVar[dict[str, Shape]] = {
        "POST": Shape(NodeOutput, NodeReason, rehearsal=DryRunWithEffects)
    }
    act: ClassVar[NodeAct] = NodeAct.CORDON

    @idempotent()
    def post(self, _request: Request, name: str, node: str) -> Response:
        given = self.body(DrainInput if self.act is NodeAct.DRAIN else NodeReason)
        cluster = selectors.cluster_by_name(name)
        why, evict_at = Why(given["reason"], API), given.get("evict_at")
        order = None
        if self.act is NodeAct.UNCORDON:
            lift_order(self.actor, cluster, node, why=why, dry_run=self.dry_run)
        else:
            order = order_node(
                self.actor,
                cluster,
                node,
                drains=self.act is NodeAct.DRAIN,
                evict_at=evict_at,
                why=why,
                dry_run=self.dry_run,
            )
        task = tasks_of([order])[0] if order is not None else None
        body = _shown(self.actor, cluster, node, task)
        if self.dry_run:
            found = node_effects(
                self.actor, cluster, NodesMeant(self.act, (node,), evict_at=evict_at)
            )
            return rehearsed("update", body, effects=effects_body(found.effects))
        return Response(body)


class NodeCordonView(NodeActionView):
    """Cordon a node: Kant places no more pods there.

    Running pods go on. A drain of the node ends, but pods already told to leave still leave.
    """


class NodeDrainView(NodeActionView):
    """Drain a node: Kant places no more pods there, and the pods of its jobs leave.

    Pods leave when they end by themselves; from `evict_at` on they are evicted. Jobs that want a
    warning get it early enough to save their work by then. Gangs leave whole, disruption budgets
    hold, and an evicted job waits again at the front of the queue without a failure being counted.
    """

    shapes = {"POST": Shape(NodeOutput, DrainInput, rehearsal=DryRunWithEffects)}
    act = NodeAct.DRAIN


class NodeUncordonView(NodeActionView):
    """Uncordon a node: it takes jobs again.

    A drain ends; pods already told to leave still leave.
    """

    act = NodeAct.UNCORDON


NODE_ACTIONS: dict[str, type[NodeActionView]] = {
    "cordon": NodeCordonView,
    "drain": NodeDrainView,
    "uncordon": NodeUncordonView,
}


class NodePreviewView(View):
    """Preview what cordoning, draining, uncordoning or adding nodes would do to jobs.

    Nothing is changed. For operators.
    """

    shapes = {"POST": Shape(NodeEffectsOutput, NodePreviewInput)}

    @idempotent()
    def post(self, _request: Request, name: str) -> Response:
        given = self.body(NodePreviewInput)
        if not self.actor.is_operator:
            raise NotAllowed("Only operators can preview changes of nodes.")
        cluster, wish = selectors.cluster_by_name(name), _wish(given)
        found = node_effects(self.actor, cluster, wish)
        _refuse_as_the_act(cluster, wish)
        return Response(_effects(found))


class NodePlanView(View):
    """Plan how to free more whole nodes, or how to start a waiting job.

    The plan says which nodes are emptied, which jobs move where, and what work is lost. Nothing is
    changed. For operators.
    """

    shapes = {"POST": Shape(NodePlanOutput, NodePlanInput)}

    @idempotent()
    def post(self, _request: Request, name: str) -> Response:
        given = self.body(NodePlanInput)
        if not self.actor.is_operator:
            raise NotAllowed("Only operators can plan to move jobs of others.")
        wish, cluster = wished(given), selectors.cluster_by_name(name)
        found = defragmentation(
            self.actor, cluster, gpu_model=wish.gpu_model, nodes=wish.count, job=wish.job
        )
        return Response(NodePlanOutput(found).data)


class NodeEmptyView(View):
    """Carry out a plan: all jobs leave these nodes at once and are placed elsewhere.

    The nodes take jobs again once all of them are empty, or after half an hour.
    """

    shapes = {"POST": Shape(NodeOrdersOutput, EmptyInput)}

    @idempotent()
    def post(self, _request: Request, name: str) -> Response:
        given = self.body(EmptyInput)
        cluster, why = selectors.cluster_by_name(name), Why(given["reason"], API)
        orders = empty_nodes(self.actor, cluster, given["nodes"], why=why, dry_run=self.dry_run)
        body = {"nodes": [order.node for order in orders], "opens_at": orders[0].opens_at}
        body = dict(NodeOrdersOutput(body).data)
        return rehearsed("update", body) if self.dry_run else Response(body)


def wished(given: dict[str, Any]) -> WholeNodes:
    """Return the whole nodes that a request asks for. Raises Invalid naming the field."""
    job, model, count = given.get("job"), given.get("gpu_type", ""), given.get("count", 0)
    if job is None:
        for field in ("gpu_type", "count"):
            if field not in given:
                raise Invalid.field(field, "Give gpu_type and count, or job.")
    elif model or count:
        raise Invalid.field("job", "Give either a job, or gpu_type and count.")
    return WholeNodes(model, count, job)


def _wish(given: dict[str, Any]) -> NodesMeant:
    """Return the nodes and the action that a preview is about. Raises Invalid naming the field."""
    act, names, evict_at = NodeAct(given["action"]), given.get("nodes", []), given.get("evict_at")
    if act is NodeAct.ADD and names:
        raise Invalid.field("nodes", "New nodes have no names yet. Leave this out.")
    if not names:
        for field in ("gpu_type", "count"):
            if field not in given:
                raise Invalid.field(field, "Give the names of nodes, or gpu_type and count.")
    if faults := list(time_faults(evict_at, drains=act is NodeAct.DRAIN)):
        raise Invalid.fields(faults)
    if act is NodeAct.UNCORDON and not names:
        raise Invalid.field("nodes", "Name the nodes that may take jobs again.")
    return NodesMeant(act, tuple(names), given.get("gpu_type", ""), given.get("count", 0), evict_at)


def _refuse_as_the_act(cluster: Cluster, wish: NodesMeant) -> None:
    """Raise Conflict if one of the named nodes is already in that state."""
    if wish.act is NodeAct.UNCORDON:
        refuse_lifts(cluster, wish.names)
    elif wish.act in (NodeAct.CORDON, NodeAct.DRAIN):
        drains = wish.act is NodeAct.DRAIN
        refuse_orders(cluster, wish.names, drains=drains, evict_at=wish.evict_at)


def _effects(found: NodeEffects) -> dict[str, Any]:
    return {"nodes": list(found.nodes), "effects": effects_body(found.effects)}


def _shown(viewer: User, cluster: Cluster, node: str, task: NodeTask | None) -> dict[str, Any]:
    """Return a node with the order for it. Raises NotFound."""
    found = selectors.nodes_of(cluster).filter(name=node).first()
    if found is None:
        raise NotFound(selectors.no_node(cluster, node))
    context = {"tasks": {node: task} if task else {}, "access": access_of(viewer)}
    return dict(NodeOutput(found, context=context).data)
