"""What a pod says of other pods, as rules of the engine: host ports, (anti-)affinity, spread.

Sources: core/v1 PodAffinityTerm, TopologySpreadConstraint, ContainerPort; the defaults are those of
kube-scheduler. Usually the API server has already merged `matchLabelKeys` into the selector;
merging them again changes nothing.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from scheduling.engine.types import (
    Apart,
    GroupWish,
    HostPort,
    Near,
    PodRules,
    Spread,
)
from scheduling.kube.seam import KeepsAway, PodSays, PodsMeant, Requirement, Spaces
from scheduling.kube.translate.label_selectors import requirements
from scheduling.kube.translate.node_rules import PREFERRED, REQUIRED, wishes_of
from scheduling.kube.translate.objects import Container, KubePod, LabelSelector, decoded

NOTHING = PodRules()
Groups = dict[str, tuple[PodsMeant, ...]]


class AffinityTerm(Struct, rename="camel"):
    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class _WeightedTerm(Struct, rename="camel"):
    weight: int
    pod_affinity_term: AffinityTerm


class _PodAffinity(Struct):
    required: list[AffinityTerm] | None = msgspec.field(default=None, name=REQUIRED)
    preferred: list[_WeightedTerm] | None = msgspec.field(default=None, name=PREFERRED)


class _RulesOfPods(Struct, rename="camel"):
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Spread(Struct, rename="camel"):
    max_skew: int
    topology_key: str
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    nodes_policy: str | None = msgspec.field(default=None, name="nodeAffinityPolicy")
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class _Port(Struct, rename="camel"):
    container_port: int = 0
    host_port: int = 0
    protocol: str = "TCP"
    host_i_p: str = msgspec.field(default="", name="hostIP")


def says(raw: KubePod) -> PodSays | None:
    """Return what a pod of Kant's says of others. Raises ValueError for what cannot be read."""
    meta, spec = raw.metadata, raw.spec
    groups: Groups = {}
    ports = host_ports(raw)
    if not (ports or bytes(spec.affinity) or bytes(spec.topology_spread_constraints)):
        return None
    rules = PodRules(ports=ports)
    affinity = decoded(spec.affinity, _RulesOfPods, _RulesOfPods())
    to, apart = affinity.pod_affinity, affinity.pod_anti_affinity
    own = meta.namespace, meta.labels
    if to is not None and to.required:
        meant = tuple(_meant(term, *own) for term in to.required)
        keys = tuple(term.topology_key for term in to.required)
        rules = rules._replace(near=Near(_group(groups, meant), keys))
    if apart is not None and apart.required:
        terms = ((_meant(term, *own), term.topology_key) for term in apart.required)
        rules = rules._replace(apart=tuple(Apart(_group(groups, (m,)), key) for m, key in terms))
    wishes = tuple(_wishes(affinity, groups, *own))
    rules = rules._replace(wishes=wishes, node_wishes=wishes_of(spec))
    for constraint in decoded(spec.topology_spread_constraints, list[_Spread], []):
        spread = _spread(constraint, groups, *own)
        if constraint.when_unsatisfiable == "ScheduleAnyway":
            rules = rules._replace(evenly=(*rules.evenly, spread))
        else:
            rules = rules._replace(spread=(*rules.spread, spread))
    return None if rules == NOTHING else PodSays(rules, tuple(groups.items()))


def ports_of(raw: KubePod) -> PodSays | None:
    """Return the host ports of another scheduler's pod. Raises ValueError."""
    ports = host_ports(raw)
    return PodSays(PodRules(ports=ports)) if ports else None


def host_ports(raw: KubePod) -> tuple[HostPort, ...]:
    """Return the host ports of the containers that run as long as the pod. Raises ValueError.

    In the host's network each container port is a host port; the API server also writes it down.
    """
    spec = raw.spec
    everything = (*spec.containers, *spec.init_containers)
    if not (spec.host_network or any(b"hostPort" in bytes(each.ports) for each in everything)):
        return ()
    sidecars = [each for each in spec.init_containers if each.restart_policy == "Always"]
    found = {
        HostPort(number, port.protocol or "TCP", port.host_i_p)
        for each in (*spec.containers, *sidecars)
        for port in _ports(each)
        if (number := port.host_port or (port.container_port if spec.host_network else 0))
    }
    return tuple(sorted(found))


