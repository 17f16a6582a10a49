"""Fill in the submit form from a job document: the inverse of what its forms produce."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec import inspect

from scheduling.engine.types import MILLI
from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.job_fields.parts import plain
from scheduling.kube.translate.manifests import VOLUME_SOURCES
from scheduling.pages.asked import asked_of, typed_of
from scheduling.pages.jobs.submit_form import SHELL
from scheduling.services.jobs.validation import SHORT_FORM, default_name

# Fields of which the form shows some entries and `rest` keeps the others.
IN_PART = frozenset(
    field.name
    for field in asked_of(PodSetDocument).values()
    if isinstance(plain(field.type), inspect.DictType)
)


@dataclass(frozen=True, slots=True)
class Filled:
    """The initial values of the job's fields and of each pod set's. `rest`: a document with what no
    form field can show; its `pod_sets` are as many as the form's, or absent."""

    job: dict[str, Any]
    sets: list[dict[str, Any]]
    rest: dict[str, Any]


def filled_from(document: Mapping[str, Any], now: datetime) -> Filled:
    """Fill in the form from a valid job document, as far as possible."""
    rest = dict(document)
    sets = rest.pop("pod_sets", None)
    if sets is None:
        one = {name: rest.pop(name) for name in document if name in SHORT_FORM}
        one["count"] = one.pop("replicas", 1)
        sets = [one]
    if rest.get("not_before") is not None and rest["not_before"] <= now:
        del rest["not_before"]  # a time in the past does not delay a new job
    job = typed_of(JobDocument, rest)
    job |= {name: rest.pop(name) for name in ("tenant", "cluster") if name in rest}
    filled = [_pod_set(one, index) for index, one in enumerate(sets)]
    if any(more for _, more in filled):
        rest["pod_sets"] = [more for _, more in filled]
    return Filled(job, [fields for fields, _ in filled], rest)


def _pod_set(document: Mapping[str, Any], index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of one pod set, and what they cannot show."""
    rest = dict(document)
    fields: dict[str, Any] = {
        "name": rest.pop("name", default_name(index)),
        "gpus": _plain(rest.pop("gpus", 0) * Decimal(rest.pop("gpu_milli", MILLI)) / MILLI),
    }
    if rest.get("gpu_types") == []:
        del rest["gpu_types"]
    if "gpu_types" in rest:
        fields["gpu_type"] = rest["gpu_types"][0]
    elif "gpu_type" in rest:
        fields["gpu_type"] = rest.pop("gpu_type")
    for how, name in (("r", "required_level"), ("p", "preferred_level")):
        if name in rest and "required_level" not in fields:
            fields["required_level"] = f"{how}:{rest.pop(name)}"
    if "command" in rest:
        fields["command"] = _typed(rest["command"])
        if _read(fields["command"]) == rest["command"]:
            del rest["command"]
    fields |= typed_of(PodSetDocument, rest)
    fields["volumes"] = [_volume(one) for one in rest.pop("volumes", [])]
    return fields, rest


def left_out(rest: Mapping[str, Any]) -> list[str]:
    """Return the names of what the form does not show of the document that it was filled in
    from."""
    names = [name for name in rest if name != "pod_sets"]
    for one in rest.get("pod_sets", ()):
        for name, value in one.items():
            if name == "gpu_types":
                names.append("gpu_types but the first")
            elif name in IN_PART:
                names.append(f"{name} ({', '.join(value)})")
            elif name != "command":  # the form shows it quoted for a shell
                names.append(name)
    return list(dict.fromkeys(names))


def with_rest(said: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Add to the forms' document what they could not show of the one they were filled in from.
    Where both have a value, the forms win: somebody has changed it there."""
    more = rest.get("pod_sets", [])
    sets = [
        _set_with_rest(one, more[index] if index < len(more) else {})
        for index, one in enumerate(said["pod_sets"])
    ]
    return {**rest, **said, "pod_sets": sets}


def _set_with_rest(said: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    found = {**more, **said}
    for name in IN_PART & said.keys() & more.keys():
        found[name] = {**more[name], **said[name]}
    if types := more.get("gpu_types"):
        # The form shows the first of them.
        found.pop("gpu_type" if said.get("gpu_type") == types[0] else "gpu_types")
    if "command" in more:
        if said.get("command", []) == _read(_typed(more["command"])):
            found["command"] = more["command"]
        elif "command" not in said:
            del found["command"]
    return found


def _volume(volume: Mapping[str, Any]) -> dict[str, Any]:
    source = next(kind for kind in VOLUME_SOURCES if kind in volume)
    return {
        "called": volume["name"],
        "source": source,
        "resource": volume[source],
        "mount_path": volume["mount_path"],
        "read_only": volume.get("read_only", False),
    }


def _typed(command: list[str]) -> str:
    """Write a command as people type it in a shell."""
    if len(command) == len(SHELL) + 1 and tuple(command[: len(SHELL)]) == SHELL:
        return command[-1]
    return shlex.join(command)


def _read(typed: str) -> list[str]:
    """Return the command that the form makes of such a text."""
    text = typed.strip().replace("\r\n", "\n")
    return [*SHELL, text] if text else []


def _plain(number: Decimal) -> str:
    """ "64", "0.5" """
    return f"{number.normalize():f}"
