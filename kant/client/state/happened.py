"""`kant events`: what happened to one job, or to all that the user may see."""

import argparse
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

from kant.client import jobs, output
from kant.client.api import Api
from kant.client.errors import usage
from kant.client.replays import moment, moment_or_length

FILTERS = ("kind", "tenant", "cluster", "node")
KINDS = "kind, e.g. PREEMPTED, starts, ends, losses, changes, quota, node.drained"


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag(
        "job", metavar="JOB", nargs="?", help="only of this job: its id, its beginning, or the name"
    )
    flag("-k", "--kind", help=KINDS)
    flag("-t", "--tenant", help="only of this tenant and tenants below it")
    flag("-c", "--cluster", help="only of this cluster")
    flag("--node", help="only of this node and of jobs that had places on it")
    flag("--since", type=moment_or_length, metavar="WHEN|TIME",
         help="start of the period: 2030-01-24T00:00Z, or 2h before its end "
         "(default: 1d)")  # fmt: skip
    flag("--until", type=moment, metavar="WHEN", help="end of the period (default: now)")
    flag(
        "--limit",
        type=int,
        default=50,
        metavar="N",
        help="at most this many, the newest first (default: 50)",
    )
    flag("--all", action="store_true", help="no limit")


def events(api: Api, args: argparse.Namespace) -> None:
    """Print the events of a job, oldest first, or all events, newest first."""
    if args.job is not None:
        given = [name for name in (*FILTERS, "since", "until") if getattr(args, name) is not None]
        if given:
            raise usage(f"--{given[0]} filters all events. Leave out either it or JOB.")
        jobs.events(api, args)
        return
    if args.limit < 1:
        raise usage("--limit must be at least 1.")
    query = {name: getattr(args, name) for name in FILTERS} | _period(args.since, args.until)
    query["limit"] = 500 if args.all else min(args.limit, 500)
    found = list(islice(api.items("events", query), None if args.all else args.limit))
    heads = ("WHEN", "EVENT", "OF", "TENANT", "REASON", "MESSAGE", "BY")
    output.listed(args.output, found, heads, _row, "Nothing happened that you may see.")


def _row(event: dict[str, Any]) -> tuple[object, ...]:
    what = (event["kind"], event["subject"], event["tenant"], event["reason"], event["message"])
    return output.when(event["at"]), *what, event["by"]


def _period(since: "datetime | int | None", until: "datetime | None") -> dict[str, Any]:
    """Return a period as the server takes it; a length counts back from the end."""
    if isinstance(since, int):
        since = (until or datetime.now(timezone.utc)) - timedelta(seconds=since)
    times = {"since": since, "until": until}
    return {name: at.isoformat() if at else None for name, at in times.items()}
