"""The submit form filled in from a job document: the inverse of what its forms make of it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from scheduling.engine.types import MILLI
from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.kube.translate.manifests import VOLUME_SOURCES
from scheduling.pages.asked import typed_of
from scheduling.pages.jobs.submit_form import SHELL
from scheduling.services.jobs.validation import SHORT_FORM, default_name


@dataclass(frozen=True, slots=True)
class Filled:
    """What the fields of the job and of each pod set begin with; `left_out`: what of the document
    no field of the form can say."""

    job: dict[str, Any]
    sets: list[dict[str, Any]]
    left_out: list[str]


def filled_from(document: Mapping[str, Any], now: datetime) -> Filled:
    """The form that says what a document of `services.job_document` says, as far as it can."""
    rest = dict(document)
    sets = rest.pop("pod_sets", None)
    if sets is None:
        one = {name: rest.pop(name) for name in document if name in SHORT_FORM}
        one["count"] = one.pop("replicas", 1)
        sets = [one]
    if rest.get("not_before") is not None and rest["not_before"] <= now:
        del rest["not_before"]  # it does not keep a new job waiting
    job, _ = typed_of(JobDocument, rest)
    job |= {name: rest.pop(name) for name in ("tenant", "cluster") if name in rest}
    left_out = list(rest)
    filled = []
    for index, one in enumerate(sets):
        fields, more = _pod_set(one, index)
        filled.append(fields)
        left_out += more
    return Filled(job, filled, list(dict.fromkeys(left_out)))


def _pod_set(document: Mapping[str, Any], index: int) -> tuple[dict[str, Any], list[str]]:
    """The fields of one pod set, and what they cannot say."""
    rest = dict(document)
    fields: dict[str, Any] = {
        "name": rest.pop("name", default_name(index)),
        "gpus": _plain(rest.pop("gpus", 0) * Decimal(rest.pop("gpu_milli", MILLI)) / MILLI),
    }
    left_out = []
    if types := rest.pop("gpu_types", None):
        fields["gpu_type"] = types[0]
        left_out.append("gpu_types but the first")
    elif "gpu_type" in rest:
        fields["gpu_type"] = rest.pop("gpu_type")
    for how, name in (("r", "required_level"), ("p", "preferred_level")):
        if name in rest and "required_level" not in fields:
            fields["required_level"] = f"{how}:{rest.pop(name)}"
    if "command" in rest:
        fields["command"] = _typed(rest.pop("command"))
    typed, lost = typed_of(PodSetDocument, rest)
    fields |= typed
    left_out += lost
    fields["volumes"] = [_volume(one) for one in rest.pop("volumes", [])]
    return fields, [*left_out, *rest]


def _volume(volume: Mapping[str, Any]) -> dict[str, Any]:
    source = next(kind for kind in VOLUME_SOURCES if kind in volume)
    return {
        "source": source,
        "resource": volume[source],
        "mount_path": volume["mount_path"],
        "read_only": volume.get("read_only", False),
    }


def _typed(command: list[str]) -> str:
    """A command as people type it for a shell."""
    if len(command) == len(SHELL) + 1 and tuple(command[: len(SHELL)]) == SHELL:
        return command[-1]
    return shlex.join(command)


def _plain(number: Decimal) -> str:
    """ "64", "0.5" """
    return f"{number.normalize():f}"
