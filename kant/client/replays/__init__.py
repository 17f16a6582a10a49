"""`kant replay`: a cluster's history under another policy, or with other nodes or quotas."""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api, while_typing
from kant.client.errors import FAILED, NOT_FOUND, ClientError, usage
from kant.client.places import QUOTA, amount, limit, only_cluster
from kant.client.replays.comparison import changes_of, comparison
from kant.client.submission import duration_s

STATES = ("QUEUED", "RUNNING", "DONE", "FAILED", "CANCELLED")
OPEN = STATES[:2]
POLL_S = 2.0
STEP = 10  # per cent, between two progress messages
REPLAY, FIELD, SHAPE, CELL = "REPLAY", "FIELD=VALUE", "TYPE/GPUS=CHANGE", "TENANT/TYPE:FIELD=VALUE"

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LIMITS = ("borrow_limit", "lend_limit")
_READ: dict[str, Callable[[str], Any]] = {
    "guaranteed": amount,
    "mode": str,
    "borrow_limit": limit,
    "lend_limit": limit,
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("-c", "--cluster", help="name of the cluster, if there are several")
    flag("--since", type=moment_or_length, metavar="WHEN|TIME",
         help="start of the period: 2030-01-24T00:00Z, or 14d before its end "
         "(default: 7d)")  # fmt: skip
    flag("--until", type=moment, metavar="WHEN", help="end of the period (default: now)")
    flag("--policy", type=_setting, action="append", default=[], metavar=FIELD,
         help="field of the policy, e.g. queueing=backfill, preemption=priority,reclaim, "
         "strategies.training=e-binpack; repeat for more")  # fmt: skip
    flag("--nodes", type=_shape, action="append", default=[], metavar=SHAPE,
         help="add or remove nodes of a GPU type and size, e.g. H100/8=+16 or H100/8=-4; "
         "repeat for more")  # fmt: skip
    flag("--quota", type=_cell, action="append", default=[], metavar=CELL,
         help="fields of a quota, as kant quota set takes them, e.g. "
         "vision/H100:guaranteed=64,mode=isolated; other fields stay as they are now. It applies "
         "to the whole period; repeat for more")  # fmt: skip
    flag("--no-wait", action="store_true", help="do not wait for the result")


# --- commands -------------------------------------------------------------------------------------
def start(api: Api, args: argparse.Namespace) -> None:
    """Start a replay, follow it, and show its result."""
    cluster = args.cluster or only_cluster(api)
    document = {"cluster": cluster, "nodes": args.nodes, "policy": {}, "quotas": []}
    # Whole minutes, in case the server's clock is a little behind.
    until = args.until or datetime.now(timezone.utc).replace(second=0, microsecond=0)
    if isinstance(args.since, int):
        document["since"] = (until - timedelta(seconds=args.since)).isoformat()
    elif args.since is not None:
        document["since"] = args.since.isoformat()
    if args.until is not None or "since" in document:
        document["until"] = until.isoformat()
    if args.policy:
        now = api.get(f"clusters/{quote(cluster, safe='')}/policy")["policy"]
        document["policy"] = _policy(args.policy, now)
    document["quotas"] = [_quota(api, *cell) for cell in args.quota]
    try:
        asked = api.post("replays", document)
    except ClientError as error:
        raise _by_flags(error, args) from None
    if args.no_wait:
        _say(args.output, [asked])
    else:
        output.note(f"Replay {output.short(asked['id'])} of {cluster}.")
        _show(args.output, _followed(api, asked))


def listed(api: Api, args: argparse.Namespace) -> None:
    query = {"cluster": args.cluster, "state": args.state, "limit": args.limit}
    _say(args.output, api.get("replays", query)["items"])


def show(api: Api, args: argparse.Namespace) -> None:
    found = api.get(_address(api, args.replay))
    _show(args.output, _followed(api, found) if args.wait else found)


def cancel(api: Api, args: argparse.Namespace) -> None:
    """Cancel replays; try all of them; the first error gives the exit code."""
    done, failed = [], list[ClientError]()
    for text in args.replays:
        try:
            done.append(api.post(f"{_address(api, text)}/cancel"))
        except ClientError as error:
            failed.append(error)
    _say(args.output, done)
    if failed:
        raise ClientError(failed[0].code, *(line for error in failed for line in error.lines))


def _address(api: Api, text: str) -> str:
    """Return the path of a replay by its id or the beginning of the id.

    Raises ClientError if none or several match.
    """
    if _ID.fullmatch(text.lower()):
        return f"replays/{text.lower()}"
    ids = [one["id"] for one in api.items("replays") if one["id"].startswith(text.lower())]
    if len(ids) != 1:
        several = f"{text!r} matches {len(ids)} replays; give more of the id."
        none = f"There is no replay {text!r}. See: kant replay list"
        raise usage(several) if ids else ClientError(NOT_FOUND, none)
    return f"replays/{ids[0]}"


def _followed(api: Api, replay: dict[str, Any]) -> dict[str, Any]:
    """Return the replay once it has ended; print its progress meanwhile."""
    told, path = "", f"replays/{replay['id']}"
    try:
        while replay["state"] in OPEN:
            if (text := _state(replay, STEP)) != told:
                output.note(text)
                told = text
            time.sleep(POLL_S)
            replay = api.get(path)
    except KeyboardInterrupt:
        output.note(
            f"It goes on in the background: kant replay show {output.short(replay['id'])} --wait"
        )
        raise
    return replay if "result" in replay else api.get(path)


def _state(replay: dict[str, Any], step: int = 1) -> str:
    percent = int(100 * replay["progress"]) // step * step
    return f"RUNNING {percent} %" if replay["state"] == "RUNNING" else str(replay["state"])


def _say(form: str, found: list[dict[str, Any]]) -> None:
    def row(r: dict[str, Any]) -> tuple[object, ...]:
        period = (output.when(r["since"]), output.when(r["until"]))
        changes = "; ".join(f"{name} {now}" for name, _, now in changes_of(r))
        who = (output.ago(r["created_at"]), r["user"])
        return output.short(r["id"]), _state(r), r["cluster"], *period, changes, *who

    if form == "id":
        for one in found:
            print(one["id"])
        return
    heads = ("ID", "STATE", "CLUSTER", "SINCE", "UNTIL", "CHANGES", "AGE", "BY")
    output.listed(form, found, heads, row, "No such replays.")


def _show(form: str, replay: dict[str, Any]) -> None:
    """Print the replay; raises ClientError if it failed or was cancelled."""
    if form == "id":
        print(replay["id"])
    elif form == "json":
        output.document(replay)
    elif replay["state"] == "DONE":
        comparison(replay)
    elif replay["state"] in OPEN:
        print(_state(replay))
    if replay["state"] in ("FAILED", "CANCELLED"):
        raise ClientError(FAILED, f"{replay['state']}: {replay['message']}")


# --- arguments ------------------------------------------------------------------------------------
def moment(text: str) -> datetime:
    """Parse a time; without an offset it is UTC. Raises ArgumentTypeError."""
    try:
        found = datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
    except ValueError:
        wrong = f"{text!r} is not a time, e.g. 2030-01-24T00:00Z"
        raise argparse.ArgumentTypeError(wrong) from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def moment_or_length(text: str) -> datetime | int:
    """Parse a time, or a number of seconds before the end. Raises ArgumentTypeError."""
    if re.fullmatch(r"([0-9]{1,18}[smhdw])+", text):
        return duration_s(text)
    try:
        return moment(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} or 14d") from None


def _setting(text: str) -> tuple[list[str], str]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise argparse.ArgumentTypeError(f"{text!r} is not {FIELD}, e.g. queueing=backfill")
    return name.split("."), value


def _shape(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"(.+)/(\d{1,4})=([+-]?\d{1,7})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not {SHAPE}, e.g. H100/8=+16 or H100/8=-4")
    return {"gpu_type": match[1], "gpus": int(match[2]), "change": int(match[3])}


def _cell(text: str) -> tuple[str, str, dict[str, Any]]:
    """Parse (tenant, GPU type, fields of its quota)."""
    key, _, settings = text.partition(":")
    tenant, _, gpu_type = key.partition("/")
    if not (tenant and gpu_type and settings):
        example = "vision/H100:guaranteed=64,mode=isolated"
        raise argparse.ArgumentTypeError(f"{text!r} is not {CELL}, e.g. {example}")
    fields = {}
    for setting in settings.split(","):
        name, _, value = setting.partition("=")
        name = name.strip().replace("-", "_")
        if name not in _READ:
            known = ", ".join(QUOTA)
            raise argparse.ArgumentTypeError(f"{name!r} is not a field of a quota; known: {known}")
        fields[name] = _READ[name](value.strip())
    return tenant, gpu_type, fields


def _policy(settings: Iterable[tuple[list[str], str]], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields, in the types that they have in the current policy."""
    found: dict[str, Any] = {}
    for path, text in settings:
        *above, name = path
        example: Any = now
        into = found
        for part in above:
            example = example.get(part) if isinstance(example, dict) else None
            into = into.setdefault(part, {})
        into[name] = _value(text, example.get(name) if isinstance(example, dict) else None)
    return found


def _value(text: str, example: object) -> Any:
    """Parse a text in the type of the example.

    Without an example, or for a list that begins with a bracket, as JSON.
    """
    if isinstance(example, str):
        return text
    if isinstance(example, list) and not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return json.loads(text)
    except ValueError:
        return text  # the server will say what is wrong with it


def _quota(api: Api, tenant: str, gpu_type: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole quota: the given fields, and the rest as it is now."""
    path = f"quotas/{quote(tenant, safe='')}/{quote(gpu_type, safe='')}"
    try:
        now = {name: value for name, value in api.get(path).items() if name in QUOTA}
    except ClientError as error:
        if error.code != NOT_FOUND:
            raise
        now = {}
    if not now and "guaranteed" not in fields:
        raise usage(
            f"--quota {tenant}/{gpu_type}: {tenant} has no quota for {gpu_type}; say guaranteed=… "
            "too."
        )
    if fields.get("mode") == "isolated":
        now |= dict.fromkeys(_LIMITS)
    given = {name: None if value == "any" else value for name, value in fields.items()}
    return {"tenant": tenant, "gpu_type": gpu_type, **now, **given}


def _by_flags(error: ClientError, args: argparse.Namespace) -> ClientError:
    """Return the error with flags in place of fields of the document."""
    if not error.faults:
        return error
    lines = [f"  {_flag(place.split('.'), args)}: {detail}" for place, detail in error.faults]
    return ClientError(error.code, error.lines[0], *lines, problem=error.problem)


def _flag(path: Sequence[str], args: argparse.Namespace) -> str:
    """Return the flag that sets a place of the document."""
    match path:
        case ["policy", *names]:
            return f"--policy {'.'.join(names)}".strip()
        case ["nodes", index, *_]:
            one = args.nodes[int(index)]
            return f"--nodes {one['gpu_type']}/{one['gpus']}={one['change']:+d}"
        case ["quotas", index, *name]:
            tenant, gpu_type, _ = args.quota[int(index)]
            return f"--quota {':'.join([f'{tenant}/{gpu_type}', *name])}"
    return f"--{path[0]}"


# --- completion -----------------------------------------------------------------------------------
def named(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield ids of replays with this beginning, for shell completion."""

    def ask(api: Api) -> Iterator[tuple[str, str]]:
        for one in api.get("replays", {"limit": 50})["items"]:
            if one["id"].startswith(beginning):
                yield one["id"], f"{one['cluster']}, {_state(one)}"

    return while_typing(ask)


def settings(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield fields of a policy with this beginning, and their current values."""

    def ask(api: Api) -> Iterator[tuple[str, str]]:
        cluster = quote(only_cluster(api), safe="")
        for name, now in api.get(f"clusters/{cluster}/policy")["policy"].items():
            if name == "strategies":
                for kind, strategy in now.items():
                    if f"{name}.{kind}".startswith(beginning):
                        yield f"{name}.{kind}=", str(strategy)
            elif name.startswith(beginning):
                yield f"{name}=", str(output.value(now))

    return while_typing(ask)


def shapes(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield kinds of nodes with this beginning."""

    def ask(api: Api) -> Iterator[tuple[str, str]]:
        cluster = quote(only_cluster(api), safe="")
        nodes = api.get(f"clusters/{cluster}/nodes", {"limit": 500})["items"]
        for shape in dict.fromkeys(f"{n['gpu_type']}/{n['gpus']}" for n in nodes if n["gpus"]):
            if shape.startswith(beginning):
                yield f"{shape}=", "nodes more or fewer"

    return while_typing(ask)


def cells(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield tenants and GPU types of existing quotas with this beginning."""

    def ask(api: Api) -> Iterator[tuple[str, str]]:
        for one in api.get("quotas", {"limit": 500})["items"]:
            key = f"{one['tenant']}/{one['gpu_type']}"
            if key.startswith(beginning):
                yield f"{key}:", f"{output.number(one['guaranteed'])} guaranteed, {one['mode']}"

    return while_typing(ask)
