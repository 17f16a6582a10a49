"""REST shapes of replays."""

from typing import Any

from rest_framework import serializers

from metrics.api.views import QualitySerializer, WaitSerializer, WaitsSerializer
from metrics.models import Replay
from metrics.replays.recorded import CLOSE, FAR, ROUGH, UNKNOWN
from metrics.replays.scenario import MOST_NODES
from tenants.api.fields import Gpus, Integer, List, Moment, Object, Serializer, Text
from tenants.api.serializers import QuotaValues
from tenants.models import QuotaMode


class NodeChangeInput(Serializer):
    """The number of nodes of a shape to add, or to remove (negative)."""

    gpu_type = Text(max_length=63)
    gpus = Integer(min_value=1, max_value=1024, help_text="GPUs of each node.")
    change = Integer(min_value=-1_000_000, max_value=MOST_NODES)


class QuotaChangeInput(QuotaValues):
    """A quota that replaces a tenant's quota for a GPU type, as in `PUT /api/v1/quotas/…`. It holds
    for the whole period, even if the real quota changed in it."""

    tenant = Text(max_length=63)
    gpu_type = Text(max_length=63)


class ReplayInput(Serializer):
    """A replay to compute. By default it covers the last seven days.

    It uses the cluster's policy, except for the fields in `policy`; `strategies` there may name
    only some kinds of jobs.
    """

    cluster = Text(max_length=63)
    since = Moment(required=False)
    until = Moment(required=False)
    policy = Object(required=False)
    nodes = List(child=NodeChangeInput(), max_length=100, required=False)
    quotas = List(child=QuotaChangeInput(), max_length=1000, required=False)


class NodeChangeOutput(serializers.Serializer[Any]):
    gpu_type = serializers.CharField()
    gpus = serializers.IntegerField()
    change = serializers.IntegerField()


