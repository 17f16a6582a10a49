"""The controllers whose pods are recorded: how each is built, and what it needs to run."""

import base64
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from metrics.benches.apiserver import ApiServer, free_ports
from tests.kube.api import Api, eventually

SETTLES_S = 5.0
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Programs with a cert-controller look here for what a kubelet would mount.
MOUNTED = Path("/tmp/k8s-webhook-server/serving-certs")


class Rotated(NamedTuple):
    """Certificates that the controller makes itself. It fills a Secret and a webhook configuration,
    both of which must exist."""

    namespace: str
    secret: str
    configuration: str


class Controller(NamedTuple):
    """`crds`: a glob in the source. `flags` may name {config}, {kubeconfig}, and the ports
    {webhook}, {metrics} and {probe}. `config`: the content of the file {config}, besides ports and
    certificates. `webhooks`: a file in the source."""

    package: str
    crds: str
    flags: tuple[str, ...]
    config: dict[str, Any] = {}
    webhooks: str = ""
    rotated: Rotated | None = None


OF_CONTROLLER_RUNTIME = (
    "--metrics-bind-address=127.0.0.1:{metrics}",
    "--health-probe-bind-address=127.0.0.1:{probe}",
    "--webhook-server-port={webhook}",
)
CONTROLLERS = {
    "jobset": Controller(
        *(".", "config/components/crd/bases/*_*.yaml", ("--config={config}",)),
        config={"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"},
        webhooks="config/components/webhook/manifests.yaml",
    ),
    "lws": Controller(
        *("./cmd", "config/crd/bases/*_*.yaml", ("--config={config}",)),
        config={"apiVersion": "config.lws.x-k8s.io/v1alpha1", "kind": "Configuration"},
        webhooks="config/webhook/manifests.yaml",
    ),
    "training-operator": Controller(
        *("./cmd/training-operator.v1", "manifests/base/crds/*_*.yaml", OF_CONTROLLER_RUNTIME),
        rotated=Rotated(
            *("kubeflow", "training-operator-webhook-cert"),
            configuration="validator.training-operator.kubeflow.org",
        ),
    ),
    "trainer": Controller(
        *("./cmd/trainer-controller-manager", "manifests/base/crds/*_*.yaml"),
        flags=OF_CONTROLLER_RUNTIME,
        rotated=Rotated(
            *("kubeflow-system", "kubeflow-trainer-webhook-cert"),
            configuration="validator.trainer.kubeflow.org",
        ),
    ),
    "mpi-operator": Controller(
        *("./cmd/mpi-operator", "manifests/base/*_mpijobs.yaml"),
        flags=("-kubeConfig={kubeconfig}", "-lock-namespace=default"),
    ),
    "kuberay": Controller(
        *(".", "config/crd/bases/*_*.yaml"),
        flags=(
            *("--enable-leader-election=false", "--metrics-addr=127.0.0.1:{metrics}"),
            "--health-probe-bind-address=127.0.0.1:{probe}",
        ),
    ),
}


@contextlib.contextmanager
def running(name: str, source: Path, folder: Path, server: ApiServer, api: Api) -> Iterator[None]:
    """Build the controller and run it, with its kinds and its webhooks in the API server."""
    its = CONTROLLERS[name]
    folder.mkdir()
    program = folder / name
    print(f"Building {name} ...", file=sys.stderr)
    command = ["go", "build", "-buildvcs=false", "-o", str(program), its.package]
    subprocess.run(command, cwd=source, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
    for path in sorted(source.glob(its.crds)):
        for document in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader):
            _define(document, api)
    [webhook, metrics, probe] = free_ports(3)
    certificates = folder / "certificates"
    authority = self_signed(certificates)
    if its.rotated is not None:
        _make_room(its.rotated, certificates, api)
    config = {
        **its.config,
        "webhook": {"port": webhook, "certDir": str(certificates)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probe}"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    kubeconfig = str(server.kubeconfig("admin"))
    named = {"config": folder / "config.yaml", "kubeconfig": kubeconfig}
    ports = {"webhook": webhook, "metrics": metrics, "probe": probe}
    flags = [flag.format(**named, **ports) for flag in its.flags]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            *([str(program), *flags],),
            env={**os.environ, "KUBECONFIG": kubeconfig},
            stdout=log,
            stderr=log,
        )
    try:
        time.sleep(SETTLES_S)
        if its.webhooks:
            _register(
                yaml.safe_load_all((source / its.webhooks).read_text()), webhook, authority, api
            )
        if process.poll() is not None:
            raise SystemExit(f"{name} ended at once")
        yield
    except BaseException:
        print((folder / "log").read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        process.kill()
        process.wait()


def _define(document: dict[str, Any], api: Api) -> None:
    """Define the kind, and wait until it is served: some controllers look once."""
    made = api.ok("POST", DEFINITIONS, document)
    of = made["spec"]
    for version in of["versions"]:
        served = f"/apis/{of['group']}/{version['name']}/{of['names']['plural']}"
        eventually(lambda path=served: api.call("GET", path).code == 200, 30)


def _register(documents: Iterator[dict[str, Any]], port: int, authority: str, api: Api) -> None:
    for document in documents:
        for hook in document["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            url = f"https://127.0.0.1:{port}{path}"
            hook["clientConfig"] = {"url": url, "caBundle": authority}
        plural = document["kind"].lower() + "s"
        api.ok("POST", f"/apis/admissionregistration.k8s.io/v1/{plural}", document)


def _make_room(rotated: Rotated, certificates: Path, api: Api) -> None:
    """Create the objects that the controller fills. Its webhooks only reject invalid objects, so
    one that is never called will do."""
    api.ok("POST", "/api/v1/namespaces", {"metadata": {"name": rotated.namespace}})
    secret = {"metadata": {"name": rotated.secret}}
    api.ok("POST", f"/api/v1/namespaces/{rotated.namespace}/secrets", secret)
    hook = {
        "name": rotated.configuration,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    document = {"metadata": {"name": rotated.configuration}, "webhooks": [hook]}
    plural = "validatingwebhookconfigurations"
    api.ok("POST", f"/apis/admissionregistration.k8s.io/v1/{plural}", document)
    MOUNTED.mkdir(parents=True, exist_ok=True)
    for path in certificates.iterdir():
        (MOUNTED / path.name).write_bytes(path.read_bytes())


def self_signed(folder: Path) -> str:
    """Write a certificate for 127.0.0.1 to the folder; return the CA that trusts it, as base64."""
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
