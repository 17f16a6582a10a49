"""The page that shows the submit form's job as text, and turns text back into the form."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_POST

from scheduling.job_fields.definition import ANY_CLUSTER
from scheduling.pages.forms import DAMAGED
from scheduling.pages.jobs.job_text import (
    LANGUAGES,
    MOST_OF_A_TEXT,
    NEEDED,
    TextFault,
    WrongText,
    document_in,
    located,
    text_of,
)
from scheduling.pages.jobs.submission import (
    curl_of,
    document_from,
    is_offered,
    rehearsed,
    rest_in,
    sent,
    still_like,
    submit_forms,
    warn_of_gpu_types,
    with_marks,
)
from scheduling.pages.jobs.submit_again import filled_from, with_rest
from scheduling.pages.jobs.submit_form import OF_SEVERAL, JobForm, all_forms
from scheduling.services.jobs.validation import job_spec, without_nulls
from tenants.errors import DomainError, FieldError
from tenants.web.pages import page_login_required


@require_POST
@page_login_required
def job_text(request: HttpRequest) -> HttpResponse:
    """Show the form as text, or process a text."""
    return of_text(request) if "text" in request.POST else of_form(request)


def of_form(request: HttpRequest) -> HttpResponse:
    """Show the form's job as text in the requested language; the form with its errors if that is
    impossible."""
    language = request.POST.get("as", "")
    if language not in LANGUAGES:
        raise Http404(DAMAGED)
    rest = rest_in(request.POST)
    job_form, sets = submit_forms(request, request.POST)
    document = document_from(job_form, sets, rest) or unfinished(job_form, sets, rest)
    if document is not None:
        return shown_as_text(request, text_of(document, language), language)
    like = still_like(request, request.POST.get("like", ""))
    shown = with_marks(request, job_form, sets, like, rest)
    return render(request, "scheduling/jobs/job_new.html", shown, status=422)


def unfinished(job_form: JobForm, sets: Any, rest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the document of a form whose only errors are missing values; None for any other
    form."""
    forms = [form for _, form in all_forms(job_form, sets)]
    if sets.non_form_errors() or any(one.volumes.non_form_errors() for one in sets.forms):
        return None
    for form in forms:
        for name, errors in form.errors.as_data().items():
            if any(error.code != "required" for error in errors):
                return None
            form.cleaned_data[name] = form.fields[name].to_python(form.fields[name].initial)
    document = {**job_form.document(), "pod_sets": [form.document() for form in sets.forms]}
    return with_rest({**dict.fromkeys(NEEDED, ""), **document}, rest)


def shown_as_text(
    request: HttpRequest, text: str, language: str, faults: Sequence[TextFault] = ()
) -> HttpResponse:
    context = {
        "nav": "jobs",
        "text": text,
        "language": language,
        "title": LANGUAGES[language],
        "languages": LANGUAGES,
        "faults": faults,
        "most": MOST_OF_A_TEXT,
        "like": request.POST.get("like", ""),
    }
    status = 422 if faults else 200
    return render(request, "scheduling/jobs/job_text.html", context, status=status)


def of_text(request: HttpRequest) -> HttpResponse:
    """Process the job in a text: submit it, show it unchanged ("show"), or as text in another
    language or the form ("as")."""
    text, language = typed_text(request)
    if "show" in request.POST:
        return shown_as_text(request, text, language)
    way = request.POST.get("as", "")
    try:
        document = document_in(text, language, unfinished=bool(way))
        if way in LANGUAGES:
            return shown_as_text(request, text_of(document, way), way)
        return filled_by(request, document) if way == "form" else sent(request, document)
    except (WrongText, DomainError) as error:
        return shown_as_text(request, text, language, faults_in(text, error))


def faults_in(text: str, error: WrongText | DomainError) -> list[TextFault]:
    if isinstance(error, WrongText):
        return error.faults
    return located(text, error.errors or [FieldError((), error.detail)])


def typed_text(request: HttpRequest) -> tuple[str, str]:
    """Return (the text with plain line ends, its language). Raises Http404 if no page of Kant's
    sent it."""
    language = request.POST.get("language", "")
    if language not in LANGUAGES or "text" not in request.POST:
        raise Http404(DAMAGED)
    return request.POST["text"].replace("\r\n", "\n"), language


def filled_by(request: HttpRequest, document: dict[str, Any]) -> HttpResponse:
    """Show the form filled in from a text's document. Raises Invalid when the document is invalid
    by itself; name and tenant may still be missing."""
    given = {name: value for name, value in document.items() if value not in (None, "")}
    job_spec({**dict.fromkeys(NEEDED, "x"), **given})
    filled = filled_from(without_nulls(document), timezone.now())
    job_form, sets = submit_forms(request, job=filled.job, sets=filled.sets)
    # Fields that are asked for only if there are several clusters.
    rest = {
        **{n: given[n] for n in OF_SEVERAL if n in given and n not in job_form.fields},
        **filled.rest,
    }
    tenant = filled.job.get("tenant", "")
    if tenant and not is_offered(job_form, "tenant", tenant):
        job_form.warn("tenant", f"You may not submit to {tenant}. Choose another tenant.")
    cluster = filled.job.get("cluster", ANY_CLUSTER)
    if "cluster" in job_form.fields and not is_offered(job_form, "cluster", cluster):
        job_form.warn("cluster", f"There is no active cluster {cluster}. Choose another.")
    warn_of_gpu_types(sets)
    like = still_like(request, request.POST.get("like", ""))
    shown = with_marks(request, job_form, sets, like, rest)
    return render(request, "scheduling/jobs/job_new.html", shown)


@require_POST
@page_login_required
def job_text_preview(request: HttpRequest) -> HttpResponse:
    """Preview the text's contents so far, as `submission.job_preview` does for the form."""
    text, language = typed_text(request)
    context: dict[str, Any] = {}
    try:
        document = document_in(text, language)
        context = {"complete": True, "curl": curl_of(request, document)}
        context |= rehearsed(request, document)
    except (WrongText, DomainError) as error:
        context["faults"] = faults_in(text, error)
    return render(request, "scheduling/jobs/_job_preview.html", context)
