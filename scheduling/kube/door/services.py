"""The headless Services by which a job's pods find each other: read, created and deleted.

A cluster's DNS server gives an address to each pod with a host name and this Service as its
subdomain. Source: Kubernetes, "DNS for Services and Pods".
"""

import re

import msgspec

from scheduling.kube.door.client import Client, Reply
from scheduling.kube.door.requests import (
    Judge,
    Look,
    Request,
    created,
    gone_or_refused,
    looking,
    refused_to_create,
)
from scheduling.kube.seam import CallOutcome, CreateService, DeleteService, Result, ServiceFacts
from scheduling.kube.translate.manifests import JOB, subdomain
from scheduling.kube.translate.objects import KubeService, encode

JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_service = msgspec.json.Decoder(KubeService)


def service_facts(raw: KubeService) -> ServiceFacts:
    """Return the Service's facts; `job` is empty if Kant did not make it."""
    meta = raw.metadata
    job = meta.labels.get(JOB, "")
    ours = bool(JOB_ID.fullmatch(job)) and meta.name == subdomain(job)
    return ServiceFacts(meta.namespace, meta.name, meta.uid, job if ours else "")


class ServiceRequests:
    """Builds requests about Services for one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, effect: CreateService) -> Request:
        """Create it: DONE, with its uid, once the job has such a Service."""

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code == 201:
                return CallOutcome(Result.DONE, uid=created.decode(reply.body).metadata.uid)
            return refused_to_create(reply)

        def judge(found: ServiceFacts | None) -> CallOutcome | None:
            if found is None:
                return None
            if not found.job:
                message = f"a Service named {effect.name} exists that Kant did not make"
                return CallOutcome(Result.REFUSED, code=409, message=message)
            return CallOutcome(Result.DONE, found.uid)

        path = f"/api/v1/namespaces/{effect.namespace}/services"
        look = self._look(f"{path}/{effect.name}", judge)
        return Request("POST", path, encode(effect.manifest), settle, look)

    def delete(self, effect: DeleteService) -> Request:
        """Delete it: DONE once it is deleted, GONE if nothing was (left) to delete."""

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code in (200, 202):
                return CallOutcome(Result.DONE, effect.uid)
            return gone_or_refused(reply, effect.uid)

        def judge(found: ServiceFacts | None) -> CallOutcome | None:
            same = found is not None and found.uid == effect.uid
            return None if same else CallOutcome(Result.GONE, effect.uid, code=404)

        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": effect.uid}}
        path = f"/api/v1/namespaces/{effect.namespace}/services/{effect.name}"
        return Request("DELETE", path, encode(body), settle, self._look(path, judge))

    def _look(self, path: str, judge: Judge[ServiceFacts]) -> Look:
        return looking(self._client, path, _read, judge, "the service")


def _read(body: bytes) -> ServiceFacts:
    return service_facts(_service.decode(body))
