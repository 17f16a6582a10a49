"""Requests that tell group objects how their pods fare."""

from datetime import UTC, datetime

from scheduling.kube.door.client import MERGE_PATCH, Client, Reply
from scheduling.kube.door.requests import Request, gone_or_refused, looking
from scheduling.kube.door.versions import ServedVersions
from scheduling.kube.seam import CallOutcome, Result, TellGroup
from scheduling.kube.translate.objects import encode
from scheduling.kube.workloads.group_status import status_of


class GroupRequests:
    """Builds the requests of one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._versions = ServedVersions(client)

    async def tell(self, effect: TellGroup) -> Request:
        """DONE when the status says so, GONE where there is no such group. Raises KubeError,
        NoReply."""

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code == 200:
                return CallOutcome(Result.DONE)
            return gone_or_refused(reply, "")

        def judge(found: bytes | None) -> CallOutcome | None:
            return CallOutcome(Result.GONE, code=404) if found is None else None

        version = await self._versions.of(effect.api_version)
        path = f"/apis/{version}/namespaces/{effect.namespace}/podgroups/{effect.name}"
        status = status_of(effect, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
        look = looking(self._client, path, bytes, judge, "the pod group")
        body = encode({"status": status})
        return Request("PATCH", f"{path}/status", body, settle, look, MERGE_PATCH)
