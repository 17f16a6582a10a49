"""The form of a queue's settings."""

from collections.abc import Mapping
from typing import Any

from django import forms

from scheduling.engine.types import JobKind
from scheduling.job_fields.parts import MINUTES
from scheduling.pages.form_fields import NamesField, Pairs
from scheduling.pages.forms import in_minutes, limit
from tenants.errors import DomainError
from tenants.forms import PLAIN_AMOUNT, Fields
from tenants.models import QueueOrder, Role
from tenants.services.queues.terms import (
    MAX_PRIORITY,
    MAX_RANK,
    MAX_RUN_S,
    MIN_WEIGHT,
    MOST_NAMES,
    QueueTerms,
)
from tenants.services.tenant_terms import MAX_JOBS

MOST_GPU_TYPES = 64
UNSAID = (("", "Not set"), ("yes", "Yes"), ("no", "No"))
ROLES = ((Role.ENGINEER.value, "Engineers"), (Role.TENANT_ADMIN.value, "Tenant admins"))
KINDS = [(kind.value, kind.value.capitalize()) for kind in JobKind]
ORDERS = (("", "That of the cluster's policy"), *QueueOrder.choices)
# Field of REST → its form field, where the names differ.
SHOWN_AS = {
    "default_run_limit_s": "default_limit_min",
    "max_run_limit_s": "max_limit_min",
}


class GpuLimits(Pairs):
    """Lines of TYPE=GPUS."""

    rule = "TYPE=GPUS, e.g. H100=16"

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Ignore line ends and empty lines."""
        return str(initial or "").split() != str(data or "").split()

    def read(self, text: str) -> float | None:
        return float(text) if (text := text.strip()) and PLAIN_AMOUNT.fullmatch(text) else None

    @staticmethod
    def write(value: Any) -> str:
        return f"{value:.12g}"


def _minutes(label: str, help_text: str) -> forms.DecimalField:
    return forms.DecimalField(
        label=label,
        help_text=help_text,
        required=False,
        show_hidden_initial=True,
        min_value=0,
        max_value=MAX_RUN_S // MINUTES.size,
        decimal_places=MINUTES.decimals,
    )


def _marks(label: str, choices: Any, help_text: str) -> forms.MultipleChoiceField:
    return forms.MultipleChoiceField(
        label=label,
        choices=choices,
        help_text=help_text,
        required=False,
        show_hidden_initial=True,
        widget=forms.CheckboxSelectMultiple,
    )


class QueueForm(Fields):
    """The current settings. Only changed fields are sent, so that other people's changes stay."""

    title = forms.CharField(label="Title", required=False, max_length=200, show_hidden_initial=True)
    rank = forms.IntegerField(
        label="Rank",
        help_text="Queues of a higher rank go first",
        show_hidden_initial=True,
        min_value=-MAX_RANK,
        max_value=MAX_RANK,
    )
    weight = forms.DecimalField(
        label="Weight",
        help_text="Share among queues of the same rank",
        show_hidden_initial=True,
        min_value=0,
        max_value=10**6,
    )
    order = forms.ChoiceField(
        label="Order of its jobs", choices=ORDERS, required=False, show_hidden_initial=True
    )
    max_running = limit("Jobs that run at once", "Empty: no limit", 0, MAX_JOBS)
    max_waiting = limit("Jobs that wait at once", "Empty: no limit", 0, MAX_JOBS)
    max_gpus = GpuLimits(
        label="GPUs at once",
        most=MOST_GPU_TYPES,
        help_text="One GPU type per line: TYPE=GPUS. Other types have no limit",
        show_hidden_initial=True,
    )
    default_priority = limit("Default priority", "Empty: 0", -MAX_PRIORITY, MAX_PRIORITY)
    max_priority = limit("Highest priority", "Empty: no limit", -MAX_PRIORITY, MAX_PRIORITY)
    default_limit_min = _minutes("Default run-time limit, minutes", "Empty: none")
    max_limit_min = _minutes("Longest run-time limit, minutes", "Empty: no limit")
    default_preemptible = forms.ChoiceField(
        label="Preemptible by default",
        choices=UNSAID,
        required=False,
        show_hidden_initial=True,
    )
    kinds = _marks("Kinds of jobs", KINDS, "None selected: all")
    roles = _marks(
        "Roles", ROLES, "None selected, and no names below: everybody who may submit to the tenant"
    )
    users = NamesField(
        label="Users",
        most=MOST_NAMES,
        help_text="User names, separated by spaces. They may submit in any role",
        show_hidden_initial=True,
    )
    groups = NamesField(
        label="Groups",
        most=MOST_NAMES,
        help_text="Groups of Kant or of the OpenID provider, separated by spaces",
        show_hidden_initial=True,
    )
    reason = forms.CharField(
        label="Reason", required=False, max_length=2000, help_text="Kept with the change"
    )

    def __init__(self, terms: QueueTerms, data: Any = None) -> None:
        said = terms.default_preemptible
        initial = {
            **terms.columns(),
            "weight": f"{terms.weight:.12g}",
            "max_gpus": GpuLimits.typed(terms.max_gpus)[0],
            "default_limit_min": in_minutes(terms.default_run_limit_s),
            "max_limit_min": in_minutes(terms.max_run_limit_s),
            "default_preemptible": "" if said is None else "yes" if said else "no",
            "users": NamesField.typed(list(terms.users)),
            "groups": NamesField.typed(list(terms.groups)),
        }
        super().__init__(data, initial=initial)
        for name in ("kinds", "roles"):
            self.fields[name].widget.attrs["class"] = "form-check-input"

    def clean_weight(self) -> float:
        weight = float(self.cleaned_data["weight"])
        if weight < MIN_WEIGHT:
            text = "Must be more than 0. To keep its jobs from starting, hold the queue."
            raise forms.ValidationError(text)
        return weight

    def values(self, names: Any = None) -> dict[str, Any]:
        """Return the changed fields, or the fields `names`, named as in `QueueTerms`."""
        found: dict[str, Any] = {}
        for name in self.changed_data if names is None else names:
            value = self.cleaned_data.get(name)
            match name:
                case "reason":
                    continue
                case "default_limit_min" | "max_limit_min":
                    real = next(n for n, shown in SHOWN_AS.items() if shown == name)
                    found[real] = None if value is None else round(60 * value)
                case "default_preemptible":
                    found[name] = None if not value else value == "yes"
                case _:
                    found[name] = value
        return found

    def show(self, error: DomainError) -> None:
        """Show each error at its field, and those without one above the form."""
        show(self, error)


def show(form: Fields, error: DomainError, shown_as: Mapping[str, str] = SHOWN_AS) -> None:
    for fault in error.errors:
        name = str(fault.path[0]) if fault.path else ""
        name = shown_as.get(name, name)
        told = f"{fault.path[1]}: {fault.detail}" if len(fault.path) > 1 else fault.detail
        form.add_error(name if name in form.fields else None, told)
    if not error.errors:
        form.add_error(None, error.detail)


class NewQueueForm(QueueForm):
    """The settings of a new queue, with its tenant and its name."""

    field_order = ("tenant", "name")
    tenant = forms.ChoiceField(label="Tenant")
    name = forms.CharField(
        label="Name", max_length=63, help_text="Lower-case letters, digits and hyphens"
    )

    def __init__(self, tenants: list[str], data: Any = None, tenant: str = "") -> None:
        super().__init__(QueueTerms(), data)
        choice = self.fields["tenant"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [(name, name) for name in tenants]
        choice.initial = tenant
