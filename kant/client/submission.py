"""The job document of `kant submit`: flags, and what they go before: a file, or another job's."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kant.client.errors import usage

# Flags that are fields of the job document under the same name.
CHANGEABLE = (
    "priority", "declared_s", "run_limit_s", "checkpoint_notice_s", "max_restarts", "not_before",
)  # fmt: skip
FIELDS = (
    *CHANGEABLE, "name", "tenant", "cluster", "kind", "gang", "preemptible", "held", "strategy",
    "labels", "replicas", "min_count", "gpu_types", "gpus", "gpu_milli", "gpu_memory_mib",
    "cpu_milli", "memory_mib", "nics", "node_selector", "node_affinity", "required_level",
    "preferred_level", "max_per_node", "image", "env", "service_account", "image_pull_secrets",
    "shm_mib", "env_from_secrets",
)  # fmt: skip
# Of these, what pods are like: it stands in the pod sets where the document has them.
LEVELS = ("required_level", "preferred_level")
OF_PODS = (
    *LEVELS, "replicas", "min_count", "gpu_types", "gpus", "gpu_milli", "gpu_memory_mib",
    "cpu_milli", "memory_mib", "nics", "node_selector", "node_affinity", "max_per_node", "image",
    "env", "service_account", "image_pull_secrets", "shm_mib", "env_from_secrets", "command",
)  # fmt: skip
# Of these, the flag adds to what the document says: a mapping, or what nodes must not be called.
MAPPINGS = ("labels", "env", "node_selector", "env_from_secrets")
ADDING = (*MAPPINGS, "node_affinity")
# What stands for no value where a job may have none, and the metavars of the flags that take it.
NONE = "none"
TIME_OR_NONE, WHEN_OR_NONE = f"TIME|{NONE}", f"WHEN|{NONE}"
# As many values as Kant takes in one body.
MOST_NODES = 100_000
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def add_flags(parser: argparse.ArgumentParser) -> None:
    base = parser.add_mutually_exclusive_group().add_argument
    base("-f", "--file", metavar="FILE", help="the job as JSON, or YAML; - reads stdin")
    base(
        "--like",
        metavar="JOB",
        help="as another job: its id, the beginning of it, or name; or as an array: its id",
    )
    flag = parser.add_argument
    flag("-n", "--name", help="its name; the first word of the command if not given")
    flag("-t", "--tenant", help="whose quota it uses; may be left out by members of one tenant")
    flag("-c", "--cluster", help="where it runs, if there are several")
    flag("-g", "--gpus", type=int, metavar="N", help="GPUs of each pod")
    flag("-r", "--replicas", type=int, metavar="N", help="pods (1)")
    flag("--min-count", type=int, metavar="N",
         help="pods that it can do with: it starts with them and grows (elastic gang)")  # fmt: skip
    flag("-G", "--gpu-type", dest="gpu_types", action="append", metavar="TYPE",
         help="GPU type it may run on; again for others, the preferred first")  # fmt: skip
    flag("--gpu-milli", type=int, metavar="N", help="a share of one GPU, in thousandths")
    flag("--gpu-memory", dest="gpu_memory_mib", type=int, metavar="MIB",
         help="a share of one GPU, by its memory")  # fmt: skip
    flag("--cpu", dest="cpu_milli", type=_cores, metavar="CORES", help="CPU of each pod, e.g. 8")
    flag("--memory", dest="memory_mib", type=int, metavar="MIB", help="memory of each pod")
    flag("--nics", type=int, metavar="N", help="NICs that each pod holds alone")
    add_changeable(parser)
    flag("--kind", metavar="KIND", help="training, inference, development, …")
    flag("--gang", action=argparse.BooleanOptionalAction, help="all pods start together (default)")
    flag("--preemptible", action=argparse.BooleanOptionalAction,
         help="whether it may lose its place to others (default: it may); "
         "where lenders reclaim, one that may not holds no borrowed quota")  # fmt: skip
    flag("--hold", dest="held", action="store_const", const=True, help="wait for kant release")
    flag("--after", action="append", metavar="JOB", help="start when that job or array has ended")
    flag("--after-ok", action="append", metavar="JOB", help="start when it has succeeded")
    flag("--array", type=int, metavar="N", help="so many equal jobs, submitted as one")
    flag("--within", dest="required_level", metavar="LEVEL",
         help="all pods within one group of this network level, e.g. leaf")  # fmt: skip
    flag("--near", dest="preferred_level", metavar="LEVEL", help="the same, where it is possible")
    flag("--max-per-node", type=int, metavar="N", help="most of its pods on one node")
    flag("--strategy", metavar="NAME", help="placement strategy instead of the cluster's")
    flag("--node-selector", action="append", type=_pair, metavar="LABEL=VALUE",
         help="only nodes with this label")  # fmt: skip
    flag("-x", "--exclude-node", dest="node_affinity", action="append", metavar="NODE",
         help="not on this node; again for others")  # fmt: skip
    flag("--label", dest="labels", action="append", type=_pair, metavar="NAME=VALUE",
         help="a label of the job")  # fmt: skip
    flag("--image", help="container image")
    flag("-e", "--env", action="append", type=_pair, metavar="NAME=VALUE",
         help="environment of the containers")  # fmt: skip
    flag("--env-from-secret", dest="env_from_secrets", action="append", type=_secret_key,
         metavar="NAME=SECRET/KEY", help="the same, its value from a key of a secret")  # fmt: skip
    flag("--service-account", metavar="NAME", help="service account of the pods")
    flag("--image-pull-secret", dest="image_pull_secrets", action="append", metavar="NAME",
         help="secret by which the image is pulled; again for others")  # fmt: skip
    flag("--shm", dest="shm_mib", type=int, metavar="MIB", help="size of /dev/shm of each pod")
    flag("--dry-run", action="store_true", help="say what would be, submit nothing")
    flag("command", nargs="*", help="what the pods run, after --")
    names = {action.dest: action.option_strings[-1:] for action in parser._actions}
    parser.set_defaults(
        flags={dest: "".join(name) or "the command" for dest, name in names.items()}
    )


def add_changeable(parser: argparse.ArgumentParser) -> None:
    """The flags of CHANGEABLE, what may be asked for anew while a job waits."""
    flag = parser.add_argument
    flag("--time", dest="declared_s", type=_or_none(duration_s), metavar=TIME_OR_NONE,
         help="how long it will run, e.g. 90m or 1d12h: it may start sooner")  # fmt: skip
    flag("--time-limit", dest="run_limit_s", type=_or_none(duration_s), metavar=TIME_OR_NONE,
         help="when it is ended")  # fmt: skip
    flag("--checkpoint-notice", dest="checkpoint_notice_s", type=_or_none(duration_s),
         metavar=TIME_OR_NONE,
         help="how long before its deletion a pod is told to save its work")  # fmt: skip
    flag("--max-restarts", type=int, metavar="N",
         help="how often it, or a pod of it, is placed again after its program failed")  # fmt: skip
    flag("--begin", dest="not_before", metavar=WHEN_OR_NONE,
         help="not earlier, e.g. 2030-01-31T12:00Z")  # fmt: skip
    flag("--priority", type=int, metavar="N", help="larger goes first")


def given(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The flags among `names` that were given, as fields of a document; NONE is null there."""
    found = {name: getattr(args, name) for name in names}
    return {
        name: None if name in CHANGEABLE and value == NONE else value
        for name, value in found.items()
        if value is not None
    }


