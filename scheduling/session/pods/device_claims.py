"""Device claims of pods: what they mean for a job, and when they are written.

See docs/decisions/0077-claims-for-devices.md. Once a pod has its place, its claims get devices and
are reserved for it. No pod of a gang is bound before all claims of all its pods are written and,
where drivers report that, the devices are ready. Devices of a pod that gave its place back are
released.

Kant makes a claim where devices back the extended resources that a pod asks for, and it makes the
claims that a job asks for itself. A pod that Kant makes is then created before its claims.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import msgspec

from scheduling.engine.cluster.affinity import matches
from scheduling.engine.deltas import OtherPodChanged, OtherPodRemoved, PodHoldsMore
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.types import MILLI, FreeableDevices, Node, NodeTerm, PodRules, PodSetSpec
from scheduling.engine.verdict import Reason
from scheduling.kube.dra.extended import NOTHING, claim_name, extended_asks, is_by_name
from scheduling.kube.dra.facts import (
    DeviceClaimFacts,
    ExtendedAsks,
    ExtendedRequest,
    PodClaim,
)
from scheduling.kube.seam import (
    AllocateClaim,
    CallOutcome,
    CreateAndBind,
    CreateToBind,
    DeviceNeed,
    PatchCondition,
    PodFacts,
    ReleaseClaim,
    Result,
)
from scheduling.kube.translate.objects import PodSpec, encode
from scheduling.models.jobs import PlacementState as P
from scheduling.session.devices.books import (
    ChosenDevices,
    ClaimName,
    DeviceBooks,
    PodNames,
    but_by_name,
    by_name,
)
from scheduling.session.devices.demand import (
    ANY_GPU,
    NOT_HONOURED,
    NOT_THERE,
    PREFIX,
    DeviceDemand,
    DeviceRefusal,
    is_gpu,
)
from scheduling.session.devices.freeing import Freeing
from scheduling.session.devices.own import own_claims
from scheduling.session.devices.readiness import failure, is_conditional, not_ready
from scheduling.session.memory.live import OVER, EffectKey, LiveJob, LivePod, PodKey
from scheduling.session.memory.storage import ClaimHold
from scheduling.session.pods.plain import PlainPods
from scheduling.session.pods.pod import create_and_bind, identity
from scheduling.session.pods.requeue import NO_ANSWER, Requeueing
from scheduling.session.pods.scope import SharedScope

NOT_ALLOCATED, NOT_READY = "ClaimNotAllocated", "DevicesNotReady"
# In place of a claim's uid: the pod does not exist yet, or pods that are gone still hold devices.
THE_POD, OF_THE_GONE = "", "of the gone"
EffectPod = tuple[str, int, int]  # job, pod set, ordinal
Writing = tuple[str, str]  # uids of a pod and a claim


@dataclass(slots=True)
class _Coming:
    """A pod that is bound once its `claims`, and those of its gang, are written.

    All devices of `conditional` claims must be ready, too. `whole`: the pod as Kant makes it; None
    = somebody else makes it.
    """

    pod: LivePod
    node: Node
    whole: CreateAndBind | None = None
    claims: set[str] = field(default_factory=set)
    demand: DeviceDemand = field(default_factory=DeviceDemand)
    chosen: list[ChosenDevices] = field(default_factory=list)
    conditional: set[ClaimName] = field(default_factory=set)
    told: str = ""


class DevicePart:
    """What the claims of a pod set's pods add to it, and why it cannot be placed now."""

    def __init__(self, pod_set: PodSetSpec) -> None:
        self.pod_set = pod_set
        self.gpus, self.gpu_milli = pod_set.gpus, pod_set.gpu_milli
        self.models = pod_set.gpu_models
        self.devices: tuple[FreeableDevices, ...] = ()
        self.amounts: Mapping[str, int] = {}
        self.terms: list[tuple[NodeTerm, ...]] = []
        self.notes: list[str] = []
        self.hold: ClaimHold | None = None

    def add_nodes(
        self,
        now: Collection[str],
        freeable: tuple[FreeableDevices, ...],
        to_come: Collection[str],
    ) -> None:
        """Limit the pod set to nodes with devices for all it asks for.

        These are the nodes of `now`, those that are `freeable`, and those that may be `to_come`.
        """
        self.devices = freeable
        there = [of.node for of in freeable] if freeable else now
        self.terms.append((by_name([*there, *to_come]),))
        self.notes.append(f"Nodes with devices for all of its resource claims: {len(now)}.")

    def changes(self, pod_set: PodSetSpec) -> dict[str, Any]:
        """Return the fields of the pod set that change."""
        found: dict[str, Any] = {}
        if self.amounts:
            found["extended"] = {**pod_set.extended, **self.amounts}
        if self.devices:
            rules = pod_set.rules if pod_set.rules is not None else PodRules()
            found["rules"] = rules._replace(devices=self.devices)
        if self.models != pod_set.gpu_models:
            found["gpu_models"] = self.models
        if self.gpu_milli != pod_set.gpu_milli:
            found["gpu_milli"] = self.gpu_milli
        if self.gpus != pod_set.gpus:
            found["gpus"] = self.gpus
            if not self.gpus:
                found["gpu_models"] = ()
        return found


