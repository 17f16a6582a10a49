"""Who may use how much: users, the tenant tree, GPU types, quotas, tokens, the audit trail.

Rows are written only by `tenants.services`; reads beyond one row go through
`tenants.selectors`. GPU amounts are milli-GPU (1000 = one whole GPU).
"""

import uuid
from typing import Any

from django.contrib.auth.models import AbstractUser
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

# No real installation comes near this. It keeps every sum within a 64-bit column.
MAX_MILLI = 10**12
# An upper limit, so that no tenant's jobs block others for longer only because they have just
# started.
MAX_MIN_RUNTIME_S = 30 * 86400
# Every tenant has this queue; it takes the jobs that name none.
DEFAULT_QUEUE = "default"

slug_validator = RegexValidator(
    r"\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z",
    "Use lower-case letters, digits and hyphens, at most 63, starting and ending with a letter "
    "or digit.",
)


def milli_validators() -> list[MinValueValidator | MaxValueValidator]:
    return [MinValueValidator(0), MaxValueValidator(MAX_MILLI)]


class User(AbstractUser):
    """A person. Operators may do everything; all others act through memberships."""

    is_operator = models.BooleanField(default=False)
    # For a request with a token limited to one tenant: that tenant, and whether the token's user is
    # an operator, which gives no operator's rights here.
    only_in: "tuple[int, bool] | None" = None

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.only_in is not None:
            raise RuntimeError("the rights of a token are not those of its user")
        super().save(*args, **kwargs)


class Identity(models.Model):
    """A user's identity at an OpenID provider. The provider never reassigns a `subject`, unlike
    names and addresses."""

    user = models.OneToOneField(User, on_delete=models.CASCADE, related_name="identity")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    # Whether is_operator comes from a group at the provider, and ends when the user leaves that
    # group.
    operator_by_group = models.BooleanField(default=False, editable=False)
    # Names of the user's groups at the provider, as of the last sign-in.
    groups = models.JSONField(
        default=list, db_default=models.Value([], models.JSONField()), editable=False
    )
    signed_in_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "identities"
        constraints = [
            models.UniqueConstraint(fields=["issuer", "subject"], name="one_user_each"),
        ]


class Tenant(models.Model):
    """A team or organisation; a node of the tenant tree. A child's use counts for its ancestors
    too."""

    name = models.CharField(max_length=63, unique=True, validators=[slug_validator])
    title = models.CharField(max_length=200, blank=True)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    weight = models.FloatField(default=1.0, validators=[MinValueValidator(0.001)])
    # The most jobs that may run, or wait, at once in this tenant and below; null = no limit.
    max_running = models.PositiveIntegerField(null=True, blank=True)
    max_waiting = models.PositiveIntegerField(null=True, blank=True)
    # The highest priority that jobs of this tenant and below may ask for; null = no limit.
    max_priority = models.IntegerField(null=True, blank=True)
    # How many seconds jobs of this tenant and below are safe from preemption after their start;
    # null = inherited from the parent, for a root from the cluster's policy.
    min_runtime_s = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_MIN_RUNTIME_S)],
    )
    # The Kubernetes namespace for pods of this tenant and below; null = inherited from the parent,
    # for a root the cluster's namespace.
    namespace = models.CharField(
        max_length=63, null=True, blank=True, unique=True, validators=[slug_validator]
    )
    is_active = models.BooleanField(default=True)
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save; a new tenant also gets its default queue, whoever creates it."""
        new = self._state.adding
        super().save(*args, **kwargs)
        if new:
            Queue.objects.create(tenant=self, name=DEFAULT_QUEUE)


class Role(models.TextChoices):
    TENANT_ADMIN = "tenant-admin", "Tenant admin"
    ENGINEER = "engineer", "Engineer"
    VIEWER = "viewer", "Viewer"


class Membership(models.Model):
    """A user's role in a tenant; it holds for all tenants below as well."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices)
    # Whether a group at the OpenID provider gave it; then it ends with the group. Otherwise a
    # person gave it.
    by_group = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="one_role_each")]


