"""How states, reasons and gates of jobs look on pages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from scheduling.engine.cluster.constraints import texts_of
from scheduling.engine.states import WAITING, JobEventKind, JobState
from scheduling.engine.verdict import NEVER
from scheduling.job_fields.nouns import node_rules_of
from scheduling.kube.translate.manifests import host_name, subdomain
from scheduling.models import Job, JobEvent, PodSet, unreadable
from scheduling.queries.evidence import JobNames
from scheduling.queries.explain import gates_of
from scheduling.queries.selectors import held_until
from scheduling.queries.standstill import standstill
from scheduling.queries.start_words import StartWords, start_words
from scheduling.queries.starts import told_start
from scheduling.queries.wording import reason_words, state_words, value_words
from tenants.templatetags.ui import HOUR, MINUTE, icon, words

register = template.Library()
register.filter(value_words)
register.filter(standstill)

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

GATE_TITLES = {
    "spec": "Specification",
    "quota": "Quota",
    "order": "Queue order",
    "capacity": "Capacity",
    "placement": "Placement",
}


@register.simple_tag
def state_chip(state: str, gpu_milli: int) -> SafeString:
    tone, name = LOOKS[state]
    text = state_words(state, gpu_milli)
    return format_html('<span class="chip {}">{}{}</span>', tone, icon(name), text)


@register.simple_tag
def reason_chip(job: Job) -> SafeString | str:
    """Render the reason of a waiting or failed job; a job that can never run gets a warning sign.

    A hold takes precedence: the scheduler reports it only in its next cycle, but whoever set it
    should see it at once.
    """
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
    """Return in a few words why it waits or ended."""
    return "On hold" if is_held(job) else reason_words(job, job.reason, job.evidence)


@register.simple_tag
def told_reason(job: Job, event: JobEvent) -> str:
    """Return in a few words the reason given by an event of the job."""
    return reason_words(job, event.reason, event.evidence)


@register.simple_tag
def told_kind(job: Job, event: JobEvent) -> str:
    """Return in a few words what happened to the job."""
    if event.kind == JobEventKind.QUOTA_RESERVED and not job.gpu_milli:
        return "Queued"
    return words(event.kind)


# A kind of event has the tone of the state that it leads to; all others that of waiting.
EVENT_LOOKS: dict[str, tuple[str, str]] = {
    **{kind: LOOKS[kind] for kind in JobEventKind if kind in LOOKS},
    JobEventKind.PREEMPTED: ("bad", "arrow-repeat"),
    JobEventKind.REQUEUED: ("bad", "arrow-repeat"),
}


@register.simple_tag
def event_chip(event: JobEvent) -> SafeString:
    """Render what happened to an event's job, coloured by what that means for it."""
    tone, name = EVENT_LOOKS.get(event.kind, ("", "clock-history"))
    text = told_kind(event.job, event)
    return format_html('<span class="chip {}">{}{}</span>', tone, icon(name), text)


@register.filter
def change_words(action: str) -> str:
    """Return an action of the audit trail in words: "quota.changed" → "Quota changed"."""
    return words(action.replace(".", "_").replace("-", "_"))


@register.filter
def with_names(text: str, names: JobNames) -> SafeString:
    """Replace job ids in a sentence by links."""
    return names.linked(text)


@register.filter
def is_waiting(job: Job) -> bool:
    return job.state in WAITING


@register.filter
def is_held(job: Job) -> bool:
    return job.held and job.state in WAITING


@register.filter
def gpu_time(seconds: float) -> str:
    """Format GPU-seconds in a readable unit: "42 GPU-seconds", "1.5 GPU-hours"."""
    unit, name = 1, "second"
    if seconds >= HOUR:
        unit, name = HOUR, "hour"
    elif seconds >= MINUTE:
        unit, name = MINUTE, "minute"
    amount = f"{seconds / unit:,.1f}".removesuffix(".0")
    return f"{amount} GPU-{name}{'' if amount == '1' else 's'}"


@register.filter
def starts(job: Job) -> StartWords | None:
    """Return when it is expected to start; None if it does not wait."""
    told = told_start(job)
    return None if told is None else start_words(told)


@register.filter
def never_runs(job: Job) -> bool:
    return job.state in WAITING and job.reason in NEVER


@dataclass(frozen=True, slots=True)
class GateMark:
    """One step on the way to running: "ok", "no" (waits here), "never" or "" (not reached)."""

    title: str
    status: str
    text: str


