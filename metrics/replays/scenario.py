"""What a replay changes: nodes of a shape, and a description of all changes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from metrics.models import Replay
from metrics.replays import quotas
from scheduling.engine.types import Node
from scheduling.models import Cluster, NodeRecord
from scheduling.queries.wording import policy_differences
from tenants.templatetags.ui import short_model

MOST_NODES = 10_000  # nodes added of one shape
# Policy fields without effect in a replay: it has no faults and no warnings, and decides about the
# cluster as a whole.
UNSEEN = frozenset(
    (
        *("max_attempts", "backoff_base_s", "backoff_cap_s", "gang_timeout_s", "blame_s"),
        *("node_loss_s", "node_loss_saved_s", "warn_before_s", "shards"),
    )
)
HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True, order=True)
class NodeShape:
    """Nodes that are alike to a capacity plan: the same number of GPUs of a model."""

    gpu_type: str
    gpus: int

    def __str__(self) -> str:
        return f"{self.gpu_type} × {self.gpus}"


def shapes_of(cluster: Cluster) -> dict[NodeShape, int]:
    """Return the shapes of a cluster's GPU nodes, with the number of nodes of each."""
    rows = NodeRecord.objects.filter(cluster=cluster, gpus__gt=0)
    counts = Counter(NodeShape(*row) for row in rows.order_by().values_list("gpu_model", "gpus"))
    return dict(sorted(counts.items()))


def changed_nodes(nodes: Sequence[Node], changes: Mapping[NodeShape, int]) -> list[Node]:
    """Return the nodes after adding, or removing (negative), nodes of these shapes.

    Added nodes are copies of existing ones of their shape, those in service first, in network
    groups of their own as large as the copied ones. Removed are the last ones by name that are in
    service, then the others.
    """
    by_shape: dict[NodeShape, list[Node]] = {}
    for node in nodes:
        by_shape.setdefault(NodeShape(node.gpu_model, len(node.devices)), []).append(node)
    gone: set[str] = set()
    added: list[Node] = []
    for shape, change in changes.items():
        alike = sorted(by_shape.get(shape, ()), key=lambda node: (not _in_service(node), node.name))
        if change < 0:
            working = [node for node in alike if _in_service(node)]
            out = [node for node in alike if not _in_service(node)]
            gone.update(node.name for node in [*reversed(working), *out][:-change])
        elif alike:
            added += (_copy(alike[i % len(alike)], i // len(alike) + 1) for i in range(change))
    return [*(node for node in nodes if node.name not in gone), *added]


def _in_service(node: Node) -> bool:
    return node.schedulable and node.healthy_gpus == len(node.devices)


def _copy(node: Node, number: int) -> Node:
    """Return a copy of a node under a new name, all of it working, in a new leaf under the same
    spine."""
    end = f"+{number}"
    nearest, *others = node.topology
    return replace(
        node,
        name=node.name + end,
        devices=tuple(replace(device, healthy=True) for device in node.devices),
        nics=tuple(replace(nic, healthy=True) for nic in node.nics),
        topology=(nearest and nearest + end, *others),
        hyper_node=node.hyper_node and node.hyper_node + end,
        labels={**node.labels, HOSTNAME: node.name + end},
        schedulable=True,
        unnamed_unhealthy=0,
    )


# --- in words -------------------------------------------------------------------------------------
def differences(replay: Replay) -> Iterator[tuple[str, str, str]]:
    """Yield (what, before, after) for each changed policy setting, shape of nodes and quota."""
    for setting in policy_differences(replay.policy_before, replay.policy):
        yield setting.name, setting.before, setting.after
    for one in replay.nodes:
        if one["change"]:
            shape = NodeShape(short_model(one["gpu_type"]), one["gpus"])
            yield f"Nodes of {shape}", "as now", f"{one['change']:+d}".replace("-", "−")
    before = {(one["tenant"], one["gpu_type"]): one for one in replay.quotas_before}
    for one in replay.quotas:
        name = f"Quota of {one['tenant']} for {short_model(one['gpu_type'])}"
        was_quota = before.get((one["tenant"], one["gpu_type"]))
        yield name, quotas.words(was_quota), quotas.words(one)
