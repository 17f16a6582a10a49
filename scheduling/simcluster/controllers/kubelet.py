"""The kubelets of all nodes: they admit bound pods, run them for their time and end them.

One heap of timers serves all pods. A kubelet writes its decisions to the store like any other
client, and learns of pods and nodes from the store's changes.
"""

import logging
from dataclasses import dataclass

from scheduling.simcluster.controllers import lifecycle, predicates, resource_claims, storage
from scheduling.simcluster.controllers.devices import (
    GPU,
    UNHEALTHY_GPUS,
    DeviceManager,
    indices,
    refused,
)
from scheduling.simcluster.controllers.predicates import KubeletView, Rejection
from scheduling.simcluster.objects.kinds import PODS, RESOURCE_CLAIMS
from scheduling.simcluster.objects.meta import seconds
from scheduling.simcluster.objects.quantities import Requests, amounts
from scheduling.simcluster.objects.registry import DeleteOptions, Registry
from scheduling.simcluster.objects.store import Obj, Stored, StoredChange
from scheduling.simcluster.objects.timers import Timers

log = logging.getLogger(__name__)

# How long pods of a missing node stay before they are collected (pod garbage collector).
ORPHAN_S = 40.0
_PHASE = list(PODS.selectable).index("status.phase")
_NODE = list(PODS.selectable).index("spec.nodeName")
_FINISHED = ("Succeeded", "Failed")
_AWAITED = storage.STORAGE | {RESOURCE_CLAIMS.table}  # kinds whose changes may let pods start


@dataclass(frozen=True)
class Delays:
    """How many seconds the simulated containers take to start and to stop."""

    start_s: float = 0.05
    stop_s: float = 0.1


class PodRun:
    """A bound pod on its node. `admitted`: it holds resources there."""

    __slots__ = (
        *("admitted", "key", "node", "ports", "requests", "save_s", "stop_s", "stopping"),
        *("told", "uid"),
    )

    def __init__(self, uid: str, key: str, node: str) -> None:
        self.uid = uid
        self.key = key
        self.node = node
        self.admitted = False
        self.stopping = False
        self.told = False
        self.stop_s: float | None = None
        self.save_s: float | None = None
        self.requests: Requests = {}
        self.ports: set[predicates.HostPort] = set()


class NodeAgent:
    """One kubelet: its view of the node, its devices, and its pods by uid."""

    __slots__ = ("address", "devices", "down", "pods", "present", "view")

    def __init__(self, name: str) -> None:
        self.view = KubeletView(name)
        self.devices = DeviceManager()
        self.pods: dict[str, PodRun] = {}
        self.present = False
        self.down = False
        self.address = ""

    def describe(self, stored: Stored, obj: Obj) -> None:
        status = obj.get("status") or {}
        self.view.labels = stored.labels
        self.view.taints = tuple(obj["spec"].get("taints") or ())
        self.view.allocatable = amounts(status.get("allocatable"))
        annotations = obj["metadata"].get("annotations") or {}
        capacity = amounts(status.get("capacity"))
        try:
            unhealthy = frozenset(indices(annotations.get(UNHEALTHY_GPUS, "[]")))
        except ValueError:
            # Somebody overwrote the kubelet's annotation with nonsense; keep what it knew.
            unhealthy = self.devices.unhealthy
        self.devices.describe(capacity.get(GPU, 0), unhealthy)
        self.present = True
        addresses = status.get("addresses") or ({"address": ""},)
        self.address = addresses[0]["address"]

    def hold(self, run: PodRun) -> None:
        used = self.view.used
        for resource, value in {"pods": 1, **run.requests}.items():
            used[resource] = used.get(resource, 0) + value
        self.view.host_ports |= run.ports
        run.admitted = True

    def release(self, run: PodRun) -> None:
        if run.admitted:
            for resource, value in {"pods": 1, **run.requests}.items():
                self.view.used[resource] -= value
            self.view.host_ports -= run.ports
            self.devices.free(run.uid)
            run.admitted = False


