"""The commands about quota changes that start or end at a given time."""

import argparse
from typing import Any

from kant.client import output
from kant.client.api import Api
from kant.client.errors import NOT_FOUND, ClientError, usage
from kant.client.places import NO_LIMIT
from kant.client.previews import effects
from kant.client.quota import moves

PENDING = ("waiting", "scheduled")
OPEN = (*PENDING, "temporary")
CHANGED = "yes: it can no longer be carried out"
NAMED = "of the order, or the beginning of it"


def listed(api: Api, args: argparse.Namespace) -> None:
    def row(order: dict[str, Any]) -> tuple[object, ...]:
        items = [
            f"{c['tenant']}/{c['gpu_type']} {output.number(c['guaranteed'])}"
            for c in order["cells"]
        ]
        items += [f"{t['tenant']} {moves.told(t, t['before'])}" for t in order["tenants"]]
        more = f" and {len(items) - 3} more" if len(items) > 3 else ""
        why = order["outcome"] or order["reason"]
        first = ", ".join(items[:3])
        return output.short(order["id"]), told(order), order["author"], first + more, why

    query = None if args.all else {"state": OPEN}
    found = list(api.items("quota-orders", query))
    heads = ("ID", "STATE", "AUTHOR", "CHANGES", "WHY")
    output.listed(args.output, found, heads, row, "No change of quotas is planned or temporary.")


def show(api: Api, args: argparse.Namespace) -> None:
    order = _one(api, args.order)
    if args.output == "json":
        output.document(order)
        return
    output.pairs((
        ("order", order["id"]), ("state", told(order)), ("by", order["author"]),
        ("why", order["reason"]), ("outcome", order["outcome"] or None),
    ))  # fmt: skip
    print()
    pending = order["state"] in PENDING
    rows = [
        (c["tenant"], c["gpu_type"], output.number(c["now" if pending else "before"]),
         ", ".join([output.number(c["guaranteed"]), *_terms(c)]),
         CHANGED if c["overtaken"] else c["outcome"] or "-")
        for c in order["cells"]
    ]  # fmt: skip
    heads = ("NOW", "ORDERED", "CHANGED SINCE") if pending else ("BEFORE", "ORDERED", "STAYED")
    if rows:
        output.table(("TENANT", "TYPE", *heads), rows, "-")
    moved = [
        (
            t["tenant"],
            moves.told(t, t["before"]),
            CHANGED if t["overtaken"] else t["outcome"] or "-",
        )
        for t in order["tenants"]
    ]
    if moved:
        output.table(("TENANT", "CHANGE", heads[-1]), moved, "-")
    if order["lapses_at"]:
        output.note(f"It fails unless it is approved by {output.when(order['lapses_at'])}.")


def act(api: Api, args: argparse.Namespace) -> None:
    """Act on an order as `verb` says: e.g. cancel it, end it or keep it."""
    order = _one(api, args.order)
    query = {"dry_run": "true"} if args.dry_run else None
    answer = api.post(f"quota-orders/{order['id']}/{args.verb}", {"reason": args.reason}, query)
    after = answer["result"] if args.dry_run else answer
    if args.output == "json":
        output.document(answer if "effects" in answer else after)
        return
    output.note(f"Order {output.short(order['id'])} is {told(after)}. {after['outcome']}".strip())
    if args.dry_run and "effects" in answer:
        effects.say(args, answer["effects"])
    elif args.dry_run:
        output.note("Nothing was changed: this was a dry run.")


def told(order: dict[str, Any]) -> str:
    """Return the state of an order, with the relevant times."""
    state = str(order["state"])
    if state in PENDING and order["starts_at"]:
        state += f" for {output.when(order['starts_at'])}"
    if state.startswith(OPEN) and order["ends_at"]:
        state += f" until {output.when(order['ends_at'])}"
    return state


def _terms(cell: dict[str, Any]) -> list[str]:
    """Return what an order sets besides the guarantee."""
    return [
        f"{name.replace('_', ' ')} {NO_LIMIT if value is None else value}"
        for name, value in cell["terms"].items()
    ]


def _one(api: Api, text: str) -> dict[str, Any]:
    """Return the order by its id or the beginning of the id.

    Raises ClientError if none or several match.
    """
    if not text:
        raise usage("Name an order by its id, or by the start of the id.")
    found = [one for one in api.items("quota-orders") if one["id"].startswith(text.lower())]
    if len(found) != 1:
        several = f"{text!r} matches {len(found)} orders; give more of the id."
        none = f"There is no order {text!r} that you may see. See: kant quota orders --all"
        raise usage(several) if found else ClientError(NOT_FOUND, none)
    return found[0]


VERBS = (
    ("approve", "approve a change of somebody else"),
    ("refuse", "refuse a change of somebody else"),
    ("cancel", "call off a change that is not applied yet"),
    ("end", "end a temporary change now; the old quotas come back"),
    ("keep", "keep a temporary change for good"),
)


def add_flags(command: Any, kinds: Any, actions: Any, formats: Any) -> None:
    """Add the commands: `command` makes one of `kinds` (about all), or of `actions` (about one)."""
    text = "list planned and temporary changes of quotas"
    all_of_them = command("orders", listed, text, formats, kinds)
    all_of_them.add_argument("--all", action="store_true", help="list changes that are over, too")
    command("show", show, "show a change, quota by quota", formats, actions).add_argument(
        "order", metavar="ID", help=NAMED
    )
    for verb, text in VERBS:
        made = command(verb, act, text, formats, actions)
        made.set_defaults(verb=verb)
        made.add_argument("order", metavar="ID", help=NAMED)
        made.add_argument(
            "--reason", required=True, metavar="TEXT", help="reason, kept with the change"
        )
        made.add_argument(
            "--dry-run", action="store_true", help="check and show the result; change nothing"
        )
