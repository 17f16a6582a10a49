"""The commands about queues, and the one that moves jobs between them."""

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api, at_version, while_typing
from kant.client.audit import change_of, list_changes, now_or_none, say_change, warn
from kant.client.errors import usage
from kant.client.flags.numbers import whole
from kant.client.jobs import each, only_tenant
from kant.client.places import amount, only_cluster
from kant.client.previews import effects
from kant.client.submission import duration_s

QUEUE = "TENANT/QUEUE"
NAMED = "TENANT/NAME; the name alone if only one of your queues has it"
ADVICE = f"Write the tenant before its name: {QUEUE}."
ANY = "any"
POLICY = "policy"
ORDERS = ("fifo", "fair-users", POLICY)
# The settings of `kant queue set`, in display order.
SETTINGS = (
    *("title", "rank", "weight", "order", "max_running", "max_waiting", "max_gpus"),
    *("default_priority", "max_priority", "default_run_limit_s", "max_run_limit_s"),
    *("default_preemptible", "kinds", "roles", "users", "groups"),
)
# Flags with lists: field, flag, metavar, help.
LISTS = (
    ("kinds", "--kind", "KIND", "kind of job that the queue accepts"),
    ("roles", "--role", "ROLE", "role whose users may submit"),
    ("users", "--user", "NAME", "user who may submit"),
    ("groups", "--group", "NAME", "group whose members may submit"),
)


def queues(api: Api, args: argparse.Namespace) -> None:
    def row(q: dict[str, Any]) -> tuple[object, ...]:
        jobs = (q["waiting"], _of(q["running"], q["max_running"]))
        order = (q["rank"], output.number(q["weight"]), q["order"] or POLICY)
        return named(q), q["state"], *jobs, _gpus(q), *order, q["state_reason"] or q["title"]

    query = {"tenant": args.tenant, "state": args.state}
    heads = ("QUEUE", "STATE", "WAITING", "RUNNING", "GPUS HELD", "RANK", "WEIGHT", "ORDER", "")
    found = list(api.items("queues", query))
    output.listed(args.output, found, heads, row, "There are no such queues that you may see.")


def show(api: Api, args: argparse.Namespace) -> None:
    queue = api.get(_path(api, args.queue))
    if args.output == "json":
        output.document(queue)
        return
    since = queue["state_at"] and f"{output.when(queue['state_at'])} by {queue['state_by']}"
    output.pairs((
        ("queue", named(queue)), ("state", queue["state"]), ("since", since),
        ("why", queue["state_reason"]), ("waiting", queue["waiting"]),
        ("running", queue["running"]), ("GPUs held", _amounts(queue["gpus_held"])),
        *((name, shown(queue, name)) for name in SETTINGS),
    ))  # fmt: skip


def global_queue(api: Api, args: argparse.Namespace) -> None:
    """List all waiting jobs of a cluster in the order of its scheduler."""

    def row(p: dict[str, Any]) -> tuple[object, ...]:
        whose = named({"tenant": p["tenant"], "name": p["queue"]}) if p["tenant"] else ""
        why = p["message"] if p["head_of"] and p["message"] else p["reason"]
        return (
            p["position"], output.short(p["job"] or ""), p["name"] or "of another tenant", whose,
            p["priority"], p["gpus"], p["gpu_types"], output.ago(p["submitted_at"]), p["head_of"],
            why,
        )  # fmt: skip

    cluster = args.cluster or only_cluster(api)
    path = f"clusters/{quote(cluster, safe='')}/queue"
    query = {"gpu_type": args.gpu_type, "scope": args.scope}
    if args.all:
        found = list(api.items(path, query))
    else:
        page = api.get(path, {**query, "limit": args.limit})
        found = page["items"]
        if page["next"] is not None:
            output.note(f"The first {len(found)}; --all shows all.")
    heads = ("PLACE", "ID", "NAME", "QUEUE", "PRIORITY", "GPUS", "TYPES", "WAITED", "HEAD OF",
             "WHY")  # fmt: skip
    output.listed(args.output, found, heads, row, "No such job waits.")


def create(api: Api, args: argparse.Namespace) -> None:
    tenant, name = _of_tenant(api, args.queue)
    body = {"tenant": tenant, "name": name, **_given(args, {}), **_reason(args)}
    answer = api.post("queues", body, _query(args))
    _say(args, None, answer["result"] if args.dry_run else answer, answer["warnings"])


