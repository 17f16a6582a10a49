"""Who may use how much: users, the tenant tree, GPU types, quotas, tokens, the audit trail.

Rows are written only by `tenants.services`; reads beyond one row go through
`tenants.selectors`. GPU amounts are milli-GPU (1000 = one whole GPU).
"""

import uuid
from typing import Any

from django.contrib.auth.models import AbstractUser
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

# No real installation comes near this; it keeps sums inside a 64-bit column everywhere.
MAX_MILLI = 10**12
# Longer than this no tenant's jobs keep others waiting only because they have just begun.
MAX_MIN_RUNTIME_S = 30 * 86400
# The queue that every tenant has, and of jobs that name none.
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
    # Of who acts by a token for one tenant: that tenant, and whether the user is an operator, as
    # which they do not act then.
    only_in: "tuple[int, bool] | None" = None

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.only_in is not None:
            raise RuntimeError("the rights of a token are not those of its user")
        super().save(*args, **kwargs)


class Identity(models.Model):
    """Who a user is at an OpenID provider. `subject` is never given to somebody else there, unlike
    names and addresses."""

    user = models.OneToOneField(User, on_delete=models.CASCADE, related_name="identity")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    # Whether is_operator comes from a group there, and goes with it.
    operator_by_group = models.BooleanField(default=False, editable=False)
    # Names of the groups there, as of the last sign-in.
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
    """A team or organisation; a node of the tenant tree. A child's use counts upwards."""

    name = models.CharField(max_length=63, unique=True, validators=[slug_validator])
    title = models.CharField(max_length=200, blank=True)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    weight = models.FloatField(default=1.0, validators=[MinValueValidator(0.001)])
    # Most jobs of it and all below it that may run, or wait, at once; null = no limit.
    max_running = models.PositiveIntegerField(null=True, blank=True)
    max_waiting = models.PositiveIntegerField(null=True, blank=True)
    # Highest priority its jobs, and those of all below it, may ask for; null = no limit.
    max_priority = models.IntegerField(null=True, blank=True)
    # For how many seconds its jobs, and those of all below it, are not preempted once they have
    # started; null = as long as those of the tenant above, of a root as the cluster's policy says.
    min_runtime_s = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_MIN_RUNTIME_S)],
    )
    # Where in Kubernetes pods of its jobs, and those of all below it, are made; null = where those
    # of the tenant above are, of a root in the namespace of the cluster.
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
        """With its first row comes its queue, whoever makes it."""
        new = self._state.adding
        super().save(*args, **kwargs)
        if new:
            Queue.objects.create(tenant=self, name=DEFAULT_QUEUE)


class Role(models.TextChoices):
    TENANT_ADMIN = "tenant-admin", "Tenant admin"
    ENGINEER = "engineer", "Engineer"
    VIEWER = "viewer", "Viewer"


class Membership(models.Model):
    """A user's role in a tenant; it holds for all tenants below it in the tree."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices)
    # Given by a group of the OpenID provider, and taken away with it; else given by somebody.
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
    """Quotas as somebody is about to set them: one draft a person, empty once it is applied or
    discarded. `version` is the ETag.

    `tab` and `stamp`: of the page that wrote last, and which of its writes that was, so that one
    that is overtaken by the next does not replace it.
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
    """One quota in a draft: its guarantee `typed` as it was written, also where that is no number
    yet, and of `terms` (mode, borrow_limit, lend_limit, as typed) those that shall be others;
    `version` of the quota when the edit began, 0 = there was none."""

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
    """One tenant in a draft: of its place in the tree and its weight those `fields` that shall be
    others, as typed ("" = below nobody), and in `base` what they said when the edit began."""

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
    TEMPORARY = "temporary", "Temporary"  # it is applied, and goes back
    DONE = "done", "Done"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"  # it could not be applied; nothing was changed


