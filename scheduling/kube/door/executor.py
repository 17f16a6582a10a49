"""Carries out effects: many pods in parallel, one effect at a time per pod, an outcome for each."""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from scheduling.kube.door.client import Client, NoReply
from scheduling.kube.door.events import EventRecorder
from scheduling.kube.door.groups import GroupRequests
from scheduling.kube.door.namespaces import ensure_namespace
from scheduling.kube.door.pods.bind import bind
from scheduling.kube.door.pods.create import create
from scheduling.kube.door.pods.evict import Removals
from scheduling.kube.door.pods.patch import annotate, condition
from scheduling.kube.door.provisioning import ProvisioningCalls
from scheduling.kube.door.requests import Request
from scheduling.kube.door.services import ServiceRequests
from scheduling.kube.door.settle import Settler
from scheduling.kube.door.storage import ClaimRequests
from scheduling.kube.dra.requests import DeviceClaimRequests
from scheduling.kube.seam import (
    AllocateClaim,
    Annotate,
    Bind,
    CallOutcome,
    CreateAndBind,
    CreatePod,
    CreateProvisioning,
    CreateService,
    CreateToBind,
    DeletePod,
    DeleteProvisioning,
    DeleteService,
    Effect,
    EmitEvent,
    EvictPod,
    KubeError,
    PatchCondition,
    PodFacts,
    ReleaseClaim,
    Result,
    SelectNode,
    TellGroup,
)

logger = logging.getLogger(__name__)

IN_FLIGHT = 32
# Conditions and events only inform; they must never delay a binding.
IN_FLIGHT_INFORMING = 4
BOUND_REMEMBERED = 4096
SUPERSEDED = CallOutcome(Result.NOT_SENT, message="a newer one says something else")

Lane = asyncio.Queue[Effect]
Slot = tuple[bool, str, str]


