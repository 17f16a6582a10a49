"""Where a simulated run takes its jobs and its fleet from: a generated workload, a trace, or a
cluster's own history."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

from metrics.simulate.inputs import (
    InputError,
    clusters_of,
    fleet_of,
    length_of,
    lines_of,
    policy_of,
)
from scheduling.engine.types import Node, Policy, QueueSpec, QuotaSpec, TenantSpec
from scheduling.models import Cluster
from scheduling.queries import history
from scheduling.queries.selectors import complete_from, what_is_gone
from scheduling.session.memory.load import policy, tenancy
from scheduling.session.memory.queues import queues, released
from scheduling.simulator import traces, workload
from scheduling.simulator.model import Arrival, ClusterOfRun
from scheduling.simulator.nodes import engine_nodes
from scheduling.simulator.several import ANYWHERE
from scheduling.simulator.traces.jobs import TraceJob, dealt_to

DEFAULT_FLEET = "1000x8"


@dataclass(frozen=True, slots=True)
class RunFleet:
    """The fleet of a run: its name, its nodes, GPUs by model; `clusters` if it spans several."""

    name: str
    nodes: tuple[Node, ...]
    gpus: dict[str, int]
    clusters: tuple[ClusterOfRun, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The GPU models, the one with the most GPUs first."""
        return tuple(sorted(self.gpus, key=lambda model: (-self.gpus[model], model)))

    @property
    def model(self) -> str:
        """The GPU model with the most GPUs."""
        return self.models[0]

    @property
    def per_node(self) -> int:
        return max(len(n.devices) for n in self.nodes if n.gpu_model == self.model)


@dataclass(frozen=True, slots=True)
class Source:
    """What arrives, and on which fleet. `hours`: length of the run; None = until everything has
    ended.

    `start`: where the run begins; negative if jobs are carried over. `policy`: the source's own;
    `window`: the history that it comes from; None = it has none. `remarks`: what people should know
    about it.
    """

    name: str
    fleet: RunFleet
    arrivals: Iterator[Arrival]
    tenants: tuple[TenantSpec, ...]
    quotas: tuple[QuotaSpec, ...]
    hours: float | None
    queues: tuple[QueueSpec, ...] = ()
    start: float = 0.0
    policy: Policy | None = None
    window: history.Window | None = None
    remarks: tuple[str, ...] = ()


def pools_of(text: str) -> RunFleet:
    """Return the fleet that `--fleet` names; raise InputError."""
    fleet = fleet_of(text)
    return _pools(fleet.name, engine_nodes(fleet), f"--fleet {text}")


def several(path: Path, policy: Policy) -> RunFleet:
    """Read the clusters of a file (docs/traces.md), each with its own fleet, and `policy` where it
    names none.

    Node names get their cluster as a prefix. Raises InputError naming file, cluster and key.
    """
    clusters: list[ClusterOfRun] = []
    for name, said in clusters_of(path).items():
        where = f"{path}: clusters: {name}"
        try:
            found = engine_nodes(fleet_of(said["fleet"]))
            own = policy_of(said["policy"]) if "policy" in said else policy
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
        _pools(name, found, where)
        nodes = tuple(_of_cluster(name, node) for node in found)
        takes_any = said.get("takes_any", True)
        clusters.append(ClusterOfRun(name, nodes, own, said.get("labels", {}), takes_any))
    nodes = tuple(node for cluster in clusters for node in cluster.nodes)
    return replace(_pools(str(path), nodes, str(path)), clusters=tuple(clusters))


def _of_cluster(name: str, node: Node) -> Node:
    topology = tuple(group and f"{name}/{group}" for group in node.topology)
    hyper_node = node.hyper_node and f"{name}/{node.hyper_node}"
    return replace(node, name=f"{name}/{node.name}", topology=topology, hyper_node=hyper_node)


def _pools(name: str, nodes: tuple[Node, ...], where: str) -> RunFleet:
    gpus: dict[str, int] = {}
    for node in nodes:
        if node.devices:
            gpus[node.gpu_model] = gpus.get(node.gpu_model, 0) + len(node.devices)
    if not gpus:
        raise InputError(f"{where}: has no GPUs")
    return RunFleet(name, nodes, gpus)


# --- a generated workload -------------------------------------------------------------------------
def generated(
    name: str, fleet: RunFleet, seed: int, hours: float | None, shares: workload.StreamShares
) -> Source:
    """Generate a calibrated workload, of 30 days by default; raise InputError."""
    variant = workload.VARIANTS.get(name)
    if variant is None:
        known = ", ".join(workload.VARIANTS)
        raise InputError(f"--workload {name!r} is unknown; known are {known}")
    hours = hours or 720.0
    gpus = fleet.gpus[fleet.model]
    made = workload.generate(
        variant,
        gpus=gpus,
        gpu_model=fleet.model,
        seed=seed,
        hours=hours,
        gpus_per_node=fleet.per_node,
    )
    tenants, quotas = workload.tenants_of(gpus, fleet.model)
    return Source(name, fleet, shares.watch(made), tenants, quotas, hours)


