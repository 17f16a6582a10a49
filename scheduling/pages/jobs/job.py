"""Pages about one job, and the actions on a job and on a whole array."""

import uuid
from collections.abc import Callable
from datetime import datetime

from django.contrib import messages
from django.db.models import Count, Max
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from scheduling.engine.states import HOLDING, TERMINAL, WAITING
from scheduling.engine.types import whole_milli
from scheduling.models import Job, Placement
from scheduling.models.jobs import LIVE_PLACEMENTS, RESIZED, PlacementState
from scheduling.pages.forms import ChangeForm
from scheduling.pages.jobs.acts import questions
from scheduling.pages.jobs.headline import headline
from scheduling.pages.refusals import NOTHING_TO_PREVIEW, refusal, refusal_of_form
from scheduling.queries import selectors
from scheduling.queries.evidence import names_in
from scheduling.queries.evidence import shown as shown_evidence
from scheduling.queries.explain import (
    growth_of,
    pods_here,
    standstill_of,
    start_of,
)
from scheduling.queries.gpu_use import gpu_use_of
from scheduling.queries.job_story import story_of
from scheduling.queries.marks import marks
from scheduling.queries.queues.waiting_order import place_of
from scheduling.queries.rehearsal import review_job, reviewed_before
from scheduling.queries.start_words import record_words, start_words
from scheduling.queries.starts import hit_rate_of, told_start
from scheduling.services.jobs.array_changes import hold_array, release_array
from scheduling.services.jobs.changes import change_job, hold_job, release_job
from scheduling.services.jobs.effects import try_on_job
from scheduling.services.jobs.many import JobAct
from scheduling.services.jobs.submit import cancel_array, cancel_job
from tenants.errors import DomainError, NotFound
from tenants.models import User
from tenants.permissions import Access, access_of
from tenants.web.conditional import by_its_text, conditional
from tenants.web.pages import actor_of, page_login_required

PODS_SHOWN = 200
RESERVED_NODES_SHOWN = 6
# Pods that have a place, or have finished their work in one.
PLACED = {*LIVE_PLACEMENTS, PlacementState.SUCCEEDED}
TONES = {
    PlacementState.INTENDED: "wait",
    PlacementState.BOUND: "busy",
    PlacementState.RUNNING: "busy",
    PlacementState.SUCCEEDED: "good",
    PlacementState.FAILED: "bad",
    PlacementState.RELEASED: "",
}


def job_or_404(request: HttpRequest, job_id: uuid.UUID, access: Access | None = None) -> Job:
    try:
        return selectors.job_by_id(actor_of(request), job_id, access)
    except NotFound:
        raise Http404(
            "There is no such job, or it belongs to a tenant that you may not "
            f"see.{selectors.what_is_gone()}"
        ) from None


