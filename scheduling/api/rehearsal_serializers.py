"""Serializers of the answer to a dry run of a submission."""

from typing import Any

from rest_framework import serializers

from scheduling.api.job_outputs import AheadOutput, Numbers, ReservedOutput, StartOutput
from scheduling.queries.rehearsal import Outlook
from tenants.api.fields import Gpus
from tenants.api.schema import DryRunOutput


class PlacesOutput(serializers.Serializer[Any]):
    """Pods that would be placed now, with numbers of nodes and of leaf groups (0 = unknown)."""

    pods = serializers.IntegerField()
    nodes = serializers.IntegerField()
    leaves = serializers.IntegerField()


class QuotaTermsOutput(serializers.Serializer[Any]):
    """What one quota allows all pods of the job that may run on a GPU type.

    `tenant`: the job's tenant or one above it. `most`: the most that the quota could ever hold.
    `left`: how much of `asked` is available now. `borrows`: how much would be borrowed if all of
    `asked` were granted.
    """

    tenant = serializers.CharField()
    gpu_type = serializers.CharField(source="gpu_model")
    guaranteed = Gpus()
    used = Gpus()
    most = Gpus()
    asked = Gpus()
    left = Gpus()
    borrows = Gpus()


class AlternativeOutput(serializers.Serializer[Any]):
    """A change with which the job would start now.

    Another `gpu_type`, or fewer pods: `count`, or `min_count` for an elastic gang.
    """

    text = serializers.CharField()
    gpu_type = serializers.CharField(allow_null=True)
    count = serializers.IntegerField(allow_null=True)
    min_count = serializers.IntegerField(allow_null=True)
    places = PlacesOutput()


class RehearsalOutput(serializers.Serializer[Any]):
    """What the next cycle would do with the job, as the cluster was known at `as_of`.

    `preempts`: number of jobs that would be preempted to make room. `reason` and the fields after
    it: why the job would wait.
    """

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
    """The answer to `?dry_run=true`: what would happen. Nothing was changed."""

    rehearsal = RehearsalOutput()
