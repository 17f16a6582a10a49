"""The members of a tenant, the right by which each acts, and the forms that change them."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from tenants.errors import DomainError
from tenants.forms import Fields
from tenants.models import Role, Tenant
from tenants.names import Names
from tenants.permissions import access_of
from tenants.selectors import members_with_inherited, parents_by_id, visible_tenants
from tenants.services.audit import PAGE
from tenants.services.members import remove_member, set_member
from tenants.web.pages import actor_of, page_login_required, to_list, unknown_names, unknown_values

PER_PAGE = 50
FILTERS = ("q", "role")


class MemberForm(Fields):
    username = forms.CharField(label="User name", max_length=150, help_text="Of an existing user")
    role = forms.ChoiceField(label="Role", choices=Role.choices, initial=Role.ENGINEER)
    reason = forms.CharField(
        label="Reason", max_length=2000, required=False, help_text="Kept in the audit trail"
    )


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def members(request: HttpRequest, name: str) -> HttpResponse:
    """GET lists members; POST gives somebody a role in place of the one held there."""
    tenant = _tenant(request, name)
    may = access_of(request.user).may_administer(tenant.pk)
    form, status = MemberForm(request.POST or None), 200
    if request.method == "POST":
        if not may:
            raise Http404("You may not change the members of this tenant.")
        if form.is_valid() and _is_set(request, tenant, form):
            return to_list(reverse("tenant-members", args=[name]), request.GET)
        form.mark_errors()
        status = 422
    context = {**_listed(request, tenant), "form": form, "may_administer": may}
    return render(request, "scheduling/tenants/members.html", context, status=status)


@require_POST
@page_login_required
def member_remove(request: HttpRequest, name: str, username: str) -> HttpResponse:
    tenant = _tenant(request, name)
    try:
        remove_member(actor_of(request), tenant, username, source=PAGE)
        text = f"{username} no longer has a role of their own in {name}."
        messages.success(request, text, extra_tags="good")
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    return redirect("tenant-members", name)


def _is_set(request: HttpRequest, tenant: Tenant, form: MemberForm) -> bool:
    """Save what the form says; return False with its errors if that fails."""
    given = form.cleaned_data
    try:
        member, created = set_member(
            actor_of(request),
            tenant,
            given["username"],
            given["role"],
            reason=given["reason"],
            source=PAGE,
        )
    except DomainError as error:
        if error.code == "not-found":
            form.add_error("username", error.detail)
        else:
            form.add_error(None, error.detail)
        return False
    done = "is a member now" if created else "has another role now"
    text = f"{given['username']} {done}: {member.get_role_display().lower()} of {tenant.name}."
    messages.success(request, text, extra_tags="good")
    return True


def _listed(request: HttpRequest, tenant: Tenant) -> dict[str, Any]:
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    roles = Names("role", fixed=tuple(Role.values))
    unknown = unknown_names(request, FILTERS, "page") | unknown_values(filters, {"role": roles})
    access, parents = access_of(request.user), parents_by_id()
    everybody = members_with_inherited(tenant, access, parents)
    found = everybody.shown.none() if unknown else everybody.shown
    if filters["q"]:
        found = found.filter(user__username__icontains=filters["q"])
    if filters["role"]:
        found = found.filter(role=filters["role"])
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    return {
        "nav": "tenants",
        "tenant": tenant,
        "page": page,
        "hidden": everybody.hidden,
        "filters": filters,
        "unknown": unknown,
        "roles": Role.choices,
    }


def _tenant(request: HttpRequest, name: str) -> Tenant:
    found = visible_tenants(request.user).filter(name=name).first()
    if found is None:
        raise Http404("There is no such tenant, or you have no role in it.")
    return found