class QuotaChangeOutput(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    gpu_type = serializers.CharField()
    guaranteed = Gpus()
    mode = serializers.ChoiceField(QuotaMode.values)
    borrow_limit = Gpus(allow_null=True)
    lend_limit = Gpus(allow_null=True)


class ReplayOutput(serializers.Serializer[Replay]):
    """A replay. `progress`: from 0 to 1. `message`: why it failed, or who cancelled it."""

    id = serializers.UUIDField()
    cluster = serializers.CharField(source="cluster.name")
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    policy_before = serializers.DictField(
        help_text="The policy of the cluster when the replay was requested."
    )
    policy = serializers.DictField(help_text="The policy that the replay tries.")
    nodes = NodeChangeOutput(many=True)
    quotas_before = QuotaChangeOutput(
        many=True, help_text="The quotas in `quotas` as they were when the replay was requested."
    )
    quotas = QuotaChangeOutput(many=True, help_text="The changed quotas that the replay tries.")
    state = serializers.CharField()
    progress = serializers.FloatField()
    message = serializers.CharField()
    user = serializers.CharField(source="user.username", default=None, allow_null=True)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


# --- the result -----------------------------------------------------------------------------------
class RatiosSerializer(serializers.Serializer[Any]):
    """GAR is the median over instants; SOR and GFR are means over the period."""

    gar = serializers.FloatField(allow_null=True)
    sor = serializers.FloatField(allow_null=True)
    gfr = serializers.FloatField(allow_null=True)


class PoolSerializer(RatiosSerializer):
    gpu_type = serializers.CharField()
    gpus = serializers.IntegerField()


class TenantRunSerializer(WaitsSerializer):
    tenant = serializers.CharField()
    gpu_hours = serializers.FloatField()


class RecordedSerializer(RatiosSerializer):
    """What was recorded; ratios are null if less than 80 % of the period was sampled."""

    sampled = serializers.FloatField(help_text="Share of the period that was sampled.")
    gpu_hours = serializers.FloatField()
    jwtd = WaitSerializer(many=True)
    tenants = TenantRunSerializer(many=True)
    jtted = QualitySerializer(many=True)
    preempted_jobs = serializers.IntegerField()


class RunSerializer(RatiosSerializer):
    """A simulated run."""

    gpus = serializers.IntegerField()
    gpu_hours = serializers.FloatField()
    unknown_gpu_hours = serializers.FloatField(
        help_text="GPU-hours of jobs whose run time is not known."
    )
    pools = PoolSerializer(many=True)
    jwtd = WaitSerializer(many=True)
    tenants = TenantRunSerializer(many=True)
    jtted = QualitySerializer(many=True)
    jobs = serializers.IntegerField()
    never_runnable = serializers.IntegerField()
    preempted_jobs = serializers.IntegerField()
    preemptions = serializers.IntegerField()
    moves = serializers.IntegerField()
    lost_gpu_hours = serializers.FloatField()


class StartsSerializer(serializers.Serializer[Any]):
    """How many jobs of the period start earlier, later or at the same time as in the baseline; only
    with the change; only without it; in neither run."""

    earlier = serializers.IntegerField()
    later = serializers.IntegerField()
    same = serializers.IntegerField()
    gained = serializers.IntegerField()
    lost = serializers.IntegerField()
    neither = serializers.IntegerField()


class HitSerializer(serializers.Serializer[Any]):
    """A job that starts later with the change, and its waiting times."""

    job = serializers.UUIDField()
    name = serializers.CharField()
    tenant = serializers.CharField()
    wait_before_s = serializers.FloatField()
    wait_s = serializers.FloatField()


class HistorySerializer(serializers.Serializer[Any]):
    """The history that was replayed.

    Waits do not count jobs that were `carried_over` from before the period. How long the
    `open_ended` jobs and those that `gave_up` would have run is unknown: `declared` of them run as
    long as they declared, the others until they gave up, or to the end.
    """

    jobs = serializers.IntegerField()
    carried_over = serializers.IntegerField()
    open_ended = serializers.IntegerField()
    gave_up = serializers.IntegerField()
    declared = serializers.IntegerField()
    held = serializers.IntegerField()
    unreadable = serializers.IntegerField()
    unreadable_first = serializers.ListField(child=serializers.CharField())
    quota_changes = serializers.IntegerField(
        default=0,
        help_text="Changes of quotas in the period; both runs apply them at the times when "
        "they were made.",
    )
    complete_from = serializers.DateTimeField(allow_null=True)


class TrustSerializer(serializers.Serializer[Any]):
    """How close the simulated baseline is to the recorded history, and what the simulation does not
    know."""

    grade = serializers.ChoiceField([CLOSE, ROUGH, FAR, UNKNOWN])
    gpu_hours_recorded = serializers.FloatField()
    gpu_hours_simulated = serializers.FloatField()
    wait_recorded_s = serializers.FloatField(allow_null=True)
    wait_simulated_s = serializers.FloatField(allow_null=True)
    doubts = serializers.ListField(child=serializers.CharField())


def _numbers(help_text: str = "") -> serializers.ListField:
    child = serializers.FloatField(allow_null=True)
    return serializers.ListField(child=child, help_text=help_text)


class SeriesSerializer(serializers.Serializer[Any]):
    """At each instant: GPUs allocated, as the mean of the interval before it, and GFR."""

    at = serializers.ListField(child=serializers.DateTimeField())
    recorded_gpus = _numbers()
    baseline_gpus = _numbers()
    changed_gpus = _numbers()
    baseline_gfr = _numbers()
    changed_gfr = _numbers()


class StartedSerializer(serializers.Serializer[Any]):
    """Seconds within which 1 %, 2 %, … of the jobs start; shorter if not all jobs do."""

    recorded = _numbers()
    baseline = _numbers()
    changed = _numbers()


class ResultSerializer(serializers.Serializer[Any]):
    recorded = RecordedSerializer()
    baseline = RunSerializer()
    changed = RunSerializer()
    starts = StartsSerializer()
    hardest_hit = HitSerializer(many=True)
    history = HistorySerializer()
    trust = TrustSerializer()
    series = SeriesSerializer()
    started_within_s = StartedSerializer()


class ReplayWithResultOutput(ReplayOutput):
    """A replay; `result` is null until it is done."""

    result = ResultSerializer(allow_null=True)
