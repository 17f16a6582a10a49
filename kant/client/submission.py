"""The job document of `kant submit`: flags, which override a file or another job's document."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from kant.client.errors import usage
from kant.client.flags.numbers import number, whole
from kant.client.job_flags import FLAGS, CliFlag

CHANGEABLE = tuple(flag.field for flag in FLAGS if flag.changes)
# Fields of pods: they go into the pod sets if the document has any.
OF_PODS = frozenset(flag.field for flag in FLAGS if flag.of_pods) | {"command"}
LEVELS = ("required_level", "preferred_level")
# Fields to which the flag adds instead of replacing them: mappings, and nodes to exclude.
MAPPINGS = frozenset(
    flag.field for flag in FLAGS if flag.reads in ("pair", "secret_key", "device_claim")
)
NODES = next(flag.field for flag in FLAGS if flag.reads == "not_node")
# The text that removes a value, and the metavars of flags that accept it.
NONE = "none"
WHERE = " where "  # before each expression that the devices of a claim must satisfy
TIME_OR_NONE, WHEN_OR_NONE = f"TIME|{NONE}", f"WHEN|{NONE}"
TEMPLATE = "TEMPLATE"
# As many values as Kant accepts in one body.
MOST_NODES = 100_000
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
DEFAULT = re.compile(r" \(default[^)]*\)")


def add_flags(parser: argparse.ArgumentParser) -> None:
    base = parser.add_mutually_exclusive_group().add_argument
    base("-f", "--file", metavar="FILE", help="the job as JSON, or YAML; - reads stdin")
    base(
        "--like",
        metavar="JOB",
        help="copy another job: its id, its beginning, or the name; or an array: its id",
    )
    base("--template", metavar=TEMPLATE, help="start from a template; see kant templates")
    flag = parser.add_argument
    for one in FLAGS:
        _add(parser, one)
    flag("--after", action="append", metavar="JOB", help="start after that job or array has ended")
    flag(
        "--after-ok",
        action="append",
        metavar="JOB",
        help="start after that job or array has succeeded",
    )
    flag("--array", type=int, metavar="N", help="submit this many identical jobs as one array")
    flag("--dry-run", action="store_true", help="show what would happen; submit nothing")
    flag("command", nargs="*", help="what the pods run; put it after --")
    names = {action.dest: action.option_strings[-1:] for action in parser._actions}
    parser.set_defaults(
        flags={dest: "".join(name) or "the command" for dest, name in names.items()}
    )


def add_changeable(parser: argparse.ArgumentParser) -> None:
    """Add the flags of CHANGEABLE, which may change while a job waits.

    Omitted ones stay the same, whatever the default of a new job is.
    """
    for one in FLAGS:
        if one.changes:
            _add(parser, one._replace(says=DEFAULT.sub("", one.says)))


def _add(parser: argparse.ArgumentParser, flag: CliFlag) -> None:
    how: dict[str, Any] = {"dest": flag.field, "help": flag.says}
    if flag.reads == "yes_or_no":
        how["action"] = argparse.BooleanOptionalAction
    elif flag.reads == "yes":
        how |= {"action": "store_const", "const": True}
    else:
        read = _READ.get(flag.reads, str)
        how["type"] = _or_none(read) if flag.or_none else read
        how["metavar"] = (flag.metavar + f"|{NONE}" * flag.or_none) or None
        if flag.again:
            how["action"] = "append"
    parser.add_argument(*flag.names.split(), **how)


def given(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the given flags among `names` as fields of a document; NONE becomes null."""
    found = {name: getattr(args, name) for name in names}
    return {
        name: None if name in CHANGEABLE and value == NONE else value
        for name, value in found.items()
        if value is not None
    }


