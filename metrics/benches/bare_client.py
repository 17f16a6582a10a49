"""What a client without any scheduler achieves: create and bind, many in flight.

The yardstick of `manage.py bench binds`: it makes the same calls to the same server as Kant, with
no queue, decisions, records or watch.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec

from scheduling.kube.door.config import load_endpoint
from scheduling.kube.door.loop import DoorLoop

IN_FLIGHT = 32


class BarePod(NamedTuple):
    """A pod to create (its name is in the manifest), and the node to bind it to."""

    manifest: Mapping[str, Any]
    node: str
    annotations: Mapping[str, str]


class BareRate(NamedTuple):
    pods: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.pods / self.seconds


def create_and_bind(access: Mapping[str, Any], pods: Sequence[BarePod]) -> BareRate:
    """Create and bind all pods, 32 in flight; raise RuntimeError at the first answer other than
    201. `access` is a `Cluster.access`; the namespaces must exist."""
    with asyncio.Runner(loop_factory=DoorLoop) as runner:
        return runner.run(_run(access, pods))


def create(access: Mapping[str, Any], manifests: Sequence[Mapping[str, Any]]) -> None:
    """Create all pods in order, 32 in flight; raise as `create_and_bind`."""
    with asyncio.Runner(loop_factory=DoorLoop) as runner:
        runner.run(_in_flight(access, manifests, _create))


T = TypeVar("T")
Call = Callable[[aiohttp.ClientSession, str, T], Awaitable[Any]]


async def _run(access: Mapping[str, Any], pods: Sequence[BarePod]) -> BareRate:
    return BareRate(len(pods), await _in_flight(access, pods, _one))


async def _in_flight(access: Mapping[str, Any], pods: Sequence[T], call: Call[T]) -> float:
    """Return the seconds until all calls are answered."""
    endpoint = load_endpoint(access)
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if authorization := endpoint.authorization():
        headers["Authorization"] = authorization
    connector = aiohttp.TCPConnector(limit=0, ssl=endpoint.tls or True)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        waiting = iter(pods)

        async def worker() -> None:
            for pod in waiting:
                await call(session, endpoint.server, pod)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(worker())
        return time.perf_counter() - started


async def _create(session: aiohttp.ClientSession, server: str, manifest: Mapping[str, Any]) -> Any:
    collection = f"{server}/api/v1/namespaces/{manifest['metadata']['namespace']}/pods"
    return await _post(session, collection, manifest)


async def _one(session: aiohttp.ClientSession, server: str, pod: BarePod) -> None:
    meta = pod.manifest["metadata"]
    namespace, name = meta["namespace"], meta["name"]
    created = await _create(session, server, pod.manifest)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": created["metadata"]["uid"],
            "annotations": pod.annotations,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": pod.node},
    }
    await _post(session, f"{server}/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)


async def _post(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> Any:
    async with session.post(url, data=msgspec.json.encode(body)) as response:
        text = await response.read()
        if response.status != 201:
            raise RuntimeError(f"POST {url}: {response.status} {text[:300]!r}")
        return msgspec.json.decode(text)
