"""The file of a snapshot: what the schedulers of a cluster were told, and when.

A fact is an object of its fields, with its type as `fact`; a NamedTuple of the engine is a list in
the order of its fields. Errors name the place of what is wrong.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import msgspec

from scheduling.engine.deltas import (
    Delta,
    JobHistory,
    JobRestored,
    JobSubmitted,
    NodeChanged,
    PolicyChanged,
)
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import JobRequest

FORMAT = "kant-snapshot"
VERSION = 1
FACTS: Mapping[str, type[Delta]] = {kind.__name__: kind for kind in get_args(Delta)}


class SnapshotError(ValueError):
    """Where a file is not a snapshot, and what would be right."""


@dataclass(frozen=True, slots=True)
class SnapshotScope:
    """What the scheduler of a scope ("" = whole cluster) would be told at its start, in order."""

    scope: str
    facts: tuple[Delta, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a cluster. `at`: seconds since the epoch. `names`: of jobs, by id, if known."""

    cluster: str
    at: float
    scopes: tuple[SnapshotScope, ...]
    anonymised: bool = False
    names: Mapping[str, str] = field(default_factory=dict, hash=False)


# --- writing --------------------------------------------------------------------------------------
def document_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as JSON."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "cluster": snapshot.cluster,
        "at": snapshot.at,
        "anonymised": snapshot.anonymised,
        "names": dict(snapshot.names),
        "scopes": [
            {"scope": one.scope, "facts": [_written(fact) for fact in one.facts]}
            for one in snapshot.scopes
        ],
    }


def _written(fact: Delta) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(fact, builtin_types=())
    return {"fact": type(fact).__name__, **said}


# --- reading --------------------------------------------------------------------------------------
def snapshot_of(text: str) -> Snapshot:
    """Read the snapshot in the text of a file. Raises SnapshotError."""
    try:
        document = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise SnapshotError(
            f"{where}: this is not valid JSON ({error.msg}); is the file complete?"
        ) from None
    except RecursionError:
        raise SnapshotError("lists are nested too deeply; this is not a snapshot") from None
    top = _object(document, "the file")
    if top.get("format") != FORMAT:
        raise SnapshotError(f"format: must be “{FORMAT}”; `kant snapshot` writes such files")
    if top.get("version") != VERSION:
        found = json.dumps(top.get("version"))[:40]
        raise SnapshotError(f"version: is {found}, but this Kant reads {VERSION}")
    _only(top, "", ("format", "version", "cluster", "at", "anonymised", "names", "scopes"))
    scopes = _read(top.get("scopes"), "scopes", list[dict[str, Any]])
    if not scopes:
        raise SnapshotError("scopes: is empty; nobody decides on the cluster")
    return Snapshot(
        _read(top.get("cluster"), "cluster", str),
        _read(top.get("at"), "at", float),
        tuple(_scope(one, f"scopes[{at}]") for at, one in enumerate(scopes)),
        _read(top.get("anonymised", False), "anonymised", bool),
        _read(top.get("names", {}), "names", dict[str, str]),
    )


def _no_number(word: str) -> float:
    raise SnapshotError(f"{word} is no number of a snapshot")


def _scope(given: dict[str, Any], at: str) -> SnapshotScope:
    _only(given, at, ("scope", "facts"))
    name = _read(given.get("scope"), f"{at}.scope", str)
    said = _read(given.get("facts"), f"{at}.facts", list[Any])
    facts = tuple(_fact(one, f"{at}.facts[{i}]") for i, one in enumerate(said))
    for i, wrong in _contradictions(facts):
        raise SnapshotError(f"{at}.facts[{i}].{wrong}")
    return SnapshotScope(name, facts)


def _fact(given: Any, at: str) -> Delta:
    told = dict(_object(given, at))
    name = told.pop("fact", None)
    kind = FACTS.get(name) if isinstance(name, str) else None
    if kind is None:
        known = ", ".join(sorted(FACTS))
        raise SnapshotError(f"{at}.fact: is {json.dumps(name)[:60]}, and must be one of {known}")
    _only(told, at, [each.name for each in fields(kind)])
    fact: Delta = _read(told, at, kind)
    _as_read(told, msgspec.to_builtins(fact, builtin_types=()), at)
    return fact


