"""The page that submits a job: its form, and a preview of what the form contains so far."""

import json
import re
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from scheduling.job_fields.definition import ANY_CLUSTER, MAX_POD_SETS
from scheduling.job_fields.values import MAX_VOLUMES
from scheduling.models import Cluster, Job
from scheduling.pages.forms import DAMAGED
from scheduling.pages.jobs.job import job_or_404
from scheduling.pages.jobs.job_text import LANGUAGES, checked, json_of
from scheduling.pages.jobs.submit_again import Filled, filled_from, left_out, with_rest
from scheduling.pages.jobs.submit_form import JobForm, PodSets, all_forms, show_errors
from scheduling.queries.evidence import names_in
from scheduling.queries.evidence import shown as shown_evidence
from scheduling.queries.rehearsal import rehearse_job
from scheduling.services.jobs.document import document_of
from scheduling.services.jobs.submit import submit_array, submit_job
from scheduling.services.jobs.templates import template_by_id, visible_templates
from tenants.errors import Conflict, DomainError, Invalid, NotFound
from tenants.forms import Fields
from tenants.models import GpuType
from tenants.permissions import access_of
from tenants.selectors import visible_names, visible_tenants
from tenants.web.pages import actor_of, page_login_required


def submit_forms(
    request: HttpRequest, data: Any = None, job: Any = None, sets: Any = None
) -> tuple[JobForm, Any]:
    """Return the two forms, bound to `data`, or with the initial values of `job` and `sets`."""
    access = access_of(request.user)
    tenants = [t.name for t in visible_tenants(request.user) if access.may_submit(t.pk)]
    clusters = list(Cluster.objects.filter(is_active=True).values_list("name", flat=True))
    gpu_types = list(GpuType.objects.values_list("name", flat=True))
    job_form = JobForm(data, initial=job, tenants=tenants, clusters=clusters)
    kinds = {"gpu_types": gpu_types}
    return job_form, PodSets(data, initial=sets, prefix="sets", form_kwargs=kinds)


@dataclass(frozen=True, slots=True)
class Like:
    """A job to submit again, and the form filled in from it as far as possible."""

    job: Job
    filled: Filled


def like_or_404(request: HttpRequest, job_id: str) -> Like:
    """Return the job to submit again; raise Conflict if that is impossible."""
    try:
        job = job_or_404(request, uuid.UUID(job_id))
    except ValueError:
        raise Http404("There is no such job.") from None
    return Like(job, filled_from(document_of(job), timezone.now()))


def still_like(request: HttpRequest, job_id: str) -> Like | None:
    """Return the job that the form was filled in from, if it still exists."""
    try:
        return like_or_404(request, job_id) if job_id else None
    except (Http404, Conflict):
        return None


def forms_like(request: HttpRequest, like: Like) -> tuple[JobForm, Any]:
    """Return the forms filled in as the job was submitted; fields that no longer can be, say
    why."""
    job_form, sets = submit_forms(request, job=like.filled.job, sets=like.filled.sets)
    tenant, cluster = like.job.tenant.name, like.job.cluster.name
    if not is_offered(job_form, "tenant", tenant):
        text = (
            f"The job was submitted to {tenant}, where you may not submit. Choose another tenant."
        )
        job_form.warn("tenant", text)
    if not (like.job.cluster.is_active or like.job.any_cluster):
        text = f"The job was submitted to cluster {cluster}, which is no longer active."
        job_form.warn("cluster" if "cluster" in job_form.fields else None, text)
    warn_of_gpu_types(sets)
    return job_form, sets


def warn_of_gpu_types(sets: Any) -> None:
    for form in sets:
        gpu_type = form.initial.get("gpu_type", "")
        if not is_offered(form, "gpu_type", gpu_type):
            form.warn("gpu_type", f"GPU type {gpu_type} does not exist. Choose another.")


def is_offered(form: Fields, name: str, value: str) -> bool:
    return value in dict(form.fields[name].choices)  # type: ignore[attr-defined]


def typed_sets(data: Any) -> list[dict[str, Any]]:
    """Return the pod sets as typed, valid or not, with their volumes."""
    rows = typed_rows(data, "sets", MAX_POD_SETS) or [{}]
    for i, row in enumerate(rows):
        volumes = typed_rows(data, f"sets-{i}-volumes", MAX_VOLUMES)
        row["volumes"] = [v for v in volumes if v.get("resource") or v.get("mount_path")]
    return rows


