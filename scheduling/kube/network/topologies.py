"""Network levels from Topology objects of Kueue (kueue.x-k8s.io) and KAI (kai.scheduler).

Such an object lists the node labels that define groups, the widest first. docs/decisions/0097 says
which of Kant's levels they are, and which object counts. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from scheduling.engine.types import DEFAULT_LEVELS
from scheduling.kube.network.hyper_nodes import GROUP as VOLCANO
from scheduling.kube.network.hyper_nodes import HyperNodeFacts, HyperTree
from scheduling.kube.network.level_names import (
    HOSTNAME,
    LEAF,
    LEVELS,
    LevelNames,
    fact_of,
    names_of_table,
)
from scheduling.kube.translate.labels import (
    LabelSource,
    is_label_key,
    label_table,
    reads_as_it_is,
)
from scheduling.kube.translate.objects import Meta
from scheduling.kube.translate.texts import storable

KUEUE, KAI = "kueue.x-k8s.io", "kai.scheduler"
MOST_LEVELS = 16  # as their CRDs limit it
Rows = Mapping[str, tuple[LabelSource, ...]]


class KubeTopology(Struct, gc=False):
    """A Topology, unchecked; see `topology_facts`."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: Any = None


class TopologyFacts(Struct, frozen=True, gc=False):
    """A Topology of the API group `group`.

    `labels`: of its levels, the nearest to the nodes first, without that of single nodes. `wrong`:
    why it cannot be used, "" = it can.
    """

    group: str
    name: str
    uid: str
    created_at: str
    labels: tuple[str, ...] = ()
    wrong: str = ""

    def __str__(self) -> str:
        return f"Topology {self.name} of {self.group}"


class FlavorFacts(Struct, frozen=True, gc=False):
    """A ResourceFlavor of Kueue and the Topology of its nodes; "" = none."""

    name: str
    uid: str
    topology: str


class Network(Struct, frozen=True):
    """Where nodes are, beyond the cluster's own label table.

    `rows` replace the table's rows, and so does the `tree`, if there is one. `names`: of levels, in
    pods and groups. `remarks`: for operators, one sentence each.
    """

    names: LevelNames
    rows: Rows = {}
    remarks: tuple[str, ...] = ()
    tree: HyperTree | None = None


def topology_facts(group: str, raw: KubeTopology) -> TopologyFacts:
    """Return the Topology's facts. Never raises."""
    meta = raw.metadata
    of = TopologyFacts(group, meta.name, meta.uid, meta.creation_timestamp or "")
    levels = raw.spec.get("levels") if isinstance(raw.spec, Mapping) else None
    if not isinstance(levels, list) or not 0 < len(levels) <= MOST_LEVELS:
        wrong = f"spec.levels: It has to be a list of 1 to {MOST_LEVELS} levels"
        return msgspec.structs.replace(of, wrong=wrong)
    labels = [each.get("nodeLabel") if isinstance(each, Mapping) else None for each in levels]
    for at, label in enumerate(labels):
        wrong = ""
        if not isinstance(label, str) or not is_label_key(label):
            wrong = f"{storable(str(label))[:80]!r} is not a Kubernetes label key"
        elif label in labels[:at]:
            wrong = f"{label} is a level already"
        elif label == HOSTNAME and at < len(labels) - 1:
            wrong = f"{HOSTNAME} can only be the last level"
        if wrong:
            return msgspec.structs.replace(of, wrong=f"spec.levels[{at}].nodeLabel: {wrong}")
    return msgspec.structs.replace(of, labels=tuple(x for x in reversed(labels) if x != HOSTNAME))


def flavor_facts(raw: KubeTopology) -> FlavorFacts:
    """Return the flavor's facts. Never raises."""
    found = raw.spec.get("topologyName") if isinstance(raw.spec, Mapping) else None
    return FlavorFacts(raw.metadata.name, raw.metadata.uid, str(found or ""))


