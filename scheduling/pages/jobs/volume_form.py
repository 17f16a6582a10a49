"""The submit form's rows for the volumes of a pod set."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from django import forms

from scheduling.job_fields.values import MAX_VOLUMES, NAME_LENGTH, PATH_LENGTH
from scheduling.kube.translate.manifests import VOLUME_SOURCES
from scheduling.pages.forms import DAMAGED
from tenants.forms import Fields

SOURCES = [(kind, kind.replace("_", " ").capitalize()) for kind in VOLUME_SOURCES]


class VolumeForm(Fields):
    number = 1  # the number of its row

    called = forms.CharField(widget=forms.HiddenInput, required=False, max_length=NAME_LENGTH)
    source = forms.ChoiceField(label="Volume", choices=SOURCES)
    resource = forms.CharField(label="Name", max_length=NAME_LENGTH)
    mount_path = forms.CharField(label="Mounted at", max_length=PATH_LENGTH)
    read_only = forms.BooleanField(label="Read-only", required=False)

    def has_changed(self) -> bool:
        """Whether the row contains anything; an empty one is ignored, wherever it is."""
        return any(self[name].value() for name in ("resource", "mount_path"))

    def document(self, name: str) -> dict[str, Any]:
        """Return its contents under this name."""
        data = self.cleaned_data
        document = {
            "name": name,
            data["source"]: data["resource"],
            "mount_path": data["mount_path"],
        }
        if data["read_only"]:
            document["read_only"] = True
        return document


class BaseVolumes(forms.BaseFormSet):
    default_error_messages = {
        "missing_management_form": DAMAGED,
        "too_many_forms": f"Give at most {MAX_VOLUMES} volumes.",
    }

    def initial_form_count(self) -> int:
        # Rows that existed before may be emptied as well.
        return 0 if self.is_bound else super().initial_form_count()

    def add_fields(self, form: VolumeForm, index: int | None) -> None:
        super().add_fields(form, index)
        if index is not None:
            form.number = index + 1
            form.fields["source"].label = f"Volume {index + 1}"


def volume_documents(rows: Sequence[VolumeForm]) -> list[dict[str, Any]]:
    """Return the rows' contents, each under its name in the original document, else under its row's
    name."""
    taken = {row.cleaned_data["called"] for row in rows}
    documents = []
    for row in rows:
        free = (name for n in count(row.number) if (name := f"volume-{n}") not in taken)
        name = row.cleaned_data["called"] or next(free)
        taken.add(name)
        documents.append(row.document(name))
    return documents


Volumes = forms.formset_factory(
    VolumeForm,
    formset=BaseVolumes,
    extra=1,
    max_num=MAX_VOLUMES,
    absolute_max=MAX_VOLUMES + 1,
    validate_max=True,
)
