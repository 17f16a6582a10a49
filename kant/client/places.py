"""The commands about what there is: clusters, nodes, quotas."""

import argparse
import re
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.errors import NOT_FOUND, ClientError, usage

QUOTA = ("guaranteed", "mode", "borrow_limit", "lend_limit")
NO_LIMIT = "any"


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


def set_quota(api: Api, args: argparse.Namespace) -> None:
    """Set what the flags say of one quota, and show it before and after."""
    given = {name: getattr(args, name) for name in QUOTA if getattr(args, name) is not None}
    if not given:
        raise usage("There is nothing to set. See: kant quota set --help")
    path = f"quotas/{quote(args.tenant, safe='')}/{quote(args.gpu_type, safe='')}"
    before = _quota_or_none(api, path)
    if before is None and "guaranteed" not in given:
        raise usage(f"{args.tenant} has no quota for {args.gpu_type}: give --guaranteed too.")
    wanted = {name: before[name] for name in QUOTA} if before else {}
    if given.get("mode") == "isolated":  # which has no limits: it neither borrows nor lends
        wanted |= {"borrow_limit": None, "lend_limit": None}
    wanted |= {name: None if value == NO_LIMIT else value for name, value in given.items()}
    answer = api.put(
        path,
        {**wanted, "reason": args.reason},
        {"dry_run": "true"} if args.dry_run else None,
        version=before["version"] if before else None,
    )
    after = answer["result"] if args.dry_run else answer
    if args.output == "json":
        output.document({"before": before, "after": after, "warnings": answer["warnings"]})
    else:
        rows = [(name, _shown(before, name), _shown(after, name)) for name in (*QUOTA, "used")]
        output.table(("", "BEFORE", "AFTER"), rows, "")
    for warning in answer["warnings"]:
        output.note(f"Warning: {warning}")
    if before and all(before[name] == after[name] for name in QUOTA):
        output.note("It is so already.")
    elif args.dry_run:
        output.note("Nothing was changed: this was a dry run.")


def amount(text: str) -> float:
    """A number of GPUs. Raises ArgumentTypeError."""
    if not re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs, e.g. 16 or 0.5")
    return float(text)


def limit(text: str) -> float | str:
    """A number of GPUs, or NO_LIMIT. Raises ArgumentTypeError."""
    return text if text == NO_LIMIT else amount(text)


def _quota_or_none(api: Api, path: str) -> dict[str, Any] | None:
    """The quota; None where the tenant, or the GPU type, or the quota does not exist: which of
    them it is, is said to whoever writes it."""
    try:
        return api.get(path)
    except ClientError as error:
        if error.code != NOT_FOUND:
            raise
        return None


def _shown(quota: dict[str, Any] | None, name: str) -> str:
    if quota is None:
        return "-"
    if name == "mode":
        return str(quota[name])
    return _limit(quota, name) if name.endswith("_limit") else output.number(quota[name])


def _limit(quota: dict[str, Any], name: str) -> str:
    if quota["mode"] != "shared":
        return "0"
    limit = quota[name]
    return NO_LIMIT if limit is None else output.number(limit)
