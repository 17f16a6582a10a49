"""All that a cluster's scheduler would be told at its start, by the rows.

The scheduler's own state is in another process; `engine.rehearse` works on one like it. Rows lack
the nodes that are avoided after a failure, disruption budgets and checkpoints. Of the pod rules
they have those of jobs and pods that the scheduler knows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from django.utils import timezone

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import in_order
from scheduling.engine.deltas import (
    Delta,
    DisruptionBudget,
    JobEnded,
    JobHistory,
    JobRestored,
    JobSubmitted,
    NodeChanged,
    OtherPodChanged,
    PolicyChanged,
)
from scheduling.engine.shards.division import WHOLE, WIDE, Demand, home_of, route
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.types import Apart, JobRequest, Node, PodRules, Policy
from scheduling.engine.verdict import Reason
from scheduling.kube.seam import KeepsAway
from scheduling.kube.translate.label_selectors import selects
from scheduling.kube.translate.manifests import own_labels
from scheduling.kube.translate.node_groups import groups_of, nodes_to_come
from scheduling.kube.translate.pod_rules import name_of_group
from scheduling.models import Cluster, Job, NodeRecord
from scheduling.models.jobs import PlacementState
from scheduling.queries.explain import policy_in_use
from scheduling.queries.history import node_of
from scheduling.queries.standstill import standstill
from scheduling.session.memory import divided, load
from scheduling.session.memory.constraints import read_keepers, read_rules, with_constraints
from scheduling.session.memory.live import LiveJob
from scheduling.session.memory.namespaces import NamespaceLabels
from scheduling.session.memory.past import half_life_of, past_use
from scheduling.session.memory.past_moves import moves_before
from scheduling.session.memory.queues import debts, queues
from scheduling.session.memory.raw import RawRows
from scheduling.simulator.forecast.scene import Scene, scene_of
from tenants.database.chunks import chunks

FITS_NO_SHARD = "It fits in no single shard and waits for nodes that the shards lend."
# Reasons for which the scheduler holds a job; it alone knows when they end.
WAITS_ASIDE = (Reason.WAITING_FOR_VOLUME, Reason.WAITING_FOR_DEVICES)
OTHER_AMOUNTS = ("pods", "gpus", "cpu_milli", "memory_mib")


class CannotTell(Exception):
    """Why the engine cannot be asked."""


class Known:
    """What rows say of a cluster now.

    Raises CannotTell if no node of it is known or, unless `decided_on` is False, if nobody
    schedules it.
    """

    def __init__(self, cluster: Cluster, *, decided_on: bool = True) -> None:
        self.cluster = cluster
        rows = RawRows(NodeRecord.objects.filter(cluster=cluster).order_by("name"))
        self.nodes: list[NodeRecord] = [rows.columns(row) for row in rows.rows]
        if decided_on and (why := standstill(cluster)):
            raise CannotTell(why)
        if not self.nodes:
            raise CannotTell(f"Kant knows no node of cluster {cluster.name} yet.")
        self.policy = policy_in_use(cluster.pk)

    def scope_of(self, request: JobRequest) -> str:
        """Return the shard whose scheduler would decide about a new job. Raises CannotTell."""
        if not self.policy.shards:
            return WHOLE
        strategy = self.policy.strategies.get(request.kind, "binpack")
        cpu_jobs = self.policy.cpu_jobs_on_gpu_nodes
        scope = route(request, self._empty, self._demand, strategy, cpu_jobs)
        if scope == WIDE:
            raise CannotTell(FITS_NO_SHARD)
        return scope

    def facts(self, scope: str) -> list[Delta]:
        """Return what a scope's scheduler would be told, with jobs that wait or hold places."""
        cluster_id = self.cluster.pk
        jobs = jobs_of(cluster_id, scope, load.waiting_or_holding(cluster_id, scope), self.policy)
        nodes = [facts_of_node(row) for row in self.nodes if row.scope == scope]
        nodes.append(tuple(map(NodeChanged, self._to_come(scope))))
        return told_at_start(tenancy_of(cluster_id, scope, self.policy), nodes, jobs)

    def _to_come(self, scope: str) -> list[Node]:
        """Return the nodes that an autoscaler may add to a scope."""
        groups = groups_of(self.cluster.node_groups, self.cluster.label_map)
        found = nodes_to_come(groups, map(node_of, self.nodes if groups else ()))
        return [node for node in found.values() if home_of(node, self.policy.shards) == scope]

    @cached_property
    def keepers(self) -> set[KeepsAway]:
        """The rules of all existing pods."""
        return {rule for row in self.nodes for rule in keepers_on(row)}

    @cached_property
    def _empty(self) -> dict[str, ClusterState]:
        """The shards, with nothing on their nodes."""
        shards = self.policy.shards
        empty = {shard.name: ClusterState() for shard in shards}
        for row in self.nodes:
            node = node_of(row)
            empty[home_of(node, shards)].upsert_node(node)
        for name, state in empty.items():
            for node in self._to_come(name):
                state.upsert_node(in_order(node))
        return empty

    @cached_property
    def _demand(self) -> dict[str, list[Demand]]:
        return divided.demand(self.cluster.pk)