def _as_read(given: Any, read: Any, at: str) -> None:
    """Raise SnapshotError if something in the file was not read."""
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():
            if name not in read:
                raise SnapshotError(f"{at}.{name}: is no field that this Kant knows")
            _as_read(value, read[name], f"{at}.{name}")
    elif isinstance(given, list) and isinstance(read, list | tuple):
        if len(given) > len(read):
            raise SnapshotError(f"{at}: has {len(given)} parts, and must have {len(read)} at most")
        for i, (value, other) in enumerate(zip(given, read, strict=False)):
            _as_read(value, other, f"{at}[{i}]")


def _read(given: Any, at: str, kind: Any) -> Any:
    try:
        return msgspec.convert(given, type=kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise SnapshotError(f"{at}{place.rstrip('`')}: {text[0].lower()}{text[1:]}") from None


def _object(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise SnapshotError(f"{at}: must be an object")
    return given


def _only(given: Mapping[str, Any], at: str, known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            where = f"{at}.{name}" if at else name
            raise SnapshotError(f"{where}: is no field; known here: {', '.join(known)}")


# --- what the engine takes for granted ------------------------------------------------------------
def _contradictions(facts: Sequence[Delta]) -> Iterator[tuple[int, str]]:
    """Yield (index of a fact, how it contradicts another one or itself)."""
    jobs: set[str] = set()
    nodes: dict[str, int] = {}  # GPUs of each
    policies = 0
    for i, fact in enumerate(facts):
        if isinstance(fact, PolicyChanged):
            policies += 1
            for kind, name in fact.policy.strategies.items():
                if name not in STRATEGIES:
                    known = ", ".join(STRATEGIES)
                    yield i, f"policy.strategies.{kind}: is “{name}”, and must be one of {known}"
        elif isinstance(fact, NodeChanged):
            indexes = [device.index for device in fact.node.devices]
            if indexes != list(range(len(indexes))):
                yield i, "node.devices: their indexes must be 0, 1, 2 and so on"
            nodes[fact.node.name] = len(indexes)
        elif isinstance(fact, JobSubmitted | JobRestored):
            if fact.job.id in jobs:
                yield i, f"job.id: job {fact.job.id} stands in an earlier fact, too"
            jobs.add(fact.job.id)
            yield from ((i, wrong) for wrong in _wrong_sizes(fact.job))
            if isinstance(fact, JobRestored):
                yield from ((i, wrong) for wrong in _wrong_places(fact, nodes))
        elif isinstance(fact, JobHistory) and fact.job_id not in jobs:
            yield i, f"job_id: no fact before it tells of job {fact.job_id}"
    if policies != 1:
        yield max(0, len(facts) - 1), f"fact: {policies} facts tell a policy, and one must"


def _wrong_sizes(job: JobRequest) -> Iterator[str]:
    if not job.pod_sets:
        yield "job.pod_sets: must have one at least"
    for at, s in enumerate(job.pod_sets):
        if s.count < 1:
            yield f"job.pod_sets[{at}].count: must be 1 or more"
        for name in ("gpus", "cpu_milli", "memory_mib", "nics", "gpu_milli", "gpu_memory_mib"):
            if getattr(s, name) < 0:
                yield f"job.pod_sets[{at}].{name}: must not be negative"


def _wrong_places(fact: JobRestored, nodes: Mapping[str, int]) -> Iterator[str]:
    sets, many = fact.job.pod_sets, len(fact.placements)
    for at, place in enumerate(fact.placements):
        if not 0 <= place.pod_set < len(sets):
            yield f"placements[{at}]: the job has no pod set {place.pod_set}"
        gpus = nodes.get(place.node)
        if gpus is not None and any(not 0 <= device < gpus for device in place.devices):
            yield f"placements[{at}]: node {place.node} has {gpus} GPUs and none of such a number"
    for name in ("placed_at", "running_at"):
        if len(getattr(fact, name)) not in (0, many):
            yield f"{name}: must have as many as there are placements ({many}), or none"
