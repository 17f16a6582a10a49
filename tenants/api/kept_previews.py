"""Previews kept in the audit trail, in REST."""

from typing import Any

from rest_framework import serializers


class KeptJobOutput(serializers.Serializer[Any]):
    """A job; for tenants that you may not see, only its GPUs."""

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
    """`counts`: as in a preview; the lists hold only the first entries."""

    until = serializers.DateTimeField()
    counts = serializers.DictField(child=serializers.FloatField())
    starts = KeptJobOutput(many=True)
    stops = KeptStopOutput(many=True)
    impossible = KeptImpossibleOutput(many=True)
    loans = KeptLoanOutput(many=True)
    troubles = serializers.ListField(child=serializers.CharField())


class BorrowingShiftOutput(serializers.Serializer[Any]):
    """GPUs that a tenant borrowed at the preview, and at `borrowed_at`."""

    tenant = serializers.CharField()
    gpu_type = serializers.CharField()
    before = serializers.FloatField()
    after = serializers.FloatField()


class RevertedOutput(serializers.Serializer[Any]):
    by = serializers.CharField()
    at = serializers.DateTimeField()


class HappenedOutput(serializers.Serializer[Any]):
    """What happened until then.

    Jobs that started, `told_and_started` of them among the `told_to_start` that the preview named;
    jobs that were preempted, `reclaimed` of them by tenants that took their guarantee back.
    `reverted`: by whom within this hour; null = it was not.
    """

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
    """What the change was predicted to do before it was made, from what was known at `as_of`, and
    what happened in the hour after; null = not over yet."""

    as_of = serializers.DateTimeField()
    told = ToldOutput()
    happened = HappenedOutput(allow_null=True)
