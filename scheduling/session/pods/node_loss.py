"""How long pods may stay on nodes that do not answer, or whose taint evicts them.

Only Kant makes its own jobs leave: at once if a taint evicts them, and after a while if their node
merely does not answer, as such nodes mostly come back. Plain pods leave as they say themselves
(`tolerationSeconds`): the taint-eviction controller of Kubernetes deletes them, and Kant gives up
those that a dead node cannot confirm.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from scheduling.engine.cluster.constraints import tolerates
from scheduling.engine.types import Policy, Taint, Toleration
from scheduling.kube.seam import NodeFacts
from scheduling.kube.translate.health import DEAD
from scheduling.session.memory.live import OVER, LiveJob, LivePod

Key = tuple[str, int, int]  # job, pod set and ordinal of a pod
EVICTING = "NoExecute"
DRIVEN = "has a taint that its pods do not tolerate"
GIVEN_UP = "does not respond, and its pods had to leave"


class NodeLoss:
    """Since when nodes have taints that evict."""

    def __init__(self) -> None:
        self._since: dict[str, dict[Taint, float]] = {}  # by node
        self._dead: set[str] = set()
        self._changed: set[str] = set()

    def seen(self, facts: NodeFacts, now: float) -> None:
        name, before = facts.node.name, self._since.pop(facts.node.name, {})
        taints = [taint for taint in facts.node.taints if taint.effect == EVICTING]
        if not taints:
            self.gone(name)
            return
        said = facts.tainted_at
        self._since[name] = {t: min(now, said.get(t, before.get(t, now))) for t in taints}
        self._changed.add(name)
        if any(taint.key in DEAD for taint in taints):
            self._dead.add(name)
        else:
            self._dead.discard(name)

    def gone(self, name: str) -> None:
        self._since.pop(name, None)
        self._dead.discard(name)
        self._changed.discard(name)

    def lost(
        self,
        jobs: Mapping[str, LiveJob],
        pods_on: Callable[[str], Iterable[Key]],
        policy: Policy,
        now: float,
        *,
        again: bool,
    ) -> dict[str, list[Key]]:
        """Return the pods that are to leave now, by what to say of their nodes.

        `again`: look at all nodes, not only at those where time counts or something changed.
        """
        nodes = self._since.keys() if again else self._dead | self._changed
        self._changed = set()
        found: dict[str, list[Key]] = {}
        for name in sorted(nodes):
            for key in pods_on(name):
                job = jobs.get(key[0])
                pod = job.pods.get(key[1:]) if job is not None else None
                if job is None or pod is None or pod.lost or pod.state in OVER:
                    continue
                if why := self._why(name, job, pod, policy, now):
                    found.setdefault(why, []).append(key)
        return found

    def _why(self, name: str, job: LiveJob, pod: LivePod, policy: Policy, now: float) -> str:
        """Return what to say of the node if the pod is to leave now; "" = it stays."""
        if job.plain:
            return GIVEN_UP if pod.going and name in self._dead else ""
        taints = self._since[name]
        patience = patience_of(job, policy)
        tolerations = job.request.pod_sets[pod.place.pod_set].nodes.tolerations
        for taint in _evicting(taints, tolerations):
            if taint.key not in DEAD:
                return DRIVEN
            if taints[taint] + patience <= now:
                return f"did not answer for {patience:.0f} s"
        return ""


def patience_of(job: LiveJob, policy: Policy) -> float:
    """Return how many seconds the job's pods stay on a node that does not answer.

    A job that saves its work, or has spare nodes, loses little by starting over.
    """
    saves = job.notice_s > 0 or job.saved_at > 0 or job.request.uses_spares
    return policy.node_loss_saved_s if saves else policy.node_loss_s


def _evicting(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Iterator[Taint]:
    return (taint for taint in taints if not any(tolerates(t, taint) for t in tolerations))
