"""What the engine knows of a job's pods beyond the job's rows, as a JSON document.

`queries.known` reads it, so that questions asked from rows alone give the engine the same facts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_type_hints

import msgspec

from scheduling.engine.types import (
    Apart,
    Attached,
    FreeableDevices,
    GroupWish,
    HostPort,
    JobRequest,
    Near,
    NodeExpression,
    NodeRules,
    NodeTerm,
    NodeWish,
    PodRules,
    PodSetSpec,
    Spread,
)
from scheduling.kube.seam import KeepsAway
from scheduling.session.devices.demand import PREFIX

Document = list[dict[str, Any]]
NOTHING = PodRules()
NODE_RULES = get_type_hints(NodeRules)


def written(asked: JobRequest, told: JobRequest) -> Document | None:
    """Return, by pod set, what the engine is told beyond the rows; None = nothing."""
    if told is asked:
        return None
    pairs = zip(asked.pod_sets, told.pod_sets, strict=True)
    found = [_written(of_rows, of_engine) for of_rows, of_engine in pairs]
    return found if any(found) else None


def _written(asked: PodSetSpec, told: PodSetSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in NODE_RULES:
        if (value := getattr(told.nodes, name)) != getattr(asked.nodes, name):
            found[name] = _plain(msgspec.to_builtins(value))
    if told.gpu_models != asked.gpu_models:
        found["gpu_models"] = list(told.gpu_models)
    if dict(told.extended) != dict(asked.extended):
        found["extended"] = dict(told.extended)
    if told.rules is not None:
        found["rules"] = written_rules(told.rules)
    return found


def written_rules(rules: PodRules) -> dict[str, Any]:
    """Return the fields that differ from the default."""
    return {
        name: _plain(value)
        for name, value, nothing in zip(rules._fields, rules, NOTHING, strict=True)
        if value != nothing
    }


def with_constraints(asked: JobRequest, document: Document) -> JobRequest:
    """Return the request as the engine was last told it.

    If the number of pod sets has changed since, return it as the rows say.
    """
    if len(document) != len(asked.pod_sets):
        return asked
    return replace(asked, pod_sets=tuple(map(_told, asked.pod_sets, document)))


def with_devices(asked: JobRequest, document: Document) -> JobRequest:
    """Return the request with the devices that the engine counted when the job was placed.

    Claims that have devices no longer ask for them.
    """
    if len(document) != len(asked.pod_sets):
        return asked
    sets = []
    for pod_set, of in zip(asked.pod_sets, document, strict=True):
        told = of.get("extended", {}).items()
        counted = {name: amount for name, amount in told if name.startswith(PREFIX)}
        if counted:
            pod_set = replace(pod_set, extended={**pod_set.extended, **counted})
        sets.append(pod_set)
    return asked if tuple(sets) == asked.pod_sets else replace(asked, pod_sets=tuple(sets))


def _told(pod_set: PodSetSpec, of: Mapping[str, Any]) -> PodSetSpec:
    given = {name: kind for name, kind in NODE_RULES.items() if name in of}
    nodes = {name: msgspec.convert(of[name], kind) for name, kind in given.items()}
    rules = read_rules(of["rules"]) if "rules" in of else pod_set.rules
    extended = of.get("extended", pod_set.extended)
    models = tuple(of.get("gpu_models", pod_set.gpu_models))
    told = replace(pod_set.nodes, **nodes) if nodes else pod_set.nodes
    return replace(pod_set, nodes=told, rules=rules, extended=extended, gpu_models=models)


def read_rules(of: Mapping[str, Any]) -> PodRules:
    """Read what `written_rules` wrote, also after a trip through JSON."""
    near = of.get("near")
    return PodRules(
        groups=tuple(of.get("groups", ())),
        ports=tuple(HostPort(*each) for each in of.get("ports", ())),
        apart=tuple(Apart(*each) for each in of.get("apart", ())),
        near=None if near is None else Near(near[0], tuple(near[1])),
        spread=tuple(Spread(*each) for each in of.get("spread", ())),
        evenly=tuple(Spread(*each) for each in of.get("evenly", ())),
        wishes=tuple(GroupWish(*each) for each in of.get("wishes", ())),
        node_wishes=tuple(NodeWish(w, _term(t)) for w, t in of.get("node_wishes", ())),
        affinity=_terms(of.get("affinity", ())),
        sole=tuple(of.get("sole", ())),
        attached=tuple(Attached(*each) for each in of.get("attached", ())),
        devices=msgspec.convert(of.get("devices", ()), tuple[FreeableDevices, ...]),
    )


def written_keepers(rules: Iterable[KeepsAway]) -> list[Any]:
    """Write rules as JSON for `read_keepers`."""
    return [_plain(rule) for rule in rules]


def read_keepers(rules: Iterable[Any]) -> tuple[KeepsAway, ...]:
    return msgspec.convert(list(rules), tuple[KeepsAway, ...])


def _plain(value: Any) -> Any:
    """Return the value as JSON gives it back."""
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def _terms(terms: Iterable[Iterable[Any]]) -> tuple[NodeTerm, ...]:
    return tuple(map(_term, terms))


def _term(term: Iterable[Any]) -> NodeTerm:
    return tuple(NodeExpression(key, op, tuple(values), name) for key, op, values, name in term)
