"""What it would do to take nodes away from jobs, to give them back, or to add nodes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from django.utils import timezone

from scheduling.engine.deltas import Delta, NodeChanged, NodeRemoved, PolicyChanged
from scheduling.engine.shards.division import home_of
from scheduling.engine.types import MILLI, Node
from scheduling.models import Cluster, NodeRecord, Placement
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.effects import change_effects
from scheduling.queries.history import node_of
from scheduling.queries.nodes.orders import is_ordered
from scheduling.queries.selectors import no_node
from scheduling.simulator.forecast.cheapest_nodes import cheapest_nodes
from scheduling.simulator.forecast.effects import Change
from scheduling.simulator.model import TimedChange
from tenants.effects import Effects
from tenants.errors import FieldError, Invalid
from tenants.models import User

MOST_NODES = 200  # in one preview


class NodeAct(StrEnum):
    """What is done to nodes.

    They take no more pods (CORDON), their pods also leave (DRAIN), they are gone (REMOVE), they
    take pods again (UNCORDON), or there are more of them (ADD).
    """

    CORDON = "cordon"
    DRAIN = "drain"
    REMOVE = "remove"
    UNCORDON = "uncordon"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class NodesMeant:
    """What somebody would do to the nodes of these names, or to `count` nodes of a GPU model.

    In the latter case the cheapest are taken. `evict_at` of a drain: None = it waits for jobs to
    end.
    """

    act: NodeAct
    names: Sequence[str] = ()
    gpu_model: str = ""
    count: int = 0
    evict_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeEffects:
    """The effects of an act, and the nodes it applies to."""

    nodes: tuple[str, ...]
    effects: Effects


def node_effects(viewer: User, cluster: Cluster, wish: NodesMeant) -> NodeEffects:
    """Return the effects.

    Raises Invalid naming the field if there are no such nodes, or too few.
    """
    rows = NodeRecord.objects.filter(cluster=cluster)
    if wish.act is NodeAct.ADD:
        nodes = _more(cluster, wish)
        names = tuple(node.name for node in nodes)
        return NodeEffects(names, change_effects(viewer, [cluster], NodesAdded(tuple(nodes))))
    if wish.names:
        known = set(rows.filter(name__in=wish.names).values_list("name", flat=True))
        for at, name in enumerate(wish.names):
            if name not in known:
                detail = no_node(cluster, name)
                raise Invalid(detail, errors=[FieldError(("nodes", at), detail)])
        names = tuple(dict.fromkeys(wish.names))
        if wish.act is NodeAct.UNCORDON:  # other faults of a node stay
            facts = rows.filter(name__in=names).values_list("name", "facts")
            names = tuple(name for name, of in facts if is_ordered(of))
    else:
        names = cheapest(cluster, wish.gpu_model, wish.count)

    change = NodesChange(frozenset(names), wish.act, wish.evict_at)
    return NodeEffects(names, change_effects(viewer, [cluster], change))


def cheapest(cluster: Cluster, gpu_model: str, count: int) -> tuple[str, ...]:
    """Return `count` nodes in service of a GPU model whose jobs lose the least work.

    They are chosen one after another, each given those chosen before. Raises Invalid.
    """
    here = NodeRecord.objects.filter(cluster=cluster, gpu_model=gpu_model, schedulable=True)
    held = dict(here.values_list("name", "allocated_milli"))
    if count > len(held):
        detail = f"Cluster “{cluster.name}” has {len(held)} nodes of {gpu_model} in service."
        raise Invalid.field("count", detail)
    lost, on = _work(cluster)
    return cheapest_nodes(held, count, on, lost, held)


def _work(cluster: Cluster) -> tuple[dict[UUID, float], dict[str, set[UUID]]]:
    """Return the GPU-seconds that each job would lose, and the jobs by node."""
    now = timezone.now()
    lost: dict[UUID, float] = {}
    on: dict[str, set[UUID]] = {}
    places = Placement.objects.filter(job__cluster=cluster, state__in=LIVE_PLACEMENTS).order_by()
    for job, node, milli, since in places.values_list(
        "job_id", "node", "held_milli", "job__admitted_at"
    ):
        age = (now - since).total_seconds() if since is not None else 0.0
        lost[job] = lost.get(job, 0.0) + milli / MILLI * max(0.0, age)
        on.setdefault(node, set()).add(job)
    return lost, on


@dataclass(frozen=True, slots=True)
class NodesChange:
    """An act on these nodes; `evict_at` of a drain: None = it waits for jobs to end."""

    names: frozenset[str]
    act: NodeAct
    evict_at: datetime | None

    def __call__(self, facts: Sequence[Delta]) -> list[Change]:
        nodes = (fact.node for fact in facts if isinstance(fact, NodeChanged))
        return [step for node in nodes if node.name in self.names for step in self._of(node)]

    def _of(self, node: Node) -> Iterator[Change]:
        closed = NodeChanged(replace(node, schedulable=False, out_of_service="cordoned"))
        if self.act is NodeAct.UNCORDON:
            yield NodeChanged(replace(node, schedulable=True, out_of_service=""))
        elif self.act is NodeAct.REMOVE:
            yield NodeRemoved(node.name)
        else:
            yield closed
            if self.act is NodeAct.DRAIN and self.evict_at is not None:
                at, now = self.evict_at.timestamp(), timezone.now().timestamp()
                for step in (NodeRemoved(node.name), closed):  # all pods leave, and none comes
                    yield step if at <= now else TimedChange(at, step)


# --- more nodes -----------------------------------------------------------------------------------
def _more(cluster: Cluster, wish: NodesMeant) -> list[Node]:
    """Return nodes like the existing ones of the GPU model, in a new leaf. Raises Invalid."""
    like = NodeRecord.objects.filter(cluster=cluster, gpu_model=wish.gpu_model).order_by(
        "-healthy_gpus", "name"
    )
    row = like.first()
    if row is None:
        detail = f"Cluster “{cluster.name}” has no node of {wish.gpu_model} to take as an example."
        raise Invalid.field("gpu_type", detail)
    whole = node_of(row)
    example = replace(
        whole,
        devices=tuple(replace(d, healthy=True) for d in whole.devices),
        nics=tuple(replace(n, healthy=True) for n in whole.nics),
        unnamed_unhealthy=0,
        schedulable=True,
        out_of_service="",
        taints=(),
        topology=("new leaf", *whole.topology[1:]),
    )
    return [replace(example, name=f"new-{n}") for n in range(1, wish.count + 1)]


@dataclass(frozen=True, slots=True)
class NodesAdded:
    """These nodes exist, too, in their home shard."""

    nodes: tuple[Node, ...]

    def __call__(self, facts: Sequence[Delta]) -> list[Change]:
        (policy,) = (fact.policy for fact in facts if isinstance(fact, PolicyChanged))
        here = (fact.node for fact in facts if isinstance(fact, NodeChanged))
        homes = {home_of(node, policy.shards) for node in here}
        return [NodeChanged(node) for node in self.nodes if home_of(node, policy.shards) in homes]
