"""What decides where pods can be placed, besides their own wishes.

These are the volume claims that they mount (docs/decisions/0040-volume-claims.md), running pods
that keep others away, and rules about other pods
(docs/decisions/0066-what-pods-say-of-other-pods.md).

Their requirements are added to the node affinity of a job. A claim that waits for its first
consumer learns the node when the job is placed; the pods are made once the claim is bound.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from scheduling.engine.cluster.affinity import both, matches, said
from scheduling.engine.cluster.constraints import narrowed, spread_over
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.types import Node, NodeTerm, PodRules, PodSetSpec
from scheduling.engine.verdict import NO_ROOM, Reason, Verdict
from scheduling.kube.seam import CallOutcome, NamespaceFacts, PodFacts, Result, SelectNode
from scheduling.kube.translate.manifests import own_labels
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.constraints import written
from scheduling.session.memory.live import LiveJob, LivePod, Note, PodKey
from scheduling.session.memory.storage import Need, Storage
from scheduling.session.memory.zones import NumaZones
from scheduling.session.pods.anti_affinity import AntiAffinity
from scheduling.session.pods.device_claims import DeviceClaims, DevicePart, counts_devices
from scheduling.session.pods.plain import PlainPods
from scheduling.session.pods.requeue import NO_ANSWER, Requeueing
from scheduling.session.pods.scope import SharedScope

NOT_BOUND, ELSEWHERE, SELECTED = "VolumeNotBound", "VolumeElsewhere", "VolumeSelected"
# Reasons that depend on which nodes were considered: it helps to know that a volume limits them.
BY_NODES = NO_ROOM | {
    Reason.EXCEEDS_CAPACITY,
    Reason.NO_MATCHING_GPU_TYPE,
    Reason.WAITING_FOR_NODES,
}


@dataclass(slots=True)
class _Asked:
    """Which job had a node written to a claim, and whether the claim was then seen with it.

    `refused`: how often it had been refused before.
    """

    job_id: str
    refused: int
    seen: bool = False


class Volumes:
    """Which nodes the jobs of a scope may use, given their volumes and the running pods."""

    def __init__(self, scope: SharedScope, requeueing: Requeueing, plain: PlainPods) -> None:
        self.scope = scope
        self.out = scope.out
        self.requeueing = requeueing
        self.plain = plain
        self.foreign = requeueing.leave.foreign
        self.devices = DeviceClaims(scope, requeueing, plain)
        self.storage: Storage = self.foreign.storage
        self._claims_of_pods: dict[str, tuple[str, ...]] = {}  # by uid of plain pods with any
        self.anti_affinity = AntiAffinity(self.foreign.groups.spaces)
        self.keepers = AntiAffinity(self.foreign.groups.spaces)  # also those the engine knows
        self._mounting: dict[str, LiveJob] = {}  # jobs with claims whose pods Kant makes
        self.zones = NumaZones()
        self._judged = 0, 0, 0, 0  # versions that the last judgement used
        self._to_judge = False  # judge all for another reason
        self._awaiting: dict[str, LiveJob] = {}  # have placed pods that wait for claims
        self._asked: dict[tuple[str, str], _Asked] = {}  # by namespace and name of the claim

    # --- waiting jobs -----------------------------------------------------------------------------
    def says(self, facts: PodFacts) -> None:
        """Take in the rules and claims of a pod that was seen."""
        self.keepers.seen(facts)
        if not self._is_told_of(facts):
            self.anti_affinity.seen(facts)
        if facts.owned and facts.claims:
            self._claims_of_pods[facts.uid] = facts.claims
            self._to_judge = self._to_judge or facts.plain is not None
        if facts.owned and self.devices.names(facts) and facts.plain is not None:
            self._to_judge = True
        if self.foreign.groups.seen(facts) and facts.plain is not None:
            self._to_judge = True

    def namespace_seen(self, facts: NamespaceFacts) -> None:
        if self.foreign.groups.spaces.seen(facts):
            self._spaces_change()

    def namespace_gone(self, facts: NamespaceFacts) -> None:
        if self.foreign.groups.spaces.gone(facts):
            self._spaces_change()

    def _spaces_change(self) -> None:
        self.foreign.groups.spaces_change()
        self.anti_affinity.spaces_change()

    def _is_told_of(self, facts: PodFacts) -> bool:
        """Whether the engine itself keeps others away from the pod, by its job's rules."""
        found = self.plain.stands_for(facts.uid) if facts.keeps_away else None
        if found is None or found[0].state not in HOLDING:
            return False
        job, (pod_set, _) = found
        rules = job.request.pod_sets[pod_set].rules
        return rules is not None and bool(rules.apart)

    def is_silent(self, uid: str) -> None:
        """Forget the rules and claims of a pod that is gone."""
        self.anti_affinity.gone(uid)
        self.keepers.gone(uid)
        self.foreign.groups.gone(uid)
        self._claims_of_pods.pop(uid, None)
        self.devices.names_none(uid)

    def judge_again(self) -> None:
        """Judge all jobs again: where pods are made has changed, or what a job mounts."""
        self._to_judge = True

    def judged(self) -> list[LiveJob]:
        """Return the jobs for which it changed whether, or where, their pods can be placed."""
        if self.devices.change():
            self._to_judge = True
        if self.storage.changed:
            self.foreign.claims_change(self.storage.changed, self.out)
            self.storage.changed.clear()
        groups = self.foreign.groups.version
        versions = self.storage.version, self.anti_affinity.version, groups, self.zones.least
        if self._judged == versions and not self._to_judge:
            return []
        repelled = self._judged[1:] != versions[1:]
        if self._judged[2] != groups:
            self.foreign.groups_change(self.out)
        self._judged, self._to_judge = versions, False
        if repelled:
            return [job for job in self.scope.jobs.values() if self.judge(job)]
        known = {id(job) for job in self.scope.jobs.values()} if self._mounting else set()
        self._mounting = {i: job for i, job in self._mounting.items() if id(job) in known}
        jobs = (
            job
            for job in self.scope.jobs.values()
            if job.plain or job.id in self._mounting or self.devices.concern(job)
        )
        return [job for job in jobs if self.constrain(job)]

    def judge(self, job: LiveJob) -> bool:
        """Like `constrain`, for a job of the scope: it is judged again when storage changes."""
        if any(content.claims for content in job.contents):
            self._mounting[job.id] = job
        return self.constrain(job)

    def constrain(self, job: LiveJob) -> bool:
        """Set which nodes the engine may use for a job; return whether that changed."""
        changed = self._constrain(job)
        document = written(job.asked, job.request)
        if document != job.constraints:
            job.constraints = self.out.writes.constraints[job.id] = document
        return changed

    def _constrain(self, job: LiveJob) -> bool:
        claims = [self._claims(job, keys) for keys in _keys(job)]
        ruled = self._rules(job, claims)
        parts = self._device_parts(job)
        zoned = any(map(self.zones.concern, job.asked.pod_sets))
        told = any(claims) or any(ruled) or self.anti_affinity or parts or zoned
        if not told and job.request is job.asked:
            return False
        if job.plain and job.state not in WAITING:
            # It is on its node, or will be, whatever becomes of its claims.
            until_now = [s.rules for s in job.request.pod_sets]
            sets_now = tuple(_with_rules(job.request.pod_sets, ruled))
            job.request = replace(job.asked, pod_sets=sets_now)
            return until_now != ruled
        before = job.request, job.volume_hold, job.node_note
        sets, notes, job.volume_hold = _with_rules(job.asked.pod_sets, ruled), [], None
        for index, names in enumerate(claims):
            for name in names:
                need = self._need(job, name)
                job.volume_hold = job.volume_hold or need.hold
                for terms in need.affinity:
                    sets[index] = _narrowed(sets[index], terms)
                    notes.append(f"Volume claim {name} is only for nodes with {said(terms)}.")
            if parts:
                job.volume_hold = job.volume_hold or parts[index].hold
                notes += parts[index].notes
                sets[index] = replace(sets[index], **parts[index].changes(sets[index]))
                for terms in parts[index].terms:
                    sets[index] = _narrowed(sets[index], terms)
            if terms := self.zones.terms(sets[index]):
                sets[index] = _narrowed(sets[index], terms)
                notes.append(
                    f"{sets[index].gpus} GPUs have to be of one NUMA zone where the kubelet wants "
                    f"that; so it needs nodes with {said(terms)}."
                )
            terms, keepers = self._kept_from(job, index)
            if terms:
                sets[index] = _narrowed(sets[index], terms)
                notes.append(
                    f"Pods with a required anti-affinity ({', '.join(keepers)}) leave only nodes "
                    f"with {said(terms)}."
                )
        job.request = replace(job.asked, pod_sets=tuple(sets))
        if job.request == job.asked:
            job.request = job.asked
        job.node_note = " ".join(dict.fromkeys(notes))
        return before != (job.request, job.volume_hold, job.node_note)

    def verdict_on(self, job: LiveJob, verdict: Verdict) -> Verdict:
        """Add why a job is held, or why few nodes suit it, which the engine does not know."""
        by_person = job.held or job.pod_hold or verdict.evidence
        if verdict.reason is Reason.ON_HOLD and job.volume_hold and not by_person:
            hold = job.volume_hold
            return Verdict(hold.reason, hold.text, {}, (hold.helps,))
        if job.node_note and verdict.reason in BY_NODES:
            summary = f"{verdict.summary.rstrip('.')}. {job.node_note}"
            return replace(verdict, summary=summary)
        return verdict

    # --- placed jobs ------------------------------------------------------------------------------
    def send(self, job: LiveJob, placed: Iterable[tuple[LivePod, Node]]) -> None:
        """Make and bind these pods on their nodes as soon as their volumes can be mounted.

        Pods of a gang go together. Repeating this is harmless: the gateway finds what exists.
        """
        found = [(pod, node, self._waits(job, pod, node)) for pod, node in placed]
        together = job.request.gang and any(waits for _, _, waits in found)
        ready = list[tuple[LivePod, Node]]()
        for pod, node, waits in found:
            if waits or together:
                pod.awaits = node
                self._awaiting[job.id] = job
            else:
                pod.awaits = None
                ready.append((pod, node))
        self.devices.send(job, ready)

    def _waits(self, job: LiveJob, pod: LivePod, node: Node) -> bool:
        """Whether a claim of the pod is not bound, or is bound for another node.

        The latter can happen if the claim was bound after the pod was placed, before a new
        scheduler looked.
        """
        needs = [self._need(job, name) for name in self._claims_of(job, pod)]
        return any(not need.can_be_mounted or not _is_for(need, node) for need in needs)

    def follow_volumes(self, now: float) -> None:
        """Send pods whose claims are bound; give back places where that will not happen.

        That is, a claim will not be bound, its volume is elsewhere, or there are no devices.
        """
        self.devices.follow(now)
        for job in list(self._awaiting.values()):
            pods = [p for p in job.pods.values() if p.awaits is not None and _is_to_come(p)]
            if pods and job.leaving is None and job.state in HOLDING:
                self._follow(job, pods, now)
            else:
                del self._awaiting[job.id]
                self._asked = {c: a for c, a in self._asked.items() if a.job_id != job.id}

    def _follow(self, job: LiveJob, pods: list[LivePod], now: float) -> None:
        mounts = {pod.key: self._claims_of(job, pod) for pod in pods}
        needs = {name: self._need(job, name) for names in mounts.values() for name in names}
        for name, need in needs.items():
            if not self._ask(job, name, need, [p for p in pods if name in mounts[p.key]], now):
                return
        ready = [p for p in pods if all(needs[name].can_be_mounted for name in mounts[p.key])]
        for pod in ready:
            for name in mounts[pod.key]:
                if pod.awaits is None or not _is_for(needs[name], pod.awaits):
                    text = f"The volume of claim {name} is not for node {pod.place.node}"
                    self.requeueing.displaced(job, [pod], ELSEWHERE, text, (), now)
                    return
        if len(ready) == len(pods) or not job.request.gang:
            self.send(job, [(pod, pod.awaits) for pod in ready if pod.awaits is not None])
        late = [
            p for p in pods if p.awaits and 0 < p.placed_at < now - self.scope.policy.gang_timeout_s
        ]
        if late:
            name = next(name for name, need in needs.items() if not need.can_be_mounted)
            waited = now - late[0].placed_at
            text = f"Volume claim {name} was not bound {waited:.0f} s after the placement"
            self.requeueing.displaced(job, late, NOT_BOUND, text, (), now)

    def _ask(self, job: LiveJob, name: str, need: Need, pods: list[LivePod], now: float) -> bool:
        """Have the claim's volume made for the node of the first of these pods.

        Returns False if that failed: the provisioner has rejected the node, and the pods have left.
        """
        claim, node = (job.namespace, name), pods[0].place.node
        asked = self._asked.get(claim)
        mine = asked is not None and asked.job_id == job.id
        if need.first is None:
            if asked is not None and mine and self.storage.selected_node(*claim):
                asked.seen = True
        elif asked is None:
            self._asked[claim] = _Asked(job.id, self.storage.refused(*claim))
            of = (job.id, name), job.namespace, name, need.first.uid, node
            self.out.effects.append(SelectNode(*of))
            text = f"A volume for claim {name} is to be made on node {node}"
            self.out.writes.notes.append(Note(job.id, job.state, SELECTED, text))
        elif mine and (asked.seen or self.storage.refused(*claim) > asked.refused):
            del self._asked[claim]
            text = f"No volume could be made for claim {name} on node {node}"
            self.requeueing.displaced(job, pods, NOT_BOUND, text, (node,), now)
            return False
        return True

    def selected(self, effect: SelectNode, outcome: CallOutcome, now: float) -> None:
        """Take in the result of telling a claim its node."""
        job_id, name = cast(tuple[str, str], effect.key)
        job = self._awaiting.get(job_id)
        if job is None or outcome.result is Result.DONE:
            return
        if outcome.result is Result.NOT_SENT:
            self._asked.pop((effect.namespace, name), None)
            return
        pods = [p for p in job.pods.values() if p.awaits and name in self._claims_of(job, p)]
        reason = NO_ANSWER if outcome.result is Result.FAILED else NOT_BOUND
        why = outcome.message or outcome.result
        text = f"Volume claim {name} could not be told its node {effect.node}: {why}"
        if pods and job.leaving is None:
            self.requeueing.displaced(job, pods, reason, text, (), now)

    def _device_parts(self, job: LiveJob) -> list[DevicePart]:
        """Return what device claims add to each pod set; [] = its pods have none."""
        if job.state not in WAITING:
            claimed = not job.plain and any(map(counts_devices, job.request.pod_sets))
        else:
            claimed = self.devices.are_claimed_by(job)
        if not claimed:
            return []
        return [self.devices.part(job, index) for index in range(len(job.asked.pod_sets))]

    # --- rules about other pods -------------------------------------------------------------------
    def _rules(self, job: LiveJob, claims: list[list[str]]) -> list[PodRules | None]:
        """Return the rules of each pod set, given the claims that it mounts."""
        sets, groups = job.asked.pod_sets, self.foreign.groups
        found: list[PodRules | None] = [None] * len(sets)
        for index, pod_set in enumerate(sets) if groups else ():
            uids = [ref.uid for key, ref in job.plain.items() if key[0] == index]
            rules = groups.rules_of(uids, self._namespace(job), self._labels(job, index))
            if rules is not None and (rules.spread or rules.evenly):
                rules = spread_over(rules, pod_set.nodes)
            found[index] = rules
        for index, names in enumerate(claims):
            if names:
                namespace = self._namespace(job)
                found[index] = self.storage.with_mounts(found[index], namespace, names)
        return found

    # --- pods that keep others away ---------------------------------------------------------------
    def _kept_from(self, job: LiveJob, pod_set: int) -> tuple[tuple[NodeTerm, ...], list[str]]:
        """Return what running pods require of a pod set's nodes, and the names of some of them."""
        terms, keepers = tuple[NodeTerm, ...](), dict[str, None]()
        for labels in self._labels(job, pod_set) if self.anti_affinity else ():
            found = self.anti_affinity.affinity(self._namespace(job), labels)
            if found:
                terms = both(terms, found)
                keepers.update(dict.fromkeys(self.anti_affinity.who(self._namespace(job), labels)))
        return terms, list(keepers)

    def _labels(self, job: LiveJob, pod_set: int) -> list[Mapping[str, str]]:
        """Return the labels of the pod set's pods.

        Pods made by Kant differ only in labels that Kant gives, so one stands for all.
        """
        if job.plain:
            return [ref.labels for key, ref in job.plain.items() if key[0] == pod_set]
        return [{**job.labels, **own_labels(job.id, job.request.tenant, job.attempt, pod_set, 0)}]

    def _namespace(self, job: LiveJob) -> str:
        """Return where its pods are, or will be."""
        placed = job.plain or job.state in HOLDING
        return job.namespace if placed else self.scope.namespaces.get(job.request.tenant, "")

    # --- claims -----------------------------------------------------------------------------------
    def _need(self, job: LiveJob, name: str) -> Need:
        return self.storage.need(self._namespace(job), name)

    def _claims_of(self, job: LiveJob, pod: LivePod) -> list[str]:
        return self._claims(job, [pod.key])

    def _claims(self, job: LiveJob, keys: Iterable[PodKey]) -> list[str]:
        """Return the names of the claims that these pods of one pod set mount."""
        if not job.plain:
            return list(job.contents[next(iter(keys))[0]].claims)
        mounted = (self._claims_of_pods.get(job.plain[key].uid, ()) for key in keys)
        return sorted({name for names in mounted for name in names})


def _keys(job: LiveJob) -> list[list[PodKey]]:
    """Return the pods of each pod set; pods made by Kant are alike, so one stands for all."""
    sets = range(len(job.asked.pod_sets))
    if not job.plain:
        return [[(index, 0)] for index in sets]
    return [[key for key in job.plain if key[0] == index] for index in sets]


def _with_rules(sets: Iterable[PodSetSpec], rules: Iterable[PodRules | None]) -> list[PodSetSpec]:
    pairs = zip(sets, rules, strict=True)
    return [s if s.rules == said else replace(s, rules=said) for s, said in pairs]


def _narrowed(pod_set: PodSetSpec, terms: tuple[NodeTerm, ...]) -> PodSetSpec:
    return replace(pod_set, nodes=narrowed(pod_set.nodes, terms))


def _is_to_come(pod: LivePod) -> bool:
    return pod.state is P.INTENDED and pod.leaving is None and not pod.in_flight


def _is_for(need: Need, node: Node) -> bool:
    return all(matches(node, terms) for terms in need.affinity)
