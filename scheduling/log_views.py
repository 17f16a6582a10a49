"""The page with the end of a pod's log."""

import re
import uuid

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.engine.states import TERMINAL
from scheduling.job_views import job_or_404
from scheduling.kube.logs import LogOptions
from scheduling.kube.seam import KubeError
from scheduling.models import Job
from scheduling.pod_logs import open_log, pod_set_of
from tenants.errors import DomainError, Invalid
from tenants.models import User
from tenants.web import actor_of, live_or_whole, page_login_required, unknown_names

LINES = 200
MOST_BYTES = 256 << 10
FILTERS = ("pod_set", "ordinal")

# ECMA-48: control sequences (colours, cursor), operating system commands (titles, links), others.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
# A progress bar draws itself anew over the beginning of its line: what it drew last counts.
_OVERDRAWN = re.compile(r"[^\n]*\r(?=[^\n\r])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@require_GET
@page_login_required
def job_logs(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """The last lines of one pod, chosen by `pod_set` and `ordinal`."""
    job = job_or_404(request, job_id)
    sets = list(job.pod_sets.all())
    name, number = request.GET.get("pod_set") or sets[0].name, request.GET.get("ordinal") or "0"
    text, why = "", ""
    try:
        text = _end_of(actor_of(request), job, name, number)
    except DomainError as error:
        why = error.detail
    except KubeError:
        why = "The log broke off: its cluster does not answer any more."
    chosen = next((s for s in sets if s.name == name), sets[0])
    context = {
        "nav": "jobs",
        "job": job,
        "pod_sets": sets,
        "pod_set": chosen,
        "ordinal": number,
        "most": chosen.count - 1,
        "text": text,
        "why": why,
        "lines": LINES,
        "over": job.state in TERMINAL,
        "unknown": unknown_names(request, FILTERS),
    }
    return render(request, live_or_whole(request, "scheduling/job_logs.html"), context)


def _end_of(reader: User, job: Job, name: str, number: str) -> str:
    """The last lines as a person reads them; raises DomainError or KubeError."""
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise Invalid.field("ordinal", "The pod must be a whole number.")
    pod_set = pod_set_of(job, name, int(number))
    options = LogOptions(tail=LINES, limit_bytes=MOST_BYTES)
    found = open_log(reader, job, pod_set, int(number), "", options)
    return readable(found.log.read().decode(errors="replace"))


def readable(text: str) -> str:
    """A log without what only a terminal understands."""
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _CONTROLS.sub("", _OVERDRAWN.sub("", plain))
