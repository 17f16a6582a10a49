"""Tenants in drafts and orders: their new place in the tree and the weight of their share."""

import argparse
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.errors import usage

TOP = "the top of the tree"


def told(one: dict[str, Any], now: dict[str, Any]) -> str:
    """Return what a draft or order does to a tenant: "below org → ml, weight 1 → 2"."""
    sets = one["sets"]
    if sets is None:
        texts = (f"{name} {text!r}" for name, text in one["typed"].items())
        return f"{', '.join(texts)} ({one['fault']})"
    parts = []
    if "parent" in sets:
        parts.append(f"below {now.get('parent') or TOP} → {sets['parent'] or TOP}")
    if "weight" in sets:
        parts.append(f"weight {now.get('weight', 0):g} → {sets['weight']:g}")
    return ", ".join(parts)


def faster(one: dict[str, Any]) -> str:
    """Return who changed it since the edit began; "-" = nobody."""
    by = one["overtaken"]
    if by is None:
        return "-"
    why = f" ({by['reason']})" if by["reason"] else ""
    fields = (
        f"; {f['field']} theirs {f['theirs']}, yours {f['mine']}, was {f['base']}"
        for f in by["conflicts"]
    )
    return f"by {by['by'] or 'somebody'}{why}{''.join(fields)}"


def move_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the change of a tenant from the flags. Raises ClientError if there are none."""
    given: dict[str, Any] = {"tenant": args.tenant}
    if args.below is not None or args.top:
        given["parent"] = args.below
    if args.weight is not None:
        given["weight"] = args.weight
    if len(given) == 1:
        raise usage("Say where with --below TENANT or --top, or how much with --weight.")
    return given | ({"over": True} if args.over else {})


def weight(text: str) -> float:
    """Parse a weight. Raises ArgumentTypeError."""
    whole, _, part = text.partition(".")
    digits = whole + part
    if not (digits.isascii() and digits.isdigit() and 0 < len(text) < 19):
        raise argparse.ArgumentTypeError(f"{text!r} is not a weight, e.g. 2 or 0.5")
    return float(text)


def difference(change: dict[str, Any]) -> str:
    """Return what a change did to a tenant, field by field."""
    before, after = change["before"] or {}, change["after"] or {}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {_said(before, name)} → {_said(after, name)}" for name in names)


def _said(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return "-" if value is None else str(value)


def revert(api: Api, args: argparse.Namespace) -> bool:
    """Revert a change of a tenant's place or weight; False if no such change has this id."""
    found = api.get("audit", {"action": "tenant.changed", "q": args.change, "limit": 500})["items"]
    found = [one for one in found if one["id"].startswith(args.change.lower())]
    if len(found) > 1:
        raise usage(f"{args.change!r} matches {len(found)} changes; give more of the id.")
    if not found:
        return False
    (record,) = found
    name = record["subject"]
    path = f"tenants/{quote(name, safe='')}"
    before = api.get(path)
    answer = api.post(
        f"{path}/changes/{record['id']}/revert",
        {"reason": args.reason},
        {"dry_run": "true"} if args.dry_run else None,
    )
    after = answer["result"] if args.dry_run else answer
    if args.output == "json":
        output.document({"before": before, "after": after})
        return True
    rows = [(n, _said(before, n), _said(after, n)) for n in ("parent", "weight")]
    output.table(("", "BEFORE", "AFTER"), rows, "")
    if args.dry_run:
        output.note("Nothing was changed: this was a dry run.")
    return True


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", help="name of the tenant")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--below", metavar="TENANT", help="tenant above it then")
    where.add_argument("--top", action="store_true", help="at the top of the tree; for operators")
    parser.add_argument("--weight", type=weight, metavar="N",
                        help="weight of its share, used if the policy has fair share")  # fmt: skip
    parser.add_argument("--over", action="store_true",
                        help="overwrite a change that somebody else has made since")  # fmt: skip
