"""Which version of an API group a cluster serves."""

import msgspec
from msgspec import Struct

from scheduling.kube.door.client import Client


class _Version(Struct, rename="camel"):
    group_version: str = ""


class _ApiGroup(Struct, rename="camel"):
    versions: list[_Version] = []
    preferred_version: _Version = msgspec.field(default_factory=_Version)


class ServedVersions:
    """Asks the API server once per group, and again if it gave no answer."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._groups: dict[str, _ApiGroup] = {}

    async def of(self, api_version: str) -> str:
        """Return this version if it is served, or if nothing is known of its group.

        Otherwise return the version that the API server prefers. Raises KubeError and NoReply.
        """
        group = api_version.rpartition("/")[0]
        if group not in self._groups:
            reply = await self._client.call("GET", f"/apis/{group}")
            if reply.code != 200:
                return api_version
            self._groups[group] = msgspec.json.decode(reply.body, type=_ApiGroup)
        found = self._groups[group]
        served = {each.group_version for each in found.versions}
        return api_version if api_version in served else found.preferred_version.group_version
