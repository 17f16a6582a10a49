"""What operators want of nodes, by rows."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from scheduling.kube.seam import NodeFacts, Sourced
from scheduling.models import NodeOrder

ORDER_OF = "an order of"  # prefix of the source of a fact that comes from an order


class Cordon(NamedTuple):
    """An order that keeps new pods off a node.

    `drains`: the pods of jobs leave it, from `evict_at` on (seconds since the epoch) without
    waiting for their ends; None = it waits for them. `plan`: the order ends as soon as all nodes of
    the plan are empty, and at `opens_at` at the latest; "" = it does not end by itself.
    """

    by: str
    reason: str
    drains: bool
    evict_at: float | None
    plan: str = ""
    opens_at: float = math.inf

    @property
    def word(self) -> str:
        return "draining" if self.drains else "cordoned"


def cordons(cluster_id: int) -> Mapping[str, Cordon]:
    """Return the orders by node."""
    rows = NodeOrder.objects.filter(cluster_id=cluster_id)
    return {row.node: _cordon(row) for row in rows}


def _cordon(row: NodeOrder) -> Cordon:
    return Cordon(
        row.by,
        row.reason,
        row.drains,
        row.evict_at.timestamp() if row.evict_at else None,
        str(row.plan or ""),
        row.opens_at.timestamp() if row.opens_at else math.inf,
    )


def with_cordon(facts: NodeFacts, cordon: Cordon | None) -> NodeFacts:
    """Return the facts with the cordon applied: a node in service takes no new pods."""
    if cordon is None or not facts.node.schedulable:
        return facts
    health = Sourced(cordon.word, f"{ORDER_OF} {cordon.by}")
    node = replace(facts.node, schedulable=False, out_of_service=cordon.word)
    return msgspec.structs.replace(facts, node=node, facts={**facts.facts, "health": health})
