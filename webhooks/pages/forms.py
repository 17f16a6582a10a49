"""The form of a webhook."""

from collections.abc import Sequence
from typing import Any

from django import forms

from tenants.errors import DomainError
from tenants.forms import Fields
from tenants.models import Tenant
from webhooks.models import LONGEST_URL, PENDING_S, HookEvent, HookFormat, Webhook

MINUTE = 60


class WebhookForm(Fields):
    """Made anew, it also asks whose webhook it is; one of the whole deployment is for operators."""

    name = forms.CharField(label="Name", max_length=100, help_text="E.g. on-call channel")
    url = forms.CharField(
        label="Address",
        max_length=LONGEST_URL,
        widget=forms.TextInput(attrs={"inputmode": "url", "spellcheck": "false"}),
        help_text="Begins with https://. Kant sends a POST to it for each event",
    )
    format = forms.ChoiceField(label="Format", choices=HookFormat.choices)
    events = forms.MultipleChoiceField(
        label="Events", choices=HookEvent.choices, widget=forms.CheckboxSelectMultiple
    )
    pending_min = forms.DecimalField(
        label="“Waits long” after, minutes",
        min_value=PENDING_S[0] // MINUTE,
        max_value=PENDING_S[1] // MINUTE,
        help_text="Held jobs do not count",
    )
    gfr_percent = forms.DecimalField(
        label="“GFR high” from, percent",
        min_value=0.1,
        max_value=100,
        required=False,
        help_text="Of a cluster, over five minutes",
    )
    reason = forms.CharField(
        label="Reason",
        max_length=2000,
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Kept in the audit trail",
    )

    def __init__(
        self,
        data: Any = None,
        *,
        hook: Webhook | None = None,
        tenants: Sequence[Tenant] = (),
        operator: bool = False,
        tenant: str = "",
    ) -> None:
        shown = hook or Webhook(events=[HookEvent.FAILED.value, HookEvent.PREEMPTED.value])
        initial = {
            "tenant": tenant,
            "name": shown.name,
            "url": shown.url,
            "format": shown.format,
            "events": shown.events,
            "pending_min": f"{shown.pending_s / MINUTE:g}",
            "gfr_percent": f"{shown.gfr_percent:g}",
        }
        super().__init__(data, initial=initial)
        self.fields["events"].widget.attrs["class"] = "form-check-input"
        if hook is None:
            whole = [("", "The whole deployment")] if operator else []
            choices = [*whole, *((each.name, each.title or each.name) for each in tenants)]
            self.add(
                "tenant",
                forms.ChoiceField(
                    label="Events of",
                    choices=choices,
                    required=not operator,
                    help_text="And all tenants below it",
                ),
            )
        if not operator or (hook is not None and hook.tenant is not None):
            fields: Any = self.fields
            fields["events"].choices = [
                each for each in HookEvent.choices if each[0] != HookEvent.GFR
            ]
            del self.fields["gfr_percent"]

    def values(self) -> dict[str, Any]:
        """What the services take; of a valid form."""
        given = self.cleaned_data
        found = {name: given[name] for name in ("name", "url", "format", "events")}
        found["pending_s"] = round(given["pending_min"] * MINUTE)
        if given.get("gfr_percent") is not None:
            found["gfr_percent"] = float(given["gfr_percent"])
        return found

    def show(self, error: DomainError) -> None:
        """Say at its fields what a use case refuses."""
        names = {"pending_s": "pending_min"}
        for field, texts in error.by_field.items():
            name = names.get(field, field)
            for text in texts:
                self.add_error(name if name in self.fields else None, text)
        if not error.errors:
            self.add_error(None, error.detail)
