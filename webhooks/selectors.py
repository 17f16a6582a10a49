"""Reads of webhooks. Who may not administer a tenant knows of none of its webhooks."""

import uuid

from django.db.models import QuerySet

from tenants.errors import NotFound
from tenants.models import User
from tenants.permissions import Access, access_of
from webhooks.models import HookDelivery, Webhook


def visible_hooks(user: User, access: Access | None = None) -> QuerySet[Webhook]:
    """Those of the tenants that the user administers; all for operators."""
    access = access or access_of(user)
    hooks = Webhook.objects.select_related("tenant")
    if access.operator:
        return hooks
    return hooks.filter(tenant__in=[t for t in access.parents if access.may_administer(t)])


def hook_by_id(user: User, hook_id: uuid.UUID) -> Webhook:
    """Raises NotFound also where the user may not see it."""
    hook = visible_hooks(user).filter(pk=hook_id).first()
    if hook is None:
        raise NotFound(
            f"There is no webhook {hook_id} that you may see. GET /api/v1/webhooks lists those of "
            "the tenants that you administer."
        )
    return hook


def delivery_by_id(hook: Webhook, delivery_id: uuid.UUID) -> HookDelivery:
    """Raises NotFound."""
    found = hook.deliveries.select_related("webhook").filter(pk=delivery_id).first()
    if found is None:
        raise NotFound(
            f"There is no delivery {delivery_id} of webhook “{hook.name}”, or it is no longer "
            f"kept. GET /api/v1/webhooks/{hook.pk}/deliveries lists them."
        )
    return found
