"""`kant pending`, `kant loans` and `kant schedulers`.

They show why jobs wait for GPUs, who borrows whose guarantee, and who leads what and how busy it
is.
"""

import argparse
from typing import Any

from kant.client import output
from kant.client.api import Api

Row = dict[str, Any]


def add_pending_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("-t", "--tenant", help="of this tenant and all below it")
    flag("-G", "--gpu-type", help="for this GPU type")
    flag("-c", "--cluster", help="on this cluster")


def pending(api: Api, args: argparse.Namespace) -> None:
    """Print the reasons why jobs wait, the one with the most GPUs first."""

    def row(one: Row) -> tuple[object, ...]:
        amounts = (output.number(one["gpus"]), one["jobs"], output.ago(one["since"]))
        reason = one["reason"] or "(not looked at yet)"
        return reason, one["gpu_type"] or "any", *amounts, "never starts" * one["never"]

    query = {name: getattr(args, name) for name in ("tenant", "gpu_type", "cluster")}
    heads = ("REASON", "TYPE", "GPUS", "JOBS", "OLDEST", "")
    found = api.get("pending", query)["items"]
    output.listed(args.output, found, heads, row, "No job waits that you may see.")


def add_loan_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("-t", "--tenant", help="of this tenant, as borrower or lender")
    flag("-G", "--gpu-type", help="of this GPU type")


def loans(api: Api, args: argparse.Namespace) -> None:
    """Print the loans, those with the most wanted back first."""

    def row(one: Row) -> tuple[object, ...]:
        ends = (_tenant(one["borrower"]), _tenant(one["lender"]), one["gpu_type"])
        amounts = (output.number(one["gpus"]), output.number(one["wanted"]))
        return *ends, *amounts, output.ago(one["since"]), len(one["jobs"])

    found = api.get("loans", {"tenant": args.tenant, "gpu_type": args.gpu_type})
    heads = ("BORROWER", "BORROWS OF", "TYPE", "GPUS", "WANTED BACK", "SINCE", "JOBS")
    none = "No loan matches." if args.tenant or args.gpu_type else "Nobody borrows."
    output.listed(args.output, found["items"], heads, row, none)
    if found["items"] and args.output == "table":
        print()
        of_sums = ("TENANT", "BORROWS", "WANTED BACK", "LENDS", "ASKS FOR")
        names = ("borrowed", "wanted", "lent", "asks_for")
        sums = ((_tenant(one["tenant"]), *(output.number(one[n]) for n in names))
                for one in found["sums"])  # fmt: skip
        output.table(of_sums, sums, "")
        where = ", ".join(found["reclaiming"])
        output.note(f"Owners take them back by preemption on {where}." if where
                    else "They come back as jobs end; no policy takes them back.")  # fmt: skip


def add_scheduler_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--cluster", help="of this cluster")


def schedulers(api: Api, args: argparse.Namespace) -> None:
    """Print the schedulers by cluster, then what is wrong with them."""

    def row(one: Row) -> tuple[object, ...]:
        leads = (one["holder"] or "(nobody)", output.ago(one["since"]))
        mean = "-" if one["pass_seconds"] is None else f"{1000 * one['pass_seconds']:.0f}"
        lately = (f"{one['binds_per_second']:.1f}", mean, f"{100 * one['busy']:.0f} %")
        left = (one["backlog"]["effects"], one["backlog"]["news"], one["failed"])
        return one["cluster"], one["scope"] or "(all)", *leads, one["nodes"], *lately, *left

    found = api.get("schedulers", {"cluster": args.cluster})["items"]
    heads = ("CLUSTER", "SHARD", "LEADER", "SINCE", "NODES", "BINDS/S", "PASS MS", "BUSY",
             "EFFECTS", "NEWS", "FAILED")  # fmt: skip
    output.listed(args.output, found, heads, row, "No scheduler has led a cluster yet.")
    if args.output == "table":
        for one in found:
            where = " / ".join(filter(None, (one["cluster"], one["scope"])))
            for said in one["advice"]:
                output.note(f"{where}: {said}")


def _tenant(name: "str | None") -> str:
    return "(another)" if name is None else name or "(nobody any more)"
