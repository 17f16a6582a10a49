"""`kant usage`: who used how many GPU-hours."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from kant.client import output
from kant.client.api import Api

KEYS = ("tenant", "user", "gpu_type", "kind", "cluster", "day", "month")
HEADS = {
    "gpu_hours": "GPU-HOURS",
    "lost_gpu_hours": "LOST",
    "pods_started": "PODS",
    "borrowed_gpu_hours": "BORROWED",
    "idle_gpu_hours": "IDLE",
}
DECIMALS = {"pods_started": 0}  # otherwise 2
BY = "KEYS"


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag(
        "--since",
        metavar="DATE|DAYS",
        help="first day: 2030-01-31, or 30d for 30 days ago (default: the first of this month)",
    )
    flag("--until", metavar="DATE", help="last day (default: today)")
    each = f"one row for each of {', '.join(KEYS)}, separated by commas (default: tenant,gpu_type)"
    flag("--by", metavar=BY, help=each)
    flag("-t", "--tenant", help="only of this tenant and tenants below it")
    flag("-G", "--gpu-type", help="only of this GPU type")
    flag("-c", "--cluster", help="only on this cluster")


def usage(api: Api, args: argparse.Namespace) -> None:
    names = ("since", "until", "by", "tenant", "gpu_type", "cluster")
    query = {name: getattr(args, name) for name in names}
    if args.output == "csv":
        sys.stdout.write(api.csv("usage", query))
        return
    found = api.get("usage", query)
    if args.output == "json":
        output.document(found)
        return
    columns = [*found["by"], *HEADS]
    for name in ("borrowed_gpu_hours", "idle_gpu_hours"):
        if all(item[name] is None for item in found["items"]):
            columns.remove(name)

    def cell(item: dict[str, Any], name: str) -> str:
        if name in HEADS:
            value = item[name]
            return "not known" if value is None else f"{value:.{DECIMALS.get(name, 2)}f}"
        return item[name] or "(no user)"

    period = f"from {found['since']} to {found['until']} (days in UTC)"
    heads = [HEADS.get(name, name.replace("gpu_type", "type").upper()) for name in columns]
    table = ([cell(item, name) for name in columns] for item in found["items"])
    output.table(heads, table, f"No GPU was allocated {period}.")
    if found["items"]:
        output.note(f"{found['total']['gpu_hours']:.2f} GPU-hours {period}.")
    if found["complete_from"] is not None and found["complete_from"] > found["since"]:
        output.note(f"Kant has no data for days before {found['complete_from']}.")
    if found["borrowed_from"] is not None and found["borrowed_from"] > found["since"]:
        output.note(f"Borrowed GPU-hours are known from {found['borrowed_from']} on.")


def keys(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield completions for a list of KEYS with this beginning, for shell completion."""
    *before, last = beginning.split(",")
    for key in KEYS:
        if key.startswith(last) and key not in before:
            yield ",".join((*before, key)), ""
