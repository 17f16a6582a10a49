"""`kant defrag`: free whole nodes at a cost that is shown beforehand."""

import argparse
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.errors import FAILED, ClientError, usage
from kant.client.jobs import only_job
from kant.client.places import only_cluster
from kant.client.previews.nodes import deadline

Row = dict[str, Any]


def add_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True).add_argument
    what("--plan", action="store_true", help="show what would move and what that costs")
    what("--apply", action="store_true", help="move them now")
    what(
        "--at",
        type=deadline,
        metavar="WHEN",
        help="do it later: 6h or a time; a new plan is made then",
    )
    what("--orders", action="store_true", help="list the orders for later")
    what("--cancel", metavar="ORDER", help="call off an order, by the start of its id")
    flag = parser.add_argument
    flag("-n", "--count", type=int, metavar="N", help="number of whole nodes to free")
    flag("-G", "--gpu-type", help="GPU type of the nodes")
    flag("-j", "--job", metavar="JOB", help="free nodes for this waiting job")
    flag("-c", "--cluster", help="name of the cluster, if there are several")
    flag(
        "--at-most", type=float, metavar="GPU_HOURS", help="move nothing if more work would be lost"
    )
    flag(
        "--until",
        type=deadline,
        metavar="WHEN",
        help="with --at: try until then (default: 15 minutes)",
    )
    flag(
        "--moves",
        type=int,
        metavar="N",
        help="with --at: move nothing if more jobs would move (default: as many as now)",
    )
    flag("--reason", metavar="TEXT", help="reason, shown with the nodes")


def defrag(api: Api, args: argparse.Namespace) -> None:
    """Plan which nodes are emptied and which jobs move; carry it out now or order it for a time."""
    cluster = args.cluster or only_cluster(api)
    if args.orders or args.cancel is not None:
        _orders(api, args, f"clusters/{quote(cluster, safe='')}/plan-orders")
        return
    if args.until and not args.at:
        raise usage("--until needs --at.")
    if (args.apply or args.at) and args.reason is None:
        raise usage("Give a reason with --reason TEXT; it is shown with the nodes.")
    wish: Row = {}
    if args.job is not None:
        wish["job"] = only_job(api, args.job).removeprefix("jobs/")
    elif args.count and args.gpu_type:
        wish = {"count": args.count, "gpu_type": args.gpu_type}
    else:
        raise usage("Give --count and --gpu-type, or --job.")
    path = f"clusters/{quote(cluster, safe='')}/nodes"
    plan = api.post(f"{path}:plan", wish)
    hours = plan["lost_gpu_s"] / 3600
    if args.at:
        _order(api, args, cluster, wish, plan)
        return
    if args.output == "json":
        output.document(plan)
    else:
        _say(plan, hours)
    if not args.apply:
        return
    if not plan["nodes"] or not plan["reached"]:
        raise ClientError(FAILED, "Nothing was moved: no plan frees that many nodes.")
    if args.at_most is not None and hours > args.at_most:
        raise ClientError(FAILED, f"Nothing was moved: {hours:.2f} GPU-hours would be lost.")
    api.post(f"{path}:empty", {"nodes": plan["nodes"], "reason": args.reason})
    output.note(f"{', '.join(plan['nodes'])} are being emptied. See: kant nodes")


def _order(api: Api, args: argparse.Namespace, cluster: str, wish: Row, plan: Row) -> None:
    """Order the plan for a time; by default it may cost at most what it costs now."""
    lost = plan["lost_gpu_s"] if args.at_most is None else args.at_most * 3600
    body = {
        **wish,
        "starts_at": args.at,
        "ends_at": args.until,
        "most_lost_gpu_s": lost,
        "most_moves": len(plan["moves"]) if args.moves is None else args.moves,
        "reason": args.reason,
    }
    made = api.post(f"clusters/{quote(cluster, safe='')}/plan-orders", body)
    if args.output == "json":
        output.document(made)
        return
    _say(plan, plan["lost_gpu_s"] / 3600)
    most = f"at most {lost / 3600:.2f} GPU-hours and {body['most_moves']} jobs"
    starts = output.when(made["starts_at"])
    output.note(f"Ordered for {starts}, {most}. Call it off: kant defrag --cancel {made['id'][:8]}")


def _orders(api: Api, args: argparse.Namespace, path: str) -> None:
    if args.cancel is None:
        heads = (
            "ORDER",
            "FREES",
            "FROM",
            "UNTIL",
            "GPU-HOURS AT MOST",
            "STATE",
            "BY",
            "HOW IT WENT",
        )
        output.listed(args.output, list(api.items(path)), heads, _order_row, "There are no orders.")
        return
    if args.reason is None:
        raise usage("Give a reason with --reason TEXT; it is kept in the audit trail.")
    found = [one["id"] for one in api.items(path) if one["id"].startswith(args.cancel)]
    if len(found) != 1:
        wrong = "Several orders match." if found else "There is no such order."
        raise ClientError(FAILED, f"{wrong} See: kant defrag --orders")
    done = api.post(f"{path}/{found[0]}/cancel", {"reason": args.reason})
    if args.output == "json":
        output.document(done)
    else:
        output.note(done["outcome"])


def _order_row(order: Row) -> tuple[object, ...]:
    what = (
        f"{order['count']} × {order['gpu_type']}" if order["count"] else f"job {order['job'][:8]}"
    )
    hours = output.number(round(order["most_lost_gpu_s"] / 3600, 2))
    times = output.when(order["starts_at"]), output.when(order["ends_at"])
    return (
        order["id"][:8],
        what,
        *times,
        hours,
        order["state"],
        order["author"],
        order["outcome"] or ", ".join(order["nodes"]) or "-",
    )


def _say(plan: Row, hours: float) -> None:
    if not plan["nodes"]:
        told = (
            "Nothing to do: the nodes are free already."
            if plan["reached"]
            else "No plan was found: no job fits on other partly used nodes."
        )
        output.note(told)
        return
    rows = []
    for move in plan["moves"]:
        job = move["job"]
        lost = output.number(round(move["lost_gpu_s"] / 3600, 2))
        what = "all" if move["whole"] else f"{move['pods']} pods"
        targets = ", ".join(move["targets"][:4]) + ", …" * (len(move["targets"]) > 4)
        named = job["name"] or "(another tenant)", job["tenant"] or "-"
        rows.append((*named, output.number(job["gpus"]), what, lost, targets))
    output.table(("JOB", "TENANT", "GPUS", "MOVES", "GPU-HOURS LOST", "TO"), rows, "")
    before, after = plan["before"], plan["after"]
    starts = ", ".join(job["name"] or "(another tenant)" for job in plan["starts"])
    output.pairs((
        ("emptied", ", ".join(plan["nodes"])),
        ("price", f"{hours:.2f} GPU-hours of work"),
        ("starts", starts or "no waiting job"),
        ("GFR", f"{before['gfr']:.1%} → {after['gfr']:.1%}"),
        ("whole nodes", f"{before['idle']} → {after['idle']}"),
    ))  # fmt: skip
    if not plan["reached"]:
        output.note(f"Fewer nodes than requested: {plan['gained']}.")
