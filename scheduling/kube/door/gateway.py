"""The door to one cluster: its lists, watches and effects, on an event loop in its own thread.

The scheduler's side is synchronous and never waits for the network: `drain` returns what was
observed since the last call, `submit` hands over effects, and `drain` also returns their outcomes.
"""

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from scheduling.kube.door.client import Client, NoReply
from scheduling.kube.door.executor import Executor
from scheduling.kube.door.loop import DoorLoop
from scheduling.kube.door.namespaces import ensure_namespace, namespace_facts
from scheduling.kube.door.network import NetworkWatch
from scheduling.kube.door.owners import Owners
from scheduling.kube.door.provisioning import (
    VERSION,
    KubeProvisioningRequest,
    not_served,
    provisioning_facts,
)
from scheduling.kube.door.services import service_facts
from scheduling.kube.door.settle import RIGHTS_WITHIN_S
from scheduling.kube.door.storage import (
    ClaimReader,
    capacity_facts,
    csi_driver_facts,
    csi_node_facts,
    storage_class_facts,
    volume_facts,
)
from scheduling.kube.door.watch import DEFAULT_TIMES, Reflector, WatchedKind, WatchTimes
from scheduling.kube.dra import reading
from scheduling.kube.dra.objects import (
    KubeClaimTemplate,
    KubeDeviceClass,
    KubeResourceClaim,
    KubeResourceSlice,
    KubeTaintRule,
)
from scheduling.kube.network.level_names import default_names
from scheduling.kube.seam import (
    BudgetGone,
    BudgetSeen,
    CallOutcome,
    Connected,
    DevicesGone,
    DevicesSeen,
    Disconnected,
    Effect,
    EffectDone,
    EmitEvent,
    KubeError,
    NamespaceGone,
    NamespaceSeen,
    NodeFacts,
    NodeGone,
    NodeSeen,
    Observation,
    PatchCondition,
    PodFacts,
    PodGone,
    PodSeen,
    ProvisioningFacts,
    ProvisioningGone,
    ProvisioningSeen,
    ProvisioningServed,
    Result,
    ServiceGone,
    ServiceSeen,
    StorageGone,
    StorageSeen,
)
from scheduling.kube.translate.disruption import budget_facts
from scheduling.kube.translate.labels import WrongRow
from scheduling.kube.translate.manifests import JOB, PROVISIONS_FOR
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import (
    KubeBudget,
    KubeCapacity,
    KubeClaim,
    KubeCsiDriver,
    KubeCsiNode,
    KubeNamespace,
    KubeNode,
    KubePod,
    KubeService,
    KubeStorageClass,
    KubeVolume,
)
from scheduling.kube.translate.pods import pod_translator

logger = logging.getLogger(__name__)


class _Identified(Protocol):
    @property
    def uid(self) -> str: ...


ByUid = TypeVar("ByUid", bound=_Identified)

STOP_WITHIN_S = 3.0
FORCE_WITHIN_S = 0.5  # for a thread to end after its event loop was stopped by force
UNHEARD_S = 60.0  # a server that is asked and sends nothing for this long counts as not answering
LOOK_S = 1.0  # how often a caller that waits for the lists checks whether they can still arrive
QUIET_S = 0.5  # how long quiet news, which nobody waits for, is collected
ASK_S = 10.0  # how often to ask the server whether it answers while its lists are silent