class Executor:
    """Carries out effects and reports the outcome of each to `done` exactly once.

    Lives on one event loop.
    """

    def __init__(self, client: Client, done: Callable[[Effect, CallOutcome], None]) -> None:
        self.settler = Settler(client)
        self._client = client
        self._done = done
        self._removals = Removals(client, self.settler.settled)
        self._services = ServiceRequests(client)
        self._claims = ClaimRequests(client)
        self._devices = DeviceClaimRequests(self.settler.settled)
        self._provisioning = ProvisioningCalls(client, self.settler.settled, self._created)
        self._groups = GroupRequests(client)
        self._group_refusals: set[int] = set()  # codes of refusals that were logged
        self._events = EventRecorder()
        self._acting: Lane = asyncio.Queue()
        self._informing: Lane = asyncio.Queue()
        # Pods with an effect under way, and the effects queued behind it.
        self._busy: dict[Slot, deque[Effect]] = {}
        self._bound: OrderedDict[str, None] = OrderedDict()  # uids of recently bound pods

    def submit(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            slot = _slot(effect)
            waiting = self._busy.get(slot)
            if waiting is None:
                self._busy[slot] = deque()
                self._lane(effect).put_nowait(effect)
            else:
                if waiting and _replaces(effect, waiting[-1]):
                    self._done(waiting.pop(), SUPERSEDED)
                waiting.append(effect)

    async def run(self) -> None:
        """Work until cancelled."""
        workers = [(self._acting, IN_FLIGHT), (self._informing, IN_FLIGHT_INFORMING)]
        async with asyncio.TaskGroup() as group:
            for lane, count in workers:
                for _ in range(count):
                    group.create_task(self._work(lane))

    async def _work(self, lane: Lane) -> None:
        while True:
            effect = await lane.get()
            outcome = CallOutcome(
                Result.FAILED, message="the gateway stopped while it was under way"
            )
            try:
                outcome = await self._perform(effect)
            except Exception as error:
                # A defect must not cost all other pods a worker.
                logger.exception("effect %s of %s failed", type(effect).__name__, effect.name)
                outcome = CallOutcome(Result.FAILED, message=f"{type(error).__name__}: {error}")
            finally:
                self._finish(effect, outcome)

    def _finish(self, effect: Effect, outcome: CallOutcome) -> None:
        slot = _slot(effect)
        waiting = self._busy[slot]
        if waiting:
            following = waiting.popleft()
            self._lane(following).put_nowait(following)
        else:
            del self._busy[slot]
        self._done(effect, outcome)

    def abandon(self) -> None:
        """End all effects still queued as NOT_SENT."""
        not_sent = CallOutcome(Result.NOT_SENT, message="the gateway stopped before it was sent")
        for lane in (self._acting, self._informing):
            while not lane.empty():
                self._done(lane.get_nowait(), not_sent)
        for waiting in self._busy.values():
            for effect in waiting:
                self._done(effect, not_sent)
        self._busy.clear()

    def _lane(self, effect: Effect) -> Lane:
        return self._informing if _informs(effect) else self._acting

    # --- one effect -----------------------------------------------------------------------------
    async def _perform(self, effect: Effect) -> CallOutcome:
        match effect:
            case CreateAndBind():
                return await self._create_and_bind(effect)
            case CreatePod() | CreateToBind():
                return await self._created(effect.namespace, create(self._client, effect))
            case Bind():
                return await self._bind(effect)
            case DeletePod():
                return await self._removals.delete(effect)
            case EvictPod():
                return await self._removals.evict(effect)
            case Annotate():
                return await self.settler.settled(annotate(self._client, effect))
            case CreateService():
                return await self._created(effect.namespace, self._services.create(effect))
            case DeleteService():
                return await self.settler.settled(self._services.delete(effect))
            case CreateProvisioning():
                return await self._provisioning.create(effect)
            case DeleteProvisioning():
                return await self._provisioning.delete(effect)
            case SelectNode():
                return await self.settler.settled(self._claims.select_node(effect))
            case AllocateClaim():
                return await self._devices.allocate(effect)
            case ReleaseClaim():
                return await self._devices.release(effect)
            case PatchCondition() if self._is_outdated(effect):
                return CallOutcome(
                    Result.NOT_SENT, effect.uid, message="the pod is bound meanwhile"
                )
            case PatchCondition():
                return await self.settler.settled(condition(self._client, effect))
            case TellGroup():
                return await self._tell_group(effect)
            case EmitEvent():
                request = self._events.request(effect)
                return (
                    request
                    if isinstance(request, CallOutcome)
                    else await self.settler.settled(request)
                )

    async def _bind(self, effect: Bind) -> CallOutcome:
        outcome = await self.settler.settled(bind(self._client, effect))
        if outcome.result is Result.BOUND:
            self._bound[effect.uid] = None
            if len(self._bound) > BOUND_REMEMBERED:
                self._bound.popitem(last=False)
        return outcome

    async def _tell_group(self, effect: TellGroup) -> CallOutcome:
        try:
            request = await self._groups.tell(effect)
        except KubeError as error:
            return CallOutcome(Result.REFUSED, code=error.code, message=str(error))
        except NoReply as none:
            return CallOutcome(Result.FAILED, message=none.reason)
        outcome = await self.settler.settled(request)
        if outcome.result is Result.REFUSED and outcome.code not in self._group_refusals:
            self._group_refusals.add(outcome.code)
            logger.warning("PodGroups are not told how they fare: %s", outcome.message)
        return outcome

    def _is_outdated(self, effect: PatchCondition) -> bool:
        """Whether the condition says why a pod waits, but the pod is by now (being) bound.

        The API server has then already set the condition that it is scheduled.
        """
        waits = effect.type == "PodScheduled" and effect.status == "False"
        return waits and self.binds(effect)

    def binds(self, pod: PodFacts | PatchCondition) -> bool:
        """Whether an effect on the pod is under way, or the pod was recently bound here."""
        acts = (False, pod.namespace, pod.name) in self._busy
        return acts or pod.uid in self._bound

    async def _create_and_bind(self, effect: CreateAndBind) -> CallOutcome:
        created = await self._created(effect.namespace, create(self._client, effect))
        if created.result is not Result.DONE:
            return created
        bound = await self.settler.settled(
            bind(
                self._client,
                Bind(
                    effect.key,
                    effect.namespace,
                    effect.name,
                    created.uid,
                    effect.node,
                    effect.annotations,
                ),
            )
        )
        if bound.uid:
            return bound
        return CallOutcome(
            bound.result, created.uid, bound.node, bound.code, bound.message, bound.retry_after
        )

    async def _created(self, namespace: str, request: Request) -> CallOutcome:
        """Send a creation; if its namespace does not exist, create that first and try again.

        A namespace is missing when it is used for the first time or somebody deleted it.
        """
        outcome = await self.settler.settled(request)
        if outcome.result is not Result.REFUSED or outcome.code != 404:
            return outcome
        try:
            await ensure_namespace(self._client, namespace)
        except KubeError as error:
            return CallOutcome(Result.REFUSED, code=error.code, message=str(error))
        except NoReply as none:
            return CallOutcome(Result.FAILED, message=none.reason)
        return await self.settler.settled(request)


def _replaces(effect: Effect, earlier: Effect) -> bool:
    """Whether both set the same condition of one pod or group: then only the later one matters."""
    if isinstance(effect, TellGroup) and isinstance(earlier, TellGroup):
        return effect.api_version == earlier.api_version
    if not (isinstance(effect, PatchCondition) and isinstance(earlier, PatchCondition)):
        return False
    return (effect.uid, effect.type) == (earlier.uid, earlier.type)


def _informs(effect: Effect) -> bool:
    return isinstance(effect, PatchCondition | EmitEvent | TellGroup)


def _slot(effect: Effect) -> Slot:
    kind = ""
    if isinstance(effect, TellGroup):
        kind = "group/"
    elif isinstance(effect, AllocateClaim | ReleaseClaim):
        kind = "claim/"
    elif isinstance(effect, CreateProvisioning | DeleteProvisioning):
        kind = "provisioning/"
    return (_informs(effect), effect.namespace, f"{kind}{effect.name}")