class GpuType(models.Model):
    """A GPU model on which quota is given, by its canonical name (as nodes report it)."""

    name = models.CharField(max_length=63, unique=True)
    title = models.CharField(max_length=200, blank=True)
    memory_mib = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class QuotaMode(models.TextChoices):
    SHARED = "shared", "Shared"
    ISOLATED = "isolated", "Isolated"


class Quota(models.Model):
    """Guaranteed milli-GPU of one tenant for one GPU type, and what it may borrow and lend.

    A null limit means unlimited; both limits matter only in shared mode. `version` is the ETag.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="quotas")
    gpu_type = models.ForeignKey(GpuType, on_delete=models.PROTECT, related_name="quotas")
    guaranteed_milli = models.BigIntegerField(default=0, validators=milli_validators())
    mode = models.CharField(max_length=16, choices=QuotaMode.choices, default=QuotaMode.SHARED)
    borrow_limit_milli = models.BigIntegerField(
        null=True, blank=True, validators=milli_validators()
    )
    lend_limit_milli = models.BigIntegerField(null=True, blank=True, validators=milli_validators())
    version = models.PositiveBigIntegerField(default=1)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["tenant__name", "gpu_type__name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "gpu_type"], name="one_quota_each"),
            models.CheckConstraint(
                condition=models.Q(guaranteed_milli__gte=0), name="guaranteed_not_negative"
            ),
        ]


class QuotaDraft(models.Model):
    """Quotas that somebody is about to set. Each person has one draft; it is empty once applied or
    discarded. `version` is the ETag.

    `tab` and `stamp` name the browser tab that wrote last and the number of that write, so that a
    write that arrives late does not replace a newer one.
    """

    author = models.OneToOneField(User, on_delete=models.CASCADE, related_name="quota_draft")
    reason = models.TextField(blank=True)
    version = models.PositiveBigIntegerField(default=1)
    tab = models.CharField(max_length=36, blank=True)
    stamp = models.PositiveBigIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True, db_index=True)

    class Meta:
        ordering = ["author__username"]


class DraftCell(models.Model):
    """One quota in a draft.

    `typed`: the guarantee as typed, even if that is not a number yet. `terms`: the changed ones
    among mode, borrow_limit and lend_limit, as typed. `version`: that of the quota when the edit
    began; 0 = there was none.
    """

    draft = models.ForeignKey(QuotaDraft, on_delete=models.CASCADE, related_name="cells")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    gpu_type = models.ForeignKey(GpuType, on_delete=models.CASCADE, related_name="+")
    typed = models.CharField(max_length=64, blank=True)
    terms = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    version = models.PositiveBigIntegerField()
    edited_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["tenant__name", "gpu_type__name"]
        constraints = [
            models.UniqueConstraint(
                fields=["draft", "tenant", "gpu_type"], name="one_edit_of_a_quota"
            ),
        ]


class DraftTenant(models.Model):
    """One tenant in a draft.

    `fields`: the changed ones among its place in the tree and its weight, as typed ("" = a root).
    `base`: their values when the edit began.
    """

    draft = models.ForeignKey(QuotaDraft, on_delete=models.CASCADE, related_name="tenants")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    fields = models.JSONField()
    base = models.JSONField()
    edited_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["tenant__name"]
        constraints = [
            models.UniqueConstraint(fields=["draft", "tenant"], name="one_edit_of_a_tenant"),
        ]


class OrderState(models.TextChoices):
    WAITING = "waiting", "Waits for approval"
    SCHEDULED = "scheduled", "Scheduled"
    TEMPORARY = "temporary", "Temporary"  # applied, and will be taken back
    DONE = "done", "Done"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"  # could not be applied; nothing was changed


class QuotaOrder(models.Model):
    """A draft that is to be applied at a given time, only until a given time, or once somebody else
    approves it.

    `starts_at`: null = at once. `ends_at`: null = permanent. `outcome`: what there is to say about
    how it went.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # The name stays when the user is deleted.
    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    author_name = models.CharField(max_length=150)
    reason = models.TextField()
    state = models.CharField(max_length=16, choices=OrderState.choices)
    approver_name = models.CharField(max_length=150, blank=True)
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    applied_at = models.DateTimeField(null=True)
    over_at = models.DateTimeField(null=True, db_index=True)
    outcome = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["state", "starts_at", "ends_at"], name="orders_due")]