@register.filter
def gates(job: Job, place: int | None = None) -> list[GateMark]:
    """Return the five gates of a waiting job, from its dominant reason; none before its first
    evaluation. `place` in the queue, from 1: only the first job has passed the gate “order”."""
    held = "never" if job.reason in NEVER else "no"
    statuses = {True: "ok", False: held, None: ""}
    texts = {"ok": "passed", "no": "waits here", "never": "cannot pass", "": "not reached"}
    shown = [
        GateMark(GATE_TITLES[one.gate], statuses[one.ok], texts[statuses[one.ok]])
        for one in gates_of(job)
    ]
    if place is None or place == 1:
        return shown
    order = GateMark(GATE_TITLES["order"], "", f"{place - 1} ahead of it")
    return [order if g.title == order.title and g.status == "ok" else g for g in shown]


@register.filter
def gpu_models(job: Job) -> str:
    """Return the acceptable GPU types of all pod sets, in order of preference."""
    if not job.gpu_milli:
        return "none"
    names = [name for pod_set in job.pod_sets.all() for name in pod_set.gpu_models]
    return ", ".join(dict.fromkeys(names)) or "any"


SOURCES = {"persistent_volume_claim": "claim", "config_map": "config map", "secret": "secret"}


@register.filter
def settings_of(pod_set: PodSet) -> list[tuple[str, list[str]]]:
    """Return which nodes the pods may be on, and what they use of their namespace, as (title,
    texts); only the names of secrets."""
    volumes = []
    for volume in pod_set.volumes:
        source = next(
            f"{words} {volume[kind]}" for kind, words in SOURCES.items() if kind in volume
        )
        volumes.append(f"{volume['mount_path']}: {source}{', read-only' * volume['read_only']}")
    secrets = pod_set.env_from_secrets.items()
    shown = [
        ("Only on nodes with", texts_of(node_rules_of(vars(pod_set)))),
        ("Device claims", [f"{n}: {claim_text(c)}" for n, c in pod_set.device_claims.items()]),
        ("Service account", [pod_set.service_account] if pod_set.service_account else []),
        ("Image pull secrets", pod_set.image_pull_secrets),
        ("Size of /dev/shm", [f"{pod_set.shm_mib} MiB"] if pod_set.shm_mib else []),
        ("Volumes", volumes),
        ("From secrets", [f"{n}: secret {s['secret']}, key {s['key']}" for n, s in secrets]),
        ("How containers run", how_they_run(pod_set)),
        ("Not readable", [f"{column}: {why}" for column, why in unreadable(pod_set)]),
    ]
    return [(title, texts) for title, texts in shown if texts]


def claim_text(claim: Mapping[str, Any]) -> str:
    """ "2 of class gpu.nvidia.com, where …", "as template two-gpus" """
    if "template" in claim:
        return f"as template {claim['template']}"
    text = f"{claim.get('count', 1)} of class {claim['device_class']}"
    return ", ".join([text, *(f"where {each}" for each in claim.get("selectors", ()))])


def how_they_run(pod_set: PodSet) -> list[str]:
    """Return rights, classes, additional containers and probes, one text each."""
    found = [
        f"{name.replace('_', ' ')}: {_told(value)}"
        for name, value in pod_set.security_context.items()
    ]
    for name in ("runtime_class", "priority_class"):
        if value := getattr(pod_set, name):
            found.append(f"{name.replace('_', ' ')}: {value}")
    if pod_set.host_network:
        found.append("network of the node")
    for name, containers in (("before", pod_set.init_containers), ("beside", pod_set.sidecars)):
        found += [f"{name} the program: {each['name']} ({each['image']})" for each in containers]
    return found + [f"probe of {name}" for name in pod_set.probes]


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@register.filter
def head_address(job: Job) -> str:
    """Return the address of the pod of rank 0 for its other pods; "" if there is only one pod, or
    Kant did not create them."""
    sets = job.pod_sets.all()
    if job.pod_name or sum(s.count for s in sets) < 2:
        return ""
    return f"{host_name(0, sets[0].name, 0)}.{subdomain(str(job.pk))}"


@register.filter
def waited(job: Job) -> float | None:
    """Return the seconds without places from submission to the binding of the last pod, or to its
    end, or to now."""
    end = job.bound_at or job.ended_at or timezone.now()
    waited = end - job.submitted_at
    if job.attempt > 1 or (job.attempt and job.bound_at is None):
        waited -= held_until(job, end)
    return waited.total_seconds()


@register.filter
def ran(job: Job) -> float | None:
    """Return the seconds from the first running pod to the end or to now; None before that."""
    if job.running_at is None or job.state in WAITING:
        return None
    return ((job.ended_at or timezone.now()) - job.running_at).total_seconds()


@register.filter
def spans(numbers: Iterable[int]) -> str:
    """Format device indices, with ranges for consecutive ones: "0–3, 6"."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in found)