def set_queue(api: Api, args: argparse.Namespace) -> None:
    """Set the given settings of one queue, and show it before and after."""
    path = _path(api, args.queue)
    before = api.get(path)
    given = _given(args, before)
    if not given:
        raise usage("Nothing to set. See: kant queue set --help")
    guard = at_version(before["version"])
    if args.preview:
        told = api.patch(path, given, {"dry_run": "true"}, guard=guard)
        effects.say(args, told["effects"])
        return
    answer = api.patch(path, {**given, **_reason(args)}, _query(args), guard=guard)
    _say(args, before, answer["result"] if args.dry_run else answer, answer["warnings"])


def act(api: Api, args: argparse.Namespace) -> None:
    """Hold, release, drain, close or open a queue."""
    path = f"{_path(api, args.queue)}/{args.verb}"
    if args.preview:
        told = api.post(path, {"reason": "Preview"}, {"dry_run": "true"})
        effects.say(args, told["effects"])
        return
    if args.reason is None:
        raise usage(f"Give a reason with --reason. See: kant queue {args.verb} --help")
    answer = api.post(path, {"reason": args.reason}, _query(args))
    queue = answer["result"] if args.dry_run else answer
    if args.output == "json":
        output.document(answer)
    else:
        would = "would be" if args.dry_run else "is"
        print(f"{named(queue)} {would} {queue['state']}: {queue['waiting']} jobs wait, "
              f"{queue['running']} run.")  # fmt: skip
    warn(answer["warnings"])


def delete(api: Api, args: argparse.Namespace) -> None:
    path = _path(api, args.queue)
    queue = api.get(path)
    query = {"reason": args.reason, **(_query(args) or {})}
    api.delete(path, query, guard=at_version(queue["version"]))
    if args.dry_run:
        output.note("Nothing was changed: this was a dry run.")
    else:
        print(f"Deleted queue {named(queue)}.")


def changes(api: Api, args: argparse.Namespace) -> None:
    list_changes(api, args, "queue", difference)


def revert(api: Api, args: argparse.Namespace) -> None:
    """Revert one change, and show the queue before and after."""
    record = change_of(api, "queue", args.change)
    path = "queues/" + "/".join(quote(part, safe="") for part in record["subject"].split("/"))
    before = now_or_none(api, path)
    answer = api.post(
        f"{path}/changes/{record['id']}/revert",
        {"reason": args.reason},
        _query(args),
        guard=at_version(before["version"] if before else None),
    )
    after = answer["result" if args.dry_run else "queue"]
    _say(args, before, after, answer["warnings"])


def move(api: Api, args: argparse.Namespace) -> None:
    """Move waiting jobs to another queue of their tenant; each keeps its submission time."""
    name = args.queue.rpartition("/")[2]
    each(api, args, lambda path: api.patch(path, {"queue": name}))


