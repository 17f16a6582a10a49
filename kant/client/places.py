"""The commands about what there is: clusters, nodes, quotas."""

import argparse
from typing import Any

from kant.client import output
from kant.client.api import Api
from kant.client.errors import usage


def clusters(api: Api, args: argparse.Namespace) -> None:
    found = list(api.items("clusters"))
    if args.output == "json":
        output.document(found)
        return
    rows = ((c["name"], _state(c), output.ago(c["last_cycle_at"]), c["title"]) for c in found)
    output.table(("NAME", "STATE", "DECIDED", "TITLE"), rows, "There is no cluster.")


def _state(cluster: dict[str, Any]) -> str:
    if not cluster["is_active"]:
        return "inactive"
    return "connected" if cluster["connected"] else cluster["status_message"] or "not connected"


def nodes(api: Api, args: argparse.Namespace) -> None:
    cluster = args.cluster or _only_cluster(api)
    found = list(api.items(f"clusters/{cluster}/nodes"))
    if args.output == "json":
        output.document(found)
        return
    heads = ("NODE", "TYPE", "GPUS", "HEALTHY", "ALLOCATED", "LEAF", "STATE")
    rows = (
        (n["name"], n["gpu_type"], n["gpus"], n["healthy_gpus"], output.number(n["allocated"]),
         n["leaf"], _trouble(n))
        for n in found
    )  # fmt: skip
    output.table(heads, rows, f"{cluster} has no nodes.")


def _trouble(node: dict[str, Any]) -> str:
    return "; ".join(["out of service"] * (not node["schedulable"]) + node["problems"])


def _only_cluster(api: Api) -> str:
    names = [c["name"] for c in api.items("clusters")]
    if len(names) != 1:
        raise usage(f"Name a cluster: {', '.join(names)}." if names else "There is no cluster.")
    return str(names[0])


def quotas(api: Api, args: argparse.Namespace) -> None:
    found = list(api.items("quotas", {"tenant": args.tenant, "gpu_type": args.gpu_type}))
    if args.output == "json":
        output.document(found)
        return
    heads = ("TENANT", "TYPE", "GUARANTEED", "USED", "BORROWED", "MAY BORROW", "LENDS", "MODE")
    rows = (
        (q["tenant"], q["gpu_type"], output.number(q["guaranteed"]), output.number(q["used"]),
         output.number(max(0.0, q["used"] - q["guaranteed"])), _limit(q, "borrow_limit"),
         _limit(q, "lend_limit"), q["mode"])
        for q in found
    )  # fmt: skip
    output.table(heads, rows, "There are no quotas that you may see.")


def _limit(quota: dict[str, Any], name: str) -> str:
    if quota["mode"] != "shared":
        return "0"
    limit = quota[name]
    return "any" if limit is None else output.number(limit)
