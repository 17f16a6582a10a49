"""Pages of webhooks."""

import json
import uuid
from collections.abc import Callable

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from tenants.database.keyset import rows_after
from tenants.errors import DomainError
from tenants.models import Tenant
from tenants.names import Names, but
from tenants.permissions import access_of
from tenants.services.audit import PAGE, Why
from tenants.web import shown_once
from tenants.web.conditional import by_its_text
from tenants.web.pages import (
    UnknownFilter,
    actor_of,
    live_or_whole,
    page_login_required,
    unknown_names,
    unknown_values,
)
from webhooks.models import DeliveryState, HookDelivery, HookFormat, Webhook
from webhooks.pages.forms import WebhookForm
from webhooks.selectors import delivery_by_id, hook_by_id, visible_hooks
from webhooks.services.deliveries import BODIES_KEPT, KEPT, ask_for_test, deliver_again
from webhooks.services.hooks import NewSecret, change_hook, create_hook, delete_hook, rotate_secret

NEW_SECRET = "new_webhook_secret"
PER_PAGE, ORDER = 50, ("-created_at", "-id")


@page_login_required
@require_GET
def webhooks(request: HttpRequest) -> HttpResponse:
    user, access = actor_of(request), access_of(request.user)
    hooks = visible_hooks(user, access)
    asked, unknown = request.GET.get("tenant", ""), unknown_names(request, ("tenant",))
    administered = _administered(request)
    names = {tenant.name for tenant in administered}
    if asked and asked not in names:
        text = f"There is no tenant “{asked}” that you administer{but(asked, names)}"
        unknown["tenant"] = UnknownFilter("tenant", asked, text)
    elif asked:
        hooks = hooks.filter(tenant__name=asked)
    context = {
        "nav": "webhooks",
        "hooks": hooks.none() if unknown else hooks,
        "tenant": "" if "tenant" in unknown else asked,
        "unknown": unknown,
        "may_create": access.operator or bool(administered),
    }
    answer = render(request, live_or_whole(request, "webhooks/webhooks.html"), context)
    return by_its_text(request, answer)


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def webhook_new(request: HttpRequest) -> HttpResponse:
    access, tenants = access_of(request.user), _administered(request)
    if not (access.operator or tenants):
        raise Http404("Only tenant admins and operators can create webhooks.")
    form = WebhookForm(
        request.POST or None,
        tenants=tenants,
        operator=access.operator,
        tenant=request.GET.get("tenant", ""),
    )
    if request.method == "POST" and form.is_valid():
        chosen = form.cleaned_data["tenant"]
        tenant = next((each for each in tenants if each.name == chosen), None)
        why = Why(form.cleaned_data["reason"], PAGE)
        try:
            made = create_hook(actor_of(request), tenant, form.values(), why=why)
        except DomainError as error:
            form.show(error)
        else:
            return _to_secret(request, made)
    form.mark_errors()
    status = 422 if request.method == "POST" else 200
    context = {"nav": "webhooks", "form": form}
    return render(request, "webhooks/webhook_form.html", context, status=status)


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def webhook_settings(request: HttpRequest, webhook_id: uuid.UUID) -> HttpResponse:
    hook = _found(request, webhook_id)
    operator = access_of(request.user).operator
    form = WebhookForm(request.POST or None, hook=hook, operator=operator)
    version = hook.version
    if request.method == "POST":
        typed = request.POST.get("version", "")
        version = int(typed) if typed.isascii() and typed.isdigit() and len(typed) < 19 else 0
        if form.is_valid():
            try:
                change_hook(
                    actor_of(request),
                    hook,
                    form.values(),
                    expected_version=version,
                    why=Why(form.cleaned_data["reason"], PAGE),
                )
            except DomainError as error:
                form.show(error)
            else:
                messages.success(request, f"“{hook.name}” is changed.", extra_tags="good")
                return redirect("webhook", webhook_id)
    form.mark_errors()
    status = 422 if request.method == "POST" else 200
    context = {"nav": "webhooks", "form": form, "hook": hook, "version": version}
    return render(request, "webhooks/webhook_form.html", context, status=status)


@page_login_required
@require_GET
def webhook(request: HttpRequest, webhook_id: uuid.UUID) -> HttpResponse:
    hook = _found(request, webhook_id)
    filters = {"state": request.GET.get("state", "")}
    deliveries: QuerySet[HookDelivery] = hook.deliveries.defer("body")
    known = {"state": Names("state of a delivery", fixed=tuple(DeliveryState.values))}
    unknown = unknown_names(request, filters, "before") | unknown_values(filters, known)
    if filters["state"]:
        deliveries = deliveries.filter(state=filters["state"])
    if before := request.GET.get("before", ""):
        last = deliveries.filter(pk=_uuid(before)).first()
        if last is None:
            raise Http404("This page of deliveries does not exist. Start from the newest.")
        deliveries = deliveries.filter(rows_after(ORDER, (last.created_at, last.pk)))
    rows = [] if unknown else list(deliveries.order_by(*ORDER)[: PER_PAGE + 1])
    context = {
        "nav": "webhooks",
        "hook": hook,
        "now": timezone.now(),
        "deliveries": rows[:PER_PAGE],
        "older": rows[PER_PAGE - 1].pk if len(rows) > PER_PAGE else None,
        "newest": not before,
        "state": filters["state"],
        "unknown": unknown,
        "states": DeliveryState.choices,
        "kept_days": KEPT.days,
        "signed": hook.format == HookFormat.STANDARD,
    }
    if request.htmx:  # type: ignore[attr-defined]
        return by_its_text(request, render(request, "webhooks/_webhook_live.html", context))
    secret = shown_once.take(request, NEW_SECRET)
    response = render(request, "webhooks/webhook.html", {**context, "secret": secret})
    response["Cache-Control"] = "no-store"
    if secret:
        shown_once.forget(request, response)
    return response


