"""What is told of jobs in REST."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.api.document_serializers import output, output_of
from scheduling.engine.states import JobState
from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.models import Job
from scheduling.queries.evidence import numbers_of
from scheduling.queries.explain import GATES
from scheduling.queries.gpu_use import gpu_use_of
from scheduling.queries.secret_viewers import shown_pod_set
from scheduling.queries.starts import told_start
from scheduling.simulator.forecast.run_times import Basis
from tenants.api.base import shown
from tenants.api.fields import Gpus
from tenants.api.outputs import Output

# Told of a job otherwise than its document says it.
ELSEWHERE = ("name", "tenant", "cluster", "array", "pod_sets")


class PlainPodOutput(Output[Any]):
    """A pod that somebody else made, or the first of a gang of them. `gang`: the name of the gang,
    empty where it is one pod. `hold`: why it cannot be bound now, empty where it can."""

    namespace = serializers.CharField(source="pod_namespace")
    name = serializers.CharField(source="pod_name")
    gang = serializers.CharField(source="pod_gang")
    hold = serializers.CharField(source="pod_hold")


class StartEstimateOutput(Output[Any]):
    """When a waiting job is expected to start. One in ten such jobs starts before `p10`, half of
    them before `p50`, one in ten after `p90`; all null where `reason` says why that cannot be told.
    Then one in ten starts before `earliest`, where that is known and more than a day off.
    `basis`: what most of the run times that it depends on are estimated by: `declared` times, the
    `share` of them that like jobs used, earlier `runs`, or `prior` (no history); `text`: the job's
    own. `as_of`: the instant that it was worked out for. `overdue`: `p90` has passed; else none of
    the times has."""

    p10 = serializers.DateTimeField(allow_null=True)
    p50 = serializers.DateTimeField(allow_null=True)
    p90 = serializers.DateTimeField(allow_null=True)
    earliest = serializers.DateTimeField(allow_null=True)
    basis = serializers.ChoiceField([basis.value for basis in Basis], allow_blank=True)
    text = serializers.CharField()
    reason = serializers.CharField()
    as_of = serializers.DateTimeField(allow_null=True)
    overdue = serializers.BooleanField()


class JobGpuUseOutput(Output[Any]):
    """As a Prometheus told it: of `measured_gpu_hours` of what the job held it is known how busy
    the GPUs were, and in `idle_gpu_hours` of these nothing ran on them; `busy`: the share of the
    others, from 0 to 1. `until`: up to when."""

    measured_gpu_hours = serializers.FloatField()
    idle_gpu_hours = serializers.FloatField()
    busy = serializers.FloatField()
    until = serializers.DateTimeField()


class ClusterOutlookOutput(Output[Any]):
    """What was known of a cluster when one was chosen: whether the job starts there at once, else
    when it is expected to, null = not known, and why not at once or not at all."""

    cluster = serializers.CharField()
    starts_now = serializers.BooleanField()
    expected_start = serializers.DateTimeField(allow_null=True)
    why = serializers.CharField()


class ClusterChoiceOutput(Output[Any]):
    """Why a job that names no cluster is where it is, as of `at`; `moves`: how often it went to
    another one while it waited."""

    summary = serializers.CharField()
    at = serializers.DateTimeField()
    moves = serializers.IntegerField()
    clusters = ClusterOutlookOutput(many=True)


class JobOutput(Output[Job]):
    """A job and its present state. `gpus` counts all its pods. `scope`: the shard whose scheduler
    decides about it, `wide` if it fits into none, empty in an undivided cluster. `restarts`: how
    often it, or a pod of it, was placed again after its program failed. `pod`: the pod that it was
    taken up from, whose uid is its id, or the gang of pods; null where Kant makes its pods.
    `start_estimate`: when it is expected to start, null where it does not wait. `gpu_use`: how busy
    its GPUs were, null where that was not measured. `any_cluster`: Kant
    chose its cluster, and may choose another one while it waits; `cluster_choice` says why, null
    where the job names its cluster. What
    looks like a secret in `env`, annotations and commands is shown to its submitter and to who may
    submit for its tenant; others see “(hidden)”."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    tenant = serializers.CharField(source="tenant.name")
    cluster = serializers.CharField(source="cluster.name")
    any_cluster = serializers.BooleanField()
    cluster_choice = serializers.SerializerMethodField()
    scope = serializers.CharField()
    user = serializers.SerializerMethodField()
    restarts = serializers.IntegerField()
    array = serializers.UUIDField(source="array_id", allow_null=True)
    array_index = serializers.IntegerField(allow_null=True)
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
    start_estimate = serializers.SerializerMethodField()
    gpu_use = serializers.SerializerMethodField()
    pod = serializers.SerializerMethodField()
    pod_sets = output(PodSetDocument)(many=True)

    def get_fields(self) -> dict[str, Any]:
        return super().get_fields() | output_of(JobDocument, ELSEWHERE)

    def to_representation(self, job: Job) -> dict[str, Any]:
        body: dict[str, Any] = super().to_representation(job)
        body["pod_sets"] = [shown_pod_set(job, each) for each in body["pod_sets"]]
        return body

    @extend_schema_field(StartEstimateOutput(allow_null=True))
    def get_start_estimate(self, job: Job) -> dict[str, Any] | None:
        now = timezone.now()
        told = told_start(job, now)
        return None if told is None else shown(StartEstimateOutput, told.from_now(now))

    @extend_schema_field(JobGpuUseOutput(allow_null=True))
    def get_gpu_use(self, job: Job) -> dict[str, Any] | None:
        found = gpu_use_of(job)
        return None if found is None else shown(JobGpuUseOutput, found)

    @extend_schema_field(ClusterChoiceOutput(allow_null=True))
    def get_cluster_choice(self, job: Job) -> dict[str, Any] | None:
        return None if job.chosen is None else shown(ClusterChoiceOutput, job.chosen)

    @extend_schema_field(PlainPodOutput(allow_null=True))
    def get_pod(self, job: Job) -> dict[str, str] | None:
        return shown(PlainPodOutput, job) if job.pod_name else None

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
    """Where one pod of one attempt went; `milli` is held of each device. `namespace`: of the pod in
    Kubernetes; empty of jobs that were over before it was kept."""

    attempt = serializers.IntegerField()
    pod_set = serializers.IntegerField()
    ordinal = serializers.IntegerField()
    namespace = serializers.CharField()
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
    `earliest`: not before; `forecast`, of dry runs: there is room then, for whoever is first; null
    where it cannot be known."""

    at = serializers.DateTimeField(allow_null=True)
    basis = serializers.ChoiceField(
        ["reservation", "earliest", "forecast", "promised", "held", "never", "unknown"]
    )
    text = serializers.CharField()


class NumberOutput(serializers.Serializer[Any]):
    """A number behind a reason as people read it; `name`: in `evidence`."""

    name = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]
    text = serializers.CharField()


@extend_schema_field(NumberOutput(many=True))
class Numbers(serializers.Field[Any, Any, Any, Any]):
    """`evidence` as texts."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source="evidence", read_only=True, **kwargs)

    def to_representation(self, evidence: Any) -> Any:
        return NumberOutput(numbers_of(evidence), many=True).data


