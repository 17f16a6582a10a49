"""Pages about jobs: the table and the submit form."""

import json
import re
import shlex
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from scheduling.engine.states import HOLDING, TERMINAL, WAITING, JobState
from scheduling.job_fields.definition import MAX_POD_SETS
from scheduling.job_fields.values import MAX_VOLUMES
from scheduling.models import Cluster, Job
from scheduling.pages.jobs.job import job_or_404
from scheduling.pages.jobs.submit_again import Filled, filled_from
from scheduling.pages.jobs.submit_form import JobForm, PodSets, all_forms, show_errors
from scheduling.pages.polled import polled
from scheduling.queries import selectors
from scheduling.queries.evidence import names_in
from scheduling.queries.evidence import shown as shown_evidence
from scheduling.queries.names import gpu_type_names
from scheduling.queries.rehearsal import rehearse_job
from scheduling.queries.selectors import JobArray, visible_jobs
from scheduling.queries.wording import STATE_WORDS
from scheduling.services.jobs.document import document_of
from scheduling.services.jobs.submit import submit_job
from tenants.errors import Conflict, DomainError, NotFound
from tenants.forms import Fields
from tenants.keyset import BadCursor, cursor_of, rows_after_cursor
from tenants.models import GpuType
from tenants.names import Names, tenant_names
from tenants.permissions import access_of
from tenants.selectors import visible_tenants
from tenants.web.pages import UnknownFilter, actor_of, page_login_required, unknown_names

JOBS_PER_PAGE, PAGE_ORDER = 50, ("-submitted_at", "-id")
STATE_GROUPS = {
    "open": WAITING | HOLDING,
    "waiting": WAITING,
    "held": WAITING,
    "active": HOLDING,
    "ended": TERMINAL,
}
# Beside the group of all that wait, the plain name of a state would stand for two things.
STATE_TITLES = {**STATE_WORDS, JobState.PENDING: "Waiting, no quota held"}
STATE_CHOICES = [
    ("open", "Open"),
    ("waiting", "Waiting"),
    ("held", "On hold"),
    ("active", "Starting or running"),
    ("ended", "Ended"),
    *((state.value, STATE_TITLES[state]) for state in JobState),
]


# --- the table ------------------------------------------------------------------------------------
@require_GET
@page_login_required
def jobs(request: HttpRequest) -> HttpResponse:
    # An array has buttons, whose forms carry a secret of the session.
    own = request.GET.keys() & {"user", "array"}
    return polled(request, access_of(request.user), lambda: _jobs(request), alike=not own)


def _jobs(request: HttpRequest) -> HttpResponse:
    filters = {name: request.GET.get(name, "").strip() for name in JOB_FILTERS}
    array = array_or_404(request, filters["array"]) if filters["array"] else None
    tenants, gpu_types = visible_tenants(request.user), GpuType.objects.all()
    unknown = unknown_names(request, JOB_FILTERS, "after")
    unknown |= unknown_filters(request.user, filters)
    rows = visible_jobs(request.user)
    rows = rows.none() if unknown else filtered_jobs(rows, filters, actor_of(request).pk)
    cursor = request.GET.get("after", "")
    if cursor:
        rows = rows.filter(after_cursor(cursor))
    found = list(rows.order_by(*PAGE_ORDER)[: JOBS_PER_PAGE + 1])
    page = found[:JOBS_PER_PAGE]
    context = {
        "nav": "jobs",
        "jobs": page,
        "older": cursor_of(page[-1], PAGE_ORDER) if len(found) > JOBS_PER_PAGE else None,
        "newest": not cursor,
        "what_is_gone": selectors.what_is_gone(),
        "filters": filters,
        "filtered": any(filters.values()),
        "array": array,
        "states": STATE_CHOICES,
        "tenants": tenants,
        "gpu_types": gpu_types,
        "unknown": unknown,
        "live": request.htmx,  # type: ignore[attr-defined]
    }
    template = "scheduling/jobs/_jobs_live.html" if context["live"] else "scheduling/jobs/jobs.html"
    return render(request, template, context)