# --- a trace --------------------------------------------------------------------------------------
def traced(
    path: Path, fleet: RunFleet, hours: float | None, format_name: str, bad: traces.BadRows
) -> Source:
    """Read the jobs of a trace file: twice if it is sorted, and never all of it into memory.

    Raises InputError or TraceFormatError for the first wrong row, unless `bad` skips them.
    """

    def read(counting: traces.BadRows) -> Iterator[TraceJob]:
        return traces.jobs_of(lines_of(path), counting, format_name)

    known = {cluster.name for cluster in fleet.clusters} | {"", ANYWHERE}
    rows = None if path.is_file() else list(read(bad))  # a pipe can be read only once
    remarks: tuple[str, ...] = ()
    before, tenants, number = float("-inf"), dict[str, None](), 0
    queues: set[tuple[str, str]] = set()
    predecessors = traces.Predecessors()
    for job in read(bad) if rows is None else rows:
        if job.submitted_at < before and not remarks:
            remarks = (
                f"--trace {path}: job {job.id} was submitted at {job.submitted_at:g} s, before the "
                f"job above it ({before:g} s); the trace is sorted by submission",
            )
        before = job.submitted_at
        predecessors.read(job)
        if job.cluster not in known or (job.cluster_selector and not fleet.clusters):
            named = job.cluster or "by its labels"
            raise InputError(
                f"--trace {path}: job {job.id} names a cluster ({named}) that the run does not "
                "have; --clusters says which there are"
            )
        if job.gpus > 0:
            tenant = job.tenant or dealt_to(number, traces.TENANTS)
            tenants[tenant] = None
            queues.add((tenant, job.queue))
            number += 1
    if not number:
        raise InputError(f"--trace {path}: has no job that asks for a GPU")
    jobs = read(traces.BadRows(skip=bad.skip)) if rows is None else iter(rows)
    if remarks:
        jobs = iter(sorted(jobs, key=lambda job: job.submitted_at))
        # In another order than the file's, other jobs may be assigned to a tenant.
        tenants.update((dealt_to(i, traces.TENANTS), None) for i in range(traces.TENANTS))
    if remark := predecessors.remark():
        remarks += (f"--trace {path}: {remark}",)
    made = traces.arrivals(jobs, gpu_models=fleet.models, per_node=fleet.per_node)
    # A recorded trace has no quotas: every tenant may use everything.
    quotas = tuple(
        QuotaSpec(name, gpu_model, 1000 * gpus)
        for name in sorted(tenants)
        for gpu_model, gpus in sorted(fleet.gpus.items())
    )
    return Source(
        str(path), fleet, _until(made, hours), tuple(TenantSpec(t) for t in sorted(tenants)),
        quotas, hours, _several(queues), remarks=remarks,
    )  # fmt: skip


def _several(named: set[tuple[str, str]]) -> tuple[QueueSpec, ...]:
    """Return the queues of tenants that have several, with equal rank and weight: a trace says no
    more."""
    of_tenant = Counter(tenant for tenant, _ in named)
    return tuple(QueueSpec(*name) for name in sorted(named) if of_tenant[name[0]] > 1)


def _until(made: Iterator[Arrival], hours: float | None) -> Iterator[Arrival]:
    for arrival in made:
        if hours is not None and arrival.submitted_at >= hours * 3600:
            return
        yield arrival


# --- a cluster's own history ----------------------------------------------------------------------
def since_of(text: str, now: datetime) -> datetime:
    """Return the instant that `--since` names: a time, or a length up to now; raise InputError."""
    length = length_of(text)
    if length is not None:
        return now - length
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"--since {text!r} is not a time: write one like 2026-11-20T08:00 (UTC unless it names "
            "a zone), or a length up to now like 90m, 24h or 7d"
        ) from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at >= now:
        raise InputError(f"--since {text!r} lies in the future; it is {now:%Y-%m-%dT%H:%M} UTC")
    return at


def cluster_of(name: str | None) -> Cluster:
    """Return the cluster that `--cluster` names, or the only one; raise InputError."""
    names = list(Cluster.objects.values_list("name", flat=True))
    if name is None and len(names) != 1:
        known = ", ".join(names)
        raise InputError(
            f"--cluster: name one of {known}" if names else "the database knows no cluster"
        )
    found = Cluster.objects.filter(name=name or names[0]).first()
    if found is None:
        raise InputError(f"--cluster {name!r} is unknown; known are {', '.join(names) or 'none'}")
    return found


def recorded(
    cluster: Cluster,
    since: datetime,
    now: datetime,
    hours: float | None,
    fleet: RunFleet | None,
    bad: traces.BadRows,
) -> Source:
    """Read what a cluster did from `since` to now, on its own nodes unless a fleet is given; raise
    InputError when nothing was recorded."""
    window = history.Window(cluster, since, now)
    until = now if hours is None else min(now, since + timedelta(hours=hours))
    span = f"cluster {cluster.name} from {since:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S} UTC"
    if fleet is None:
        fleet = _pools(cluster.name, tuple(history.nodes_of(cluster)), f"cluster {cluster.name}")
    most = window.seconds / 3600
    if hours is not None and hours < most:
        most = hours
    arrivals = _until(_readable(history.arrivals_of(window), bad), most)
    first = next(arrivals, None)
    if first is None:
        last = cluster.jobs.order_by("-submitted_at").first()
        told = f"the last one is of {last.submitted_at:%Y-%m-%d %H:%M:%S}" if last else "none ever"
        raise InputError(f"--since: no job waited or ran in {span}; {told}.{what_is_gone()}")
    known = tenancy(cluster.pk)
    kept_from = complete_from()
    return Source(
        name=span,
        fleet=fleet,
        arrivals=chain([first], arrivals),
        tenants=known.tenants,
        quotas=known.quotas,
        hours=most,
        queues=released(queues(cluster.pk)),
        start=history.RUNNING_AT,
        policy=policy(cluster.pk),
        window=window,
        remarks=(
            f"--since: jobs that ended before {kept_from:%Y-%m-%d %H:%M:%S} UTC are deleted; the "
            "run is complete from then on",
        )
        if kept_from and kept_from > since
        else (),
    )


def _readable(
    found: Iterator[Arrival | history.HistoryError], bad: traces.BadRows
) -> Iterator[Arrival]:
    for one in found:
        if isinstance(one, Arrival):
            yield one
        else:
            bad.met(traces.TraceFormatError(str(one)))