def spaces_of(term: AffinityTerm, own: str) -> Spaces:
    """Return the namespaces that a term of a pod in namespace `own` means."""
    labels = requirements(term.namespace_selector)
    if labels is None and not term.namespaces:
        return Spaces((own,))
    return Spaces(tuple(sorted(term.namespaces or ())), labels)


def _ports(container: Container) -> list[_Port]:
    found: list[_Port] = decoded(container.ports, list[_Port], [])
    return found


def _wishes(
    affinity: _RulesOfPods, groups: Groups, namespace: str, labels: Mapping[str, str]
) -> Iterable[GroupWish]:
    for of, sign in ((affinity.pod_affinity, 1), (affinity.pod_anti_affinity, -1)):
        for wish in (of.preferred if of is not None else None) or ():
            group = _group(groups, (_meant(wish.pod_affinity_term, namespace, labels),))
            yield GroupWish(sign * wish.weight, group, wish.pod_affinity_term.topology_key)


def _spread(c: _Spread, groups: Groups, namespace: str, labels: Mapping[str, str]) -> Spread:
    selector = _with_keys(requirements(c.label_selector), labels, c.match_label_keys, "In")
    # In a spread, kube-scheduler counts no pods for an empty selector; elsewhere it means all pods.
    meant = PodsMeant(Spaces((namespace,)), selector or None)
    return Spread(
        _group(groups, (meant,)),
        c.topology_key,
        c.max_skew,
        c.min_domains or 1,
        c.nodes_policy != "Ignore",
        c.node_taints_policy == "Honor",
    )


def _meant(term: AffinityTerm, namespace: str, labels: Mapping[str, str]) -> PodsMeant:
    selector = _with_keys(requirements(term.label_selector), labels, term.match_label_keys, "In")
    selector = _with_keys(selector, labels, term.mismatch_label_keys, "NotIn")
    return PodsMeant(spaces_of(term, namespace), selector)


def _with_keys(
    selector: tuple[Requirement, ...] | None,
    labels: Mapping[str, str],
    keys: list[str] | None,
    operator: str,
) -> tuple[Requirement, ...] | None:
    if selector is None:
        return None
    more = (Requirement(key, operator, (labels[key],)) for key in keys or () if key in labels)
    return tuple(sorted({*selector, *more}))


def _group(groups: Groups, meant: tuple[PodsMeant, ...]) -> str:
    """Return a group's readable name, and note what the group means."""
    meant = tuple(sorted(set(meant), key=str))
    name = " that are also ".join(map(_said, meant))
    groups[name] = meant
    return name


def name_of_group(rule: KeepsAway) -> str:
    """Return the name of the group that such a rule keeps away."""
    return _said(PodsMeant(rule.namespaces, rule.selector))


def _said(meant: PodsMeant) -> str:
    where = _said_of(meant.namespaces)
    if meant.selector is None:
        return f"no pods in {where}"
    wanted = " and ".join(map(_wanted, meant.selector))
    return f"pods with {wanted} in {where}" if wanted else f"pods in {where}"


def _said_of(spaces: Spaces) -> str:
    if spaces.labels == ():
        return "any namespace"
    by_labels = " and ".join(map(_wanted, spaces.labels or ()))
    named = (f"namespaces with {by_labels}",) if by_labels else ()
    return ", ".join((*spaces.names, *named))


def _wanted(each: Requirement) -> str:
    match each.operator:
        case "In" if len(each.values) == 1:
            return f"{each.key}={each.values[0]}"
        case "In":
            return f"{each.key} in ({', '.join(each.values)})"
        case "NotIn":
            return f"{each.key} not in ({', '.join(each.values)})"
        case "Exists":
            return f"label {each.key}"
    return f"no label {each.key}"
