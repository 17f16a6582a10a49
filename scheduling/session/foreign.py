"""Pods for which no placement of the scope stands: counted where they hold something."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Set

from scheduling.engine.deltas import OtherPodChanged, OtherPodRemoved
from scheduling.kube.seam import DeletePod, PodFacts
from scheduling.session import pods as kant_pods
from scheduling.session.live import LivePod, Outbox

log = logging.getLogger(__name__)


class ForeignPods:
    """Which pods the engine counts as foreign, by uid.

    `mine` are the nodes of the scope, None = all there are. Pods on other nodes are only
    remembered, in case the node comes here. In a divided cluster a pod of Kant for which no
    placement stands may be another scope's: `leftovers` waits until that is known.
    """

    def __init__(self, mine: Set[str] | None = None) -> None:
        self.mine = mine
        self.leftovers: dict[str, PodFacts] = {}
        self._counted: set[str] = set()
        self._elsewhere: dict[str, PodFacts] = {}
        self._on_node: dict[str, set[str]] = defaultdict(set)  # uids of `_elsewhere`

    def seen(self, facts: PodFacts, out: Outbox) -> None:
        """Count what it holds; a leftover of Kant's own (no placement stands for it) is deleted."""
        if facts.finished or not facts.node:
            self.gone(facts.uid, out)
        elif self.mine is None or facts.node in self.mine or facts.uid in self._counted:
            self._counted.add(facts.uid)
            out.deltas.append(_held_by(facts))
        else:
            self._elsewhere[facts.uid] = facts
            self._on_node[facts.node].add(facts.uid)
        if facts.owned and not facts.deleting and not facts.finished:
            if self.mine is None:
                self._delete(facts, out)
            else:
                self.leftovers[facts.uid] = facts

    def gone(self, uid: str, out: Outbox) -> None:
        self.leftovers.pop(uid, None)
        if uid in self._counted:
            self._counted.discard(uid)
            out.deltas.append(OtherPodRemoved(uid))
        self._forget(uid)

    def adopt(self, pod: LivePod, out: Outbox) -> None:
        """A pod whose end nobody can confirm, counted until the API has forgotten it."""
        self._counted.add(pod.uid)
        out.deltas.append(OtherPodChanged(pod.uid, pod.place.node, len(pod.place.devices)))

    # --- a divided cluster ------------------------------------------------------------------------
    def node_arrived(self, node: str, out: Outbox) -> None:
        """Count what lies on a node that is the scope's from now on."""
        for uid in sorted(self._on_node.get(node, ())):
            self._counted.add(uid)
            out.deltas.append(_held_by(self._elsewhere[uid]))
            self._forget(uid)

    def not_of_kant(self) -> Iterable[OtherPodChanged]:
        """What pods hold on the nodes of other scopes that Kant has not placed there."""
        return (_held_by(facts) for facts in self._elsewhere.values() if not facts.owned)

    def delete_leftovers(self, is_mine: Callable[[Iterable[str]], Set[str]], out: Outbox) -> None:
        """Delete those whose jobs are this scope's; `is_mine` tells which of some jobs are."""
        found, self.leftovers = self.leftovers, {}
        jobs = {uid: who[0] for uid, f in found.items() if (who := kant_pods.identity(f.labels))}
        mine = is_mine(jobs.values())
        for uid, job_id in jobs.items():
            if job_id in mine:
                self._delete(found[uid], out)

    def _forget(self, uid: str) -> None:
        facts = self._elsewhere.pop(uid, None)
        if facts is not None:
            self._on_node[facts.node].discard(uid)
            if not self._on_node[facts.node]:
                del self._on_node[facts.node]

    def _delete(self, facts: PodFacts, out: Outbox) -> None:
        who = kant_pods.identity(facts.labels)
        if who is None:
            return
        job_id, attempt, key = who
        log.info("deleting pod %s: no placement stands for it", facts.name)
        out.effects.append(
            DeletePod((job_id, attempt, *key), facts.namespace, facts.name, facts.uid)
        )


def _held_by(facts: PodFacts) -> OtherPodChanged:
    gpus = facts.gpus + (1 if facts.gpu_milli else 0)
    return OtherPodChanged(facts.uid, facts.node, gpus, facts.cpu_milli, facts.memory_mib)
