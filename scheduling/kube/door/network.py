"""Follows the objects in which other schedulers describe the network, if a cluster has them.

They are hints: if Kant may not read them, it says so and relies on the cluster's label table.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from scheduling.kube.door.client import Client
from scheduling.kube.door.watch import Reflector, WatchedKind, WatchTimes
from scheduling.kube.network.hyper_nodes import GROUP as VOLCANO
from scheduling.kube.network.hyper_nodes import (
    VERSION,
    HyperNodeFacts,
    KubeHyperNode,
    hyper_node_facts,
)
from scheduling.kube.network.level_names import LevelNames
from scheduling.kube.network.numa_zones import GROUP as NUMA
from scheduling.kube.network.numa_zones import KubeNodeZones, ZoneFacts, zone_facts
from scheduling.kube.network.topologies import (
    KAI,
    KUEUE,
    FlavorFacts,
    KubeTopology,
    Network,
    TopologyFacts,
    flavor_facts,
    network_of,
    topology_facts,
)
from scheduling.kube.seam import KubeError, NodeFacts
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.texts import storable

logger = logging.getLogger(__name__)

TOGETHER_S = 0.2  # seconds to collect changes of these objects: each change moves many nodes
FORBIDDEN = 403


def _kind(plural: str, group: str, *versions: str, type: type = KubeTopology) -> WatchedKind:
    first, *others = (f"/apis/{group}/{version}/{plural}" for version in versions)
    return WatchedKind(
        *(f"{plural}.{group}", first, "", type),
        optional=True,
        other_paths=tuple(others),
    )


class NetworkWatch:
    """Keeps the places of nodes, and the names of network levels, up to date.

    `nodes`: the known nodes by name; facts of nodes whose place changes are replaced there and
    passed to `moved`. `named`: gets the names that others use for levels. `report`: gets the state
    of the connection. All of it runs in the gateway's event loop.
    """

    def __init__(
        self,
        client: Client,
        times: WatchTimes,
        label_map: dict[str, Any],
        translator: NodeTranslator,
        *,
        nodes: Callable[[], dict[str, NodeFacts]],
        moved: Callable[[NodeFacts], None],
        named: Callable[[LevelNames], None],
        report: Callable[[str, KubeError | None], None],
    ) -> None:
        self.remarks = ""  # what operators should know of the network
        self._label_map = label_map
        self._translator = translator
        self._nodes = nodes
        self._moved = moved
        self._named = named
        self._report = report
        self._denied: dict[str, str] = {}  # errors of kinds that Kant may not read
        self._soon: asyncio.TimerHandle | None = None
        self._network: Network = network_of(label_map, ())
        self._topologies: dict[str, TopologyFacts] = {}
        self._flavors: dict[str, FlavorFacts] = {}
        self._hyper_nodes: dict[str, HyperNodeFacts] = {}
        follow = partial(Reflector[Any], client, times=times)
        self.reflectors: list[Reflector[Any]] = []
        for group, *versions in ((KUEUE, "v1beta2", "v1beta1", "v1alpha1"), (KAI, "v1alpha1")):
            kind = _kind("topologies", group, *versions)
            self._follow(follow, kind, partial(topology_facts, group), self._topologies)
        flavors = _kind("resourceflavors", KUEUE, "v1beta2", "v1beta1")
        self._follow(follow, flavors, flavor_facts, self._flavors)
        self._zones: dict[str, ZoneFacts] = {}  # by node
        translator.zones = self._zones
        zones = _kind("noderesourcetopologies", NUMA, "v1alpha2", type=KubeNodeZones)
        self._reflect(follow, zones, zone_facts, self._zones_seen, self._zones_gone)
        tree = _kind("hypernodes", VOLCANO, VERSION, type=KubeHyperNode)
        self._follow(follow, tree, hyper_node_facts, self._hyper_nodes)

    @property
    def kinds(self) -> list[str]:
        """The names, for messages, of the kinds that it follows."""
        return [reflector.kind.plural for reflector in self.reflectors]

    def _follow(
        self,
        follow: Callable[..., Reflector[Any]],
        kind: WatchedKind,
        translate: Callable[[Any], Any],
        known: dict[str, Any],
    ) -> None:
        def seen(facts: Any) -> None:
            known[facts.uid] = facts
            self._look_soon()

        def gone(facts: Any) -> None:
            known.pop(facts.uid, None)
            self._look_soon()

        self._reflect(follow, kind, translate, seen, gone)

    def _reflect(
        self,
        follow: Callable[..., Reflector[Any]],
        kind: WatchedKind,
        translate: Callable[[Any], Any],
        seen: Callable[[Any], None],
        gone: Callable[[Any], None],
    ) -> None:
        def health(error: KubeError | None) -> None:
            denied = str(error) if error is not None and error.code == FORBIDDEN else ""
            if denied != self._denied.pop(kind.plural, ""):
                self._look_soon()
            if denied:
                self._denied[kind.plural] = denied
            self._report(kind.plural, None if denied else error)

        self.reflectors.append(
            follow(
                kind=kind,
                translate=translate,
                identity=lambda facts: facts.uid,
                seen=seen,
                gone=gone,
                health=health,
            )
        )

    # --- nodes one by one
    # ---------------------------------------------------------------------------
    def _zones_seen(self, facts: ZoneFacts) -> None:
        self._zones[facts.name] = facts
        self._place(facts.name)

    def _zones_gone(self, facts: ZoneFacts) -> None:
        if self._zones.pop(facts.name, None) is not None:
            self._place(facts.name)

    def _place(self, name: str) -> None:
        """Look up the node's place again and pass the node on if it changed."""
        nodes = self._nodes()
        before = nodes.get(name)
        if before is not None and (now := self._translator.placed_anew(before)) != before:
            nodes[name] = now
            self._moved(now)

    # --- all objects together
    # -----------------------------------------------------------------------
    def node_news(self) -> None:
        """Look again: a node may be the first, or was the last, with a label that is a level."""
        if self._network.rows:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._soon is None:
            loop = asyncio.get_running_loop()
            self._soon = loop.call_later(TOGETHER_S, self.look)

    def look(self) -> None:
        """Apply what the objects say now to the nodes and to the names of levels."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        known = self._topologies.values(), self._flavors.values(), self._hyper_nodes.values()
        found = network_of(self._label_map, *known)
        before, self._network = self._network, found
        nodes = self._nodes()
        if (found.rows, found.tree) != (before.rows, before.tree):
            self._translator.read_places_by(found.rows, found.tree)
            for name in list(nodes):
                self._place(name)
        self._named(found.names)
        self._tell((*found.remarks, *self._unused(found, nodes), *self._unread()))

    def _unused(self, network: Network, nodes: dict[str, NodeFacts]) -> list[str]:
        labels = {source.label for sources in network.rows.values() for source in sources}
        for facts in nodes.values():
            if not labels:
                break
            labels -= facts.node.labels.keys()
        if not nodes:
            return []
        return [
            f"No node has the label {label}, which is a level of {network.names.by}."
            for label in sorted(labels)
        ]

    def _unread(self) -> list[str]:
        return [
            f"{error}. Until then Kant goes by the labels that it knows."
            for _, error in sorted(self._denied.items())
        ]

    def _tell(self, remarks: tuple[str, ...]) -> None:
        text = storable(" ".join(remarks))
        if text != self.remarks:
            self.remarks = text
            if text:
                logger.warning("network: %s", text)
