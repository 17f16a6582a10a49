"""Shapes of jobs in REST. Rules beyond types and sizes live in `services.job_spec`."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers

from scheduling.engine.states import JobState
from scheduling.engine.types import JobKind
from scheduling.explain import GATES
from scheduling.models import Job
from scheduling.services.job_spec import LIMITS, MAX_POD_SETS
from tenants.api.fields import Boolean, Gpus, Integer, Serializer, StringMap, Text


def amount(name: str) -> Integer:
    least, most = LIMITS[name]
    return Integer(min_value=least, max_value=most, required=False, allow_null=True)


class TolerationInput(Serializer):
    key = Text(max_length=317, allow_blank=True, required=False)
    operator = serializers.ChoiceField(["Equal", "Exists"], required=False)
    value = Text(max_length=63, allow_blank=True, required=False)
    effect = serializers.ChoiceField(
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
    required_level = Text(max_length=32, required=False, allow_blank=True, allow_null=True)
    preferred_level = Text(max_length=32, required=False, allow_blank=True, allow_null=True)
    max_per_node = amount("max_per_node")
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
    """A job. With one kind of pod, its needs may stand here; otherwise in `pod_sets`."""

    name = Text(max_length=63)
    tenant = Text(max_length=63)
    cluster = Text(max_length=63, required=False, allow_null=True)
    kind = serializers.ChoiceField([k.value for k in JobKind], required=False)
    priority = amount("priority")
    gang = Boolean(required=False)
    preemptible = Boolean(required=False)
    declared_s = amount("declared_s")
    strategy = Text(max_length=32, required=False, allow_blank=True, allow_null=True)
    labels = StringMap(max_length=63, required=False, allow_null=True)
    replicas = amount("count")
    pod_sets = serializers.ListField(
        child=PodSetInput(), max_length=MAX_POD_SETS, required=False, allow_null=True
    )


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
    max_per_node = serializers.IntegerField(allow_null=True)
    image = serializers.CharField()
    command = serializers.ListField(child=serializers.CharField())
    env = serializers.DictField(child=serializers.CharField())
    annotations = serializers.DictField(child=serializers.CharField())


class JobOutput(serializers.Serializer[Job]):
    """A job and its present state. `gpus` counts all its pods."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    tenant = serializers.CharField(source="tenant.name")
    cluster = serializers.CharField(source="cluster.name")
    user = serializers.SerializerMethodField()
    kind = serializers.CharField()
    priority = serializers.IntegerField()
    gang = serializers.BooleanField()
    preemptible = serializers.BooleanField()
    declared_s = serializers.IntegerField(allow_null=True)
    strategy = serializers.CharField()
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
    pod_sets = PodSetOutput(many=True)

    def get_user(self, job: Job) -> str | None:
        return job.user.get_username() if job.user else None


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


class ExplanationOutput(serializers.Serializer[Any]):
    """Why the job is where it is. `position` 1 = next in the order of its cluster."""

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
