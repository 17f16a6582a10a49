"""What a change would do, in REST: of quotas, of nodes."""

from typing import Any

from rest_framework import serializers

from tenants.api.fields import Gpus, List, Serializer, Text
from tenants.api.schema import DryRunOutput
from tenants.api.serializers import QuotaValues
from tenants.effects import Effects

MOST_QUOTAS = 200  # in one preview


class AffectedJobOutput(serializers.Serializer[Any]):
    """A job; of tenants that you may not see only its GPUs. `user`: "" = a plain pod's."""

    job = serializers.UUIDField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    user = serializers.CharField(allow_null=True)
    gpus = Gpus(source="gpu_milli")


class StoppingJobOutput(serializers.Serializer[Any]):
    """A running job that would lose `pods` pods, all where `whole`, which then waits until `again`
    (null = later than was looked); `by`: for whom, null = its node is taken. `notice_s`: so long
    before it is told, and loses nothing if it saves its work by then."""

    job = AffectedJobOutput()
    pods = serializers.IntegerField()
    whole = serializers.BooleanField()
    by = AffectedJobOutput(allow_null=True)
    lost_gpu_s = serializers.FloatField()
    again = serializers.DateTimeField(allow_null=True)
    notice_s = serializers.FloatField()


class ShiftingJobOutput(serializers.Serializer[Any]):
    """A waiting job that starts at another time; null = later than was looked. `by_s`: so many
    seconds later, below 0 sooner."""

    job = AffectedJobOutput()
    before = serializers.DateTimeField(allow_null=True)
    after = serializers.DateTimeField(allow_null=True)
    by_s = serializers.FloatField(allow_null=True)


class ResizedJobOutput(serializers.Serializer[Any]):
    """A running job that is given another number of pods: `leave` pods go; of `more` pods
    `at_once` get places at once, all of them at `all_at` (null = later than was looked); `why`:
    they never get any, "" = they may."""

    job = AffectedJobOutput()
    leave = serializers.IntegerField()
    more = serializers.IntegerField()
    at_once = serializers.IntegerField()
    all_at = serializers.DateTimeField(allow_null=True)
    why = serializers.CharField()


class ImpossibleJobOutput(serializers.Serializer[Any]):
    job = AffectedJobOutput()
    why = serializers.CharField()


class LoanShiftOutput(serializers.Serializer[Any]):
    """GPUs that `borrower` borrows from `lender`, null = from tenants that you may not see."""

    gpu_type = serializers.CharField()
    borrower = serializers.CharField()
    lender = serializers.SerializerMethodField()
    before = Gpus()
    after = Gpus()

    def get_lender(self, loan: Any) -> str | None:
        return loan.lender or None


class EffectCountsOutput(serializers.Serializer[Any]):
    """How many there are; the lists hold the first of them. `sooner`, `later`: of `shifts`."""

    starts = serializers.IntegerField()
    delayed = serializers.IntegerField()
    stops = serializers.IntegerField()
    sooner = serializers.IntegerField()
    later = serializers.IntegerField()
    impossible = serializers.IntegerField()
    possible = serializers.IntegerField()
    lost_gpu_s = serializers.FloatField()


class EffectsOutput(serializers.Serializer[Any]):
    """What the change would do, by what was known at `as_of`, if every job runs as long as is
    likely and nobody submits another one, looked ahead until `until` (null = nothing was looked
    at). `starts`: jobs that start at once and would not now; `delayed`: the other way round;
    `stops`: within a quarter of an hour; `possible`: that can never start now; `resizes`: running
    jobs that are given another number of pods. `troubles`: of which clusters nothing can be told,
    and why."""

    as_of = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True)
    counts = EffectCountsOutput()
    starts = AffectedJobOutput(many=True)
    delayed = AffectedJobOutput(many=True)
    stops = StoppingJobOutput(many=True)
    shifts = ShiftingJobOutput(many=True)
    impossible = ImpossibleJobOutput(many=True)
    possible = AffectedJobOutput(many=True)
    loans = LoanShiftOutput(many=True)
    resizes = ResizedJobOutput(many=True)
    troubles = serializers.ListField(child=serializers.CharField())


class DryRunWithEffects(DryRunOutput):
    """The answer to `?dry_run=true`: what would be. Nothing was changed."""

    effects = EffectsOutput()


class QuotaPreviewRow(QuotaValues):
    """One quota as it would be; a limit of null is unlimited."""

    tenant = Text(max_length=63)
    gpu_type = Text(max_length=63)


class QuotaPreviewInput(Serializer):
    quotas = List(child=QuotaPreviewRow(), allow_empty=False, max_length=MOST_QUOTAS)


def effects_body(effects: Effects) -> dict[str, Any]:
    return dict(EffectsOutput(effects).data)
