"""Pages of templates: their list, and the form that saves a job as a template."""

import json
import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from scheduling.pages.forms import DAMAGED
from scheduling.pages.jobs.job_text import checked, json_of
from scheduling.pages.jobs.submission import (
    document_from,
    like_or_404,
    rest_in,
    still_like,
    submit_forms,
    with_marks,
)
from scheduling.pages.jobs.submit_text import unfinished
from scheduling.services.jobs.document import document_of
from scheduling.services.jobs.templates import (
    LONGEST_DESCRIPTION,
    change_template,
    delete_template,
    kept_of,
    save_template,
    template_by_id,
    visible_templates,
)
from scheduling.services.queues.entry import given_to
from tenants.errors import Conflict, DomainError, Invalid
from tenants.forms import Fields
from tenants.permissions import access_of
from tenants.selectors import tenant_by_name, visible_names, visible_tenants
from tenants.services.audit import PAGE
from tenants.web.pages import actor_of, page_login_required


class TemplateForm(Fields):
    """Where a template is stored, and its name."""

    tenant = forms.ChoiceField(
        label="Tenant",
        help_text="Members of this tenant and of those below it may use the template",
    )
    called = forms.CharField(label="Name", max_length=63, help_text="E.g. big-run")
    description = forms.CharField(
        label="Description", max_length=LONGEST_DESCRIPTION, required=False, help_text="One line"
    )

    def __init__(self, *args: Any, tenants: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["tenant"]
        field.choices = [(name, name) for name in tenants]


def administered(request: HttpRequest) -> list[str]:
    """Return the names of the tenants whose templates the reader may write."""
    access = access_of(request.user)
    return [t.name for t in visible_tenants(request.user) if access.may_administer(t.pk)]


@page_login_required
@require_GET
def templates(request: HttpRequest) -> HttpResponse:
    access, names = access_of(request.user), visible_names(request.user)
    rows = [
        {
            "template": one,
            "known": one.tenant.name in names,
            "may_change": access.may_administer(one.tenant_id),
            "text": json_of(one.document, 2),
        }
        for one in visible_templates(actor_of(request))
    ]
    context = {"nav": "jobs", "rows": rows, "may_save": bool(administered(request))}
    return render(request, "scheduling/jobs/templates.html", context)


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def template_new(request: HttpRequest) -> HttpResponse:
    """GET offers a job to save (`?like=`), POST what the submit form contains or what this page
    showed."""
    tenants = administered(request)
    if not tenants:
        raise Http404("Only tenant admins can save templates, and you administer no tenant.")
    if request.method != "POST":
        like = like_or_404(request, request.GET.get("like", ""))
        document = document_of(like.job, given_to(like.job))
        return asked(request, document, TemplateForm(tenants=tenants, initial=_begins(document)))
    if "document" in request.POST:
        return kept(request, TemplateForm(request.POST, tenants=tenants))
    rest = rest_in(request.POST)
    job_form, sets = submit_forms(request, request.POST)
    said = document_from(job_form, sets, rest) or unfinished(job_form, sets, rest)
    if said is None:
        like_it = still_like(request, request.POST.get("like", ""))
        shown = with_marks(request, job_form, sets, like_it, rest)
        return render(request, "scheduling/jobs/job_new.html", shown, status=422)
    return asked(request, said, TemplateForm(tenants=tenants, initial=_begins(said)))


def _begins(document: dict[str, Any]) -> dict[str, Any]:
    return {"tenant": document.get("tenant"), "called": document.get("name")}


def asked(
    request: HttpRequest, document: dict[str, Any], form: TemplateForm, status: int = 200
) -> HttpResponse:
    form.mark_errors()
    text = json_of(kept_of(document), 2)
    context = {"nav": "jobs", "form": form, "text": text}
    return render(request, "scheduling/jobs/template_new.html", context, status=status)


def kept(request: HttpRequest, form: TemplateForm) -> HttpResponse:
    """Save what the page showed. Raises Http404 for anything that Kant's pages did not write."""
    try:
        document = json.loads(request.POST["document"])
        checked({**document, "name": "x", "tenant": "x"})
    except (ValueError, TypeError, RecursionError, Invalid):
        raise Http404(DAMAGED) from None
    if not form.is_valid():
        return asked(request, document, form, 422)
    given = form.cleaned_data
    try:
        tenant = tenant_by_name(access_of(request.user), given["tenant"])
        made = save_template(
            actor_of(request),
            tenant,
            given["called"],
            document,
            description=given["description"],
            source=PAGE,
        )
    except DomainError as error:
        _show(form, error)
        return asked(request, document, form, 422)
    messages.success(request, f"Template {made.name} is saved.", extra_tags="good")
    return redirect("templates")


def _show(form: TemplateForm, error: DomainError) -> None:
    if not error.errors:
        form.add_error("called" if isinstance(error, Conflict) else None, error.detail)
    for one in error.errors:
        name = {"name": "called", "description": "description"}.get(one.field)
        form.add_error(name, one.detail if name else f"{one.field}: {one.detail}")


@require_POST
@page_login_required
def template_change(request: HttpRequest, template_id: uuid.UUID) -> HttpResponse:
    try:
        found = template_by_id(actor_of(request), template_id)
        text = request.POST.get("description", "")
        change_template(actor_of(request), found, description=text, source=PAGE)
        messages.success(request, f"Template {found.name} is changed.", extra_tags="good")
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    return redirect("templates")


@require_POST
@page_login_required
def template_delete(request: HttpRequest, template_id: uuid.UUID) -> HttpResponse:
    try:
        found = template_by_id(actor_of(request), template_id)
        delete_template(actor_of(request), found, source=PAGE)
        messages.success(request, f"Template {found.name} is deleted.", extra_tags="good")
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    return redirect("templates")
