"""`kant top`: who holds GPUs now, who asks for more, and how full each node is."""

import argparse
import sys
import time
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.errors import usage
from kant.client.places import only_cluster, state_of
from kant.client.submission import duration_s

NODES = "nodes"
BY = {"tenants": "tenant", "users": "user", "jobs": "job"}
SORTS = {
    **dict.fromkeys(BY, ("held", "asked", "share", "name")),
    NODES: ("held", "free", "share", "name"),
}
WATCH_S = 2
MOST = 500  # rows per answer
CLEAR = "\x1b[H\x1b[2J"
# The columns of each list, by fields of its rows; JSON and CSV use the field names.
COLUMNS = {
    "tenants": ("tenant", "gpu_type", "held", "asked", "share"),
    "users": ("tenant", "user", "gpu_type", "held", "asked", "share"),
    "jobs": ("job", "name", "tenant", "user", "gpu_type", "held", "asked", "share"),
    NODES: ("node", "gpu_type", "gpus", "held", "free", "share", "leaf", "state"),
}

Row = dict[str, Any]


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag(
        "what",
        nargs="?",
        choices=tuple(SORTS),
        default="tenants",
        help="what to list (default: tenants)",
    )
    every = tuple(dict.fromkeys(name for names in SORTS.values() for name in names))
    flag("--sort", choices=every, default="held",
         help="what to sort by (default: held); not `asked` for nodes, `free` only "
         "for nodes")  # fmt: skip
    flag("-t", "--tenant", help="only this tenant and tenants below it; not for nodes")
    flag("-G", "--gpu-type", help="only this GPU type")
    flag("-c", "--cluster", help="only this cluster")
    flag(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help=f"at most this many rows (default: 20), up to {MOST}",
    )
    flag("--watch", nargs="?", type=duration_s, const=WATCH_S, metavar="TIME",
         help=f"refresh every {WATCH_S} s, or every TIME, until Ctrl-C")  # fmt: skip


def top(api: Api, args: argparse.Namespace) -> None:
    """Print the list once or repeatedly."""
    if args.sort not in SORTS[args.what]:
        raise usage(f"{args.what} are sorted by {', '.join(SORTS[args.what])}.")
    if args.what == NODES and args.tenant:
        raise usage("Nodes belong to no tenant. Leave --tenant out.")
    if not 1 <= args.limit <= MOST:
        raise usage(f"--limit must be from 1 to {MOST}.")
    if args.watch == 0:
        raise usage("--watch must be at least 1s.")
    while True:
        _show(args, _nodes(api, args) if args.what == NODES else _holders(api, args))
        if args.watch is None:
            return
        sys.stdout.flush()
        time.sleep(args.watch)


def _show(args: argparse.Namespace, rows: list[Row]) -> None:
    if args.watch is not None and sys.stdout.isatty():
        sys.stdout.write(CLEAR)
    columns = COLUMNS[args.what]
    if args.output == "json":
        output.document(rows)
    elif args.output == "csv":
        output.csv_of(columns, rows)
    else:
        heads = [{"gpu_type": "TYPE", "job": "ID"}.get(name, name.upper()) for name in columns]
        table = ([_cell(row, name) for name in columns] for row in rows)
        output.table(heads, table, "Nothing to list.")


def _cell(row: Row, name: str) -> object:
    value = row[name]
    if name == "share":
        return "-" if value is None else f"{value:.1%}"
    if name == "job":
        return output.short(value)
    if name == "gpu_type":
        return value or "any"
    return "; ".join(value) if name == "state" else value


def _holders(api: Api, args: argparse.Namespace) -> list[Row]:
    query = {
        "by": BY[args.what], "sort": args.sort, "limit": args.limit,
        "tenant": args.tenant, "gpu_type": args.gpu_type, "cluster": args.cluster,
    }  # fmt: skip
    found = api.get("holders", query)
    if args.output == "table":
        for one in found["types"]:
            held = f"{output.number(one['held'])} of {one['gpus']} GPUs held"
            out = one["gpus"] - one["healthy"]
            print(f"{one['gpu_type']}: {held}" + f", {out} out of service" * bool(out))
        if found["count"] > len(found["items"]):
            output.note(f"The first {len(found['items'])} of {found['count']}.")
    return list(found["items"])


def _nodes(api: Api, args: argparse.Namespace) -> list[Row]:
    cluster = args.cluster or only_cluster(api)
    query = {"gpu_type": args.gpu_type}
    nodes = [_of_node(n) for n in api.items(f"clusters/{quote(cluster, safe='')}/nodes", query)]
    nodes.sort(key=lambda row: row["node"])
    if args.sort != "name":
        nodes.sort(key=lambda row: row[args.sort] or 0, reverse=True)
    return nodes[: args.limit]


def _of_node(node: Row) -> Row:
    """Return the row of a node; `free`: healthy GPUs that nobody holds, not even in part."""
    held, gpus = node["allocated"], node["gpus"]
    return {
        "node": node["name"], "gpu_type": node["gpu_type"], "gpus": gpus, "held": held,
        "free": max(0, node["healthy_gpus"] - held), "share": held / gpus if gpus else None,
        "leaf": node["leaf"], "state": state_of(node) + node["problems"],
    }  # fmt: skip