def full_names(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield queues with this beginning as TENANT/QUEUE, and their state, for shell completion."""

    def ask(api: Api) -> Iterator[tuple[str, str]]:
        for queue in api.items("queues"):
            if named(queue).startswith(beginning):
                yield named(queue), queue["state"]

    return while_typing(ask)


# --- arguments ------------------------------------------------------------------------------------
def add_settings(parser: argparse.ArgumentParser, *, new: bool) -> None:
    """Add the flags of settings; omitted ones stay the same, or get defaults in a new queue."""
    flag = parser.add_argument

    def of_new(default: object) -> str:
        return f" (default: {default})" if new else ""

    flag("--title", metavar="TEXT", help="title of the queue")
    flag(
        "--rank",
        type=int,
        metavar="N",
        help=f"rank; the tenant's queue of the highest rank goes first{of_new(0)}",
    )
    flag(
        "--weight", type=float, metavar="N", help=f"share among queues of the same rank{of_new(1)}"
    )
    flag(
        "--order",
        choices=ORDERS,
        help=f"order of its jobs; {POLICY}: as in the policy of the cluster",
    )
    for name, text in (("running", "run"), ("waiting", "wait")):
        flag(f"--max-{name}", type=_or_any(_whole), metavar=f"N|{ANY}",
             help=f"most jobs that {text} at once")  # fmt: skip
    flag("--max-gpus", type=_share, action="append", metavar="TYPE=GPUS",
         help=f"most GPUs of a type at once, or {ANY}; repeat for more")  # fmt: skip
    for which, text in (
        ("default", "of jobs that set none"),
        ("max", "that a job may set, at most"),
    ):
        flag(
            f"--{which}-priority", type=_or_any(whole), metavar=f"N|{ANY}", help=f"priority {text}"
        )
        flag(f"--{which}-time-limit", dest=f"{which}_run_limit_s", type=_or_any(duration_s),
             metavar=f"TIME|{ANY}", help=f"run-time limit {text}")  # fmt: skip
    flag("--default-preemptible", choices=("yes", "no", ANY),
         help="whether jobs that do not set it may be preempted")  # fmt: skip
    for field, name, metavar, text in LISTS:
        flag(name, dest=field, action="append", metavar=metavar,
             help=f"{text}; repeat for more, {ANY} for all")  # fmt: skip


def _or_any(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def value(text: str) -> Any:
        return ANY if text == ANY else read(text)

    value.__name__ = "value"  # argparse shows this name when it refuses a text
    return value


def _whole(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of jobs, e.g. 8, or {ANY}")
    return int(text)


def _share(text: str) -> tuple[str, float | None]:
    """Parse "H100=16" or "H100=any". Raises ArgumentTypeError."""
    model, _, gpus = text.rpartition("=")
    if not model:
        raise argparse.ArgumentTypeError(f"{text!r} is not TYPE=GPUS, e.g. H100=16")
    return model, None if gpus == ANY else amount(gpus)


def _given(args: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    """Return the given settings, as REST takes them."""
    given = {name: v for name in SETTINGS if (v := getattr(args, name)) is not None}
    for name, value in given.items():
        if name == "max_gpus":
            wanted = {**before.get("max_gpus", {}), **dict(value)}
            given[name] = {model: gpus for model, gpus in wanted.items() if gpus is not None}
        elif isinstance(value, list):
            given[name] = [] if ANY in value else value
        elif name == "order":
            given[name] = "" if value == POLICY else value
        elif name == "default_preemptible":
            given[name] = None if value == ANY else value == "yes"
        elif value == ANY and name != "title":
            given[name] = None
    return given


def _reason(args: argparse.Namespace) -> dict[str, str]:
    return {"reason": args.reason} if args.reason else {}


def _query(args: argparse.Namespace) -> dict[str, str] | None:
    return {"dry_run": "true"} if args.dry_run else None


def _of_tenant(api: Api, text: str) -> tuple[str, str]:
    """Split the written name of a queue into tenant and name. Raises ClientError."""
    tenant, _, name = text.rpartition("/")
    if not name:
        raise usage(f"Name a queue, e.g. vision/nightly, not {text!r}.")
    return tenant or only_tenant(api, ADVICE), name


def _there(api: Api, text: str) -> tuple[str, str]:
    """As `_of_tenant`, for an existing queue. Raises ClientError.

    The name alone is enough if one such queue is in a tenant of yours, or if only one exists.
    """
    if "/" in text or not text:
        return _of_tenant(api, text)
    found = [queue["tenant"] for queue in api.items("queues", {"name": text})]
    if len(found) > 1:
        members = {m["tenant"] for m in api.get("me")["memberships"]}
        found = [tenant for tenant in found if tenant in members] or found
    if len(found) > 1:
        raise usage(f"{ADVICE} There are {', '.join(f'{tenant}/{text}' for tenant in found)}.")
    return (found[0], text) if found else _of_tenant(api, text)


def _path(api: Api, text: str) -> str:
    return "queues/" + "/".join(quote(part, safe="") for part in _there(api, text))


# --- output ---------------------------------------------------------------------------------------
def named(queue: dict[str, Any]) -> str:
    return f"{queue['tenant']}/{queue['name']}"


def shown(queue: dict[str, Any] | None, name: str) -> str:
    """Return a setting in words."""
    if queue is None:
        return "-"
    value = queue.get(name)
    if name == "order":
        return str(value or POLICY)
    if isinstance(value, dict):
        return _amounts(value) or ANY
    if isinstance(value, list):
        return ", ".join(map(str, value)) or ANY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ANY
    return output.number(value) if isinstance(value, float) else str(value)


def difference(change: dict[str, Any]) -> str:
    """Return what a change did, field by field."""
    before, after = change["before"], change["after"]
    if before is None or after is None:
        return "created" if before is None else "deleted"
    pairs = ((name, shown(before, name), shown(after, name)) for name in ("state", *SETTINGS))
    return ", ".join(f"{name} {was} → {now}" for name, was, now in pairs if was != now)


def _say(
    args: argparse.Namespace,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    warnings: list[str],
) -> None:
    say_change(args, before, after, warnings, ("state", *SETTINGS), shown)


def _amounts(gpus: dict[str, float]) -> str:
    return ", ".join(f"{model} {output.number(each)}" for model, each in sorted(gpus.items()))


def _gpus(queue: dict[str, Any]) -> str:
    """Return what the queue's jobs hold, with its limits."""
    models = sorted({*queue["gpus_held"], *queue["max_gpus"]})
    held = ((m, queue["gpus_held"].get(m, 0), queue["max_gpus"].get(m)) for m in models)
    return ", ".join(f"{m} {_of(has, most)}" for m, has, most in held) or "-"


def _of(has: float, most: float | None) -> str:
    return output.number(has) + ("" if most is None else f"/{output.number(most)}")
