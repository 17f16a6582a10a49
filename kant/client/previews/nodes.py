"""The commands that take nodes out of service and back, and preview the effects on jobs."""

import argparse
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.errors import usage
from kant.client.places import only_cluster
from kant.client.previews import effects
from kant.client.submission import duration_s

NODE = "NODE"


def add_nodes(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("nodes", nargs="*", metavar=NODE, help=text)
    parser.add_argument("-c", "--cluster", help="name of the cluster, if there are several")
    parser.add_argument("--reason", metavar="TEXT", help="reason, shown with the node")
    parser.add_argument(
        "--preview", action="store_true", help="show the effect on jobs; change nothing"
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add flags for a number of nodes of a type, for when no nodes are named."""
    flag = parser.add_argument
    flag(
        "-n",
        "--count",
        type=int,
        metavar="N",
        help="preview this many nodes, the cheapest to take out",
    )
    flag("-G", "--gpu-type", help="GPU type of these nodes")


def act(api: Api, args: argparse.Namespace) -> None:
    """Cordon, drain or uncordon nodes, or preview that."""
    cluster = args.cluster or only_cluster(api)
    body: dict[str, Any] = {}
    if getattr(args, "deadline", None) is not None:
        body["evict_at"] = args.deadline
    if args.preview:
        preview(api, args, cluster, args.verb, body)
        return
    if not args.nodes:
        raise usage("Name nodes. With --preview you may give --count and --gpu-type instead.")
    if args.reason is None:
        raise usage("Give a reason with --reason TEXT; it is kept with the change.")
    told = [
        api.post(f"{_path(cluster)}/{quote(name, safe='')}/{args.verb}",
                 {"reason": args.reason, **body})
        for name in args.nodes
    ]  # fmt: skip
    heads = ("NODE", "STATE", "PODS LEFT", "LEAVE BY", "WHY")
    output.listed(args.output, told, heads, _row, "")


def capacity(api: Api, args: argparse.Namespace) -> None:
    """Preview what more or fewer nodes of a GPU type would do to jobs."""
    args.nodes, args.count = [], args.add or args.remove
    cluster = args.cluster or only_cluster(api)
    preview(api, args, cluster, "add" if args.add else "remove", {})


def preview(
    api: Api, args: argparse.Namespace, cluster: str, action: str, body: dict[str, Any]
) -> None:
    body = {"action": action, **body}
    if args.nodes:
        body["nodes"] = args.nodes
    elif getattr(args, "count", None) and args.gpu_type:
        body |= {"count": args.count, "gpu_type": args.gpu_type}
    else:
        raise usage("Name nodes, or give --count and --gpu-type.")
    found = api.post(f"{_path(cluster)}:preview", body)
    if args.output == "json":
        output.document(found)
        return
    if not args.nodes:
        output.note(f"Nodes: {', '.join(found['nodes'])}")
    effects.say(args, found["effects"])


def _path(cluster: str) -> str:
    return f"clusters/{quote(cluster, safe='')}/nodes"


def _row(node: dict[str, Any]) -> tuple[object, ...]:
    order = node["order"]
    if order is None:
        return node["name"], "takes jobs", "-", "-", "-"
    by = output.when(order["evict_at"]) if order["evict_at"] else "-"
    return node["name"], order["state"], order["pods_left"], by, order["reason"]


def deadline(text: str) -> str:
    """Parse a time: "0s" or "2h" from now, or RFC 3339. Raises ArgumentTypeError."""
    if text[:1] in "0123456789" and text[-1:] in "smhdw0123456789" and "T" not in text:
        return (datetime.now(timezone.utc) + timedelta(seconds=duration_s(text))).isoformat()
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        wrong = f"{text!r} is not a time, e.g. 0s, 2h or 2030-01-31T18:00Z"
        raise argparse.ArgumentTypeError(wrong) from None
    return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).isoformat()
