"""The page of one queue, its settings, and the actions on its state."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from scheduling.pages.polled import polled
from scheduling.pages.queues.overview import limits_of, staged
from scheduling.pages.queues.settings_form import NewQueueForm, QueueForm
from scheduling.queries.queues.stages import first_of, queues_now
from scheduling.templatetags.queues import ACTS
from tenants.errors import DomainError, Stale
from tenants.models import AuditRecord, Queue, QueueState, User
from tenants.permissions import Access, access_of
from tenants.selectors import (
    tenant_by_name,
    visible_audit_records,
    visible_queues,
    visible_tenants,
)
from tenants.services.audit import PAGE, Why
from tenants.services.queues.change import (
    QueueChangeResult,
    change_queue,
    create_queue,
    delete_queue,
    release_queue,
    set_state,
)
from tenants.services.queues.revert import FIELDS, said
from tenants.services.queues.terms import QueueTerms, may_be_deleted, subject_of
from tenants.templatetags.ui import duration, words
from tenants.web.pages import actor_of, live_or_whole, page_login_required

NEXT_SHOWN, CHANGES_SHOWN = 10, 10
STATE_AFTER = {
    "hold": QueueState.HELD,
    "drain": QueueState.DRAINING,
    "close": QueueState.CLOSED,
    "open": QueueState.OPEN,
}
TITLES = {
    "order": "Order of its jobs",
    "max_running": "Jobs that run at once",
    "max_waiting": "Jobs that wait at once",
    "max_gpus": "GPUs at once",
    "default_priority": "Default priority",
    "max_priority": "Highest priority",
    "default_run_limit_s": "Default run-time limit",
    "max_run_limit_s": "Longest run-time limit",
    "default_preemptible": "Preemptible by default",
    "kinds": "Kinds of jobs",
}
WITHOUT = {
    "order": "that of the cluster's policy",
    "default_priority": "0",
    "default_run_limit_s": "none",
    "default_preemptible": "not set",
}


def queue_or_404(request: HttpRequest, tenant: str, name: str) -> Queue:
    queue = visible_queues(request.user).filter(tenant__name=tenant, name=name).first()
    if queue is None:
        raise Http404("There is no such queue, or it belongs to a tenant that you may not see.")
    return queue


def queue_to_change_or_404(request: HttpRequest, tenant: str, name: str) -> Queue:
    queue = queue_or_404(request, tenant, name)
    if not access_of(request.user).may_administer(queue.tenant_id):
        raise Http404("There is no such queue, or you may not change it.")
    return queue


@page_login_required
@require_GET
def queue(request: HttpRequest, tenant: str, name: str) -> HttpResponse:
    found = queue_or_404(request, tenant, name)
    access = access_of(request.user)
    return polled(request, access, lambda: _queue(request, found, access), alike=True)


def _queue(request: HttpRequest, found: Queue, access: Access) -> HttpResponse:
    (now,) = queues_now([found])
    may_change = access.may_administer(found.tenant_id)
    context = {
        "nav": "queues",
        "queue": found,
        "now": now,
        "limits": limits_of(now),
        "stages": staged(now.stages),
        "jobs": first_of(found, NEXT_SHOWN),
        "settings": settings_of(found),
        "may_change": may_change,
        "kept": may_be_deleted(found),
        "changes": changes_of(request, found) if may_change else [],
    }
    return render(request, live_or_whole(request, "scheduling/queues/queue.html"), context)


def settings_of(queue: Queue) -> list[tuple[str, str]]:
    """Return (title, value) of each setting except the title."""
    terms = QueueTerms.of(queue).columns()
    terms |= {
        "order": queue.get_order_display(),
        "default_preemptible": {None: "", True: "yes", False: "no"}[queue.default_preemptible],
    }
    for name in ("default_run_limit_s", "max_run_limit_s"):
        terms[name] = terms[name] and duration(terms[name])
    who = [*terms.pop("roles"), *terms.pop("users"), *terms.pop("groups")]
    terms["who_may_submit"] = who or "everybody who may submit to the tenant"
    terms["kinds"] = terms["kinds"] or "all"
    del terms["title"]
    return [(TITLES.get(name, words(name)), _value(name, value)) for name, value in terms.items()]


def _value(name: str, value: Any) -> str:
    if value in (None, "", {}, []):
        return WITHOUT.get(name, "no limit")
    return said(name, {name: value})


def changes_of(request: HttpRequest, queue: Queue) -> list[dict[str, Any]]:
    """Return the last changes of a queue, each with its differences."""
    records = visible_audit_records(request.user).filter(
        tenant=queue.tenant_id,
        action__startswith="queue.",
        subject=subject_of(queue.tenant.name, queue.name),
    )
    rows = list(records.select_related("reverts")[:CHANGES_SHOWN])
    return [{"record": row, "differences": differences(row)} for row in rows]


def differences(record: AuditRecord) -> list[dict[str, str]]:
    before, after = record.before, record.after
    if before is None or after is None:
        return []
    return [
        {"name": words(f), "before": said(f, before), "after": said(f, after)}
        for f in FIELDS
        if before.get(f) != after.get(f)
    ]


# --- state ----------------------------------------------------------------------------------------
@page_login_required
@require_POST
def queue_state(request: HttpRequest, tenant: str, name: str, verb: str) -> HttpResponse:
    if verb not in ACTS:
        raise Http404("Queues have no such action.")
    found = queue_to_change_or_404(request, tenant, name)
    why = Why(request.POST.get("reason", ""), PAGE)
    actor = actor_of(request)
    try:
        changed = state_after(actor, found, verb, why)
    except DomainError as error:
        text = error.first_detail
        messages.error(request, f"{_named(found)} stays {found.state}. {text}", extra_tags="bad")
    else:
        state = changed.queue.get_state_display().lower()
        _tell(request, changed, f"{_named(found)} is {state} now.")
    if request.POST.get("from") == "list":
        return redirect("queues")
    return redirect("queue", tenant, name)


def state_after(
    actor: User, queue: Queue, verb: str, why: Why, *, dry_run: bool = False
) -> QueueChangeResult:
    """Carry out a button's action. Raises as `release_queue` and `set_state` do."""
    if verb == "release":
        return release_queue(actor, queue, why=why, dry_run=dry_run)
    return set_state(actor, queue, STATE_AFTER[verb].value, why=why, dry_run=dry_run)


