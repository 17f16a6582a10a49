"""Replay a recorded trace against a running Kant, over REST like any client."""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from scheduling.engine.states import TERMINAL, JobState
from scheduling.engine.types import DEFAULT_QUEUE
from scheduling.job_fields.faults import SLUG, SLUG_RULE
from scheduling.simulator import traces
from scheduling.simulator.traces.jobs import TraceJob, pod_sets
from scheduling.text_files import InputError, lines_of

GPUS_PER_NODE = 8  # a larger job becomes a gang of pods of this size
CONNECTIONS = 32
TRIES = 6
POLL_S = 1.0
PAGE = 500


class TraceReplayError(Exception):
    """A replay failed: one line with the problem and a remedy."""


@dataclass(slots=True)
class ReplayReport:
    """The result of a replay.

    `double_holdings`: from the embedded cluster's own record; None if no cluster is embedded.
    """

    submitted: int
    seconds: float
    states: dict[str, int] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    double_holdings: list[Any] | None = None


def read_trace(path: Path, limit: int, format_name: str = "") -> list[TraceJob]:
    """Return the first jobs of a trace in any known format (docs/traces.md), by submission time."""
    try:
        jobs = list(islice(traces.jobs_of(lines_of(path), traces.BadRows(), format_name), limit))
    except (InputError, traces.TraceFormatError) as error:
        raise TraceReplayError(f"{path}: {error}") from error
    if not jobs:
        raise TraceReplayError(f"{path} has no job that asks for a GPU")
    for job in jobs:
        if not SLUG.fullmatch(job.queue):
            text = f"{path}: job {job.id}: queue “{job.queue}” is no name of a queue. {SLUG_RULE}"
            raise TraceReplayError(text)
    return sorted(jobs, key=lambda job: job.submitted_at)


