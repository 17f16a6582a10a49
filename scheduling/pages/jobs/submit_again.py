"""The submit form filled in from a job document: the inverse of what its forms make of it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from scheduling.engine.types import MILLI
from scheduling.kube.translate.manifests import VOLUME_SOURCES
from scheduling.pages.form_fields import node_lines
from scheduling.pages.forms import in_minutes
from scheduling.pages.jobs.submit_form import SHELL
from scheduling.services.jobs.spec import SHORT_FORM, default_name

# Fields that stand in the form as they stand in the document.
OF_JOB = (
    *("name", "tenant", "cluster", "kind", "priority", "gang", "preemptible"),
    *("max_restarts", "checkpoint_notice_s"),
)
OF_POD_SET = ("min_count", "gpu_type", "image", "nics", "service_account")


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
    job = {name: rest.pop(name) for name in OF_JOB if name in rest}
    for field, name in (("declared_min", "declared_s"), ("limit_min", "run_limit_s")):
        if name in rest:
            job[field] = in_minutes(rest.pop(name))
    if "not_before" in rest:
        moment = rest["not_before"]
        if moment <= now:
            del rest["not_before"]  # it does not keep a new job waiting
        elif moment == moment.replace(second=0, microsecond=0):
            job["not_before"] = rest.pop("not_before")
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
    fields = {name: rest.pop(name) for name in OF_POD_SET if name in rest}
    fields["name"] = rest.pop("name", default_name(index))
    fields["count"] = rest.pop("count", 1)
    gpus, milli = rest.pop("gpus", 0), rest.pop("gpu_milli", MILLI)
    fields["gpus"] = _plain(gpus * Decimal(milli) / MILLI)
    left_out = []
    if types := rest.pop("gpu_types", None):
        fields["gpu_type"] = types[0]
        left_out.append("gpu_types but the first")
    for how, name in (("r", "required_level"), ("p", "preferred_level")):
        if name in rest and "required_level" not in fields:
            fields["required_level"] = f"{how}:{rest.pop(name)}"
    if "cpu_milli" in rest:
        fields["cpus"] = _plain(Decimal(rest.pop("cpu_milli")) / MILLI)
    for field, name in (("memory_gib", "memory_mib"), ("shm_gib", "shm_mib")):
        if name in rest:
            fields[field] = _plain(round(Decimal(rest.pop(name)) / 1024, 4))
    if "command" in rest:
        fields["command"] = _typed(rest.pop("command"))
    env = rest.pop("env", {})
    lines = {name: f"{name}={value}" for name, value in env.items()}
    fields["env"] = "\n".join(line for line in lines.values() if _is_line(line))
    if lost := [name for name, line in lines.items() if not _is_line(line)]:
        left_out.append(f"env ({', '.join(lost)})")
    secrets = rest.pop("env_from_secrets", {})
    fields["env_from_secrets"] = "\n".join(
        f"{name}={source['secret']}/{source['key']}" for name, source in secrets.items()
    )
    fields["image_pull_secrets"] = " ".join(rest.pop("image_pull_secrets", []))
    selector = rest.pop("node_selector", {})
    fields["node_selector"] = "\n".join(f"{name}={value}" for name, value in selector.items())
    affinity = node_lines(rest.get("node_affinity", []))
    if affinity is not None:
        fields["node_affinity"] = affinity
        rest.pop("node_affinity", None)
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


def _is_line(text: str) -> bool:
    """Whether a line of a text field can hold it."""
    return text == text.strip() and not {"\n", "\r"} & set(text)


def _plain(number: Decimal) -> str:
    """ "64", "0.5" """
    return f"{number.normalize():f}"
