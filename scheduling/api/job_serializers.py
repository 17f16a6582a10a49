"""What is asked of jobs in REST. Rules beyond types and sizes live in `services.job_spec`."""

from drf_spectacular.utils import (
    OpenApiExample,
    extend_schema_serializer,
)

from scheduling.engine.cluster.affinity import OPERATORS
from scheduling.engine.types import JobKind
from scheduling.services.common.faults import LIMITS
from scheduling.services.jobs.pod_set_spec import (
    MAX_ENV,
    MAX_EXPRESSIONS,
    MAX_EXTENDED,
    MAX_NODE_LABELS,
    MAX_TERMS,
    MAX_VALUES,
)
from scheduling.services.jobs.pod_settings_spec import (
    MAX_ENV_FROM_SECRETS,
    MAX_PULL_SECRETS,
    MAX_VOLUMES,
    NAME_LENGTH,
    PATH_LENGTH,
)
from scheduling.services.jobs.spec import MAX_ARRAY, MAX_DEPENDENCIES, MAX_POD_SETS
from tenants.api.fields import (
    Boolean,
    Choice,
    Integer,
    List,
    Moment,
    Object,
    Serializer,
    StringMap,
    Text,
    Uuid,
)


def amount(name: str, help_text: str = "") -> Integer:
    least, most = LIMITS[name]
    return Integer(
        min_value=least,
        max_value=most,
        required=False,
        allow_null=True,
        help_text=help_text or None,
    )