JOB_FILTERS = ("q", "state", "tenant", "queue", "gpu", "user", "reason", "array")


@dataclass(frozen=True, slots=True)
class ShownArray:
    """An array, how many jobs of it are not over, and what the reader may do to them."""

    row: JobArray
    open: int
    may_cancel: bool
    may_hold: bool
    may_release: bool


def array_or_404(request: HttpRequest, array_id: str) -> ShownArray:
    user = actor_of(request)
    try:
        first = selectors.first_of_array(user, uuid.UUID(array_id))
        array = selectors.array_by_id(user, uuid.UUID(array_id))
    except (ValueError, NotFound):
        raise Http404("There is no such array, or it is of a tenant you cannot see.") from None
    unfinished = sum(count for state, count in array.states.items() if state not in TERMINAL)
    allowed = access_of(user).may_cancel(first.tenant_id, first.user_id)
    waiting = Job.objects.filter(array_id=first.array_id, state__in=list(WAITING)).order_by()
    held = set(waiting.values_list("held", flat=True).distinct()) if allowed else set()
    return ShownArray(
        row=array,
        open=unfinished,
        may_cancel=allowed and unfinished > 0,
        may_hold=False in held,
        may_release=True in held,
    )


def unknown_filters(user: Any, filters: dict[str, str]) -> dict[str, UnknownFilter]:
    """The filters that name nothing there is, by name of the parameter."""
    known = {
        "state": Names("job state", fixed=tuple(dict(STATE_CHOICES))),
        "tenant": tenant_names(user),
        "gpu": gpu_type_names(),
    }
    told = {
        name: names.none_such(filters[name])
        for name, names in known.items()
        if filters[name] and filters[name] not in names
    }
    if filters["user"] not in ("", "me"):
        told["user"] = f"Jobs are shown of anybody or of you alone, not of “{filters['user']}”"
    return {name: UnknownFilter(name, filters[name], text) for name, text in told.items()}


def filtered_jobs(rows: QuerySet[Job], filters: dict[str, str], user_id: int) -> QuerySet[Job]:
    """Apply the filters of the page, none of which is unknown."""
    if filters["q"]:
        rows = selectors.matching(rows, filters["q"])
    if filters["state"]:
        group = STATE_GROUPS.get(filters["state"], {filters["state"]})
        rows = rows.filter(state__in=list(group))
        if filters["state"] == "held":
            rows = rows.filter(held=True)
    if filters["array"]:
        rows = rows.filter(array_id=filters["array"])
    if filters["tenant"]:
        rows = selectors.in_tenant(rows, filters["tenant"])
    if filters["queue"]:
        rows = rows.filter(queue=filters["queue"])
    if filters["reason"]:
        rows = rows.filter(reason=filters["reason"])
    if filters["user"]:
        rows = rows.filter(user=user_id)
    if filters["gpu"]:
        rows = selectors.accepting(rows, filters["gpu"])
    return rows


def after_cursor(cursor: str) -> Q:
    """Jobs older than the one the cursor names; raises Http404 for a damaged one."""
    try:
        return rows_after_cursor(Job, PAGE_ORDER, cursor)
    except BadCursor:
        raise Http404("This page of jobs does not exist. Start again from the newest.") from None


# --- submit ---------------------------------------------------------------------------------------
def submit_forms(
    request: HttpRequest, data: Any = None, job: Any = None, sets: Any = None
) -> tuple[JobForm, Any]:
    """The two forms, bound to `data`, or beginning with the values of `job` and `sets`."""
    access = access_of(request.user)
    tenants = [t.name for t in visible_tenants(request.user) if access.may_submit(t.pk)]
    clusters = list(Cluster.objects.filter(is_active=True).values_list("name", flat=True))
    gpu_types = list(GpuType.objects.values_list("name", flat=True))
    job_form = JobForm(data, initial=job, tenants=tenants, clusters=clusters)
    kinds = {"gpu_types": gpu_types}
    return job_form, PodSets(data, initial=sets, prefix="sets", form_kwargs=kinds)


