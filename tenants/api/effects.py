"""What a change of quotas or nodes would do, in REST."""

from typing import Any

from rest_framework import serializers

from tenants.api.fields import Gpus, List, Serializer, Text
from tenants.api.schema import DryRunOutput
from tenants.api.serializers import QuotaValues
from tenants.effects import Effects

MOST_QUOTAS = 200  # per preview


class AffectedJobOutput(serializers.Serializer[Any]):
    """A job; for tenants that you may not see, only its GPUs. `user`: "" = a plain pod."""

    job = serializers.UUIDField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    user = serializers.CharField(allow_null=True)
    gpus = Gpus(source="gpu_milli")


class StoppingJobOutput(serializers.Serializer[Any]):
    """A running job that would lose `pods` pods, or all of them (`whole`).

    A job that loses all waits until `again` (null = beyond the forecast). `by`: the job that takes
    its places; null = its node goes away. `notice_s`: seconds of warning; a job that saves its work
    in that time loses nothing.
    """

    job = AffectedJobOutput()
    pods = serializers.IntegerField()
    whole = serializers.BooleanField()
    by = AffectedJobOutput(allow_null=True)
    lost_gpu_s = serializers.FloatField()
    again = serializers.DateTimeField(allow_null=True)
    notice_s = serializers.FloatField()


class ShiftingJobOutput(serializers.Serializer[Any]):
    """A waiting job whose start moves; null = beyond the forecast. `by_s`: seconds by which it
    starts later; negative = sooner."""

    job = AffectedJobOutput()
    before = serializers.DateTimeField(allow_null=True)
    after = serializers.DateTimeField(allow_null=True)
    by_s = serializers.FloatField(allow_null=True)


class ResizedJobOutput(serializers.Serializer[Any]):
    """A running job whose number of pods changes.

    `leave` pods go. Of `more` pods, `at_once` get places at once and all have one at `all_at` (null
    = beyond the forecast). `why`: why they never get places; "" = they may. `notice_s`: the seconds
    of warning of pods that go; at the latest after that they are gone.
    """

    job = AffectedJobOutput()
    leave = serializers.IntegerField()
    more = serializers.IntegerField()
    at_once = serializers.IntegerField()
    all_at = serializers.DateTimeField(allow_null=True)
    why = serializers.CharField()
    notice_s = serializers.FloatField()


class ImpossibleJobOutput(serializers.Serializer[Any]):
    job = AffectedJobOutput()
    why = serializers.CharField()


class LoanShiftOutput(serializers.Serializer[Any]):
    """GPUs that `borrower` borrows from `lender`; null = from tenants that you may not see."""

    gpu_type = serializers.CharField()
    borrower = serializers.CharField()
    lender = serializers.SerializerMethodField()
    before = Gpus()
    after = Gpus()

    def get_lender(self, loan: Any) -> str | None:
        return loan.lender or None


class EffectCountsOutput(serializers.Serializer[Any]):
    """The full length of each list, which holds only the first entries. `sooner`, `later`: parts of
    `shifts`."""

    starts = serializers.IntegerField()
    delayed = serializers.IntegerField()
    stops = serializers.IntegerField()
    sooner = serializers.IntegerField()
    later = serializers.IntegerField()
    impossible = serializers.IntegerField()
    possible = serializers.IntegerField()
    lost_gpu_s = serializers.FloatField()


class EffectsOutput(serializers.Serializer[Any]):
    """What the change would do, from what was known at `as_of`, if every job runs as long as
    expected and nobody submits another one. The forecast reaches until `until` (null = nothing was
    computed).

    `starts`: jobs that start at once and would not now; `delayed`: the reverse. `stops`: jobs that
    stop within a quarter of an hour. `possible`: jobs that can never start now, but then could.
    `resizes`: running jobs whose number of pods changes. `troubles`: clusters for which nothing can
    be computed, and why.
    """

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
    """One quota as it would be; a limit of null means unlimited."""

    tenant = Text(max_length=63)
    gpu_type = Text(max_length=63)


class QuotaPreviewInput(Serializer):
    quotas = List(child=QuotaPreviewRow(), allow_empty=False, max_length=MOST_QUOTAS)


def effects_body(effects: Effects) -> dict[str, Any]:
    return dict(EffectsOutput(effects).data)
