"""Clusters, their policies, their leaders, and a projection of their nodes."""

from django.db import models

from tenants.models import slug_validator


class Cluster(models.Model):
    """A Kubernetes cluster that Kant schedules, and how to reach it.

    - `access`: {"kubeconfig": path, "context": name} or {"server": url, "token_file": path,
      "ca_file": path} or {"in_cluster": true}. Secrets stay in files, never in this row.
    - `label_map`: overrides rows of the default label table (docs/operating/).
    - `namespace_tenants`: {namespace: names of tenants} that plain pods there may use; "*" stands
      for all other namespaces, and for all tenants.
    - `queue_map`: {name or namespace/name: "tenant/queue" or another name} for queues that plain
      pods name by labels of other schedulers.
    - `labels`: what jobs choose clusters by, e.g. {"data/imagenet": "local"}.
    - `node_groups`: {name: {"gpu_type", "gpus", "cpu_milli", "memory_mib", "max_nodes", …}} to
      which an autoscaler may add nodes (services/clusters/node_groups.py); {} = the cluster does
      not grow.
    - `takes_any`: whether jobs that name no cluster may come here.
    - `provisioning_class`: of the ProvisioningRequests by which gangs ask for such nodes;
      "" = their pending pods ask for them.
    """

    name = models.CharField(max_length=63, unique=True, validators=[slug_validator])
    title = models.CharField(max_length=200, blank=True)
    access = models.JSONField(default=dict)
    namespace = models.CharField(max_length=63, default="kant-jobs")
    label_map = models.JSONField(default=dict, blank=True)
    # What its jobs may name (`services.job_rules`).
    job_rules = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    namespace_tenants = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    queue_map = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    labels = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    node_groups = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    provisioning_class = models.CharField(max_length=253, blank=True, default="", db_default="")
    takes_any = models.BooleanField(default=True, db_default=True)
    is_active = models.BooleanField(default=True)
    # The scheduler's last message about itself or, while connected, about the cluster. Shown on
    # pages; never used for decisions.
    connected = models.BooleanField(default=False)
    status_message = models.TextField(blank=True)
    last_cycle_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ClusterPolicy(models.Model):
    """The policy of one cluster; `document` holds the engine's Policy fields. ETag = version."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="policy")
    document = models.JSONField(default=dict)
    version = models.PositiveBigIntegerField(default=1)
    updated_at = models.DateTimeField(auto_now=True)


class SchedulerLease(models.Model):
    """Which scheduler may act on a scope of a cluster (docs/decisions/0003); "" = all of it.

    `token` grows with each change of holder, and every write of that scheduler checks it (fencing).
    `asked_by`: a scheduler that leads fewer scopes and wants to take this one over. `wanted`: the
    nodes that the wide scope asks its shards for: {"nodes": names, "empty": whether to keep them
    free until they are idle}.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="leases")
    scope = models.CharField(max_length=63, blank=True, default="")
    holder = models.CharField(max_length=200, blank=True)
    token = models.PositiveBigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True, blank=True)
    asked_by = models.CharField(max_length=200, blank=True, default="")
    wanted = models.JSONField(default=dict, blank=True)
    # {tenant: dominant share of it and all tenants below it} if the policy orders by it, as of the
    # last cycle, for pages. The share of a department's own jobs is listed under its name followed
    # by "/".
    shares = models.JSONField(default=dict, blank=True)
    # {tenant: {id of a user, "" = unknown: dominant share}}, likewise.
    user_shares = models.JSONField(default=dict, blank=True)
    # {"at": seconds since the epoch, "owed": {tenant: {queue: share}}}: what queues of tenants are
    # owed, for the next scheduler.
    queue_debts = models.JSONField(default=dict, blank=True)
    # Counts of its passes and effects (scheduling.session.pace), for pages and metrics.
    pace = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["cluster", "scope"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "scope"], name="one_lease_a_scope")
        ]


