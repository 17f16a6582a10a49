"""Previews of what a queue's change would do to jobs, next to its form; nothing is changed."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from scheduling.pages.queues.queue import changed_by_form, queue_to_change_or_404, state_after
from scheduling.pages.queues.settings_form import QueueForm
from scheduling.pages.refusals import (
    NOTHING_TO_PREVIEW,
    refusal,
    refusal_of_form,
    rehearsed_reason,
)
from scheduling.queries.queues.effects import queue_effects
from scheduling.templatetags.queues import ACTS
from tenants.errors import DomainError
from tenants.models import Queue
from tenants.services.audit import PAGE, Why
from tenants.services.queues.terms import QueueTerms
from tenants.web.pages import actor_of, page_login_required

NOT_FELT = "This applies only to new jobs, not to those that wait or run now."


@page_login_required
@require_POST
def settings_preview(request: HttpRequest, tenant: str, name: str) -> HttpResponse:
    found = queue_to_change_or_404(request, tenant, name)
    form = QueueForm(QueueTerms.of(found), request.POST)
    if not form.is_valid():
        return refusal_of_form(request, form)
    if not (values := form.values()):
        return refusal(request, NOTHING_TO_PREVIEW)
    changed = changed_by_form(request, found, form, values, dry_run=True)
    if changed is None:
        return refusal_of_form(request, form)
    return _told(request, changed.queue)


@page_login_required
@require_POST
def state_preview(request: HttpRequest, tenant: str, name: str, verb: str) -> HttpResponse:
    if verb not in ACTS:
        raise Http404("Queues have no such action.")
    found = queue_to_change_or_404(request, tenant, name)
    why = Why(rehearsed_reason(request), PAGE)
    try:
        changed = state_after(actor_of(request), found, verb, why, dry_run=True)
    except DomainError as error:
        return refusal(request, error.first_detail)
    return _told(request, changed.queue)


def _told(request: HttpRequest, then: Queue) -> HttpResponse:
    effects = queue_effects(actor_of(request), then)
    if effects.until is None and not effects.troubles:
        return refusal(request, NOT_FELT)
    context = {"title": "What this change would do", "effects": effects}
    return render(request, "parts/effects.html", context)
