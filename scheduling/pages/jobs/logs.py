"""The page with the end of a pod's log."""

import re
import uuid

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.engine.states import TERMINAL
from scheduling.kube.door.logs import LogOptions, Stopped
from scheduling.kube.seam import KubeError
from scheduling.models import Job, PodSet
from scheduling.pages.jobs.job import job_or_404
from scheduling.queries.pod_logs import STOPS, containers_of, last_ordinal, open_log, pod_set_of
from tenants.errors import DomainError, Invalid
from tenants.web.conditional import by_its_text
from tenants.web.pages import actor_of, live_or_whole, page_login_required, unknown_names

LINES = 200
# A progress bar is one line however often it redraws itself, so read much and show little.
MOST_BYTES = 4 << 20
MOST_SHOWN = 256 << 10  # characters
FILTERS = ("pod_set", "ordinal", "container", "previous")

# ECMA-48: control sequences (colours, cursor), operating system commands (titles, links), others.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@require_GET
@page_login_required
def job_logs(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """Show the last lines of one pod's container, chosen by `pod_set`, `ordinal` and `container`;
    with `previous=true`, of its run before the last restart."""
    job = job_or_404(request, job_id)
    sets = list(job.pod_sets.all())
    name, number = request.GET.get("pod_set") or sets[0].name, request.GET.get("ordinal") or "0"
    container, previous = request.GET.get("container", ""), request.GET.get("previous", "")
    names, read, why = [], bytearray(), ""
    try:
        pod_set, ordinal = _which(job, name, number)
        options = _options(previous)
        names = containers_of(job, pod_set, ordinal, previous=options.previous)
        container = container or names[0]
        found = open_log(actor_of(request), job, pod_set, ordinal, container, options)
        for part in found.log.parts():
            read += part
    except DomainError as error:
        why = error.detail
    except Stopped:
        why = STOPS
    except KubeError:
        why = "The log broke off: its cluster no longer responds."
    text = readable(read.decode(errors="replace"))
    why = why or _not_all_of(len(read), text)
    chosen = next((s for s in sets if s.name == name), sets[0])
    context = {
        "nav": "jobs",
        "job": job,
        "pod_sets": sets,
        "pod_set": chosen,
        "ordinal": number,
        "most": last_ordinal(job, chosen),
        "container": container,
        "containers": names,
        "previous": previous,
        "restarts": job.restarts or job.pod_name,
        "text": text[-MOST_SHOWN:],
        "why": why,
        "lines": LINES,
        "over": job.state in TERMINAL,
        "unknown": unknown_names(request, FILTERS),
    }
    answer = render(request, live_or_whole(request, "scheduling/jobs/job_logs.html"), context)
    return by_its_text(request, answer)


def _which(job: Job, name: str, number: str) -> tuple[PodSet, int]:
    """Return the pod; raise Invalid."""
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise Invalid.field("ordinal", "The pod must be a whole number.")
    return pod_set_of(job, name, int(number)), int(number)


def _options(previous: str) -> LogOptions:
    if previous not in ("", "true"):
        raise Invalid.field(
            "previous", f"There is no run “{previous[:64]}”; previous must be true, or left out."
        )
    return LogOptions(tail=LINES, limit_bytes=MOST_BYTES, previous=bool(previous))


def _not_all_of(size: int, text: str) -> str:
    """Return why the last lines are not shown completely; "" if they are."""
    if size >= MOST_BYTES:
        return f"The last {LINES} lines were cut after {MOST_BYTES >> 20} MiB: the end is missing."
    if len(text) > MOST_SHOWN:
        return f"The last {LINES} lines are long: these are their last {MOST_SHOWN >> 10} KiB."
    return ""


def readable(text: str) -> str:
    """Strip what only a terminal understands from a log."""
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _CONTROLS.sub("", "\n".join(map(_drawn_last, plain.split("\n"))))


def _drawn_last(line: str) -> str:
    """A progress bar redraws itself over its line: keep what it drew last."""
    return line.rstrip("\r").rpartition("\r")[2]
