"""`kant webhooks`: who gets told what happens, and whether the messages arrive."""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from kant.client import output
from kant.client.api import Api, at_version
from kant.client.errors import FAILED, ClientError, usage

WEBHOOK = "WEBHOOK"
NAMED = "name or id of the webhook, or the start of its id"
EVENTS = (
    *("job.started", "job.pending_long", "job.preempted", "job.succeeded", "job.failed"),
    *("job.cancelled", "quota.changed", "gfr.high"),
)
FORMATS = ("standard", "slack")
HEADS = ("ID", "NAME", "STATE", "TENANT", "FORMAT", "EVENTS", "LAST DELIVERED")
DELIVERIES = ("ID", "EVENT", "STATE", "ABOUT", "ANSWER", "TRIES", "HAPPENED", "NEXT TRY")
# A test is sent within seconds and given up after ten.
TEST_S, LOOKS_S = 30.0, 0.5


def add_commands(command: Any, commands: Any, written: Any, both: Sequence[str]) -> None:
    """Add the commands below `kant webhooks`; `command` and `written` are those of `__main__`."""

    def of_one(name: str, run: Any, text: str, formats: Sequence[str] = both) -> Any:
        made = command(name, run, text, formats, commands)
        made.add_argument("webhook", metavar=WEBHOOK, help=NAMED)
        return made

    found = command(
        "list", listed, "list webhooks of the tenants that you administer", both, commands
    )
    found.add_argument("-t", "--tenant", help="only of this tenant")
    of_one("show", show, "show one webhook and its settings")
    text = "create a webhook and print its secret, which is shown only once"
    made = command("create", create, text, ("text", "json"), commands)
    made.add_argument("name", metavar="NAME", help="purpose of the webhook, e.g. on-call")
    made.add_argument("url", metavar="URL", help="address of the receiver; begins with https://")
    made.add_argument("-t", "--tenant", help="only events of this tenant and those below it "
                      "(default: all tenants; operators only)")  # fmt: skip
    _settings(made, required=True)
    written(made, required=False)
    changed = of_one("set", change, "change settings of a webhook")
    changed.add_argument("--name", metavar="TEXT", help="another name")
    changed.add_argument("--url", metavar="URL", help="another address of the receiver")
    _settings(changed, required=False)
    turned = changed.add_mutually_exclusive_group()
    turned.add_argument("--on", dest="is_on", action="store_true", default=None,
                        help="turn it on")  # fmt: skip
    turned.add_argument("--off", dest="is_on", action="store_false", default=None,
                        help="turn it off, and drop waiting deliveries")  # fmt: skip
    written(changed, required=False)
    of_one("test", test, "send a test event, and show whether it arrived")
    of_one("rotate", rotate, "create a new secret and print it; the old one lasts one more day",
           ("text", "json"))  # fmt: skip
    of_one("delete", delete, "delete a webhook and its deliveries", ())
    sent = of_one("deliveries", deliveries, "list what was sent and what waits, the newest first")
    sent.add_argument("-s", "--state", action="append", choices=("waiting", "delivered", "failed"),
                      help="only in this state; repeat for more")  # fmt: skip
    sent.add_argument(
        "--limit", type=int, default=20, metavar="N", help="at most this many (default: 20)"
    )
    again = of_one("redeliver", redeliver, "send deliveries again, with the same ids", ())
    again.add_argument("deliveries", nargs="+", metavar="ID", help="id of a delivery")


