"""Pods that are not Kant's, or no longer: counted where they hold something."""

import logging

from scheduling.engine.deltas import OtherPodChanged, OtherPodRemoved
from scheduling.kube.seam import DeletePod, PodFacts
from scheduling.session import pods as kant_pods
from scheduling.session.live import LivePod, Outbox

log = logging.getLogger(__name__)


class ForeignPods:
    """Which pods the engine counts as foreign, by uid."""

    def __init__(self) -> None:
        self._counted: set[str] = set()

    def seen(self, facts: PodFacts, out: Outbox) -> None:
        """Count what it holds; a leftover of Kant's own (no placement stands for it) is deleted."""
        if facts.finished or not facts.node:
            self.gone(facts.uid, out)
        else:
            self._counted.add(facts.uid)
            gpus = facts.gpus + (1 if facts.gpu_milli else 0)
            out.deltas.append(
                OtherPodChanged(facts.uid, facts.node, gpus, facts.cpu_milli, facts.memory_mib)
            )
        who = kant_pods.identity(facts.labels) if facts.owned else None
        if who and not facts.deleting and not facts.finished:
            job_id, attempt, key = who
            log.info("deleting pod %s: no placement stands for it", facts.name)
            out.effects.append(
                DeletePod((job_id, attempt, *key), facts.namespace, facts.name, facts.uid)
            )

    def gone(self, uid: str, out: Outbox) -> None:
        if uid in self._counted:
            self._counted.discard(uid)
            out.deltas.append(OtherPodRemoved(uid))

    def adopt(self, pod: LivePod, out: Outbox) -> None:
        """A pod whose end nobody can confirm, counted until the API has forgotten it."""
        self._counted.add(pod.uid)
        out.deltas.append(OtherPodChanged(pod.uid, pod.place.node, len(pod.place.devices)))
