"""The questions before somebody holds, releases or cancels a job or an array, and their
previews."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from scheduling.pages.refusals import refusal
from scheduling.queries.selectors import JobArray
from scheduling.services.jobs.array_changes import hold_array, release_array
from scheduling.services.jobs.effects import try_on_array, try_on_job
from scheduling.services.jobs.many import JobAct
from scheduling.services.jobs.submit import cancel_array
from tenants.effects import Effects
from tenants.errors import DomainError, NotFound
from tenants.models import User
from tenants.web.pages import actor_of, page_login_required

ACTS = (JobAct.HOLD, JobAct.RELEASE, JobAct.CANCEL)
ON_ARRAYS: dict[JobAct, Callable[[User, uuid.UUID], JobArray]] = {
    JobAct.HOLD: hold_array,
    JobAct.RELEASE: release_array,
    JobAct.CANCEL: cancel_array,
}
# The effect of an action; "" = it depends on the job's state, and the page says it.
EFFECT = {
    ("job", JobAct.HOLD): "It keeps its place in the queue, and does not start until somebody "
    "releases it.",
    ("job", JobAct.RELEASE): "It may start as soon as its turn comes.",
    ("array", JobAct.HOLD): "Its waiting jobs keep their places in the queue, and do not start "
    "until somebody releases them. Its running jobs go on.",
    ("array", JobAct.RELEASE): "Its held jobs may start as soon as their turn comes.",
}

What = Literal["job", "array"]


@dataclass(frozen=True, slots=True)
class ActQuestion:
    """A dialog: `act` is its id; `action` and `preview` are addresses."""

    act: str
    title: str
    effect: str
    action: str
    preview: str

    @property
    def ends_work(self) -> bool:
        return self.act == JobAct.CANCEL


def questions(what: What, key: object, name: str) -> list[ActQuestion]:
    """Return the dialogs of a job's or an array's page; buttons, which depend on its state, open
    them."""
    return [
        ActQuestion(
            act.value,
            f"{act.capitalize()} {'array ' * (what == 'array')}{name}",
            EFFECT.get((what, act), ""),
            reverse(f"{what}-{act}", args=[key]),
            reverse(f"{what}-act-preview", args=[key, act.value]),
        )
        for act in ACTS
    ]


@require_POST
@page_login_required
def job_act_preview(request: HttpRequest, job_id: uuid.UUID, act: str) -> HttpResponse:
    """Preview the effect on all jobs; nothing is changed."""

    def tried() -> Effects:
        return try_on_job(actor_of(request), job_id, JobAct(act)).effects

    return _told(request, act, tried)


@require_POST
@page_login_required
def array_act_preview(request: HttpRequest, array_id: uuid.UUID, act: str) -> HttpResponse:
    """Preview the effect on all jobs; nothing is changed."""

    def tried() -> Effects:
        actor = actor_of(request)
        return try_on_array(
            actor, array_id, partial(ON_ARRAYS[JobAct(act)], actor, array_id)
        ).effects

    return _told(request, act, tried)


def _told(request: HttpRequest, act: str, tried: Callable[[], Effects]) -> HttpResponse:
    if act not in ACTS:
        raise Http404("There is no such action.")
    try:
        effects = tried()
    except NotFound as error:
        raise Http404(error.detail) from None
    except DomainError as error:
        return refusal(request, error.detail)
    context = {"title": "What it would do to other jobs", "effects": effects}
    return render(request, "parts/effects.html", context)
