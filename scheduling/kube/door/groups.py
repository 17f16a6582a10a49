"""Requests that tell group objects how their pods are doing."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from scheduling.kube.door.client import MERGE_PATCH, Client, Reply
from scheduling.kube.door.requests import Request, gone_or_refused, looking
from scheduling.kube.door.versions import ServedVersions
from scheduling.kube.seam import CallOutcome, Result, TellGroup
from scheduling.kube.translate.objects import encode
from scheduling.kube.workloads.group_status import (
    COUNTED,
    WITHOUT_SUBRESOURCE,
    counted_status,
    status_of,
)


class GroupRequests:
    """Builds these requests for one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._versions = ServedVersions(client)

    async def tell(self, effect: TellGroup) -> Request:
        """Build the request: DONE once the status is written, GONE if there is no such group.

        Raises KubeError and NoReply.
        """

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code == 200:
                return CallOutcome(Result.DONE)
            return gone_or_refused(reply, "")

        def judge(found: bytes | None) -> CallOutcome | None:
            return CallOutcome(Result.GONE, code=404) if found is None else None

        version = await self._versions.of(effect.api_version)
        path = f"/apis/{version}/namespaces/{effect.namespace}/podgroups/{effect.name}"
        look = looking(self._client, path, bytes, judge, "the pod group")
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        group = effect.api_version.rpartition("/")[0]
        if group in COUNTED:
            reply = await self._client.call("GET", path)
            if reply.code != 200:
                return Request("GET", path, b"", settle, look)
            status = counted_status(
                effect, msgspec.json.decode(reply.body, type=dict[str, Any]), now
            )
        else:
            status = status_of(effect, now)
        if not status:
            return Request("GET", path, b"", settle, look)
        body = encode({"status": status})
        where = path if group in WITHOUT_SUBRESOURCE else f"{path}/status"
        return Request("PATCH", where, body, settle, look, MERGE_PATCH)
