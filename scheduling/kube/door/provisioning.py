"""ProvisioningRequests of the Cluster Autoscaler and their PodTemplates: read, created, deleted.

Sources: cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1/types.go, and the
proposal provisioning-request.md beside it.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from scheduling.kube.door.client import MERGE_PATCH, Client, Reply
from scheduling.kube.door.requests import (
    Request,
    created,
    gone_or_refused,
    looking,
    refused_to_create,
)
from scheduling.kube.seam import (
    CallOutcome,
    CreateProvisioning,
    DeleteProvisioning,
    KubeError,
    NodesAnswer,
    ProvisioningFacts,
    Result,
)
from scheduling.kube.translate.manifests import PROVISIONS_FOR, provisioning_number
from scheduling.kube.translate.objects import Meta, encode
from scheduling.kube.translate.texts import seconds_of, storable

VERSION = "autoscaling.x-k8s.io/v1"
# Fields of an existing pod that belong to it alone, or that a template must not have.
_OF_ONE_POD = ("nodeName", "schedulingGates", "ephemeralContainers", "hostname", "schedulingGroup")
# Conditions that carry the answer, the most recent possible one first.
_ANSWERS = {
    "Failed": NodesAnswer.FAILED,
    "CapacityRevoked": NodesAnswer.REVOKED,
    "BookingExpired": NodesAnswer.EXPIRED,
    "Provisioned": NodesAnswer.PROVISIONED,
    "Accepted": NodesAnswer.ACCEPTED,
}

Settled = Callable[[Request], Awaitable[CallOutcome]]
CreatedIn = Callable[[str, Request], Awaitable[CallOutcome]]


class _TimedCondition(Struct, gc=False, rename="camel"):
    type: str = ""
    status: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _TemplateName(Struct, gc=False):
    name: str = ""


class _PodSet(Struct, gc=False, rename="camel"):
    pod_template_ref: _TemplateName = msgspec.field(default_factory=_TemplateName)


class _RequestSpec(Struct, gc=False, rename="camel"):
    provisioning_class_name: str = ""
    pod_sets: list[_PodSet] = []


class _RequestStatus(Struct, gc=False, rename="camel"):
    conditions: list[_TimedCondition] = []


class KubeProvisioningRequest(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: _RequestSpec = msgspec.field(default_factory=_RequestSpec)
    status: _RequestStatus = msgspec.field(default_factory=_RequestStatus)


_request = msgspec.json.Decoder(KubeProvisioningRequest)
_any = msgspec.json.Decoder(dict[str, Any])


def provisioning_facts(raw: KubeProvisioningRequest) -> ProvisioningFacts:
    """Return the request's facts; `job` is empty if Kant did not make it."""
    meta = raw.metadata
    job = meta.labels.get(PROVISIONS_FOR, "")
    number = provisioning_number(meta.name, job) if job else 0
    true = {each.type: each for each in raw.status.conditions if each.status == "True"}
    last = next((name for name in _ANSWERS if name in true), "")
    said = true.get(last, _TimedCondition())
    # If it is not provisioned yet, say why not.
    unmet = (c.message for c in raw.status.conditions if c.type == "Provisioned")
    message = next(unmet, "") if last in ("", "Accepted") else said.message
    # Anybody may create such an object; it must not make Kant delete unrelated templates.
    templates = (each.pod_template_ref.name for each in raw.spec.pod_sets)
    return ProvisioningFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        job=job if number else "",
        number=number,
        class_name=raw.spec.provisioning_class_name,
        templates=tuple(name for name in templates if name.startswith(f"{meta.name}-")),
        created_at=seconds_of(meta.creation_timestamp) or 0.0,
        answer=_ANSWERS.get(last, NodesAnswer.NONE),
        answered_at=seconds_of(said.last_transition_time) or 0.0,
        message=storable(message),
    )


def not_served(error: KubeError) -> str:
    """Say why there are no ProvisioningRequests, with a remedy.

    "" = it is unknown whether there are any.
    """
    if error.code == HTTPStatus.NOT_FOUND:
        return (
            f"the cluster does not serve ProvisioningRequest of {VERSION}; install its "
            "CustomResourceDefinition with an autoscaler that acts upon it"
        )
    return str(error) if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) else ""


