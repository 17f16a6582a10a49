"""Check the fields of one pod set of a job document against each other. Pure."""

from collections.abc import Mapping
from typing import Any

from scheduling.engine.types import MILLI
from scheduling.job_fields.definition import PodSetDocument
from scheduling.job_fields.faults import Faults
from scheduling.job_fields.nouns import check_values
from scheduling.services.jobs.container_spec import check_containers
from scheduling.services.jobs.volume_spec import check_volumes
from tenants.errors import Path


def check_pod_set(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    check_values(PodSetDocument, item, at, faults)
    faults.unless(
        not ("gpu_type" in item and "gpu_types" in item),
        (*at, "gpu_types"),
        "Give `gpu_type` or `gpu_types`, not both.",
    )
    _check_shares(item, at, faults)
    count = amount(item, "count", 1)
    faults.unless(
        amount(item, "min_count", count) <= count,
        (*at, "min_count"),
        f"Must be at most count ({count}).",
    )
    _check_slices(item, at, faults)
    for name in item.get("env_from_secrets", {}):
        faults.unless(
            name not in item.get("env", {}),
            (*at, "env_from_secrets", name),
            f"`env` also sets {name}. Set it in only one of them.",
        )
    check_volumes(item, at, faults)
    check_containers(item, at, faults)


def _check_slices(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    """Check slices: pods that each stay inside one group (`engine.types.PodSetSpec`)."""
    size = amount(item, "slice_size", 0)
    if size < 1:
        return
    for name in ("count", "min_count"):
        number = amount(item, name, 1 if name == "count" else size)
        faults.unless(
            number % size == 0, (*at, "slice_size"), f"Must divide {name} ({number}) evenly."
        )
    faults.unless(
        bool(item.get("required_level")),
        (*at, "slice_size"),
        "Set `required_level` to the level within which each slice must stay.",
    )


def _check_shares(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    """Check the GPU amounts of one pod against each other."""
    gpus, milli = amount(item, "gpus", 0), amount(item, "gpu_milli", MILLI)
    memory = amount(item, "gpu_memory_mib", 0)
    faults.unless(
        milli == MILLI or gpus == 1,
        (*at, "gpu_milli"),
        f"Only a single GPU can be shared: set gpus to 1, or gpu_milli to {MILLI}.",
    )
    faults.unless(
        not memory or (gpus == 1 and milli == MILLI),
        (*at, "gpu_memory_mib"),
        f"A share by memory is a share of one GPU: leave gpus at 1 and gpu_milli at {MILLI}.",
    )


def amount(item: Mapping[str, Any], name: str, default: int) -> int:
    value: int = item.get(name, default)
    return value
