"""LeaderWorkerSet: one gang per replica, a leader and its workers.

With the start-up policy LeaderReady the workers are created only once their leader is ready; they
are then a separate gang. Source: leaderworkerset.x-k8s.io/v1 LeaderWorkerSetSpec.
"""

from scheduling.kube.seam import GangGroup, PodFacts, Reference, Workload
from scheduling.kube.workloads.reading import Found, Rule, count_of, gang, part_of

KIND = "LeaderWorkerSet"
NAME = "leaderworkerset.sigs.k8s.io/name"
REPLICA = "leaderworkerset.sigs.k8s.io/group-index"
WORKER = "leaderworkerset.sigs.k8s.io/worker-index"


def named_by(pod: PodFacts) -> Reference | None:
    """Return the set that a label names: its pods are made by StatefulSets, not by the set."""
    name = pod.labels.get(NAME)
    return None if name is None else Reference("leaderworkerset.x-k8s.io/v1", KIND, name)


def read(pod: PodFacts, owner: Found) -> Workload:
    spec = part_of(owner, "spec")
    field = "spec.leaderWorkerTemplate.size"
    size = count_of(part_of(spec, "leaderWorkerTemplate"), "size", 1, field)
    leads = pod.labels.get(WORKER, "0") == "0"
    groups = [GangGroup("leader", 1), GangGroup("worker", max(size - 1, 0))]
    replica = pod.labels.get(REPLICA, "")
    if spec.get("startupPolicy") == "LeaderReady":
        groups = [group for group in groups if (group.name == "leader") == leads]
        replica = f"{replica}/{groups[0].name}"
    return gang(KIND, owner, groups, group="leader" if leads else "worker", part=replica)


RULE = Rule("leaderworkerset.x-k8s.io", KIND, "leaderworkersets", read)