def none_for(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield NONE, for shell completion."""
    if NONE.startswith(beginning):
        yield NONE, "remove what was set before"


def document_of(args: argparse.Namespace, document: dict[str, Any]) -> dict[str, Any]:
    """Return the job document that the arguments ask for; its tenant may be missing.

    `document`: what the flags override; it is changed. Raises ClientError if it has several pod
    sets and a flag is about only one.
    """
    asked = given(args, [flag.field for flag in FLAGS])
    if args.command:
        asked["command"] = args.command
    sets = document.get("pod_sets")
    sets = sets if isinstance(sets, list) and all(isinstance(s, dict) for s in sets) else []
    if len(sets) > 1:
        _refuse_of_one(args, sets, asked)
    for field, value in asked.items():
        if field not in OF_PODS or not sets or (field in LEVELS and len(sets) > 1):
            _put(document, field, value)
            continue
        if field in LEVELS:
            document.pop(field, None)  # it is for all pod sets, of which there is only this one
        for one in sets:
            _put(one, "count" if field == "replicas" else field, value)
    if args.array is not None:
        document["array"] = {"count": args.array}
    if not document.get("name"):
        if not document.get("command"):
            raise usage("The job has no name. Give it one with --name.")
        document["name"] = name_of(document["command"])
    return document


# Other fields that a flag's field replaces.
_INSTEAD = {"gpu_types": "gpu_type", "replicas": "count"}


def _put(document: dict[str, Any], field: str, value: Any) -> None:
    """Set a field of the job, or of one of its pod sets, from its flag."""
    if field in MAPPINGS:
        value = {**(document.get(field) or {}), **dict(value)}
    if field == NODES:
        value = _without(document.get(field) or [{}], value)
    document[field] = value
    if field in _INSTEAD:
        document.pop(_INSTEAD[field], None)


def _without(terms: Any, nodes: Iterable[str]) -> list[dict[str, Any]]:
    """Return a node affinity that excludes these nodes, in each term, since any term is enough."""
    if not (isinstance(terms, list) and all(isinstance(term, dict) for term in terms)):
        raise usage(f"{NODES} of the job is not a list of terms, so --exclude-node adds nothing.")
    names = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    return [{**term, "match_fields": [*(term.get("match_fields") or []), *names]} for term in terms]


def _refuse_of_one(
    args: argparse.Namespace, sets: Sequence[dict[str, Any]], asked: Iterable[str]
) -> None:
    """Raise ClientError naming the flags that several pod sets cannot share."""
    alone = [f for f in asked if f in OF_PODS and f not in (*LEVELS, *MAPPINGS, NODES)]
    if alone:
        flags = ", ".join(args.flags[field] for field in alone)
        default = ("worker", *(f"set-{index}" for index in range(1, len(sets))))
        names = ", ".join(str(s.get("name") or n) for s, n in zip(sets, default, strict=True))
        raise usage(
            f"The job has several pod sets ({names}), and it is unclear which one {flags} "
            "is for. Set it in the job's document and submit that with --file."
        )


def name_of(command: Sequence[str]) -> str:
    """Return a job name from the first word of a command: "/bin/train.py" becomes "train-py"."""
    word = str(command[0]).rsplit("/", 1)[-1].lower()
    return re.sub(r"[^a-z0-9]+", "-", word).strip("-")[:63].strip("-") or "job"


def read(name: str, what: str = "job") -> dict[str, Any]:
    """Return the mapping in a JSON or YAML file of a `what`. Raises ClientError naming the file."""
    found = found_in(name, what)
    if not isinstance(found, dict):
        raise usage(f"{name} contains no {what}: one mapping of fields is expected.")
    return found


def found_in(name: str, what: str) -> Any:
    """Return the content of a JSON or YAML file; "-" is stdin.

    Raises ClientError naming the file.
    """
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{name} cannot be read: {error}.") from None
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except _Twice as error:
        raise usage(f"{name}: the name {error} appears twice in one mapping. Keep one.") from None
    except RecursionError:
        raise usage(f"{name} is nested too deeply for a {what}.") from None
    except ValueError as error:
        found = _yaml(name, what, text, error)
    return found


def _yaml(name: str, what: str, text: str, no_json: ValueError) -> Any:
    try:
        import yaml  # PyYAML may be missing
    except ImportError:
        text = f"{name} is not JSON ({no_json}), and YAML needs PyYAML: pip install pyyaml."
        raise usage(text) from None
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is not None and _nodes(root, {}) > MOST_NODES:
                raise usage(
                    f"{name} contains no {what}: its aliases are more than {MOST_NODES:,} values."
                )
            return None if root is None else _plain(loader.construct_document(root))
        finally:
            loader.dispose()
    except _Twice as error:
        raise usage(f"{name}: the name {error} appears twice in one mapping. Keep one.") from None
    except yaml.YAMLError as error:
        raise usage(f"{name} is neither JSON nor YAML: {error}") from None
    except RecursionError:
        raise usage(f"{name} is nested too deeply, or an alias leads back into itself.") from None
    except ValueError as error:  # from a scalar: 2026-13-01, 0x_, a number of 5000 digits
        told = str(error).partition(";")[0]
        raise usage(f"{name} holds a value that cannot be read: {told}.") from None


def _plain(value: Any) -> Any:
    """Return a YAML value as JSON has it; raises ValueError for a value that JSON lacks."""
    if isinstance(value, dict):
        if strange := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"the name {strange[0]!s} is not text: put it into quotes")
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, date):  # a datetime is a date, too
        return value.isoformat()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"a {type(value).__name__} is not a JSON value")


class _Twice(Exception):
    """A mapping has this name twice, so it is unclear which value is meant."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(repr(name[:60]))
        found[name] = value
    return found


def _nodes(node: Any, known: dict[int, int]) -> int:
    """Return the number of YAML nodes in a node, with aliases expanded; computed once per node."""
    if id(node) not in known:
        inside = node.value if isinstance(node.value, list) else []
        if node.id == "mapping":
            _unique([(str(key.value), None) for key, _ in inside])
        parts = [each for pair in inside for each in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_nodes(each, known) for each in parts)
    return known[id(node)]


def duration_s(text: str) -> int:
    """Parse "90", "90s", "30m", "2h" or "1d12h" into seconds. Raises ArgumentTypeError."""
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    if not re.fullmatch(r"([0-9]{1,18}[smhdw])+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, e.g. 90s, 30m, 2h or 1d12h")
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"([0-9]+)([smhdw])", text))


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that accepts NONE, too."""
    return lambda text: text if text == NONE else read(text)


def _cores(text: str) -> int:
    try:
        return round(number(text) * 1000)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of cores, e.g. 8 or 0.5"
        ) from None


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _secret_key(text: str) -> tuple[str, dict[str, str]]:
    name, _, source = text.partition("=")
    secret, _, key = source.partition("/")
    if not (name and secret and key):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SECRET/KEY")
    return name, {"secret": secret, "key": key}


def _device_claim(text: str) -> tuple[str, dict[str, Any]]:
    name, _, source = text.partition("=")
    if template := re.fullmatch(r"template/(\S+)", source):
        return name, {"template": template[1]}
    first, *selectors = source.split(WHERE)
    found = re.fullmatch(r"([^\s:/]+)(?::([0-9]{1,9}))?", first)
    if not name or found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=CLASS, NAME=CLASS:COUNT or NAME=template/TEMPLATE"
        )
    count = {"count": int(found[2])} if found[2] else {}
    return name, {
        "device_class": found[1],
        **count,
        **({"selectors": selectors} if selectors else {}),
    }


# How a flag's text is parsed, by its `reads` in `job_flags`; others stay text.
_READ: dict[str, Callable[[str], Any]] = {
    "number": whole,
    "time": duration_s,
    "cores": _cores,
    "pair": _pair,
    "secret_key": _secret_key,
    "device_claim": _device_claim,
}
