"""`kant templates`: jobs that a tenant keeps under a name, for `kant submit --template`."""

import argparse
from typing import Any

from kant.client import output
from kant.client.api import Api
from kant.client.jobs import address
from kant.client.submission import TEMPLATE
from kant.client.template_names import template_of

NAMED = "name of the template; TENANT/NAME or its id if several have the name"
HEADS = ("NAME", "TENANT", "DESCRIPTION", "GPU TYPE", "BY", "SAVED", "ID")


def listed(api: Api, args: argparse.Namespace) -> None:
    output.listed(args.output, list(api.items("templates")), HEADS, _row, "There are no templates.")


def save(api: Api, args: argparse.Namespace) -> None:
    """Save what another job asks for as a template."""
    document = api.get(f"{address(api, args.like)}/document")
    tenant = args.tenant or document["tenant"]
    body = {"tenant": tenant, "name": args.name, "description": args.description}
    query = {"dry_run": "true"} if args.dry_run else None
    answer = api.post("templates", {**body, "document": document}, query)
    if args.dry_run:
        print(f"Would save template {answer['result']['name']} of {tenant}.")
    else:
        print(f"Saved template {answer['name']} of {tenant}.")


def delete(api: Api, args: argparse.Namespace) -> None:
    for name in args.templates:
        found = template_of(api, name)
        api.delete(f"templates/{found['id']}")
        print(f"Template {found['name']} is deleted.")


def add_commands(command: Any, both: Any) -> None:
    text = "list templates, and save or delete them"
    top = command("templates", listed, text, both)
    kinds = top.add_subparsers(title="commands", metavar="COMMAND")
    saved = command("save", save, "save what a job asks for as a template", (), kinds)
    saved.add_argument("name", metavar="NAME", help="name of the new template")
    flag = saved.add_argument
    flag("--like", metavar="JOB", required=True, help="the job: its id, its beginning, or the name")
    flag("-t", "--tenant", help="tenant that keeps it (default: that of the job)")
    flag("--description", default="", metavar="TEXT", help="one line about it")
    flag("--dry-run", action="store_true", help="check and show the result; change nothing")
    gone = command("delete", delete, "delete templates; jobs stay", (), kinds)
    gone.add_argument("templates", nargs="+", metavar=TEMPLATE, help=NAMED)


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    return (
        one["name"],
        one["tenant"] or "above yours",
        one["description"],
        ", ".join(_types(one["document"])),
        one["author"] or "",
        output.when(one["changed_at"]),
        one["id"],
    )


def _types(document: dict[str, Any]) -> list[str]:
    """Return the GPU types that the document names, preferred first."""
    sets = document.get("pod_sets", [document])
    named = [name for s in sets for name in (s.get("gpu_types") or [s.get("gpu_type")]) if name]
    return list(dict.fromkeys(named))
