"""ClusterState: the one mutable model of capacity and of what is placed where.

Facts about nodes are in flat columns, with one slot per node. So booking or releasing a pod changes
a handful of integers, and a what-if `copy()` copies flat lists. The live loop never copies the
cluster (paper 3.4.3); it applies deltas.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Final

from scheduling.engine.cluster.columns import (
    COLUMNS,
    Booking,
    Columns,
    OtherPod,
    PodKey,
    PoolTotals,
    beyond_milli,
    mask_of,
)
from scheduling.engine.cluster.company import Company
from scheduling.engine.cluster.facts import sane
from scheduling.engine.cluster.lifetimes import NodeOutlook, outlook
from scheduling.engine.types import (
    DEFAULT_LEVELS,
    MILLI,
    JobRequest,
    Node,
    PodPlacement,
    PodRules,
    PodSetSpec,
)

__all__ = ["ClusterState", "PodKey"]


# Learn the typical mix again after at most this many placements.
LEARN_EVERY: Final = 1000
# After this many requested pods, the earlier ones count half.
REMEMBER: Final = 20_000
# A pod's request: milli-CPU, GPUs, GPU-milli of each, MiB of GPU memory, and accepted models.
Asked = tuple[int, int, int, int, tuple[str, ...]]

_ANYWHERE: Final = -1
# How many releases to remember; at this number the list starts again.
MAX_GAINED = 4096


# The pod set that did not fit, whether the search gave up, and `PlacementFailure.short`.
Infeasible = tuple[int, bool, tuple[int, int] | None]


class ClusterState(Columns):
    """Nodes, what is free on them, and every placement; only small deltas change it."""

    def __init__(self, levels: tuple[str, ...] = DEFAULT_LEVELS) -> None:
        super().__init__(levels)
        self.version = 0
        self.facts_version = 0  # grows when nodes or the pods of others change
        # Sets in which followers collect changes: jobs whose bookings changed, nodes on which
        # bookings changed (both also by trials), and nodes whose facts or pods of others changed.
        self.followers: list[set[str]] = []
        self.node_followers: list[set[str]] = []
        self.fact_followers: list[set[str]] = []
        self._clock = 0
        self._own_jobs: set[str] = set()
        self._bad: set[PodKey] = set()
        # Under "", what the strategy `fragmentation` learned to judge nodes by.
        self.typical: dict[str, Any] = {}
        # What was requested lately, and by how many pods; empty if nobody counts it.
        self.asked: dict[Asked, float] = {}
        # Whether a share of a GPU was ever held. From then on, packing must watch parts of GPUs.
        self.mixed = False
        self._asked_pods = 0
        self._committed, self._learn_at = 0, 1
        # How often something was released or improved; a mark for `gained`.
        self.gains = 0
        self._gained: list[int] = []  # where that happened last, in order: slots, or _ANYWHERE
        self._most: dict[int, int | None] = {}  # answers of `gained`, until anything changes
        self.now = 0.0
        # By running job: when it began, and its declared run time in seconds.
        self.times: dict[str, tuple[float, float | None]] = {}
        # By slot: how long its pods will stay, until they change.
        self._outlooks: dict[int, NodeOutlook] = {}
        self.company = Company()
        # What booked pods hold of extended resources beside what they asked for.
        self.beyond: dict[PodKey, Mapping[str, int]] = {}
        # Infeasible shapes: the version at which they were found, and why (place.py).
        self.infeasible: dict[object, tuple[int, Infeasible]] = {}

    # --- nodes ------------------------------------------------------------------------------
    def upsert_node(self, node: Node) -> tuple[PodKey, ...]:
        """Add a node or replace its facts; return the pods that newly lost their device."""
        node = sane(node)
        slot = self.slot_of.get(node.name)
        if slot is None:
            slot = self._add_slot(node.name)
        before = self.facts[slot]
        if before == node:
            return ()
        self._facts_change(node.name)
        self.company.nodes_change()
        if before is None or place_in_layout(before) != place_in_layout(node):
            self._index = None
        self._derive(slot, node)
        if self._index is not None:
            self._index.facts_changed(self, slot)
        self._gain(_ANYWHERE)
        return self._newly_bad(node)

    def remove_node(self, name: str) -> tuple[PodKey, ...]:
        """Forget a node; return the pods on it that were not reported as lost before."""
        slot = self.slot_of.get(name)
        if slot is None or self.facts[slot] is None:
            return ()
        self._facts_change(name)
        self.company.nodes_change()
        self._index = None  # its labels may have placed other nodes in the topology
        self._derive(slot, None)
        self._gain(_ANYWHERE)
        lost = tuple(key for key in self._on_node.get(name, ()) if key not in self._bad)
        self._bad.update(lost)
        return lost

    def neighbour(self, name: str, node: Node | None) -> None:
        """Note a node of another scope; None = it no longer is one.

        Rules count the pods on it, but nothing is placed there.
        """
        if self.company.neighbour_is(name, node):
            self._gain(_ANYWHERE)

    def upsert_other_pod(
        self,
        uid: str,
        node: str,
        gpus: int,
        cpu_milli: int,
        memory_mib: int,
        extended: Mapping[str, int],
        rules: PodRules | None = None,
    ) -> None:
        """Count what a pod of others takes; a second call for a `uid` replaces the first."""
        known = self._others.get(uid)
        pod = OtherPod(node, gpus, cpu_milli, memory_mib, extended, rules)
        if known == pod:
            return
        if known is not None:
            self.remove_other_pod(uid)
        self._facts_change(node)
        self._others[uid] = pod
        self._others_on[node] = (*self._others_on.get(node, ()), uid)
        self._derive_again(node)
        if rules is not None:
            self._in_company(node, rules, 1)

    def remove_other_pod(self, uid: str) -> None:
        pod = self._others.pop(uid, None)
        if pod is None:
            return
        self._facts_change(pod.node)
        left = tuple(other for other in self._others_on[pod.node] if other != uid)
        if left:
            self._others_on[pod.node] = left
        else:
            del self._others_on[pod.node]
        self._derive_again(pod.node)
        if pod.rules is not None:
            self.company.count(pod.node, pod.rules, -1)
        self._gain(_ANYWHERE)

    def others_on(self, node: str) -> tuple[OtherPod, ...]:
        """Return the pods of others on a node."""
        return tuple(self._others[uid] for uid in self._others_on.get(node, ()))

    def take_facts(self, of: "ClusterState", name: str) -> None:
        """Copy a node, and the pods of others on it, from another state."""
        there = of._others_on.get(name, ())
        for uid in self._others_on.get(name, ()):
            if uid not in there:
                self.remove_other_pod(uid)
        for uid in there:
            self.upsert_other_pod(uid, *of._others[uid])
        node = of.node(name)
        if node is None:
            self.remove_node(name)
        else:
            self.upsert_node(node)

    def _facts_change(self, name: str) -> None:
        self.facts_version += 1
        for changed in self.fact_followers:
            changed.add(name)

    # --- placements -------------------------------------------------------------------------
    def book(self, job: JobRequest, p: PodPlacement) -> None:
        """Book a place for a pod and take its resources; a pod that has a place moves."""
        self.restore(job.id, p, job.pod_sets[p.pod_set])

    def restore(self, job_id: str, p: PodPlacement, pod_set: PodSetSpec) -> None:
        """Do the same as `book`, given only the pod set of the pod."""
        if (p.pod_set, p.ordinal) in self._jobs.get(job_id, ()):
            self.release(job_id, p.pod_set, p.ordinal)
        self.register(job_id, p, pod_set)
        slot = self.slot_of.get(p.node)
        if slot is not None and self.facts[slot] is not None:
            self.take(slot, p, pod_set)

    def register(self, job_id: str, p: PodPlacement, pod_set: PodSetSpec) -> None:
        """Note which pod holds which place; `take` changes the columns."""
        held = self._jobs.get(job_id)
        if held is None:
            held = self._jobs[job_id] = {}
            self._own_jobs.add(job_id)
        else:
            held = self._own(job_id)
        held[p.pod_set, p.ordinal] = Booking(p, pod_set)
        if p.milli < MILLI:
            self.mixed = True
        if pod_set.rules is not None:
            self._in_company(p.node, pod_set.rules, 1)
        if self.followers:
            self.note(job_id)
        for changed in self.node_followers:
            changed.add(p.node)
        key = (job_id, p.pod_set, p.ordinal)
        others = self._on_node.get(p.node)
        self._on_node[p.node] = (key,) if others is None else (*others, key)
        if self._outlooks:
            self._outlooks.pop(self.slot_of.get(p.node, _ANYWHERE), None)

    def _own(self, job_id: str) -> dict[tuple[int, int], Booking]:
        """Return the bookings of a job, which may be changed; copies share them until then."""
        if job_id not in self._own_jobs:
            self._jobs[job_id] = dict(self._jobs[job_id])
            self._own_jobs.add(job_id)
        return self._jobs[job_id]

    def release(self, job_id: str, pod_set: int, ordinal: int) -> None:
        """Release the place of a pod; do nothing if it has none."""
        held = self._jobs.get(job_id)
        if held is None or (pod_set, ordinal) not in held:
            return
        held = self._own(job_id)
        p, spec = held.pop((pod_set, ordinal))
        if self.followers:
            self.note(job_id)
        for changed in self.node_followers:
            changed.add(p.node)
        if not held:
            del self._jobs[job_id]
            self._own_jobs.discard(job_id)
        key = (job_id, pod_set, ordinal)
        others = self._on_node[p.node]
        if len(others) > 1:
            at = others.index(key)
            self._on_node[p.node] = others[:at] + others[at + 1 :]
        else:
            del self._on_node[p.node]
        self._bad.discard(key)
        slot = self.slot_of.get(p.node, _ANYWHERE)
        self._outlooks.pop(slot, None)
        if slot != _ANYWHERE and self.facts[slot] is not None:
            self.give_back(slot, p, spec)
        if spec.rules is not None:
            self._in_company(p.node, spec.rules, -1)
        self._gain(slot)

    def _in_company(self, node: str, rules: PodRules, sign: int) -> None:
        """Note that a pod that rules are about came (+1) or left (-1).

        Either may open nodes anywhere for other pods.
        """
        self.company.count(node, rules, sign)
        self._gain(_ANYWHERE)

    def follow_rules(self, job: JobRequest) -> None:
        """Update the rules of a job's booked pods to those of its pod sets."""
        for where, booking in tuple(self._jobs.get(job.id, {}).items()):
            p, spec = booking
            if where[0] >= len(job.pod_sets) or spec.rules == job.pod_sets[where[0]].rules:
                continue
            rules = job.pod_sets[where[0]].rules
            self._own(job.id)[where] = Booking(p, replace(spec, rules=rules))
            if spec.rules is not None:
                self._in_company(p.node, spec.rules, -1)
            if rules is not None:
                self._in_company(p.node, rules, 1)

    def holds(self, key: PodKey, asked: Mapping[str, int], more: Mapping[str, int]) -> None:
        """Set the extended resources that a booked pod holds to what it `asked` for and `more`.

        Nothing happens if it has no place.
        """
        booking, job_id = self.booking(key), key[0]
        self.beyond.pop(key, None)
        if booking is None:
            return
        if more:
            self.beyond[key] = more
        extended = {**asked, **{name: asked.get(name, 0) + n for name, n in more.items()}}
        if booking.pod_set.extended == extended:
            return
        spec = replace(booking.pod_set, extended=extended)
        self._own(job_id)[key[1:]] = Booking(booking.placement, spec)
        if self.followers:
            self.note(job_id)
        for changed in self.node_followers:
            changed.add(booking.placement.node)
        self._derive_again(booking.placement.node)
        self._gain(_ANYWHERE)

    def note(self, job_id: str) -> None:
        """Tell the followers that what a job holds, or when it began, has changed."""
        for changed in self.followers:
            changed.add(job_id)

    def release_job(self, job_id: str) -> None:
        for pod_set, ordinal in tuple(self._jobs.get(job_id, ())):
            self.release(job_id, pod_set, ordinal)

    def placements_of(self, job_id: str) -> tuple[PodPlacement, ...]:
        """Return the places that a job holds, in order of pod set and ordinal."""
        held = self._jobs.get(job_id)
        if not held:
            return ()
        return tuple(held[where].placement for where in sorted(held))

    def booking(self, key: PodKey) -> Booking | None:
        return self._jobs.get(key[0], {}).get((key[1], key[2]))

    def pods_on(self, node: str) -> tuple[PodKey, ...]:
        """Return Kant's pods on a node, sorted."""
        return tuple(sorted(self._on_node.get(node, ())))

    def held_by(self, job_id: str) -> Mapping[tuple[int, int], Booking]:
        """Return the bookings of a job by (pod set, ordinal); callers must not change them."""
        return self._jobs.get(job_id, {})

    def left_of_device(self, node: str, device: int) -> int:
        """Return the unbooked GPU-milli of a healthy device."""
        slot = self.slot_of[node]
        if self.free_mask[slot] >> device & 1:
            return MILLI
        return self.partial[slot].get(device, 0)

    def beyond_milli(self, booking: Booking) -> int:
        """Return what a pod takes, or took, of its device beyond its GPU-milli (columns.py)."""
        p, spec = booking
        node = self.facts[self.slot_of[p.node]] if spec.gpu_memory_mib else None
        return 0 if node is None else beyond_milli(node, p, spec)

    def has_left(self, node: str, device: int, milli: int, beyond: int) -> bool:
        """Whether a healthy device has `milli` GPU-milli and `beyond` (see `beyond_milli`) left."""
        slot = self.slot_of[node]
        facts, remainders = self.facts[slot], self.remainders.get(slot)
        left = self.left_of_device(node, device) - milli
        if facts is None or not (beyond or remainders):
            return left >= 0
        remainder = 0 if remainders is None else remainders.get(device, 0)
        return left * facts.gpu_memory_mib + remainder >= beyond

    # --- run times --------------------------------------------------------------------------
    def began(self, job_id: str, at: float, declared_s: float | None) -> None:
        """Note since when a job runs and its declared run time, which may change later."""
        self.times[job_id] = (at, declared_s)
        for p in self.held_by(job_id).values() if self._outlooks else ():
            self._outlooks.pop(self.slot_of.get(p.placement.node, _ANYWHERE), None)
        self.note(job_id)

    def outlook(self, slot: int) -> NodeOutlook:
        """Return how long Kant's pods on a node will stay, as of `now` (lifetimes.py).

        A pod of a job that has not started counts as starting now, with no declared run time.
        """
        known = self._outlooks.get(slot)
        if known is not None and self.now < known.until:
            return known
        now, times, pods = self.now, self.times, self._on_node.get(self.names[slot], ())
        fresh = outlook([times.get(key[0], (now, None)) for key in pods], now)
        self._outlooks[slot] = fresh
        return fresh

    # --- totals -----------------------------------------------------------------------------
    def gpu_models(self) -> tuple[str, ...]:
        return tuple(sorted(model for model, pool in self._totals.items() if pool.capacity))

    def capacity_milli(self, model: str) -> int:
        """Return the GPU-milli installed in the pool."""
        return self._totals[model].capacity if model in self._totals else 0

    def available_milli(self, model: str) -> int:
        """Return the GPU-milli in service, plus what is allocated on other GPUs (docs/metrics.md).

        In service are the healthy GPUs of schedulable nodes.
        """
        return self._totals[model].available if model in self._totals else 0

    def allocated_milli(self, model: str) -> int:
        return self._totals[model].allocated if model in self._totals else 0

    def free_milli(self, model: str) -> int:
        """Return the GPU-milli that are available and not allocated."""
        pool = self._totals.get(model)
        return pool.available - pool.allocated if pool is not None else 0

    def node(self, name: str) -> Node | None:
        """Return a node as the engine uses it, with `problems`; None if it is unknown."""
        slot = self.slot_of.get(name)
        return None if slot is None else self.facts[slot]

    def committed(self, pods: int) -> None:
        """Note that `pods` placements are final; now and then, let the typical mix be relearned."""
        self._committed += pods
        self._most.clear()
        if self._committed >= self._learn_at:
            self._learn_at = self._committed + min(self._committed, LEARN_EVERY)
            self.typical.clear()

    def asks(self, pod_sets: Iterable[PodSetSpec]) -> None:
        """Count the requests of a job's pods in the typical mix."""
        for s in pod_sets:
            if not s.gpus:
                continue
            asked = (s.cpu_milli, s.gpus, s.gpu_milli, s.gpu_memory_mib, s.gpu_models)
            self.asked[asked] = self.asked.get(asked, 0.0) + s.count
            self._asked_pods += s.count
        if self._asked_pods >= REMEMBER:
            self._asked_pods = 0
            self.asked = {asked: pods / 2 for asked, pods in self.asked.items()}

    @property
    def stamp(self) -> tuple[int, int]:
        """A version that changes when anything was released, improved or placed."""
        return self.version, self._committed

    def widened(self) -> None:
        """Note that more may be possible anywhere, although nothing was released."""
        self._gain(_ANYWHERE)

    def _gain(self, slot: int) -> None:
        """Note that more may be possible at this slot; versions are never used twice."""
        self._clock += 1
        self.version = self._clock
        if len(self._gained) >= MAX_GAINED:
            self._gained.clear()
        self._gained.append(slot)
        self.gains += 1
        self._most.clear()

    def forget_gains(self, version: int, gains: int) -> None:
        """Go back to these versions, because all that was released since is taken again."""
        undone = self.gains - gains
        if undone:
            del self._gained[-undone:]
        self.version, self.gains = version, gains
        self._most.clear()

    def gained(self, since: int) -> int | None:
        """Return the most wholly free GPUs on any node where something was released since the mark.

        `since`: an earlier value of `gains`. None = unknown. A request that did not fit then, and
        needs more free GPUs on each node, still does not fit.
        """
        if since not in self._most:
            times, known = self.gains - since, len(self._gained)
            last = self._gained[known - times :] if times <= known else [_ANYWHERE]
            told = _ANYWHERE not in last
            self._most[since] = max([self.free[s] for s in last], default=0) if told else None
        return self._most[since]

    def copy(self) -> "ClusterState":
        """Return an independent what-if; both share facts and bookings until one changes them."""
        twin = ClusterState(self.levels)
        for column in (*COLUMNS, *REGISTRY):
            setattr(twin, column, copy(getattr(self, column)))
        for fact in FACTS:
            setattr(twin, fact, getattr(self, fact))
        twin._totals = {
            model: PoolTotals(pool.capacity, pool.available, pool.allocated)
            for model, pool in self._totals.items()
        }
        self._own_jobs = set()
        if self._index is not None:
            twin._index = self._index.copy()
        return twin

    def without_pods(self) -> "ClusterState":
        """Return an independent what-if copy without any of Kant's pods."""
        twin = self.copy()
        held = twin._on_node
        twin._jobs, twin._on_node, twin._bad = {}, {}, set()
        twin.times, twin._outlooks, twin.infeasible = {}, {}, {}
        twin.company = self.company.of_nodes()
        for pod in twin._others.values():
            if pod.rules is not None:
                twin.company.count(pod.node, pod.rules, 1)
        for name in held:
            twin._derive_again(name)
        return twin

    def _newly_bad(self, node: Node) -> tuple[PodKey, ...]:
        """Return the pods on the node whose device went bad since the last report."""
        healthy = mask_of(tuple(d.index for d in node.devices if d.healthy))
        newly: list[PodKey] = []
        for key in self._on_node.get(node.name, ()):
            p, _ = self._jobs[key[0]][key[1], key[2]]
            if any(not healthy >> device & 1 for device in p.devices):
                if key not in self._bad:
                    newly.append(key)
                    self._bad.add(key)
            else:
                self._bad.discard(key)
        return tuple(newly)


def place_in_layout(node: Node) -> tuple[object, ...]:
    """Return the facts that determine the order and the domains of the index."""
    devices = tuple((device.index, device.memory_mib) for device in node.devices)
    return node.gpu_model, node.topology, node.hyper_node, node.zone, devices


# Besides the columns: what a copy must copy, and what it may share.
REGISTRY = (
    "_jobs",
    "_on_node",
    "_others",
    "_others_on",
    "_bad",
    "_outlooks",
    "infeasible",
    "typical",
    "asked",
    "company",
    "beyond",
)
FACTS = (
    "version",
    "facts_version",
    "gains",
    "now",
    "times",
    "_clock",
    "_committed",
    "_learn_at",
    "_asked_pods",
    "mixed",
)
