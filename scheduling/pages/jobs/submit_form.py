"""The submit form: fields for people, turned into the job document of the REST API."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from django import forms

from scheduling.engine.types import MILLI
from scheduling.job_fields.definition import (
    ANY_CLUSTER,
    MAX_POD_SETS,
    JobDocument,
    PodSetDocument,
)
from scheduling.job_fields.faults import LEVELS
from scheduling.pages.asked import asks, document_of, folded
from scheduling.pages.form_fields import NodeTerms, node_line_at
from scheduling.pages.forms import DAMAGED, SHOWN_AS
from scheduling.pages.jobs.volume_form import VolumeForm, Volumes, volume_documents
from scheduling.services.jobs.validation import DEFAULT_POD_SET
from tenants.errors import DomainError
from tenants.forms import Fields
from tenants.models import slug_validator
from tenants.templatetags.ui import short_model

PLACES = [("", "Anywhere"), *((f"r:{level}", f"Within one {level}") for level in LEVELS)] + [
    (f"p:{level}", f"If possible within one {level}") for level in LEVELS
]
ANYWHERE = (ANY_CLUSTER, "Any: where it starts first")
# Only asked for if there are several clusters.
OF_SEVERAL = ("cluster", "cluster_selector", "preferred_cluster_labels")
# How to run a command that people type.
SHELL = ("/bin/sh", "-c")


def is_used(form: Fields, names: Sequence[str]) -> bool:
    """Return whether one of these fields has a value, an error or the initial focus."""
    return any(
        form[name].value() or name in form.errors or "autofocus" in form.fields[name].widget.attrs
        for name in names
    )


def _is_area(field: forms.BoundField) -> bool:
    return isinstance(field.field.widget, forms.Textarea)


@asks(JobDocument)
class JobForm(Fields):
    tenant = forms.ChoiceField(label="Tenant")
    cluster = forms.ChoiceField(label="Cluster", required=False)

    def __init__(self, *args: Any, tenants: list[str], clusters: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["tenant"].choices = [(name, name) for name in tenants]  # type: ignore[attr-defined]
        self.fields["cluster"].choices = [ANYWHERE, *((name, name) for name in clusters)]  # type: ignore[attr-defined]
        if len(clusters) < 2:
            for name in OF_SEVERAL:
                del self.fields[name]

    @property
    def folded(self) -> list[forms.BoundField]:
        return [self[name] for name in self._folded]

    @property
    def is_unfolded(self) -> bool:
        return is_used(self, self._folded)

    @property
    def _folded(self) -> list[str]:
        return [name for name in folded(JobDocument) if name in self.fields]

    def document(self) -> dict[str, Any]:
        places = {name: self.cleaned_data.get(name) for name in ("tenant", "cluster")}
        said = {name: value for name, value in places.items() if value}
        return {**document_of(self, JobDocument), **said}


@asks(PodSetDocument)
class PodSetForm(Fields):
    name = forms.CharField(
        label="Name", initial=DEFAULT_POD_SET, max_length=63, validators=[slug_validator]
    )
    gpus = forms.DecimalField(
        label="GPUs per pod",
        initial=1,
        min_value=0,
        decimal_places=3,
        max_digits=8,
        help_text="0.5 is half a GPU. 0: CPU or memory only",
    )
    gpu_type = forms.ChoiceField(label="GPU type", required=False)
    required_level = forms.ChoiceField(label="Network", choices=PLACES, required=False)
    command = forms.CharField(
        label="Command",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false"}),
        help_text="Runs in a shell. Empty: the command of the image",
    )

    def __init__(self, *args: Any, gpu_types: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["gpu_type"].choices = [("", "Any"), *((n, short_model(n)) for n in gpu_types)]  # type: ignore[attr-defined]
        self.volumes = Volumes(
            self.data if self.is_bound else None,
            prefix=f"{self.prefix}-volumes",
            initial=self.initial.get("volumes"),
        )

    def has_changed(self) -> bool:
        """A form equal to the defaults is a pod set too; Django would neither count nor clean
        it."""
        return True

    def is_valid(self) -> bool:
        return super().is_valid() & self.volumes.is_valid()

    @property
    def is_unfolded(self) -> bool:
        return (
            is_used(self, folded(PodSetDocument))
            or bool(self.volumes.non_form_errors())
            or any(
                v.has_changed() or "autofocus" in v.fields["source"].widget.attrs
                for v in self.volumes
            )
        )

    @property
    def folded_areas(self) -> list[forms.BoundField]:
        return [field for field in self._folded if _is_area(field)]

    @property
    def folded_lines(self) -> list[forms.BoundField]:
        return [field for field in self._folded if not _is_area(field)]

    @property
    def _folded(self) -> list[forms.BoundField]:
        return [self[name] for name in folded(PodSetDocument)]

    @property
    def used_volumes(self) -> list[VolumeForm]:
        return [volume for volume in self.volumes if volume.has_changed()]

    def clean_command(self) -> str:
        # Browsers send CRLF line ends, which a shell does not accept.
        return str(self.cleaned_data["command"]).replace("\r\n", "\n")

    def clean_gpus(self) -> Decimal:
        value: Decimal = self.cleaned_data["gpus"]
        if value > 1 and value % 1:
            raise forms.ValidationError(
                f"Write a whole number, or less than 1 for a share of one GPU, not {value:g}."
            )
        return value

    def document(self) -> dict[str, Any]:
        data = self.cleaned_data
        gpus: Decimal = data["gpus"]
        document: dict[str, Any] = {
            "name": data["name"],
            "gpus": int(gpus) if gpus % 1 == 0 else 1,
            **document_of(self, PodSetDocument),
        }
        if gpus % 1:
            document["gpu_milli"] = int(gpus * MILLI)
        if data["gpu_type"]:
            document["gpu_type"] = data["gpu_type"]
        if data["required_level"]:
            how, level = data["required_level"].split(":")
            document["required_level" if how == "r" else "preferred_level"] = level
        if data["command"]:
            document["command"] = [*SHELL, data["command"]]
        if volumes := self.used_volumes:
            document["volumes"] = volume_documents(volumes)
        return document


class BasePodSets(forms.BaseFormSet):
    default_error_messages = {
        "missing_management_form": DAMAGED,
        "too_few_forms": "Give at least one pod set.",
        "too_many_forms": f"Give at most {MAX_POD_SETS} pod sets.",
    }


PodSets = forms.formset_factory(
    PodSetForm,
    formset=BasePodSets,
    extra=0,
    min_num=1,
    max_num=MAX_POD_SETS,
    # Django would build a thousand forms for a damaged count before refusing it.
    absolute_max=MAX_POD_SETS + 1,
    validate_min=True,
    validate_max=True,
)


def all_forms(job: JobForm, sets: Any) -> Iterator[tuple[str, Fields]]:
    """Yield the forms in page order, each with a prefix for messages about its fields."""
    yield "", job
    for number, one in enumerate(sets.forms, 1):
        where = f"Pod set {number}, " if len(sets.forms) > 1 else ""
        yield where, one
        for place, volume in enumerate(one.volumes, 1):
            yield f"{where}volume {place}, " if where else f"Volume {place}, ", volume


def show_errors(error: DomainError, document: Mapping[str, Any], job: JobForm, sets: Any) -> None:
    """Show each error of the use case at its field; the rest above the form."""
    # Read these now: a field with an error can no longer be read.
    volumes = [form.used_volumes for form in sets.forms]
    for fault in error.errors:
        path, detail = list(fault.path), fault.detail
        form: Fields = job
        if path and path[0] == "pod_sets":
            path.pop(0)
            index = path.pop(0) if path and isinstance(path[0], int) else 0
            index = min(index, len(sets.forms) - 1)
            form = sets.forms[index]
            if not path and len(sets.forms) == 1:
                path = ["gpus"]  # with only one pod set, the sum over all is its own
            elif len(path) > 1:
                field, entry, *rest = path
                if field == "volumes" and isinstance(entry, int) and entry < len(volumes[index]):
                    form, path = volumes[index][entry], rest
                elif isinstance(PodSetForm.base_fields.get(str(field)), NodeTerms):
                    terms = document["pod_sets"][index][field]
                    detail = f"{node_line_at(terms, path[1:])}: {detail}"
                else:
                    if isinstance(entry, int):
                        entry = document["pod_sets"][index][field][entry]
                    detail = f"{entry}: {detail}"
        name = SHOWN_AS.get(str(path[0]), str(path[0])) if path else ""
        if name not in form.fields and form is job and name in PodSetForm.base_fields:
            form = sets.forms[0]
        form.add_error(name if name in form.fields else None, detail)
    if not error.errors:
        job.add_error(None, error.detail)
