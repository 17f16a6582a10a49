"""Check the volumes of a pod set (`manifests.PodSettings`). Pure."""

import posixpath
from collections.abc import Mapping
from typing import Any

from scheduling.job_fields.faults import SLUG, SLUG_RULE, Faults
from scheduling.job_fields.values import check_name
from scheduling.kube.translate.manifests import OWN_VOLUMES, SHM_AT, VOLUME_SOURCES
from tenants.errors import Path


def check_volumes(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    used = {path: f"Kant's volume {name!r}" for name, path in OWN_VOLUMES.items()}
    if not item.get("shm_mib"):
        del used[SHM_AT]
    names: set[str] = set()
    for index, volume in enumerate(item.get("volumes", [])):
        here = (*at, "volumes", index)
        _check_source(volume, here, faults)
        name = volume["name"]
        faults.unless(bool(SLUG.fullmatch(name)), (*here, "name"), SLUG_RULE)
        faults.unless(
            name not in OWN_VOLUMES,
            (*here, "name"),
            f"Volumes called {' and '.join(OWN_VOLUMES)} are Kant's own. Choose another name.",
        )
        faults.unless(
            name not in names,
            (*here, "name"),
            f"Another volume of this pod set has the name {name!r}. Choose another name.",
        )
        names.add(name)
        _check_path(volume["mount_path"], name, used, (*here, "mount_path"), faults)


def _check_source(volume: Mapping[str, Any], at: Path, faults: Faults) -> None:
    kinds = [kind for kind in VOLUME_SOURCES if kind in volume]
    if len(kinds) != 1:
        text = ", ".join(VOLUME_SOURCES)
        faults.add(at, f"Give exactly one of {text}.")
        return
    check_name(volume[kinds[0]], (*at, kinds[0]), faults)
    faults.unless(
        kinds[0] == "persistent_volume_claim" or volume.get("read_only") is not False,
        (*at, "read_only"),
        "Config maps and secrets are always mounted read-only. Leave this out.",
    )


def _check_path(path: str, name: str, used: dict[str, str], at: Path, faults: Faults) -> None:
    """Check a mount path. `used`: what is mounted where; this path is added to it."""
    plain = posixpath.normpath(path)
    if not path.startswith("/") or plain in ("/", "//") or ":" in path or ".." in path.split("/"):
        text = "Must be an absolute path below /, without “..” and “:”, e.g. /data."
        faults.add(at, text)
        return
    faults.unless(
        plain not in used, at, f"{used.get(plain)} is mounted there. Choose another path."
    )
    used.setdefault(plain, f"Volume {name!r}")
