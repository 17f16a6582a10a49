"""Check the init containers and sidecars of a pod. Pure."""

from collections.abc import Mapping
from typing import Any

from scheduling.job_fields.faults import SLUG, SLUG_RULE, Faults
from scheduling.job_fields.values import check_image
from scheduling.kube.translate.manifests import MAIN
from tenants.errors import Path

FIELDS = ("init_containers", "sidecars")
AMOUNTS = {"cpu_milli": "millicores of CPU", "memory_mib": "MiB of memory"}


def check_containers(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    names = {MAIN}
    for field in FIELDS:
        for index, container in enumerate(item.get(field, ())):
            here = (*at, field, index)
            name = container["name"]
            faults.unless(bool(SLUG.fullmatch(name)), (*here, "name"), SLUG_RULE)
            faults.unless(
                name not in names,
                (*here, "name"),
                f"Another container of the pod has the name {name!r}. Choose another name.",
            )
            names.add(name)
            check_image(container["image"], (*here, "image"), faults)
            for amount, unit in AMOUNTS.items():
                _check_part(item, container.get(amount, 0), amount, unit, (*here, amount), faults)
    for amount, unit in AMOUNTS.items():
        beside = sum(each.get(amount, 0) for each in item.get("sidecars", ()))
        _check_part(item, beside, amount, f"{unit} together", (*at, "sidecars"), faults)


def _check_part(
    item: Mapping[str, Any], part: int, amount: str, unit: str, at: Path, faults: Faults
) -> None:
    """Check that containers' amounts fit within the pod's. Only the pod's are counted."""
    whole = item.get(amount, 0)
    faults.unless(
        part <= whole,
        at,
        f"{part} {unit} are more than the {whole} that the pod asks for. Raise `{amount}` of the "
        "pod; its containers share it.",
    )
