"""The commands about drafts of quota changes."""

import argparse
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api, at_version
from kant.client.audit import now_or_none, warn
from kant.client.errors import NOT_FOUND, ClientError
from kant.client.places import NO_LIMIT, amount, limit, quota_path
from kant.client.previews import effects
from kant.client.previews.nodes import deadline
from kant.client.quota import moves, sheets
from kant.client.quota.orders import told

DRAFT = "collect changes of quotas in a draft on the server, and apply it as a whole"
EMPTY = "Your draft is empty. See: kant quota draft set --help"


def show(api: Api, args: argparse.Namespace) -> None:
    """Show a draft beside the current values, and what others changed meanwhile."""
    draft = api.get(_path(args.user or _me(api)))
    if args.output == "json":
        output.document(draft)
        return
    rows = [
        (one["tenant"], one["gpu_type"], output.number(one["now"]), _wanted(one), _faster(one))
        for one in draft["cells"]
    ]
    if rows:
        output.table(("TENANT", "TYPE", "NOW", "DRAFT", "CHANGED MEANWHILE"), rows, EMPTY)
    moved = [(t["tenant"], moves.told(t, t["now"]), moves.faster(t)) for t in draft["tenants"]]
    if moved:
        print("\n" if rows else "", end="")
        output.table(("TENANT", "CHANGE", "CHANGED MEANWHILE"), moved, EMPTY)
    about = f"reason: {draft['reason']}; " if draft["reason"] else ""
    output.note(
        f"By {draft['author']}, {about}last written {output.ago(draft['updated_at'])}, kept until "
        f"{output.when(draft['kept_until'])}. It is not applied yet."
    )


def listed(api: Api, args: argparse.Namespace) -> None:
    def row(draft: dict[str, Any]) -> tuple[object, ...]:
        names = [f"{c['tenant']}/{c['gpu_type']}" for c in draft["cells"]]
        names += [t["tenant"] for t in draft["tenants"]]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        when = output.ago(draft["updated_at"])
        counts = len(draft["cells"]), len(draft["tenants"])
        return draft["author"], when, *counts, ", ".join(names[:3]) + more, draft["reason"]

    heads = ("AUTHOR", "WRITTEN", "QUOTAS", "TENANTS", "OF", "WHY")
    found = list(api.items("quota-drafts"))
    output.listed(args.output, found, heads, row, "There is no draft that you may see.")


def set_cell(api: Api, args: argparse.Namespace) -> None:
    """Write one quota into the draft; `--over` overrides what somebody else has set meanwhile."""
    name = "typed" if isinstance(args.gpus, str) else "guaranteed"
    cell = {"tenant": args.tenant, "gpu_type": args.gpu_type, name: args.gpus}
    terms = {"mode": args.mode, "borrow_limit": args.borrow_limit, "lend_limit": args.lend_limit}
    given = {name: value for name, value in terms.items() if value is not None}
    cell |= {name: None if value == NO_LIMIT else value for name, value in given.items()}
    if args.over:
        now = now_or_none(api, quota_path(args.tenant, args.gpu_type))
        cell["version"] = now["version"] if now else 0
    _write(api, args, cell)


def drop(api: Api, args: argparse.Namespace) -> None:
    """Remove a quota or a tenant from the draft: its current value stays."""
    if args.gpu_type is None:
        draft = _mine(api)
        found = [one for one in draft["tenants"] if one["tenant"] == args.tenant]
        if not found:
            text = f"The draft does not change the place or weight of {args.tenant!r}."
            raise ClientError(NOT_FOUND, text)
        now = {name: found[0]["now"][name] for name in found[0]["typed"]}
        _write_tenant(api, args, {"tenant": args.tenant, **now})
        return
    _write(api, args, {"tenant": args.tenant, "gpu_type": args.gpu_type, "guaranteed": None})


def move(api: Api, args: argparse.Namespace) -> None:
    """Write a tenant's new place or weight into the draft."""
    _write_tenant(api, args, moves.move_of(args))


def import_file(api: Api, args: argparse.Namespace) -> None:
    """Write everything that a CSV file changes into the draft, or nothing."""
    me = _path(_me(api))
    cells, places = sheets.edits(api, args.file, now_or_none(api, me))
    if not cells:
        output.note("Nothing to import: the quotas already match the file.")
        return
    try:
        draft = api.patch(me, {"cells": cells, "refuse_unreadable": True})
    except ClientError as error:
        raise sheets.by_place(error, places) from None
    if args.output == "json":
        output.document(draft)
    else:
        _say_size(draft)


