"""All that a scheduler of a cluster would be told at its start, by the rows.

The state of the scheduler is in another process; `engine.rehearse` is asked on one like
it. Rows do not tell nodes that are avoided after a failure, nor disruption budgets and checkpoints.
Of jobs and pods that the scheduler knows they tell what pods say of each other.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property

from django.utils import timezone

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.deltas import (
    Delta,
    DisruptionBudget,
    JobEnded,
    JobSubmitted,
    NodeChanged,
    OtherPodChanged,
    PolicyChanged,
)
from scheduling.engine.shards.division import WHOLE, WIDE, Demand, home_of, route
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.types import Apart, JobRequest, PodRules
from scheduling.engine.verdict import Reason
from scheduling.kube.seam import KeepsAway
from scheduling.kube.translate.label_selectors import selects
from scheduling.kube.translate.pod_rules import name_of_group
from scheduling.models import Cluster, NodeRecord
from scheduling.models.jobs import PlacementState
from scheduling.queries.explain import policy_in_use
from scheduling.queries.history import node_of
from scheduling.queries.standstill import standstill
from scheduling.session.memory import divided, load
from scheduling.session.memory.constraints import read_keepers, read_rules, with_constraints
from scheduling.session.memory.namespaces import NamespaceLabels
from scheduling.session.memory.past import half_life_of, past_use
from scheduling.session.memory.queues import debts, queues
from scheduling.session.memory.raw import RawRows

FITS_NO_SHARD = "It fits into no shard alone and waits for nodes that the shards lend."
OTHER_AMOUNTS = ("pods", "gpus", "cpu_milli", "memory_mib")


class CannotTell(Exception):
    """Why the engine cannot be asked."""


class Known:
    """What rows tell of a cluster now. Raises CannotTell where nobody decides on it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        rows = RawRows(NodeRecord.objects.filter(cluster=cluster).order_by("name"))
        self.nodes: list[NodeRecord] = [rows.columns(row) for row in rows.rows]
        if why := standstill(cluster):
            raise CannotTell(why)
        if not self.nodes:
            raise CannotTell(f"No node of cluster {cluster.name} is known.")
        self.policy = policy_in_use(cluster.pk)

    def scope_of(self, request: JobRequest) -> str:
        """The shard whose scheduler would decide about a new job. Raises CannotTell."""
        if not self.policy.shards:
            return WHOLE
        strategy = self.policy.strategies.get(request.kind, "binpack")
        cpu_jobs = self.policy.cpu_jobs_on_gpu_nodes
        scope = route(request, self._empty, self._demand, strategy, cpu_jobs)
        if scope == WIDE:
            raise CannotTell(FITS_NO_SHARD)
        return scope

    def facts(self, scope: str) -> list[Delta]:
        """What the scheduler of a scope would be told, jobs that wait or hold places included."""
        cluster_id, policy = self.cluster.pk, self.policy
        facts: list[Delta] = [PolicyChanged(policy), load.tenancy(cluster_id, scope)]
        told = queues(cluster_id, scope)
        facts.append(told)
        if told.queues and (owed := debts(cluster_id, scope)):
            facts.append(owed)
        if policy.fair_share and scope != WHOLE:
            facts.append(divided.others(cluster_id, scope))
        if half_life_s := half_life_of(policy):
            facts.append(past_use(cluster_id, half_life_s, timezone.now()))
        for row in self.nodes:
            if row.scope == scope:
                facts += _others_on(row)
                facts.append(NodeChanged(node_of(row)))
        return facts + list(self._jobs(scope))

    def groups_of(self, namespace: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The groups that pods which are there keep away, of pods with these labels. Of namespaces
        rows tell no labels."""
        spaces = NamespaceLabels()
        meant = (
            name_of_group(rule)
            for rule in self._keepers
            if spaces.are_meant(namespace, rule.namespaces) and selects(rule.selector, labels)
        )
        return tuple(sorted(meant))

    @cached_property
    def _keepers(self) -> set[KeepsAway]:
        """The rules of all pods that are there."""
        return {rule for row in self.nodes for rule in _keepers(row, "keepers")}

    @cached_property
    def _empty(self) -> dict[str, ClusterState]:
        """The shards with nothing on their nodes."""
        shards = self.policy.shards
        empty = {shard.name: ClusterState() for shard in shards}
        for row in self.nodes:
            node = node_of(row)
            empty[home_of(node, shards)].upsert_node(node)
        return empty

    @cached_property
    def _demand(self) -> dict[str, list[Demand]]:
        return divided.demand(self.cluster.pk)

    def _jobs(self, scope: str) -> Iterator[Delta]:
        """The jobs that wait or hold places, as their rows tell."""
        cluster_id = self.cluster.pk
        jobs, _ = load.jobs(load.waiting_or_holding(cluster_id, scope))
        load.add_placements(cluster_id, scope, {job.id: job for job in jobs})
        load.add_constraints(cluster_id, scope, {job.id: job for job in jobs})
        for job in jobs:
            if job.constraints is not None:
                job.request = with_constraints(job.request, job.constraints)
            if job.state in WAITING and not job.pods:
                for failed in load.failed_among(job.request.after_ok):
                    yield JobEnded(failed, succeeded=False)
                waits = (Reason.WAITING_FOR_VOLUME, Reason.WAITING_FOR_DEVICES)
                held = job.is_held or job.reason in waits
                yield JobSubmitted(job.request, job.not_before, held)
                continue
            holds = job.state in HOLDING
            if holds:
                again = (PlacementState.FAILED, PlacementState.RELEASED)
                for pod in [p for p in job.pods.values() if p.state in again]:
                    job.forget(pod)
            yield job.restored()
            if not holds:  # its pods are being deleted: they stay until then, nobody's victims
                yield DisruptionBudget(job.id, 0)
        yield from load.histories(cluster_id, scope, jobs, self.policy)


def _others_on(row: NodeRecord) -> Iterator[Delta]:
    """Pods of others on the node, as many as there are, which together hold what they hold."""
    held = {name: row.facts.get(f"other_{name}", {"value": 0})["value"] for name in OTHER_AMOUNTS}
    extended = row.facts.get("other_extended", {"value": {}})["value"]
    rules = map(read_rules, row.company.get("rules", ()))
    for at in range(held.pop("pods")):
        of = {"extended": extended, "rules": next(rules, None)}
        yield OtherPodChanged(f"{row.name} {at}", row.name, **held, **of)
        held, extended = {}, {}
    keepers = _keepers(row, "other_keepers")
    if apart := tuple(Apart(name_of_group(rule), rule.topology_key) for rule in keepers):
        yield OtherPodChanged(f"{row.name} keeps", row.name, rules=PodRules(apart=apart))


def _keepers(row: NodeRecord, whose: str) -> tuple[KeepsAway, ...]:
    return read_keepers(row.company.get(whose, ()))
