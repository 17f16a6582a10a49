"""Jobs, their pod sets, every transition and every placement (the write-ahead of binding)."""

import uuid
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db import models

from scheduling.engine.states import REASON_LENGTH, JobEventKind, JobState
from scheduling.engine.types import BEYOND, JobKind, Toleration
from scheduling.models.clusters import Cluster
from scheduling.models.shaped import (
    ChosenCluster,
    DeviceClaim,
    ExtraContainer,
    Probe,
    SecretKey,
    Security,
    ShapedField,
    Term,
    TextMap,
    Texts,
    Unreadable,
    Volume,
    unreadable,
)
from tenants.models import DEFAULT_QUEUE, Tenant, slug_validator

STATES = [(s.value, s.value) for s in JobState]
EVENT_KINDS = [(k.value, k.value) for k in JobEventKind]
KINDS = [(k.value, k.value.capitalize()) for k in JobKind]
LARGE = 64_000  # GPU-milli; smaller jobs are so frequent that lists of them are found fast


class Job(models.Model):
    """A submitted job. `version` guards every update; `attempt` counts its placements."""

    # Whether likely secrets in its variables and commands are hidden from the reader.
    secrets_hidden = False

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=63, validators=[slug_validator])
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="jobs")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="jobs"
    )
    # The name of one of the tenant's queues.
    queue = models.CharField(
        max_length=63, default=DEFAULT_QUEUE, db_default=DEFAULT_QUEUE, validators=[slug_validator]
    )
    kind = models.CharField(max_length=16, choices=KINDS, default=JobKind.TRAINING.value)
    priority = models.IntegerField(default=0)
    gang = models.BooleanField(default=True)
    preemptible = models.BooleanField(default=True)
    declared_s = models.PositiveIntegerField(null=True, blank=True)  # declared run time in seconds
    run_limit_s = models.PositiveIntegerField(null=True, blank=True)  # longest run time, seconds
    strategy = models.CharField(max_length=32, blank=True)
    required_level = models.CharField(max_length=32, blank=True)  # for all pod sets together
    preferred_level = models.CharField(max_length=32, blank=True)
    preempts = models.BooleanField(default=True)
    uses_spares = models.BooleanField(default=False)
    # How many seconds before its deletion a pod is warned to save its work; None = no warning.
    checkpoint_notice_s = models.PositiveIntegerField(null=True, blank=True)
    # How often the job, or a pod of it, may be placed again after its program failed, and how often
    # it was.
    max_restarts = models.PositiveIntegerField(default=0)
    restarts = models.PositiveIntegerField(default=0, editable=False)
    # Ids of jobs of the same cluster that must have ended, or succeeded, before this one starts.
    after = ShapedField(shape=Texts, default=list, blank=True)
    after_ok = ShapedField(shape=Texts, default=list, blank=True)
    start_not_before = models.DateTimeField(null=True, blank=True)
    held = models.BooleanField(default=False)
    # Jobs submitted as one array share its id; the index tells them apart.
    array_id = models.UUIDField(null=True, blank=True, editable=False)
    array_index = models.PositiveIntegerField(null=True, blank=True, editable=False)
    labels = ShapedField(shape=TextMap, default=dict, blank=True)
    # Kant chose its cluster, and may choose another while it waits (docs/decisions/0075).
    any_cluster = models.BooleanField(default=False, db_default=False, editable=False)
    # Labels that its cluster must have, and labels of which it should have as many as possible.
    cluster_selector = ShapedField(
        shape=TextMap, default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    preferred_cluster_labels = ShapedField(
        shape=TextMap, default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    # Why it is on its cluster, if Kant chose that.
    cluster_choice = ShapedField(shape=ChosenCluster, null=True, blank=True, editable=False)
    # The pod that this job stands for if somebody else made it, or the first pod of a gang of these
    # (docs/decisions/0015, 0026). "" = Kant makes its pods.
    pod_namespace = models.CharField(max_length=63, blank=True, editable=False)
    pod_name = models.CharField(max_length=253, blank=True, editable=False)
    # The gang's name: from its label, or the kind and name of the object that defines it.
    pod_gang = models.CharField(max_length=400, blank=True, editable=False)
    # Why that pod cannot be bound now, e.g. scheduling gates; "" = it can.
    pod_hold = models.TextField(blank=True, editable=False)
    # Which scheduler of a divided cluster decides about it; "" = the only one, or not routed yet.
    scope = models.CharField(max_length=63, blank=True, default="")

    state = models.CharField(max_length=16, choices=STATES, default=JobState.PENDING.value)
    version = models.PositiveBigIntegerField(default=1)
    attempt = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)  # failed placements, for the back-off
    not_before = models.DateTimeField(null=True, blank=True)  # end of its back-off
    gpu_milli = models.BigIntegerField(default=0)  # of all pods; denormalised for lists
    # Of a job resized while it ran: the pods that it asked for when it started, and their
    # GPU-milli; only their wait counts (metrics.md, JWTD). None = all that it asks for.
    first_pods = models.PositiveIntegerField(null=True, editable=False)
    first_gpu_milli = models.BigIntegerField(null=True, editable=False)
    # The dominant reason why it waits, or why it ended.
    reason = models.CharField(max_length=REASON_LENGTH, blank=True)
    message = models.TextField(blank=True)
    evidence = ShapedField(shape=dict[str, Any], default=dict, blank=True)
    reason_at = models.DateTimeField(null=True, blank=True)
    # When and where a blocked head is expected to start, by declared run times.
    reserved_start = models.DateTimeField(null=True, blank=True)
    reserved_nodes = ShapedField(shape=Texts, default=list, blank=True)
    # Of a running job that lacks pods: why it got no more the last time (reason, summary, evidence,
    # at), for people to see.
    growth = models.JSONField(null=True, blank=True, editable=False)
    # What order and backfill threshold depend on, kept for the next scheduler: since when it is
    # blocked as a head, since when it counts as queued if later than its submission
    # (docs/decisions/0105), and whether a fault put it before all others of its priority.
    blocked_since = models.DateTimeField(null=True, blank=True)
    stands_at = models.DateTimeField(null=True, blank=True, editable=False)
    front = models.BooleanField(default=False)

    submitted_at = models.DateTimeField()
    admitted_at = models.DateTimeField(null=True, blank=True)
    # When all pods were bound, or of an elastic gang the pods that it needs: its wait ends here.
    bound_at = models.DateTimeField(null=True, blank=True)
    running_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-submitted_at", "-id"]
        indexes = [
            models.Index(fields=["cluster", "state"]),
            models.Index(fields=["tenant", "state"]),
            models.Index(fields=["-submitted_at", "-id"]),
            models.Index(fields=["tenant", "-submitted_at", "-id"]),  # lists of one tenant
            models.Index(fields=["array_id", "array_index"]),
            models.Index(fields=["ended_at"]),  # jobs that ended long enough ago to be deleted
            # Filters of lists that match few jobs. On PostgreSQL searches by name have an index,
            # too (migration 0036).
            models.Index(
                fields=["-submitted_at", "-id"], condition=models.Q(held=True), name="held_jobs"
            ),
            models.Index(
                fields=["reason", "-submitted_at", "-id"],
                condition=~models.Q(reason=""),
                name="jobs_with_a_reason",
            ),
            models.Index(
                fields=["state"], condition=models.Q(any_cluster=True), name="jobs_of_any_cluster"
            ),
            models.Index(
                fields=["-gpu_milli"], condition=models.Q(gpu_milli__gte=LARGE), name="large_jobs"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.name}"

    @property
    def notice_s(self) -> int:
        """Seconds of warning before its pods are deleted; 0 = no warning."""
        return self.checkpoint_notice_s or 0

    @property
    def chosen(self) -> dict[str, Any] | None:
        """Which cluster was chosen for it, and why; None if the job names one."""
        told: dict[str, Any] | None = self.cluster_choice
        return None if isinstance(told, Unreadable) else told


class PodSet(models.Model):
    """Equal pods of a job; see `engine.types.PodSetSpec` for the meaning of each field."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="pod_sets")
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=63, validators=[slug_validator])
    count = models.PositiveIntegerField()
    min_count = models.PositiveIntegerField(null=True, blank=True)
    gpu_models = ShapedField(shape=Texts, default=list)  # acceptable GPU types, preferred first
    gpus = models.PositiveIntegerField()
    gpu_milli = models.PositiveIntegerField(default=1000)
    gpu_memory_mib = models.PositiveIntegerField(default=0)
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    nics = models.PositiveIntegerField(default=0)
    node_selector = ShapedField(shape=TextMap, default=dict, blank=True)
    # See `engine.cluster.affinity.read_terms`.
    node_affinity = ShapedField(
        shape=list[Term], default=list, db_default=models.Value([], models.JSONField()), blank=True
    )
    tolerations = ShapedField(shape=list[Toleration], default=list, blank=True)
    required_level = models.CharField(max_length=32, blank=True)
    preferred_level = models.CharField(max_length=32, blank=True)
    max_per_node = models.PositiveIntegerField(null=True, blank=True)
    max_per_leaf = models.PositiveIntegerField(null=True, blank=True)
    slice_size = models.PositiveIntegerField(default=0)
    balance_level = models.CharField(max_length=32, blank=True)
    extended = ShapedField(shape=dict[str, int], default=dict, blank=True)
    image = models.CharField(max_length=500, default="busybox:stable")
    command = ShapedField(shape=Texts, default=list, blank=True)
    env = ShapedField(shape=TextMap, default=dict, blank=True)
    annotations = ShapedField(shape=TextMap, default=dict, blank=True)
    # See `kube.manifests.PodSettings`.
    service_account = models.CharField(max_length=253, blank=True)
    image_pull_secrets = ShapedField(shape=Texts, default=list, blank=True)
    shm_mib = models.PositiveIntegerField(default=0)
    volumes = ShapedField(shape=list[Volume], default=list, blank=True)
    env_from_secrets = ShapedField(shape=dict[str, SecretKey], default=dict, blank=True)
    device_claims = ShapedField(
        shape=dict[str, DeviceClaim],
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
    )
    security_context = ShapedField(
        shape=Security, default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    runtime_class = models.CharField(max_length=253, default="", db_default="", blank=True)
    host_network = models.BooleanField(default=False, db_default=False)
    priority_class = models.CharField(max_length=253, default="", db_default="", blank=True)
    init_containers = ShapedField(
        shape=list[ExtraContainer],
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
    )
    sidecars = ShapedField(
        shape=list[ExtraContainer],
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
    )
    probes = ShapedField(
        shape=dict[str, Probe],
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
    )

    class Meta:
        ordering = ["job", "index"]
        constraints = [
            models.UniqueConstraint(fields=["job", "index"], name="one_pod_set_per_index"),
            models.UniqueConstraint(fields=["job", "name"], name="one_pod_set_per_name"),
        ]


class JobConstraints(models.Model):
    """What the engine needs to know of an open job's pods beyond the requests in its rows.

    These are rules between pods and the nodes that volumes allow; see `session.memory.constraints`.
    Jobs without any have no row.
    """

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="constraints"
    )
    document = models.JSONField()

    class Meta:
        ordering = ["job"]


# JSON columns that are only shown to people.
TOLD = ("evidence", "reserved_nodes", "cluster_choice")


def unreadable_request(job: Job, sets: Iterable[PodSet]) -> str:
    """Say which column of the job's request cannot be read, and why; "" if all can."""
    for row in (job, *sets):
        for column, why in unreadable(row):
            if column not in TOLD:
                return f"{column} cannot be read: {why}"
    return ""


class JobPod(models.Model):
    """A pod that somebody else made, and which pod it is in the job that stands for it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="pods")
    pod_set = models.PositiveSmallIntegerField()
    ordinal = models.PositiveIntegerField()
    uid = models.UUIDField(db_index=True)  # if several rows have it, the last one counts
    name = models.CharField(max_length=253)
    labels = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["job", "pod_set", "ordinal"]
        constraints = [
            models.UniqueConstraint(
                fields=["job", "pod_set", "ordinal"], name="one_plain_pod_per_place"
            )
        ]


# Reasons of events. PREEMPTED: a victim or some of its pods; ROOM_MADE: the preemptor; MOVED: a pod
# moves to another node; GROWN: an elastic gang got more pods; CANCELLED: pods of a cancelled job;
# POD_FAILED: the job's own program failed; RUN_LIMIT: it ran as long as it may; RESIZED: a person
# changed its count of pods, also for the pods that leave it then; DRAINED: pods leave a drained
# node.
PREEMPTED, ROOM_MADE, MOVED = "Preempted", "RoomMade", "Moved"
GROWN, CANCELLED, POD_FAILED = "Grown", "Cancelled", "PodFailed"
RUN_LIMIT, RESIZED, DRAINED = "RunLimitExceeded", "Resized", "NodeDrained"


class JobEvent(models.Model):
    """Something that happened to a job; append-only. Every transition has one."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(db_index=True)
    kind = models.CharField(max_length=16, choices=EVENT_KINDS)
    from_state = models.CharField(max_length=16, blank=True)
    to_state = models.CharField(max_length=16)
    reason = models.CharField(max_length=REASON_LENGTH, blank=True)
    message = models.TextField(blank=True)
    evidence = ShapedField(shape=dict[str, Any], default=dict, blank=True)
    actor = models.CharField(max_length=150, blank=True)  # "" = Kant itself

    class Meta:
        ordering = ["id"]


class PlacementState(models.TextChoices):
    INTENDED = "INTENDED"  # written before the first API call
    BOUND = "BOUND"  # the API server accepted the binding
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"  # ran and failed, or was rejected by the kubelet
    RELEASED = "RELEASED"  # given back before, or without, ending by itself


LIVE_PLACEMENTS = (PlacementState.INTENDED, PlacementState.BOUND, PlacementState.RUNNING)


class Placement(models.Model):
    """Where one pod of one attempt goes: first the intent, then its history."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="placements")
    attempt = models.PositiveIntegerField()
    pod_set = models.PositiveSmallIntegerField()
    ordinal = models.PositiveIntegerField()
    namespace = models.CharField(max_length=63)
    pod_name = models.CharField(max_length=253)
    pod_uid = models.CharField(max_length=64, blank=True)
    node = models.CharField(max_length=253)
    gpu_model = models.CharField(max_length=63, blank=True)
    devices = models.JSONField(default=list)
    milli = models.PositiveIntegerField(default=1000)  # of each device
    nics = models.JSONField(default=list)
    state = models.CharField(
        max_length=16, choices=PlacementState.choices, default=PlacementState.INTENDED
    )
    message = models.TextField(blank=True)
    # Why a pod leaves while its job goes on, e.g. Preempted; for the next scheduler.
    reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="")
    intended_at = models.DateTimeField()
    bound_at = models.DateTimeField(null=True, blank=True)
    running_at = models.DateTimeField(null=True, blank=True)  # start of its minimum run time
    # When it began to count as allocated: pods of a gang once the last pod that it needs was bound,
    # other pods once they were bound (SOR, paper 4.2).
    held_from = models.DateTimeField(null=True, blank=True)
    held_milli = models.PositiveIntegerField(default=0)  # milli x devices, for sums in SQL
    # What a share by memory holds in addition, in billionths of a GPU-milli (held.py).
    held_beyond = models.PositiveIntegerField(default=0, db_default=0)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job", "attempt", "pod_set", "ordinal"]
        constraints = [
            models.UniqueConstraint(
                fields=["job", "attempt", "pod_set", "ordinal"], name="one_place_per_pod"
            )
        ]
        indexes = [
            models.Index(fields=["state"]),
            models.Index(fields=["pod_name"]),
            models.Index(fields=["ended_at"]),  # to find the few that hold now
        ]

    @property
    def held_exactly(self) -> float:
        """GPU-milli; a share by memory is exact to a billionth of one."""
        return self.held_milli + self.held_beyond / BEYOND
