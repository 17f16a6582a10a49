"""`pods/log`: the API server's part, which finds the container, and the kubelet's, which reads it.

Refusals are worded as by kube-apiserver and kubelet (`registry/core/pod/strategy.go`,
`kubelet_pods.go`).
"""

import asyncio
from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from aiohttp import web

from scheduling.simcluster.cluster import EmbeddedCluster
from scheduling.simcluster.controllers.podlog import PodLog, stamp
from scheduling.simcluster.objects.kinds import PODS, ResourceKind
from scheduling.simcluster.objects.status import (
    ApiError,
    bad_request,
    forbidden_field,
    invalid,
    invalid_value,
    not_found,
)
from scheduling.simcluster.objects.store import Obj, Stored
from scheduling.simcluster.routing import Target

KUBELET_PORT = 10250
# Lines per write.
BATCH = 1000
_OPTIONS = ResourceKind("", "PodLogOptions")


class LogPart(NamedTuple):
    """The requested part of a log. `since`: in seconds since the epoch; None = no limit."""

    container: str
    follow: bool
    previous: bool
    timestamps: bool
    since: float | None
    tail: int | None
    limit: int | None


def log_options(name: str, query: Mapping[str, str], now: float) -> LogPart:
    """Parse the options.

    Raises ApiError 400 for what does not parse, 422 for what is not allowed.
    """
    since_s, tail, limit = (_number(query, n) for n in ("sinceSeconds", "tailLines", "limitBytes"))
    since = _moment(query["sinceTime"]) if "sinceTime" in query else None
    causes = []
    if tail is not None and tail < 0:
        causes.append(invalid_value("tailLines", tail, "must be greater than or equal to 0"))
    if limit is not None and limit < 1:
        causes.append(invalid_value("limitBytes", limit, "must be greater than 0"))
    if since_s is not None and since is not None:
        why = "at most one of `sinceTime` or `sinceSeconds` may be specified"
        causes.append(forbidden_field("[]", why))
    elif since_s is not None and since_s < 1:
        causes.append(invalid_value("sinceSeconds", since_s, "must be greater than 0"))
    if causes:
        raise invalid(_OPTIONS, name, causes)
    return LogPart(
        container=query.get("container", ""),
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        timestamps=_flag(query, "timestamps"),
        since=since if since_s is None else now - since_s,
        tail=tail,
        limit=limit,
    )


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.removeprefix("-").isdecimal():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def _moment(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        layout = "2006-01-02T15:04:05Z07:00"
        raise bad_request(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    return found.timestamp()


def _flag(query: Mapping[str, str], name: str) -> bool:
    # As apimachinery parses it: anything present counts as true unless it says no.
    return query.get(name, "false").lower() not in ("false", "0")


async def serve_log(
    cluster: EmbeddedCluster, request: web.BaseRequest, target: Target, query: Mapping[str, str]
) -> web.StreamResponse:
    """Serve a container's log, until the container ends if the log is followed.

    Raises:
        ApiError: every refusal.
    """
    options = log_options(target.name, query, cluster.registry.clock())
    stored = cluster.registry.stored(PODS, target.namespace, target.name)
    pod = stored.decode()
    container = _container(pod, options.container)
    if not pod["spec"].get("nodeName"):
        return web.Response(status=204)
    _reach(cluster, pod, container)
    _readable_state(pod, container, previous=options.previous)
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    try:
        await _Reading(cluster, response, stored, container, options).run()
    except ConnectionError:
        return response
    await response.write_eof()
    return response


def _container(pod: Obj, name: str) -> str:
    pod_name = pod["metadata"]["name"]
    names = [c["name"] for c in pod["spec"]["containers"]]
    inits = [c["name"] for c in pod["spec"].get("initContainers") or ()]
    if not name and len(names) > 1:
        choice = " ".join(names)
        text = f"a container name must be specified for pod {pod_name}, choose one of: [{choice}]"
        if inits:
            text += f" or one of the init containers: [{' '.join(inits)}]"
        raise bad_request(text)
    if name and name not in (*names, *inits):
        raise bad_request(f"container {name} is not valid for pod {pod_name}")
    return name or names[0]


def _reach(cluster: EmbeddedCluster, pod: Obj, container: str) -> None:
    """Raise ApiError if the node does not exist or its kubelet does not answer."""
    node = pod["spec"]["nodeName"]
    agent = cluster.kubelets.nodes.get(node)
    if agent is None or not agent.present:
        raise not_found(PODS, node)  # kube-apiserver reports a missing node in the same words
    if agent.down:
        meta = pod["metadata"]
        host = f"{agent.address}:{KUBELET_PORT}"
        url = f"https://{host}/containerLogs/{meta['namespace']}/{meta['name']}/{container}"
        raise ApiError(500, "", f'Get "{url}": dial tcp {host}: connect: no route to host')


def _readable_state(pod: Obj, container: str, *, previous: bool = False) -> Obj:
    """Return the state of a container that has started; raises ApiError 400 for any other."""
    status, name = pod["status"], pod["metadata"]["name"]
    named = f'container "{container}" in pod "{name}"'
    if previous:
        # Simulated containers are never restarted in place.
        raise bad_request(f"previous terminated {named} not found")
    fields = ("containerStatuses", "initContainerStatuses")
    statuses = {s["name"]: s for field in fields for s in status.get(field) or ()}
    if container not in statuses and status.get("phase") == "Pending":
        raise bad_request(f"{named} is waiting to start: ContainerCreating")
    if container not in statuses:
        raise bad_request(f"{named} is not available")
    state: dict[str, Any] = statuses[container].get("state") or {}
    if "running" not in state and "terminated" not in state:
        raise bad_request(f"{named} is waiting to start - no logs yet")
    return state


class _Reading:
    """One reader of one container."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        response: web.StreamResponse,
        stored: Stored,
        container: str,
        options: LogPart,
    ) -> None:
        self._cluster = cluster
        self._response = response
        self._stored = stored
        self._container = container
        self._options = options
        self._left = options.limit

    async def run(self) -> None:
        log = self._log(self._stored)
        at = self._first(log)
        news = asyncio.Event()
        wakers = self._cluster.store.wakers[PODS.plural]
        # Register first: events during the writing must be noticed after it.
        wakers.add(news.set)
        try:
            while True:
                at = await self._write(log, at)
                if not self._options.follow or log.ended or self._left == 0:
                    return
                await self._until(news, log.next_beat)
                found = self._present()
                if found is None:
                    return  # the pod or its kubelet is gone
                log = self._log(found)
        finally:
            wakers.discard(news.set)

    def _log(self, stored: Stored) -> PodLog:
        pod = stored.decode()
        state = _readable_state(pod, self._container)
        return PodLog(pod, self._container, state, self._cluster.registry.clock())

    def _first(self, log: PodLog) -> int:
        options = self._options
        first = 0
        if options.since is not None:
            first = bisect_left(log, options.since, key=lambda line: line.at)
        return first if options.tail is None else max(first, len(log) - options.tail)

    def _present(self) -> Stored | None:
        found = self._cluster.store.get(PODS.plural, self._stored.key)
        if found is None or found.uid != self._stored.uid:
            return None
        agent = self._cluster.kubelets.nodes[found.decode()["spec"]["nodeName"]]
        return found if agent.present and not agent.down else None

    async def _until(self, news: asyncio.Event, beat: float) -> None:
        """Wait until the next heartbeat, or until something happens to a pod."""
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(max(0.0, beat - self._cluster.registry.clock()), news.set)
        await news.wait()
        news.clear()
        alarm.cancel()

    async def _write(self, log: PodLog, at: int) -> int:
        """Write the lines from `at` on; return the index of the next one."""
        while at < len(log) and self._left != 0:
            lines = log[at : at + BATCH]
            at += len(lines)
            stamped = self._options.timestamps
            texts = (f"{stamp(x.at)} {x.text}\n" if stamped else f"{x.text}\n" for x in lines)
            data = "".join(texts).encode()[: self._left]
            if self._left is not None:
                self._left -= len(data)
            await self._response.write(data)
        return at
