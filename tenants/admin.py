"""Django's admin: manages user accounts and shows everything else read-only.

Tenants, quotas and tokens have rules and an audit trail that only the services enforce.
"""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.db import models
from django.http import HttpRequest

from tenants.models import (
    ApiToken,
    AuditRecord,
    GpuType,
    Identity,
    Membership,
    Queue,
    Quota,
    Tenant,
    User,
)


class ReadOnlyAdmin(admin.ModelAdmin):
    """A table that can be searched but not changed."""

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, *_: Any) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, *_: Any) -> bool:  # noqa: ARG002
        return False


class IdentityInline(admin.StackedInline):
    """Links an account that was created here to a person at the OpenID provider."""

    model = Identity
    readonly_fields = ("signed_in_at", "groups")


@admin.register(User)
class KantUserAdmin(UserAdmin):
    inlines = (IdentityInline,)
    fieldsets = (*(UserAdmin.fieldsets or ()), ("Kant", {"fields": ("is_operator",)}))
    list_display = ("username", "email", "is_operator", "is_active", "is_staff")
    list_filter = ("is_operator", "is_active", "is_staff")


COLUMNS: dict[type[models.Model], tuple[str, ...]] = {
    Tenant: ("name", "title", "parent", "weight", "is_active"),
    Membership: ("user", "tenant", "role", "by_group"),
    GpuType: ("name", "title", "memory_mib"),
    Queue: ("tenant", "name", "state", "rank", "weight", "version"),
    Quota: ("tenant", "gpu_type", "guaranteed_milli", "mode", "version"),
    ApiToken: (
        "user",
        "name",
        "prefix",
        "scopes",
        "tenant",
        "expires_at",
        "last_used_at",
        "revoked_at",
    ),
    AuditRecord: ("at", "actor_name", "action", "subject", "reason", "source"),
}
for model, columns in COLUMNS.items():
    options: dict[str, Any] = {"list_display": columns}
    if model is ApiToken:
        options["exclude"] = ("digest",)
    admin.site.register(model, type(f"{model.__name__}Admin", (ReadOnlyAdmin,), options))
