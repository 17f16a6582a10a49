"""Namespaces: creating those of Kant's pods, and the facts of all."""

from scheduling.kube.door.client import Client
from scheduling.kube.seam import NamespaceFacts
from scheduling.kube.translate.objects import KubeNamespace, encode


def namespace_facts(raw: KubeNamespace) -> NamespaceFacts:
    return NamespaceFacts(raw.metadata.name, raw.metadata.uid, raw.metadata.labels)


async def ensure_namespace(client: Client, name: str) -> None:
    """Create the namespace if it does not exist.

    Raises KubeError if the API server refuses, NoReply if it does not answer.
    """
    reply = await client.call("GET", f"/api/v1/namespaces/{name}")
    if reply.code == 404:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        reply = await client.call("POST", "/api/v1/namespaces", encode(body))
        if reply.code not in (201, 409):
            raise client.problem(reply, f"create the namespace {name}")
    elif reply.code != 200:
        raise client.problem(reply, f"read the namespace {name}")
