"""Previews that the audit trail keeps, in REST."""

from typing import Any

from rest_framework import serializers


class KeptJobOutput(serializers.Serializer[Any]):
    """A job; of tenants that you may not see only its GPUs."""

    job = serializers.CharField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    gpus = serializers.FloatField()


class KeptStopOutput(KeptJobOutput):
    pods = serializers.IntegerField()
    whole = serializers.BooleanField()
    lost_gpu_s = serializers.FloatField()


class KeptImpossibleOutput(KeptJobOutput):
    why = serializers.CharField()


class KeptLoanOutput(serializers.Serializer[Any]):
    """`lender`: “” = tenants that you may not see."""

    gpu_type = serializers.CharField()
    borrower = serializers.CharField()
    lender = serializers.CharField()
    before = serializers.FloatField()
    after = serializers.FloatField()


class ToldOutput(serializers.Serializer[Any]):
    """`counts`: as in a preview; the lists hold the first of them."""

    until = serializers.DateTimeField()
    counts = serializers.DictField(child=serializers.FloatField())
    starts = KeptJobOutput(many=True)
    stops = KeptStopOutput(many=True)
    impossible = KeptImpossibleOutput(many=True)
    loans = KeptLoanOutput(many=True)
    troubles = serializers.ListField(child=serializers.CharField())


class BorrowingShiftOutput(serializers.Serializer[Any]):
    """GPUs that a tenant borrowed when it was previewed, and at `borrowed_at`."""

    tenant = serializers.CharField()
    gpu_type = serializers.CharField()
    before = serializers.FloatField()
    after = serializers.FloatField()


class RevertedOutput(serializers.Serializer[Any]):
    by = serializers.CharField()
    at = serializers.DateTimeField()


class HappenedOutput(serializers.Serializer[Any]):
    """What happened until then: jobs that started, `told_and_started` of the `told_to_start` that
    are named, and that were preempted, `reclaimed` of them by tenants that took back their own;
    `reverted`: by whom in this hour, null = it was not."""

    until = serializers.DateTimeField()
    started = serializers.IntegerField()
    started_gpus = serializers.FloatField()
    told_to_start = serializers.IntegerField()
    told_and_started = serializers.IntegerField()
    starts = KeptJobOutput(many=True)
    stopped = serializers.IntegerField()
    reclaimed = serializers.IntegerField()
    lost_gpu_s = serializers.FloatField()
    stops = KeptJobOutput(many=True)
    borrowed_at = serializers.DateTimeField()
    borrowed = BorrowingShiftOutput(many=True)
    reverted = RevertedOutput(allow_null=True)


class PreviewKeptOutput(serializers.Serializer[Any]):
    """What somebody was told of the change before it was made, by what was known at `as_of`, and
    what happened in the hour after; null = that is not over."""

    as_of = serializers.DateTimeField()
    told = ToldOutput()
    happened = HappenedOutput(allow_null=True)
