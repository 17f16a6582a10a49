"""What a page shows instead of a preview: why the action is refused."""

from collections.abc import Mapping, Sequence

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from tenants.errors import DomainError

NO_TITLES: Mapping[str, str] = {}
NOTHING_TO_PREVIEW = "Nothing is edited, so there is nothing to preview."
# A rehearsal writes nothing, so a missing reason matters only when saving.
REHEARSAL = "rehearsal"


def refusal(request: HttpRequest, *told: str) -> HttpResponse:
    """Show sentences in place of effects, one per line. Status 200, since htmx shows nothing
    else."""
    return render(request, "parts/effects_refused.html", {"told": told})


def refusal_by_field(
    request: HttpRequest,
    errors: Mapping[str, Sequence[str]],
    titles: Mapping[str, str] = NO_TITLES,
) -> HttpResponse:
    """Show the errors as a form does: sentences by field name ("" = none of them)."""
    return refusal(
        request,
        *(
            f"{titles[name]}: {told}" if name in titles else told
            for name, texts in errors.items()
            for told in texts
        ),
    )


def refusal_of(request: HttpRequest, error: DomainError) -> HttpResponse:
    return refusal(request, *error.details)


def refusal_of_form(request: HttpRequest, form: forms.Form) -> HttpResponse:
    """Show the field errors of an invalid form."""
    errors = {name: [str(text) for text in texts] for name, texts in form.errors.items()}
    titles = {name: str(form[name].label) for name in form.fields}
    return refusal_by_field(request, errors, titles)


def rehearsed_reason(request: HttpRequest) -> str:
    """Return the typed reason, even an invalid one; if there is none yet, a placeholder."""
    return request.POST.get("reason", "").strip() or REHEARSAL