@require_POST
@page_login_required
def webhook_act(request: HttpRequest, webhook_id: uuid.UUID, verb: str) -> HttpResponse:
    """What the buttons of a webhook do."""
    hook = _found(request, webhook_id)
    if verb not in ACTS:
        raise Http404("Webhooks have no such action.")
    try:
        return ACTS[verb](request, hook)
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
        return redirect("webhook", webhook_id)


def _test(request: HttpRequest, hook: Webhook) -> HttpResponse:
    ask_for_test(hook)
    text = "A test event is on its way. The list below shows whether it arrives."
    messages.success(request, text, extra_tags="good")
    return redirect("webhook", hook.pk)


def _rotate(request: HttpRequest, hook: Webhook) -> HttpResponse:
    return _to_secret(request, rotate_secret(actor_of(request), hook, why=Why("", PAGE)))


def _turned(is_on: bool) -> Callable[[HttpRequest, Webhook], HttpResponse]:
    def turn(request: HttpRequest, hook: Webhook) -> HttpResponse:
        change_hook(
            actor_of(request),
            hook,
            {"is_on": is_on},
            expected_version=hook.version,
            why=Why("", PAGE),
        )
        said = "on: it gets all events from now on" if is_on else "off"
        messages.success(request, f"“{hook.name}” is {said}.", extra_tags="good")
        return redirect("webhook", hook.pk)

    return turn


def _delete(request: HttpRequest, hook: Webhook) -> HttpResponse:
    delete_hook(actor_of(request), hook, expected_version=hook.version, why=Why("", PAGE))
    messages.success(request, f"The webhook “{hook.name}” is deleted.", extra_tags="good")
    return redirect("webhooks")


ACTS: dict[str, Callable[[HttpRequest, Webhook], HttpResponse]] = {
    "test": _test,
    "rotate": _rotate,
    "on": _turned(True),
    "off": _turned(False),
    "delete": _delete,
}


@page_login_required
@require_GET
def delivery(request: HttpRequest, webhook_id: uuid.UUID, delivery_id: uuid.UUID) -> HttpResponse:
    hook = _found(request, webhook_id)
    found = _delivery(hook, delivery_id)
    context = {
        "nav": "webhooks",
        "hook": hook,
        "delivery": found,
        "body": json.dumps(json.loads(found.body), indent=2, ensure_ascii=False)
        if found.body
        else "",
        "body_days": BODIES_KEPT.days,
    }
    answer = render(request, live_or_whole(request, "webhooks/delivery.html"), context)
    return by_its_text(request, answer)


@require_POST
@page_login_required
def delivery_again(
    request: HttpRequest, webhook_id: uuid.UUID, delivery_id: uuid.UUID
) -> HttpResponse:
    hook = _found(request, webhook_id)
    try:
        deliver_again(_delivery(hook, delivery_id))
        messages.success(request, "The delivery is sent again.", extra_tags="good")
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    return redirect("webhook-delivery", webhook_id, delivery_id)


# --- the parts ------------------------------------------------------------------------------------
def _administered(request: HttpRequest) -> list[Tenant]:
    access = access_of(request.user)
    tenants = list(Tenant.objects.order_by("name"))
    return [tenant for tenant in tenants if access.may_administer(tenant.pk)]


def _found(request: HttpRequest, webhook_id: uuid.UUID) -> Webhook:
    try:
        return hook_by_id(actor_of(request), webhook_id)
    except DomainError:
        raise Http404("There is no such webhook, or you do not administer its tenant.") from None


def _delivery(hook: Webhook, delivery_id: uuid.UUID) -> HookDelivery:
    try:
        return delivery_by_id(hook, delivery_id)
    except DomainError:
        raise Http404("There is no such delivery, or it is no longer kept.") from None


def _to_secret(request: HttpRequest, made: NewSecret) -> HttpResponse:
    """The page of the webhook, which shows the secret once."""
    page = reverse("webhook", args=[made.hook.pk])
    response = redirect(page)
    if made.secret:
        shown_once.hand_over(request, response, NEW_SECRET, made.secret, page)
    return response


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Http404("This page of deliveries does not exist. Start from the newest.") from None