class _More(NamedTuple):
    """What the pod of an attempt holds beyond its request."""

    attempt: int
    extended: Mapping[str, int]


class DeviceClaims:
    """Device claims of the jobs of a scope. `books`: what is known of devices."""

    def __init__(self, scope: SharedScope, requeueing: Requeueing, plain: PlainPods) -> None:
        self.scope = scope
        self.out = scope.out
        self.requeueing = requeueing
        self.plain = plain
        plain.as_offered = self.as_offered
        self.foreign = requeueing.leave.foreign
        self.books = DeviceBooks()
        self._freeing = Freeing(self.books)
        self._claims_for_devices: dict[str, tuple[PodClaim, ...]] = {}  # by uid of the plain pod
        self._extended: dict[str, ExtendedAsks] = {}  # by uid of the waiting plain pod
        self._made: dict[str, EffectKey] = {}  # by uid of pods created before they are bound
        self._coming: dict[str, dict[PodKey, _Coming]] = {}  # by job
        self._writing: set[Writing] = set()
        self._releasing: set[Writing] = set()
        self._gone: set[str] = set()  # uids of pods whose claims may still hold devices
        self._unplaceable: list[tuple[str, LivePod, str]] = []  # job, pod and reason
        self._told_held: dict[str, OtherPodChanged] = {}
        self._told_more: dict[tuple[str, PodKey], _More] = {}
        self._as_of: object = None

    # --- observations -----------------------------------------------------------------------------
    def names(self, facts: PodFacts) -> bool:
        """Note the claims that a pod names; return whether they changed."""
        if facts.plain is not None and facts.plain.extended.requests:
            self._extended[facts.uid] = facts.plain.extended
        claims = facts.extended_claim or facts.device_claims
        if claims and (who := identity(facts.labels)) is not None:
            self._made[facts.uid] = (who[0], who[1], *who[2])
            return False
        if not facts.device_claims:
            return False
        before = self._claims_for_devices.get(facts.uid)
        self._claims_for_devices[facts.uid] = facts.device_claims
        return before != facts.device_claims

    def names_none(self, uid: str) -> None:
        named = self._claims_for_devices.pop(uid, None)
        self._extended.pop(uid, None)
        if self._made.pop(uid, None) or named or uid in self.books.made:
            self._gone.add(uid)

    def as_offered(self, facts: PodFacts) -> PodFacts:
        """Return the pod with what its claims ask for."""
        plain = facts.plain
        if plain is None or not self._asks_for_devices(facts.uid):
            return facts
        try:
            demand = self._demand_of(facts.namespace, facts.uid)
            need = DeviceNeed(demand.gpus, demand.models, demand.shape, demand.gpu_milli)
        except DeviceRefusal as refusal:
            need = DeviceNeed(wait=refusal.unclear)
        plain = msgspec.structs.replace(plain, devices=need)
        return msgspec.structs.replace(facts, plain=plain)

    def change(self) -> bool:
        """Take in changes of devices and claims; return whether jobs have to be judged again."""
        if self.books.version == (0, 0) and not self._claims_for_devices and self._as_of is None:
            return False  # no class and no template: nothing was ever observed
        self._release_what_is_left()
        self.tell_held()
        if self._gone:
            held = {uid for claim in self.books.claims.values() for uid in claim.reserved_for}
            self._gone &= held
        as_of = self.books.version, len(self._releasing)
        if as_of == self._as_of:
            return False
        self._as_of = as_of
        self.plain.look_again({**self._claims_for_devices, **self._extended})
        self.books.changed.clear()
        return True

    def _asks_for_devices(self, uid: str) -> bool:
        """Whether the plain pod names claims, or resources that devices may back."""
        meant = self.books.demands.are_meant(self._extended.get(uid, NOTHING))
        return meant or uid in self._claims_for_devices

    def _demand_of(self, namespace: str, uid: str) -> DeviceDemand:
        """Return what a plain pod asks for. Raises DeviceRefusal."""
        named = self._claims_for_devices.get(uid, ())
        return self.books.demand(namespace, uid, named, self._extended.get(uid, NOTHING))

    # --- waiting jobs -----------------------------------------------------------------------------
    def are_claimed_by(self, job: LiveJob) -> bool:
        if self.books.inventory.shared_by_driver and any(s.is_share for s in job.asked.pod_sets):
            return True
        if job.plain:
            return any(self._asks_for_devices(ref.uid) for ref in job.plain.values())
        demands = self.books.demands
        return any(content.settings.device_claims for content in job.contents) or (
            bool(self.books)
            and any(demands.are_meant(_asks_of_made(each)) for each in job.asked.pod_sets)
        )

    def concern(self, job: LiveJob) -> bool:
        """Whether devices are claimed for the job, or the engine counts devices for it."""
        return self.are_claimed_by(job) or any(map(counts_devices, job.request.pod_sets))

    def part(self, job: LiveJob, index: int) -> DevicePart:
        """Return what claims add to a pod set of a job that waits or whose pods Kant makes."""
        if not job.plain:
            return self._part_of_made(job, index)
        part, first = DevicePart(job.asked.pod_sets[index]), True
        if not any(self._asks_for_devices(ref.uid) for ref in job.plain.values()):
            self._keep_to_plugins(part)
        for key, ref in job.plain.items():
            if key[0] != index or not self._asks_for_devices(ref.uid):
                continue
            if any(pod == ref.uid for pod, _ in self._releasing):
                part.hold = _hold(f"Resource claims of pod {ref.name} are being released", "wait")
                return part
            try:
                demand = self._demand_of(job.namespace, ref.uid)
                if first:
                    self._find_nodes(part, job, index, demand)
            except DeviceRefusal as refusal:
                part.hold = _refused(refusal, "see the resource claims of the pod")
                return part
            for terms in demand.pinned:
                part.terms.append(terms)
                part.notes.append("Its resource claims have devices that not every node can use.")
            if first:
                facts = self.plain.unbound.get(ref.uid)
                part.amounts = demand.amounts
                if facts is None or not facts.gpu_milli:
                    part.gpus = (facts.gpus if facts is not None else 0) + demand.gpus
                    part.gpu_milli = demand.gpu_milli
            first = False
        return part

    def _find_nodes(self, part: DevicePart, job: LiveJob, index: int, demand: DeviceDemand) -> None:
        """Limit the pod set to nodes that can serve the demand. Raises DeviceRefusal."""
        found = self.books.nodes_for(demand)
        if found is None:
            return
        now = frozenset(name for term in found for each in term for name in each.values)
        count = job.asked.pod_sets[index].count
        preempts = bool(self.scope.policy.preemption) and job.request.preempts

        def pods_of(claim: str) -> tuple[EffectPod, ...]:
            return self._freeable(claim, job.id) if preempts else ()

        freeable = self._freeing.nodes_of(demand, now, count, pods_of)
        part.add_nodes(now, freeable, self.books.nodes_that_may_come(demand))

    def _freeable(self, claim: str, but: str) -> tuple[EffectPod, ...]:
        """Return the pods that hold the claim, if all of them can be preempted.

        They must be pods of preemptible jobs of this scope other than `but`; otherwise ().
        """
        facts = self.books.claim_of(claim)
        places = [self._pod(uid) for uid in facts.reserved_for] if facts is not None else []
        if (assumed := self.books.assumed.get(claim)) is not None:
            places.append(self._place(assumed.of))
        found = []
        for job, pod in places:
            if job is None or pod is None or job.id == but or not job.request.preemptible:
                return ()
            found.append((job.id, *pod.key))
        return tuple(sorted(set(found)))

    def _part_of_made(self, job: LiveJob, index: int) -> DevicePart:
        """Return what claims add to a pod set of pods that Kant makes."""
        part = DevicePart(job.asked.pod_sets[index])
        if job.state not in WAITING:
            # It keeps what it was placed with.
            placed = job.request.pod_sets[index]
            amounts = placed.extended.items()
            part.amounts = {n: amount for n, amount in amounts if n.startswith(PREFIX)}
            part.models = placed.gpu_models
            return part
        namespace = self.scope.namespaces.get(job.request.tenant, "")
        try:
            demand, by_claims = self._demand_of_made(
                job, index, PodNames(namespace, "", ""), _asks_of_made(part.pod_set)
            )
            self._find_nodes(part, job, index, demand)
        except DeviceRefusal as refusal:
            self._note_templates(job, index, by_claims=self._may_be_gpus(job, index))
            if refusal.unclear.reason == NOT_THERE and self._keep_to_come(part):
                part.notes.append(refusal.unclear.text)
            else:
                part.hold = _refused(refusal, "see its device claims and the device class")
            return part
        self._note_templates(job, index, by_claims=by_claims)
        part.amounts = demand.amounts
        if by_claims:
            part.models = _models(part.pod_set, demand)
        else:
            self._keep_to_plugins(part)
        return part

    def _note_templates(self, job: LiveJob, index: int, *, by_claims: bool) -> None:
        """Note whether the pods' GPUs come by claims that are all made from templates."""
        claims = job.contents[index].settings.device_claims.values()
        if by_claims and all("template" in of for of in claims):
            job.gpus_by_templates |= {index}
        else:
            job.gpus_by_templates -= {index}

    def _may_be_gpus(self, job: LiveJob, index: int) -> bool:
        """Whether the pods claim devices of a class that backs GPUs.

        Asked only if the devices themselves, which would tell, do not exist.
        """
        names = PodNames(self.scope.namespaces.get(job.request.tenant, ""), "", "")
        try:
            own = own_claims(self.books, job.contents[index].settings.device_claims, names)
        except DeviceRefusal:
            return False  # the job gets this reason elsewhere
        requests = (of for claim, _ in own.new for of in claim.asks.requests)
        asked = {ask.device_class for alternatives in requests for ask in alternatives}
        known = self.books.inventory.classes
        return any(name in known and is_gpu(known[name].resource) for name in asked)

    def _keep_to_come(self, part: DevicePart) -> bool:
        """Limit the pod set to nodes that an autoscaler may add and that have enough of its GPUs.

        Only such nodes can have what the pods claim. Returns whether there are any.
        """
        asked = part.pod_set
        names = [
            name
            for name, node in self.books.inventory.to_come.items()
            if len(node.devices) >= asked.gpus
            and (not asked.gpu_models or node.gpu_model in asked.gpu_models)
        ]
        if names:
            part.terms.append((by_name(names),))
        return bool(names)

    def _keep_to_plugins(self, part: DevicePart) -> None:
        """Keep a GPU share that is asked for by resource name to nodes with a device plugin."""
        shared = self.books.inventory.shared_by_driver
        if shared and part.pod_set.is_share:
            nodes = self.books.inventory.nodes.values()
            others = [n.name for n in nodes if n.gives_shares and n.name not in shared]
            few = by_name(others) if len(others) < len(shared) else but_by_name(shared)
            part.terms.append((few,))
            text = "Nodes whose device driver shares GPUs give shares only through claims"
            instead = "Claim a part of a GPU there, with capacity.requests of a ResourceClaim"
            part.notes.append(f"{text}: {len(shared)}. {instead}.")

    def _demand_of_made(
        self, job: LiveJob, index: int, pod: PodNames, asks: ExtendedAsks
    ) -> tuple[DeviceDemand, bool]:
        """Return what a pod that Kant makes asks for, and whether its claims bring its GPUs.

        `asks`: what it asks for by resource names. Raises DeviceRefusal.
        """
        own = own_claims(self.books, job.contents[index].settings.device_claims, pod)
        anew = self.books.demand(pod.namespace, pod.uid, (), own=own.all_anew)
        if anew.gpus:
            _check_gpus(job.asked.pod_sets[index], anew)
            _models(job.asked.pod_sets[index], anew)
            others = (each for each in asks.requests if not is_gpu(each.resource))
            asks = asks._replace(requests=tuple(others))
        if self.books.demand(pod.namespace, pod.uid, (), asks).gpus:
            text = "The devices of a resource that it names are GPUs"
            raise DeviceRefusal(NOT_HONOURED, f"{text}. Ask for them with the number of GPUs.")
        demand = self.books.demand(pod.namespace, pod.uid, own.named, asks, own.new)
        return demand, anew.gpus > 0

    # --- placed jobs ------------------------------------------------------------------------------
    def send(self, job: LiveJob, placed: Iterable[tuple[LivePod, Node]]) -> None:
        """Bind each pod to its node once all its claims are written; pods of a gang go together."""
        pods = list(placed)
        if not self.are_claimed_by(job):
            for pod, node in pods:
                self._bind(job, pod, node)
            return
        coming = self._coming.setdefault(job.id, {})
        for pod, node in pods:
            coming[pod.key] = _Coming(pod, node)
            text = self._write_claims(job, coming[pod.key])
            if text:
                self._unplaceable.append((job.id, pod, text))
        self._bind_ready(job)

    def _bind(
        self, job: LiveJob, pod: LivePod, node: Node, whole: CreateAndBind | None = None
    ) -> None:
        pod.awaits, pod.in_flight = None, True
        self.out.effects.append(whole or create_and_bind(job, pod, node))

    def _write_claims(self, job: LiveJob, coming: _Coming) -> str:
        """Have the claims of a pod written. Return why that is impossible, "" = it is possible."""
        pod, node = coming.pod, coming.node
        liked = [device.id for n, device in enumerate(node.devices) if n in pod.place.devices]
        try:
            demand = self._demand_at(job, coming)
            names = PodNames(job.namespace, pod.name, pod.uid)
            chosen = self.books.choose(demand, node, names, liked)
        except DeviceRefusal as refusal:
            return refusal.unclear.text
        if chosen is None and self.books.suffices(demand, node, self._being_released()):
            coming.claims.add(OF_THE_GONE)  # an event will show their release
            return ""
        if chosen is None:
            return f"Node {node.name} has no devices for all of its resource claims any more"
        for claim in demand.claims:
            if claim.given is not None and not matches(node, claim.nodes):
                return f"The devices of resource claim {claim.name} are not for node {node.name}"
        for each in chosen:
            self.books.assume(each, job.effect_key(pod))
            coming.claims.add(each.claim.uid)
        coming.demand, coming.chosen = demand, chosen
        if not job.plain and (chosen or demand.claims):
            self._make_pod(coming)
        else:
            self._write_all(job, coming)
        return ""

    def _write_all(self, job: LiveJob, coming: _Coming) -> None:
        """Have all claims of an existing pod written."""
        pod = coming.pod
        for each in coming.chosen:
            self._write(job, pod, each.claim, each)
        for claim in coming.demand.claims:
            if claim.given is not None and pod.uid not in claim.reserved_for:
                self._write(job, pod, claim, None)
                coming.claims.add(claim.uid)
            if is_conditional(claim.given or ()):
                coming.conditional.add((claim.namespace, claim.name))

    def _being_released(self) -> Set[str]:
        """Return the claims (uids) whose pods are all gone: their devices are about to be free."""
        return {
            claim.uid
            for claim in (self.books.claims.values() if self._gone else ())
            if claim.reserved_for and self._gone.issuperset(claim.reserved_for)
        }

    def _demand_at(self, job: LiveJob, coming: _Coming) -> DeviceDemand:
        """Return what a pod asks for on its node. Raises DeviceRefusal."""
        pod = coming.pod
        if job.plain:
            return self._demand_of(job.namespace, pod.uid)
        index, names = pod.place.pod_set, PodNames(job.namespace, pod.name, pod.uid)
        _, by_claims = self._demand_of_made(job, index, names, NOTHING)
        whole = create_and_bind(job, pod, coming.node, gpus_by_claims=by_claims)
        assert isinstance(whole, CreateAndBind)
        coming.whole = whole
        spec = msgspec.json.decode(encode(whole.manifest["spec"]), type=PodSpec)
        return self._demand_of_made(job, index, names, extended_asks(spec))[0]

    def _make_pod(self, coming: _Coming) -> None:
        whole = coming.whole
        assert whole is not None  # set by _demand_at for pods that Kant makes
        coming.pod.in_flight = True
        coming.claims.add(THE_POD)
        made = CreateToBind(whole.key, whole.namespace, whole.name, whole.manifest)
        self.out.effects.append(made)

    def created(self, job: LiveJob, pod: LivePod, outcome: CallOutcome) -> bool:
        """Take in the result of creating a pod to be bound later; return whether it exists."""
        coming = self._coming.get(job.id, {}).get(pod.key)
        if outcome.result is not Result.DONE or coming is None or coming.pod is not pod:
            return False
        self._made[pod.uid] = job.effect_key(pod)
        self._write_all(job, coming)
        coming.claims.discard(THE_POD)
        self._bind_ready(job)
        return True

    def _write(
        self, job: LiveJob, pod: LivePod, claim: DeviceClaimFacts, chosen: ChosenDevices | None
    ) -> None:
        new = chosen.new if chosen is not None else None
        effect = AllocateClaim(
            key=(*job.effect_key(pod), claim.uid),
            namespace=claim.namespace,
            name=claim.name or claim_name(pod.name, pod.uid),
            uid=claim.uid,
            pod=pod.name,
            pod_uid=pod.uid,
            new=new,
        )
        if chosen is not None:
            effect = msgspec.structs.replace(
                effect,
                given=chosen.given,
                node=chosen.node,
                nodes=chosen.nodes,
                class_config=self._config(chosen),
            )
        self._writing.add((pod.uid, claim.uid))
        self.out.effects.append(effect)

    def _config(self, chosen: ChosenDevices) -> tuple[tuple[tuple[str, ...], bytes], ...]:
        """Return the configuration of its devices' classes, with the requests each is for."""
        answered = {given.request for given in chosen.given}
        by_class: dict[str, list[str]] = {}
        for alternatives in chosen.claim.asks.requests:
            for ask in alternatives:
                if ask.name in answered:
                    by_class.setdefault(ask.device_class, []).append(ask.name)
        classes = self.books.inventory.classes
        return tuple(
            (tuple(names), classes[name].config)
            for name, names in by_class.items()
            if name in classes
        )

    def written(
        self, effect: AllocateClaim | ReleaseClaim, outcome: CallOutcome, now: float
    ) -> None:
        """Take in the result of writing a claim."""
        if isinstance(effect, ReleaseClaim):
            self._releasing.discard((effect.pod_uid, effect.uid))
            return
        *key, claim = cast(tuple[Any, ...], effect.key)
        job_id, attempt, pod_set, ordinal = cast(EffectKey, tuple(key))
        self._writing.discard((effect.pod_uid, claim))
        job = self.scope.jobs.get(job_id)
        coming = self._coming.get(job_id, {}).get((pod_set, ordinal))
        stands = (
            job is not None
            and coming is not None
            and coming.pod.attempt == attempt
            and _is_to_come(coming.pod)
            and job.leaving is None
        )
        if outcome.result is Result.NOT_SENT and stands:
            # The lease ran out on the way. If it is gone for good, the next write finds out.
            self._writing.add((effect.pod_uid, claim))
            self.out.effects.append(effect)
            return
        name = effect.namespace, effect.name
        made = self.books.claims.get(name) if effect.new is not None else None
        if outcome.result is not Result.DONE or (made is not None and made.given is not None):
            self.books.drop(claim)
        if not stands or job is None or coming is None:
            return
        if outcome.result is Result.DONE:
            coming.claims.discard(claim)
            if is_conditional(effect.given or ()):
                coming.conditional.add(name)
            self._bind_ready(job)
            return
        self._give_up(job, coming.pod)
        text = f"Resource claim {effect.name} could not be allocated: "
        text += outcome.message or outcome.result.lower()
        reason = NO_ANSWER if outcome.result is Result.FAILED else NOT_ALLOCATED
        self.requeueing.displaced(job, [coming.pod], reason, text, (), now)

    def _bind_ready(self, job: LiveJob) -> None:
        """Bind the pods whose claims are all written; of a gang, all or none."""
        coming = self._coming.get(job.id, {})
        ready = [
            c for c in coming.values() if not c.claims and not not_ready(self.books, c.conditional)
        ]
        unplaceable = {id(pod) for job_id, pod, _ in self._unplaceable if job_id == job.id}
        ready = [c for c in ready if id(c.pod) not in unplaceable]
        if job.request.gang and len(ready) < len(coming):
            return
        for each in ready:
            del coming[each.pod.key]
            if _is_to_come(each.pod):
                self._bind(job, each.pod, each.node, each.whole)
        if not coming:
            self._coming.pop(job.id, None)

    def follow(self, now: float) -> None:
        """Give back the places of pods for which there are no devices after all."""
        for job_id, of_job in list(self._coming.items()):
            late = [c for c in of_job.values() if OF_THE_GONE in c.claims]
            if late and (job := self.scope.jobs.get(job_id)) is not None:
                self._look_again(job, late)
        self._follow_conditions(now)
        failed, self._unplaceable = self._unplaceable, []
        for job_id, pod, text in failed:
            job = self.scope.jobs.get(job_id)
            if job is None:
                self._coming.pop(job_id, None)
                continue
            self._give_up(job, pod)
            if job.leaving is None and _is_to_come(pod):
                self.requeueing.displaced(job, [pod], NOT_ALLOCATED, text, (pod.place.node,), now)

    def _follow_conditions(self, now: float) -> None:
        """Bind pods whose devices are ready; give back the places of those whose devices are not.

        That is, the devices failed or were not ready within the policy's `gang_timeout_s`.
        """
        due = now - self.scope.policy.gang_timeout_s
        for job_id, of_job in list(self._coming.items()):
            awaited = [c for c in of_job.values() if c.conditional and not c.claims]
            job = self.scope.jobs.get(job_id)
            if not awaited or job is None or job.leaving is not None:
                continue
            for coming in awaited:
                text = failure(self.books, coming.conditional)
                waits = not_ready(self.books, coming.conditional)
                if not text and waits and 0 < coming.pod.placed_at < due:
                    waited = now - coming.pod.placed_at
                    text = f"{waits}, {waited:.0f} s after the placement"
                if text:
                    self._give_up(job, coming.pod)
                    node = coming.pod.place.node
                    self.requeueing.displaced(job, [coming.pod], NOT_READY, text, (node,), now)
                    break
                self._tell_waiting(job, coming, waits)
            else:
                self._bind_ready(job)

    def _tell_waiting(self, job: LiveJob, coming: _Coming, text: str) -> None:
        """Put on the pod what it waits for and which node is kept for it, if that is news."""
        if text and coming.told != text:
            coming.told = text
            pod, reason = coming.pod, Reason.WAITING_FOR_DEVICES.value
            of = job.namespace, pod.name, pod.uid
            told = PatchCondition((), *of, reason, f"{reason}: {text}", nominated=pod.place.node)
            self.out.effects.append(told)

    def _look_again(self, job: LiveJob, late: Iterable[_Coming]) -> None:
        """Try again to get devices that pods that are gone used to hold."""
        for coming in late:
            coming.claims.discard(OF_THE_GONE)
            if _is_to_come(coming.pod) and (text := self._write_claims(job, coming)):
                self._unplaceable.append((job.id, coming.pod, text))
        self._bind_ready(job)

    def _give_up(self, job: LiveJob, pod: LivePod) -> None:
        """Do not bind the pod; of a gang, bind none."""
        coming = self._coming.get(job.id, {})
        coming.pop(pod.key, None)
        if job.request.gang or not coming:
            self._coming.pop(job.id, None)

    def undone(self, job: LiveJob, pods: Iterable[LivePod]) -> None:
        """Drop the claims of places that were never written; nothing was sent for these pods."""
        self._coming.pop(job.id, None)
        places = {job.effect_key(pod): pod for pod in pods}
        for claim, assumed in list(self.books.assumed.items()):
            if (pod := places.get(assumed.of)) is not None:
                self._writing.discard((pod.uid, claim))
                self.books.drop(claim)

    # --- leftovers --------------------------------------------------------------------------------
    def _release_what_is_left(self) -> None:
        """Release the devices of waiting pods without a place, and drop what was chosen for nobody.

        Their binding failed, or the last scheduler stopped before it. Other scopes look after their
        own pods.
        """
        for claim in list(self.books.claims.values()):
            pods = (claim.made_for[1],) if claim.made_for is not None else claim.reserved_for
            for uid in pods:
                if not self._has_left(claim, uid):
                    continue
                self._releasing.add((uid, claim.uid))
                name = claim.made_for[0] if claim.made_for is not None else ""
                of = claim.namespace, claim.name, claim.uid, uid
                self.out.effects.append(ReleaseClaim((), *of, name))
        for uid, assumed in list(self.books.assumed.items()):
            job, pod = self._place(assumed.of)
            writes = pod is not None and (pod.uid, uid) in self._writing
            if not writes and (job is None or pod is None or pod.state in OVER):
                self.books.drop(uid)

    def _has_left(self, claim: DeviceClaimFacts, uid: str) -> bool:
        """Whether a waiting plain pod no longer has a place but still has the claim."""
        if uid not in self.plain.unbound or (uid, claim.uid) in self._releasing:
            return False
        if any(pod == uid for pod, _ in self._writing):
            return False
        job = self.plain.job_of(uid)
        if job is None:
            return self.foreign.mine is None
        pod = _pod_of(job, uid)
        return pod is None or pod.state in OVER

    def _place(self, of: EffectKey) -> tuple[LiveJob | None, LivePod | None]:
        """Return the job and pod of a place, as far as they still exist."""
        job_id, attempt, *key = of
        job = self.scope.jobs.get(job_id)
        pod = job.pods.get((key[0], key[1])) if job is not None else None
        return job, pod if pod is not None and pod.attempt == attempt else None

    # --- what the engine counts -------------------------------------------------------------------
    def tell_held(self, *, of_others: bool = False) -> None:
        """Tell the engine which devices are taken without being requested by name.

        These are devices of others' claims, and what a pod holds beyond its request, e.g. because
        its device is of a kind that others claim by another name. `of_others`: tell only the
        former, and only what is new.
        """
        others: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        own: dict[tuple[str, PodKey, str], tuple[LiveJob, LivePod, Counter[str]]] = {}
        leaving = self._being_released()
        for claim, node, amounts in self.books.held():
            if self.foreign.mine is not None and node not in self.foreign.mine:
                continue
            holder = self._holder(claim, node)
            if (of_others and holder is not None) or (holder is None and claim.uid in leaving):
                continue  # whoever gets the devices of pods that are gone waits for their release
            if holder is None:
                total = others[claim.uid, node]
            else:
                job, pod = holder
                *_, total = own.setdefault((job.id, pod.key, node), (job, pod, Counter()))
            total.update({"gpus": amounts.gpus, **amounts.amounts})
        told: dict[str, OtherPodChanged] = {}
        more: dict[tuple[str, PodKey], _More] = {}
        for (name, node), total in others.items():
            gpus = total.pop("gpus")
            if gpus or total:
                key = f"devices of {name} on {node}"
                told[key] = OtherPodChanged(key, node, gpus, 0, 0, dict(total))
        for (job_id, at, node), (job, pod, total) in own.items():
            asked = job.request.pod_sets[at[0]]
            gpus = total.pop("gpus") - asked.gpus
            if gpus > 0:
                key = f"devices of {job_id} {at} on {node}"
                told[key] = OtherPodChanged(key, node, gpus, 0, 0)
            counts = asked.extended
            beyond = {k: n - counts.get(k, 0) for k, n in total.items() if n > counts.get(k, 0)}
            if beyond:
                more[job_id, at] = _More(pod.attempt, beyond)
        for key in () if of_others else self._told_held.keys() - told.keys():
            self.out.deltas.append(OtherPodRemoved(key))
        for key, change in told.items():
            if self._told_held.get(key) != change:
                self.out.deltas.append(change)
        self._told_held = {**self._told_held, **told} if of_others else told
        if not of_others:
            self._tell_more(more)

    def _tell_more(self, more: dict[tuple[str, PodKey], _More]) -> None:
        """Tell the engine what pods of Kant hold beyond their requests, as far as it is new."""
        for (job_id, at), beyond in more.items():
            if self._told_more.get((job_id, at)) != beyond:
                self.out.deltas.append(PodHoldsMore(job_id, *at, beyond.extended))
        for job_id, at in self._told_more.keys() - more.keys():
            self.out.deltas.append(PodHoldsMore(job_id, *at))
        self._told_more = more

    def _holder(self, claim: DeviceClaimFacts, node: str) -> tuple[LiveJob, LivePod] | None:
        """Return the pod of Kant that holds the claim's devices on the node, with its job."""
        for uid in sorted(claim.reserved_for):
            if (found := self._holding(*self._pod(uid), node)) is not None:
                return found
        assumed = self.books.assumed.get(claim.uid)
        return self._holding(*self._place(assumed.of), node) if assumed is not None else None

    def _pod(self, uid: str) -> tuple[LiveJob | None, LivePod | None]:
        if uid in self._made:
            return self._place(self._made[uid])
        job = self.plain.job_of(uid)
        return job, _pod_of(job, uid) if job is not None else None

    def _holding(
        self, job: LiveJob | None, pod: LivePod | None, node: str
    ) -> tuple[LiveJob, LivePod] | None:
        """Return the pod, if it has a place on the node."""
        if job is None or pod is None or pod.state in OVER or pod.place.node != node:
            return None
        if job.state not in HOLDING and job.leaving is None:
            return None
        return job, pod


