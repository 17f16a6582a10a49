"""The submit form: fields of people, turned into the job document of the REST API."""

from decimal import Decimal
from typing import Any

from django import forms

from scheduling.engine.types import MILLI, JobKind
from scheduling.forms import SHOWN_AS
from scheduling.services.faults import LEVELS, LIMITS
from scheduling.services.job_spec import MAX_POD_SETS
from tenants.errors import DomainError
from tenants.forms import Fields
from tenants.models import slug_validator

KINDS = [(k.value, k.value.capitalize()) for k in JobKind]
PLACES = [("", "Anywhere"), *((f"r:{level}", f"Within one {level}") for level in LEVELS)] + [
    (f"p:{level}", f"If possible within one {level}") for level in LEVELS
]


class JobForm(Fields):
    name = forms.CharField(
        label="Name",
        max_length=63,
        validators=[slug_validator],
        help_text="Lower-case letters, digits and hyphens",
    )
    tenant = forms.ChoiceField(label="Tenant")
    cluster = forms.ChoiceField(label="Cluster", required=False)
    kind = forms.ChoiceField(label="Kind", choices=KINDS, initial=JobKind.TRAINING.value)
    priority = forms.IntegerField(
        label="Priority",
        initial=0,
        help_text="Higher goes first",
        min_value=LIMITS["priority"][0],
        max_value=LIMITS["priority"][1],
    )
    declared_min = forms.IntegerField(
        label="Run time, minutes",
        required=False,
        min_value=1,
        max_value=LIMITS["declared_s"][1] // 60,
        help_text="Expected; helps it start sooner",
    )
    gang = forms.BooleanField(
        label="All pods start together, or none (gang)", required=False, initial=True
    )
    preemptible = forms.BooleanField(
        label="May be preempted and queued again",
        required=False,
        initial=True,
        help_text="Where lenders may take quota back, a job that may not be preempted borrows none",
    )

    def __init__(self, *args: Any, tenants: list[str], clusters: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["tenant"].choices = [(name, name) for name in tenants]  # type: ignore[attr-defined]
        self.fields["cluster"].choices = [(name, name) for name in clusters]  # type: ignore[attr-defined]
        if len(clusters) < 2:
            del self.fields["cluster"]

    def document(self) -> dict[str, Any]:
        data = self.cleaned_data
        document = {
            "name": data["name"],
            "tenant": data["tenant"],
            "kind": data["kind"],
            "priority": data["priority"],
            "gang": data["gang"],
            "preemptible": data["preemptible"],
        }
        if data.get("cluster"):
            document["cluster"] = data["cluster"]
        if data["declared_min"] is not None:
            document["declared_s"] = 60 * data["declared_min"]
        return document


class PodSetForm(Fields):
    name = forms.CharField(
        label="Name", initial="worker", max_length=63, validators=[slug_validator]
    )
    count = forms.IntegerField(label="Pods", initial=1, min_value=1)
    min_count = forms.IntegerField(
        label="At least, pods",
        required=False,
        min_value=LIMITS["min_count"][0],
        help_text="It starts with so many and grows (elastic gang). Empty: all",
    )
    gpus = forms.DecimalField(
        label="GPUs per pod",
        initial=1,
        min_value=0,
        decimal_places=3,
        max_digits=8,
        help_text="0.5 is half a GPU",
    )
    gpu_type = forms.ChoiceField(label="GPU type", required=False)
    required_level = forms.ChoiceField(label="Network", choices=PLACES, required=False)
    cpus = forms.DecimalField(
        label="CPU cores per pod", required=False, min_value=0, decimal_places=3, max_digits=9
    )
    memory_gib = forms.DecimalField(
        label="Memory per pod, GiB", required=False, min_value=0, decimal_places=2, max_digits=9
    )
    image = forms.CharField(label="Image", initial="busybox:stable", max_length=500)
    command = forms.CharField(
        label="Command",
        required=False,
        help_text="Runs in a shell; empty: what the image starts",
    )

    def __init__(self, *args: Any, gpu_types: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["gpu_type"].choices = [("", "Any"), *((n, n) for n in gpu_types)]  # type: ignore[attr-defined]

    def clean_gpus(self) -> Decimal:
        value: Decimal = self.cleaned_data["gpus"]
        if value > 1 and value % 1:
            raise forms.ValidationError(
                f"A share is of one GPU: write a whole number, or less than 1, not {value:g}."
            )
        return value

    def document(self) -> dict[str, Any]:
        data = self.cleaned_data
        gpus: Decimal = data["gpus"]
        document: dict[str, Any] = {
            "name": data["name"],
            "count": data["count"],
            "gpus": int(gpus) if gpus % 1 == 0 else 1,
            "image": data["image"],
        }
        if data["min_count"] is not None:
            document["min_count"] = data["min_count"]
        if gpus % 1:
            document["gpu_milli"] = int(gpus * MILLI)
        if data["gpu_type"]:
            document["gpu_type"] = data["gpu_type"]
        if data["required_level"]:
            how, level = data["required_level"].split(":")
            document["required_level" if how == "r" else "preferred_level"] = level
        if data["cpus"]:
            document["cpu_milli"] = int(data["cpus"] * MILLI)
        if data["memory_gib"]:
            document["memory_mib"] = int(data["memory_gib"] * 1024)
        if data["command"]:
            document["command"] = ["/bin/sh", "-c", data["command"]]
        return document


class BasePodSets(forms.BaseFormSet):
    default_error_messages = {
        "missing_management_form": "The form is damaged. Load the page again.",
        "too_few_forms": "Give at least one pod set.",
        "too_many_forms": f"Give at most {MAX_POD_SETS} pod sets.",
    }


PodSets = forms.formset_factory(
    PodSetForm,
    formset=BasePodSets,
    extra=0,
    min_num=1,
    max_num=MAX_POD_SETS,
    # Django would build a thousand forms for a damaged count before it refuses it.
    absolute_max=MAX_POD_SETS + 1,
    validate_min=True,
    validate_max=True,
)


def show_errors(error: DomainError, job: JobForm, sets: Any) -> None:
    """Put each fault of the use case beside the field it speaks of; the rest above the form."""
    for fault in error.errors:
        path = list(fault.path)
        form: Fields = job
        if path and path[0] == "pod_sets":
            path.pop(0)
            index = path.pop(0) if path and isinstance(path[0], int) else 0
            form = sets.forms[min(index, len(sets.forms) - 1)]
            if not path and len(sets.forms) == 1:
                path = ["gpus"]  # the sum of all pod sets is that of the only one
        name = SHOWN_AS.get(str(path[0]), str(path[0])) if path else ""
        if name not in form.fields and form is job and name in PodSetForm.base_fields:
            form = sets.forms[0]
        form.add_error(name if name in form.fields else None, fault.detail)
    if not error.errors:
        job.add_error(None, error.detail)
