"""Orders for nodes and their progress: which jobs are still there, and what they wait for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.utils import timezone

from scheduling.engine.states import HOLDING
from scheduling.models import Cluster, Job, NodeOrder, Placement
from scheduling.models.jobs import DRAINED, LIVE_PLACEMENTS
from scheduling.session.memory.orders import ORDER_OF
from tenants.database.chunks import chunks

# A scheduler notices within this time that a drain is due.
HEARD_WITHIN = timedelta(seconds=3)


@dataclass(slots=True)
class JobThere:
    """A job with pods on a cordoned node; `leaving` of its `pods` were told to leave.

    `kept_back`: the drain is due, and a disruption budget keeps the pods there.
    """

    job: Job
    pods: int = 0
    leaving: int = 0
    kept_back: bool = False


@dataclass(slots=True)
class NodeTask:
    """An order for a node, and the jobs that have pods there."""

    order: NodeOrder
    jobs: list[JobThere] = field(default_factory=list)

    @property
    def node(self) -> str:
        return self.order.node

    @property
    def pods_left(self) -> int:
        return sum(one.pods for one in self.jobs)

    @property
    def leaving(self) -> int:
        return sum(one.leaving for one in self.jobs)

    @property
    def kept_back(self) -> int:
        """How many jobs a disruption budget keeps there."""
        return sum(one.kept_back for one in self.jobs)

    @property
    def gone(self) -> int:
        """How many pods have left since the order was given."""
        return max(0, self.order.pods - self.pods_left)

    @property
    def state(self) -> str:
        if not self.order.drains:
            return "cordoned"
        return "draining" if self.jobs else "drained"


def is_ordered(facts: Mapping[str, Any]) -> bool:
    """Whether only an order keeps pods from a node, by the facts of its row."""
    return str(facts.get("health", {}).get("source", "")).startswith(ORDER_OF)


def orders_of(cluster: Cluster) -> list[NodeTask]:
    """Return the orders for all nodes of a cluster, by node name."""
    return tasks_of(NodeOrder.objects.filter(cluster=cluster).order_by("node"))


def order_of(cluster_id: int, node: str) -> NodeTask | None:
    found = tasks_of(NodeOrder.objects.filter(cluster=cluster_id, node=node))
    return found[0] if found else None


def tasks_of(orders: Iterable[NodeOrder]) -> list[NodeTask]:
    """Return the orders with what is left to do for each; two statements."""
    tasks = {(row.cluster_id, row.node): NodeTask(row) for row in orders}
    now = timezone.now()
    for place in _placements(sorted({node for _, node in tasks})):
        task = tasks.get((place.job.cluster_id, place.node))
        if task is None:
            continue
        if not task.jobs or task.jobs[-1].job.pk != place.job_id:
            task.jobs.append(JobThere(place.job))
        there, order = task.jobs[-1], task.order
        goes = place.reason == DRAINED or place.job.state not in HOLDING
        there.pods += 1
        there.leaving += goes
        due = order.evict_at is not None and order.evict_at + HEARD_WITHIN <= now
        there.kept_back |= due and not goes and order.at + HEARD_WITHIN <= now
    return list(tasks.values())


def _placements(nodes: Sequence[str]) -> list[Placement]:
    """Return the placements on these nodes, job by job."""
    found: list[Placement] = []
    for some in chunks(nodes):
        rows = Placement.objects.filter(node__in=some, state__in=LIVE_PLACEMENTS)
        found += rows.select_related("job__tenant", "job__user").order_by(
            "node", "job_id", "pod_set", "ordinal"
        )
    return found