def none_for(beginning: str) -> Iterator[tuple[str, str]]:
    """NONE, for the completion of shells."""
    if NONE.startswith(beginning):
        yield NONE, "take away what was said before"


def document_of(args: argparse.Namespace, document: dict[str, Any]) -> dict[str, Any]:
    """The job document that the arguments ask for; its tenant may be missing. `document`: what the
    flags go before, which is changed. Raises ClientError where it has several pod sets and a flag
    says something of one."""
    asked = given(args, FIELDS)
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
            document.pop(field, None)  # which holds for all pod sets: there is this one
        for one in sets:
            _put(one, "count" if field == "replicas" else field, value)
    if args.array is not None:
        document["array"] = {"count": args.array}
    if not document.get("name"):
        if not document.get("command"):
            raise usage("The job has no name. Give it one with --name.")
        document["name"] = name_of(document["command"])
    return document


# What the flag of a field takes the place of.
_INSTEAD = {"gpu_types": "gpu_type", "replicas": "count"}


def _put(document: dict[str, Any], field: str, value: Any) -> None:
    """Set a field of the job, or of one of its pod sets, as its flag says."""
    if field in MAPPINGS:
        value = {**(document.get(field) or {}), **dict(value)}
    if field == "node_affinity":
        value = _without(document.get(field) or [{}], value)
    document[field] = value
    if field in _INSTEAD:
        document.pop(_INSTEAD[field], None)