@dataclass(frozen=True, slots=True)
class Like:
    """The job that is submitted again, and the form that says the same as far as it can."""

    job: Job
    filled: Filled


def like_or_404(request: HttpRequest, job_id: str) -> Like:
    """Raises Conflict for a job that cannot be submitted again."""
    try:
        job = job_or_404(request, uuid.UUID(job_id))
    except ValueError:
        raise Http404("There is no such job.") from None
    return Like(job, filled_from(document_of(job), timezone.now()))


def still_like(request: HttpRequest, job_id: str) -> Like | None:
    """The job that the form was filled in from, if it is still there."""
    try:
        return like_or_404(request, job_id) if job_id else None
    except (Http404, Conflict):
        return None


def forms_like(request: HttpRequest, like: Like) -> tuple[JobForm, Any]:
    """The forms as the job was submitted; fields that cannot say so any more say why."""
    job_form, sets = submit_forms(request, job=like.filled.job, sets=like.filled.sets)
    tenant, cluster = like.job.tenant.name, like.job.cluster.name
    if not is_offered(job_form, "tenant", tenant):
        text = f"It was submitted to {tenant}, where you may not submit. Choose another tenant."
        job_form.warn("tenant", text)
    if not (like.job.cluster.is_active or like.job.any_cluster):
        text = f"It was submitted to cluster {cluster}, which is not active any more."
        job_form.warn("cluster" if "cluster" in job_form.fields else None, text)
    for form in sets:
        gpu_type = form.initial.get("gpu_type", "")
        if not is_offered(form, "gpu_type", gpu_type):
            form.warn("gpu_type", f"There is no GPU type {gpu_type} any more. Choose another.")
    return job_form, sets


def is_offered(form: Fields, name: str, value: str) -> bool:
    return value in dict(form.fields[name].choices)  # type: ignore[attr-defined]


def typed_sets(data: Any) -> list[dict[str, Any]]:
    """The pod sets as typed, valid or not, with their volumes."""
    rows = typed_rows(data, "sets", MAX_POD_SETS) or [{}]
    for i, row in enumerate(rows):
        volumes = typed_rows(data, f"sets-{i}-volumes", MAX_VOLUMES)
        row["volumes"] = [v for v in volumes if v.get("resource") or v.get("mount_path")]
    return rows


def typed_rows(data: Any, prefix: str, most: int) -> list[dict[str, Any]]:
    """The forms of a formset as typed."""
    return [
        {
            key.removeprefix(f"{prefix}-{i}-"): value
            for key, value in data.items()
            if key.startswith(f"{prefix}-{i}-")
        }
        for i in range(min(number(data.get(f"{prefix}-TOTAL_FORMS", "")), most))
    ]


def number(text: str) -> int:
    """A small number that a page of ours wrote; 0 where somebody else wrote there."""
    return int(text) if re.fullmatch("[0-9]{1,4}", text) else 0


def document_from(job_form: JobForm, sets: Any) -> dict[str, Any] | None:
    """The job document, or None when a field is wrong by itself."""
    if not (job_form.is_valid() & sets.is_valid()):
        return None
    return {**job_form.document(), "pod_sets": [form.document() for form in sets.forms]}


def curl_of(request: HttpRequest, document: dict[str, Any]) -> str:
    body = json.dumps(document, indent=2, ensure_ascii=False, default=datetime.isoformat)
    return (
        f"curl -X POST {request.build_absolute_uri('/api/v1/jobs')} \\\n"
        '  -H "Authorization: Bearer $KANT_TOKEN" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(body)}"
    )


def with_marks(job_form: JobForm, sets: Any, like: Like | None) -> dict[str, Any]:
    wrong = []
    for _, form in all_forms(job_form, sets):
        form.mark_errors()
        wrong += [(form, name) for name in form.fields if name in form.errors]
    if wrong:
        form, name = wrong[0]
        form.focus(name)
    return {"nav": "jobs", "form": job_form, "sets": sets, "like": like, "takes": ("like",)}


