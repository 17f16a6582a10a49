"""What rows say of a cluster, kept current by reading only what has changed.

Writers leave traces: people by events of jobs, schedulers by versions and times. Both are looked
for, and from time to time all rows are compared, as a scheduler does.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.db.models import Case, Count, Max, Q, QuerySet, Sum, TextField, Value, When
from django.db.models.functions import MD5, Cast

from scheduling.engine.deltas import Delta, NodeChanged, PolicyChanged, TenantsChanged
from scheduling.engine.queue.preemption_delay import delay_of
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import OPEN
from scheduling.engine.types import Node, Policy
from scheduling.kube.seam import KeepsAway
from scheduling.kube.translate.node_groups import NodeGroup, groups_of, nodes_to_come
from scheduling.models import Cluster, Job, JobConstraints, NodeRecord, Placement
from scheduling.models.jobs import LIVE_PLACEMENTS, PlacementState
from scheduling.queries.explain import policy_in_use
from scheduling.queries.known import (
    WAITS_ASIDE,
    JobFacts,
    facts_of_node,
    jobs_of,
    keepers_on,
    names_of,
    tenancy_of,
    told_at_start,
)
from scheduling.session.memory.news import News
from scheduling.session.memory.raw import RawRows
from tenants.database.chunks import chunks

COMPARE_S = 10.0  # how often to compare all rows even if sums say that none has changed
USED_S = 10.0  # how often to read what other clusters hold of the quotas

Mark = tuple[Any, ...]  # differs whenever a row's content does


class KeptNode(NamedTuple):
    """What a scheduler is told of a node, and which pods on it keep others away."""

    facts: tuple[Delta, ...]
    keepers: tuple[KeepsAway, ...]


class KeptRows:
    """The rows of a cluster that one scheduler decides on.

    `jobs` and `nodes` stay the same object while nothing changes. `at`: as of when, in seconds
    since the epoch.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster_id = cluster.pk
        self.at = 0.0
        self.policy = Policy()
        self.tenancy: tuple[Delta, ...] = ()
        self.nodes: dict[str, KeptNode] = {}
        self.jobs: dict[str, JobFacts] = {}
        self.names: dict[str, str] = {}  # of the jobs
        self._news = News(cluster.pk)
        self._settings: tuple[Any, ...] | None = None
        self._node_marks: dict[str, Mark] = {}
        self._groups: tuple[NodeGroup, ...] = ()
        self._job_marks: dict[str, Mark] = {}
        self._sums: dict[str, Mark] = {}
        self._compared_at = self._used_at = -COMPARE_S

    def refresh(self, now: float) -> None:
        """Read what has changed until `now`, in seconds since the epoch."""
        clock, before = time.monotonic(), self.tenancy
        touched: set[str] = set()
        if self._settings is None:
            found = self._news.start()
        else:
            found, told = self._news.read()
            touched = {job_id for job_id, _ in told}
        others = not found.alone and clock - self._used_at > USED_S
        if found.settings != self._settings or others:
            self._used_at = clock
            self._read_tenancy()
        all_of_them = clock - self._compared_at > COMPARE_S
        if all_of_them:
            self._compared_at = clock
        differs = self._differs("nodes", _sum_of_nodes(self.cluster_id))
        if differs or all_of_them or found.settings != self._settings:
            self._read_nodes()
        if self._job_marks and _for_jobs(before) != _for_jobs(self.tenancy):
            touched.update(self._job_marks)
        if self._differs("jobs", _sum_of_jobs(self.cluster_id)) or all_of_them or touched:
            self._read_jobs(touched)
        self._settings = found.settings
        self.at = now

    def facts(self) -> list[Delta]:
        """Return what a scheduler would be told at its start, like `Known.facts`."""
        jobs = sorted(self.jobs.values(), key=lambda job: job.order)
        nodes = (self.nodes[name].facts for name in sorted(self.nodes))
        return told_at_start(self.tenancy, nodes, jobs)

    def notices(self) -> dict[str, float]:
        """Return the seconds of warning before their pods are deleted, of jobs that ask for it."""
        return {job: told.notice_s for job, told in self.jobs.items() if told.notice_s}

    def keepers(self) -> set[KeepsAway]:
        """Return the rules of all existing pods."""
        return {rule for node in self.nodes.values() for rule in node.keepers}

    def _differs(self, what: str, found: Mark) -> bool:
        before, self._sums[what] = self._sums.get(what), found
        return before != found

    # --- reading ------------------------------------------------------------------------------
    def _read_tenancy(self) -> None:
        self.policy = policy_in_use(self.cluster_id)
        told = tuple(tenancy_of(self.cluster_id, WHOLE, self.policy))
        if told != self.tenancy:
            self.tenancy = told

    def _read_nodes(self) -> None:
        marks = _marks_of_nodes(self.cluster_id)
        changed = [name for name, mark in marks.items() if self._node_marks.get(name) != mark]
        cluster = Cluster.objects.get(id=self.cluster_id)
        groups = groups_of(cluster.node_groups, cluster.label_map)
        if not changed and self._node_marks.keys() == marks.keys() and groups == self._groups:
            return
        nodes = {name: node for name, node in self.nodes.items() if name in marks}
        for name, node in self._nodes_of(changed):
            if nodes.get(name) != node:
                nodes[name] = node
        self._node_marks, self._groups = marks, groups
        there = [_node_in(told) for told in nodes.values()] if groups else []
        for name, come in nodes_to_come(groups, there).items():
            told = KeptNode((NodeChanged(come),), ())
            nodes[name] = before if (before := self.nodes.get(name)) == told else told
        if nodes != self.nodes:
            self.nodes = nodes

    def _nodes_of(self, names: list[str]) -> Iterator[tuple[str, KeptNode]]:
        mine = NodeRecord.objects.filter(cluster_id=self.cluster_id, scope=WHOLE)
        most = len(names) > len(self._node_marks) / 2
        for query in [mine] if most else [mine.filter(name__in=some) for some in chunks(names)]:
            rows = RawRows(query)
            for raw in rows.rows:
                row = rows.columns(raw)
                yield row.name, KeptNode(facts_of_node(row), keepers_on(row))

    def _read_jobs(self, touched: Iterable[str]) -> None:
        marks = _marks_of_jobs(self.cluster_id)
        changed = {job for job, mark in marks.items() if self._job_marks.get(job) != mark}
        changed.update(job for job in touched if job in marks)
        gone = self._job_marks.keys() - marks.keys()
        if changed or gone:  # jobs that wait for another's success learn how it ended
            changed.update(i for i, job in self.jobs.items() if job.request.after_ok)
        changed -= gone
        if not changed and not gone:
            return
        jobs = dict(self.jobs)
        found = jobs_of(self.cluster_id, WHOLE, sorted(changed), self.policy)
        for job in gone | changed - {one.request.id for one in found}:
            jobs.pop(job, None)
            self.names.pop(job, None)
        for one in found:
            if jobs.get(one.request.id) != one:
                jobs[one.request.id] = one
        self.names |= names_of([job for job in jobs if job not in self.names])
        self._job_marks = marks
        if jobs != self.jobs:
            self.jobs = jobs


