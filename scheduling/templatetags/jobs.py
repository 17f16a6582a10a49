"""How states, reasons and gates of a job look on pages."""

from dataclasses import dataclass

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from scheduling.engine.states import WAITING, JobState
from scheduling.engine.verdict import NEVER, Reason
from scheduling.evidence import Names
from scheduling.models import Job, JobEvent
from scheduling.wording import STATE_WORDS, reason_words
from tenants.templatetags.ui import HOUR, MINUTE, icon

register = template.Library()

# state -> (tone, icon)
LOOKS: dict[str, tuple[str, str]] = {
    JobState.PENDING: ("wait", "hourglass-split"),
    JobState.QUOTA_RESERVED: ("wait", "hourglass-split"),
    JobState.ADMITTED: ("busy", "arrow-right"),
    JobState.RUNNING: ("busy", "play-fill"),
    JobState.SUCCEEDED: ("good", "check-circle"),
    JobState.FAILED: ("bad", "x-circle"),
    JobState.CANCELLED: ("", "slash-circle"),
}

# The gate at which each reason stops a job; the gates before it are passed.
GATES = ("Specification", "Quota", "Queue order", "Capacity", "Placement")
STOPPED_AT: dict[str, int] = {
    Reason.MISCONFIGURED: 0,
    Reason.NO_MATCHING_GPU_TYPE: 0,
    Reason.ON_HOLD: 2,
    Reason.EXCEEDS_MAX_QUOTA: 1,
    Reason.WAITING_FOR_QUOTA: 1,
    Reason.BORROW_LIMIT_REACHED: 1,
    Reason.BEHIND_IN_QUEUE: 2,
    Reason.RESERVED_FOR_HEAD: 2,
    Reason.BACKING_OFF: 2,
    Reason.EXCEEDS_CAPACITY: 3,
    Reason.INSUFFICIENT_GPUS: 3,
    Reason.INSUFFICIENT_CPU_OR_MEMORY: 3,
    Reason.WAITING_FOR_PREEMPTION: 3,
    Reason.FRAGMENTED_CAPACITY: 4,
}


@register.simple_tag
def state_chip(state: str) -> SafeString:
    tone, name = LOOKS[state]
    return format_html('<span class="chip {}">{}{}</span>', tone, icon(name), STATE_WORDS[state])


@register.simple_tag
def reason_chip(job: Job) -> SafeString | str:
    """The reason of a waiting or failed job; what can never run is marked by a sign. A hold comes
    first: the next cycle finds it, but who set it sees it at once."""
    if is_held(job):
        return format_html('<span class="chip line">{}On hold</span>', icon("pause-fill"))
    if not job.reason or job.state in (JobState.RUNNING, JobState.ADMITTED, JobState.SUCCEEDED):
        return ""
    never = job.reason in NEVER
    return format_html(
        '<span class="chip line {}" title="{}">{}{}</span>',
        "bad" if never or job.state == JobState.FAILED else "",
        job.message,
        icon("exclamation-triangle") if never else "",
        reason_words(job, job.reason, job.evidence),
    )


@register.filter
def reason_of(job: Job) -> str:
    """Why it waits or ended, in a few words."""
    return "On hold" if is_held(job) else reason_words(job, job.reason, job.evidence)


@register.simple_tag
def told_reason(job: Job, event: JobEvent) -> str:
    """The reason that an event of the job told, in a few words."""
    return reason_words(job, event.reason, event.evidence)


@register.filter
def with_names(text: str, names: Names) -> SafeString:
    """A sentence with the ids of jobs replaced by links to them."""
    return names.linked(text)


@register.filter
def is_waiting(job: Job) -> bool:
    return job.state in WAITING


@register.filter
def is_held(job: Job) -> bool:
    return job.held and job.state in WAITING


@register.filter
def gpu_time(seconds: float) -> str:
    """GPU-seconds in the unit people count them in: "42 GPU-seconds", "1.5 GPU-hours"."""
    unit, name = 1, "second"
    if seconds >= HOUR:
        unit, name = HOUR, "hour"
    elif seconds >= MINUTE:
        unit, name = MINUTE, "minute"
    amount = f"{seconds / unit:,.1f}".removesuffix(".0")
    return f"{amount} GPU-{name}{'' if amount == '1' else 's'}"


@register.filter
def never_runs(job: Job) -> bool:
    return job.state in WAITING and job.reason in NEVER


@dataclass(frozen=True, slots=True)
class Gate:
    """One step on the way to running: "ok", "no" (waits here), "never" or "" (not reached)."""

    title: str
    status: str
    text: str


@register.filter
def gates(job: Job) -> list[Gate]:
    """The five gates of a job that waits, by its dominant reason."""
    stopped = STOPPED_AT.get(job.reason, 1 if job.state == JobState.PENDING else 2)
    held = "never" if job.reason in NEVER else "no"
    texts = {"ok": "passed", "no": "waits here", "never": "cannot pass", "": "not reached"}
    rows = []
    for index, title in enumerate(GATES):
        status = "ok" if index < stopped else held if index == stopped else ""
        rows.append(Gate(title, status, texts[status]))
    return rows


@register.filter
def gpu_models(job: Job) -> str:
    """The acceptable GPU types of all pod sets, in their order of preference."""
    names = [name for pod_set in job.pod_sets.all() for name in pod_set.gpu_models]
    return ", ".join(dict.fromkeys(names)) or "any"


@register.filter
def waited(job: Job) -> float | None:
    """Seconds from submission to the last pod bound, or to its end, or to now."""
    end = job.bound_at or job.ended_at or timezone.now()
    return (end - job.submitted_at).total_seconds()


@register.filter
def ran(job: Job) -> float | None:
    """Seconds from the first running pod to the end or to now; None before that."""
    if job.running_at is None or job.state in WAITING:
        return None
    return ((job.ended_at or timezone.now()) - job.running_at).total_seconds()
