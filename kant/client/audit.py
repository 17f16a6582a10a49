"""What commands about past changes share: changes of quotas and of queues."""

import argparse
from collections.abc import Callable, Collection
from typing import Any

from kant.client import output
from kant.client.api import Api
from kant.client.errors import NOT_FOUND, ClientError, usage
from kant.client.previews import kept

Row = dict[str, Any]


def list_changes(
    api: Api, args: argparse.Namespace, what: str, difference: Callable[[Row], str]
) -> None:
    """List changes of quotas or queues; `what`: "quota" or "queue".

    For previewed changes, also list what the preview said and what happened in the hour after.
    """

    query = {"action": what, "tenant": args.tenant, "limit": args.limit}
    found = api.get("audit", query)["items"]
    previewed = any(change["preview"] for change in found)

    def row(c: Row) -> tuple[object, ...]:
        why = f"{c['reason']} (a revert)" if c["reverts"] else c["reason"]
        who = (output.when(c["at"]), c["actor"])
        preview = (kept.told(c), kept.happened(c)) if previewed else ()
        return output.short(c["id"]), *who, c["subject"], difference(c), why, *preview

    heads: tuple[str, ...] = ("ID", "WHEN", "WHO", what.upper(), "CHANGE", "WHY")
    heads += ("TOLD BEFORE", "IN THE HOUR AFTER") if previewed else ()
    empty = f"No {what} of a tenant that you administer has been changed."
    output.listed(args.output, found, heads, row, empty)


def change_of(api: Api, what: str, text: str) -> Row:
    """Return a change of a quota or queue by its id or the beginning of the id.

    Raises ClientError if none or several match.
    """
    if not text:
        raise usage("Name a change by its id, or by the start of the id.")
    found = api.get("audit", {"action": what, "q": text, "limit": 500})["items"]
    found = [change for change in found if change["id"].startswith(text.lower())]
    if len(found) != 1:
        several = f"{text!r} matches {len(found)} changes; give more of the id."
        none = f"There is no change {text!r} of a {what} that you may see. See: kant {what} changes"
        raise usage(several) if found else ClientError(NOT_FOUND, none)
    return dict(found[0])


def now_or_none(api: Api, path: str) -> Row | None:
    """Return what exists now; None if it, or what it belongs to, does not exist.

    A write to it will say which of them is missing.
    """
    try:
        return api.get(path)
    except ClientError as error:
        if error.code != NOT_FOUND:
            raise
        return None


def say_change(
    args: argparse.Namespace,
    before: Row | None,
    after: Row | None,
    warnings: list[str],
    names: Collection[str],
    shown: Callable[[Row | None, str], str],
    beside: Collection[str] = (),
) -> None:
    """Print a change as before and after; None = did or does not exist.

    `names`: of settings. `beside`: of other values to show. `shown` prints each value.
    """
    if args.output == "json":
        output.document({"before": before, "after": after, "warnings": warnings})
    else:
        rows = [(name, shown(before, name), shown(after, name)) for name in (*names, *beside)]
        output.table(("", "BEFORE", "AFTER"), rows, "")
    warn(warnings)
    if before and after and all(before[name] == after[name] for name in names):
        output.note("Nothing to revert: it already has the old value.")
    elif args.dry_run:
        output.note("Nothing was changed: this was a dry run.")


def warn(warnings: list[str]) -> None:
    for warning in warnings:
        output.note(f"Warning: {warning}")