def _without(terms: Any, nodes: Iterable[str]) -> list[dict[str, Any]]:
    """A node affinity that means none of these nodes any more: any of its terms is enough."""
    if not (isinstance(terms, list) and all(isinstance(term, dict) for term in terms)):
        raise usage("node_affinity of the job is no list of terms, so --exclude-node adds nothing.")
    names = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    return [{**term, "match_fields": [*(term.get("match_fields") or []), *names]} for term in terms]


def _refuse_of_one(
    args: argparse.Namespace, sets: Sequence[dict[str, Any]], asked: Iterable[str]
) -> None:
    """Raises ClientError naming the flags that several pod sets cannot share."""
    alone = [f for f in asked if f in OF_PODS and f not in (*LEVELS, *ADDING)]
    if alone:
        flags = ", ".join(args.flags[field] for field in alone)
        default = ("worker", *(f"set-{index}" for index in range(1, len(sets))))
        names = ", ".join(str(s.get("name") or n) for s, n in zip(sets, default, strict=True))
        raise usage(
            f"The job has several pod sets ({names}), and which of them is meant by {flags} is "
            "not known. Say it in its document and submit that with --file."
        )


def name_of(command: Sequence[str]) -> str:
    """A job name made of the first word of a command: "/bin/train.py" is "train-py"."""
    word = str(command[0]).rsplit("/", 1)[-1].lower()
    return re.sub(r"[^a-z0-9]+", "-", word).strip("-")[:63].strip("-") or "job"


def read(name: str) -> dict[str, Any]:
    """The mapping in a JSON or YAML file. Raises ClientError naming the file."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{name} cannot be read: {error}.") from None
    try:
        found = json.loads(text)
    except RecursionError:
        raise usage(f"{name} is nested too deeply for a job.") from None
    except ValueError as error:
        found = _yaml(name, text, error)
    if not isinstance(found, dict):
        raise usage(f"{name} holds no job: one mapping of fields is expected.")
    return found


def _yaml(name: str, text: str, no_json: ValueError) -> Any:
    try:
        import yaml  # PyYAML need not be there
    except ImportError:
        text = f"{name} is not JSON ({no_json}), and YAML needs PyYAML: pip install pyyaml."
        raise usage(text) from None
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is not None and _nodes(root, {}) > MOST_NODES:
            raise usage(
                f"{name} holds no job: its aliases make it more than {MOST_NODES:,} values."
            )
        return None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise usage(f"{name} is neither JSON nor YAML: {error}") from None
    except RecursionError:
        raise usage(f"{name} is nested too deeply, or an alias leads back into itself.") from None
    finally:
        loader.dispose()


def _nodes(node: Any, known: dict[int, int]) -> int:
    """How many YAML nodes there are in one, aliases followed; each is counted once."""
    if id(node) not in known:
        inside = node.value if isinstance(node.value, list) else []
        parts = [each for pair in inside for each in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_nodes(each, known) for each in parts)
    return known[id(node)]


def duration_s(text: str) -> int:
    """Seconds of "90", "90s", "30m", "2h", "1d12h". Raises ArgumentTypeError."""
    if text.isdecimal():
        return int(text)
    if not re.fullmatch(r"(\d+[smhdw])+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no time, e.g. 90s, 30m, 2h or 1d12h")
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([smhdw])", text))


def _or_none(read: Callable[[str], int]) -> Callable[[str], int | str]:
    """Reads NONE too."""
    return lambda text: text if text == NONE else read(text)


def _cores(text: str) -> int:
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of cores, e.g. 8 or 0.5") from None


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
