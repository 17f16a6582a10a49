"""`kant past`: the state of a cluster at a past time."""

import argparse
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.places import only_cluster
from kant.client.replays import moment_or_length

Row = dict[str, Any]


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("at", type=moment_or_length, metavar="WHEN|TIME",
         help="e.g. 2030-01-24T00:00Z, or 2h for two hours ago")  # fmt: skip
    flag("-G", "--gpu-type", help="only this GPU type")
    flag("-c", "--cluster", help="the cluster, if there are several")


def past(api: Api, args: argparse.Namespace) -> None:
    """Print what was allocated by GPU type, and which jobs waited; as JSON also each node."""
    at = args.at
    if not isinstance(at, datetime):
        at = datetime.now(timezone.utc) - timedelta(seconds=at)
    cluster = args.cluster or only_cluster(api)
    query = {"at": at.isoformat(), "gpu_type": args.gpu_type}
    found = api.get(f"clusters/{quote(cluster, safe='')}/past", query)
    if args.output == "json":
        output.document(found)
        return
    for model in sorted({node["gpu_type"] for node in found["nodes"]}):
        nodes = [node for node in found["nodes"] if node["gpu_type"] == model]
        held = output.number(sum(node["allocated"] for node in nodes))
        print(f"{model}: {held} of {sum(node['gpus'] for node in nodes)} GPUs allocated")
    waited = f"{found['waiting_jobs']} jobs waited for {output.number(found['waiting_gpus'])} GPUs"
    print(f"{output.when(found['at'])}: {waited}.")
    if found["waiting"]:
        heads = ("ID", "JOB", "TENANT", "GPUS", "PRIORITY", "SUBMITTED", "REASON")
        output.table(heads, map(_row, found["waiting"]), "")


def _row(job: Row) -> tuple[object, ...]:
    amounts = (output.number(job["gpus"]), job["priority"], output.when(job["submitted_at"]))
    return output.short(job["job"]), job["name"], job["tenant"], *amounts, job["reason"]
