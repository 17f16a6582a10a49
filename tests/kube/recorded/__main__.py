"""`python -m tests.kube.recorded CONTROLLER SOURCE [WORKLOAD ...]`: run a controller beside a real
API server, submit workloads to it, and write what it makes beside this file.

SOURCE is a checkout of the controller, or its module in Go's cache
(`go mod download -json MODULE@VERSION` prints the folder).
"""

import argparse
import base64
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from metrics.benches.apiserver import ApiServer, free_ports
from tests.kube.api import Api
from tests.kube.recorded import FOLDER
from tests.kube.recorded.workloads import WORKLOADS

NAMESPACE = "team-a"
QUIET_S = 5.0  # so long after its last pod a workload is taken for complete
WITHIN_S = 120.0
LEFT_OUT = {
    *("managedFields", "resourceVersion", "creationTimestamp", "startTime", "lastTransitionTime"),
    *("lastProbeTime", "lastUpdateTime", "lastReconcileTime"),
}


class Controller(NamedTuple):
    package: str
    crds: str  # a folder of the source
    webhooks: str  # a file of the source
    config: dict[str, Any]  # for --config; its ports and certificates are filled in


CONTROLLERS = {
    "jobset": Controller(
        *(".", "config/components/crd/bases", "config/components/webhook/manifests.yaml"),
        config={"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"},
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kube.recorded", description=__doc__)
    parser.add_argument("controller", choices=CONTROLLERS)
    parser.add_argument("source", type=Path)
    parser.add_argument("workload", nargs="*", help="default: all of the controller")
    given = parser.parse_args()
    names = given.workload or [n for n, w in WORKLOADS.items() if w.controller == given.controller]
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder) / "server") as server:
        server.start_controllers()
        api = Api(server.url, "admin-token", str(server.ca_file))
        api.ok("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        with running(given.controller, given.source, Path(folder), server, api):
            for name in names:
                record(name, f"{given.controller} {version(given.source)}", api)
    return 0


def version(source: Path) -> str:
    """Of a module in Go's cache as its folder says, of a checkout as git does."""
    if "@" in source.name:
        return source.name.split("@")[1]
    asked = ["git", "-C", str(source), "describe", "--tags", "--always"]
    return subprocess.check_output(asked, text=True).strip()


@contextlib.contextmanager
def running(name: str, source: Path, folder: Path, server: ApiServer, api: Api) -> Iterator[None]:
    """Build the controller and run it, with its kinds and its webhooks in the API server."""
    its = CONTROLLERS[name]
    program = folder / name
    print(f"Building {name} ...", file=sys.stderr)
    command = ["go", "build", "-buildvcs=false", "-o", str(program), its.package]
    subprocess.run(command, cwd=source, check=True)
    for path in sorted((source / its.crds).glob("*_*.yaml")):
        document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        api.ok("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
    [webhook, metrics, probe] = free_ports(3)
    certificates = folder / "certificates"
    authority = self_signed(certificates)
    config = {
        **its.config,
        "webhook": {"port": webhook, "certDir": str(certificates)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probe}"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    flags = [f"--config={folder / 'config.yaml'}"]
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig("admin"))}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(program), *flags], env=environment, stdout=log, stderr=log)
    try:
        time.sleep(QUIET_S)
        for document in yaml.safe_load_all((source / its.webhooks).read_text()):
            for hook in document["webhooks"]:
                path = hook["clientConfig"].pop("service")["path"]
                url = f"https://127.0.0.1:{webhook}{path}"
                hook["clientConfig"] = {"url": url, "caBundle": authority}
            plural = document["kind"].lower() + "s"
            api.ok("POST", f"/apis/admissionregistration.k8s.io/v1/{plural}", document)
        yield
    except BaseException:
        print((folder / "log").read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        process.kill()
        process.wait()


def self_signed(folder: Path) -> str:
    """A certificate for 127.0.0.1 in the folder; what trusts it, as base64."""
    folder.mkdir()
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")),
        ],
        check=True,
        capture_output=True,
    )
    return base64.b64encode((folder / "tls.crt").read_bytes()).decode()


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
    """Without what is another in each run, and pods' templates, which stand in their pods."""
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
