"""What REST says of jobs."""

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

# Fields that a job's output shows in another form than its document.
ELSEWHERE = ("name", "tenant", "cluster", "array", "pod_sets")


class PlainPodOutput(Output[Any]):
    """A pod that somebody else made, or the first of a gang of them.

    `gang`: the name of the gang, empty for a single pod. `hold`: why it cannot be bound now, empty
    if it can.
    """

    namespace = serializers.CharField(source="pod_namespace")
    name = serializers.CharField(source="pod_name")
    gang = serializers.CharField(source="pod_gang")
    hold = serializers.CharField(source="pod_hold")


class StartEstimateOutput(Output[Any]):
    """When a waiting job is expected to start.

    One in ten such jobs starts before `p10`, half of them before `p50`, one in ten after `p90`. All
    are null if that cannot be forecast; then `reason` says why, and one in ten starts before
    `earliest`, if that is known and more than a day away. `basis`: how most run times that matter
    were estimated: `declared` times, the `share` of these that similar jobs used, earlier `runs`,
    or `prior` (no history). `text`: the basis of the job's own run time. `as_of`: when the forecast
    was made. `overdue`: `p90` has passed; otherwise no time has.
    """

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
    """How busy a job's GPUs were, as measured by Prometheus.

    `measured_gpu_hours`: the part of the job's GPU time for which it is known how busy the GPUs
    were. `idle_gpu_hours`: the part of that in which nothing ran on them. `busy`: the share of the
    measured time in which something ran, from 0 to 1. `until`: the end of the measured period.
    """

    measured_gpu_hours = serializers.FloatField()
    idle_gpu_hours = serializers.FloatField()
    busy = serializers.FloatField()
    until = serializers.DateTimeField()


class ClusterOutlookOutput(Output[Any]):
    """What was known of a cluster when a cluster was chosen for the job.

    `starts_now`: the job would start there at once. `expected_start`: otherwise when,
    null = unknown. `why`: why it would not start at once, or not at all.
    """

    cluster = serializers.CharField()
    starts_now = serializers.BooleanField()
    expected_start = serializers.DateTimeField(allow_null=True)
    why = serializers.CharField()


class ClusterChoiceOutput(Output[Any]):
    """Why a job that names no cluster is on its cluster, as of `at`.

    `moves`: how often it moved to another cluster while it waited.
    """

    summary = serializers.CharField()
    at = serializers.DateTimeField()
    moves = serializers.IntegerField()
    clusters = ClusterOutlookOutput(many=True)


class JobOutput(Output[Job]):
    """A job and its current state.

    - `gpus`: the GPUs of all its pods.
    - `scope`: the shard whose scheduler decides about it, `wide` if it fits into no shard, empty in
      an undivided cluster.
    - `restarts`: how often the job, or a pod of it, was placed again after its program failed.
    - `pod`: the pod that somebody else made and that this job stands for (the pod's uid is the
      job's id), or the gang of pods; null if Kant makes its pods.
    - `start_estimate`: when it is expected to start, null if it does not wait.
    - `gpu_use`: how busy its GPUs were, null if that was not measured.
    - `any_cluster`: Kant chose its cluster, and may choose another while it waits. `cluster_choice`
      says why; null if the job names its cluster.

    Likely secrets in `env`, annotations and commands are shown to the job's submitter and to people
    who may submit for its tenant; others see “(hidden)”.
    """

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
    """Jobs that were submitted as one array.

    `gpus`: the GPUs of all their pods. `states`: the number of jobs in each state.
    `GET /api/v1/jobs?array=` lists the jobs.
    """

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
    """Where one pod of one attempt went.

    `milli`: how much of each device it holds. `namespace`: of the pod in Kubernetes; empty for old
    jobs, from before it was recorded.
    """

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
    """A waiting job that is ahead; its fields are null if you may not see its tenant."""

    job = serializers.UUIDField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    gpus = Gpus(source="gpu_milli")


class ReservedOutput(serializers.Serializer[Any]):
    """When and where the job is expected to start, by declared run times."""

    starts_at = serializers.DateTimeField()
    nodes = serializers.ListField(child=serializers.CharField())


class StartOutput(serializers.Serializer[Any]):
    """What is known of a waiting job's start.

    `at` depends on `basis`: with `reservation` the job is expected to start then; with `earliest`
    it will not start before; with `forecast` (dry runs only) there is room then, for whichever job
    is first. Null if it cannot be known.
    """

    at = serializers.DateTimeField(allow_null=True)
    basis = serializers.ChoiceField(
        ["reservation", "earliest", "forecast", "promised", "held", "never", "unknown"]
    )
    text = serializers.CharField()


class NumberOutput(serializers.Serializer[Any]):
    """A number behind a reason, in readable form; `name`: its key in `evidence`."""

    name = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]
    text = serializers.CharField()


@extend_schema_field(NumberOutput(many=True))
class Numbers(serializers.Field[Any, Any, Any, Any]):
    """The numbers of `evidence` in readable form."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source="evidence", read_only=True, **kwargs)

    def to_representation(self, evidence: Any) -> Any:
        return NumberOutput(numbers_of(evidence), many=True).data


class GrowthOutput(serializers.Serializer[Any]):
    """Why a running job has fewer pods than it asks for.

    `reason`: as for a waiting job, "" if none of these is the cause.
    """

    has = serializers.IntegerField()
    asked = serializers.IntegerField()
    reason = serializers.CharField()
    summary = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    evidence = serializers.DictField()
    numbers = Numbers()


class ExplanationOutput(serializers.Serializer[Any]):
    """Why the job is in its current state.

    `position`: 1 = next in its cluster's order, which may differ from the order of submission;
    null = it is in no order, e.g. while it is held. `evidence`: the numbers behind the reason;
    `numbers`: the same in readable form. `since`: since when this reason holds. `standstill`: why
    nothing is being decided on its cluster, empty while a scheduler is working there.
    """

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
