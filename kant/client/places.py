"""The commands about clusters, nodes and quotas."""

import argparse
import re
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api, at_version
from kant.client.audit import change_of, list_changes, now_or_none, say_change
from kant.client.errors import NOT_FOUND, ClientError, usage
from kant.client.previews import effects
from kant.client.quota import moves, sheets

QUOTA = ("guaranteed", "mode", "borrow_limit", "lend_limit")
NO_LIMIT = "any"


def clusters(api: Api, args: argparse.Namespace) -> None:
    def row(c: dict[str, Any]) -> tuple[object, ...]:
        return c["name"], _state(c), output.ago(c["last_cycle_at"]), c["title"]

    if args.cluster:
        _cluster(api, args)
        return
    found = list(api.items("clusters"))
    heads = ("NAME", "STATE", "DECIDED", "TITLE")
    output.listed(args.output, found, heads, row, "There is no cluster.")


def _cluster(api: Api, args: argparse.Namespace) -> None:
    """Show one cluster and its current policy."""
    path = f"clusters/{quote(args.cluster, safe='')}"
    cluster, policy = api.get(path), api.get(f"{path}/policy")
    if args.output == "json":
        output.document({"cluster": cluster, "policy": policy})
        return
    shown = ("name", "title", "namespace")
    version = str(policy["version"]) if policy["version"] else "the defaults; nothing was changed"
    set_at = output.when(policy["updated_at"]) if policy["version"] else None
    output.pairs((
        *((name, cluster[name]) for name in shown), ("state", _state(cluster)),
        ("decided", output.ago(cluster["last_cycle_at"])),
        *(("remarks", text) for text in [cluster.get("remarks")] if text),
        ("policy", version), ("set at", set_at),
    ))  # fmt: skip
    print()
    rules = cluster["job_rules"].items()
    output.pairs((name, ", ".join(v) if isinstance(v, list) else v) for name, v in rules)
    print()
    if groups := cluster["node_groups"]:
        output.pairs((
            *((f"may grow by {name}", _of_group(group)) for name, group in groups.items()),
            ("gangs ask by class", cluster["provisioning_class"]),
        ))  # fmt: skip
        print()
    fields = policy["policy"] | {"shards": [one["name"] for one in policy["policy"]["shards"]]}
    output.pairs((name, output.value(value)) for name, value in fields.items())


def _of_group(group: dict[str, Any]) -> str:
    what = f"{group['gpus']} {group['gpu_type']}" if group.get("gpus") else "no GPU"
    return f"up to {group['max_nodes']} nodes of {what}"


def _state(cluster: dict[str, Any]) -> str:
    if not cluster["is_active"]:
        return "inactive"
    state = "connected" if cluster["connected"] else cluster["status_message"]
    return state if cluster["takes_any"] else f"{state}; takes only jobs that name it"


def nodes(api: Api, args: argparse.Namespace) -> None:
    def row(n: dict[str, Any]) -> tuple[object, ...]:
        gpus = (n["gpus"], n["healthy_gpus"], output.number(n["allocated"]))
        beside = (_held(n, "cpu_milli", 1000), _held(n, "memory_mib", 1024))
        trouble = state_of(n) + n["problems"]
        return n["name"], n["gpu_type"], *gpus, *beside, n["leaf"], "; ".join(trouble)

    cluster = args.cluster or only_cluster(api)
    query = {"leaf": args.leaf, "gpu_type": args.gpu_type}
    found = list(api.items(f"clusters/{quote(cluster, safe='')}/nodes", query))
    heads = ("NODE", "TYPE", "GPUS", "HEALTHY", "ALLOCATED", "CPU", "GIB", "LEAF", "STATE")
    output.listed(
        args.output,
        found,
        heads,
        row,
        f"{cluster} has no such nodes." if any(query.values()) else f"{cluster} has no nodes.",
    )


def state_of(node: dict[str, Any]) -> list[str]:
    """Return in words what was ordered for a node, and the progress."""
    order = node["order"]
    if order is None:
        return ["out of service"] * (not node["schedulable"])
    left = f", {order['pods_left']} of {order['pods']} pods left"
    kept = f", {order['kept_back']} jobs kept by a disruption budget" * bool(order["kept_back"])
    return [order["state"] + left * (order["state"] == "draining") + kept]


def _held(node: dict[str, Any], resource: str, unit: int) -> str:
    """Return e.g. "48/64": how much of a resource pods request, and how much there is."""
    amounts = (node[f"allocated_{resource}"], node[resource])
    return "/".join(f"{amount / unit:.1f}".removesuffix(".0") for amount in amounts)


def only_cluster(api: Api) -> str:
    """Return the name of the only cluster; raises ClientError if there are several or none."""
    names = [c["name"] for c in api.items("clusters")]
    if len(names) != 1:
        raise usage(f"Name a cluster: {', '.join(names)}." if names else "There is no cluster.")
    return str(names[0])


