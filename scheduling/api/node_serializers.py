"""Shapes of nodes in REST: what they are, what is wanted of them, what that would do."""

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
    """A job with `pods` on the node, `leaving` of which were told to go. `kept_back`: the time of
    the drain has come, and a disruption budget keeps them."""

    job = serializers.SerializerMethodField()
    pods = serializers.IntegerField()
    leaving = serializers.IntegerField()
    kept_back = serializers.BooleanField()

    @extend_schema_field(AffectedJobOutput())
    def get_job(self, there: JobThere) -> Any:
        return AffectedJobOutput(seen_with(self.context["access"], there.job)).data


class NodeOrderOutput(serializers.Serializer[Any]):
    """What an operator wants of a node. `state`: `cordoned`, `draining` while pods of jobs are
    there, then `drained`. `evict_at`: from when on these leave without waiting for their ends, null
    = they are waited for. `pods`: how many there were when it was ordered; `kept_back`: jobs that a
    disruption budget keeps there although the time has come. `opens_at`: it takes jobs again by
    itself then, or as soon as all nodes of its plan are empty; null = when it is uncordoned."""

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
    """A node as the scheduler last saw it; `facts` says which label each value came from;
    those that begin with `other_` are what pods that are not Kant's hold on it.

    The fact `device_choice` is `exact` where pods get the very GPUs that Kant chose, and `count`
    where the device plugin chooses: which GPU a pod has is a guess there.
    `cpu_milli` and `memory_mib` are what pods may ask for, `allocated_cpu_milli` and
    `allocated_memory_mib` what all pods on it ask for.
    `scope`: the shard that owns it now, `wide` while it is lent, empty in an undivided cluster.
    `order`: what an operator wants of it, and how far that is; null = nothing.
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
    """Why; kept in the audit trail, and shown with the node."""

    reason = Text(max_length=2000)


class DrainInput(NodeReason):
    """`evict_at`: from when on pods leave without waiting for their ends; null = they are waited
    for, a time that has passed = at once."""

    evict_at = Moment(required=False, allow_null=True)


class NodePreviewInput(Serializer):
    """What somebody would do to nodes: `cordon`, `drain` (from `evict_at` on, null = ends are
    waited for), `remove`, `uncordon` those of these names; or, where none are named, to `count`
    nodes of a GPU type, of which those are taken whose jobs lose least work. `add`: `count` more
    like those that are there."""

    action = Choice(PREVIEWED)
    nodes = List(child=Text(max_length=253), required=False, max_length=MOST_NODES)
    gpu_type = Text(max_length=63, required=False)
    count = Integer(min_value=1, max_value=MOST_NODES, required=False)
    evict_at = Moment(required=False, allow_null=True)


class NodePlanInput(Serializer):
    """Either `count` more whole nodes of a GPU type, or a job that waits and is to start."""

    gpu_type = Text(max_length=63, required=False)
    count = Integer(min_value=1, max_value=MOST_NODES, required=False)
    job = Uuid(required=False)


class EmptyInput(NodeReason):
    """The nodes that are to be emptied, as a plan names them."""

    nodes = List(child=Text(max_length=253), allow_empty=False, max_length=MOST_NODES)


class MovingJobOutput(serializers.Serializer[Any]):
    """A job that would move: `pods` of its pods, all of it where `whole`, to `targets`.
    `lost_gpu_s`: GPU-seconds of work that has to be done again, none if it saves it within the
    `notice_s` seconds that it is told before."""

    job = AffectedJobOutput()
    pods = serializers.IntegerField()
    whole = serializers.BooleanField()
    lost_gpu_s = serializers.FloatField()
    notice_s = serializers.FloatField()
    targets = serializers.ListField(child=serializers.CharField())


class NodeFiguresOutput(serializers.Serializer[Any]):
    """Nodes of the GPU type: all, wholly free, partly free; `gfr` = partly free ones of all."""

    nodes = serializers.IntegerField()
    idle = serializers.IntegerField()
    fragmented = serializers.IntegerField()
    gfr = serializers.FloatField()


class NodePlanOutput(serializers.Serializer[Any]):
    """A plan: `nodes` are emptied by `moves`, which cost `lost_gpu_s`; `gained` more nodes are
    whole then, and `starts` start. Not `reached`: it is the nearest to the goal that was found.
    Disruption budgets are known only when it is carried out, and hold then."""

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
    """What is wanted of each of these nodes."""

    nodes = serializers.ListField(child=serializers.CharField())
    opens_at = serializers.DateTimeField()


class PlanOrderInput(NodePlanInput):
    """When whole nodes are to be freed, and what that may cost at most. The plan is made anew at
    `starts_at`, and each minute after it until `ends_at` (15 minutes later, if not given) while it
    is not within `most_lost_gpu_s` GPU-seconds of work and `most_moves` jobs that move."""

    starts_at = Moment()
    ends_at = Moment(required=False, allow_null=True)
    most_lost_gpu_s = Number(min_value=0, max_value=1e12)
    most_moves = Integer(min_value=0, max_value=1_000_000)
    reason = Text(max_length=2000)


class PlanOrderOutput(serializers.Serializer[Any]):
    """Whole nodes that are freed at a time: `scheduled`, `moving` while jobs leave, then `done`;
    `failed` where no plan was within what was approved, or `cancelled`. `outcome`: why, or who a
    disruption budget kept. `nodes`, `lost_gpu_s` and `moves`: of the plan that was carried out."""

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
    """Which nodes it would be, and what it would do to jobs."""

    nodes = serializers.ListField(child=serializers.CharField())
    effects = EffectsOutput()