def scopes_of(policy: Policy) -> list[str]:
    """Return the scopes whose schedulers decide on a cluster: its shards, or the whole."""
    return [shard.name for shard in policy.shards] or [WHOLE]


def scene_at(facts: Iterable[Delta], now: float) -> Scene:
    """Return a scene made of `Known.facts`, with what runs ahead need beside: names and notices."""
    facts = list(facts)
    jobs = jobs_told(facts)
    return scene_of(facts, now, names_of(jobs), notices_of(jobs))


def jobs_told(facts: Iterable[Delta]) -> list[str]:
    """Return the ids of the jobs that these facts introduce."""
    return [fact.job.id for fact in facts if isinstance(fact, JobSubmitted | JobRestored)]


def names_of(jobs: Sequence[str]) -> dict[str, str]:
    """Return the names of jobs, by id."""
    found: dict[str, str] = {}
    for some in chunks(jobs):
        rows = Job.objects.filter(id__in=some).order_by().values_list("id", "name")
        found.update((str(job), name) for job, name in rows)
    return found


def notices_of(jobs: Sequence[str]) -> dict[str, float]:
    """Return the seconds of warning before their pods are deleted, of jobs that ask for it."""
    found: dict[str, float] = {}
    for some in chunks(jobs):
        rows = Job.objects.filter(id__in=some, checkpoint_notice_s__gt=0).order_by()
        found.update((str(job), s or 0) for job, s in rows.values_list("id", "checkpoint_notice_s"))
    return found


class JobFacts(NamedTuple):
    """What a scheduler is told at its start of a job that waits or holds places.

    `facts` come with those of all jobs, in order of `submitted_at`; `history` comes after all of
    them, None = nothing was decided before. `notice_s`: seconds of warning before its pods are
    deleted.
    """

    request: JobRequest
    facts: tuple[Delta, ...]
    history: JobHistory | None
    notice_s: float

    @property
    def order(self) -> tuple[float, str]:
        return self.request.submitted_at, self.request.id


def told_at_start(
    tenancy: Iterable[Delta], nodes: Iterable[Iterable[Delta]], jobs: Sequence[JobFacts]
) -> list[Delta]:
    """Return all that a scheduler is told, in order. `nodes`: by name; `jobs`: oldest first."""
    return [
        *tenancy,
        *(fact for node in nodes for fact in node),
        *(fact for job in jobs for fact in job.facts),
        *(job.history for job in jobs if job.history is not None),
    ]


def tenancy_of(cluster_id: int, scope: str, policy: Policy) -> Iterator[Delta]:
    """Yield the policy of a scope, and the tenants, queues and past use that count for it."""
    yield PolicyChanged(policy)
    yield load.tenancy(cluster_id, scope)
    told = queues(cluster_id, scope)
    yield told
    if told.queues and (owed := debts(cluster_id, scope)):
        yield owed
    if policy.fair_share and scope != WHOLE:
        yield divided.others(cluster_id, scope)
    if half_life_s := half_life_of(policy):
        yield past_use(cluster_id, half_life_s, timezone.now())
    if policy.defragments:
        yield moves_before(cluster_id, scope, timezone.now())