class Kubelets:
    """The kubelets of all nodes. On a node that is `down` nothing starts or ends."""

    def __init__(self, registry: Registry, timers: Timers, delays: Delays) -> None:
        self._registry = registry
        self._store = registry.store
        self._timers = timers
        self._delays = delays
        self.nodes: dict[str, NodeAgent] = {}
        self._unmounted: list[PodRun] = []  # waiting for their volumes or claims
        self._restore()
        self._store.listeners.append(self._on_change)

    def _restore(self) -> None:
        """Resume where a previous process stopped."""
        for node in self._store.objects["nodes"].values():
            self._agent(node.name).describe(node, node.decode())
        pods = (p for p in self._store.objects["pods"].values() if p.fields[_NODE])
        for pod in sorted(pods, key=lambda p: p.rv):
            if pod.fields[_PHASE] not in _FINISHED:
                self._resume(pod)

    def _take_up(self, agent: NodeAgent) -> None:
        """Resume all pods of a node whose kubelet has come (back).

        Whatever was due there in the meantime was left undone.
        """
        found = [self._store.get("pods", run.key) for run in agent.pods.values()]
        for run in agent.pods.values():
            agent.release(run)
        for pod in sorted((p for p in found if p is not None), key=lambda p: p.rv):
            self._resume(pod)

    def _resume(self, pod: Stored) -> None:
        run = self._new_run(pod)
        obj = pod.decode()
        try:
            run.stop_s, run.save_s = lifecycle.habits(obj)
        except ValueError as error:
            # Somebody changed the annotation after the pod had been admitted.
            log.warning("pod %s: %s; it stops as all do", run.key, error)
        if obj["metadata"].get("deletionTimestamp"):
            self._begin_stop(run, obj)
        if pod.fields[_PHASE] == "Running":
            agent = self.nodes[run.node]
            run.requests = predicates.known_requests(obj, agent.view.allocatable)
            run.ports = predicates.host_ports(obj["spec"])
            annotations = obj["metadata"].get("annotations") or {}
            agent.devices.allocate(run.uid, run.requests, annotations)
            agent.hold(run)
            # If somebody else wrote the status, the pod may have no start time.
            started = obj["status"].get("startTime")
            self._plan_end(run, obj, seconds(started) if started else self._registry.clock())
            self._hear(run, obj)
        else:
            self._timers.after(self._delays.start_s, self._start, run)

    def _agent(self, name: str) -> NodeAgent:
        agent = self.nodes.get(name)
        if agent is None:
            agent = self.nodes[name] = NodeAgent(name)
        return agent

    def _new_run(self, pod: Stored) -> PodRun:
        run = PodRun(pod.uid, pod.key, pod.fields[_NODE])
        agent = self._agent(run.node)
        agent.pods[run.uid] = run
        if not agent.present:
            self._timers.after(ORPHAN_S, self._collect_orphans, agent)
        return run

    # --- changes in the store -----------------------------------------------------------------
    def _on_change(self, plural: str, change: StoredChange, obj: Obj) -> None:
        if plural == "pods" and change.new.fields[_NODE]:
            self._on_pod(change, obj)
        elif plural == "nodes":
            self._on_node(change, obj)
        elif plural in _AWAITED and self._unmounted:
            waiting, self._unmounted = self._unmounted, []
            for run in waiting:
                self._timers.after(0, self._start, run)

    def _on_node(self, change: StoredChange, obj: Obj) -> None:
        agent = self._agent(change.new.name)
        if change.type == "DELETED":
            agent.present = False
            self._timers.after(ORPHAN_S, self._collect_orphans, agent)
            return
        appeared = not agent.present
        agent.describe(change.new, obj)
        if appeared:
            self._take_up(agent)

    def _on_pod(self, change: StoredChange, obj: Obj) -> None:
        pod = change.new
        agent = self._agent(pod.fields[_NODE])
        run = agent.pods.get(pod.uid)
        if change.type == "DELETED" or pod.fields[_PHASE] in _FINISHED:
            if run is not None:
                agent.release(run)
                del agent.pods[pod.uid]
            return
        if run is None:
            run = self._new_run(pod)
            self._timers.after(self._delays.start_s, self._start, run)
        if obj["metadata"].get("deletionTimestamp"):
            self._begin_stop(run, obj)
        elif run.admitted:
            self._hear(run, obj)

    def _hear(self, run: PodRun, obj: Obj) -> None:
        """Let the containers read the warning to save their work; they save it if they can."""
        annotations = obj["metadata"].get("annotations") or {}
        if run.told or lifecycle.CHECKPOINT_BY not in annotations:
            return
        run.told = True
        if run.save_s is not None and lifecycle.CHECKPOINTED_AT not in annotations:
            self._timers.after(run.save_s, self._saved, run)

    def _saved(self, run: PodRun) -> None:
        current = self._current(run)
        if current is not None and not run.stopping:
            _, pod = current
            at = f"{self._registry.clock():.3f}"
            pod["metadata"]["annotations"][lifecycle.CHECKPOINTED_AT] = at
            self._registry.set(PODS, run.key, pod)

    def _begin_stop(self, run: PodRun, obj: Obj) -> None:
        if not run.stopping:
            run.stopping = True
            grace = obj["metadata"].get("deletionGracePeriodSeconds", 0)
            stop_s = self._delays.stop_s if run.stop_s is None else run.stop_s
            self._timers.after(min(grace, stop_s), self._stop, run)

    # --- actions of a kubelet -----------------------------------------------------------------
    def _current(self, run: PodRun) -> tuple[NodeAgent, Obj] | None:
        """Return agent and pod of a run, if the node works and the pod still exists."""
        agent = self.nodes[run.node]
        pod = self._store.get("pods", run.key)
        alive = agent.pods.get(run.uid) is run and pod is not None and pod.uid == run.uid
        if not alive or pod is None or agent.down or not agent.present:
            return None
        return agent, pod.decode()

    def _start(self, run: PodRun) -> None:
        current = self._current(run)
        if current is None or run.admitted or run.stopping:
            return
        agent, pod = current
        ready = resource_claims.are_ready(self._store, pod)
        if not ready or not storage.can_be_mounted(self._store, pod, agent.view):
            self._unmounted.append(run)
            return
        now = self._registry.clock()
        rejection = self._admit(agent, run, pod)
        if rejection:
            lifecycle.set_rejected(pod, now, rejection.reason, rejection.message)
        else:
            agent.hold(run)
            lifecycle.set_running(pod, now, agent.address)
            self._plan_end(run, pod, now)
        self._registry.set(PODS, run.key, pod)

    def _admit(self, agent: NodeAgent, run: PodRun, pod: Obj) -> Rejection | None:
        try:
            lifecycle.run_time(pod)
            run.stop_s, run.save_s = lifecycle.habits(pod)
        except ValueError as error:
            return refused(str(error))
        run.requests = predicates.known_requests(pod, agent.view.allocatable)
        run.ports = predicates.host_ports(pod["spec"])
        annotations = pod["metadata"].get("annotations") or {}
        return predicates.admit(pod["spec"], run.requests, agent.view) or agent.devices.allocate(
            run.uid, run.requests, annotations
        )

    def _plan_end(self, run: PodRun, pod: Obj, started: float) -> None:
        run_s, exit_code = lifecycle.run_time(pod)
        if run_s is not None:
            self._timers.at(started + run_s, self._finish, run, exit_code)

    def _finish(self, run: PodRun, exit_code: int, reason: str = "") -> None:
        current = self._current(run)
        if current is not None and not run.stopping:
            _, pod = current
            lifecycle.set_finished(pod, self._registry.clock(), exit_code, reason)
            self._registry.set(PODS, run.key, pod)

    def _stop(self, run: PodRun) -> None:
        """End a deleted pod: write its last status, then remove the object."""
        current = self._current(run)
        if current is None:
            return
        _, pod = current
        if run.admitted:
            lifecycle.set_finished(pod, self._registry.clock(), 143)
            self._registry.set(PODS, run.key, pod)
        self._remove(run.key, run.uid)

    def _remove(self, key: str, uid: str) -> None:
        namespace, _, name = key.partition("/")
        pod = self._store.get("pods", key)
        if pod is not None and pod.uid == uid:
            self._registry.delete(PODS, namespace, name, DeleteOptions(uid=uid, grace_s=0))

    def _collect_orphans(self, agent: NodeAgent) -> None:
        if not agent.present:
            for run in list(agent.pods.values()):
                self._remove(run.key, run.uid)

    # --- node failure -------------------------------------------------------------------------
    def take_down(self, name: str) -> None:
        """Switch the machine off: its kubelet does nothing until `bring_up`."""
        self._agent(name).down = True

    def bring_up(self, name: str) -> None:
        """Boot the machine: pods that ran there have died; pods that were only bound start."""
        agent = self._agent(name)
        if not agent.down:
            return
        agent.down = False
        for run in list(agent.pods.values()):
            if run.stopping:
                self._stop(run)
            elif run.admitted:
                self._finish(run, 255, "ContainerStatusUnknown")
            else:
                self._timers.after(self._delays.start_s, self._start, run)
