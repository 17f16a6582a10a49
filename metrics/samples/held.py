"""What pods held of a cluster's nodes at several instants and between them, computed from
placements."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

import numpy as np
from django.db.models import Q, QuerySet, Sum
from numpy.typing import NDArray

from metrics import definitions
from metrics.definitions import MILLI, NodeUse, PoolUse
from metrics.selectors import node_records
from scheduling.engine.types import BEYOND, whole_milli
from scheduling.models import Cluster, Placement

Key = tuple[str, str]  # GPU model and node
N = TypeVar("N", np.int64, np.float64)


class NodeRow(NamedTuple):
    """What a node's row says now; `others`: GPUs held by pods of other schedulers."""

    name: str
    gpu_model: str
    gpus: int
    healthy: int
    free: int
    allocated_milli: int
    schedulable: bool
    leaf: str
    others: int | None


def nodes_of(cluster: Cluster) -> list[NodeRow]:
    """Return the nodes of a cluster that have GPUs."""
    rows = node_records(cluster).values_list(
        "name", "gpu_model", "gpus", "healthy_gpus", "free_gpus", "allocated_milli",
        "schedulable", "leaf", "facts__other_gpus__value",
    )  # fmt: skip
    return [NodeRow(*row) for row in rows.order_by("name")]


class HeldOverTime:
    """What placements held over time.

    Placements count from their own times, whenever those were written: for GAR and GFR from the
    decision, for SOR from the binding, until the pod is gone. What pods of other schedulers hold is
    as the nodes' rows say now. `instants` are in order; `models`: the nodes' GPU models, and "" for
    all.
    """

    def __init__(
        self, cluster: Cluster, nodes: Sequence[NodeRow], instants: Iterable[datetime]
    ) -> None:
        self.instants = list(instants)
        self._at = np.array([at.timestamp() for at in self.instants])
        self._nodes = nodes
        self.models = {"", *(node.gpu_model for node in nodes)}
        throughout, changing = _read(cluster, self.instants[0], self.instants[-1])
        # Nodes are numbered first, then nodes that no longer exist but held pods.
        keys: dict[Key, int] = {(n.gpu_model, n.name): i for i, n in enumerate(nodes)}
        for key in (*(row[0] for row in throughout), *(row[0] for row in changing)):
            keys.setdefault(key, len(keys))
        self._always = np.zeros(len(keys))
        self._always_whole = np.zeros(len(keys), dtype=np.int64)
        for key, whole, beyond in throughout:
            self._always[keys[key]] += whole + beyond / BEYOND
            self._always_whole[keys[key]] += whole
        self._key = np.array([keys[row[0]] for row in changing], dtype=np.int64)
        self._whole = np.array([row[1] for row in changing], dtype=np.int64)
        self._milli = self._whole + np.array([row[2] for row in changing], np.int64) / BEYOND
        self._times = np.array([row[3:] for row in changing], dtype=np.float64).reshape(-1, 3)
        of_places = np.array([model for model, _ in keys], dtype=object)
        self._of_model: dict[str, NDArray[np.bool_]] = {
            model: np.ones(len(keys), bool) if not model else of_places == model
            for model in self.models | {model for model, _ in keys}
        }
        self._total = np.array([n.gpus * MILLI for n in nodes], dtype=np.int64)
        self._usable = np.array([n.healthy * MILLI * n.schedulable for n in nodes], np.int64)
        self._others = np.array([(n.others or 0) * MILLI for n in nodes], dtype=np.int64)
        self._allocated: dict[int, NDArray[np.float64]] = {}

    def milli_s(self, model: str, first: int, last: int) -> float:
        """Return the GPU-milli-seconds held between two of the instants by GPU model; "" = all."""
        own = self._of_model.get(model)
        if own is None:
            return 0.0
        window = float(self._at[first]), float(self._at[last])
        rows = own[self._key]
        _, begin, end = self._times[rows].T
        part = definitions.held_milli_seconds(self._milli[rows], begin, end, window)
        return float(self._always[own].sum()) * (window[1] - window[0]) + part

    def counts(self, model: str, i: int) -> tuple[int, int, int]:
        """Return for a pool ("" = all) at one of the instants: allocated milli-GPU, nodes in
        service, and how many of those are partly allocated."""
        own = self._of_model.get(model)
        if own is None:
            return 0, 0, 0
        own = own[: len(self._nodes)]
        allocated, usable = self._on_nodes(i)[own], self._usable[own]
        partly = (allocated > 0) & (allocated < usable)
        held = whole_milli(float(allocated.sum()))
        return held, int((usable > 0).sum()), int(partly.sum())

    def node_uses(self) -> list[NodeUse]:
        """Return each node's use at the last instant."""
        found = []
        last = len(self.instants) - 1
        told = zip(self._whole_on_nodes(last).tolist(), self._on_nodes(last).tolist(), strict=True)
        for node, (whole, allocated) in zip(self._nodes, told, strict=True):
            # Do not look up which devices the row does not include yet; their number suffices.
            more = -(-(whole - node.allocated_milli) // MILLI)
            use = NodeUse(
                gpu_model=node.gpu_model,
                gpus=node.gpus,
                healthy=node.healthy,
                free=min(max(node.free - more, 0), node.healthy),
                allocated_milli=allocated,
                schedulable=node.schedulable,
                leaf=node.leaf,
            )
            found.append(use)
        return found

    def uses(self) -> dict[str, PoolUse]:
        """Return the use of all `models` at the last instant."""
        by_model = by_gpu_model(self.node_uses())
        return {model: definitions.pool_use(by_model[model]) for model in self.models}

    def _on_nodes(self, i: int) -> NDArray[np.float64]:
        """Return the milli-GPU allocated on each node at one of the instants."""
        found = self._allocated.get(i)
        if found is None:
            held = self._always.copy()
            found = self._allocated[i] = self._added(held, self._milli, i)
        return found

    def _whole_on_nodes(self, i: int) -> NDArray[np.int64]:
        """Return the same, with shares by memory cut to whole thousandths, as the nodes' rows count
        them."""
        return self._added(self._always_whole.copy(), self._whole, i)

    def _added(self, held: NDArray[N], more: NDArray[N], i: int) -> NDArray[N]:
        """Add what is held at this instant, and the pods of others, to what is held throughout."""
        decided, _, gone = self._times.T
        now = (decided <= self._at[i]) & (gone > self._at[i])
        np.add.at(held, self._key[now], more[now])
        placed = held[: len(self._nodes)]
        return placed + np.clip(self._others, 0, np.maximum(self._total - placed, 0))


def by_gpu_model(nodes: Iterable[NodeUse]) -> defaultdict[str, list[NodeUse]]:
    """Group the nodes by GPU model; "" = all."""
    found: defaultdict[str, list[NodeUse]] = defaultdict(list)
    for node in nodes:
        found[node.gpu_model].append(node)
        found[""].append(node)
    return found


def uses_at(cluster: Cluster | None, at: datetime, gpu_model: str = "") -> list[NodeUse]:
    """Return the nodes' use, of one cluster or of all, at an instant that is now or a moment ago,
    as a sample at that instant would count it."""
    clusters = [cluster] if cluster is not None else Cluster.objects.order_by("name")
    return [
        use
        for one in clusters
        if (nodes := nodes_of(one))
        for use in HeldOverTime(one, nodes, [at]).node_uses()
        if gpu_model in ("", use.gpu_model)
    ]


def _read(
    cluster: Cluster, start: datetime, end: datetime
) -> tuple[list[tuple[Key, int, int]], list[tuple[Key, int, int, float, float, float]]]:
    """Return what was held throughout `start` to `end`, and what began or ended in between.

    The former is summed by the database, in milli-GPU and additional billionths of one. The latter
    has a row per pod: key, the same amounts, and when it was decided, held and gone.
    """
    # Of all clusters: with one cluster in the query, SQLite would walk through all jobs that it
    # ever had.
    placements: QuerySet[Placement] = Placement.objects.filter(
        intended_at__lte=end, held_milli__gt=0
    )
    whole = Q(held_from__lte=start) & (Q(ended_at__isnull=True) | Q(ended_at__gte=end))
    sums = (
        placements.filter(whole)
        .order_by()
        .values_list("job__cluster", "gpu_model", "node")
        .annotate(whole=Sum("held_milli"), beyond=Sum("held_beyond"))
    )
    throughout = [((model, node), *held) for own, model, node, *held in sums if own == cluster.pk]
    parts = placements.filter(Q(held_from__isnull=True) | ~whole).filter(
        Q(ended_at__isnull=True) | Q(ended_at__gt=start)
    )
    never = float("inf")
    changing = [
        (
            (model, node),
            milli,
            beyond,
            decided.timestamp(),
            held.timestamp() if held else never,
            gone.timestamp() if gone else never,
        )
        for own, model, node, milli, beyond, decided, held, gone in parts.values_list(
            "job__cluster",
            "gpu_model",
            "node",
            "held_milli",
            "held_beyond",
            "intended_at",
            "held_from",
            "ended_at",
        )
        if own == cluster.pk
    ]
    return throughout, changing
