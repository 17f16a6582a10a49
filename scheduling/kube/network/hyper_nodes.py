"""Node groups from Volcano's HyperNodes (topology.volcano.sh/v1alpha1): a tree by membership.

A HyperNode of a tier has nodes as members, by name, pattern or labels, and HyperNodes of lower
tiers by name. Pure.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from scheduling.kube.network.level_names import LEAF, LEVELS, fact_of
from scheduling.kube.seam import Requirement, Sourced
from scheduling.kube.translate.label_selectors import requirements, selects
from scheduling.kube.translate.objects import LabelSelector, Meta
from scheduling.kube.translate.texts import storable

GROUP, VERSION = "topology.volcano.sh", "v1alpha1"


class _Exact(Struct, gc=False):
    name: str


class _Pattern(Struct, gc=False):
    pattern: str


class _Selector(Struct, gc=False, rename="camel"):
    exact_match: _Exact | None = None
    regex_match: _Pattern | None = None
    label_match: LabelSelector | None = None


class _Member(Struct, gc=False):
    type: Literal["Node", "HyperNode"]
    selector: _Selector = msgspec.field(default_factory=_Selector)


class _HyperNodeSpec(Struct, gc=False, rename="camel"):
    tier: int
    tier_name: str = ""
    members: list[_Member] = []


class KubeHyperNode(Struct, gc=False):
    """A HyperNode, unchecked; see `hyper_node_facts`."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: Any = None


class HyperNodeFacts(Struct, frozen=True, gc=False):
    """A HyperNode and its members.

    Nodes by `names`, `patterns` of names and labels (`selectors`); HyperNodes as `members`.
    `wrong`: why it cannot be used, "" = it can.
    """

    name: str
    uid: str
    tier: int = 0
    tier_name: str = ""
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    selectors: tuple[tuple[Requirement, ...], ...] = ()
    members: tuple[str, ...] = ()
    wrong: str = ""


def hyper_node_facts(raw: KubeHyperNode) -> HyperNodeFacts:
    """Return the HyperNode's facts. Never raises."""
    facts = HyperNodeFacts(raw.metadata.name, raw.metadata.uid)
    try:
        spec = msgspec.convert(raw.spec, _HyperNodeSpec)
        nodes = [each.selector for each in spec.members if each.type == "Node"]
        within = [each.selector for each in spec.members if each.type == "HyperNode"]
        found = msgspec.structs.replace(
            facts,
            tier=spec.tier,
            tier_name=storable(spec.tier_name),
            names=tuple(each.exact_match.name for each in nodes if each.exact_match),
            patterns=tuple(each.regex_match.pattern for each in nodes if each.regex_match),
            selectors=tuple(requirements(s.label_match) or () for s in nodes if s.label_match),
            members=tuple(each.exact_match.name for each in within if each.exact_match),
        )
        for pattern in found.patterns:
            re.compile(pattern)
    except (msgspec.ValidationError, re.error) as wrong:
        text = f"a pattern: {wrong}" if isinstance(wrong, re.error) else str(wrong)
        return msgspec.structs.replace(facts, wrong=f"Its spec cannot be read ({storable(text)})")
    if len(found.names) + len(found.patterns) + len(found.selectors) < len(nodes):
        text = "A member has none of exactMatch, regexMatch and labelMatch"
        return msgspec.structs.replace(facts, wrong=text)
    if len(found.members) < len(within):
        text = "A member of type HyperNode has no exactMatch, the only selector for such members"
        return msgspec.structs.replace(facts, wrong=text)
    return found


