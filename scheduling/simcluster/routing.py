"""Maps paths to resources, and builds the discovery documents."""

from typing import Any, NamedTuple
from urllib.parse import unquote

from scheduling.simcluster.objects.kinds import GROUPS, KINDS, ResourceKind

GIT_VERSION = "v1.36.3"
VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": GIT_VERSION,
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}


class Target(NamedTuple):
    """The target of a request; empty `name` = the collection, empty `namespace` = all."""

    kind: ResourceKind
    namespace: str
    name: str
    subresource: str


_BY_PATH = {(k.path, k.plural): k for k in KINDS}


def route(path: str) -> Target | None:
    """Return the resource that a path names, or None."""
    if "%" in path:
        path = unquote(path)
    parts = path.strip("/").split("/")
    size = 2 if parts[0] == "api" else 3
    base, rest = "/" + "/".join(parts[:size]), parts[size:]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3 or "" in rest:
        return None
    kind = _BY_PATH.get((base, rest[0]))
    if kind is None or (namespace and not kind.namespaced):
        return None
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in kind.subresources:
        return None
    if name and kind.namespaced and not namespace:
        return None
    return Target(kind, namespace, name, subresource)


def known_group(path: str) -> bool:
    """Whether a path lies in a served group version."""
    return any(path.startswith(f"{k.path}/") for k in KINDS)


_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def _resources(group: str, version: str) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for k in KINDS:
        if (k.group, k.version) != (group, version):
            continue
        out.append(
            {
                "name": k.plural,
                "singularName": k.kind.lower(),
                "namespaced": k.namespaced,
                "kind": k.kind,
                "verbs": _VERBS,
                "shortNames": list(k.short_names),
            }
        )
        for sub in k.subresources:
            entry: dict[str, Any] = {
                "name": f"{k.plural}/{sub}",
                "singularName": "",
                "namespaced": k.namespaced,
                "kind": {"binding": "Binding", "eviction": "Eviction"}.get(sub, k.kind),
                "verbs": {"status": ["get", "patch", "update"], "log": ["get"]}.get(
                    sub, ["create"]
                ),
            }
            if sub == "eviction":
                entry |= {"group": "policy", "version": "v1"}
            out.append(entry)
    return out


def discovery(path: str) -> dict[str, Any] | None:
    """Return the discovery document at `path`, or None."""
    path = path.rstrip("/")
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(name) for name in dict.fromkeys(g for g, _ in GROUPS)],
        }
    for group, version in (("", "v1"), *GROUPS):
        base = f"/apis/{group}" if group else "/api"
        if path == f"{base}/{version}":
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{group}/{version}" if group else version,
                "resources": _resources(group, version),
            }
        if group and path == base:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
    return None


def _group(group: str) -> dict[str, Any]:
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version}
        for name, version in GROUPS
        if name == group
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}
