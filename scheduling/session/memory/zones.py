"""On which nodes a pod fits one NUMA zone, where the kubelet requires that."""

from scheduling.engine.types import Node, NodeExpression, NodeTerm, PodSetSpec
from scheduling.kube.translate.nodes import GPUS_IN_ZONE


class NumaZones:
    """The GPUs per NUMA zone of such nodes.

    `least`: the smallest such number, 0 = no such node. Pods with up to `least` GPUs need no node
    rule.
    """

    def __init__(self) -> None:
        self.least = 0
        self._most: dict[str, int] = {}  # by node

    def seen(self, node: Node) -> None:
        most = int(node.labels.get(GPUS_IN_ZONE, 0))
        if most != self._most.get(node.name, 0):
            self._most.pop(node.name, None)
            if most:
                self._most[node.name] = most
            self.least = min(self._most.values(), default=0)

    def gone(self, name: str) -> None:
        if self._most.pop(name, 0):
            self.least = min(self._most.values(), default=0)

    def concern(self, pod_set: PodSetSpec) -> bool:
        """Whether some node has no zone with that many GPUs."""
        return 0 < self.least < pod_set.gpus

    def terms(self, pod_set: PodSetSpec) -> tuple[NodeTerm, ...]:
        """Return the nodes that pods of the set may be on, as terms; () = any."""
        if not self.concern(pod_set):
            return ()
        more = NodeExpression(GPUS_IN_ZONE, "Gt", (str(pod_set.gpus - 1),))
        return (NodeExpression(GPUS_IN_ZONE, "DoesNotExist"),), (more,)