def job_ids(help_text: str) -> List:
    return List(
        child=Uuid(),
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
MAX_RESTARTS = (
    "How often it, or a pod that it can do without, is placed again after its program failed; "
    "default 0, for jobs of kind inference that are no gang 1000."
)
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


class NodeExpressionInput(Serializer):
    """What a label of a node, or its metadata.name, has to be like."""

    key = Text(max_length=317)
    operator = Choice(list(OPERATORS))
    values = List(
        child=Text(max_length=253, allow_blank=True),
        max_length=MAX_VALUES,
        required=False,
        allow_null=True,
    )


class NodeTermInput(Serializer):
    """All of its expressions have to hold."""

    match_expressions = List(
        child=NodeExpressionInput(),
        max_length=MAX_EXPRESSIONS,
        required=False,
        allow_null=True,
        help_text="Of labels.",
    )
    match_fields = List(
        child=NodeExpressionInput(),
        max_length=MAX_EXPRESSIONS,
        required=False,
        allow_null=True,
        help_text="Of metadata.name.",
    )


class VolumeInput(Serializer):
    """One of the claim, the config map and the secret; all of them in the namespace of the pods."""

    name = Text(max_length=63)
    mount_path = Text(max_length=PATH_LENGTH)
    read_only = Boolean(required=False, allow_null=True)  # type: ignore[assignment]
    persistent_volume_claim = Text(max_length=NAME_LENGTH, required=False, allow_null=True)
    config_map = Text(max_length=NAME_LENGTH, required=False, allow_null=True)
    secret = Text(max_length=NAME_LENGTH, required=False, allow_null=True)


class SecretKeyInput(Serializer):
    secret = Text(max_length=NAME_LENGTH)
    key = Text(max_length=NAME_LENGTH)


class PodNeedsInput(Serializer):
    """What one pod of a set needs and runs."""

    count = amount("count")
    min_count = amount("min_count")
    gpu_type = Text(max_length=63, required=False, allow_null=True)
    gpu_types = List(child=Text(max_length=63), max_length=32, required=False, allow_null=True)
    gpus = amount("gpus")
    gpu_milli = amount("gpu_milli")
    gpu_memory_mib = amount("gpu_memory_mib")
    cpu_milli = amount("cpu_milli")
    memory_mib = amount("memory_mib")
    nics = amount("nics")
    node_selector = StringMap(
        max_entries=MAX_NODE_LABELS, max_length=63, required=False, allow_null=True
    )
    node_affinity = List(
        child=NodeTermInput(),
        max_length=MAX_TERMS,
        required=False,
        allow_null=True,
        help_text="Terms of which a node has to match one, beside node_selector.",
    )
    tolerations = List(child=TolerationInput(), max_length=32, required=False, allow_null=True)
    required_level = level("All pods within one group of this network level.")
    preferred_level = level("The same, where it is possible.")
    slice_size = amount("slice_size", "With it, each slice of so many pods instead of all pods.")
    balance_level = level("Spread the pods evenly over the groups of this level.")
    max_per_node = amount("max_per_node")
    max_per_leaf = amount("max_per_leaf")
    extended = Object(
        child=Integer(min_value=0, max_value=MAX_EXTENDED),
        max_entries=MAX_NODE_LABELS,
        required=False,
        allow_null=True,
        help_text="Extended resources of Kubernetes per pod, e.g. {“vendor.com/card”: 1}.",
    )
    image = Text(max_length=500, required=False, allow_null=True)
    command = List(
        child=Text(max_length=65536, allow_blank=True),
        max_length=256,
        required=False,
        allow_null=True,
    )
    env = StringMap(max_entries=MAX_ENV, max_length=65536, required=False, allow_null=True)
    annotations = StringMap(max_length=65536, required=False, allow_null=True)
    service_account = Text(
        max_length=NAME_LENGTH, required=False, allow_blank=True, allow_null=True
    )
    image_pull_secrets = List(
        child=Text(max_length=NAME_LENGTH),
        max_length=MAX_PULL_SECRETS,
        required=False,
        allow_null=True,
    )
    shm_mib = amount("shm_mib", "Size of /dev/shm, in memory; 0 = as the node gives it.")
    volumes = List(child=VolumeInput(), max_length=MAX_VOLUMES, required=False, allow_null=True)
    env_from_secrets = Object(
        child=SecretKeyInput(),
        max_entries=MAX_ENV_FROM_SECRETS,
        required=False,
        allow_null=True,
        help_text="Variables by name, each with the secret and the key that its value is under.",
    )


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
    preemptible = Boolean(
        required=False,
        help_text="Whether it may lose its place to others. Where the policy has `reclaim`, one "
        "that may not holds only what its tenant is guaranteed.",
    )
    preempts = Boolean(required=False, help_text="Whether it may take the places of others.")
    uses_spares = Boolean(required=False, help_text="Whether it may start on hot-spare nodes.")
    declared_s = amount("declared_s", "Expected run time in seconds; helps it start sooner.")
    run_limit_s = amount("run_limit_s", RUN_LIMIT)
    checkpoint_notice_s = amount("checkpoint_notice_s", NOTICE)
    max_restarts = amount("max_restarts", MAX_RESTARTS)
    not_before = Moment(required=False, allow_null=True, help_text=NOT_BEFORE)
    held = Boolean(required=False, help_text="Wait until it is released.")
    after = job_ids(AFTER)
    after_ok = job_ids(AFTER_OK)
    array = ArrayInput(required=False, allow_null=True)
    strategy = Text(max_length=32, required=False, allow_blank=True, allow_null=True)
    labels = StringMap(max_length=63, required=False, allow_null=True)
    replicas = amount("count")
    pod_sets = List(child=PodSetInput(), max_length=MAX_POD_SETS, required=False, allow_null=True)


class PodSetSize(Serializer):
    """A pod set of the job by its name, and how many pods it is to have, of a gang also how few it
    can do with; null = all of them."""

    name = Text(max_length=63)
    count = Integer(min_value=LIMITS["count"][0], max_value=LIMITS["count"][1], required=False)
    min_count = amount("min_count")


class JobChange(Serializer):
    """What a waiting job may be asked for anew; what is not named stays. Of a job that has started
    only `run_limit_s`, `declared_s` and, where it is no gang or an elastic one, `pod_sets`; of an
    array no `pod_sets`."""

    priority = Integer(
        min_value=LIMITS["priority"][0], max_value=LIMITS["priority"][1], required=False
    )
    declared_s = amount("declared_s")
    run_limit_s = amount("run_limit_s", RUN_LIMIT)
    checkpoint_notice_s = amount("checkpoint_notice_s", NOTICE)
    max_restarts = Integer(
        min_value=LIMITS["max_restarts"][0], max_value=LIMITS["max_restarts"][1], required=False
    )
    not_before = Moment(required=False, allow_null=True, help_text=NOT_BEFORE)
    after = job_ids(AFTER)
    after_ok = job_ids(AFTER_OK)
    pod_sets = List(
        child=PodSetSize(),
        allow_empty=False,
        max_length=MAX_POD_SETS,
        required=False,
        help_text="Other counts of pods, by the names of its pod sets.",
    )
