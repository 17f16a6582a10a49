"""The commands about what there is: clusters, nodes, quotas."""

import argparse
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.errors import usage


def clusters(api: Api, args: argparse.Namespace) -> None:
    def row(c: dict[str, Any]) -> tuple[object, ...]:
        return c["name"], _state(c), output.ago(c["last_cycle_at"]), c["title"]

    found = list(api.items("clusters"))
    heads = ("NAME", "STATE", "DECIDED", "TITLE")
    output.listed(args.output, found, heads, row, "There is no cluster.")


def _state(cluster: dict[str, Any]) -> str:
    if not cluster["is_active"]:
        return "inactive"
    return "connected" if cluster["connected"] else cluster["status_message"] or "not connected"


def nodes(api: Api, args: argparse.Namespace) -> None:
    def row(n: dict[str, Any]) -> tuple[object, ...]:
        gpus = (n["gpus"], n["healthy_gpus"], output.number(n["allocated"]))
        trouble = ["out of service"] * (not n["schedulable"]) + n["problems"]
        return n["name"], n["gpu_type"], *gpus, n["leaf"], "; ".join(trouble)

    cluster = args.cluster or _only_cluster(api)
    found = list(api.items(f"clusters/{quote(cluster, safe='')}/nodes"))
    heads = ("NODE", "TYPE", "GPUS", "HEALTHY", "ALLOCATED", "LEAF", "STATE")
    output.listed(args.output, found, heads, row, f"{cluster} has no nodes.")


def _only_cluster(api: Api) -> str:
    names = [c["name"] for c in api.items("clusters")]
    if len(names) != 1:
        raise usage(f"Name a cluster: {', '.join(names)}." if names else "There is no cluster.")
    return str(names[0])


def quotas(api: Api, args: argparse.Namespace) -> None:
    def row(q: dict[str, Any]) -> tuple[object, ...]:
        amounts = (q["guaranteed"], q["used"], max(0.0, q["used"] - q["guaranteed"]))
        limits = (_limit(q, "borrow_limit"), _limit(q, "lend_limit"))
        return q["tenant"], q["gpu_type"], *map(output.number, amounts), *limits, q["mode"]

    found = list(api.items("quotas", {"tenant": args.tenant, "gpu_type": args.gpu_type}))
    heads = ("TENANT", "TYPE", "GUARANTEED", "USED", "BORROWED", "MAY BORROW", "LENDS", "MODE")
    output.listed(args.output, found, heads, row, "There are no quotas that you may see.")


def _limit(quota: dict[str, Any], name: str) -> str:
    if quota["mode"] != "shared":
        return "0"
    limit = quota[name]
    return "any" if limit is None else output.number(limit)
