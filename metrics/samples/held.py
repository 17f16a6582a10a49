"""What pods held of a cluster's nodes at several instants and between them, out of placements."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

import numpy as np
from django.db.models import Q, QuerySet, Sum
from numpy.typing import NDArray

from metrics import definitions
from metrics.definitions import MILLI, NodeUse, PoolUse
from scheduling.models import Cluster, NodeRecord, Placement

Key = tuple[str, str]  # GPU model and node


class Held:
    """Placements count from their own times on, whenever those were written: GAR and GFR from the
    decision, SOR from the binding, until the pod was gone. What pods of others hold is as the
    nodes' rows tell it now.

    `instants` are in order; `models`: GPU models of the nodes, and "" for all.
    """

    def __init__(
        self, cluster: Cluster, nodes: Sequence[NodeRecord], instants: Iterable[datetime]
    ) -> None:
        self.instants = list(instants)
        self._at = np.array([at.timestamp() for at in self.instants])
        self._nodes = nodes
        self.models = {"", *(node.gpu_model for node in nodes)}
        throughout, changing = _read(cluster, self.instants[0], self.instants[-1])
        keys: dict[Key, int] = {}
        for key, _ in throughout:
            keys.setdefault(key, len(keys))
        for key, *_ in changing:
            keys.setdefault(key, len(keys))
        self._keys = keys
        self._always = np.zeros(len(keys), dtype=np.int64)
        for key, milli in throughout:
            self._always[keys[key]] += milli
        self._key = np.array([keys[row[0]] for row in changing], dtype=np.int64)
        self._milli = np.array([row[1] for row in changing], dtype=np.int64)
        self._times = np.array([row[2:] for row in changing], dtype=np.float64).reshape(-1, 3)
        self._of_model: dict[str, NDArray[np.bool_]] = {
            model: np.array([model in ("", own) for own, _ in keys], dtype=bool)
            for model in self.models | {own for own, _ in keys}
        }
        self._uses: dict[tuple[str, int], PoolUse] = {}

    def milli_s(self, model: str, first: int, last: int) -> float:
        """GPU-milli-seconds held between two of the instants by GPU model, "" = all."""
        own = self._of_model.get(model)
        if own is None:
            return 0.0
        window = float(self._at[first]), float(self._at[last])
        rows = own[self._key]
        _, begin, end = self._times[rows].T
        part = definitions.held_milli_seconds(self._milli[rows], begin, end, window)
        return float(self._always[own].sum()) * (window[1] - window[0]) + part

    def use(self, model: str, i: int) -> PoolUse:
        """A pool at one of the instants, "" = all."""
        if (model, i) not in self._uses:
            by_model: dict[str, list[NodeUse]] = defaultdict(list)
            for node in self._node_uses(i):
                by_model[node.gpu_model].append(node)
                by_model[""].append(node)
            for name in self.models | {model}:
                self._uses[name, i] = definitions.pool_use(by_model[name])
        return self._uses[model, i]

    def _node_uses(self, i: int) -> Iterable[NodeUse]:
        decided, _, gone = self._times.T
        now = (decided <= self._at[i]) & (gone > self._at[i])
        held = self._always.copy()
        np.add.at(held, self._key[now], self._milli[now])
        by_node: dict[str, int] = defaultdict(int)
        for (_, name), milli in zip(self._keys, held.tolist(), strict=True):
            by_node[name] += milli
        for node in self._nodes:
            placed = by_node[node.name]
            others = int(node.facts.get("other_gpus", {}).get("value", 0)) * MILLI
            allocated = placed + max(0, min(others, node.gpus * MILLI - placed))
            # Which devices those are that the row does not tell of yet is not asked.
            more = -(-(allocated - node.allocated_milli) // MILLI)
            yield NodeUse(
                gpu_model=node.gpu_model,
                gpus=node.gpus,
                healthy=node.healthy_gpus,
                free=min(max(node.free_gpus - more, 0), node.healthy_gpus),
                allocated_milli=allocated,
                schedulable=node.schedulable,
                leaf=node.leaf,
            )


def _read(
    cluster: Cluster, start: datetime, end: datetime
) -> tuple[list[tuple[Key, int]], list[tuple[Key, int, float, float, float]]]:
    """What was held from before `start` to `end`, added up by the database; and of what began or
    ended in between, each pod: key, milli-GPU, when it was decided, held and gone."""
    # Of all clusters: asked for one of them, SQLite walks through all jobs that it ever had.
    placements: QuerySet[Placement] = Placement.objects.filter(
        intended_at__lte=end, held_milli__gt=0
    )
    whole = Q(held_from__lte=start) & (Q(ended_at__isnull=True) | Q(ended_at__gte=end))
    sums = (
        placements.filter(whole)
        .order_by()
        .values_list("job__cluster", "gpu_model", "node")
        .annotate(total=Sum("held_milli"))
    )
    throughout = [((model, node), milli) for own, model, node, milli in sums if own == cluster.pk]
    parts = placements.filter(Q(held_from__isnull=True) | ~whole).filter(
        Q(ended_at__isnull=True) | Q(ended_at__gt=start)
    )
    never = float("inf")
    changing = [
        (
            (model, node),
            milli,
            decided.timestamp(),
            held.timestamp() if held else never,
            gone.timestamp() if gone else never,
        )
        for own, model, node, milli, decided, held, gone in parts.values_list(
            "job__cluster",
            "gpu_model",
            "node",
            "held_milli",
            "intended_at",
            "held_from",
            "ended_at",
        )
        if own == cluster.pk
    ]
    return throughout, changing
