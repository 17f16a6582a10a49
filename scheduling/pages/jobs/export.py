"""The table of jobs as a spreadsheet file."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from scheduling.models import Job
from scheduling.pages.jobs.filters import filtered_jobs, filters_in, unknown_in
from scheduling.queries.selectors import visible_jobs
from scheduling.templatetags.jobs import gpu_models
from tenants.templatetags.ui import gpus
from tenants.web.csv_files import csv_answer
from tenants.web.pages import actor_of, page_login_required, to_list

MOST_ROWS = 10_000
COLUMNS = (
    "id", "name", "state", "reason", "tenant", "queue", "cluster", "kind", "priority", "gpus",
    "gpu_types", "user", "submitted_at", "bound_at", "running_at", "ended_at",
)  # fmt: skip


@require_GET
@page_login_required
def as_csv(request: HttpRequest) -> HttpResponse:
    """Return all jobs that match the table's filters, in its order, unless there are too many."""
    filters = filters_in(request)
    if unknown := unknown_in(request, filters):
        return _refused(request, f"{next(iter(unknown.values())).text}.")
    rows = filtered_jobs(visible_jobs(request.user), filters, actor_of(request).pk)
    found = list(rows[: MOST_ROWS + 1])
    if len(found) > MOST_ROWS:
        return _refused(
            request, f"More than {MOST_ROWS:,} jobs match. Filter them, e.g. by time or tenant."
        )
    return csv_answer("jobs.csv", COLUMNS, map(_line, found))


def _line(job: Job) -> list[object]:
    times = (job.submitted_at, job.bound_at, job.running_at, job.ended_at)
    cells = (
        job.pk, job.name, job.state, job.reason, job.tenant.name, job.queue, job.cluster.name,
        job.kind, job.priority, gpus(job.gpu_milli).replace(",", ""), gpu_models(job),
        job.user.get_username() if job.user else "",
    )  # fmt: skip
    return [*cells, *(at.isoformat() if at else "" for at in times)]


def _refused(request: HttpRequest, text: str) -> HttpResponse:
    messages.error(request, text, extra_tags="bad")
    return to_list(reverse("jobs"), request.GET)