def export(api: Api, args: argparse.Namespace) -> None:
    """Write all quotas as CSV, as the draft would make them."""
    sheets.write(api, sheets.drafted(api.get(_path(args.user or _me(api)))))


def preview(api: Api, args: argparse.Namespace) -> None:
    draft = _mine(api)
    answer = _apply(api, draft, {"reason": "preview"}, dry_run=True)
    effects.say(args, answer["effects"])


def apply(api: Api, args: argparse.Namespace) -> None:
    """Apply the draft in its current version, and show the quotas before and after."""
    draft = _mine(api)
    given = {"reason": args.reason, "starts_at": args.starts, "ends_at": args.until}
    body = {name: value for name, value in given.items() if value is not None}
    answer = _apply(api, draft, body, dry_run=args.dry_run)
    done = answer["result"] if args.dry_run else answer
    order = done["order"]
    if args.output == "json":
        output.document(done)
    elif order and order["applied_at"] is None:
        output.note(f"Order {output.short(order['id'])} is {told(order)}.")
    else:
        before = {(one["tenant"], one["gpu_type"]): one["now"] for one in draft["cells"]}
        rows = [
            (q["tenant"], q["gpu_type"], output.number(before[q["tenant"], q["gpu_type"]]),
             output.number(q["guaranteed"]))
            for q in done["quotas"]
        ]  # fmt: skip
        was = {one["tenant"]: one for one in draft["tenants"]}
        moved = [(t["tenant"], moves.told(was[t["tenant"]], was[t["tenant"]]["now"]))
                 for t in done["tenants"]]  # fmt: skip
        if rows or not moved:
            output.table(
                ("TENANT", "TYPE", "BEFORE", "AFTER"),
                rows,
                "Nothing to change: the quotas have these values already.",
            )
        if moved:
            output.table(("TENANT", "CHANGE"), moved, "-")
        if order:
            output.note(f"Order {output.short(order['id'])} is {told(order)}.")
    warn(answer["warnings"])
    if args.dry_run:
        output.note("Nothing was changed: this was a dry run.")


def discard(api: Api, _args: argparse.Namespace) -> None:
    api.delete(_path(_me(api)))
    output.note("Discarded the draft.")


def add_flags(command: Any, kinds: Any, formats: Any) -> None:
    """Add the commands; `command` makes a command of `kinds` with output `formats`."""
    one = command(
        "show", show, "show a draft, and which quotas others have changed since", formats, kinds
    )
    one.add_argument("user", nargs="?", help="author of the draft (default: you)")
    command("list", listed, "list drafts: who is about to change quotas", formats, kinds)
    text = "set a guarantee in your draft"
    made = command("set", set_cell, text, formats, kinds)
    gone = command("drop", drop, "remove a quota or a tenant from your draft", formats, kinds)
    for parser in (made, gone):
        parser.add_argument("tenant", metavar="TENANT", help="name of the tenant")
    made.add_argument("gpu_type", metavar="GPU_TYPE", help="GPU type of the quota")
    gone.add_argument("gpu_type", metavar="GPU_TYPE", nargs="?",
                      help="GPU type of the quota (default: none, the place and weight "
                      "of the tenant)")  # fmt: skip
    made.add_argument("gpus", type=_amount_or_cell, metavar="GPUS",
                      help="GPUs that the tenant always gets; or a cell of the quotas CSV in "
                      "quotes, e.g. '8 shared borrow 4 lend any'")  # fmt: skip
    made.add_argument("--mode", choices=("shared", "isolated"),
                      help="isolated: neither borrows nor lends")  # fmt: skip
    for name, what in (("--borrow-limit", "borrow"), ("--lend-limit", "lend")):
        made.add_argument(name, type=limit, metavar="GPUS",
                          help=f"most GPUs that it may {what}, or {NO_LIMIT}")  # fmt: skip
    made.add_argument("--over", action="store_true",
                      help="overwrite a change that somebody else has made since")  # fmt: skip
    text = "write the quotas of a CSV file into your draft, all or none"
    sheets.add_flags(command("import", import_file, text, formats, kinds))
    text = "write all quotas as CSV, as a draft would make them"
    written = command("export", export, text, (), kinds)
    written.add_argument("user", nargs="?", help="author of the draft (default: you)")
    text = "move a tenant in the tree, or weigh its share, in your draft"
    moves.add_flags(command("move", move, text, formats, kinds))
    command("preview", preview, "show what your draft would do to jobs", formats, kinds)
    done = command("apply", apply, "apply your draft, as a whole or not at all", formats, kinds)
    done.add_argument("--reason", metavar="TEXT",
                      help="reason, kept with the change (default: that of the draft)")  # fmt: skip
    done.add_argument("--from", dest="starts", type=deadline, metavar="WHEN",
                      help="apply it later: 2h, or a time, e.g. 2030-01-31T18:00Z")  # fmt: skip
    done.add_argument("--until", type=deadline, metavar="WHEN",
                      help="go back to the old quotas then")  # fmt: skip
    done.add_argument(
        "--dry-run", action="store_true", help="check and show the result; change nothing"
    )
    command("discard", discard, "discard your draft", (), kinds)


