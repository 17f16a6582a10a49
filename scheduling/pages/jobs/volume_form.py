"""The rows of the submit form for the volumes of a pod set."""

from typing import Any

from django import forms

from scheduling.job_fields.values import MAX_VOLUMES, NAME_LENGTH, PATH_LENGTH
from scheduling.kube.translate.manifests import VOLUME_SOURCES
from scheduling.pages.forms import DAMAGED
from tenants.forms import Fields

SOURCES = [(kind, kind.replace("_", " ").capitalize()) for kind in VOLUME_SOURCES]


class VolumeForm(Fields):
    name = ""  # in the document, by its row

    source = forms.ChoiceField(label="Volume", choices=SOURCES)
    resource = forms.CharField(label="Its name", max_length=NAME_LENGTH)
    mount_path = forms.CharField(label="Mounted at", max_length=PATH_LENGTH)
    read_only = forms.BooleanField(label="Read-only", required=False)

    def has_changed(self) -> bool:
        """Whether the row says anything; one that does not is left out, wherever it stands."""
        return any(self[name].value() for name in ("resource", "mount_path"))

    def document(self) -> dict[str, Any]:
        data = self.cleaned_data
        document = {
            "name": self.name,
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
        # A row that was there before may be emptied too.
        return 0 if self.is_bound else super().initial_form_count()

    def add_fields(self, form: VolumeForm, index: int | None) -> None:
        super().add_fields(form, index)
        if index is not None:
            form.name = f"volume-{index + 1}"
            form.fields["source"].label = f"Volume {index + 1}"


Volumes = forms.formset_factory(
    VolumeForm,
    formset=BaseVolumes,
    extra=1,
    max_num=MAX_VOLUMES,
    absolute_max=MAX_VOLUMES + 1,
    validate_max=True,
)