def typed_rows(data: Any, prefix: str, most: int) -> list[dict[str, Any]]:
    """Return the forms of a formset as typed."""
    return [
        {
            key.removeprefix(f"{prefix}-{i}-"): value
            for key, value in data.items()
            if key.startswith(f"{prefix}-{i}-")
        }
        for i in range(min(number(data.get(f"{prefix}-TOTAL_FORMS", "")), most))
    ]


def number(text: str) -> int:
    """Return a small number that Kant's page wrote; 0 for anything else."""
    return int(text) if re.fullmatch("[0-9]{1,4}", text) else 0


def document_from(job_form: JobForm, sets: Any, rest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the job document, or None when a field is invalid by itself. `rest`: what the form was
    filled in from but cannot show."""
    if not (job_form.is_valid() & sets.is_valid()):
        return None
    document = {**job_form.document(), "pod_sets": [form.document() for form in sets.forms]}
    if not rest:
        return document
    try:
        return checked(json.loads(json_of(with_rest(document, rest))))
    except Invalid as error:
        show_errors(error, document, job_form, sets)
        return None


def rest_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a document that the form carries but cannot show. Raises Http404 for
    anything that Kant's pages did not write."""
    try:
        rest = json.loads(data.get("rest") or "{}")
        checked({**rest, "name": "x", "tenant": "x"})
    except (ValueError, TypeError, RecursionError, Invalid):
        raise Http404(DAMAGED) from None
    return dict(rest)


def curl_of(request: HttpRequest, document: dict[str, Any]) -> str:
    return (
        f"curl -X POST {request.build_absolute_uri('/api/v1/jobs')} \\\n"
        '  -H "Authorization: Bearer $KANT_TOKEN" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json_of(document, 2))}"
    )


def sent(request: HttpRequest, document: Mapping[str, Any]) -> HttpResponse:
    """Submit the job, or the array of jobs, and go to its page. Raises DomainError."""
    actor = actor_of(request)
    if document.get("array") is None:
        job = submit_job(actor, document)
        messages.success(request, f"{job.name} is submitted.", extra_tags="good")
        return redirect("job", job.pk)
    array = submit_array(actor, document)
    text = f"{array.name} is submitted: {array.count} jobs."
    messages.success(request, text, extra_tags="good")
    return redirect(f"{reverse('jobs')}?array={array.id}")


def with_marks(
    request: HttpRequest, job_form: JobForm, sets: Any, like: Like | None, rest: Mapping[str, Any]
) -> dict[str, Any]:
    wrong = []
    for _, form in all_forms(job_form, sets):
        form.mark_errors()
        wrong += [(form, name) for name in form.fields if name in form.errors]
    if wrong:
        form, name = wrong[0]
        form.focus(name)
    return {
        "nav": "jobs",
        "form": job_form,
        "sets": sets,
        "like": like,
        "rest": json_of(rest) if rest else "",
        "left_out": left_out(rest),
        "languages": LANGUAGES,
        "takes": ("like", "gpu_type", "template"),
        "templates": visible_templates(actor_of(request)).defer("document"),
        "names": visible_names(request.user),
        "may_save": any(
            access_of(request.user).may_administer(t.pk) for t in visible_tenants(request.user)
        ),
    }


@page_login_required
def job_new(request: HttpRequest) -> HttpResponse:
    if not any_tenant_to_submit_to(request):
        return render(request, "scheduling/jobs/job_new_none.html", {"nav": "jobs"})
    if request.method != "POST":
        if "template" in request.GET:
            return begun(request, request.GET["template"])
        return opened(request, request.GET.get("like", ""))
    if not {"add", "remove", "add_volume", "show"}.isdisjoint(request.POST):
        return reshaped(request)
    rest = rest_in(request.POST)
    job_form, sets = submit_forms(request, request.POST)
    document = document_from(job_form, sets, rest)
    if document is not None:
        try:
            return sent(request, document)
        except DomainError as error:
            show_errors(error, document, job_form, sets)
    like = still_like(request, request.POST.get("like", ""))
    shown = with_marks(request, job_form, sets, like, rest)
    return render(request, "scheduling/jobs/job_new.html", shown, status=422)


def opened(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show the form for the first time: with its defaults, or filled in from a job ("" = none)."""
    try:
        like = like_or_404(request, job_id) if job_id else None
    except Conflict as error:
        messages.error(request, error.detail, extra_tags="bad")
        return redirect("job", uuid.UUID(job_id))
    if like and (gpu_type := request.GET.get("gpu_type", "")):
        for one in like.filled.sets:
            if Decimal(one["gpus"]):
                one["gpu_type"] = gpu_type
    job_form, sets = forms_like(request, like) if like else submit_forms(request)
    shown = with_marks(request, job_form, sets, like, like.filled.rest if like else {})
    return render(request, "scheduling/jobs/job_new.html", shown)


def begun(request: HttpRequest, template_id: str) -> HttpResponse:
    """Show the form filled in from a template."""
    try:
        template = template_by_id(actor_of(request), uuid.UUID(template_id))
    except (ValueError, NotFound):
        raise Http404("There is no such template, or you may not see it.") from None
    filled = filled_from(template.document, timezone.now())
    job_form, sets = submit_forms(request, job=filled.job, sets=filled.sets)
    cluster = filled.job.get("cluster", ANY_CLUSTER)
    if "cluster" in job_form.fields and not is_offered(job_form, "cluster", cluster):
        job_form.warn("cluster", f"There is no active cluster {cluster}. Choose another.")
    warn_of_gpu_types(sets)
    shown = {**with_marks(request, job_form, sets, None, filled.rest), "template": template}
    return render(request, "scheduling/jobs/job_new.html", shown)


def reshaped(request: HttpRequest) -> HttpResponse:
    """Show the form as typed: unchanged ("show"), or with a pod set or volume row more, or a pod
    set fewer."""
    typed, rest = typed_sets(request.POST), rest_in(request.POST)
    at = len(typed)
    if "add_volume" in request.POST:
        at = number(request.POST["add_volume"])
    elif "add" in request.POST:
        typed.append({"name": f"set-{at}", "count": "1", "gpus": "1"})
    elif "remove" in request.POST and at > 1:
        at = number(request.POST["remove"])
        typed = [one for i, one in enumerate(typed) if i != at]
        if "pod_sets" in rest:
            rest["pod_sets"] = [one for i, one in enumerate(rest["pod_sets"]) if i != at]
    checked = {name: name in request.POST for name in ("gang", "preemptible")}
    job_form, sets = submit_forms(request, job={**request.POST.dict(), **checked}, sets=typed)
    form = sets.forms[min(at, len(sets.forms) - 1)]
    if "add_volume" in request.POST:
        form.volumes.forms[-1].focus("source")
    else:
        form.focus("count")
    like = still_like(request, request.POST.get("like", ""))
    shown = with_marks(request, job_form, sets, like, rest)
    return render(request, "scheduling/jobs/job_new.html", shown)


def any_tenant_to_submit_to(request: HttpRequest) -> bool:
    access = access_of(request.user)
    return any(access.may_submit(t.pk) for t in visible_tenants(request.user))


@require_POST
@page_login_required
def job_preview(request: HttpRequest) -> HttpResponse:
    """Preview the form's contents so far: would it be accepted, would it start, and the same as a
    REST call."""
    job_form, sets = submit_forms(request, request.POST)
    document = document_from(job_form, sets, rest_in(request.POST))
    context: dict[str, Any] = {}
    if document is not None:
        try:
            context = rehearsed(request, document)
        except DomainError as error:
            context = {"complete": True, "curl": curl_of(request, document)}
            show_errors(error, document, job_form, sets)
    problems = [
        f"{where}{form.fields[name].label}: {text}" if name in form.fields else text
        for where, form in all_forms(job_form, sets)
        for name, texts in form.errors.items()
        for text in texts
    ]
    context["problems"] = problems
    return render(request, "scheduling/jobs/_job_preview.html", context)


def rehearsed(request: HttpRequest, document: dict[str, Any]) -> dict[str, Any]:
    """Return what would become of the job, or of an array's first job; raise DomainError."""
    if document.get("array") is not None:
        submit_array(actor_of(request), document, dry_run=True)
    one = {name: value for name, value in document.items() if name != "array"}
    job = submit_job(actor_of(request), one, dry_run=True)
    said = rehearse_job(actor_of(request), job)
    texts = [said.summary, *map(str, said.evidence.values()), *said.remedies]
    names = names_in(request.user, texts)
    return {
        "complete": True,
        "curl": curl_of(request, document),
        "job": job,
        "least_milli": sum(
            (s.count if s.min_count is None else s.min_count) * s.gpus * s.gpu_milli
            for s in job.pod_sets.all()
        ),
        "said": said,
        "names": names,
        "evidence": shown_evidence(said.evidence, names),
        "remedies": [names.linked(remedy) for remedy in said.remedies],
    }
