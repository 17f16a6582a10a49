"""The wide scope's scheduler routes each waiting job to the scope that decides about it."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scheduling.engine.admission.quota_admission import doomed
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.company import Company
from scheduling.engine.reasons.after import ends_of, stands_in_the_way
from scheduling.engine.shards.division import (
    WHOLE,
    WIDE,
    Demand,
    able_to_hold,
    demand_of,
    home_of,
    is_overfull,
    room,
    route,
    with_company,
    without_nodes,
)
from scheduling.engine.states import WAITING
from scheduling.engine.types import ANY_NODE, MILLI, CpuJobs, Node, Shard
from scheduling.session.changes import Changes
from scheduling.session.memory import divided, load
from scheduling.session.memory.live import LiveJob, ReasonChange, RouteStep

log = logging.getLogger(__name__)

ROUTE_S = 0.5  # how often to look for jobs without a scope
AT_ONCE = 500  # jobs routed in one pass
AGAIN_S = 5.0  # how often jobs that wait for full nodes are offered to other shards
ANY_COMPANY = -2  # for jobs without rules
BUSY_S = 2.0  # how often to look up which nodes are in use
OLDEST = 100  # waiting jobs of an overfull shard that are offered to others at once


class Router:
    """Routes jobs. It keeps every shard as if it had no pods, with all nodes at home."""

    def __init__(
        self, changes: Changes, shards: Sequence[Shard], company: Callable[[], Company]
    ) -> None:
        """`company`: all pods of the cluster that rules are about."""
        self._changes = changes
        self._company = company
        self._ruled = -1, dict[str, ClusterState]()  # shards with their pods, as of a version
        self._shards = shards
        self._empty = {shard.name: ClusterState() for shard in shards}
        self._homes: dict[str, str] = {}
        self._looked_at = 0.0
        self._storage = 0  # the version by which jobs with volumes were last routed
        self._busy = -math.inf, dict[str, int]()  # as of when: GPU-milli in use, by node
        # By (GPU-milli, version): the shards without nodes that have less than that free.
        self._with_room: dict[tuple[int, int], Mapping[str, ClusterState]] = {}
        self._again_at = 0.0

    def node_seen(self, node: Node) -> None:
        home = home_of(node, self._shards)
        before = self._homes.get(node.name, home)
        if before != home:
            self._empty[before].remove_node(node.name)
        self._homes[node.name] = home
        self._empty[home].upsert_node(node)

    def node_gone(self, name: str) -> None:
        home = self._homes.pop(name, None)
        if home is not None:
            self._empty[home].remove_node(name)

    def run(self) -> None:
        """Route new and changed jobs, and from time to time jobs that wait without room."""
        changes, cluster_id = self._changes, self._changes.cluster_id
        ids, changes.touched = changes.touched, set()
        clock = time.monotonic()
        if clock - self._looked_at > ROUTE_S:
            self._looked_at = clock
            ids.update(divided.waiting_in(cluster_id, WHOLE, AT_ONCE))
        if changes.counted:
            ids.update(divided.waiting_in(cluster_id, WIDE, AT_ONCE))
        if self._ruled[0] >= 0 and changes.counted and self._ruled[0] != self._company().version:
            ids.update(divided.waiting_with_volumes(cluster_id, AT_ONCE))
        if self._storage != (version := changes.life.volumes.storage.version):
            self._storage = version
            ids.update(divided.waiting_with_volumes(cluster_id, AT_ONCE))
        if not ids and not changes.counted:
            return
        demand = divided.demand(cluster_id)
        jobs, bad = load.jobs(sorted(ids))
        changes.refuse(bad)
        for job in jobs:
            if job.state in WAITING and job.cluster == cluster_id:
                self._route(job, demand)
        if changes.counted:
            self._even_out(demand)
            if clock >= self._again_at:
                self._again_at = clock + AGAIN_S
                self._offer_limited(demand)

    def _route(self, job: LiveJob, demand: dict[str, list[Demand]]) -> None:
        before = (*job.request.after, *job.request.after_ok)
        waits_for = load.open_among(before) if before else []
        if waits_for:
            self._keep(job, waits_for, demand)
        elif job.scope not in self._empty or self._is_elsewhere(job):
            self._move(job, self._target(job, demand), demand)

    def _keep(self, job: LiveJob, others: list[str], demand: dict[str, list[Demand]]) -> None:
        """Keep a job without a scope until the jobs it waits for are over, wherever they run."""
        if job.scope != WHOLE:
            self._move(job, WHOLE, demand)
            return
        before, after_ok = (*job.request.after, *job.request.after_ok), job.request.after_ok
        if (by := load.doomed_by(after_ok)) is not None:
            verdict = doomed(after_ok, by)
        elif (found := load.stuck_before(before)) is not None:
            first, stuck = found
            is_array = first not in others
            verdict = stands_in_the_way(job.request, len(others), first, stuck, is_array=is_array)
        else:
            verdict = ends_of(len(others), before[0])
        is_new = job.reason != verdict.reason
        if is_new or load.message_of(job.id) != verdict.summary:
            reasons = self._changes.life.out.writes.reasons
            reasons.append(ReasonChange(job.id, job.state, verdict, is_new, is_noted=is_new))

    def _even_out(self, demand: dict[str, list[Demand]]) -> None:
        """Offer waiting jobs of overfull shards to shards with room.

        A job that fits no shard goes to the wide scope: nodes have gone, or its pods were still
        leaving when it was resized.
        """
        for here, state in self._empty.items():
            if not is_overfull(state, demand.get(here, ()), self._cpu_jobs):
                continue
            oldest = divided.waiting_in(self._changes.cluster_id, here, OLDEST)
            for job in load.jobs(oldest)[0]:
                if room(job.request, state, demand.get(here, ()), self._cpu_jobs) >= 0:
                    continue
                there = self._target(job, demand)
                if there == WIDE or (there != here and self._has_room(job, there, demand)):
                    self._move(job, there, demand)

    def _offer_limited(self, demand: dict[str, list[Demand]]) -> None:
        """Offer jobs that wait for a few nodes, all full, to shards where such nodes are free."""
        if not self._full():
            return
        for here in self._empty:
            oldest = divided.waiting_in(self._changes.cluster_id, here, OLDEST)
            for job in load.jobs(oldest)[0]:
                self._changes.life.volumes.constrain(job)
                free = self._free_for(job)
                if free and here not in free:
                    self._move(job, self._best(job, free, demand), demand)

    def _full(self) -> dict[str, int]:
        """Return the GPU-milli in use, by node with any, looked up from time to time."""
        clock = time.monotonic()
        if clock - self._busy[0] > BUSY_S:
            self._busy = clock, divided.busy_nodes(self._changes.cluster_id)
            self._with_room = {}
        return self._busy[1]

    def _free_for(self, job: LiveJob) -> dict[str, ClusterState]:
        """Return the shards that could hold a limited job on nodes with room for a pod of it now.

        Limited means that the job may use some nodes only. {} = no shard could, or any node will
        do.
        """
        needs = [s.milli_per_pod for s in job.request.pod_sets if s.gpus]
        if not needs or not _is_limited(job) or not self._full():
            return {}
        shards = self._shards_for(job)
        key = min(needs), self._ruled[0] if _has_rules(job) else ANY_COMPANY
        if key not in self._with_room:
            self._with_room[key] = without_nodes(shards, self._too_full(shards, min(needs)))
        strategy = self._strategy(job)
        able = able_to_hold(job.request, self._with_room[key], strategy, self._cpu_jobs)
        return {name: shards[name] for name in able}

    def _too_full(self, shards: Mapping[str, ClusterState], need: int) -> list[str]:
        """Return the nodes with less than this many GPU-milli left."""
        found = []
        for name, used in self._full().items():
            state = shards.get(self._homes.get(name, ""))
            node = state.node(name) if state is not None else None
            if node is not None and len(node.devices) * MILLI - used < need:
                found.append(name)
        return found

    def _has_room(self, job: LiveJob, there: str, demand: dict[str, list[Demand]]) -> bool:
        needs, state = sum(amount for _, amount in demand_of(job.request)), self._empty[there]
        return room(job.request, state, demand.get(there, ()), self._cpu_jobs) >= needs

    @property
    def _cpu_jobs(self) -> CpuJobs:
        """Where jobs without GPUs may run, by the current policy."""
        return self._changes.life.scope.policy.cpu_jobs_on_gpu_nodes

    def _is_elsewhere(self, job: LiveJob) -> bool:
        """Whether volumes or rules about other pods let the job run only in other shards."""
        self._changes.life.volumes.constrain(job)
        if job.volume_hold is not None or not (job.node_note or _has_rules(job)):
            return False
        here = {job.scope: self._shards_for(job)[job.scope]}
        return self._best(job, here, {}) != job.scope

    def _shards_for(self, job: LiveJob) -> Mapping[str, ClusterState]:
        """Return the shards, with no pods except those that a rule of the job may be about."""
        if not _has_rules(job):
            return self._empty
        company = self._company()
        if self._ruled[0] != company.version:
            self._ruled = company.version, with_company(self._empty, company)
        return self._ruled[1]

    def _target(self, job: LiveJob, demand: dict[str, list[Demand]]) -> str:
        self._changes.life.volumes.constrain(job)
        return self._best(job, self._free_for(job) or self._shards_for(job), demand)

    def _best(
        self,
        job: LiveJob,
        shards: Mapping[str, ClusterState],
        demand: Mapping[str, Sequence[Demand]],
    ) -> str:
        try:
            return route(job.request, shards, demand, self._strategy(job), self._cpu_jobs)
        except Exception:
            # The shard's scheduler sets aside a job that it stumbles over, and says so.
            log.exception("job %s cannot be routed", job.id)
            return next(iter(shards))

    def _strategy(self, job: LiveJob) -> str:
        return self._changes.life.scope.policy.strategies.get(job.request.kind, "binpack")

    def _move(self, job: LiveJob, target: str, demand: dict[str, list[Demand]]) -> None:
        if target == job.scope:
            return
        if target == WIDE:
            text = "It fits in no single shard; it waits for nodes that the shards lend."
        elif target == WHOLE:
            text = "It is routed again when the jobs that it waits for are over."
        else:
            text = f"The scheduler of shard {target} decides about it."
        self._changes.life.out.writes.routes.append(
            RouteStep(job.id, job.state, job.version, job.scope, target, text)
        )
        for scope, sign in ((job.scope, -1), (target, 1)):
            for models, amount in demand_of(job.request):
                demand.setdefault(scope, []).append((models, sign * amount))


def _is_limited(job: LiveJob) -> bool:
    """Whether its pods may use some nodes only."""
    nodes = (replace(s.nodes, tolerations=()) for s in job.request.pod_sets)
    return _has_rules(job) or any(rules != ANY_NODE for rules in nodes)


def _has_rules(job: LiveJob) -> bool:
    """Whether rules limit which pods it may run beside, its own or those of others."""
    return any(s.rules is not None for s in job.request.pod_sets)
