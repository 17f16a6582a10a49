"""`python -m tests.kube.recorded CONTROLLER SOURCE [WORKLOAD ...]`: run a controller on a real API
server, submit workloads to it, and record what it makes, next to this file.

SOURCE is a checkout of the controller, or its module in Go's cache (`go mod download -json
MODULE@VERSION` prints the folder). If it makes objects of another controller, start that one with
`--beside CONTROLLER SOURCE`.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from metrics.benches.apiserver import ApiServer
from tests.kube.api import Api
from tests.kube.recorded import FOLDER
from tests.kube.recorded.controllers import CONTROLLERS, running
from tests.kube.recorded.workloads import WORKLOADS

NAMESPACE = "team-a"
QUIET_S = 5.0  # a workload is complete this long after its last pod
WITHIN_S = 120.0
LEFT_OUT = {
    *("managedFields", "resourceVersion", "creationTimestamp", "startTime", "lastTransitionTime"),
    *("lastProbeTime", "lastUpdateTime", "lastReconcileTime"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kube.recorded", description=__doc__)
    parser.add_argument("controller", choices=CONTROLLERS)
    parser.add_argument("source", type=Path)
    parser.add_argument("workload", nargs="*", help="default: all of the controller")
    parser.add_argument("--beside", nargs=2, action="append", default=[], metavar="NAME")
    given = parser.parse_args()
    names = given.workload or [n for n, w in WORKLOADS.items() if w.controller == given.controller]
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder) / "server") as server:
        server.start_controllers()
        api = Api(server.url, "admin-token", str(server.ca_file))
        api.ok("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        with contextlib.ExitStack() as stack:
            both = [*given.beside, (given.controller, given.source)]
            for one, source in both:
                run = running(one, Path(source), Path(folder) / one, server, api)
                stack.enter_context(run)
            for name in names:
                record(name, f"{given.controller} {version(given.source)}", api)
    return 0


def version(source: Path) -> str:
    """Return the version: from the folder name of a module in Go's cache, from git for a
    checkout."""
    if "@" in source.name:
        return source.name.split("@")[1]
    asked = ["git", "-C", str(source), "describe", "--tags", "--always"]
    return subprocess.check_output(asked, text=True).strip()


def record(name: str, controller: str, api: Api) -> None:
    workload = WORKLOADS[name]
    before = {pod["metadata"]["uid"] for pod in pods(api)}
    for document in workload.documents:
        kind = document["kind"]
        path = f"/apis/{document['apiVersion']}/namespaces/{NAMESPACE}/{kind.lower()}s"
        api.ok("POST", path, document)
    deadline, found, since = time.monotonic() + WITHIN_S, 0, time.monotonic()
    while time.monotonic() < deadline:
        made = [pod for pod in pods(api) if pod["metadata"]["uid"] not in before]
        if len(made) != found:
            found, since = len(made), time.monotonic()
        if found == workload.pods and time.monotonic() > since + QUIET_S:
            break
        time.sleep(0.5)
    else:
        raise SystemExit(f"{name}: {found} pods instead of {workload.pods}")
    owners = {}
    for pod in made:
        follow(pod, owners, api)
    document = {
        "controller": controller,
        "owners": [plain(owner) for owner in owners.values()],
        "pods": [plain(pod) for pod in sorted(made, key=lambda pod: pod["metadata"]["name"])],
    }
    text = yaml.safe_dump(document, default_flow_style=None, width=100)
    (FOLDER / f"{name}.yaml").write_text(text)
    print(f"{name}: {found} pods, {len(owners)} owners", file=sys.stderr)


def pods(api: Api) -> list[dict[str, Any]]:
    return list(api.ok("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"])


def follow(of: dict[str, Any], found: dict[str, dict[str, Any]], api: Api) -> None:
    for reference in of["metadata"].get("ownerReferences", []):
        kind, version_, name = (reference[key] for key in ("kind", "apiVersion", "name"))
        if reference["uid"] in found:
            continue
        group = "/api" if version_ == "v1" else "/apis"
        path = f"{group}/{version_}/namespaces/{NAMESPACE}/{kind.lower()}s/{name}"
        found[reference["uid"]] = {"apiVersion": version_, "kind": kind, **api.ok("GET", path)}
        follow(found[reference["uid"]], found, api)


def plain(found: Any) -> Any:
    """Drop what differs between runs, and pod templates, whose content is in their pods."""
    if isinstance(found, list):
        return [plain(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {
        key: plain(value)
        for key, value in found.items()
        if key not in LEFT_OUT and not (isinstance(value, dict) and is_pod_template(value))
    }


def is_pod_template(found: dict[str, Any]) -> bool:
    return "containers" in found.get("spec", ())


if __name__ == "__main__":
    sys.exit(main())