class OrderCell(models.Model):
    """One quota of an order: its guarantee, and in `terms` the others that it sets (mode; limits in
    milli-GPU or null).

    `version`: that of the quota when the edit began; 0 = there was none. `record`: the audit record
    of the change, once made. `outcome`: why it was not taken back.
    """

    order = models.ForeignKey(QuotaOrder, on_delete=models.CASCADE, related_name="cells")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    gpu_type = models.ForeignKey(GpuType, on_delete=models.CASCADE, related_name="+")
    guaranteed_milli = models.BigIntegerField(validators=milli_validators())
    terms = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    version = models.PositiveBigIntegerField()
    record = models.ForeignKey(
        "AuditRecord", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    outcome = models.TextField(blank=True)

    class Meta:
        ordering = ["tenant__name", "gpu_type__name"]
        constraints = [
            models.UniqueConstraint(
                fields=["order", "tenant", "gpu_type"], name="one_change_of_a_quota"
            ),
        ]


class OrderTenant(models.Model):
    """One tenant of an order, see `DraftTenant`. `record`: the audit record of the change, once
    made. `outcome`: why it was not taken back."""

    order = models.ForeignKey(QuotaOrder, on_delete=models.CASCADE, related_name="tenants")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    fields = models.JSONField()
    base = models.JSONField()
    record = models.ForeignKey(
        "AuditRecord", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    outcome = models.TextField(blank=True)

    class Meta:
        ordering = ["tenant__name"]
        constraints = [
            models.UniqueConstraint(fields=["order", "tenant"], name="one_change_of_a_tenant"),
        ]


class QueueState(models.TextChoices):
    OPEN = "open", "Open"
    HELD = "held", "Held"  # starts no jobs; running ones continue, new ones may wait
    DRAINING = "draining", "Draining"  # takes no new jobs; those in it may finish
    CLOSED = "closed", "Closed"  # takes no new jobs


class QueueOrder(models.TextChoices):
    """The order of a queue's jobs; without one, the cluster's policy decides."""

    FIFO = "fifo", "First in, first out"
    FAIR_USERS = "fair-users", "Fair among users"


class Queue(models.Model):
    """A queue of a tenant, with its own order, limits and state; quota stays with the tenant.

    A job gives its queue by `name`. null, "" and empty = not set. Among a tenant's queues, a higher
    `rank` goes first; queues of equal rank share in proportion to `weight`. `version` is the ETag.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="queues")
    name = models.CharField(max_length=63, validators=[slug_validator])
    title = models.CharField(max_length=200, blank=True)
    weight = models.FloatField(default=1.0, validators=[MinValueValidator(0.001)])
    rank = models.IntegerField(default=0)
    order = models.CharField(max_length=16, choices=QueueOrder.choices, blank=True)
    state = models.CharField(
        max_length=16, choices=QueueState.choices, default=QueueState.OPEN.value
    )
    # Why the queue is in this state, who set it, and when.
    state_reason = models.TextField(blank=True)
    state_by = models.CharField(max_length=150, blank=True)
    state_at = models.DateTimeField(null=True, blank=True)
    # The most jobs of this queue that may run, or wait, at once.
    max_running = models.PositiveIntegerField(null=True, blank=True)
    max_waiting = models.PositiveIntegerField(null=True, blank=True)
    max_gpus = models.JSONField(default=dict, blank=True)  # {GPU type: most GPUs at once}
    # Defaults for jobs that set no value, and the highest values that jobs may ask for.
    default_priority = models.IntegerField(null=True, blank=True)
    max_priority = models.IntegerField(null=True, blank=True)
    default_run_limit_s = models.PositiveIntegerField(null=True, blank=True)
    max_run_limit_s = models.PositiveIntegerField(null=True, blank=True)
    default_preemptible = models.BooleanField(null=True, blank=True)
    kinds = models.JSONField(default=list, blank=True)  # of jobs it takes; [] = all
    # Who may submit, among those who may submit to the tenant: holders of one of these roles, these
    # users, and members of these groups; everybody when all three are empty.
    roles = models.JSONField(default=list, blank=True)
    users = models.JSONField(default=list, blank=True)
    groups = models.JSONField(default=list, blank=True)
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["tenant__name", "name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="one_queue_of_a_name"),
        ]

    def __str__(self) -> str:
        return self.name


class Scope(models.TextChoices):
    """What a token may be used for. `operate` covers all writes except those of jobs and quotas."""

    READ = "read", "Read"
    SUBMIT = "submit", "Submit and change jobs"
    QUOTA = "quota", "Change quotas"
    OPERATE = "operate", "Operate: all other changes"


class ApiToken(models.Model):
    """A bearer token, stored as a SHA-256 hash; the secret is shown once, at creation.

    It may do what its user may do, within its scopes ("" = all) and its tenant (null = all). It
    expires no later than the token that created it (null = a person did), and is revoked with that
    token.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=20)
    digest = models.CharField(max_length=64, unique=True)
    scopes = models.CharField(max_length=64, blank=True, default="", db_default="")
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="+")
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="children")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    @property
    def scope_names(self) -> list[str]:
        """Its scopes, in the order of `Scope`."""
        return self.scopes.split() or list(Scope.values)

    @property
    def is_limited(self) -> bool:
        """Whether it may do less than its user."""
        return bool(self.scopes) or self.tenant_id is not None


