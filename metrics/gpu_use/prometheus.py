"""Asks a Prometheus server how busy GPUs were, from the metrics of NVIDIA's DCGM exporter.

The operator sets the address, so it may be private, unlike webhook addresses, which tenants set.
Otherwise the same rules hold: no redirects, no proxy from the environment, and limits on the time
and size of an answer.
"""

import asyncio
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

TIMEOUT_S = 20.0
MOST_BYTES = 128 << 20  # 100,000 GPUs are about 30 MiB
LABELS = "cluster, node, Hostname, instance, gpu"
# The share of time in which a GPU's engine was active; if a GPU does not report that, the share in
# which any kernel ran, in percent.
METRICS = (("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0), ("DCGM_FI_DEV_GPU_UTIL", 100.0))


class PrometheusError(Exception):
    """What is wrong, in a sentence that reveals no more than the setting's name."""


class GpuActivity(NamedTuple):
    """One GPU: the possible names of its node, one per label; its index there; and the share of
    time in which it was active, from 0 to 1."""

    cluster: str
    nodes: tuple[str, ...]
    gpu: int
    active: float


def wrong_address(address: str) -> str:
    """Return why a text is not an address of a Prometheus; "" = it is one."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is not a valid address: {error}"
    if parts.scheme not in ("http", "https") or not host:
        return "must begin with http:// or https:// and name a host"
    if parts.query or parts.fragment:
        return "must have no “?” and no “#”: Kant adds the path of the API"
    return ""


def activities(address: str, end: datetime, seconds: int) -> list[GpuActivity]:
    """Return how active each GPU was in the `seconds` before `end`. Raises PrometheusError."""
    found: dict[tuple[str, tuple[str, ...], int], float] = {}
    try:
        for metric, scale in METRICS:
            query = f"avg by ({LABELS}) (avg_over_time({metric}[{seconds}s]))"
            for key, value in _read(asyncio.run(_asked(address, query, end))):
                found.setdefault(key, min(max(value / scale, 0.0), 1.0))
    except TimeoutError:
        raise PrometheusError(f"It did not answer within {TIMEOUT_S:.0f} seconds.") from None
    except (aiohttp.ClientError, OSError) as error:
        raise PrometheusError(_said(error)) from None
    return [GpuActivity(*key, active) for key, active in found.items()]


async def _asked(address: str, query: str, end: datetime) -> Any:
    """Return the `data` of an answer of `/api/v1/query`."""
    url, timeout = f"{address.rstrip('/')}/api/v1/query", aiohttp.ClientTimeout(total=TIMEOUT_S)
    asked = {"query": query, "time": f"{end.timestamp():.3f}"}
    jar = aiohttp.DummyCookieJar()
    async with (
        aiohttp.ClientSession(timeout=timeout, cookie_jar=jar, trust_env=False) as client,
        client.get(url, params=asked, allow_redirects=False) as answer,
    ):
        if 300 <= answer.status < 400:
            raise PrometheusError("It redirects, and Kant does not follow redirects.")
        if answer.status != 200:
            raise PrometheusError(f"It answers {answer.status} ({answer.reason}).")
        body = bytearray()
        async for part in answer.content.iter_chunked(1 << 16):
            body += part
            if len(body) > MOST_BYTES:
                raise PrometheusError(f"Its answer is larger than {MOST_BYTES >> 20} MiB.")
    try:
        told = json.loads(body)
    except ValueError:
        raise PrometheusError("Its answer is not one of the Prometheus API.") from None
    if not isinstance(told, dict) or told.get("status") != "success":
        raise PrometheusError("Its answer is not one of the Prometheus API.")
    return told.get("data")


def _read(data: Any) -> Iterator[tuple[tuple[str, tuple[str, ...], int], float]]:
    """Yield the samples of a vector that name a GPU of a node; ignore all others."""
    if not isinstance(data, dict) or data.get("resultType") != "vector":
        raise PrometheusError("Its answer is not one of the Prometheus API.")
    sums: defaultdict[tuple[str, tuple[str, ...], int], list[float]] = defaultdict(list)
    try:
        for one in data["result"]:
            labels, value = one["metric"], float(one["value"][1])
            gpu = str(labels.get("gpu", ""))
            instance = str(labels.get("instance", "")).rpartition(":")[0]
            names = (str(labels.get("node", "")), str(labels.get("Hostname", "")), instance)
            nodes = tuple(dict.fromkeys(filter(None, names)))
            if nodes and gpu.isascii() and gpu.isdigit() and len(gpu) < 6 and math.isfinite(value):
                sums[str(labels.get("cluster", "")), nodes, int(gpu)].append(value)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise PrometheusError("Its answer is not one of the Prometheus API.") from None
    for key, values in sums.items():
        yield key, sum(values) / len(values)


def _said(error: Exception) -> str:
    """Describe the error without the address, which may contain a password."""
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, OSError) and inner.errno and inner.errno > 0:
        return f"Kant cannot connect to it: {os.strerror(inner.errno)}."
    return f"Kant cannot connect to it ({type(error).__name__})."