def _node_in(told: KeptNode) -> Node:
    (node,) = (fact.node for fact in told.facts if isinstance(fact, NodeChanged))
    return node


def _for_jobs(tenancy: Iterable[Delta]) -> list[object]:
    """Return what the facts of all jobs depend on: tenants' names and the delay of preemption."""
    of_policy = (delay_of(fact.policy) for fact in tenancy if isinstance(fact, PolicyChanged))
    of_tenants = (fact.tenants for fact in tenancy if isinstance(fact, TenantsChanged))
    return [*of_policy, *({t.id for t in tenants} for tenants in of_tenants)]


# --- whether anything changed ---------------------------------------------------------------------
def _sum_of_nodes(cluster_id: int) -> Mark:
    rows = NodeRecord.objects.filter(cluster_id=cluster_id, scope=WHOLE)
    return tuple(
        rows.aggregate(
            Count("id"), Max("id"), Max("updated_at"), Sum("healthy_gpus"),
            open=Count("id", filter=Q(schedulable=True)),
        ).values()
    )  # fmt: skip


def _marks_of_nodes(cluster_id: int) -> dict[str, Mark]:
    rows = NodeRecord.objects.filter(cluster_id=cluster_id, scope=WHOLE).order_by()
    columns = rows.values_list("name", "id", "updated_at", "schedulable", "gpus", "healthy_gpus")
    return {name: tuple(mark) for name, *mark in columns}


