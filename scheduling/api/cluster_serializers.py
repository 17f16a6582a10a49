"""Serializers of clusters and policies."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.addresses import is_http_address
from scheduling.job_fields.faults import SLUG, SLUG_RULE
from scheduling.models import Cluster
from scheduling.queries.selectors import leaders_of
from scheduling.queries.standstill import remarks, standstill
from scheduling.services.jobs.permitted import effective_rules
from tenants.api.fields import Boolean, Object, Serializer, StringMap, Text
from tenants.api.serializers import ReasonInput
from tenants.models import User


def namespace_name(text: str) -> None:
    """Raise ValidationError for a name that Kubernetes refuses for namespaces."""
    if not SLUG.fullmatch(text):
        raise serializers.ValidationError(SLUG_RULE)


class AccessField(Object):
    """{"kubeconfig": path, "context": name}, {"server": address, …} or {"in_cluster": true}."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        access: dict[str, Any] = super().to_internal_value(data)
        server = access.get("server")
        if isinstance(server, str) and not is_http_address(server):
            detail = "Must be an address, e.g. https://10.0.0.1:6443."
            raise serializers.ValidationError({"server": [detail]})
        return access


class ClusterChange(Serializer):
    title = Text(max_length=200, allow_blank=True, required=False)
    access = AccessField(required=False)
    namespace = Text(max_length=63, required=False, validators=[namespace_name])
    label_map = Object(required=False)
    job_rules = Object(
        required=False,
        help_text="Rules for what jobs may name: denied_tolerations, toleration_of_everything, "
        "service_accounts, denied_annotations, denied_labels, denied_env, max_priority, "
        "host_network, privileged, capabilities, denied_runtime_classes, "
        "denied_priority_classes. Rules that are left out have their defaults.",
    )
    namespace_tenants = Object(
        required=False,
        help_text="{namespace: [names of tenants]}: tenants that plain pods of a namespace may "
        "use. “*” stands for all other namespaces, or for all tenants. A tenant's own namespace "
        "needs no entry: its pods may use that tenant and those below it.",
    )
    queue_map = Object(
        required=False,
        help_text="{name or namespace/name: “tenant/queue” or another name of the map}: the "
        "queue for each value of the labels kueue.x-k8s.io/queue-name and kai.scheduler/queue "
        "of plain pods. Empty: Kant ignores these labels.",
    )
    labels = StringMap(
        max_entries=64,
        max_length=63,
        required=False,
        help_text="Labels by which jobs choose clusters (cluster_selector, "
        "preferred_cluster_labels), e.g. where data is.",
    )
    node_groups = Object(
        required=False,
        help_text="{name: {gpu_type, gpus, cpu_milli, memory_mib, max_nodes, labels, taints, "
        "extended}}: nodes that an autoscaler may add: what one node of each group has, and the "
        "most nodes of the group. A node belongs to a group if it has the group's GPU type, "
        "number of GPUs and labels. Jobs that fit only on such nodes are accepted, and wait for "
        "them. Empty: the cluster does not grow.",
    )
    provisioning_class = Text(
        max_length=253,
        allow_blank=True,
        required=False,
        help_text="Class of the ProvisioningRequests (autoscaling.x-k8s.io/v1) with which gangs "
        "request all missing nodes of `node_groups`, e.g. "
        "best-effort-atomic-scale-up.autoscaling.x-k8s.io. Empty: Kant makes no "
        "ProvisioningRequests, and the autoscaler sees pods.",
    )
    takes_any = Boolean(
        required=False,
        help_text="Whether jobs that name no cluster may come here. If false, e.g. for "
        "maintenance, those that wait here go to other clusters; running jobs go on.",
    )
    is_active = Boolean(required=False)


class ClusterInput(ClusterChange):
    name = Text(max_length=63)
    access = AccessField()


class LeaderOutput(serializers.Serializer[Any]):
    """The scheduler of a shard, or of the whole cluster if `scope` is empty."""

    scope = serializers.CharField()
    holder = serializers.CharField()
    until = serializers.DateTimeField(allow_null=True)
    nodes = serializers.IntegerField()


class ClusterOutput(serializers.Serializer[Cluster]):
    """A cluster.

    `access`, `namespace_tenants`, `queue_map` and `leaders` are shown to operators only and are
    null for others. `job_rules`: all rules about what jobs may name, defaults included.
    `connected`: a scheduler is working on the cluster now and reaches its API; otherwise
    `status_message` says why not. `remarks`: what operators should know of a working cluster;
    usually empty.
    """

    name = serializers.CharField()
    title = serializers.CharField()
    namespace = serializers.CharField()
    access = serializers.SerializerMethodField()
    label_map = serializers.DictField()
    job_rules = serializers.SerializerMethodField()
    namespace_tenants = serializers.SerializerMethodField()
    queue_map = serializers.SerializerMethodField()
    labels = serializers.DictField(child=serializers.CharField())
    node_groups = serializers.DictField()
    provisioning_class = serializers.CharField()
    takes_any = serializers.BooleanField()
    is_active = serializers.BooleanField()
    connected = serializers.SerializerMethodField()
    status_message = serializers.SerializerMethodField()
    remarks = serializers.SerializerMethodField()
    last_cycle_at = serializers.DateTimeField(allow_null=True)
    leaders = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()

    def get_job_rules(self, cluster: Cluster) -> dict[str, Any]:
        return effective_rules(cluster.job_rules)

    def get_connected(self, cluster: Cluster) -> bool:
        return not standstill(cluster)

    def get_status_message(self, cluster: Cluster) -> str:
        return standstill(cluster)

    def get_remarks(self, cluster: Cluster) -> str:
        return remarks(cluster)

    @extend_schema_field({"type": ["object", "null"], "additionalProperties": True})
    def get_access(self, cluster: Cluster) -> dict[str, Any] | None:
        viewer: User = self.context["viewer"]
        return cluster.access if viewer.is_operator else None

    @extend_schema_field({"type": ["object", "null"], "additionalProperties": True})
    def get_namespace_tenants(self, cluster: Cluster) -> dict[str, Any] | None:
        viewer: User = self.context["viewer"]
        return cluster.namespace_tenants if viewer.is_operator else None

    @extend_schema_field({"type": ["object", "null"], "additionalProperties": True})
    def get_queue_map(self, cluster: Cluster) -> dict[str, Any] | None:
        viewer: User = self.context["viewer"]
        return cluster.queue_map if viewer.is_operator else None

    @extend_schema_field(LeaderOutput(many=True, allow_null=True))
    def get_leaders(self, cluster: Cluster) -> Any:
        viewer: User = self.context["viewer"]
        if not viewer.is_operator:
            return None
        return LeaderOutput(leaders_of(cluster, timezone.now()), many=True).data


class PolicyInput(ReasonInput):
    """The whole policy: settings that it leaves out get their defaults."""

    policy = Object()


class PolicyOutput(serializers.Serializer[Any]):
    cluster = serializers.CharField()
    policy = serializers.DictField()
    version = serializers.IntegerField()
    updated_at = serializers.DateTimeField(allow_null=True)