class Gateway:
    """The door to one cluster. Thread-safe; call `start` once, `stop` as often as you like.

    `access`: see `Cluster.access`. `namespace`: a namespace in which Kant creates pods; it is
    created if absent, before anything is listed. Others are created when first used. `label_map`:
    see `labels.py`. Raises KubeError if `label_map` cannot be used. All other trouble shows in
    `is_synced` and as Disconnected, and is retried.
    """

    def __init__(
        self,
        access: Mapping[str, Any],
        *,
        namespace: str,
        label_map: Mapping[str, Any],
        scheduler_name: str = "kant",
        times: WatchTimes = DEFAULT_TIMES,
    ) -> None:
        try:
            self._nodes = NodeTranslator(label_map)
            self._names = default_names(label_map)
        except WrongRow as wrong:
            text = f"label_map.{wrong.fact}: {wrong}"
            raise KubeError(text, "correct the cluster's label map") from None
        self._label_map = dict(label_map)
        self._network: NetworkWatch | None = None  # lives on the gateway's loop
        self._namespace = namespace
        self._scheduler_name = scheduler_name
        self._times = times
        self._client = Client(access)
        self._executor = Executor(self._client, self._effect_done)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="kube-gateway", daemon=True)
        self._started = threading.Event()
        self._started_at = 0.0
        self._stopping = False
        self._asks_for_nodes = asyncio.Event()  # lives on the gateway's loop
        # What drain() returns: the newest observation per object, ordered by last change.
        self._lock = threading.Lock()
        self._pending: dict[object, Observation] = {}
        self._rung = False
        self._late: asyncio.TimerHandle | None = None  # the latest time to ring for quiet news
        self._doorbell: Callable[[], None] | None = None
        self._health: dict[str, KubeError | None] = {}  # by watch; None = healthy
        self._link: Connected | Disconnected | None = None  # what was reported last
        self._settled = threading.Event()  # synced, or cannot sync without help
        self._error: KubeError | None = None
        self._refused_since = 0.0

    # --- the scheduler's side -------------------------------------------------------------------
    def start(self) -> None:
        """Start listing and watching; returns at once."""
        self._started_at = time.monotonic()
        self._thread.start()
        self._started.wait()

    def end(self) -> None:
        """Begin to end all traffic; returns at once. May be repeated.

        Effects that were submitted but not sent end as NOT_SENT.
        """
        self._stopping = True
        self._executor.settler.fence = -math.inf
        self._on_loop(lambda main: main.cancel())

    def stop(self, within: float = STOP_WITHIN_S) -> bool:
        """Call `end` and wait for it; False if the thread still runs after `within` seconds.

        It then sends no more effects, and `is_alive` tells when it has ended.
        """
        self.end()
        deadline = time.monotonic() + within
        self._join(within - min(2 * FORCE_WITHIN_S, within / 2))
        while self.is_alive and time.monotonic() < deadline:
            # Something in it ignores its cancellation.
            self._on_loop(lambda main: main.get_loop().stop())
            self._join(min(FORCE_WITHIN_S, max(deadline - time.monotonic(), 0.0)))
        return not self.is_alive

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def is_synced(self) -> bool:
        """Whether nodes and pods have been listed, however long that takes.

        Raises KubeError (the reason and a remedy) if Kant is refused or the API server does not
        answer.
        """
        if self._settled.is_set():
            if self._error is not None:
                raise self._error
            return True
        if not self.is_alive:
            raise self._error or KubeError("the gateway's thread has ended", "see the log")
        heard_at = max(self._client.heard_at, self._started_at)
        if time.monotonic() - heard_at > UNHEARD_S:
            raise self._error or KubeError(
                f"the API server has sent nothing for {UNHEARD_S:.0f} s",
                "check that it runs, and the network",
            )
        return False

    def wait_synced(self, timeout: float = math.inf) -> None:
        """Wait until nodes and pods are listed; `timeout` in seconds, by default no limit.

        Raises KubeError (the reason and a remedy) as `is_synced` does, and after the time-out.
        """
        deadline = time.monotonic() + timeout
        while not self.is_synced():
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._error or KubeError(
                    f"the cluster's nodes and pods were not listed within {timeout:.0f} s",
                    "check the API server's load, or wait longer",
                )
            self._settled.wait(min(left, LOOK_S))

    def wait_settled(self, timeout: float) -> None:
        """Wait until `is_synced` has a final answer, at most this many seconds."""
        self._settled.wait(timeout)

    @property
    def trouble(self) -> str:
        """The last error of a list or watch that has not recovered; "" = none."""
        return str(self._error or "")

    @property
    def remarks(self) -> str:
        """What operators should know of the cluster although all is well; "" = nothing."""
        return self._network.remarks if self._network is not None else ""

    @property
    def waiting(self) -> int:
        """The number of observations that wait to be drained."""
        return len(self._pending)

    def drain(self) -> list[Observation]:
        """Return everything seen since the last call: the newest per object, oldest news first."""
        with self._lock:
            pending, self._pending = self._pending, {}
            self._rung = False
        return list(pending.values())

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call `callback`, in the gateway's thread, when there is news to drain.

        It is called once until the next drain, and QUIET_S late if all news only confirms that
        requests were carried out. The callback must do no more than wake somebody up.
        """
        self._doorbell = callback

    def submit(self, effects: Sequence[Effect]) -> None:
        """Hand over effects. Those on one pod are carried out in order, others in parallel."""
        if self._loop is None:
            raise RuntimeError("submit() before start()")
        self._loop.call_soon_threadsafe(self._executor.submit, list(effects))

    def follow_provisioning(self) -> None:
        """Follow ProvisioningRequests from now until the gateway stops.

        Trouble with them is reported by ProvisioningServed and does not count as the gateway's.
        """
        self._on_loop(lambda _: self._asks_for_nodes.set())

    def fence(self, deadline: float) -> None:
        """Send no effects after `deadline` (time.monotonic()); what comes later ends as NOT_SENT.

        Each renewal of the scheduler's lease moves the deadline on.
        """
        self._executor.settler.fence = -math.inf if self._stopping else deadline

    def _on_loop(self, act: Callable[[asyncio.Task[None]], object]) -> None:
        if self._loop is not None and self._main is not None and self.is_alive:
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(act, self._main)

    def _join(self, within: float) -> None:
        if self.is_alive:
            self._thread.join(within)

    # --- the loop's side ------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=DoorLoop) as runner:
                runner.run(self._serve())
        except asyncio.CancelledError:
            logger.debug("gateway stopped")
        except Exception as error:
            if not self._stopping:
                logger.exception("the gateway ended")
                self._report("gateway", KubeError(f"the gateway ended ({error!r})", "see the log"))
        finally:
            self._started.set()
            self._ring()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._started.set()
        try:
            await self._prepare()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask_while_silent())
                group.create_task(self._executor.run())
                owners = Owners(
                    self._client,
                    self._times,
                    self._pod_seen,
                    group.create_task,
                    self._names,
                )
                for reflector in self._reflectors(owners):
                    group.create_task(reflector.run())
                await self._asks_for_nodes.wait()
                group.create_task(self._provisioning_reflector().run())
        finally:
            self._executor.abandon()
            await self._client.close()

    async def _prepare(self) -> None:
        """Read the access and create the namespace; retry until both work."""
        pause = self._times.first
        while True:
            try:
                await self._client.open()
                await ensure_namespace(self._client, self._namespace)
                self._health.pop("access", None)
                return
            except KubeError as error:
                self._report("access", error)
            except NoReply as none:
                self._report("access", KubeError(none.reason, "Kant keeps trying"))
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, self._times.last)

    async def _ask_while_silent(self) -> None:
        """Ask for small answers while the lists are silent.

        A server may take minutes to send the first byte of a list; small answers show whether it is
        alive.
        """
        while not self._settled.is_set():
            await asyncio.sleep(ASK_S)
            if time.monotonic() - self._client.heard_at > ASK_S:
                # Whatever keeps it from answering, the lists will report it.
                with suppress(KubeError, NoReply):
                    await self._client.call("GET", "/version")

    def _reflectors(self, owners: Owners) -> list[Reflector[Any]]:
        owned = f"spec.schedulerName={self._scheduler_name}"
        # Pods of other schedulers matter only while they hold something on a node.
        others = (
            f"spec.schedulerName!={self._scheduler_name},spec.nodeName!=,"
            "status.phase!=Succeeded,status.phase!=Failed"
        )
        kinds = [
            WatchedKind("nodes", "/api/v1/nodes", "", KubeNode),
            WatchedKind("own pods", "/api/v1/pods", owned, KubePod),
            WatchedKind("other pods", "/api/v1/pods", others, KubePod),
        ]
        budgets = WatchedKind(
            "disruption budgets", "/apis/policy/v1/poddisruptionbudgets", "", KubeBudget
        )
        # Only Services of jobs are read, whoever created them.
        services = WatchedKind("services", "/api/v1/services", "", KubeService, JOB)
        spaces = WatchedKind("namespaces", "/api/v1/namespaces", "", KubeNamespace)
        claims = WatchedKind("volume claims", "/api/v1/persistentvolumeclaims", "", KubeClaim)
        volumes = WatchedKind("volumes", "/api/v1/persistentvolumes", "", KubeVolume)
        of_storage: dict[WatchedKind, Callable[[Any], Any]] = {
            claims: ClaimReader(),
            volumes: volume_facts,
            _storage("storage classes", KubeStorageClass): storage_class_facts,
            _storage("CSI nodes", KubeCsiNode): csi_node_facts,
            _storage("CSI drivers", KubeCsiDriver): csi_driver_facts,
            _storage("CSI storage capacities", KubeCapacity): capacity_facts,
        }
        of_devices: dict[WatchedKind, Callable[[Any], Any]] = {
            _devices("resource slices", KubeResourceSlice): reading.slice_facts,
            _devices("device classes", KubeDeviceClass): reading.class_facts,
            _taint_rules(): reading.taint_rule_facts,
            _devices("resource claims", KubeResourceClaim): reading.claim_facts,
            _devices("resource claim templates", KubeClaimTemplate): reading.template_facts,
        }
        nodes = self._node_reflector(kinds[0])
        self._network = NetworkWatch(
            *(self._client, self._times, self._label_map, self._nodes),
            nodes=lambda: nodes.known,
            moved=lambda facts: self._put(("node", facts.node.name), NodeSeen(facts)),
            named=owners.levels_are,
            report=self._report,
        )
        all_kinds = (*kinds, budgets, services, spaces, *of_storage, *of_devices)
        plurals = (*(kind.plural for kind in all_kinds), *self._network.kinds)
        self._health = dict.fromkeys(plurals, _NOT_YET)
        return [
            nodes,
            *self._network.reflectors,
            *(self._pod_reflector(kind, owners) for kind in kinds[1:]),
            self._by_uid(budgets, budget_facts, "budget", BudgetSeen, BudgetGone),
            self._by_uid(services, service_facts, "service", ServiceSeen, ServiceGone),
            self._by_uid(spaces, namespace_facts, "namespace", NamespaceSeen, NamespaceGone),
            *(
                self._by_uid(kind, facts_of, "storage", StorageSeen, StorageGone)
                for kind, facts_of in of_storage.items()
            ),
            *(
                self._by_uid(kind, facts_of, "devices", DevicesSeen, DevicesGone)
                for kind, facts_of in of_devices.items()
            ),
        ]

    def _node_reflector(self, kind: WatchedKind) -> Reflector[NodeFacts]:
        def seen(facts: NodeFacts) -> None:
            self._put(("node", facts.node.name), NodeSeen(facts))
            self._node_news()

        def gone(facts: NodeFacts) -> None:
            self._node_news()
            self._nodes.forget(facts.node.name)
            self._put(("node", facts.node.name), NodeGone(facts.node.name))

        return Reflector(
            self._client,
            kind,
            translate=self._nodes.translate,
            identity=lambda facts: facts.node.name,
            seen=seen,
            gone=gone,
            health=lambda error: self._report(kind.plural, error),
            times=self._times,
        )

    def _node_news(self) -> None:
        if self._network is not None:
            self._network.node_news()

    def _pod_reflector(self, kind: WatchedKind, owners: Owners) -> Reflector[PodFacts]:
        def gone(facts: PodFacts) -> None:
            owners.gone(facts.uid)
            self._put(("pod", facts.uid), PodGone(facts))

        return Reflector(
            self._client,
            kind,
            translate=pod_translator(self._scheduler_name),
            identity=lambda facts: facts.uid,
            seen=owners.seen,
            gone=gone,
            health=lambda error: self._report(kind.plural, error),
            times=self._times,
        )

    def _provisioning_reflector(self) -> Reflector[ProvisioningFacts]:
        def served(error: KubeError | None) -> None:
            trouble = not_served(error) if error is not None else ""
            if error is None or trouble:
                self._put("provisioning", ProvisioningServed(trouble))

        path = f"/apis/{VERSION}/provisioningrequests"
        return Reflector(
            self._client,
            WatchedKind("provisioning requests", path, "", KubeProvisioningRequest, PROVISIONS_FOR),
            translate=provisioning_facts,
            identity=lambda facts: facts.uid,
            seen=lambda facts: self._put(("provisioning", facts.uid), ProvisioningSeen(facts)),
            gone=lambda facts: self._put(("provisioning", facts.uid), ProvisioningGone(facts)),
            health=served,
            times=self._times,
        )

    def _by_uid(
        self,
        kind: WatchedKind,
        translate: Callable[[Any], ByUid],
        name: str,
        seen: Callable[[ByUid], Observation],
        gone: Callable[[ByUid], Observation],
    ) -> Reflector[ByUid]:
        """Follow a kind whose objects are known by uid; `name` keeps its news apart from others."""
        return Reflector(
            self._client,
            kind,
            translate=translate,
            identity=lambda facts: facts.uid,
            seen=lambda facts: self._put((name, facts.uid), seen(facts)),
            gone=lambda facts: self._put((name, facts.uid), gone(facts)),
            health=lambda error: self._report(kind.plural, error),
            times=self._times,
        )

    def _effect_done(self, effect: Effect, outcome: CallOutcome) -> None:
        done = Result.DONE if isinstance(effect, EmitEvent | PatchCondition) else Result.BOUND
        is_quiet = outcome.result is done
        self._put(object(), EffectDone(effect, outcome, time.time()), is_quiet=is_quiet)

    def _pod_seen(self, facts: PodFacts) -> None:
        """Report a pod; quietly if it only confirms a binding whose outcome reports the same."""
        as_asked = bool(facts.node) and facts.phase == "Pending" and not facts.deleting
        is_quiet = as_asked and self._executor.binds(facts)
        self._put(("pod", facts.uid), PodSeen(facts), is_quiet=is_quiet)

    def _report(self, watch: str, error: KubeError | None) -> None:
        """Record that a watch is healthy (None) or failing; tell if the overall health changes."""
        self._health[watch] = error
        if error is not None:
            self._error = error
            if error.code in (401, 403):
                # Waiting does not repair missing rights, except while a starting API server loads
                # them.
                self._refused_since = self._refused_since or time.monotonic()
                if time.monotonic() - self._refused_since > RIGHTS_WITHIN_S:
                    self._settle()
            self._tell(Disconnected(str(error)))
        elif not any(self._health.values()):
            if self._network is not None and not self._settled.is_set():
                self._network.look()  # network levels have to count before anything is decided
            self._error = None
            self._refused_since = 0.0
            self._settle()
            self._tell(Connected())

    def _settle(self) -> None:
        if not self._settled.is_set():
            self._settled.set()
            self._ring()  # what was listed before has already rung

    def _tell(self, link: Connected | Disconnected) -> None:
        if link != self._link:
            self._link = link
            self._put("link", link)

    def _put(self, key: object, news: Observation, *, is_quiet: bool = False) -> None:
        with self._lock:
            self._pending.pop(key, None)
            self._pending[key] = news
            ring = not (self._rung or is_quiet)
            self._rung |= ring
        if ring:
            self._ring()
        elif is_quiet and self._late is None and self._loop is not None:
            self._late = self._loop.call_later(QUIET_S, self._ring_late)

    def _ring_late(self) -> None:
        self._late = None
        with self._lock:
            ring = bool(self._pending) and not self._rung
            self._rung |= ring
        if ring:
            self._ring()

    def _ring(self) -> None:
        if self._doorbell is not None:
            self._doorbell()


def _storage(plural: str, kind: type) -> WatchedKind:
    path = "/apis/storage.k8s.io/v1/" + plural.replace(" ", "").lower()
    return WatchedKind(plural, path, "", kind)


def _devices(plural: str, kind: type) -> WatchedKind:
    """A kind of resource.k8s.io, which Kubernetes before 1.34 does not serve."""
    path = "/apis/resource.k8s.io/v1/" + plural.replace(" ", "")
    return WatchedKind(plural, path, "", kind, optional=True)


def _taint_rules() -> WatchedKind:
    """Device taint rules; Kubernetes serves them only if this API version is enabled."""
    path = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    return WatchedKind("device taint rules", path, "", KubeTaintRule, optional=True)


_NOT_YET = KubeError("nodes and pods are still being listed", "wait")