def _sum_of_jobs(cluster_id: int) -> Mark:
    jobs = _open_jobs(cluster_id).aggregate(
        Count("id"), Sum("version"), Sum("attempt"), Max("submitted_at"), Count("blocked_since"),
        Max("blocked_since"), Count("stands_at"), Max("stands_at"), Max("not_before"),
        Sum("gpu_milli"),
        fronts=Count("id", filter=Q(front=True)), aside=Count("id", filter=ASIDE),
    )  # fmt: skip
    places = _live_places(cluster_id).aggregate(
        Count("id"), Max("id"), Max("running_at"), runs=Count("id", filter=RUNS)
    )
    return (*jobs.values(), *places.values())


def _marks_of_jobs(cluster_id: int) -> dict[str, Mark]:
    """Return the marks of all jobs that are open, or still have places."""
    marks: dict[Any, list[Any]] = {}
    rows = _open_jobs(cluster_id).annotate(
        waits_aside=Case(When(ASIDE, then=Value(1)), default=Value(0))
    )
    for job, *columns in rows.values_list("id", *COLUMNS, "waits_aside"):
        marks[job] = columns
    found = _live_places(cluster_id).values_list("job_id").annotate(
        Count("id"), Max("id"), Max("running_at"), runs=Count("id", filter=RUNS)
    )  # fmt: skip
    places = {job: tuple(sums) for job, *sums in found}
    for over in chunks(sorted(places.keys() - marks.keys())):
        mine = Job.objects.filter(id__in=over, cluster_id=cluster_id, scope=WHOLE).order_by()
        marks |= {job: [] for job in mine.values_list("id", flat=True)}
    for job in marks.keys() & places.keys():
        marks[job].append(places[job])
    told = JobConstraints.objects.filter(job__cluster_id=cluster_id, job__scope=WHOLE).order_by()
    documents = told.values_list("job_id", MD5(Cast("document", TextField())))
    for job, digest in documents:
        if job in marks:
            marks[job].append(digest)
    return {str(job): tuple(found) for job, found in marks.items()}


# What changes of a job without an event by people, and reaches a scheduler.
COLUMNS = (
    "state", "version", "attempt", "not_before", "start_not_before", "held", "pod_hold", "front",
    "blocked_since", "stands_at", "declared_s", "run_limit_s", "admitted_at", "gpu_milli",
)  # fmt: skip
ASIDE = Q(reason__in=[reason.value for reason in WAITS_ASIDE])
RUNS = Q(state=PlacementState.RUNNING)


def _open_jobs(cluster_id: int) -> QuerySet[Job]:
    return Job.objects.filter(
        cluster_id=cluster_id, scope=WHOLE, state__in=list(OPEN)
    ).order_by()  # fmt: skip


def _live_places(cluster_id: int) -> QuerySet[Placement]:
    """Return live placements of this cluster's open jobs, and of all jobs that are over.

    The latter are few, and their cluster cannot be found without reading all jobs there ever were.
    """
    live = Placement.objects.filter(state__in=LIVE_PLACEMENTS).order_by()
    # By cluster even for all clusters: the index of states begins with it.
    of_all = Job.objects.filter(cluster__in=Cluster.objects.all(), state__in=list(OPEN)).order_by()
    mine, not_over = _open_jobs(cluster_id).values("id"), of_all.values("id")
    return live.filter(Q(job_id__in=mine) | ~Q(job_id__in=not_over))
