"""Shapes of jobs in REST. Rules beyond types and sizes live in `services.job_spec`."""

from typing import Any

from drf_spectacular.utils import (
    OpenApiExample,
    extend_schema_field,
    extend_schema_serializer,
)
from rest_framework import serializers

from scheduling.engine.states import JobState
from scheduling.engine.types import JobKind
from scheduling.explain import GATES
from scheduling.models import Job
from scheduling.services.faults import LIMITS
from scheduling.services.job_spec import MAX_ARRAY, MAX_DEPENDENCIES, MAX_POD_SETS
from scheduling.services.pod_set_spec import MAX_EXTENDED
from tenants.api.fields import Boolean, Choice, Gpus, Integer, Serializer, StringMap, Text


def amount(name: str, help_text: str = "") -> Integer:
    least, most = LIMITS[name]
    return Integer(
        min_value=least,
        max_value=most,
        required=False,
        allow_null=True,
        help_text=help_text or None,
    )


def job_ids(help_text: str) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.UUIDField(),
        max_length=MAX_DEPENDENCIES,
        required=False,
        help_text=help_text,
    )


def level(help_text: str) -> Text:
    return Text(
        max_length=32, required=False, allow_blank=True, allow_null=True, help_text=help_text
    )


RUN_LIMIT = "Longest run time in seconds; then the job is ended, after a warning."
NOTICE = "How many seconds before its deletion a pod is told to save its work; null = not told."
NOT_BEFORE = "The job is not started earlier; null = at once."
AFTER = "Ids of jobs, or of arrays, all of which must have ended before this one starts."
AFTER_OK = "Ids of jobs, or of arrays, all of which must have succeeded before this one starts."


class TolerationInput(Serializer):
    key = Text(max_length=317, allow_blank=True, required=False)
    operator = Choice(["Equal", "Exists"], required=False)
    value = Text(max_length=63, allow_blank=True, required=False)
    effect = Choice(
        ["NoSchedule", "PreferNoSchedule", "NoExecute"], required=False, allow_blank=True
    )


class PodNeedsInput(Serializer):
    """What one pod of a set needs and runs."""

    count = amount("count")
    min_count = amount("min_count")
    gpu_type = Text(max_length=63, required=False, allow_null=True)
    gpu_types = serializers.ListField(
        child=Text(max_length=63), max_length=32, required=False, allow_null=True
    )
    gpus = amount("gpus")
    gpu_milli = amount("gpu_milli")
    gpu_memory_mib = amount("gpu_memory_mib")
    cpu_milli = amount("cpu_milli")
    memory_mib = amount("memory_mib")
    nics = amount("nics")
    node_selector = StringMap(max_length=63, required=False, allow_null=True)
    tolerations = serializers.ListField(
        child=TolerationInput(), max_length=32, required=False, allow_null=True
    )
    required_level = level("All pods within one group of this network level.")
    preferred_level = level("The same, where it is possible.")
    slice_size = amount("slice_size", "With it, each slice of so many pods instead of all pods.")
    balance_level = level("Spread the pods evenly over the groups of this level.")
    max_per_node = amount("max_per_node")
    max_per_leaf = amount("max_per_leaf")
    extended = serializers.DictField(
        child=Integer(min_value=0, max_value=MAX_EXTENDED),
        required=False,
        allow_null=True,
        help_text="Extended resources of Kubernetes per pod, e.g. {“vendor.com/card”: 1}.",
    )
    image = Text(max_length=500, required=False, allow_null=True)
    command = serializers.ListField(
        child=Text(max_length=65536, allow_blank=True),
        max_length=256,
        required=False,
        allow_null=True,
    )
    env = StringMap(max_entries=256, max_length=65536, required=False, allow_null=True)
    annotations = StringMap(max_length=65536, required=False, allow_null=True)


class PodSetInput(PodNeedsInput):
    name = Text(max_length=63, required=False, allow_null=True)


