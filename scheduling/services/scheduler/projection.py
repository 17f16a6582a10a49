"""Copy node facts and the scheduler's own state to rows, for pages and REST."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.columns import OtherPod
from scheduling.engine.queue.fair_share import Shares
from scheduling.kube.seam import NodeFacts
from scheduling.models import Cluster, NodeOrder, NodeRecord
from scheduling.services.common.bulk import Changed, Rows, Write
from scheduling.services.common.lease import Lease, fence, write_fenced
from scheduling.session.held import NodeHeld, held_on
from scheduling.session.memory.constraints import written_keepers, written_rules
from scheduling.session.pace import Backlog, Pace

BATCH = 500
NO_BACKLOG = Backlog()
COLUMNS = [
    "gpu_model",
    "gpus",
    "healthy_gpus",
    "allocated_milli",
    "free_gpus",
    "allocated_cpu_milli",
    "allocated_memory_mib",
    "pods",
    "leaf",
    "spine",
    "superspine",
    "hyper_node",
    "zone",
    "schedulable",
    "cpu_milli",
    "memory_mib",
    "max_pods",
    "extended",
    "labels",
    "taints",
    "facts",
    "company",
    "problems",
    "updated_at",
]


def write_nodes(
    lease: Lease,
    state: ClusterState,
    changed: list[NodeFacts],
    gone: set[str],
    now: datetime,
    *also: Write,
    **columns: Any,
) -> None:
    """Insert or update the rows of changed nodes, and delete those of nodes that are gone.

    `also` and `columns`: what else to write with the first batch (`write_fenced`).
    """
    for first in range(0, max(len(changed), 1), BATCH):
        rows = Rows(NodeRecord, over=("cluster_id", "name"), changes=COLUMNS)
        for facts in changed[first : first + BATCH]:
            row = record(lease, facts, now, held_on(state, facts.node.name))
            rows.add(rows.prepare(row))
        write_fenced(lease, rows, *also, **columns)
        also, columns = (), {}
    if gone:
        with transaction.atomic():
            fence(lease)
            mine = NodeRecord.objects.filter(cluster_id=lease.cluster_id, scope=lease.scope)
            for name in sorted(gone):
                mine.filter(name=name).delete()
                # A new node of that name is another node.
                NodeOrder.objects.filter(cluster_id=lease.cluster_id, node=name).delete()


def write_status(cluster_id: int, *, connected: bool, message: str, now: datetime) -> None:
    """Write what the scheduler says of itself; shown, never used for decisions."""
    status(cluster_id, connected=connected, message=message, now=now).write()


def status(cluster_id: int, *, connected: bool, message: str, now: datetime) -> Changed:
    """Return what `write_status` writes."""
    names = ("connected", "status_message", "last_cycle_at")
    return Changed(Cluster, names, [(cluster_id, connected, message, now)])


def leader(
    shares: Shares, pace: Pace, *, own_clock: bool = False, backlog: Backlog = NO_BACKLOG
) -> dict[str, Any]:
    """Return columns of the lease: the shares that order a scope's queue, and the pace.

    `own_clock`: ticks of beat are missing. Shown, never used for decisions.
    """
    users: dict[str, dict[str, float]] = {}
    for (tenant, user), share in (shares.users or {}).items():
        users.setdefault(tenant, {})[user] = share
    return {
        "shares": dict(shares.tenants),
        "user_shares": users,
        "pace": pace.document() | {"own_clock": own_clock, "backlog": list(backlog)},
    }


def record(
    lease: Lease, facts: NodeFacts, now: datetime, held: NodeHeld | None = None
) -> NodeRecord:
    """Return the row of a node of this scope. `held` None: not known yet."""
    node, held = facts.node, held or NodeHeld()
    leaf, spine, superspine, *_ = (*node.topology, "", "", "")
    return NodeRecord(
        cluster_id=lease.cluster_id,
        name=node.name,
        scope=lease.scope,
        gpu_model=node.gpu_model,
        gpus=len(node.devices),
        healthy_gpus=node.healthy_gpus,
        allocated_milli=held.allocated_milli,
        free_gpus=held.free_gpus,
        allocated_cpu_milli=held.allocated_cpu_milli,
        allocated_memory_mib=held.allocated_memory_mib,
        pods=held.pods,
        leaf=leaf,
        spine=spine,
        superspine=superspine,
        hyper_node=node.hyper_node,
        zone=node.zone,
        schedulable=node.schedulable,
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        max_pods=node.max_pods,
        extended=dict(node.extended),
        labels=dict(node.labels),
        taints=[{"key": t.key, "value": t.value, "effect": t.effect} for t in node.taints],
        facts=_facts(facts) | _others(held.others) | _beyond(held.beyond),
        company=_company(facts, held.others),
        problems=list(node.problems),
        updated_at=now,
    )


def _others(others: tuple[OtherPod, ...]) -> dict[str, Any]:
    """Return what pods that are not Kant's hold on a node together; {} if there are none."""
    if not others:
        return {}
    amounts: dict[str, Any] = {
        "other_pods": len(others),
        "other_gpus": sum(pod.gpus for pod in others),
        "other_cpu_milli": sum(pod.cpu_milli for pod in others),
        "other_memory_mib": sum(pod.memory_mib for pod in others),
    }
    extended: Counter[str] = Counter()
    for pod in others:
        extended.update(pod.extended)
    if extended:
        amounts["other_extended"] = dict(extended)
    return {name: {"value": it, "source": "pods of others on it"} for name, it in amounts.items()}


def _beyond(extended: Mapping[str, int]) -> dict[str, Any]:
    """Return what pods of Kant hold beside what they asked for; {} if that is nothing."""
    if not extended:
        return {}
    return {"held_beyond": {"value": dict(extended), "source": "pods of Kant on it"}}


def _company(seen: NodeFacts, others: tuple[OtherPod, ...]) -> dict[str, Any]:
    """Return the rules of pods on the node, if any."""
    found = {
        "rules": [written_rules(pod.rules) for pod in others if pod.rules is not None],
        "keepers": written_keepers(seen.keepers),
        "other_keepers": written_keepers(seen.other_keepers),
    }
    return {name: rules for name, rules in found.items() if rules}


def _facts(seen: NodeFacts) -> dict[str, Any]:
    """Return the facts with their sources, and details of GPUs, NICs and volumes.

    These are which GPUs and NICs are bad, how many NICs each extended resource has, and volume
    limits.
    """
    facts: dict[str, Any] = {
        name: {"value": f.value, "source": f.source} for name, f in seen.facts.items()
    }
    for name, parts, told_by in (
        ("unhealthy_gpus", seen.node.devices, "healthy_gpus"),
        ("unhealthy_nics", seen.node.nics, "nics"),
    ):
        if bad := [part.index for part in parts if not part.healthy]:
            facts[name] = {"value": bad, "source": seen.facts[told_by].source}
    if counts := Counter(nic.resource for nic in seen.node.nics if nic.resource):
        facts["nic_resources"] = {"value": dict(counts), "source": seen.facts["nics"].source}
    if limits := seen.node.attach_limits:
        facts["attach_limits"] = {"value": dict(limits), "source": "CSINode"}
    return facts