class QuotaOrder(models.Model):
    """A draft that is not simply applied: at a time, only until a time, or once somebody else has
    approved it. `starts_at`: null = at once. `ends_at`: null = for good. `outcome`: what there is
    to tell of how it went."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # Of somebody who was deleted since, the name.
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
    """One quota of an order: its guarantee, and of `terms` (mode, and limits in milli-GPU or null)
    those that it sets beside. `version`: of the quota when the edit began, 0 = there was none.
    `record`: of the change, once it was made. `outcome`: why it did not go back."""

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
    """One tenant of an order, as `DraftTenant`. `record`: of the change, once it was made.
    `outcome`: why it did not go back."""

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
    HELD = "held", "Held"  # what waits does not start; what runs goes on, new jobs may wait
    DRAINING = "draining", "Draining"  # takes no more jobs, those there run out
    CLOSED = "closed", "Closed"  # takes no more jobs


class QueueOrder(models.TextChoices):
    """Of the jobs of a queue; without one they are in the order of the cluster's policy."""

    FIFO = "fifo", "First in, first out"
    FAIR_USERS = "fair-users", "Fair among users"


class Queue(models.Model):
    """A queue of a tenant: an order, limits and a state of its own, and no quota, which stays with
    the tenant. A job names its queue by `name`. null, "" and empty = not set.

    Among the queues of one tenant those of the higher `rank` go first, of equal ones by shares in
    proportion to `weight`. `version` is the ETag.
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
    # Why it is in this state, who put it there, and when.
    state_reason = models.TextField(blank=True)
    state_by = models.CharField(max_length=150, blank=True)
    state_at = models.DateTimeField(null=True, blank=True)
    # Most jobs of it that may run, or wait, at once.
    max_running = models.PositiveIntegerField(null=True, blank=True)
    max_waiting = models.PositiveIntegerField(null=True, blank=True)
    max_gpus = models.JSONField(default=dict, blank=True)  # {GPU type: most GPUs at once}
    # What its jobs have where they say nothing, and the most they may ask for.
    default_priority = models.IntegerField(null=True, blank=True)
    max_priority = models.IntegerField(null=True, blank=True)
    default_run_limit_s = models.PositiveIntegerField(null=True, blank=True)
    max_run_limit_s = models.PositiveIntegerField(null=True, blank=True)
    default_preemptible = models.BooleanField(null=True, blank=True)
    kinds = models.JSONField(default=list, blank=True)  # of jobs it takes; [] = all
    # Who may submit, of those who may submit to the tenant: whoever has one of these roles, or is
    # one of these users, or in one of these groups; all of them where none is named.
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
    """What a token may be used for. `operate` is every write that is not of jobs or quotas."""

    READ = "read", "Read"
    SUBMIT = "submit", "Submit and change jobs"
    QUOTA = "quota", "Change quotas"
    OPERATE = "operate", "Operate: all other changes"


class ApiToken(models.Model):
    """A bearer token, stored as a SHA-256 hash; the secret is shown once, at creation.

    It does what its user may do, within its scopes ("" = all) and its tenant (null = all), no
    longer than the token that made it (null = a person did), and ends with that one.
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
        """Its scopes in the order of `Scope`."""
        return self.scopes.split() or list(Scope.values)

    @property
    def is_limited(self) -> bool:
        """Whether it may do less than its user."""
        return bool(self.scopes) or self.tenant_id is not None


class ChangePreview(models.Model):
    """What a change of quotas or of a policy was told to do, kept beside its records once it is
    made. `digest`: of the change, `as_of`: when the facts were so that it was worked out from;
    `borrowed`: by whom then. `happened`: in the hour after, null = that is not over. It is about
    these GPU types, or a cluster."""

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
    # The record of the change that this one took back.
    reverts = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="reverted_by"
    )

    class Meta:
        ordering = ["-at", "-id"]


class AppliedDocument(models.Model):
    """Which things, and which fields of them, an organisation document of this name said when it
    was applied last: `things` is [[[kind, name, …], [field, …]], …]. What it says no more is known
    by it."""

    name = models.CharField(max_length=63, unique=True, validators=[slug_validator])
    things = models.JSONField(default=list, blank=True)
    applied_by = models.CharField(max_length=150, blank=True)
    applied_at = models.DateTimeField(auto_now=True)


class IdempotencyKey(models.Model):
    """The stored answer to a write sent with an Idempotency-Key, replayed for 24 hours."""

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