class ArrayInput(Serializer):
    count = Integer(min_value=1, max_value=MAX_ARRAY)


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Eight GPUs on one node",
            value={"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 8},
            request_only=True,
        ),
        OpenApiExample(
            "A gang of 64 GPUs within one leaf",
            value={
                "name": "pretrain",
                "tenant": "vision",
                "declared_s": 86400,
                "pod_sets": [
                    {
                        "name": "worker",
                        "count": 8,
                        "gpu_type": "H100",
                        "gpus": 8,
                        "preferred_level": "leaf",
                        "image": "registry.example/pretrain:1",
                        "command": ["python", "train.py"],
                    }
                ],
            },
            request_only=True,
        ),
    ]
)
class JobInput(PodNeedsInput):
    """A job, or with `array` many equal ones. With one kind of pod, its needs may stand here;
    otherwise in `pod_sets`, and levels given here then hold for all pod sets together. At least
    one pod set asks for GPUs. Labels and annotations do not begin with `kant.io/`."""

    name = Text(max_length=63)
    tenant = Text(max_length=63)
    cluster = Text(max_length=63, required=False, allow_null=True)
    kind = Choice([k.value for k in JobKind], required=False)
    priority = amount("priority")
    gang = Boolean(required=False)
    preemptible = Boolean(required=False, help_text="Whether it may lose its place to others.")
    preempts = Boolean(required=False, help_text="Whether it may take the places of others.")
    uses_spares = Boolean(required=False, help_text="Whether it may start on hot-spare nodes.")
    declared_s = amount("declared_s", "Expected run time in seconds; helps it start sooner.")
    run_limit_s = amount("run_limit_s", RUN_LIMIT)
    checkpoint_notice_s = amount("checkpoint_notice_s", NOTICE)
    not_before = serializers.DateTimeField(required=False, allow_null=True, help_text=NOT_BEFORE)
    held = Boolean(required=False, help_text="Wait until it is released.")
    after = job_ids(AFTER)
    after_ok = job_ids(AFTER_OK)
    array = ArrayInput(required=False, allow_null=True)
    strategy = Text(max_length=32, required=False, allow_blank=True, allow_null=True)
    labels = StringMap(max_length=63, required=False, allow_null=True)
    replicas = amount("count")
    pod_sets = serializers.ListField(
        child=PodSetInput(), max_length=MAX_POD_SETS, required=False, allow_null=True
    )


class JobChange(Serializer):
    """What a waiting job may be asked for anew; what is not named stays. Of a job that has started
    only `run_limit_s` and `declared_s`."""

    priority = Integer(
        min_value=LIMITS["priority"][0], max_value=LIMITS["priority"][1], required=False
    )
    declared_s = amount("declared_s")
    run_limit_s = amount("run_limit_s", RUN_LIMIT)
    checkpoint_notice_s = amount("checkpoint_notice_s", NOTICE)
    not_before = serializers.DateTimeField(required=False, allow_null=True, help_text=NOT_BEFORE)
    after = job_ids(AFTER)
    after_ok = job_ids(AFTER_OK)


class TolerationOutput(serializers.Serializer[Any]):
    key = serializers.CharField()
    operator = serializers.CharField()
    value = serializers.CharField()
    effect = serializers.CharField()


class PodSetOutput(serializers.Serializer[Any]):
    name = serializers.CharField()
    count = serializers.IntegerField()
    min_count = serializers.IntegerField(allow_null=True)
    gpu_types = serializers.ListField(child=serializers.CharField(), source="gpu_models")
    gpus = serializers.IntegerField()
    gpu_milli = serializers.IntegerField()
    gpu_memory_mib = serializers.IntegerField()
    cpu_milli = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    nics = serializers.IntegerField()
    node_selector = serializers.DictField(child=serializers.CharField())
    tolerations = TolerationOutput(many=True)
    required_level = serializers.CharField()
    preferred_level = serializers.CharField()
    slice_size = serializers.IntegerField()
    balance_level = serializers.CharField()
    max_per_node = serializers.IntegerField(allow_null=True)
    max_per_leaf = serializers.IntegerField(allow_null=True)
    extended = serializers.DictField(child=serializers.IntegerField())
    image = serializers.CharField()
    command = serializers.ListField(child=serializers.CharField())
    env = serializers.DictField(child=serializers.CharField())
    annotations = serializers.DictField(child=serializers.CharField())


class PlainPodOutput(serializers.Serializer[Any]):
    """A pod that somebody else made. `hold`: why it cannot be bound now, empty where it can."""

    namespace = serializers.CharField(source="pod_namespace")
    name = serializers.CharField(source="pod_name")
    hold = serializers.CharField(source="pod_hold")