class StandingOrder(models.Model):
    """The jobs that wait their turn at a scheduler, in its order: 16 bytes per job id.

    Written if queues of tenants affect the order (docs/decisions/0061), and not in every pass; the
    rows of the jobs say which of them still wait. `whole`: all of them are here.
    """

    lease = models.OneToOneField(
        SchedulerLease, on_delete=models.CASCADE, primary_key=True, related_name="order"
    )
    jobs = models.BinaryField()
    whole = models.BooleanField(default=True)


class ToldGroups(models.Model):
    """Groups that recently placed pods keep away from, in a divided cluster.

    {group: seconds since the epoch}, for schedulers that have not heard of these pods yet. A
    scheduler that places pods named in rules locks this row exclusively until it has written; one
    that places other pods shares the lock (services/scheduler/ruled.py).
    """

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, primary_key=True)
    apart = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))


# Matches the rows whose `NodeRecord.without_gpus` is true.
NODES_WITHOUT_GPUS = models.Q(gpus=0) & ~models.Q(facts__has_key="gpu_parts")


class NodeRecord(models.Model):
    """A projection of a node for pages and REST; the Kubernetes API owns the facts.

    Only `scope` is Kant's own: only the leader of this scope places pods here and changes `scope`.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=253)
    scope = models.CharField(max_length=63, blank=True, default="")
    gpu_model = models.CharField(max_length=63, blank=True)
    gpus = models.PositiveIntegerField(default=0)
    healthy_gpus = models.PositiveIntegerField(default=0)
    allocated_milli = models.PositiveIntegerField(default=0)
    free_gpus = models.PositiveIntegerField(default=0)  # healthy and wholly unallocated
    # Requests of all pods on the node, including other schedulers' pods; `pods` counts Kant's.
    allocated_cpu_milli = models.PositiveBigIntegerField(default=0, db_default=0)
    allocated_memory_mib = models.PositiveBigIntegerField(default=0, db_default=0)
    pods = models.PositiveIntegerField(default=0, db_default=0)
    leaf = models.CharField(max_length=253, blank=True)
    spine = models.CharField(max_length=253, blank=True)
    superspine = models.CharField(max_length=253, blank=True)
    hyper_node = models.CharField(max_length=253, blank=True)
    zone = models.CharField(max_length=63, blank=True)
    schedulable = models.BooleanField(default=True)
    # Everything else the engine decides by, so that the fleet can be simulated from its rows.
    cpu_milli = models.PositiveBigIntegerField(default=0)  # allocatable
    memory_mib = models.PositiveBigIntegerField(default=0)  # allocatable
    max_pods = models.PositiveBigIntegerField(default=110)
    extended = models.JSONField(default=dict)  # {resource: allocatable amount}
    labels = models.JSONField(default=dict)
    taints = models.JSONField(default=list)  # [{"key": …, "value": …, "effect": …}]
    # {"fact": {"value": …, "source": the label or field it came from}}
    facts = models.JSONField(default=dict)
    # Pod rules on the node (`session.memory.constraints`), for questions to the engine that are
    # answered from rows. It names pods of all tenants and is shown to nobody.
    company = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )
    problems = models.JSONField(default=list)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="one_row_a_node")]
        indexes = [models.Index(fields=["cluster", "scope"])]

    @property
    def without_gpus(self) -> bool:
        """Whether jobs without GPUs may run on it."""
        return not self.gpus and "gpu_parts" not in self.facts


class NodeOrder(models.Model):
    """An operator's order for a node: Kant places nothing there.

    With `drains` the pods of its jobs leave when they end, and from `evict_at` on they are evicted
    (None = never). The order ends when it is lifted, or with the node. An order with a `plan` ends
    once no pod is left on the plan's nodes, and at `opens_at` in any case. `pods`: how many held
    places there when the order was given.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="node_orders")
    node = models.CharField(max_length=253)
    drains = models.BooleanField(default=False)
    evict_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=2000)
    by = models.CharField(max_length=150)
    at = models.DateTimeField()
    pods = models.PositiveIntegerField(default=0)
    plan = models.UUIDField(null=True, blank=True)
    opens_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveBigIntegerField(default=1)

    class Meta:
        ordering = ["node"]
        constraints = [models.UniqueConstraint(fields=["cluster", "node"], name="one_order_a_node")]