def _settings(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the flags of settings, for a new webhook (`required`) or for a change.

    In a change, omitted settings stay the same.
    """
    flag = parser.add_argument

    def of_new(default: object) -> str:
        return f" (default: {default})" if required else ""

    flag("-e", "--event", dest="events", action="append", choices=EVENTS, required=required,
         help="event to send; repeat for more")  # fmt: skip
    flag(
        "--format",
        choices=FORMATS,
        help=f"standard: signed JSON; slack: a message for Slack{of_new('standard')}",
    )
    flag("--pending", dest="pending_s", type=int, metavar="SECONDS",
         help=f"job.pending_long: after this wait{of_new(3600)}")  # fmt: skip
    flag("--gfr", dest="gfr_percent", type=float, metavar="PERCENT",
         help=f"gfr.high: from this GFR on{of_new(10)}")  # fmt: skip


def listed(api: Api, args: argparse.Namespace) -> None:
    found = list(api.items("webhooks", {"tenant": args.tenant}))
    output.listed(args.output, found, HEADS, _row, "There are no webhooks that you may see.")


def show(api: Api, args: argparse.Namespace) -> None:
    _shown(args, _one(api, args.webhook))


def create(api: Api, args: argparse.Namespace) -> None:
    body = {"name": args.name, "url": args.url, "tenant": args.tenant, **_given(args)}
    made = api.post("webhooks", body, _query(args))
    if args.dry_run or args.output == "json":
        output.document(made)
    elif made["format"] != "standard":
        print(f"Webhook {made['name']} is created: {made['id']}.")
    else:
        print(_secret(made, f"kant webhooks rotate {made['id']}"))


def change(api: Api, args: argparse.Namespace) -> None:
    hook = _one(api, args.webhook)
    body = {name: v for name in ("name", "url", "is_on") if (v := getattr(args, name)) is not None}
    body |= _given(args)
    if body.keys() <= {"reason"}:
        raise usage("Nothing to set. See: kant webhooks set --help")
    guard = at_version(hook["version"])
    answer = api.patch(f"webhooks/{hook['id']}", body, _query(args), guard=guard)
    _shown(args, answer["result"] if args.dry_run else answer)


def test(api: Api, args: argparse.Namespace) -> None:
    """Send a test event and wait for the result."""
    hook = _one(api, args.webhook)
    path = f"webhooks/{hook['id']}"
    made = api.post(f"{path}:test", {})
    until = time.monotonic() + TEST_S
    while made["state"] == "waiting" and time.monotonic() < until:
        time.sleep(LOOKS_S)
        made = api.get(f"{path}/deliveries/{made['id']}")
    if args.output == "json":
        output.document(made)
    elif made["state"] == "delivered":
        print(f"It was accepted: {made['status']} in {made['took_ms']} ms.")
    if made["state"] != "delivered":
        why = f"{made['status'] or 'No answer'}. {made['outcome']}".strip()
        waits = "It is waiting to be sent: is a background worker running?"
        raise ClientError(FAILED, waits if made["state"] == "waiting" else f"Not accepted: {why}")


def rotate(api: Api, args: argparse.Namespace) -> None:
    hook = _one(api, args.webhook)
    made = api.post(f"webhooks/{hook['id']}:rotate", {})
    if args.output == "json":
        output.document(made)
    else:
        print(_secret(made, f"kant webhooks rotate {hook['id']}"))
        output.note(
            f"The old one signs as well until {output.when(made['previous_secret_until'])}."
        )


def delete(api: Api, args: argparse.Namespace) -> None:
    hook = _one(api, args.webhook)
    api.delete(f"webhooks/{hook['id']}", guard=at_version(hook["version"]))
    print(f"Deleted webhook {hook['name']}.")


def deliveries(api: Api, args: argparse.Namespace) -> None:
    hook = _one(api, args.webhook)
    query = {"limit": args.limit, "state": args.state}
    found = api.get(f"webhooks/{hook['id']}/deliveries", query)["items"]
    output.listed(args.output, found, DELIVERIES, _sent, "Nothing was sent.")


def redeliver(api: Api, args: argparse.Namespace) -> None:
    hook = _one(api, args.webhook)
    for delivery in args.deliveries:
        api.post(f"webhooks/{hook['id']}/deliveries/{delivery}:redeliver", {})
        print(f"{delivery} is sent again.")


# --- the parts ------------------------------------------------------------------------------------
def _one(api: Api, text: str) -> dict[str, Any]:
    """Return the webhook with that name or id. Raises ClientError if none or several match."""
    hooks = list(api.items("webhooks"))
    named = [hook for hook in hooks if hook["name"] == text]
    found = named or [hook for hook in hooks if text and hook["id"].startswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise usage(f"There is no webhook {text!r} that you may see. See: kant webhooks list")
    ids = ", ".join(hook["id"] for hook in found)
    raise usage(f"{text!r} matches several webhooks. Name one by its id: {ids}.")


def _given(args: argparse.Namespace) -> dict[str, Any]:
    names = ("events", "format", "pending_s", "gfr_percent")
    found = {name: v for name in names if (v := getattr(args, name)) is not None}
    return {**found, "reason": args.reason} if args.reason else found


def _query(args: argparse.Namespace) -> dict[str, str] | None:
    return {"dry_run": "true"} if args.dry_run else None


def _secret(made: dict[str, Any], remedy: str) -> str:
    if made["secret"] is None:  # the answer with the secret was lost
        raise ClientError(FAILED, f"The answer with the secret was lost. Create another: {remedy}")
    return str(made["secret"])


def _state(hook: dict[str, Any]) -> str:
    if not hook["is_on"]:
        return "off"
    return "failing" if hook["failing_since"] else "on"


def _row(hook: dict[str, Any]) -> tuple[object, ...]:
    return (
        output.short(hook["id"]), hook["name"], _state(hook), hook["tenant"] or "all",
        hook["format"], ", ".join(hook["events"]), output.when(hook["last_ok_at"]) or "never",
    )  # fmt: skip


def _shown(args: argparse.Namespace, hook: dict[str, Any]) -> None:
    if args.output == "json":
        output.document(hook)
        return
    output.pairs((
        ("name", hook["name"]), ("id", hook.get("id")), ("state", _state(hook)),
        ("why", hook["off_reason"]), ("tenant", hook["tenant"] or "all"), ("url", hook["url"]),
        ("format", hook["format"]), ("events", hook["events"]), ("pending", hook["pending_s"]),
        ("GFR", hook["gfr_percent"]), ("last delivered", output.when(hook["last_ok_at"])),
        ("failing since", output.when(hook["failing_since"])),
        ("not told", hook["skipped"] or None), ("made by", hook["made_by"]),
    ))  # fmt: skip


def _sent(one: dict[str, Any]) -> tuple[object, ...]:
    return (
        one["id"], one["event"], one["state"], one["subject"],
        one["status"] or one["outcome"][:60], one["tries"], output.ago(one["created_at"]),
        output.when(one["next_at"]),
    )  # fmt: skip
