"""Pods without a placement in this scope: counted where they hold something."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple, TypeVar

from scheduling.engine.deltas import OtherPodChanged, OtherPodRemoved
from scheduling.engine.types import PodRules
from scheduling.kube.seam import DeletePod, EmitEvent, PodFacts
from scheduling.session.memory.live import LivePod, Outbox, PodKey
from scheduling.session.memory.storage import ClaimName, Storage
from scheduling.session.pods import pod as kant_pods
from scheduling.session.pods.pod_rules import PodGroups

log = logging.getLogger(__name__)

NO_JOB = (
    "NotOfAJob",
    "It has labels that only Kant sets, on the pods that it creates (kant.io/job, "
    "kant.io/attempt, kant.io/pod-set, kant.io/ordinal): remove them, and Kant takes up the pod "
    "as a job",
    "Scheduling",
    "Warning",
)

UNKNOWN_JOB = (
    "UnknownJob",
    "The database of Kant has no job {job}: it was restored from a backup that is older than the "
    "pod, or belongs to another installation. The pod stays, and what it holds counts as in "
    "use; delete it if nobody needs it",
    "Scheduling",
    "Warning",
)

Key = TypeVar("Key")
Identity = tuple[str, int, PodKey]  # job, attempt, pod of the job


class LookedUp(NamedTuple):
    """Pods by uid, sorted by whose they are.

    - `others`: of other scopes' jobs.
    - `left`: of this scope's jobs, without a placement.
    - `copies`: not made by Kant.
    - `strays`: of jobs that are not in the database.
    """

    others: Set[str]
    left: Set[str]
    copies: Set[str]
    strays: Set[str]


# Looks up these pods, each with the job it names, by uid.
LookUp = Callable[[Mapping[str, tuple[PodFacts, str]]], LookedUp]


class ForeignPods:
    """The pods that the engine counts as foreign, by uid.

    `mine` are the nodes of the scope, None = all nodes. Pods on other nodes are only remembered, in
    case the node comes here. A pod that has the labels of Kant's own pods and no known placement
    may be a leftover, another scope's pod, somebody's copy, or a pod of a job that the database has
    lost; it waits in `leftovers` until it is looked up. In the last two cases the pod gets an
    Event. `groups`: the pods that rules select. `storage`: what mounting a claim means.
    """

    def __init__(self, mine: Set[str] | None = None) -> None:
        self.mine = mine
        self.groups = PodGroups()
        self.storage = Storage()
        self.leftovers: dict[str, tuple[PodFacts, Identity]] = {}
        self._strays: dict[str, str] = {}  # by uid of the pod: its job, which the database has lost
        self._counted: dict[str, PodFacts | None] = {}
        self._ruled: dict[str, PodRules] = {}  # of counted pods: what rules need to know
        self._mounting: dict[ClaimName, set[str]] = defaultdict(set)  # uids by claim
        self._more: dict[str, tuple[str, int, int]] = {}  # by uid of own pods: node, CPU, memory
        self._told_elsewhere: dict[str, PodRules] = {}  # of pods in `_elsewhere`, by uid
        self._told: set[str] = set()
        self._elsewhere: dict[str, PodFacts] = {}
        self._on_node: dict[str, set[str]] = defaultdict(set)  # uids of pods in `_elsewhere`

    def seen(self, facts: PodFacts, out: Outbox) -> None:
        """Count what the pod holds, and note whether it may be a leftover of Kant's own."""
        self.holds_more(facts.uid, "", 0, 0, out)
        if facts.finished or not facts.node:
            self._uncount(facts.uid, out)
            self._strays.pop(facts.uid, None)
        elif self.mine is None or facts.node in self.mine or facts.uid in self._counted:
            self._count(facts, out)
        else:
            self._elsewhere[facts.uid] = facts
            self._mounts(facts)
            self._tell_elsewhere(facts, out)
            self._on_node[facts.node].add(facts.uid)
        who = kant_pods.identity(facts.labels) if facts.owned else None
        if who and not facts.deleting and not facts.finished:
            self.leftovers[facts.uid] = facts, who
        else:
            self.leftovers.pop(facts.uid, None)

    def gone(self, uid: str, out: Outbox) -> None:
        self.leftovers.pop(uid, None)
        self._told.discard(uid)
        self._strays.pop(uid, None)
        self.holds_more(uid, "", 0, 0, out)
        self._uncount(uid, out)

    def holds_more(self, uid: str, node: str, cpu_milli: int, memory_mib: int, out: Outbox) -> None:
        """Count what an own pod holds beyond its job's request.

        It was resized in place, or others have added containers to it.
        """
        name, more = f"{uid} beyond its job", (node, cpu_milli, memory_mib)
        if not cpu_milli and not memory_mib:
            if self._more.pop(uid, None) is not None:
                out.deltas.append(OtherPodRemoved(name))
        elif self._more.get(uid) != more:
            self._more[uid] = more
            out.deltas.append(OtherPodChanged(name, node, 0, cpu_milli, memory_mib))

    def _count(self, facts: PodFacts, out: Outbox) -> None:
        change = self._held_by(facts)
        self._counted[facts.uid] = facts
        self._mounts(facts)
        self._ruled.pop(facts.uid, None)
        if change.rules is not None:
            self._ruled[facts.uid] = change.rules
        out.deltas.append(change)

    def _uncount(self, uid: str, out: Outbox) -> None:
        self._ruled.pop(uid, None)
        if uid in self._counted:
            if (facts := self._counted.pop(uid)) is not None:
                self._mounts_no_more(facts)
            out.deltas.append(OtherPodRemoved(uid))
        if uid in self._elsewhere:
            self._mounts_no_more(self._elsewhere[uid])
        if self._told_elsewhere.pop(uid, None) is not None:
            out.deltas.append(OtherPodRemoved(uid))
        self._forget(uid)

    def _mounts(self, facts: PodFacts) -> None:
        for name in facts.claims:
            self._mounting[facts.namespace, name].add(facts.uid)

    def _mounts_no_more(self, facts: PodFacts) -> None:
        for name in facts.claims:
            _discard(self._mounting, (facts.namespace, name), facts.uid)

    def _tell_elsewhere(self, facts: PodFacts, out: Outbox) -> None:
        """Tell the engine only the groups and exclusive volumes of a pod in another scope."""
        found = self._rules(facts)
        rules = PodRules(found.groups, sole=found.sole) if found is not None else PodRules()
        if rules == self._told_elsewhere.get(facts.uid, PodRules()):
            return
        if rules != PodRules():
            self._told_elsewhere[facts.uid] = rules
            out.deltas.append(OtherPodChanged(facts.uid, facts.node, rules=rules))
        else:
            del self._told_elsewhere[facts.uid]
            out.deltas.append(OtherPodRemoved(facts.uid))

    @property
    def lost_jobs(self) -> set[str]:
        """Jobs that have pods but are not in the database."""
        return set(self._strays.values())

    def adopt(self, pod: LivePod, out: Outbox) -> None:
        """Count a pod whose end nobody can confirm, until the API has forgotten it."""
        self._counted[pod.uid] = None
        out.deltas.append(OtherPodChanged(pod.uid, pod.place.node, len(pod.place.devices)))

    def placed(self) -> set[tuple[str, str, str]]:
        """Return (namespace, name, node) of all pods known to be on nodes, here or elsewhere."""
        counted = (facts for facts in self._counted.values() if facts is not None)
        pods = (*counted, *self._elsewhere.values())
        return {(facts.namespace, facts.name, facts.node) for facts in pods}

    # --- a divided cluster ------------------------------------------------------------------------
    def node_arrived(self, node: str, out: Outbox) -> None:
        """Count the pods on a node that has come to the scope."""
        for uid in sorted(self._on_node.get(node, ())):
            self._told_elsewhere.pop(uid, None)
            self._count(self._elsewhere[uid], out)
            self._forget(uid)

    def not_of_kant(self) -> Iterable[OtherPodChanged]:
        """Return what pods not made by Kant hold on the nodes of other scopes."""
        return (self._held_by(facts) for facts in self._elsewhere.values() if not facts.owned)

    def groups_change(self, out: Outbox) -> None:
        """Tell the engine again which groups pods belong to, as rules now select other pods."""
        self._tell_again(self._counted.values(), out)
        for facts in self._elsewhere.values():
            self._tell_elsewhere(facts, out)

    def claims_change(self, claims: Iterable[ClaimName], out: Outbox) -> None:
        """Tell the engine again what pods mount, as these claims may have changed."""
        uids = sorted({uid for name in claims for uid in self._mounting.get(name, ())})
        self._tell_again([self._counted.get(uid) for uid in uids], out)
        for uid in uids:
            if uid in self._elsewhere:
                self._tell_elsewhere(self._elsewhere[uid], out)

    def _tell_again(self, pods: Iterable[PodFacts | None], out: Outbox) -> None:
        for facts in list(pods):
            if facts is not None and self._rules(facts) != self._ruled.get(facts.uid):
                self._count(facts, out)

    def _rules(self, facts: PodFacts) -> PodRules | None:
        rules = self.groups.rules_of_other(facts)
        if not facts.claims:
            return rules
        return self.storage.with_mounts(rules, facts.namespace, facts.claims)

    def delete_leftovers(self, look_up: LookUp, out: Outbox) -> None:
        """Delete pods of this scope's jobs that have no placement; `look_up` sorts out which."""
        if not self.leftovers:
            return
        found = look_up({uid: (facts, who[0]) for uid, (facts, who) in self.leftovers.items()})
        for uid in sorted(found.left):
            self._delete(*self.leftovers[uid], out)
        for uid in sorted(found.copies):
            facts = self.leftovers[uid][0]
            if facts.plain is None and not facts.node:  # it waits and will not be bound
                self._tell(facts, NO_JOB, out)
        for uid in sorted(found.strays):
            facts, (job_id, _, _) = self.leftovers[uid]
            self._strays[uid] = job_id
            reason, text, *more = UNKNOWN_JOB
            self._tell(facts, (reason, text.format(job=job_id), *more), out)
        for uid in (*found.others, *found.left, *found.copies, *found.strays):
            del self.leftovers[uid]

    def _tell(self, facts: PodFacts, event: Sequence[str], out: Outbox) -> None:
        """Send the pod this Event, once."""
        if facts.uid not in self._told:
            self._told.add(facts.uid)
            log.warning("pod %s: %s", facts.name, event[1])
            out.effects.append(EmitEvent((), facts.namespace, facts.name, facts.uid, *event))

    def _forget(self, uid: str) -> None:
        facts = self._elsewhere.pop(uid, None)
        if facts is not None:
            _discard(self._on_node, facts.node, uid)

    def _held_by(self, facts: PodFacts) -> OtherPodChanged:
        gpus = facts.gpus + (1 if facts.gpu_milli else 0)
        held = gpus, facts.cpu_milli, facts.memory_mib, facts.extended
        return OtherPodChanged(facts.uid, facts.node, *held, self._rules(facts))

    def _delete(self, facts: PodFacts, who: Identity, out: Outbox) -> None:
        log.info("deleting pod %s: no placement stands for it", facts.name)
        job_id, attempt, key = who
        out.effects.append(
            DeletePod((job_id, attempt, *key), facts.namespace, facts.name, facts.uid)
        )


def _discard(known: dict[Key, set[str]], key: Key, uid: str) -> None:
    known[key].discard(uid)
    if not known[key]:
        del known[key]