def network_of(
    label_map: Mapping[str, Any],
    topologies: Iterable[TopologyFacts],
    flavors: Iterable[FlavorFacts] = (),
    hyper_nodes: Iterable[HyperNodeFacts] = (),
) -> Network:
    """Return what all of a cluster's objects say together.

    If an operator has set which labels are levels, only that counts.
    """
    table = label_table(label_map)
    own = Network(LevelNames(names_of_table(table)))
    if is_set(label_map):
        return own
    found = sorted(topologies, key=lambda each: (each.created_at, each.group, each.name))
    remarks = [f"{each} is not used. {each.wrong}." for each in found if each.wrong]
    named = {flavor.topology for flavor in flavors} - {""}
    of_flavors = [each.name for each in found if each.group == KUEUE and each.name in named]
    usable = [
        each
        for each in found
        if each.labels and not (of_flavors and each.group == KUEUE and each.name not in of_flavors)
    ]
    if not usable:
        tree = HyperTree(hyper_nodes)
        if tree:
            return _by_tree(tree, table, remarks)
        return msgspec.structs.replace(own, remarks=(*remarks, *tree.remarks))
    first, *others = usable
    if any(not each.wrong for each in hyper_nodes):
        remarks.append(f"HyperNodes are not used. {first} says the levels.")
    remarks += [
        f"{each} is not used. {first}, which is older, says other levels."
        for each in others
        if not _is_within(each.labels, first.labels)
    ]
    return _network(first, table, remarks)


def _by_tree(tree: HyperTree, table: Rows, remarks: Sequence[str]) -> Network:
    told = {fact_of(level) for level in tree.levels.values() if level}
    # The tree replaces all labels, even for scale-out levels without HyperNodes.
    told.update(map(fact_of, DEFAULT_LEVELS))
    rows: Rows = dict.fromkeys(sorted(told), ())
    names = LevelNames(
        names_of_table({**table, **rows}),
        by=f"HyperNodes of {VOLCANO}",
        of_tier=tree.levels,
        tier_names=tree.tier_names,
    )
    return Network(names, rows, (*remarks, *tree.remarks), tree)


def is_set(label_map: Mapping[str, Any]) -> bool:
    """Whether the operator has set which labels are levels."""
    return any(fact_of(level) in label_map for level in LEVELS)


def _network(first: TopologyFacts, table: Rows, remarks: Sequence[str]) -> Network:
    places = levels_of(first.labels, table)
    rows = {
        fact_of(level): (LabelSource(label),)
        for label, level in zip(first.labels, places, strict=True)
        if level
    }
    left_out: dict[str, str] = {}
    wider = ""
    for label, level in zip(reversed(first.labels), reversed(places), strict=True):
        wider = level or wider
        if not level:
            left_out[label] = wider
    if left_out:
        text = f"Levels {', '.join(sorted(left_out))} of {first} are not used."
        remarks = [*remarks, f"{text} Kant has the levels {', '.join(LEVELS)}, and no more."]
    of_label = names_of_table({**table, **rows})
    return Network(LevelNames(of_label, left_out, str(first)), rows, tuple(remarks))


def levels_of(labels: Sequence[str], table: Rows) -> list[str]:
    """Return Kant's level for each label, nearest first; "" = no level is left for it.

    A label of Kant's own table keeps its level. Other labels get the free levels in between, the
    nearest label the nearest level; the hyper-node level only if no other is left.
    """
    known: list[int | None] = [_known(label, table) for label in labels]
    fixed = [place for place in known if place is not None]
    if fixed != sorted(set(fixed)):
        known = [None] * len(labels)  # The order differs from Kant's; the object's author is right.
    places: list[int | None] = []
    start = 0
    while start < len(labels):
        if known[start] is not None:
            places.append(known[start])
            start += 1
            continue
        end = start
        while end < len(labels) and known[end] is None:
            end += 1
        below = places[-1] if places else None
        above = known[end] if end < len(labels) else len(LEVELS)
        assert above is not None
        free = list(range(0 if below is None else below + 1, above))
        if below is None and LEAF in free and len(free) > end - start:
            free.remove(0)
        places += [free[n] if n < len(free) else None for n in range(end - start)]
        start = end
    return ["" if place is None else LEVELS[place] for place in places]


def _known(label: str, table: Rows) -> int | None:
    """Return the index in LEVELS of the level that the label defines in Kant's own table."""
    for place, level in enumerate(LEVELS):
        if any(s.label == label and reads_as_it_is(s) for s in table[fact_of(level)]):
            return place
    return None


def _is_within(labels: Sequence[str], others: Sequence[str]) -> bool:
    """Whether `others` contains all these labels in the same order."""
    return [label for label in others if label in labels] == list(labels)
