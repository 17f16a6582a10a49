"""How a pod's containers run: security context, init containers, sidecars and probes.

This module checks what Kubernetes requires of single values. Rules between values are in
`services.jobs.container_spec`, restrictions by clusters in `services.jobs.permitted`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from scheduling.job_fields.faults import Faults
from scheduling.job_fields.parts import Kind
from tenants import texts
from tenants.errors import Path

MAX_CONTAINERS = 16
MAX_ID = 2**31 - 1
PROBES = ("startup", "liveness", "readiness")
SECCOMP = ("RuntimeDefault", "Unconfined")
CAPABILITY = re.compile(r"[A-Z][A-Z_]{0,62}")

Id = Annotated[int, Meta(ge=0, le=MAX_ID)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Period = Annotated[int, Meta(ge=1, le=86400)]
Delay = Annotated[int, Meta(ge=0, le=86400)]
Capability = Annotated[str, Meta(min_length=1, max_length=63)]
Capabilities = Annotated[list[Capability], Meta(max_length=64)]
Groups = Annotated[list[Id], Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=65536)]
Command = Annotated[list[Text], Meta(max_length=256)]


class SecurityDocument(Struct, frozen=True, kw_only=True):
    """The user and the rights of the containers; unset fields are up to the image or namespace.

    `restricted`: everything that the Pod Security Standard of that name requires.
    """

    restricted: bool | None = None
    run_as_user: Id | None = None
    run_as_group: Id | None = None
    run_as_non_root: bool | None = None
    fs_group: Id | None = None
    supplemental_groups: Groups | None = None
    read_only_root_filesystem: bool | None = None
    allow_privilege_escalation: bool | None = None
    privileged: bool | None = None
    add_capabilities: Capabilities | None = None
    drop_capabilities: Capabilities | None = None
    seccomp: Annotated[str, Meta(max_length=32)] | None = None


class ContainerDocument(Struct, frozen=True, kw_only=True):
    """A container beside the program, with the program's volumes, variables and rights.

    Its `cpu_milli` and `memory_mib` are part of what the pod asks for.
    """

    name: Annotated[str, Meta(min_length=1, max_length=63)]
    image: Annotated[str, Meta(min_length=1, max_length=500)]
    command: Command | None = None
    cpu_milli: Annotated[int, Meta(ge=0, le=10**8)] | None = None
    memory_mib: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class ProbeDocument(Struct, frozen=True, kw_only=True):
    """A probe: a `command` that ends with 0, or a `port` that accepts connections.

    With `http_path`, the port has to answer with status 200 to 399. Times are in seconds; unset
    fields have the defaults of Kubernetes.
    """

    command: Command | None = None
    port: Port | None = None
    http_path: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    delay_s: Delay | None = None
    period_s: Period | None = None
    timeout_s: Period | None = None
    failures: Annotated[int, Meta(ge=1, le=10000)] | None = None


def _security(given: Mapping[str, Any], at: Path, faults: Faults) -> None:
    for field in ("add_capabilities", "drop_capabilities"):
        for index, name in enumerate(given.get(field, ())):
            good = bool(CAPABILITY.fullmatch(name)) and not name.startswith("CAP_")
            told = "Not a capability. Write it without CAP_, as Kubernetes does: IPC_LOCK, ALL."
            faults.unless(good, (*at, field, index), told)
    if (seccomp := given.get("seccomp")) is not None:
        faults.unless(seccomp in SECCOMP, (*at, "seccomp"), texts.one_of(", ".join(SECCOMP)))
    if given.get("restricted"):
        for field, wanted in RESTRICTED.items():
            faults.unless(
                given.get(field, wanted) == wanted,
                (*at, field),
                "`restricted` requires a different value. Leave one of them out.",
            )
    as_root = given.get("run_as_user") == 0
    non_root = given.get("run_as_non_root") or given.get("restricted")
    faults.unless(
        not (as_root and non_root),
        (*at, "run_as_user"),
        "0 is root, and the pods must not run as root. Give another user.",
    )


def _probes(given: Mapping[str, Mapping[str, Any]], at: Path, faults: Faults) -> None:
    for name, probe in given.items():
        here = (*at, name)
        faults.unless(name in PROBES, here, texts.one_of(", ".join(PROBES)))
        faults.unless(
            ("command" in probe) != ("port" in probe), here, "Give exactly one of command, port."
        )
        if (path := probe.get("http_path")) is not None:
            faults.unless("port" in probe, (*here, "http_path"), "Give the port to probe.")
            faults.unless(path.startswith("/"), (*here, "http_path"), "Must begin with /.")


def _as_given(value: Any) -> Any:
    """Return a value without unset fields: a row holds no more than its document."""
    if isinstance(value, Struct):
        given = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: each for name, each in given if each is not None}
    return value


# The fields that `restricted` stands for.
RESTRICTED: Mapping[str, Any] = {
    "run_as_non_root": True,
    "allow_privilege_escalation": False,
    "privileged": False,
    "drop_capabilities": ["ALL"],
    "seccomp": "RuntimeDefault",
}


def meant(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a security context with `restricted` expanded."""
    return {**RESTRICTED, **given} if given.get("restricted") else given


SECURITY = Kind(check=_security, stored=_as_given)
PROBED = Kind(check=_probes)
