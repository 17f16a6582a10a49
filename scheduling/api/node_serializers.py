"""Serializers of nodes: their state, orders for them, and previews."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.models import NodeRecord, PlanOrderState
from scheduling.queries.effects import seen_with
from scheduling.queries.nodes.effects import MOST_NODES, NodeAct
from scheduling.queries.nodes.orders import JobThere
from tenants.api.effects import AffectedJobOutput, EffectsOutput
from tenants.api.fields import Choice, Integer, List, Moment, Number, Serializer, Text, Uuid
from tenants.api.fields import Gpus as GpusField
from tenants.api.serializers import ReasonInput

PREVIEWED = tuple(act.value for act in NodeAct)


class JobThereOutput(serializers.Serializer[JobThere]):
    """A job with `pods` on the node, `leaving` of which were told to leave.

    `kept_back`: it is past the drain's time, and a disruption budget keeps them.
    """

    job = serializers.SerializerMethodField()
    pods = serializers.IntegerField()
    leaving = serializers.IntegerField()
    kept_back = serializers.BooleanField()

    @extend_schema_field(AffectedJobOutput())
    def get_job(self, there: JobThere) -> Any:
        return AffectedJobOutput(seen_with(self.context["access"], there.job)).data


class NodeOrderOutput(serializers.Serializer[Any]):
    """An operator's order for a node.

    `state`: `cordoned`, `draining` while pods of jobs are there, then `drained`. `evict_at`: when
    remaining pods are evicted, null = never. `pods`: how many were there when the order was given.
    `kept_back`: jobs that a disruption budget keeps there although it is past that time.
    `opens_at`: when the node takes jobs again by itself, or earlier once all nodes of its plan are
    empty; null = only when it is uncordoned.
    """

    state = serializers.ChoiceField(["cordoned", "draining", "drained"])
    evict_at = serializers.DateTimeField(source="order.evict_at", allow_null=True)
    reason = serializers.CharField(source="order.reason")
    by = serializers.CharField(source="order.by")
    at = serializers.DateTimeField(source="order.at")
    opens_at = serializers.DateTimeField(source="order.opens_at", allow_null=True)
    pods = serializers.IntegerField(source="order.pods")
    pods_left = serializers.IntegerField()
    leaving = serializers.IntegerField()
    kept_back = serializers.IntegerField()
    jobs = JobThereOutput(many=True)


class NodeOutput(serializers.Serializer[NodeRecord]):
    """A node as the scheduler last saw it.

    `facts` says which label each value came from; facts whose names begin with `other_` are what
    pods of other schedulers hold on it. The fact `device_choice` is `exact` if pods get the GPUs
    that Kant chose, and `count` if the device plugin chooses; then it is a guess which GPU a pod
    has.

    `cpu_milli` and `memory_mib`: what pods may request; `allocated_cpu_milli` and
    `allocated_memory_mib`: what all pods on it request. `scope`: the shard that owns it now, `wide`
    while it is lent, empty in an undivided cluster. `order`: an operator's order for it and its
    progress, null = none.
    """

    name = serializers.CharField()
    scope = serializers.CharField()
    gpu_type = serializers.CharField(source="gpu_model")
    gpus = serializers.IntegerField()
    healthy_gpus = serializers.IntegerField()
    allocated = GpusField(source="allocated_milli")
    cpu_milli = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    allocated_cpu_milli = serializers.IntegerField()
    allocated_memory_mib = serializers.IntegerField()
    leaf = serializers.CharField()
    spine = serializers.CharField()
    superspine = serializers.CharField()
    hyper_node = serializers.CharField()
    zone = serializers.CharField()
    schedulable = serializers.BooleanField()
    facts = serializers.DictField()
    problems = serializers.ListField(child=serializers.CharField())
    updated_at = serializers.DateTimeField()
    order = serializers.SerializerMethodField()

    @extend_schema_field(NodeOrderOutput(allow_null=True))
    def get_order(self, row: NodeRecord) -> Any:
        task = self.context["tasks"].get(row.name)
        return NodeOrderOutput(task, context=self.context).data if task else None


class NodeReason(ReasonInput):
    """The reason, which is kept in the audit trail and shown with the node."""

    reason = Text(max_length=2000)


class DrainInput(NodeReason):
    """`evict_at`: when remaining pods are evicted; null = never, a past time = at once."""

    evict_at = Moment(required=False, allow_null=True)


class NodePreviewInput(Serializer):
    """An action on nodes to preview.

    `cordon`, `drain` (with evictions from `evict_at` on, null = none), `remove` or `uncordon` apply
    to the named nodes. If none are named, they apply to the `count` nodes of a GPU type whose jobs
    lose the least work. `add`: `count` more nodes like those that exist.
    """

    action = Choice(PREVIEWED)
    nodes = List(child=Text(max_length=253), required=False, max_length=MOST_NODES)
    gpu_type = Text(max_length=63, required=False)
    count = Integer(min_value=1, max_value=MOST_NODES, required=False)
    evict_at = Moment(required=False, allow_null=True)


class NodePlanInput(Serializer):
    """The goal: `count` more whole nodes of a GPU type, or the start of a waiting job."""

    gpu_type = Text(max_length=63, required=False)
    count = Integer(min_value=1, max_value=MOST_NODES, required=False)
    job = Uuid(required=False)


class EmptyInput(NodeReason):
    """The nodes to empty, as a plan names them."""

    nodes = List(child=Text(max_length=253), allow_empty=False, max_length=MOST_NODES)


class MovingJobOutput(serializers.Serializer[Any]):
    """A job that would move `pods` of its pods to `targets`; `whole`: all of them.

    `lost_gpu_s`: GPU-seconds of work to be done again, zero if the job saves its work within the
    `notice_s` seconds of warning that it gets.
    """

    job = AffectedJobOutput()
    pods = serializers.IntegerField()
    whole = serializers.BooleanField()
    lost_gpu_s = serializers.FloatField()
    notice_s = serializers.FloatField()
    targets = serializers.ListField(child=serializers.CharField())


class NodeFiguresOutput(serializers.Serializer[Any]):
    """Nodes of the GPU type: all, wholly free, partly free; `gfr` = partly free ones / all."""

    nodes = serializers.IntegerField()
    idle = serializers.IntegerField()
    fragmented = serializers.IntegerField()
    gfr = serializers.FloatField()


class NodePlanOutput(serializers.Serializer[Any]):
    """A plan: emptying `nodes` by `moves`, which cost `lost_gpu_s`.

    Then `gained` more nodes are whole, and `starts` start. If the goal is not `reached`, the plan
    is the best that was found. Disruption budgets are checked only when the plan is carried out.
    """

    as_of = serializers.DateTimeField()
    gpu_type = serializers.CharField(source="gpu_model")
    nodes = serializers.ListField(child=serializers.CharField())
    moves = MovingJobOutput(many=True)
    starts = AffectedJobOutput(many=True)
    lost_gpu_s = serializers.FloatField()
    before = NodeFiguresOutput()
    after = NodeFiguresOutput()
    gained = serializers.IntegerField()
    reached = serializers.BooleanField()


class NodeOrdersOutput(serializers.Serializer[Any]):
    """The nodes that were ordered to be emptied."""

    nodes = serializers.ListField(child=serializers.CharField())
    opens_at = serializers.DateTimeField()


class PlanOrderInput(NodePlanInput):
    """When to free whole nodes, and what that may cost.

    The plan is made at `starts_at`, and again each minute until `ends_at` (by default 15 minutes
    later) while it exceeds `most_lost_gpu_s` GPU-seconds of lost work or `most_moves` jobs moved.
    """

    starts_at = Moment()
    ends_at = Moment(required=False, allow_null=True)
    most_lost_gpu_s = Number(min_value=0, max_value=1e12)
    most_moves = Integer(min_value=0, max_value=1_000_000)
    reason = Text(max_length=2000)


class PlanOrderOutput(serializers.Serializer[Any]):
    """An order to free whole nodes at a given time.

    `state`: `scheduled`, `moving` while jobs leave, then `done`; `failed` if no plan was within the
    approved limits; or `cancelled`. `outcome`: why, or which jobs a disruption budget kept.
    `nodes`, `lost_gpu_s` and `moves`: of the plan that was carried out.
    """

    id = serializers.UUIDField()
    cluster = serializers.CharField(source="cluster.name")
    state = serializers.ChoiceField(PlanOrderState.values)
    author = serializers.CharField(source="author_name")
    reason = serializers.CharField()
    gpu_type = serializers.CharField(source="gpu_model")
    count = serializers.IntegerField()
    job = serializers.UUIDField(allow_null=True)
    most_lost_gpu_s = serializers.FloatField()
    most_moves = serializers.IntegerField()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    tried_at = serializers.DateTimeField(allow_null=True)
    applied_at = serializers.DateTimeField(allow_null=True)
    over_at = serializers.DateTimeField(allow_null=True)
    outcome = serializers.CharField()
    nodes = serializers.ListField(child=serializers.CharField())
    lost_gpu_s = serializers.FloatField()
    moves = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class NodeEffectsOutput(serializers.Serializer[Any]):
    """The nodes that the action would apply to, and its effects on jobs."""

    nodes = serializers.ListField(child=serializers.CharField())
    effects = EffectsOutput()
