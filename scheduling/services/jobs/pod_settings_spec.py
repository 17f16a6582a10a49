"""What a pod set uses of its namespace (`manifests.PodSettings`), and what can be wrong. Pure.

Whether what is named exists is for Kubernetes to say: it may be made after the job.
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from scheduling.kube.translate.manifests import OWN_VOLUMES, SHM_AT, VOLUME_SOURCES, PodSettings
from scheduling.services.common.faults import DNS, SLUG, SLUG_RULE, Faults
from tenants.errors import Path

# Names of fields in a pod set; `shm_mib` is among its amounts.
SETTINGS = ("service_account", "image_pull_secrets", "volumes", "env_from_secrets")
MAX_PULL_SECRETS = 16
MAX_VOLUMES = 32
MAX_ENV_FROM_SECRETS = 256
NAME_LENGTH = 253
PATH_LENGTH = 1024
NAME_RULE = "Not a name of Kubernetes: lower-case letters, digits, “-” and “.”, at most 253."
SECRET_KEY = re.compile(r"(?!\.\.?\Z)(?!\.\.)[-._A-Za-z0-9]{1,253}")


def check_pod_settings(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    _check_name(item.get("service_account", ""), (*at, "service_account"), faults, optional=True)
    pull = item.get("image_pull_secrets", [])
    for index, name in enumerate(pull):
        here = (*at, "image_pull_secrets", index)
        _check_name(name, here, faults)
        faults.unless(name not in pull[:index], here, f"{name!r} is named twice.")
    _check_env(item, at, faults)
    used = {path: f"Kant's volume {name!r}" for name, path in OWN_VOLUMES.items()}
    if not item.get("shm_mib"):
        del used[SHM_AT]
    names: set[str] = set()
    for index, each in enumerate(item.get("volumes", [])):
        volume, here = _given(each), (*at, "volumes", index)
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
            f"Another volume of this pod set is called {name!r}. Names differ within a pod set.",
        )
        names.add(name)
        _check_path(volume["mount_path"], name, used, (*here, "mount_path"), faults)


def pod_settings(item: Mapping[str, Any]) -> PodSettings:
    return PodSettings(
        service_account=item.get("service_account", ""),
        image_pull_secrets=tuple(item.get("image_pull_secrets", ())),
        shm_mib=item.get("shm_mib", 0),
        volumes=tuple(_volume(_given(each)) for each in item.get("volumes", ())),
        env_from_secrets={n: dict(s) for n, s in item.get("env_from_secrets", {}).items()},
    )


def _volume(given: Mapping[str, Any]) -> dict[str, Any]:
    read_only = given.get("read_only", "persistent_volume_claim" not in given)
    return {**given, "read_only": read_only}


def _given(volume: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in volume.items() if value is not None}


def _check_name(name: str, at: Path, faults: Faults, *, optional: bool = False) -> None:
    faults.unless(bool(DNS.fullmatch(name)) or (optional and not name), at, NAME_RULE)


def _check_env(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    found = item.get("env_from_secrets", {})
    faults.unless(
        len(found) <= MAX_ENV_FROM_SECRETS,
        (*at, "env_from_secrets"),
        f"At most {MAX_ENV_FROM_SECRETS} variables.",
    )
    for name, source in found.items():
        here = (*at, "env_from_secrets", name)
        _check_name(source["secret"], (*here, "secret"), faults)
        faults.unless(
            bool(SECRET_KEY.fullmatch(source["key"])),
            (*here, "key"),
            "Not a key of a secret: letters, digits, “-”, “_” and “.”, at most 253.",
        )
        faults.unless(
            name not in item.get("env", {}), here, f"`env` sets {name} too. Set it in one of them."
        )


def _check_source(volume: Mapping[str, Any], at: Path, faults: Faults) -> None:
    kinds = [kind for kind in VOLUME_SOURCES if kind in volume]
    if len(kinds) != 1:
        text = ", ".join(VOLUME_SOURCES)
        faults.add(at, f"Give exactly one of {text}.")
        return
    _check_name(volume[kinds[0]], (*at, kinds[0]), faults)
    faults.unless(
        kinds[0] == "persistent_volume_claim" or volume.get("read_only") is not False,
        (*at, "read_only"),
        "A config map or secret is mounted read-only. Leave it out.",
    )


def _check_path(path: str, name: str, used: dict[str, str], at: Path, faults: Faults) -> None:
    """`used`: what is mounted where already; this one is added to it."""
    plain = posixpath.normpath(path)
    if not path.startswith("/") or plain in ("/", "//") or ":" in path or ".." in path.split("/"):
        text = "Must be an absolute path below /, without “..” and “:”, e.g. /data."
        faults.add(at, text)
        return
    faults.unless(
        plain not in used, at, f"{used.get(plain)} is mounted there. Choose another path."
    )
    used.setdefault(plain, f"Volume {name!r}")