class GrowthOutput(serializers.Serializer[Any]):
    """Why a job that runs has fewer pods than it asks for; `reason` as of a waiting job, "" where
    none of them is the cause."""

    has = serializers.IntegerField()
    asked = serializers.IntegerField()
    reason = serializers.CharField()
    summary = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    evidence = serializers.DictField()
    numbers = Numbers()


class ExplanationOutput(serializers.Serializer[Any]):
    """Why the job is where it is. `position` 1 = next in the order of its cluster, which need not
    be that of submission; null = in no order, as while it is held. `evidence`: the numbers behind
    the reason, `numbers`: the same as texts. `since`: when it was told with these. `standstill`:
    why nothing is decided on its cluster now, empty while a scheduler is at work there."""

    job = serializers.UUIDField()
    state = serializers.CharField()
    reason = serializers.CharField()
    summary = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    will_never_run = serializers.BooleanField()
    evidence = serializers.DictField()
    numbers = Numbers()
    remedies = serializers.ListField(child=serializers.CharField())
    gates = GateOutput(many=True)
    position = serializers.IntegerField(allow_null=True)
    ahead = AheadOutput(many=True)
    reservation = ReservedOutput(allow_null=True)
    start = StartOutput(allow_null=True)
    growth = GrowthOutput(allow_null=True)
    standstill = serializers.CharField()
