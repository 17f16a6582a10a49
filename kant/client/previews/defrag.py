"""`kant defrag`: whole nodes for a price that is told before."""

import argparse
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.errors import FAILED, ClientError, usage
from kant.client.jobs import only_job
from kant.client.places import only_cluster

Row = dict[str, Any]


def add_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True).add_argument
    what("--plan", action="store_true", help="show what would move and what that costs")
    what("--apply", action="store_true", help="move them now")
    flag = parser.add_argument
    flag("-n", "--count", type=int, metavar="N", help="number of whole nodes to free")
    flag("-G", "--gpu-type", help="GPU type of the nodes")
    flag("-j", "--job", metavar="JOB", help="free nodes for this waiting job")
    flag("-c", "--cluster", help="name of the cluster, if there are several")
    flag(
        "--at-most", type=float, metavar="GPU_HOURS", help="move nothing if more work would be lost"
    )
    flag("--reason", metavar="TEXT", help="reason, shown with the nodes")


def defrag(api: Api, args: argparse.Namespace) -> None:
    """Plan which nodes are emptied and by whose moves, and with --apply have it done."""
    if args.apply and args.reason is None:
        raise usage("Give a reason with --reason TEXT; it is shown with the nodes.")
    wish: Row = {}
    if args.job is not None:
        wish["job"] = only_job(api, args.job).removeprefix("jobs/")
    elif args.count and args.gpu_type:
        wish = {"count": args.count, "gpu_type": args.gpu_type}
    else:
        raise usage("Give --count and --gpu-type, or --job.")
    path = f"clusters/{quote(args.cluster or only_cluster(api), safe='')}/nodes"
    plan = api.post(f"{path}:plan", wish)
    hours = plan["lost_gpu_s"] / 3600
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
