"""The page with rules for what jobs of a cluster may name: everybody reads it, operators change
it."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from scheduling.models import Cluster
from scheduling.pages.clusters.rules_form import RulesForm
from scheduling.queries.selectors import cluster_by_name
from scheduling.services.clusters.changes import change_cluster
from scheduling.services.jobs.permitted import SWITCHES, effective_rules
from tenants.errors import DomainError, NotFound
from tenants.services.audit import PAGE
from tenants.web.pages import actor_of, page_login_required


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def job_rules(request: HttpRequest, name: str) -> HttpResponse:
    user = actor_of(request)
    try:
        cluster = cluster_by_name(name)
    except NotFound as error:
        raise Http404(error.detail) from None
    if request.method == "POST" and not user.is_operator:
        raise Http404("Only operators can change what jobs may name.")
    rules = effective_rules(cluster.job_rules)
    form = RulesForm(rules, request.POST or None) if user.is_operator else None
    status = 200
    if form is not None and request.method == "POST":
        if form.is_valid() and _changed(request, cluster, form):
            return redirect("job-rules", name)
        form.mark_errors()
        status = 422
    context = {
        "nav": "operations" if user.is_operator else "nodes",
        "cluster": cluster,
        "form": form,
        "rules": list(_in_words(rules)),
    }
    return render(request, "scheduling/clusters/job_rules.html", context, status=status)


def _changed(request: HttpRequest, cluster: Cluster, form: RulesForm) -> bool:
    """Save the changed rules; return False with the form's errors if that fails."""
    if not form.has_changed():
        form.add_error(None, "Nothing was changed.")
        return False
    try:
        change_cluster(actor_of(request), cluster, {"job_rules": form.document()}, source=PAGE)
    except DomainError as error:
        form.show(error)
        return False
    title = cluster.title or cluster.name
    text = f"The rules for jobs of {title} are saved. Existing jobs are not affected."
    messages.success(request, text, extra_tags="good")
    return True


def _in_words(rules: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, value) of each rule, for readers who cannot change them."""
    for name, field in RulesForm.base_fields.items():
        value = rules.get(name)
        match name:
            case "any_service_account":
                continue
            case "service_accounts":
                text = "any of the namespace" if value is None else ", ".join(value) or "none"
                yield "Service accounts", text
            case "max_priority":
                yield str(field.label), "no limit" if value is None else f"{value:,}"
            case _ if name in SWITCHES:
                yield str(field.label), "yes" if value else "no"
            case _:
                yield str(field.label), ", ".join(value or ()) or "none"
