"""What a page shows in place of a preview: why the act is refused, in its words."""

from collections.abc import Mapping, Sequence

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from tenants.errors import DomainError

NO_TITLES: Mapping[str, str] = {}
NOTHING_TO_PREVIEW = "Nothing is edited, so there is nothing to preview."
# A rehearsal writes nothing; that there is a reason is asked for only when it counts.
REHEARSAL = "rehearsal"


def refusal(request: HttpRequest, *told: str) -> HttpResponse:
    """In place of effects; htmx shows what comes with 200 alone. Each sentence on its line."""
    return render(request, "parts/effects_refused.html", {"told": told})


def refusal_by_field(
    request: HttpRequest,
    errors: Mapping[str, Sequence[str]],
    titles: Mapping[str, str] = NO_TITLES,
) -> HttpResponse:
    """As a form marks its fields: sentences by the names of fields, "" = of none of them."""
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
    """What a form that was not accepted says at its fields."""
    errors = {name: [str(text) for text in texts] for name, texts in form.errors.items()}
    titles = {name: str(form[name].label) for name in form.fields}
    return refusal_by_field(request, errors, titles)


def rehearsed_reason(request: HttpRequest) -> str:
    """The reason as typed, which may be a wrong one; where none is typed yet, that of a
    rehearsal."""
    return request.POST.get("reason", "").strip() or REHEARSAL
