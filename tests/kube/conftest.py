"""Fixtures of the contract suite: both servers, a namespace per test, a gateway to use."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metrics.benches.apiserver import ServerUnavailable, programs
from scheduling.kube.door.gateway import Gateway
from scheduling.kube.door.watch import WatchTimes
from scheduling.kube.seam import EffectDone, NodeSeen, Observation, PodGone, PodSeen
from tests.kube.api import eventually
from tests.kube.servers import EmbeddedServer, KubeApiServer, Server
from tests.requirements import missing

QUICK = WatchTimes(watch=(2, 3), first=0.02, last=0.2)


@pytest.fixture(scope="package")
def embedded_server(tmp_path_factory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path_factory.mktemp("embedded"))
    yield server
    server.close()


@pytest.fixture(scope="package")
def kube_apiserver(tmp_path_factory) -> Iterator[KubeApiServer]:
    try:
        programs(build=False)
    except ServerUnavailable as error:
        missing("a real kube-apiserver", str(error))
    server = KubeApiServer(tmp_path_factory.mktemp("apiserver"))
    yield server
    server.close()


@pytest.fixture(
    params=["embedded", pytest.param("kube-apiserver", marks=pytest.mark.apiserver)],
)
def server(request) -> Server:
    """Run each test of the contract suite against both servers."""
    name = "embedded_server" if request.param == "embedded" else "kube_apiserver"
    return request.getfixturevalue(name)


_numbers = itertools.count(1)


class Place:
    """A namespace, a scheduler name and node names that no other test uses."""

    def __init__(self, server: Server) -> None:
        self.number = next(_numbers)
        self.namespace = f"test-{self.number}"
        self.scheduler = f"kant-{self.number}"
        self.node = f"node-{self.number}"
        self.server = server
        self.api = server.api
        self.api.ok(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}},
        )

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def manifest(self, name: str, **spec: Any) -> dict[str, Any]:
        """Return a pod of this test's scheduler."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {"kant.io/job": f"job-{self.number}"},
            },
            "spec": {
                "schedulerName": self.scheduler,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "10m"}}}
                ],
                **spec,
            },
        }

    def make_pod(self, name: str, **spec: Any) -> dict[str, Any]:
        return self.api.ok("POST", self.pods, self.manifest(name, **spec))

    def get(self, name: str) -> dict[str, Any]:
        return self.api.ok("GET", f"{self.pods}/{name}")

    def bind(self, name: str, node: str, **annotations: str) -> Any:
        meta = {"name": name, "annotations": annotations}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        return self.api.ok("POST", f"{self.pods}/{name}/binding", body)

    def make_node(self, name: str = "", **parts: Any) -> dict[str, Any]:
        """Make a ready node with 8 GPUs; `labels`, `annotations`, `spec`, `allocatable` on
        request."""
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
        name = name or self.node
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                    "nvidia.com/gpu.count": "8",
                    **parts.get("labels", {}),
                },
                "annotations": parts.get("annotations", {}),
            },
            "spec": parts.get("spec", {}),
            "status": {
                "capacity": amounts,
                "allocatable": {**amounts, **parts.get("allocatable", {})},
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "reason": "KubeletReady",
                        "message": "",
                        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ],
            },
        }
        return self.api.ok("POST", "/api/v1/nodes", body)


@pytest.fixture
def place(server) -> Iterator[Place]:
    place = Place(server)
    yield place
    for node in server.api.ok("GET", "/api/v1/nodes")["items"]:
        if node["metadata"]["name"].startswith(place.node):
            server.api.call("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")


class Door:
    """A gateway under test, and everything it has reported so far."""

    def __init__(self, gateway: Gateway, namespace: str) -> None:
        self.gateway = gateway
        self._namespace = namespace
        self.seen: list[Observation] = []

    def until(self, wanted: Callable[[Observation], Any], timeout: float = 60.0) -> Observation:
        """Return the first observation, past ones included, for which `wanted` holds."""
        tried = 0

        def look() -> Observation | None:
            nonlocal tried
            self.seen += self.gateway.drain()
            fresh, tried = self.seen[tried:], len(self.seen)
            return next((each for each in fresh if wanted(each)), None)

        return eventually(look, timeout)

    def until_seen(self, kind: type, name: str, timeout: float = 60.0, **fields: Any) -> Any:
        """Return the first PodSeen, PodGone, NodeSeen or NodeGone of that name (in this test's
        namespace) whose pod or node has those fields."""

        def wanted(each: Observation) -> bool:
            if not isinstance(each, kind):
                return False
            match each:
                case PodSeen(pod=thing) | PodGone(pod=thing):
                    if thing.namespace != self._namespace:
                        return False
                case NodeSeen(facts=facts):
                    thing = facts.node
                case _:
                    thing = each
            return thing.name == name and all(
                getattr(thing, field) == value for field, value in fields.items()
            )

        return self.until(wanted, timeout)

    def carry_out(self, *effects: Any, timeout: float = 60.0) -> list[Any]:
        """Submit the effects and return their outcomes in the same order."""
        self.gateway.submit(effects)
        return [self.outcome(each, timeout) for each in effects]

    def outcome(self, effect: Any, timeout: float = 60.0) -> Any:
        done = self.until(
            lambda each: isinstance(each, EffectDone) and each.effect.key == effect.key, timeout
        )
        return done.outcome

    def forget(self) -> None:
        """Consider only what arrives from now on."""
        self.gateway.drain()
        self.seen.clear()


@pytest.fixture
def open_door(place) -> Iterator[Callable[..., Door]]:
    """Open gateways (optionally through a proxy's port) and end them after the test."""
    gateways: list[Gateway] = []

    def opened(*, port: int | None = None, sync: bool = True, **options: Any) -> Door:
        arguments = {
            "access": place.server.access(port=port),
            "namespace": place.namespace,
            "label_map": {},
            "scheduler_name": place.scheduler,
            "times": QUICK,
            **options,
        }
        gateway = Gateway(arguments.pop("access"), **arguments)
        gateways.append(gateway)
        gateway.start()
        if sync:
            gateway.wait_synced(60)
        return Door(gateway, place.namespace)

    yield opened
    for gateway in gateways:
        gateway.stop()


@pytest.fixture
def door(open_door) -> Door:
    return open_door()
