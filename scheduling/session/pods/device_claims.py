"""Claims of plain pods for devices: what they mean for a job, and that they are written before its
pods are bound (docs/decisions/0077-claims-for-devices.md).

A claim gets its devices and is reserved for its pod when the pod has its place; of a gang no pod is
bound before all claims of all its pods are written. What a pod has that gave its place back, is
released.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from scheduling.engine.cluster.affinity import matches
from scheduling.engine.deltas import OtherPodChanged, OtherPodRemoved
from scheduling.engine.states import HOLDING
from scheduling.engine.types import Node, NodeTerm, PodSetSpec
from scheduling.engine.verdict import Reason
from scheduling.kube.dra.facts import DeviceClaimFacts, PodClaim
from scheduling.kube.seam import (
    AllocateClaim,
    CallOutcome,
    DeviceNeed,
    PodFacts,
    ReleaseClaim,
    Result,
)
from scheduling.models.jobs import PlacementState as P
from scheduling.session.devices.books import ChosenDevices, DeviceBooks
from scheduling.session.devices.demand import DeviceRefusal
from scheduling.session.memory.live import OVER, EffectKey, LiveJob, LivePod, PodKey
from scheduling.session.memory.storage import ClaimHold
from scheduling.session.pods.plain import PlainPods
from scheduling.session.pods.pod import create_and_bind
from scheduling.session.pods.requeue import NO_ANSWER, Requeueing
from scheduling.session.pods.scope import SharedScope

NOT_ALLOCATED = "ClaimNotAllocated"
Writing = tuple[str, str]  # uids of a pod and a claim


@dataclass(slots=True)
class _Coming:
    """A pod that is bound when these claims are written, and those of its gang."""

    pod: LivePod
    node: Node
    claims: set[str] = field(default_factory=set)


class DevicePart:
    """What the claims of the pods of a pod set add to it, and why it cannot be placed now."""

    def __init__(self, pod_set: PodSetSpec) -> None:
        self.gpus = pod_set.gpus
        self.amounts: Mapping[str, int] = {}
        self.terms: list[tuple[NodeTerm, ...]] = []
        self.notes: list[str] = []
        self.hold: ClaimHold | None = None

    def changes(self, pod_set: PodSetSpec) -> dict[str, Any]:
        """The fields of the pod set that differ."""
        found: dict[str, Any] = {}
        if self.amounts:
            found["extended"] = {**pod_set.extended, **self.amounts}
        if self.gpus != pod_set.gpus:
            found["gpus"] = self.gpus
            if not self.gpus:
                found["gpu_models"] = ()
        return found


class DeviceClaims:
    """Devices of the jobs of a scope. `books`: what is known of them."""

    def __init__(self, scope: SharedScope, requeueing: Requeueing, plain: PlainPods) -> None:
        self.scope = scope
        self.out = scope.out
        self.requeueing = requeueing
        self.plain = plain
        plain.as_offered = self.as_offered
        self.foreign = requeueing.leave.foreign
        self.books = DeviceBooks()
        self._claims_for_devices: dict[str, tuple[PodClaim, ...]] = {}  # by uid of plain pods
        self._coming: dict[str, dict[PodKey, _Coming]] = {}  # by job
        self._writing: set[Writing] = set()
        self._releasing: set[Writing] = set()
        self._unplaceable: list[tuple[str, LivePod, str]] = []  # by job, and why
        self._told_held: dict[str, OtherPodChanged] = {}
        self._as_of: object = None

    # --- what is told -----------------------------------------------------------------------------
    def names(self, facts: PodFacts) -> bool:
        """A pod is seen; whether its claims are others than were known."""
        if not facts.device_claims:
            return False
        before = self._claims_for_devices.get(facts.uid)
        self._claims_for_devices[facts.uid] = facts.device_claims
        return before != facts.device_claims

    def names_none(self, uid: str) -> None:
        self._claims_for_devices.pop(uid, None)

    def as_offered(self, facts: PodFacts) -> PodFacts:
        """The pod, with what its claims ask for."""
        if not facts.device_claims or facts.plain is None:
            return facts
        try:
            demand = self.books.demand(facts.namespace, facts.uid, facts.device_claims)
            need = DeviceNeed(demand.gpus, demand.models, demand.shape)
        except DeviceRefusal as refusal:
            need = DeviceNeed(wait=refusal.unclear)
        plain = msgspec.structs.replace(facts.plain, devices=need)
        return msgspec.structs.replace(facts, plain=plain)

    def change(self) -> bool:
        """Take in what has changed of devices and claims; whether jobs are to be judged again."""
        if not self.books and not self._claims_for_devices:
            return False
        self._release_what_is_left()
        self._tell_held()
        as_of = self.books.version, len(self._releasing)
        if as_of == self._as_of:
            return False
        self._as_of = as_of
        self.plain.look_again(self._claims_for_devices)
        self.books.changed.clear()
        return True

    # --- jobs that wait ---------------------------------------------------------------------------
    def are_claimed_by(self, job: LiveJob) -> bool:
        claims = self._claims_for_devices
        return bool(claims) and any(ref.uid in claims for ref in job.plain.values())

    def part(self, job: LiveJob, index: int) -> DevicePart:
        """What the claims of its pods add to a pod set."""
        part = DevicePart(job.asked.pod_sets[index])
        first = True
        for key, ref in job.plain.items():
            named = self._claims_for_devices.get(ref.uid)
            if key[0] != index or named is None:
                continue
            if any(pod == ref.uid for pod, _ in self._releasing):
                part.hold = _hold(f"Resource claims of pod {ref.name} are being released", "wait")
                return part
            try:
                demand = self.books.demand(job.namespace, ref.uid, named)
                found = self.books.nodes_for(demand) if first else None
            except DeviceRefusal as refusal:
                text = refusal.unclear.text.rstrip(".")
                part.hold = _hold(text, "see the resource claims of the pod")
                return part
            for terms in demand.pinned:
                part.terms.append(terms)
                part.notes.append("Its resource claims have devices that not every node can use.")
            if first:
                facts = self.plain.unbound.get(ref.uid)
                part.amounts = demand.amounts
                part.gpus = (facts.gpus if facts is not None else 0) + demand.gpus
                if facts is not None and facts.gpu_milli:
                    part.gpus = job.asked.pod_sets[index].gpus
            if found is not None:
                part.terms.append(found)
                nodes = sum(len(e.values) for term in found for e in term)
                part.notes.append(f"Nodes with devices for all of its resource claims: {nodes}.")
            first = False
        return part

    # --- jobs that were placed --------------------------------------------------------------------
    def send(self, job: LiveJob, placed: Iterable[tuple[LivePod, Node]]) -> None:
        """Bind these pods, each on its node, once all their claims are written; those of a gang
        together."""
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

    def _bind(self, job: LiveJob, pod: LivePod, node: Node) -> None:
        pod.awaits, pod.in_flight = None, True
        self.out.effects.append(create_and_bind(job, pod, node))

    def _write_claims(self, job: LiveJob, coming: _Coming) -> str:
        """Have the claims of a pod written; why that cannot be, "" = it can."""
        pod, node = coming.pod, coming.node
        named = self._claims_for_devices.get(pod.uid, ())
        liked = [device.id for n, device in enumerate(node.devices) if n in pod.place.devices]
        try:
            demand = self.books.demand(job.namespace, pod.uid, named)
            chosen = self.books.choose(demand, node, liked)
        except DeviceRefusal as refusal:
            return refusal.unclear.text
        if chosen is None:
            return f"Node {node.name} has no devices for all of its resource claims any more"
        for claim in demand.claims:
            if claim.given is not None and not matches(node, claim.nodes):
                return f"The devices of resource claim {claim.name} are not for node {node.name}"
        for each in chosen:
            self.books.assume(each, pod.uid)
            self._write(job, pod, each.claim, each)
            coming.claims.add(each.claim.uid)
        for claim in demand.claims:
            if claim.given is not None and pod.uid not in claim.reserved_for:
                self._write(job, pod, claim, None)
                coming.claims.add(claim.uid)
        return ""

    def _write(
        self, job: LiveJob, pod: LivePod, claim: DeviceClaimFacts, chosen: ChosenDevices | None
    ) -> None:
        effect = AllocateClaim(
            key=(*job.effect_key(pod), claim.uid),
            namespace=claim.namespace,
            name=claim.name,
            uid=claim.uid,
            pod=pod.name,
            pod_uid=pod.uid,
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
        """The configuration of the classes of its devices, by the requests that it is for."""
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
        """How writing a claim ended."""
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
            # The lease ran out on the way. If it is gone for good, the next write finds that.
            self._writing.add((effect.pod_uid, claim))
            self.out.effects.append(effect)
            return
        if outcome.result is not Result.DONE:
            self.books.drop(claim)
        if not stands or job is None or coming is None:
            return
        if outcome.result is Result.DONE:
            coming.claims.discard(claim)
            self._bind_ready(job)
            return
        self._coming.pop(job_id, None)
        text = f"Resource claim {effect.name} could not be allocated: "
        text += outcome.message or outcome.result.lower()
        reason = NO_ANSWER if outcome.result is Result.FAILED else NOT_ALLOCATED
        self.requeueing.displaced(job, [coming.pod], reason, text, (), now)

    def _bind_ready(self, job: LiveJob) -> None:
        """Bind the pods of which all claims are written; of a gang all, or none."""
        coming = self._coming.get(job.id, {})
        ready = [c for c in coming.values() if not c.claims]
        unplaceable = {id(pod) for job_id, pod, _ in self._unplaceable if job_id == job.id}
        ready = [c for c in ready if id(c.pod) not in unplaceable]
        if job.request.gang and len(ready) < len(coming):
            return
        for each in ready:
            del coming[each.pod.key]
            if _is_to_come(each.pod):
                self._bind(job, each.pod, each.node)
        if not coming:
            self._coming.pop(job.id, None)

    def follow(self, now: float) -> None:
        """Give back the places of pods for which there are no devices after all."""
        failed, self._unplaceable = self._unplaceable, []
        for job_id, pod, text in failed:
            job = self.scope.jobs.get(job_id)
            self._coming.pop(job_id, None)
            if job is not None and job.leaving is None and _is_to_come(pod):
                self.requeueing.displaced(job, [pod], NOT_ALLOCATED, text, (pod.place.node,), now)

    def undone(self, job: LiveJob, pods: Iterable[LivePod]) -> None:
        """The places of these pods were never written, and nothing was sent for them."""
        self._coming.pop(job.id, None)
        for pod in pods:
            for claim, assumed in list(self.books.assumed.items()):
                if assumed.pod == pod.uid:
                    self._writing.discard((pod.uid, claim))
                    self.books.drop(claim)

    # --- what is left -----------------------------------------------------------------------------
    def _release_what_is_left(self) -> None:
        """Release what pods have that wait and have no place: their binding failed, or the last
        scheduler stopped before it. Other scopes look after their own pods."""
        for claim in list(self.books.claims.values()):
            for uid in claim.reserved_for:
                facts = self.plain.unbound.get(uid)
                writing = (uid, claim.uid)
                if facts is None or writing in self._writing or writing in self._releasing:
                    continue
                job = self.plain.job_of(uid)
                if job is None and self.foreign.mine is not None:
                    continue
                if job is not None and self._has_place(job, uid):
                    continue
                self._releasing.add(writing)
                of = claim.namespace, claim.name, claim.uid, uid
                self.out.effects.append(ReleaseClaim((), *of))
        for uid, assumed in list(self.books.assumed.items()):
            if (assumed.pod, uid) not in self._writing:
                job = self.plain.job_of(assumed.pod)
                if job is None or not self._has_place(job, assumed.pod):
                    self.books.drop(uid)

    def _has_place(self, job: LiveJob, uid: str) -> bool:
        pod = _pod_of(job, uid)
        return pod is not None and pod.state not in OVER

    # --- what the engine counts -------------------------------------------------------------------
    def _tell_held(self) -> None:
        """Tell the engine which devices are not free although no pod of Kant's counts them: claims
        of others, and what a pod has beyond what it asks for."""
        left: dict[tuple[str, str], dict[str, int]] = {}
        booked: dict[tuple[str, str], PodSetSpec] = {}
        for claim, node, amounts in self.books.held():
            if self.foreign.mine is not None and node not in self.foreign.mine:
                continue
            holder = self._holder(claim, node)
            name = claim.uid
            if holder is not None:
                name, pod_set = holder
                booked[name, node] = pod_set
            total = left.setdefault((name, node), {})
            total["gpus"] = total.get("gpus", 0) + amounts.gpus
            for kind, count in amounts.amounts.items():
                total[kind] = total.get(kind, 0) + count
        told: dict[str, OtherPodChanged] = {}
        for (name, node), total in left.items():
            own = booked.get((name, node))
            gpus = total.pop("gpus") - (own.gpus if own is not None else 0)
            counts = own.extended if own is not None else {}
            more = {k: n - counts.get(k, 0) for k, n in total.items() if n > counts.get(k, 0)}
            if gpus > 0 or more:
                key = f"devices of {name} on {node}"
                told[key] = OtherPodChanged(key, node, max(gpus, 0), 0, 0, more)
        for key in self._told_held.keys() - told.keys():
            self.out.deltas.append(OtherPodRemoved(key))
        for key, change in told.items():
            if self._told_held.get(key) != change:
                self.out.deltas.append(change)
        self._told_held = told

    def _holder(self, claim: DeviceClaimFacts, node: str) -> tuple[str, PodSetSpec] | None:
        """The pod of Kant's that counts the devices of a claim, and its pod set."""
        assumed = self.books.assumed.get(claim.uid)
        uids = (*claim.reserved_for, *((assumed.pod,) if assumed is not None else ()))
        for uid in sorted(set(uids)):
            job = self.plain.job_of(uid)
            if job is None or (job.state not in HOLDING and job.leaving is None):
                continue
            pod = _pod_of(job, uid)
            if pod is not None and pod.state not in OVER and pod.place.node == node:
                return uid, job.request.pod_sets[pod.place.pod_set]
        return None


def _pod_of(job: LiveJob, uid: str) -> LivePod | None:
    """The place of a plain pod of the job."""
    return next((pod for pod in job.pods.values() if pod.uid == uid), None)


def _hold(text: str, helps: str) -> ClaimHold:
    return ClaimHold(f"{text}.", helps, Reason.WAITING_FOR_DEVICES)


def _is_to_come(pod: LivePod) -> bool:
    return pod.state is P.INTENDED and pod.leaving is None and not pod.in_flight