def job_document(
    job: TraceJob, name: str, tenant: str, speed: float, after: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the document that submits a job of the trace.

    The embedded kubelet runs it for its duration divided by `speed`. It declares a run time if the
    trace does. `after`: ids of the submitted jobs that it waits for.
    """
    run = {"sim.kant.io/run-seconds": f"{job.duration_s / speed:.3f}"}
    if job.ends is JobState.FAILED:
        run["sim.kant.io/exit-code"] = "1"
    declared = (
        {} if job.declared_s is None else {"declared_s": max(1, math.ceil(job.declared_s / speed))}
    )
    return {
        "name": name,
        "tenant": tenant,
        "queue": job.queue,
        "priority": job.priority,
        "kind": job.kind.value,
        "after": list(after),
        **({"cluster": job.cluster} if job.cluster else {}),
        "cluster_selector": dict(job.cluster_selector),
        "preferred_cluster_labels": dict(job.cluster_labels),
        **declared,
        "pod_sets": [
            {
                "name": pods.name,
                "count": pods.count,
                "gpu_types": list(pods.gpu_models),
                "gpus": pods.gpus,
                "gpu_milli": pods.gpu_milli,
                "cpu_milli": pods.cpu_milli,
                "memory_mib": pods.memory_mib,
                "annotations": run,
            }
            for pods in pod_sets(job, (), GPUS_PER_NODE)
        ],
    }


class TraceReplay:
    """One replay: it has its own tenants below “replay”, and marks its jobs by name."""

    def __init__(self, url: str, token: str, jobs: list[TraceJob], tenants: int, speed: float):
        self.url = url.rstrip("/") + "/api/v1"
        self.headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self.jobs = jobs
        self.speed = speed
        self.run_id = secrets.token_hex(4)
        self.tenants = [f"replay-{i + 1:02}" for i in range(tenants)]
        # Each tenant of the trace is mapped to one of these throughout.
        self._named = list(dict.fromkeys(job.tenant for job in jobs if job.tenant))
        # Ids of submitted jobs, by index; a job can wait only for earlier ones.
        self._index = {job.id: index for index, job in enumerate(jobs)}
        self._ids: list[asyncio.Future[str]] = []
        self.http: aiohttp.ClientSession = None  # type: ignore[assignment]

    async def run(self, progress: Callable[[int, int], None]) -> ReplayReport:
        """Submit each job at its time and wait for the end; calls `progress(submitted, over)`."""
        connector = aiohttp.TCPConnector(limit=CONNECTIONS)
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=self.headers
        ) as self.http:
            started = time.monotonic()
            await self._prepare_tenants()
            self._ids = [asyncio.get_running_loop().create_future() for _ in self.jobs]
            submitting = asyncio.gather(*map(self._submit, range(len(self.jobs))))
            rows = await self._follow(submitting, progress)
            seconds = time.monotonic() - started
            report = ReplayReport(len(self.jobs), seconds, jobs=rows)
            report.states = dict(Counter(row["state"] for row in rows))
            window = f"{math.ceil(seconds) + 1}s"
            report.metrics = await self._call("GET", "/metrics", params={"window": window})
            report.double_holdings = await self._audit()
            return report

    # --- tenants ----------------------------------------------------------------------------------
    async def _prepare_tenants(self) -> None:
        """Create tenants with equal rights that may borrow everything from each other."""
        await self._ensure_tenant("replay", None)
        for name in self.tenants:
            await self._ensure_tenant(name, "replay")
        capacity: Counter[str] = Counter()
        for cluster in (await self._call("GET", "/clusters", params={"limit": PAGE}))["items"]:
            if cluster["is_active"]:
                for node in await self._all(f"/clusters/{cluster['name']}/nodes", {}):
                    if node["gpus"]:
                        capacity[node["gpu_type"]] += node["gpus"]
        named = {(self._tenant_of(index), job.queue) for index, job in enumerate(self.jobs)}
        for tenant, queue in sorted(named):
            if queue != DEFAULT_QUEUE:
                body = {"tenant": tenant, "name": queue}
                await self._call("POST", "/queues", body, ok=(201, 409))
        for model, gpus in capacity.items():
            await self._ensure_quota("replay", model, gpus)
            for name in self.tenants:
                await self._ensure_quota(name, model, gpus // len(self.tenants))

    async def _ensure_tenant(self, name: str, parent: str | None) -> None:
        body = {"name": name, "title": name.capitalize(), "parent": parent}
        await self._call("POST", "/tenants", body, ok=(201, 409))

    async def _ensure_quota(self, tenant: str, model: str, gpus: int) -> None:
        body = {"guaranteed": gpus, "mode": "shared", "reason": "Replay of a trace"}
        await self._call(
            "PUT",
            f"/quotas/{tenant}/{model}",
            body,
            ok=(200, 201, 412),
            params={"overcommit": "true"},
            headers={"If-None-Match": "*"},
        )

    # --- jobs -------------------------------------------------------------------------------------
    def _tenant_of(self, index: int) -> str:
        named = self.jobs[index].tenant
        number = self._named.index(named) if named else index
        return self.tenants[number % len(self.tenants)]

    async def _submit(self, index: int) -> None:
        job = self.jobs[index]
        await asyncio.sleep((job.submitted_at - self.jobs[0].submitted_at) / self.speed)
        name = f"replay-{self.run_id}-{index:05}"
        tenant = self._tenant_of(index)
        known = (self._index.get(other, index) for other in job.after)
        after = [await self._ids[earlier] for earlier in known if earlier < index]
        body = job_document(job, name, tenant, self.speed, after)
        made = await self._call("POST", "/jobs", body, ok=(201,), headers={"Idempotency-Key": name})
        self._ids[index].set_result(made["id"])

    async def _follow(
        self, submitting: "asyncio.Future[list[None]]", progress: Callable[[int, int], None]
    ) -> list[dict[str, Any]]:
        """Poll until each job is in a terminal state; return all jobs."""
        try:
            while True:
                await asyncio.sleep(POLL_S)
                if submitting.done():
                    submitting.result()  # a refused job ends the replay with its reason
                rows = await self._all("/jobs", {"q": f"replay-{self.run_id}"})
                over = sum(row["state"] in TERMINAL for row in rows)
                progress(len(rows), over)
                if submitting.done() and over == len(self.jobs):
                    return rows
        finally:
            submitting.cancel()

    async def _all(self, path: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        page = await self._call("GET", path, params={**params, "limit": PAGE})
        while True:
            rows += page["items"]
            if not page["next"]:
                return rows
            page = await self._call("GET", page["next"])

    # --- the cluster's own record -----------------------------------------------------------------
    async def _audit(self) -> list[Any] | None:
        clusters = (await self._call("GET", "/clusters", params={"limit": PAGE}))["items"]
        found: list[Any] | None = None
        for cluster in clusters:
            path = (cluster.get("access") or {}).get("kubeconfig")
            if not cluster["is_active"] or not path or not Path(path).exists():
                continue
            server, headers = _server_of(Path(path))
            async with aiohttp.ClientSession(headers=headers) as http:
                reply = await http.get(f"{server}/sim/audit")
                if reply.status == 200:
                    found = (found or []) + (await reply.json())["double_holdings"]
        return found

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        ok: tuple[int, ...] = (200,),
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Send one request; retry answers that may change with time."""
        address = path if path.startswith("http") else self.url + path
        for attempt in range(TRIES):
            try:
                async with self.http.request(
                    method, address, json=body, params=params, headers=headers
                ) as reply:
                    if reply.status in ok:
                        return await reply.json()
                    if reply.status not in (429, 502, 503, 504):
                        text = (await reply.text())[:500]
                        raise TraceReplayError(f"{method} {address}: {reply.status} {text}")
                    problem = str(reply.status)
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            await asyncio.sleep(0.2 * 2**attempt)
        raise TraceReplayError(f"{method} {address}: {problem}; is Kant running there?")


def _server_of(kubeconfig: Path) -> tuple[str, dict[str, str]]:
    document = yaml.safe_load(kubeconfig.read_text())
    server = document["clusters"][0]["cluster"]["server"]
    token = document["users"][0]["user"].get("token", "") if document.get("users") else ""
    return server, {"Authorization": f"Bearer {token}"} if token else {}


def run(replay: TraceReplay, progress: Callable[[int, int], None]) -> ReplayReport:
    """Run `TraceReplay.run` and wait for it."""
    work: Awaitable[ReplayReport] = replay.run(progress)
    return asyncio.run(work)  # type: ignore[arg-type]
