"""The commands about the organisation as one document: `apply`, `diff`, `export`."""

import argparse
import json
from typing import Any

from kant.client import output, submission
from kant.client.api import Api
from kant.client.audit import warn

PATH = "organisation"
MARKS = {"create": "+", "update": "~", "delete": "-"}


def add_file(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("-f", "--file", required=True, metavar="FILE",
         help="the organisation as JSON, or YAML; - reads stdin")  # fmt: skip
    flag("--name", metavar="NAME", help="name of the document, if you have several")
    flag(
        "--prune",
        action="store_true",
        help="delete what the previous version of the file had and this one does not",
    )
    flag("--overcommit", action="store_true", help="guarantee more GPUs than are installed")


def export(api: Api, args: argparse.Namespace) -> None:
    found = api.get(PATH)
    if args.output == "json" or not _yaml(found):
        output.document(found)


def _yaml(document: dict[str, Any]) -> bool:
    """Print it as YAML; return False if PyYAML is missing (JSON is valid YAML, too)."""
    try:
        import yaml
    except ImportError:
        return False
    print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")
    return True


def diff(api: Api, args: argparse.Namespace) -> None:
    args.dry_run, args.reason = True, "diff"
    apply(api, args)


def apply(api: Api, args: argparse.Namespace) -> None:
    """Change the organisation to match the file; with `dry_run`, only show what would change."""
    document = submission.read(args.file, "organisation")
    query = {
        name: "true" for name in ("dry_run", "prune", "overcommit") if getattr(args, name, False)
    }
    body = {"document": document, "reason": args.reason}
    if args.name is not None:
        body["name"] = args.name
    answer = api.put(PATH, body, query)
    told = {**answer["result"], "warnings": answer["warnings"]} if args.dry_run else answer
    if args.output == "json":
        output.document(told)
    else:
        for change in told["changes"]:
            _say(change)
        for one in told["kept"]:
            kept = f"Kept, although the file no longer has it: {_named(one)}."
            output.note(f"{kept} --prune deletes it.")
    warn(told["warnings"])
    output.note(_sum(told["changes"], dry_run=args.dry_run))


def _say(change: dict[str, Any]) -> None:
    print(f"{MARKS[change['action']]} {_named(change)}")
    if change["action"] == "delete":
        return
    for field in change["fields"]:
        before, after = (json.dumps(field[n], ensure_ascii=False) for n in ("before", "after"))
        both = after if change["action"] == "create" else f"{before} → {after}"
        print(f"    {field['field']}: {both}")


def _named(one: dict[str, Any]) -> str:
    return f"{one['kind']} {' / '.join(one['names'])}"


def _sum(changes: list[dict[str, Any]], *, dry_run: bool) -> str:
    if not changes:
        return "Nothing to change: everything already matches the file."
    done = {"create": "created", "update": "changed", "delete": "deleted"}
    counts = {word: sum(c["action"] == verb for c in changes) for verb, word in done.items()}
    text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"Would be: {text}. Nothing was changed." if dry_run else f"{text}."