class JobOutput(serializers.Serializer[Job]):
    """A job and its present state. `gpus` counts all its pods. `scope`: the shard whose scheduler
    decides about it, `wide` if it fits into none, empty in an undivided cluster. `pod`: the pod
    that it was taken up from, whose uid is its id; null where Kant makes its pods."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    tenant = serializers.CharField(source="tenant.name")
    cluster = serializers.CharField(source="cluster.name")
    scope = serializers.CharField()
    user = serializers.SerializerMethodField()
    kind = serializers.CharField()
    priority = serializers.IntegerField()
    gang = serializers.BooleanField()
    preemptible = serializers.BooleanField()
    preempts = serializers.BooleanField()
    uses_spares = serializers.BooleanField()
    declared_s = serializers.IntegerField(allow_null=True)
    run_limit_s = serializers.IntegerField(allow_null=True)
    checkpoint_notice_s = serializers.IntegerField(allow_null=True)
    not_before = serializers.DateTimeField(source="start_not_before", allow_null=True)
    held = serializers.BooleanField()
    after = serializers.ListField(child=serializers.UUIDField())
    after_ok = serializers.ListField(child=serializers.UUIDField())
    array = serializers.UUIDField(source="array_id", allow_null=True)
    array_index = serializers.IntegerField(allow_null=True)
    strategy = serializers.CharField()
    required_level = serializers.CharField()
    preferred_level = serializers.CharField()
    labels = serializers.DictField(child=serializers.CharField())
    gpus = Gpus(source="gpu_milli")
    state = serializers.ChoiceField([s.value for s in JobState])
    reason = serializers.CharField()
    message = serializers.CharField()
    attempt = serializers.IntegerField()
    submitted_at = serializers.DateTimeField()
    admitted_at = serializers.DateTimeField(allow_null=True)
    bound_at = serializers.DateTimeField(allow_null=True)
    running_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    pod = serializers.SerializerMethodField()
    pod_sets = PodSetOutput(many=True)

    @extend_schema_field(PlainPodOutput(allow_null=True))
    def get_pod(self, job: Job) -> dict[str, str] | None:
        return dict(PlainPodOutput(job).data) if job.pod_name else None

    def get_user(self, job: Job) -> str | None:
        return job.user.get_username() if job.user else None


class JobArrayOutput(serializers.Serializer[Any]):
    """Jobs that were submitted as one; `gpus` counts all their pods, `states` the jobs.
    `GET /api/v1/jobs?array=` lists them."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    tenant = serializers.CharField()
    cluster = serializers.CharField()
    user = serializers.CharField(allow_null=True)
    count = serializers.IntegerField()
    gpus = Gpus(source="gpu_milli")
    states = serializers.DictField(child=serializers.IntegerField())
    submitted_at = serializers.DateTimeField()


class JobEventOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    kind = serializers.CharField()
    from_state = serializers.CharField()
    to_state = serializers.CharField()
    reason = serializers.CharField()
    message = serializers.CharField()
    evidence = serializers.DictField()
    actor = serializers.CharField()


class PodOutput(serializers.Serializer[Any]):
    """Where one pod of one attempt went; `milli` is held of each device."""

    attempt = serializers.IntegerField()
    pod_set = serializers.IntegerField()
    ordinal = serializers.IntegerField()
    pod_name = serializers.CharField()
    pod_uid = serializers.CharField()
    node = serializers.CharField()
    gpu_type = serializers.CharField(source="gpu_model")
    devices = serializers.ListField(child=serializers.IntegerField())
    milli = serializers.IntegerField()
    nics = serializers.ListField(child=serializers.IntegerField())
    state = serializers.CharField()
    message = serializers.CharField()
    intended_at = serializers.DateTimeField()
    bound_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class GateOutput(serializers.Serializer[Any]):
    gate = serializers.ChoiceField(GATES)
    ok = serializers.BooleanField(allow_null=True)


class AheadOutput(serializers.Serializer[Any]):
    """A waiting job that comes first; null where its tenant is not yours to see."""

    job = serializers.UUIDField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    gpus = Gpus(source="gpu_milli")


class ReservedOutput(serializers.Serializer[Any]):
    """When and where the job is expected to start, as declared run times promise."""

    starts_at = serializers.DateTimeField()
    nodes = serializers.ListField(child=serializers.CharField())


class StartOutput(serializers.Serializer[Any]):
    """What is known of the start of a waiting job. `at` with basis `reservation`: expected then;
    `earliest`: not before; null where it cannot be known."""

    at = serializers.DateTimeField(allow_null=True)
    basis = serializers.ChoiceField(
        ["reservation", "earliest", "promised", "held", "never", "unknown"]
    )
    text = serializers.CharField()


class ExplanationOutput(serializers.Serializer[Any]):
    """Why the job is where it is. `position` 1 = next in the order of its cluster, null =
    in no order, as while it is held."""

    job = serializers.UUIDField()
    state = serializers.CharField()
    reason = serializers.CharField()
    summary = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    will_never_run = serializers.BooleanField()
    evidence = serializers.DictField()
    remedies = serializers.ListField(child=serializers.CharField())
    gates = GateOutput(many=True)
    position = serializers.IntegerField(allow_null=True)
    ahead = AheadOutput(many=True)
    reservation = ReservedOutput(allow_null=True)
    start = StartOutput(allow_null=True)