class ProvisioningCalls:
    """Creates and deletes ProvisioningRequests at one API server.

    `settled` carries out one request; `created_in` carries out a creation in a namespace, and first
    creates that namespace if it is missing.
    """

    def __init__(self, client: Client, settled: Settled, created_in: CreatedIn) -> None:
        self._client = client
        self._settled = settled
        self._created_in = created_in

    async def create(self, effect: CreateProvisioning) -> CallOutcome:
        """Create it: DONE, with its uid, once it exists; GONE if a pod to copy is gone."""
        names = [f"{effect.name}-{index}" for index in range(len(effect.pods))]
        outcome, made = CallOutcome(Result.DONE), []
        for name, pods in zip(names, effect.pods, strict=True):
            pod = (
                pods.like if isinstance(pods.like, Mapping) else await self._read(effect, pods.like)
            )
            if isinstance(pod, CallOutcome):
                outcome = pod
            else:
                request = self._create(_templates(effect.namespace), _template(effect, name, pod))
                outcome = await self._created_in(effect.namespace, request)
            if outcome.result is not Result.DONE:
                break
            made.append(name)
        else:
            pod_sets = [
                {"podTemplateRef": {"name": name}, "count": pods.number}
                for name, pods in zip(names, effect.pods, strict=True)
            ]
            spec = {"provisioningClassName": effect.class_name, "podSets": pod_sets}
            body = {**_head(effect, VERSION, "ProvisioningRequest", effect.name), "spec": spec}
            outcome = await self._settled(self._create(_requests(effect.namespace), body))
        if outcome.result is Result.DONE:
            await self._own(effect, names, outcome.uid)
        elif outcome.result in (Result.REFUSED, Result.GONE):
            await self._delete_templates(effect.namespace, made)
        return outcome

    async def delete(self, effect: DeleteProvisioning) -> CallOutcome:
        """Delete it: DONE once it is deleted, GONE if nothing was (left) to delete."""
        path = f"{_requests(effect.namespace)}/{effect.name}"
        outcome = await self._settled(_is_there(path, effect.uid))
        if outcome.result is not Result.DONE:
            return outcome
        # Templates first: after an interruption, the request still says what is left to delete.
        await self._delete_templates(effect.namespace, effect.templates)
        return await self._settled(self._delete(path, effect.uid))

    async def _read(self, effect: CreateProvisioning, pod: str) -> Mapping[str, Any] | CallOutcome:
        """Return the manifest of the pod of this name."""
        found: list[dict[str, Any]] = []

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code == HTTPStatus.OK:
                found[:] = [_any.decode(reply.body)]
                return CallOutcome(Result.DONE)
            return gone_or_refused(reply, "")

        path = f"/api/v1/namespaces/{effect.namespace}/pods/{pod}"
        outcome = await self._settled(Request("GET", path, b"", settle, _nothing_known))
        return found[0] if found else outcome

    def _create(self, path: str, body: Mapping[str, Any]) -> Request:
        """Create an object: DONE, with its uid, once it exists.

        An object of the same name and job was made from the same body.
        """
        meta = body["metadata"]

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code == HTTPStatus.CREATED:
                return CallOutcome(Result.DONE, uid=created.decode(reply.body).metadata.uid)
            return refused_to_create(reply)

        def judge(found: KubeProvisioningRequest | None) -> CallOutcome | None:
            if found is None:
                return None
            theirs = found.metadata
            if theirs.labels.get(PROVISIONS_FOR) != meta["labels"][PROVISIONS_FOR]:
                message = f"a {body['kind']} named {meta['name']} exists that Kant did not make"
                return CallOutcome(Result.REFUSED, code=HTTPStatus.CONFLICT, message=message)
            return CallOutcome(Result.DONE, uid=theirs.uid)

        at = f"{path}/{meta['name']}"
        look = looking(self._client, at, _request.decode, judge, f"the {body['kind']}")
        return Request("POST", path, encode(body), settle, look)

    def _delete(self, path: str, uid: str = "") -> Request:
        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code in (HTTPStatus.OK, HTTPStatus.ACCEPTED):
                return CallOutcome(Result.DONE, uid)
            return gone_or_refused(reply, uid)

        def judge(found: KubeProvisioningRequest | None) -> CallOutcome | None:
            same = found is not None and uid in ("", found.metadata.uid)
            return None if same else CallOutcome(Result.GONE, uid, code=HTTPStatus.NOT_FOUND)

        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        look = looking(self._client, path, _request.decode, judge, "what is deleted")
        return Request("DELETE", path, encode(options), settle, look)

    async def _delete_templates(self, namespace: str, names: tuple[str, ...] | list[str]) -> None:
        for name in names:
            await self._settled(self._delete(f"{_templates(namespace)}/{name}"))

    async def _own(self, effect: CreateProvisioning, names: list[str], uid: str) -> None:
        """Make the request own its templates: they are deleted with it, whoever deletes it."""
        owner = {"apiVersion": VERSION, "kind": "ProvisioningRequest", "name": effect.name}
        patch = encode({"metadata": {"ownerReferences": [{**owner, "uid": uid}]}})

        def settle(reply: Reply) -> CallOutcome | None:
            done = reply.code == HTTPStatus.OK
            return CallOutcome(Result.DONE) if done else gone_or_refused(reply, "")

        for name in names:
            path = f"{_templates(effect.namespace)}/{name}"
            request = Request("PATCH", path, patch, settle, _nothing_known, MERGE_PATCH)
            await self._settled(request)


def _is_there(path: str, uid: str) -> Request:
    """Check that this incarnation exists: DONE if so, otherwise GONE."""

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code != HTTPStatus.OK:
            return gone_or_refused(reply, uid)
        same = _request.decode(reply.body).metadata.uid == uid
        return CallOutcome(Result.DONE if same else Result.GONE, uid)

    return Request("GET", path, b"", settle, _nothing_known)


def _requests(namespace: str) -> str:
    return f"/apis/{VERSION}/namespaces/{namespace}/provisioningrequests"


def _templates(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/podtemplates"


def _head(effect: CreateProvisioning, version: str, kind: str, name: str) -> dict[str, Any]:
    owners = [
        {"apiVersion": each.api_version, "kind": each.kind, "name": each.name, "uid": each.uid}
        for each in effect.owners
    ]
    meta = {"name": name, "namespace": effect.namespace, "labels": dict(effect.labels)}
    return {"apiVersion": version, "kind": kind, "metadata": {**meta, "ownerReferences": owners}}


def _template(effect: CreateProvisioning, name: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in pod["spec"].items() if key not in _OF_ONE_POD}
    head = _head(effect, "v1", "PodTemplate", name)
    labels = pod.get("metadata", {}).get("labels") or {}
    return {**head, "template": {"metadata": {"labels": labels}, "spec": spec}}


async def _nothing_known() -> CallOutcome | None:
    return None