def _pod_of(job: LiveJob, uid: str) -> LivePod | None:
    """Return the place of a plain pod of the job."""
    return next((pod for pod in job.pods.values() if pod.uid == uid), None)


def counts_devices(pod_set: PodSetSpec) -> bool:
    """Whether the engine counts devices for its pods under names of its own."""
    return any(name.startswith(PREFIX) for name in pod_set.extended)


def _asks_of_made(pod_set: PodSetSpec) -> ExtendedAsks:
    """Return what pods made by Kant ask for by resource names; GPUs by their node's name."""
    found = [ExtendedRequest(name, name, n) for name, n in pod_set.extended.items() if n]
    if pod_set.gpus and pod_set.gpu_milli == MILLI and not pod_set.gpu_memory_mib:
        found.append(ExtendedRequest(ANY_GPU, ANY_GPU, pod_set.gpus))
    return ExtendedAsks(tuple(request for request in found if is_by_name(request.name)))


def _check_gpus(pod_set: PodSetSpec, by_claims: DeviceDemand) -> None:
    """Raise DeviceRefusal if the claims give other GPUs than the quota is counted for."""
    milli = by_claims.gpu_milli
    if milli < MILLI and (pod_set.gpus != 1 or pod_set.gpu_milli != milli):
        text = f"Its device claims are for {milli} thousandths of a GPU a pod."
        raise DeviceRefusal(NOT_HONOURED, f"{text} Submit it with gpus 1 and gpu_milli {milli}.")
    if pod_set.gpu_memory_mib or (pod_set.gpu_milli != MILLI and milli == MILLI):
        text = "Its device claims are for whole GPUs. Leave out gpu_milli and gpu_memory_mib."
        if milli < MILLI:
            text = "Its device claims say which part of a GPU it gets. Leave out gpu_memory_mib."
        raise DeviceRefusal(NOT_HONOURED, text)
    if pod_set.gpus != by_claims.gpus:
        text = f"Its device claims are for {by_claims.gpus} GPUs a pod, and gpus is {pod_set.gpus}."
        raise DeviceRefusal(NOT_HONOURED, f"{text} Submit it with gpus {by_claims.gpus}.")


def _models(pod_set: PodSetSpec, demand: DeviceDemand) -> tuple[str, ...]:
    """Return the GPU models that both its claims and its document allow. Raises DeviceRefusal."""
    asked = pod_set.gpu_models or demand.models
    found = tuple(model for model in asked if model in demand.models)
    if not found:
        ours, theirs = ", ".join(demand.models), ", ".join(asked)
        text = f"Its device claims are for GPUs of type {ours}, and gpu_types is {theirs}."
        raise DeviceRefusal(NOT_HONOURED, f"{text} Submit it with gpu_types {ours}.")
    return found


def _hold(text: str, helps: str) -> ClaimHold:
    return ClaimHold(f"{text}.", helps, Reason.WAITING_FOR_DEVICES)


def _refused(refusal: DeviceRefusal, helps: str) -> ClaimHold:
    hold = _hold(refusal.unclear.text.rstrip("."), helps)
    if refusal.unclear.reason == NOT_THERE:
        return hold._replace(reason=Reason.WAITING_FOR_NODES)
    return hold


def _is_to_come(pod: LivePod) -> bool:
    return pod.state is P.INTENDED and pod.leaving is None and not pod.in_flight