def quotas(api: Api, args: argparse.Namespace) -> None:
    if args.output == "csv":
        if args.tenant or args.gpu_type:
            raise usage("The CSV has all quotas that you may see; leave -t and -G out.")
        sheets.write(api, {})
        return

    def row(q: dict[str, Any]) -> tuple[object, ...]:
        amounts = (output.number(q["guaranteed"]), output.number(q["used"]))
        borrowed = (output.number(q["borrowed"]), _loans(q["borrowed_from"]))
        lent = (output.number(q["lent"]), _loans(q["lent_to"]))
        limits = (_limit(q, "borrow_limit"), _limit(q, "lend_limit"))
        return q["tenant"], q["gpu_type"], *amounts, *borrowed, *lent, *limits, q["mode"]

    found = list(api.items("quotas", {"tenant": args.tenant, "gpu_type": args.gpu_type}))
    heads = ("TENANT", "TYPE", "GUARANTEED", "USED", "BORROWED", "FROM", "LENT", "TO",
             "MAY BORROW", "LENDS", "MODE")  # fmt: skip
    output.listed(args.output, found, heads, row, "There are no quotas that you may see.")


def _loans(loans: list[dict[str, Any]]) -> str:
    """Return who lends, or borrows, how many GPUs; "-" for nobody."""
    told = (f"{one['tenant'] or '(others)'} {output.number(one['gpus'])}" for one in loans)
    return ", ".join(told) or "-"


def set_quota(api: Api, args: argparse.Namespace) -> None:
    """Set the given fields of one quota, and show it before and after."""
    given = {name: getattr(args, name) for name in QUOTA if getattr(args, name) is not None}
    if not given:
        raise usage("Nothing to set. See: kant quota set --help")
    if args.reason is None and not args.preview:
        raise usage("Give a reason with --reason TEXT; it is kept with the change.")
    path = quota_path(args.tenant, args.gpu_type)
    before = now_or_none(api, path)
    if before is None and "guaranteed" not in given:
        raise usage(f"{args.tenant} has no quota for {args.gpu_type}: give --guaranteed too.")
    wanted = {name: before[name] for name in QUOTA} if before else {}
    if given.get("mode") == "isolated":  # it neither borrows nor lends, so it has no limits
        wanted |= {"borrow_limit": None, "lend_limit": None}
    wanted |= {name: None if value == NO_LIMIT else value for name, value in given.items()}
    answer = api.put(
        path,
        {**wanted, "reason": args.reason or "preview"},
        {"dry_run": "true"} if args.dry_run or args.preview else None,
        guard=at_version(before["version"] if before else None),
    )
    if args.preview:
        effects.say(args, answer["effects"])
        return
    _say(args, before, answer["result"] if args.dry_run else answer, answer["warnings"])


def _say(
    args: argparse.Namespace,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    warnings: list[str],
) -> None:
    say_change(args, before, after, warnings, QUOTA, _shown, ("used", "borrowed", "lent"))


def quota_changes(api: Api, args: argparse.Namespace) -> None:
    if args.moves:
        list_changes(api, args, "tenant", moves.difference)
    else:
        list_changes(api, args, "quota", _difference)


def _difference(change: dict[str, Any]) -> str:
    """Return what a change did, field by field."""
    before, after = change["before"], change["after"]
    pairs = ((name, _shown(before, name), _shown(after, name)) for name in QUOTA)
    return ", ".join(f"{name} {was} → {now}" for name, was, now in pairs if was != now)


def revert_quota(api: Api, args: argparse.Namespace) -> None:
    """Revert one change, and show the quota or tenant before and after."""
    try:
        record = change_of(api, "quota", args.change)
    except ClientError as error:
        if error.code != NOT_FOUND or not moves.revert(api, args):
            raise
        return
    tenant, _, gpu_type = record["subject"].partition(" / ")
    before = now_or_none(api, quota_path(tenant, gpu_type))
    answer = api.post(
        f"audit/{record['id']}/revert",
        {"reason": args.reason},
        {"dry_run": "true"} if args.dry_run else None,
        guard=at_version(before["version"] if before else None),
    )
    _say(args, before, answer["result" if args.dry_run else "quota"], answer["warnings"])


def quota_path(tenant: str, gpu_type: str) -> str:
    """Return the path of a quota in REST."""
    return f"quotas/{quote(tenant, safe='')}/{quote(gpu_type, safe='')}"


def amount(text: str) -> float:
    """Parse a number of GPUs. Raises ArgumentTypeError."""
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs, e.g. 16 or 0.5")
    return float(text)


def limit(text: str) -> float | str:
    """Parse a number of GPUs or NO_LIMIT. Raises ArgumentTypeError."""
    return text if text == NO_LIMIT else amount(text)


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