# --- the page -------------------------------------------------------------------------------------
@require_GET
@page_login_required
def job(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    user = actor_of(request)
    access = access_of(user)
    found = job_or_404(request, job_id, access)
    seen = _marks_of(found), reviewed_before(user, found)
    return conditional(request, access, seen, lambda: job_page(request, found, ChangeForm(found)))


def _marks_of(found: Job) -> object:
    """Return what changes whenever the page does. Other jobs matter only while this one waits."""
    columns = [getattr(found, field.attname) for field in Job._meta.concrete_fields]
    pods = selectors.placements_of(found).order_by().values_list("state")
    told = pods.annotate(
        Count("pk"), *map(Max, ("bound_at", "running_at", "held_from", "ended_at"))
    ).order_by("state")
    newest = selectors.events_of(found).order_by("-id").values_list("id", flat=True).first()
    others = (marks(), told_start(found)) if found.state in WAITING else ()
    return columns, list(told), newest, gpu_use_of(found), others


@require_GET
@page_login_required
def job_outlook(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """Show when a waiting job could start, and what would start now. The page loads this part
    separately, because it runs the engine."""
    found = job_or_404(request, job_id)
    access = access_of(request.user)
    shown = {
        "job": found,
        "said": review_job(actor_of(request), found),
        "told": told_start(found),
        "may_act": access.may_cancel(found.tenant_id, found.user_id),
        "resizable": bool(ChangeForm(found).sized),
    }
    return by_its_text(request, render(request, "scheduling/jobs/_job_outlook.html", shown))


def job_page(
    request: HttpRequest, found: Job, form: ChangeForm, *, status: int = 200
) -> HttpResponse:
    """Render the page of a job; a form with errors is shown open."""
    sets = list(found.pod_sets.all())
    placements = [] if found.state in WAITING else current_placements(found)
    set_names = {s.index: s.name for s in sets}
    shown = [
        {
            **{f: getattr(p, f) for f in ("ordinal", "state", "node", "devices", "nics", "milli")},
            "pod_name": p.pod_name if found.pod_name else "",
            "message": p.message,
            "set_name": set_names.get(p.pod_set, str(p.pod_set)),
            "tone": TONES[PlacementState(p.state)],
        }
        for p in placements[:PODS_SHOWN]
    ]
    live = [p for p in placements if p.state in LIVE_PLACEMENTS]
    leaving = [p for p in live if p.reason == RESIZED]
    stay = [p for p in placements if p not in leaving]
    placed = [p for p in stay if found.state in TERMINAL or p.state in PLACED]
    used = {p.node for p in placed}
    pod_count = sum(s.count for s in sets)
    here = len(placed) if found.state in TERMINAL else pods_here(sets, placed)
    leaves = selectors.nodes_of(found.cluster).filter(name__in=used).values_list("leaf", flat=True)
    story = story_of(request.user, found)
    evidence = dict(found.evidence)
    remedies = evidence.pop("remedies", [])
    names = names_in(
        request.user,
        [
            found.message,
            *map(str, evidence.values()),
            *remedies,
            *(h.event.message for h in story.happenings),
        ],
    )
    place = place_of(actor_of(request), found)
    said, start = reviewed_before(actor_of(request), found), None
    if found.state in WAITING:
        start = said.start if said and said.start and said.start.at else start_of(found)
    told = told_start(found)
    may_act = access_of(request.user).may_cancel(found.tenant_id, found.user_id)
    present = ChangeForm(found)
    context = {
        "nav": "jobs",
        "job": found,
        "headline": headline(found, told, start),
        "pod_sets": sets,
        "pod_count": pod_count,
        "least_count": sum(s.count if s.min_count is None else s.min_count for s in sets),
        "placements": shown,
        "placed_count": here,
        "missing_count": pod_count - here if found.state in HOLDING else 0,
        "leaving_count": len(leaving),
        "more_placements": max(0, len(placements) - PODS_SHOWN),
        "namespace": placements[0].namespace if placements else "",
        "node_count": len(used),
        "live_count": len(live),
        "live_milli": whole_milli(sum(p.held_exactly for p in live)),
        "live_node_count": len({p.node for p in live}),
        "leaf_count": len(set(leaves)),
        "evidence": shown_evidence(evidence, names),
        "names": names,
        "remedies": [names.linked(remedy) for remedy in remedies],
        "story": story,
        "place": place.position,
        "ahead": place.ahead,
        "more_ahead": place.position - 1 - len(place.ahead) if place.position else 0,
        "said": said,
        "may_act": may_act,
        "resizable": bool(present.sized),
        "told": told,
        "starts": start_words(told) if told else None,
        "record": record_words(hit_rate_of(found, told)) if told and told.p50 else "",
        "start": start,
        "growth": growth_of(found),
        "gpu_use": gpu_use_of(found),
        "standstill": standstill_of(found),
        "chosen_at": datetime.fromisoformat(found.chosen["at"]) if found.chosen else None,
        "reserved_nodes": found.reserved_nodes[:RESERVED_NODES_SHOWN],
        "more_reserved": max(0, len(found.reserved_nodes) - RESERVED_NODES_SHOWN),
        "over": found.state in TERMINAL,
        "may_save": access_of(request.user).may_administer(found.tenant_id),
        "may_cancel": may_act and found.state not in TERMINAL,
        "may_change": may_act and found.state not in TERMINAL,
        "may_hold": may_act and found.state in WAITING,
        "acts": questions("job", found.pk, found.name) if may_act else (),
        "form": form,
        "present": present,
        "live": request.htmx and request.method == "GET",  # type: ignore[attr-defined]
    }
    template = "scheduling/jobs/_job_live.html" if context["live"] else "scheduling/jobs/job.html"
    return render(request, template, context, status=status)


def current_placements(found: Job) -> list[Placement]:
    """Return the current or last place of each pod since the job's last start. Pods that left
    individually have been placed again since, under later attempts."""
    rows = selectors.placements_of(found).filter(attempt__gte=found.attempt).order_by("attempt")
    last = {(row.pod_set, row.ordinal): row for row in rows}
    return [last[pod] for pod in sorted(last)]


# --- what people do to a job ----------------------------------------------------------------------
@require_POST
@page_login_required
def job_cancel(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    return carried_out(request, job_id, cancel_job, "is cancelled")


@require_POST
@page_login_required
def job_hold(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    return carried_out(request, job_id, hold_job, "is on hold")


@require_POST
@page_login_required
def job_release(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    return carried_out(request, job_id, release_job, "is released")


def carried_out(
    request: HttpRequest, job_id: uuid.UUID, act: Callable[[User, Job], Job], done: str
) -> HttpResponse:
    """Carry out an action, and report the result on the job's page."""
    found = job_or_404(request, job_id)
    try:
        act(actor_of(request), found)
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    else:
        messages.success(request, f"{found.name} {done}.", extra_tags="good")
    return redirect("job", job_id)


@require_POST
@page_login_required
def job_change(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """Change a job's priority, times and numbers of pods; unchanged fields are not sent."""
    found = job_or_404(request, job_id)
    form = ChangeForm(found, request.POST)
    if form.is_valid():
        if not form.has_changed():
            return redirect("job", job_id)
        try:
            change_job(actor_of(request), found, form.changes())
        except DomainError as error:
            form.show(error)
        else:
            messages.success(request, f"{found.name} is changed.", extra_tags="good")
            return redirect("job", job_id)
    form.mark_errors()
    return job_page(request, job_or_404(request, job_id), form, status=422)


@require_POST
@page_login_required
def job_change_preview(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """Preview the form's effect on all jobs; nothing is changed."""
    found = job_or_404(request, job_id)
    form = ChangeForm(found, request.POST)
    if not form.is_valid():
        return refusal_of_form(request, form)
    if not form.has_changed():
        return refusal(request, NOTHING_TO_PREVIEW)
    try:
        tried = try_on_job(actor_of(request), found.pk, JobAct.CHANGE, form.changes())
    except DomainError as error:
        form.show(error)
        return refusal_of_form(request, form)
    context = {"title": "What this change would do", "effects": tried.effects}
    return render(request, "parts/effects.html", context)


@require_POST
@page_login_required
def array_cancel(request: HttpRequest, array_id: uuid.UUID) -> HttpResponse:
    done = "The jobs of {} that were not over are cancelled."
    return carried_out_on_array(request, array_id, cancel_array, done)


@require_POST
@page_login_required
def array_hold(request: HttpRequest, array_id: uuid.UUID) -> HttpResponse:
    done = "The waiting jobs of {} are on hold."
    return carried_out_on_array(request, array_id, hold_array, done)


@require_POST
@page_login_required
def array_release(request: HttpRequest, array_id: uuid.UUID) -> HttpResponse:
    done = "The held jobs of {} are released."
    return carried_out_on_array(request, array_id, release_array, done)


def carried_out_on_array(
    request: HttpRequest,
    array_id: uuid.UUID,
    act: Callable[[User, uuid.UUID], selectors.JobArray],
    done: str,
) -> HttpResponse:
    """Carry out an action, and report the result on the array's page."""
    try:
        array = act(actor_of(request), array_id)
    except NotFound as error:
        raise Http404(error.detail) from None
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    else:
        messages.success(request, done.format(array.name), extra_tags="good")
    return redirect(f"{reverse('jobs')}?array={array_id}")