class ChangePreview(models.Model):
    """What a change of quotas or of a policy was predicted to do, kept beside the change's audit
    records.

    `digest`: of the change. `as_of`: the time of the facts behind the prediction. `borrowed`: who
    borrowed then. `happened`: what happened in the hour after; null = not over yet. It covers these
    GPU types, or one cluster.
    """

    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    digest = models.CharField(max_length=64, db_index=True)
    gpu_types = models.JSONField(default=list)
    cluster = models.CharField(max_length=63, blank=True)
    as_of = models.DateTimeField()
    told = models.JSONField()
    borrowed = models.JSONField(default=list)
    made_at = models.DateTimeField(auto_now=True)
    changed_at = models.DateTimeField(null=True, db_index=True)
    happened = models.JSONField(null=True)


class AuditRecord(models.Model):
    """Append-only: who changed what, when, from where, why, before and after."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)
    action = models.CharField(max_length=64)  # e.g. "quota.changed"
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.SET_NULL, related_name="+")
    subject = models.CharField(max_length=200)  # e.g. "vision / H200"
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.TextField(blank=True)
    source = models.CharField(max_length=16)  # "page", "api", "command"
    preview = models.ForeignKey(
        "ChangePreview", null=True, on_delete=models.SET_NULL, related_name="records"
    )
    # The record of the change that this one reverts.
    reverts = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="reverted_by"
    )

    class Meta:
        ordering = ["-at", "-id"]


class AppliedDocument(models.Model):
    """Which objects, and which of their fields, the organisation document of this name contained
    when it was last applied.

    `things` is [[[kind, name, …], [field, …]], …]. It shows what a newer version of the document no
    longer contains.
    """

    name = models.CharField(max_length=63, unique=True, validators=[slug_validator])
    things = models.JSONField(default=list, blank=True)
    applied_by = models.CharField(max_length=150, blank=True)
    applied_at = models.DateTimeField(auto_now=True)


class IdempotencyKey(models.Model):
    """The stored answer to a write with an Idempotency-Key, replayed for 24 hours."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=128)
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=500)
    body_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)  # null = still being answered
    response = models.JSONField(null=True)
    headers = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_answer_per_key")]