def jobs_of(cluster_id: int, scope: str, ids: Sequence[str], policy: Policy) -> list[JobFacts]:
    """Return the facts of these jobs of a scope, oldest first; each waits or holds places."""
    jobs, _ = load.jobs(ids)
    load.add_placements(cluster_id, scope, {job.id: job for job in jobs})
    load.add_constraints(cluster_id, scope, {job.id: job for job in jobs})
    for job in jobs:
        if job.constraints is not None:
            job.request = with_constraints(job.request, job.constraints)
    history = {told.job_id: told for told in load.histories(cluster_id, scope, jobs, policy)}
    return [
        JobFacts(job.request, tuple(_facts_of(job)), history.get(job.id), job.notice_s)
        for job in jobs
    ]


def _facts_of(job: LiveJob) -> Iterator[Delta]:
    if job.state in WAITING and not job.pods:
        for failed in load.failed_among(job.request.after_ok):
            yield JobEnded(failed, succeeded=False)
        held = job.is_held or job.reason in WAITS_ASIDE
        yield JobSubmitted(job.request, job.not_before, held)
        return
    holds = job.state in HOLDING
    if holds:
        again = (PlacementState.FAILED, PlacementState.RELEASED)
        for pod in [p for p in job.pods.values() if p.state in again]:
            job.forget(pod)
    yield job.restored()
    if not holds:  # its pods are being deleted: until they are gone, nobody may preempt them
        yield DisruptionBudget(job.id, 0)


def facts_of_node(row: NodeRecord) -> tuple[Delta, ...]:
    """Return the node and the pods of others on it."""
    return (*_others_on(row), NodeChanged(node_of(row)))


def _others_on(row: NodeRecord) -> Iterator[Delta]:
    """Yield the pods of others on the node: their number and their sum are as its row says."""
    held = {name: row.facts.get(f"other_{name}", {"value": 0})["value"] for name in OTHER_AMOUNTS}
    extended = row.facts.get("other_extended", {"value": {}})["value"]
    rules = map(read_rules, row.company.get("rules", ()))
    for at in range(held.pop("pods")):
        of = {"extended": extended, "rules": next(rules, None)}
        yield OtherPodChanged(f"{row.name} {at}", row.name, **held, **of)
        held, extended = {}, {}
    if beyond := row.facts.get("held_beyond"):
        yield OtherPodChanged(f"{row.name} beyond", row.name, extended=beyond["value"])
    keepers = _keepers(row, "other_keepers")
    if apart := tuple(Apart(name_of_group(rule), rule.topology_key) for rule in keepers):
        yield OtherPodChanged(f"{row.name} keeps", row.name, rules=PodRules(apart=apart))


class Surroundings(NamedTuple):
    """What decides by which existing pods a job's pods are kept away.

    These are their namespace, and the labels of a pod of each pod set.
    """

    namespace: str
    labels: tuple[Mapping[str, str], ...]


def surroundings_of(cluster: Cluster, live: LiveJob) -> Surroundings:
    """Return the surroundings of the pods that Kant would make of a job."""
    request = live.request
    labels = (
        {**live.labels, **own_labels(live.id, request.tenant, live.attempt, index, 0)}
        for index in range(len(request.pod_sets))
    )
    namespace = load.namespaces(cluster.namespace).get(request.tenant, "")
    return Surroundings(namespace, tuple(labels))


def kept_away(
    request: JobRequest, surroundings: Surroundings, keepers: Iterable[KeepsAway]
) -> JobRequest:
    """Return the request with the rules by which existing pods keep its pods away."""
    found = [
        replace(pod_set, rules=PodRules(groups))
        if (groups := _groups_of(keepers, surroundings.namespace, labels))
        else pod_set
        for pod_set, labels in zip(request.pod_sets, surroundings.labels, strict=True)
    ]
    return replace(request, pod_sets=tuple(found))


def _groups_of(
    keepers: Iterable[KeepsAway], namespace: str, labels: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the groups that pods with these rules keep away, for a pod with these labels.

    Rows have no labels of namespaces.
    """
    spaces = NamespaceLabels()
    meant = (
        name_of_group(rule)
        for rule in keepers
        if spaces.are_meant(namespace, rule.namespaces) and selects(rule.selector, labels)
    )
    return tuple(sorted(meant))


def keepers_on(row: NodeRecord) -> tuple[KeepsAway, ...]:
    """Return the rules of the pods on a node."""
    return _keepers(row, "keepers")


def _keepers(row: NodeRecord, whose: str) -> tuple[KeepsAway, ...]:
    return read_keepers(row.company.get(whose, ()))