class HyperTree:
    """All HyperNodes of a cluster. Equal if their objects are.

    `levels`: Kant's level for each tier, the lowest tier first, "" = no level is left for it.
    `tier_names`: tiers by name. `remarks`: what is wrong, one sentence each.
    """

    def __init__(self, objects: Iterable[HyperNodeFacts]) -> None:
        self.objects = tuple(sorted(objects, key=lambda each: each.name))
        known = {each.name: each for each in self.objects if not each.wrong}
        self._tier = {name: each.tier for name, each in known.items()}
        tiers = sorted(set(self._tier.values()))
        first = LEAF if len(tiers) <= len(LEVELS) - LEAF else 0
        places = [LEVELS[n] if n < len(LEVELS) else "" for n in range(first, first + len(tiers))]
        self.levels = dict(zip(tiers, places, strict=True))
        self.tier_names: dict[str, int] = {}
        wrong = (each for each in self.objects if each.wrong)
        self.remarks = [f"HyperNode {each.name} is not used. {each.wrong}." for each in wrong]
        for each in known.values():
            if each.tier_name:
                tier = self.tier_names.setdefault(each.tier_name, each.tier)
                if tier != each.tier:
                    self.remarks.append(
                        f"The name {each.tier_name} means tier {tier} of HyperNodes: HyperNode "
                        f"{each.name}, which has it, is of tier {each.tier}."
                    )
        if left := [str(tier) for tier, level in self.levels.items() if not level]:
            self.remarks.append(
                f"HyperNodes of tier {', '.join(left)} are not used: Kant has {len(LEVELS)} levels."
            )
        self._parent: dict[str, str] = {}
        for each in known.values():
            for member in each.members:
                self._adopt(each, known.get(member), member)
        self._by_name: dict[str, list[str]] = defaultdict(list)
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        self._selectors: list[tuple[tuple[Requirement, ...], str]] = []
        for each in known.values():
            for name in each.names:
                self._by_name[name].append(each.name)
            self._patterns += [(re.compile(pattern), each.name) for pattern in each.patterns]
            self._selectors += [(selector, each.name) for selector in each.selectors]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HyperTree) and self.objects == other.objects

    def __hash__(self) -> int:
        return hash(self.objects)

    def __bool__(self) -> bool:
        """Whether any HyperNode can be used."""
        return bool(self._tier)

    def _adopt(self, parent: HyperNodeFacts, child: HyperNodeFacts | None, name: str) -> None:
        """Make a HyperNode the parent of another, or add a remark.

        Tiers have to rise, so no HyperNode can contain itself.
        """
        other = self._parent.get(name)
        if child is None:
            text = (
                f"HyperNode {parent.name} has the member {name}, but there is no such usable "
                "HyperNode."
            )
        elif child.tier >= parent.tier:
            text = (
                f"HyperNode {parent.name} of tier {parent.tier} cannot have the member {name} of "
                f"tier {child.tier}, which is not lower: {name} is not within it."
            )
        elif other is not None and other != parent.name:
            text = (
                f"HyperNodes {other} and {parent.name} both have the member {name}: {other} counts."
            )
        else:
            self._parent[name] = parent.name
            return
        self.remarks.append(text)

    def place(
        self, node: str, labels: Mapping[str, str]
    ) -> tuple[dict[str, Sourced], tuple[str, ...]]:
        """Return a node's groups by fact of the label table, and contradictions.

        Its group at a tier is the widest HyperNode above it of that or a lower tier.
        """
        chains = [self._chain(name) for name in self._having(node, labels)]
        if not chains:
            return {}, ()
        # Prefer the innermost HyperNode; those around it contain the node as well.
        chains.sort(key=lambda chain: (self._tier[chain[0]], -len(chain), chain[0]))
        mine = chains[0]
        others = [chain[0] for chain in chains[1:] if chain[0] not in mine]
        problems = tuple(
            f"HyperNodes {mine[0]} and {other} both have the node: {mine[0]} counts"
            for other in others
        )
        found: dict[str, Sourced] = {}
        for tier, level in self.levels.items():
            within = [name for name in mine if self._tier[name] <= tier]
            if level and within:
                found[fact_of(level)] = Sourced(within[-1], f"HyperNode of tier {tier}")
        return found, problems

    def _having(self, node: str, labels: Mapping[str, str]) -> Sequence[str]:
        """Return the HyperNodes that have the node itself as a member."""
        found = dict.fromkeys(self._by_name.get(node, ()))
        found |= dict.fromkeys(name for pattern, name in self._patterns if pattern.search(node))
        found |= dict.fromkeys(name for wanted, name in self._selectors if selects(wanted, labels))
        return list(found)

    def _chain(self, name: str) -> list[str]:
        """Return a HyperNode and all those above it."""
        chain = [name]
        while (above := self._parent.get(chain[-1])) is not None:
            chain.append(above)
        return chain
