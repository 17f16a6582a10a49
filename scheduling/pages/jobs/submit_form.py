"""The submit form: fields of people, turned into the job document of the REST API."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from django import forms

from scheduling.engine.types import MILLI, JobKind
from scheduling.job_fields.definition import MAX_POD_SETS, JobDocument, PodSetDocument
from scheduling.job_fields.faults import LEVELS
from scheduling.job_fields.parts import limits_of
from scheduling.job_fields.values import (
    MAX_ENV,
    MAX_ENV_FROM_SECRETS,
    MAX_NODE_LABELS,
    MAX_PULL_SECRETS,
    NAME_LENGTH,
)
from scheduling.pages.form_fields import Names, NodeTerms, Pairs, SecretKeys, gib, node_line_at
from scheduling.pages.forms import DAMAGED, SHORTEST_MIN, SHOWN_AS
from scheduling.pages.jobs.volume_form import VolumeForm, Volumes
from tenants.errors import DomainError
from tenants.forms import Fields
from tenants.models import slug_validator

KINDS = [(k.value, k.value.capitalize()) for k in JobKind]
PLACES = [("", "Anywhere"), *((f"r:{level}", f"Within one {level}") for level in LEVELS)] + [
    (f"p:{level}", f"If possible within one {level}") for level in LEVELS
]
# How a command that people type is run.
SHELL = ("/bin/sh", "-c")


def is_used(form: Fields, names: Sequence[str]) -> bool:
    """Whether one of these fields has a value or a fault, or is where the page opens."""
    return any(
        form[name].value() or name in form.errors or "autofocus" in form.fields[name].widget.attrs
        for name in names
    )


class JobForm(Fields):
    FOLDED = ("max_restarts", "limit_min", "checkpoint_notice_s", "not_before")

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
        min_value=limits_of(JobDocument, "priority")[0],
        max_value=limits_of(JobDocument, "priority")[1],
    )
    declared_min = forms.DecimalField(
        label="Run time, minutes",
        required=False,
        min_value=SHORTEST_MIN,
        max_value=limits_of(JobDocument, "declared_s")[1] // 60,
        decimal_places=2,
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
    max_restarts = forms.IntegerField(
        label="Restarts",
        required=False,
        min_value=limits_of(JobDocument, "max_restarts")[0],
        max_value=limits_of(JobDocument, "max_restarts")[1],
        help_text="After its program failed. Empty: none, 1000 where kind is Inference and it is "
        "no gang",
    )
    limit_min = forms.DecimalField(
        label="Run-time limit, minutes",
        required=False,
        min_value=SHORTEST_MIN,
        max_value=limits_of(JobDocument, "run_limit_s")[1] // 60,
        decimal_places=2,
        help_text="It is ended so long after its start. Empty: no limit",
    )
    checkpoint_notice_s = forms.IntegerField(
        label="Checkpoint notice, seconds",
        required=False,
        min_value=limits_of(JobDocument, "checkpoint_notice_s")[0],
        max_value=limits_of(JobDocument, "checkpoint_notice_s")[1],
        help_text="Its pods are told so long before they are deleted. Empty: not told",
    )
    not_before = forms.DateTimeField(
        label="Not before, UTC",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text="It does not start earlier. Empty: as soon as it can",
    )

    def __init__(self, *args: Any, tenants: list[str], clusters: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["tenant"].choices = [(name, name) for name in tenants]  # type: ignore[attr-defined]
        self.fields["cluster"].choices = [(name, name) for name in clusters]  # type: ignore[attr-defined]
        if len(clusters) < 2:
            del self.fields["cluster"]

    @property
    def is_unfolded(self) -> bool:
        return is_used(self, self.FOLDED)

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
            document["declared_s"] = round(60 * data["declared_min"])
        if data["limit_min"] is not None:
            document["run_limit_s"] = round(60 * data["limit_min"])
        for name in ("max_restarts", "checkpoint_notice_s", "not_before"):
            if data[name] is not None:
                document[name] = data[name]
        return document


class PodSetForm(Fields):
    FOLDED = (
        *("env", "env_from_secrets", "shm_gib", "nics"),
        *("service_account", "image_pull_secrets", "node_selector", "node_affinity"),
    )

    name = forms.CharField(
        label="Name", initial="worker", max_length=63, validators=[slug_validator]
    )
    count = forms.IntegerField(label="Pods", initial=1, min_value=1)
    min_count = forms.IntegerField(
        label="At least, pods",
        required=False,
        min_value=limits_of(PodSetDocument, "min_count")[0],
        help_text="It starts with so many and grows (elastic gang). Empty: all",
    )
    gpus = forms.DecimalField(
        label="GPUs per pod",
        initial=1,
        min_value=0,
        decimal_places=3,
        max_digits=8,
        help_text="0.5 is half a GPU; 0: it needs CPU or memory",
    )
    gpu_type = forms.ChoiceField(label="GPU type", required=False)
    required_level = forms.ChoiceField(label="Network", choices=PLACES, required=False)
    cpus = forms.DecimalField(
        label="CPU cores per pod",
        required=False,
        min_value=0,
        max_value=limits_of(PodSetDocument, "cpu_milli")[1] // MILLI,
        decimal_places=3,
    )
    memory_gib = gib("memory_mib", "Memory per pod, GiB")
    image = forms.CharField(label="Image", initial="busybox:stable", max_length=500)
    command = forms.CharField(
        label="Command",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false"}),
        help_text="Runs in a shell; empty: what the image starts",
    )
    env = Pairs(
        label="Environment",
        most=MAX_ENV,
        help_text="A variable a line: NAME=VALUE",
    )
    env_from_secrets = SecretKeys(
        label="Environment from secrets",
        most=MAX_ENV_FROM_SECRETS,
        help_text="A variable a line: NAME=SECRET/KEY. Kant never reads the value",
    )
    shm_gib = gib("shm_mib", "Size of /dev/shm, GiB", "In memory. Empty: as the node gives it")
    nics = forms.IntegerField(
        label="NICs per pod",
        required=False,
        min_value=limits_of(PodSetDocument, "nics")[0],
        max_value=limits_of(PodSetDocument, "nics")[1],
        help_text="Which it holds alone",
    )
    service_account = forms.CharField(
        label="Service account",
        required=False,
        max_length=NAME_LENGTH,
        help_text="Whose rights the pods have. Empty: none",
    )
    image_pull_secrets = Names(
        label="Image pull secrets",
        most=MAX_PULL_SECRETS,
        help_text="Names, with spaces between",
    )
    node_selector = Pairs(
        label="Node selector",
        most=MAX_NODE_LABELS,
        help_text="Only nodes with these labels, one a line: LABEL=VALUE",
    )
    node_affinity = NodeTerms(
        label="Node affinity",
        help_text="Only nodes for which all lines hold: zone In a, b; disk NotIn hdd; fast Exists; "
        "old DoesNotExist; cores Gt 64; cores Lt 128. metadata.name is the node's name; a line "
        "“or” begins another choice",
    )

    def __init__(self, *args: Any, gpu_types: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["gpu_type"].choices = [("", "Any"), *((n, n) for n in gpu_types)]  # type: ignore[attr-defined]
        self.volumes = Volumes(
            self.data if self.is_bound else None,
            prefix=f"{self.prefix}-volumes",
            initial=self.initial.get("volumes"),
        )

    def has_changed(self) -> bool:
        """One that equals the defaults is a pod set too, where Django counts and cleans none."""
        return True

    def is_valid(self) -> bool:
        return super().is_valid() & self.volumes.is_valid()

    @property
    def is_unfolded(self) -> bool:
        return (
            is_used(self, self.FOLDED)
            or bool(self.volumes.non_form_errors())
            or any(
                v.has_changed() or "autofocus" in v.fields["source"].widget.attrs
                for v in self.volumes
            )
        )

    @property
    def used_volumes(self) -> list[VolumeForm]:
        return [volume for volume in self.volumes if volume.has_changed()]

    def clean_command(self) -> str:
        # Browsers end lines as HTTP does, which is nothing for a shell.
        return str(self.cleaned_data["command"]).replace("\r\n", "\n")

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
            document["memory_mib"] = round(data["memory_gib"] * 1024)
        if data["command"]:
            document["command"] = [*SHELL, data["command"]]
        if data["shm_gib"]:
            document["shm_mib"] = round(data["shm_gib"] * 1024)
        for name in self.FOLDED:
            if name != "shm_gib" and data[name]:
                document[name] = data[name]
        if volumes := self.used_volumes:
            document["volumes"] = [volume.document() for volume in volumes]
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
    # Django would build a thousand forms for a damaged count before it refuses it.
    absolute_max=MAX_POD_SETS + 1,
    validate_min=True,
    validate_max=True,
)


def all_forms(job: JobForm, sets: Any) -> Iterator[tuple[str, Fields]]:
    """The forms as they stand on the page, each with what to say before a field of it."""
    yield "", job
    for number, one in enumerate(sets.forms, 1):
        where = f"Pod set {number}, " if len(sets.forms) > 1 else ""
        yield where, one
        for place, volume in enumerate(one.volumes, 1):
            yield f"{where}volume {place}, " if where else f"Volume {place}, ", volume


def show_errors(error: DomainError, document: Mapping[str, Any], job: JobForm, sets: Any) -> None:
    """Put each fault of the use case beside the field that it speaks of; the rest above the
    form."""
    # Not later: a field that has a fault is no longer read.
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
                path = ["gpus"]  # the sum of all pod sets is that of the only one
            elif len(path) > 1:
                field, entry, *rest = path
                if field == "volumes":
                    form, path = volumes[index][entry], rest
                elif field == "node_affinity":
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
