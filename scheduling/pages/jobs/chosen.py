"""Actions on jobs selected in the table: first the preview, then the action."""

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_POST

from scheduling.engine.states import HOLDING, JobState
from scheduling.models import Job
from scheduling.pages.jobs.columns import back_to_table
from scheduling.pages.refusals import refusal
from scheduling.services.jobs.effects import try_on_jobs
from scheduling.services.jobs.many import Acted, JobAct, act_on_jobs
from scheduling.templatetags.jobs import gpu_time
from tenants.errors import DomainError, Invalid
from tenants.templatetags.ui import gpu_count
from tenants.web.pages import actor_of, page_login_required

WHOLE = re.compile(r"[+-]?[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class ActWords:
    """`effects`: on the jobs that it is done to. `done` continues a sentence after a number of
    jobs."""

    title: str
    button: str
    done: str
    effects: Callable[[list[Acted]], list[str]]


@dataclass(frozen=True, slots=True)
class ActAsked:
    """The request: the jobs, and the action."""

    ids: list[uuid.UUID]
    act: JobAct
    priority: str

    @classmethod
    def of(cls, request: HttpRequest) -> "ActAsked":
        """Read the request; raise Invalid."""
        priority = request.POST.get("priority", "").strip()
        try:
            ids = [uuid.UUID(text) for text in request.POST.getlist("id")]
            act = JobAct(request.POST.get("act", ""))
        except ValueError:
            raise Invalid("The selection of jobs cannot be read. Select them again.") from None
        if act == JobAct.CHANGE and not WHOLE.fullmatch(priority):
            raise Invalid("Write the new priority as a whole number, e.g. 10.")
        return cls(ids, act, priority)

    @property
    def changes(self) -> dict[str, int]:
        return {"priority": int(self.priority)} if self.act == JobAct.CHANGE else {}


@require_POST
@page_login_required
def chosen(request: HttpRequest) -> HttpResponse:
    confirmed = "confirmed" in request.POST
    try:
        asked = ActAsked.of(request)
        acted = act_on_jobs(
            actor_of(request), asked.ids, asked.act, asked.changes, dry_run=not confirmed
        )
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
        return back_to_table(request)
    act, priority = asked.act, asked.priority
    will = [one for one in acted if one.refused is None]
    refused = [one for one in acted if one.refused is not None]
    words = _words(act, priority)
    if not confirmed:
        context: dict[str, Any] = {
            "nav": "jobs",
            "title": words.title.format(_jobs(len(will) or len(acted))),
            "button": words.button.format(_jobs(len(will))),
            "effects": words.effects(will),
            "will": will,
            "not_done": refused,
            "act": act,
            "priority": priority,
            "back": request.POST.get("back", ""),
        }
        return render(request, "scheduling/jobs/jobs_chosen.html", context)
    if will:
        text = f"{_jobs(len(will))} {'is' if len(will) == 1 else 'are'} {words.done}."
        messages.success(request, text, extra_tags="good")
    for one in refused[:5]:
        name = one.before.name if one.before else one.id
        messages.error(request, f"{name}: {one.refused}", extra_tags="bad")
    if len(refused) > 5:
        messages.error(request, f"{len(refused) - 5} more stay as they are.", extra_tags="bad")
    return back_to_table(request)


@require_POST
@page_login_required
def chosen_preview(request: HttpRequest) -> HttpResponse:
    """Preview the action's effect on all jobs, for the confirmation page."""
    try:
        asked = ActAsked.of(request)
        tried = try_on_jobs(actor_of(request), asked.ids, asked.act, asked.changes)
    except DomainError as error:
        return refusal(request, error.detail)
    context = {"title": "What it would do to other jobs", "effects": tried.effects}
    return render(request, "parts/effects.html", context)


def _jobs(count: int) -> str:
    return f"{count:,} job" + ("" if count == 1 else "s")


def _words(act: JobAct, priority: str) -> ActWords:
    match act:
        case JobAct.CANCEL:
            return ActWords("Cancel {}?", "Cancel {}", "cancelled", _ends)
        case JobAct.HOLD:
            return ActWords("Hold {}?", "Hold {}", "on hold", _holds)
        case JobAct.RELEASE:
            return ActWords("Release {}?", "Release {}", "released", _releases)
        case JobAct.CHANGE:
            return ActWords(
                f"Set the priority of {{}} to {priority}?",
                f"Set priority {priority}",
                f"of priority {priority} now",
                lambda will: _reprioritises(will, int(priority)),
            )


def _ends(will: list[Acted]) -> list[str]:
    jobs = [one.before for one in will if one.before]
    holding = [job for job in jobs if JobState(job.state) in HOLDING]
    told = []
    if waiting := len(jobs) - len(holding):
        told.append(f"{_jobs(waiting)} leave{_s(waiting)} the queue.")
    if holding:
        now = timezone.now()
        worked = sum((now - j.running_at).total_seconds() * j.gpu_milli
                     for j in holding if j.running_at)  # fmt: skip
        told.append(
            f"{_jobs(len(holding))} end{_s(len(holding))}: {_gpus(holding)} become free, and "
            f"{gpu_time(worked / 1000)} of work is lost unless the jobs saved it."
        )
    return [*told, "This cannot be undone; submit the jobs again to run them."]


def _holds(will: list[Acted]) -> list[str]:
    return [
        f"{_jobs(len(will))} of {_gpus([one.before for one in will])} will not start until "
        "somebody releases them. They keep their places in the queue."
    ]


def _releases(will: list[Acted]) -> list[str]:
    milli = _gpus([one.before for one in will])
    return [f"{_jobs(len(will))} of {milli} may start again, each in its turn."]


def _reprioritises(will: list[Acted], priority: int) -> list[str]:
    before = [one.before.priority for one in will if one.before]
    up, down = sum(p < priority for p in before), sum(p > priority for p in before)
    same = len(before) - up - down
    parts = [
        f"{_jobs(count)} {words}"
        for count, words in (
            (up, f"get{_s(up)} a higher priority"),
            (down, f"get{_s(down)} a lower priority"),
            (same, f"ha{'s' if same == 1 else 've'} it already"),
        )
        if count
    ]
    return [f"{', '.join(parts)}."] if parts else []


def _gpus(jobs: Iterable[Job | None]) -> str:
    return gpu_count(sum(job.gpu_milli for job in jobs if job))


def _s(count: int) -> str:
    """Return the ending of a verb."""
    return "s" if count == 1 else ""