def _amount_or_cell(text: str) -> float | str:
    """Parse a number of GPUs; several words stay text, which the server parses.

    Raises ArgumentTypeError.
    """
    return text if len(text.split()) > 1 else amount(text)


def _me(api: Api) -> str:
    return str(api.get("me")["username"])


def _path(user: str) -> str:
    return f"quota-drafts/{quote(user, safe='')}"


def _mine(api: Api) -> dict[str, Any]:
    draft = now_or_none(api, _path(_me(api)))
    if draft is None:
        raise ClientError(NOT_FOUND, EMPTY)
    return draft


def _apply(
    api: Api, draft: dict[str, Any], body: dict[str, Any], *, dry_run: bool
) -> dict[str, Any]:
    query = {"dry_run": "true"} if dry_run else None
    path = f"{_path(draft['author'])}/apply"
    return api.post(path, body, query, guard=at_version(draft["version"]))


def _write(api: Api, args: argparse.Namespace, cell: dict[str, Any]) -> None:
    draft = api.patch(_path(_me(api)), {"cells": [cell]})
    key = cell["tenant"], cell["gpu_type"]
    faults = {(one["tenant"], one["gpu_type"]): one["fault"] for one in draft["cells"]}
    if fault := faults.get(key):
        warn([f"It cannot be applied yet. {fault}"])
    if args.output == "json":
        output.document(draft)
    else:
        _say_size(draft)


def _write_tenant(api: Api, args: argparse.Namespace, tenant: dict[str, Any]) -> None:
    draft = api.patch(_path(_me(api)), {"tenants": [tenant]})
    if args.output == "json":
        output.document(draft)
    else:
        _say_size(draft)


def _say_size(draft: dict[str, Any]) -> None:
    """Print e.g. "2 quotas and 1 tenant are in your draft now."."""
    counts = ((len(draft["cells"]), "quota"), (len(draft["tenants"]), "tenant"))
    parts = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts if n] or ["0 quotas"]
    verb = "is" if len(parts) == 1 and parts[0].startswith("1 ") else "are"
    output.note(f"{' and '.join(parts)} {verb} in your draft now.")


def _wanted(one: dict[str, Any]) -> str:
    is_number = one["guaranteed"] is not None
    typed = output.number(one["guaranteed"]) if is_number else f"{one['typed']!r} ({one['fault']})"
    terms = [f"{name.replace('_', ' ')} {text or NO_LIMIT}" for name, text in one["terms"].items()]
    return ", ".join([typed, *terms])


def _faster(one: dict[str, Any]) -> str:
    by = one["overtaken"]
    if by is None:
        return "-"
    before = "" if by["before"] is None else f", was {output.number(by['before'])}"
    why = f" ({by['reason']})" if by["reason"] else ""
    others = (
        f"; {f['field'].replace('_', ' ')} theirs {f['theirs'] or 'removed'}, "
        + ("you left it" if f["mine"] is None else f"yours {f['mine']}")
        + (f", was {f['base']}" if f["base"] is not None else "")
        for f in by["conflicts"]
        if f["field"] != "guaranteed"
    )
    return f"by {by['by'] or 'somebody'}{why}{before}{''.join(others)}"