# --- settings -------------------------------------------------------------------------------------
@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def queue_settings(request: HttpRequest, tenant: str, name: str) -> HttpResponse:
    found = queue_to_change_or_404(request, tenant, name)
    form = QueueForm(QueueTerms.of(found), request.POST or None)
    status = 200
    if request.method == "POST":
        if form.is_valid() and _set(request, found, form):
            return redirect("queue", tenant, name)
        form.mark_errors()
        status = 422
    context = {"nav": "queues", "queue": found, "form": form}
    return render(request, "scheduling/queues/queue_settings.html", context, status=status)


def _set(request: HttpRequest, queue: Queue, form: QueueForm) -> bool:
    """Save the changed settings; return False with the form's errors if that fails."""
    values = form.values()
    if not values:
        form.add_error(None, "Nothing was changed.")
        return False
    changed = changed_by_form(request, queue, form, values)
    if changed is None:
        return False
    _tell(request, changed, f"{_named(queue)} is set.")
    return True


def changed_by_form(
    request: HttpRequest,
    queue: Queue,
    form: QueueForm,
    values: dict[str, Any],
    *,
    dry_run: bool = False,
) -> QueueChangeResult | None:
    """Save these values of the form, or rehearse that; return None with the form's errors if that
    fails."""
    try:
        return change_queue(
            actor_of(request),
            queue,
            values,
            expected_version=queue.version,
            why=Why(form.cleaned_data["reason"], PAGE),
            dry_run=dry_run,
        )
    except Stale:
        form.add_error(
            None, "Somebody has just changed this queue. Save again to apply your changes, too."
        )
    except DomainError as error:
        form.show(error)
    return None


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def queue_new(request: HttpRequest) -> HttpResponse:
    access = access_of(request.user)
    mine = [t.name for t in visible_tenants(request.user) if access.may_administer(t.pk)]
    if not mine:
        raise Http404("Only tenant admins can create queues.")
    form = NewQueueForm(mine, request.POST or None, request.GET.get("tenant", ""))
    status = 200
    if request.method == "POST":
        if form.is_valid() and (made := _made(request, form)):
            return redirect("queue", made.tenant.name, made.name)
        form.mark_errors()
        status = 422
    context = {"nav": "queues", "form": form, "takes": ("tenant",)}
    return render(request, "scheduling/queues/queue_settings.html", context, status=status)


def _made(request: HttpRequest, form: NewQueueForm) -> Queue | None:
    data = form.cleaned_data
    settings = form.values([name for name in form.fields if name not in ("tenant", "name")])
    actor = actor_of(request)
    try:
        tenant = tenant_by_name(access_of(actor), data["tenant"])
        terms = QueueTerms.given(settings)
        made = create_queue(actor, tenant, data["name"], terms, why=Why(data["reason"], PAGE))
    except DomainError as error:
        form.show(error)
        return None
    _tell(request, made, f"{_named(made.queue)} is created. Jobs name it in the field “queue”.")
    return made.queue


@page_login_required
@require_POST
def queue_delete(request: HttpRequest, tenant: str, name: str) -> HttpResponse:
    found = queue_to_change_or_404(request, tenant, name)
    why = Why(request.POST.get("reason", ""), PAGE)
    try:
        delete_queue(actor_of(request), found, expected_version=found.version, why=why)
    except DomainError as error:
        text = error.first_detail
        messages.error(request, f"{_named(found)} stays. {text}", extra_tags="bad")
        return redirect("queue", tenant, name)
    messages.success(request, f"{_named(found)} is deleted.", extra_tags="good")
    return redirect("queues")


def _named(queue: Queue) -> str:
    return f"Queue {subject_of(queue.tenant.name, queue.name)}"


def _tell(request: HttpRequest, changed: QueueChangeResult, text: str) -> None:
    messages.success(request, text, extra_tags="good")
    for warning in changed.warnings:
        messages.warning(request, warning, extra_tags="wait")
