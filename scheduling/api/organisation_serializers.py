"""Serializers of the organisation document."""

from typing import Any

from rest_framework import serializers

from scheduling.api.cluster_serializers import ClusterChange
from tenants.api.fields import Boolean, Choice, Gpus, Integer, Object, Serializer, Text
from tenants.api.queue_serializers import QueueFields
from tenants.api.serializers import QuotaValues, TenantFields
from tenants.models import QueueState, Role

MOST_TENANTS, MOST_GPU_TYPES, MOST_CLUSTERS, MOST_MEMBERS = 10_000, 1_000, 1_000, 10_000


class GpuTypeEntry(Serializer):
    title = Text(max_length=200, allow_blank=True, required=False)
    memory_mib = Integer(min_value=0, max_value=10**7, required=False)


class QuotaEntry(QuotaValues):
    """A tenant's quota of one GPU type; a limit of null means unlimited."""

    guaranteed = Gpus(required=False)


class QueueEntry(QueueFields):
    state = Choice(QueueState.values, required=False)


class TenantEntry(TenantFields):
    is_active = Boolean(required=False)
    members = Object(
        child=Choice(Role.values),
        required=False,
        max_entries=MOST_MEMBERS,
        help_text="{user: role}, without roles from groups of the OpenID provider.",
    )
    quotas = Object(child=QuotaEntry(), required=False, help_text="{GPU type: quota}")
    queues = Object(child=QueueEntry(), required=False, help_text="{name: settings}")


class ClusterEntry(ClusterChange):
    policy = Object(required=False, help_text="Fields of the policy, as in /clusters/NAME/policy.")


class OrganisationDocument(Serializer):
    """The parts of the organisation by name. Whatever a document leaves out stays as it is."""

    gpu_types = Object(child=GpuTypeEntry(), required=False, max_entries=MOST_GPU_TYPES)
    tenants = Object(child=TenantEntry(), required=False, max_entries=MOST_TENANTS)
    clusters = Object(child=ClusterEntry(), required=False, max_entries=MOST_CLUSTERS)


class OrganisationInput(Serializer):
    document = OrganisationDocument()
    name = Text(
        max_length=63,
        required=False,
        help_text="Name of the document, if you have several: each is compared with the version "
        "last applied under its name. Default: “organisation”.",
    )
    reason = Text(max_length=2000)


class FieldChangeOutput(serializers.Serializer[Any]):
    field = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class ThingChangeOutput(serializers.Serializer[Any]):
    kind = serializers.CharField()
    names = serializers.ListField(child=serializers.CharField())
    action = serializers.ChoiceField(("create", "update", "delete"))
    fields = FieldChangeOutput(many=True)  # type: ignore[assignment]


class ThingOutput(serializers.Serializer[Any]):
    kind = serializers.CharField()
    names = serializers.ListField(child=serializers.CharField())


class OrganisationAnswer(serializers.Serializer[Any]):
    """The result of applying a document.

    `kept`: things that the previous document contained and this one does not; `prune` deletes them.
    """

    changes = ThingChangeOutput(many=True)
    kept = ThingOutput(many=True)
    warnings = serializers.ListField(child=serializers.CharField())
