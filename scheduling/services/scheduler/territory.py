"""Which scope a node or a waiting job belongs to (docs/decisions/0003-shards.md).

Only the scheduler of the scope that gives up a node writes the change: under its fencing token, if
the row still names that scope, and only if no pod of Kant is on the node. A waiting job changes
scope if its row has not changed since it was read; a scheduler that was about to place it then
finds its version gone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import F, QuerySet

from scheduling.engine.shards.division import WHOLE, WIDE, home_of, regrouped, scopes_of
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import Shard
from scheduling.kube.seam import NodeFacts
from scheduling.models import Job, JobEvent, NodeRecord, Placement, SchedulerLease, ToldGroups
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.services.common.lease import Lease, LeaseLost, fence
from scheduling.services.scheduler.projection import record
from scheduling.session.memory.live import Handover, RouteStep, WantedNodes
from tenants.database.chunks import CHUNK, chunks


# --- nodes, in the transaction of a pass ----------------------------------------------------------
def claim(lease: Lease, nodes: Sequence[NodeFacts], now: datetime) -> None:
    """Insert rows for nodes that have none, in the scope of the lease; existing rows stay."""
    NodeRecord.objects.bulk_create(
        [record(lease, facts, now) for facts in nodes], batch_size=CHUNK, ignore_conflicts=True
    )


def hand_over_nodes(lease: Lease, handover: Handover) -> None:
    """Give nodes of the scope to another one.

    Raises LeaseLost if one of them is not its own or not free; the session is then rebuilt from the
    rows.
    """
    live = Placement.objects.filter(
        job__cluster_id=lease.cluster_id, state__in=LIVE_PLACEMENTS
    ).values("node")
    moved = 0
    for names in chunks(sorted(handover.nodes)):
        rows = NodeRecord.objects.filter(
            cluster_id=lease.cluster_id, scope=lease.scope, name__in=names
        )
        moved += rows.exclude(name__in=live).update(scope=handover.to_scope)
    if moved != len(handover.nodes):
        raise LeaseLost(
            f"{len(handover.nodes) - moved} of {len(handover.nodes)} nodes that {lease} was to "
            f"give to {handover.to_scope} are not its own or not free"
        )


def check_own(lease: Lease, nodes: Iterable[str]) -> None:
    """Raise LeaseLost if one of the nodes does not belong to the scope of the lease."""
    names = sorted(set(nodes))
    own = 0
    for chunk in chunks(names):
        rows = NodeRecord.objects.filter(cluster_id=lease.cluster_id, name__in=chunk)
        own += rows.filter(scope=lease.scope).count()
    if own != len(names):
        raise LeaseLost(f"{len(names) - own} of {len(names)} nodes do not belong to {lease}")


def ask_for_nodes(lease: Lease, wanted: WantedNodes) -> None:
    """Write which nodes the shards are to lend."""
    SchedulerLease.objects.filter(cluster_id=lease.cluster_id, scope=lease.scope).update(
        wanted={"nodes": sorted(wanted.nodes), "empty": wanted.empty}
    )


# --- jobs, in the transaction of a pass -----------------------------------------------------------
def hold_scopes(lease: Lease, routes: Iterable[RouteStep]) -> None:
    """Block writes of the schedulers that jobs are taken from.

    Each writes many of their rows at once, and two transactions must not deadlock.
    """
    for scope in sorted({step.from_scope for step in routes} - {WHOLE, lease.scope}):
        rows = SchedulerLease.objects.filter(cluster_id=lease.cluster_id, scope=scope)
        rows.update(holder=F("holder"))


def route_jobs(lease: Lease, routes: Iterable[RouteStep], now: datetime) -> list[JobEvent]:
    """Send waiting jobs to other scopes; return the events of those that went.

    A job that somebody else changed meanwhile stays, and is looked at again. So does a job that
    waits again while some of its pods are not gone, as only the scheduler that placed them knows
    them.
    """
    steps = sorted(routes, key=lambda step: (step.from_scope, step.job_id))
    hold_scopes(lease, steps)
    events = []
    for step in steps:
        left = Placement.objects.filter(job_id=step.job_id, state__in=LIVE_PLACEMENTS)
        row = Job.objects.filter(
            id=step.job_id, version=step.version, scope=step.from_scope, state__in=list(WAITING)
        ).exclude(id__in=left.values("job_id"))
        if row.update(scope=step.to_scope, version=step.version + 1):
            events.append(
                JobEvent(
                    job_id=step.job_id,
                    at=now,
                    kind=Kind.ROUTED.value,
                    from_state=step.state.value,
                    to_state=step.state.value,
                    message=step.message,
                    evidence={"from": step.from_scope, "to": step.to_scope},
                )
            )
    return events


# --- start of a session ---------------------------------------------------------------------------
def settle(lease: Lease, shards: Sequence[Shard], nodes: Mapping[str, NodeFacts]) -> None:
    """Let go of what the scope should not have by the current declaration.

    Nodes go home with the jobs on them, or to the wide scope if jobs span several homes. Waiting
    jobs of a scope that changed are routed again. Nothing happens if all is as declared. The wide
    scope itself sends its nodes home once they are empty.
    """
    names = scopes_of(shards)
    if lease.scope in (WHOLE, WIDE) and lease.scope in names:
        return
    with transaction.atomic():
        fence(lease)
        moved, with_them = _to_let_go(lease, shards, nodes)
        mine = NodeRecord.objects.filter(cluster_id=lease.cluster_id, scope=lease.scope)
        for to, some in _by_target(moved).items():
            for chunk in chunks(some):
                mine.filter(name__in=chunk).update(scope=to)
        for to, some in _by_target(with_them).items():
            for chunk in chunks(some):
                Job.objects.filter(id__in=chunk).update(scope=to, version=F("version") + 1)
        retired = lease.scope not in names
        jobs = Job.objects.filter(cluster_id=lease.cluster_id, scope=lease.scope)
        jobs = jobs.exclude(id__in=_placed(lease).values("job_id"))
        if lease.scope != WHOLE and (moved or retired):
            waiting = jobs.filter(state__in=list(WAITING))
            waiting.update(scope=WHOLE, version=F("version") + 1)
        if retired:  # jobs about to place some of their pods again
            jobs.filter(state__in=list(HOLDING)).update(scope=names[-1], version=F("version") + 1)


def _to_let_go(
    lease: Lease, shards: Sequence[Shard], nodes: Mapping[str, NodeFacts]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return {node: its new scope} and {job that holds places: its new scope}."""
    last = scopes_of(shards)[-1]
    rows = NodeRecord.objects.filter(cluster_id=lease.cluster_id, scope=lease.scope)
    homes = {
        # Nobody places anything on a node that the cluster no longer has.
        name: home_of(nodes[name].node, shards) if name in nodes else last
        for name in rows.values_list("name", flat=True)
    }
    jobs: dict[str, set[str]] = defaultdict(set)
    for job_id, node in _placed(lease).values_list("job_id", "node"):
        jobs[str(job_id)].add(node)
    moved, with_them = regrouped(lease.scope, homes, jobs)
    if lease.scope not in scopes_of(shards):
        with_them = {job: with_them.get(job, last) for job in jobs}
    return moved, with_them


def _placed(lease: Lease) -> QuerySet[Placement]:
    """Return the places that jobs of the scope hold."""
    return Placement.objects.filter(
        job__cluster_id=lease.cluster_id, job__scope=lease.scope, state__in=LIVE_PLACEMENTS
    )


def take_nodes(lease: Lease, nodes: Iterable[NodeFacts], now: datetime) -> set[str]:
    """Claim those of these nodes without a row; return the names of all nodes the scope owns."""
    rows = NodeRecord.objects.filter(cluster_id=lease.cluster_id)
    known = set(rows.values_list("name", flat=True))
    new = [facts for facts in nodes if facts.node.name not in known]
    with transaction.atomic():
        fence(lease)
        claim(lease, new, now)
        told = ToldGroups(cluster_id=lease.cluster_id)
        ToldGroups.objects.bulk_create([told], ignore_conflicts=True)
    return set(rows.filter(scope=lease.scope).values_list("name", flat=True))


def _by_target(moves: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, to in sorted(moves.items()):
        found[to].append(name)
    return found