@page_login_required
def job_new(request: HttpRequest) -> HttpResponse:
    if not any_tenant_to_submit_to(request):
        return render(request, "scheduling/jobs/job_new_none.html", {"nav": "jobs"})
    if request.method != "POST":
        return opened(request, request.GET.get("like", ""))
    if not {"add", "remove", "add_volume"}.isdisjoint(request.POST):
        return reshaped(request)
    job_form, sets = submit_forms(request, request.POST)
    document = document_from(job_form, sets)
    if document is not None:
        try:
            created = submit_job(actor_of(request), document)
        except DomainError as error:
            show_errors(error, document, job_form, sets)
        else:
            messages.success(request, f"{created.name} is submitted.", extra_tags="good")
            return redirect("job", created.pk)
    like = still_like(request, request.POST.get("like", ""))
    return render(
        request, "scheduling/jobs/job_new.html", with_marks(job_form, sets, like), status=422
    )


def opened(request: HttpRequest, job_id: str) -> HttpResponse:
    """The form as it is first shown: with its defaults, or like a job, "" = none."""
    try:
        like = like_or_404(request, job_id) if job_id else None
    except Conflict as error:
        messages.error(request, error.detail, extra_tags="bad")
        return redirect("job", uuid.UUID(job_id))
    job_form, sets = forms_like(request, like) if like else submit_forms(request)
    return render(request, "scheduling/jobs/job_new.html", with_marks(job_form, sets, like))


def reshaped(request: HttpRequest) -> HttpResponse:
    """The form as typed, with a pod set or a row for a volume more, or a pod set less."""
    typed = typed_sets(request.POST)
    at = len(typed)
    if "add_volume" in request.POST:
        at = number(request.POST["add_volume"])
    elif "add" in request.POST:
        typed.append({"name": f"set-{at}", "count": "1", "gpus": "1"})
    elif at > 1:
        at = number(request.POST["remove"])
        typed = [one for i, one in enumerate(typed) if i != at]
    checked = {name: name in request.POST for name in ("gang", "preemptible")}
    job_form, sets = submit_forms(request, job={**request.POST.dict(), **checked}, sets=typed)
    form = sets.forms[min(at, len(sets.forms) - 1)]
    if "add_volume" in request.POST:
        form.volumes.forms[-1].focus("source")
    else:
        form.focus("count")
    like = still_like(request, request.POST.get("like", ""))
    return render(request, "scheduling/jobs/job_new.html", with_marks(job_form, sets, like))


def any_tenant_to_submit_to(request: HttpRequest) -> bool:
    access = access_of(request.user)
    return any(access.may_submit(t.pk) for t in visible_tenants(request.user))


@require_POST
@page_login_required
def job_preview(request: HttpRequest) -> HttpResponse:
    """What the form says so far: would it be accepted, would it start, and the same as a REST
    call."""
    job_form, sets = submit_forms(request, request.POST)
    document = document_from(job_form, sets)
    context: dict[str, Any] = {"complete": document is not None}
    if document is not None:
        context["curl"] = curl_of(request, document)
        try:
            job = submit_job(actor_of(request), document, dry_run=True)
        except DomainError as error:
            show_errors(error, document, job_form, sets)
        else:
            said = rehearse_job(actor_of(request), job)
            names = names_in(request.user, [said.summary, *map(str, said.evidence.values())])
            context |= {
                "job": job,
                "least_milli": sum(
                    (s.count if s.min_count is None else s.min_count) * s.gpus * s.gpu_milli
                    for s in job.pod_sets.all()
                ),
                "said": said,
                "names": names,
                "evidence": shown_evidence(said.evidence, names),
            }
    context["problems"] = [
        f"{where}{form.fields[name].label}: {text}" if name in form.fields else text
        for where, form in all_forms(job_form, sets)
        for name, texts in form.errors.items()
        for text in texts
    ]
    return render(request, "scheduling/jobs/_job_preview.html", context)
