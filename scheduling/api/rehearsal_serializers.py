"""What a dry run of a submission answers in REST."""

from typing import Any

from rest_framework import serializers

from scheduling.api.job_outputs import AheadOutput, Numbers, ReservedOutput, StartOutput
from scheduling.queries.rehearsal import Outlook
from tenants.api.fields import Gpus
from tenants.api.schema import DryRunOutput


class PlacesOutput(serializers.Serializer[Any]):
    """Pods that would get places now, on how many nodes, in how many leaf groups (0 = unknown)."""

    pods = serializers.IntegerField()
    nodes = serializers.IntegerField()
    leaves = serializers.IntegerField()


class QuotaTermsOutput(serializers.Serializer[Any]):
    """What the quota of `tenant`, the job's or one above it, says to all pods of the job that may
    run on a GPU type. `most`: what it could ever hold. Of `asked`, `left` may be had now; all of it
    would borrow `borrows`."""

    tenant = serializers.CharField()
    gpu_type = serializers.CharField(source="gpu_model")
    guaranteed = Gpus()
    used = Gpus()
    most = Gpus()
    asked = Gpus()
    left = Gpus()
    borrows = Gpus()


class AlternativeOutput(serializers.Serializer[Any]):
    """A change with which the job would start now: another `gpu_type`, or fewer pods: `count`, of
    an elastic gang `min_count`."""

    text = serializers.CharField()
    gpu_type = serializers.CharField(allow_null=True)
    count = serializers.IntegerField(allow_null=True)
    min_count = serializers.IntegerField(allow_null=True)
    places = PlacesOutput()


class RehearsalOutput(serializers.Serializer[Any]):
    """What the next cycle would do with the job, by what was known at `as_of`. `preempts`: jobs
    that would make room for it; `reason` and what follows: why it would wait."""

    outlook = serializers.ChoiceField([outlook.value for outlook in Outlook])
    summary = serializers.CharField()
    as_of = serializers.DateTimeField(allow_null=True)
    places = PlacesOutput(allow_null=True)
    preempts = serializers.IntegerField()
    quota = QuotaTermsOutput(many=True)
    reason = serializers.CharField()
    evidence = serializers.DictField()
    numbers = Numbers()
    remedies = serializers.ListField(child=serializers.CharField())
    position = serializers.IntegerField(allow_null=True)
    ahead = AheadOutput(many=True)
    reservation = ReservedOutput(allow_null=True)
    start = StartOutput(allow_null=True)
    alternatives = AlternativeOutput(many=True)


class JobDryRunOutput(DryRunOutput):
    """The answer to `?dry_run=true`: what would be. Nothing was changed."""

    rehearsal = RehearsalOutput()
