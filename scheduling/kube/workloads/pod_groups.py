"""Group objects and marks of other schedulers: pods name their group themselves.

A group object says how many pods have to start together, not how many there will be; pods beyond
that start one by one once the gang has places. Sources: scheduling.k8s.io/v1alpha2 PodGroup
(Kubernetes 1.36), scheduling.x-k8s.io/v1alpha1 (coscheduling), scheduling.volcano.sh/v1beta1,
scheduling.run.ai/v2alpha2 (KAI), scheduler.grove.io/v1alpha1, and Kueue's "Run a group of pods".
"""

from collections.abc import Mapping
from typing import Any

from scheduling.kube.seam import AskedLevel, AskedTier, GangGroup, PodFacts, Reference, Workload
from scheduling.kube.workloads.contradiction import Contradicts
from scheduling.kube.workloads.levels import asked_by
from scheduling.kube.workloads.reading import (
    Found,
    Rule,
    count_of,
    gang,
    list_of,
    one_by_one,
    part_of,
)

KIND = "PodGroup"
NATIVE_VERSION, KAI_VERSION = "scheduling.k8s.io/v1alpha2", "scheduling.run.ai/v2alpha2"
COSCHEDULING_VERSION = "scheduling.x-k8s.io/v1alpha1"
VOLCANO_VERSION = "scheduling.volcano.sh/v1beta1"
COSCHEDULING = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
VOLCANO = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
VOLCANO_TASK = "volcano.sh/task-spec"
KAI = "pod-group-name"
KAI_GROUP = "kai.scheduler/subgroup-name"
GROVE = "grove.io/podgang"
# Marks of schedulers whose groups Kant does not read, as annotations or labels.
UNREAD = {
    "gang.scheduling.koordinator.sh/name": "Koordinator",
    "yunikorn.apache.org/task-group-name": "YuniKorn",
    "godel.bytedance.com/pod-group-name": "Gödel",
}
KUEUE_KIND = "KueuePodGroup"
KUEUE, KUEUE_COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


def named_by(pod: PodFacts) -> Reference | None:
    """Return the group object that the pod names."""
    labels, notes = pod.labels, pod.annotations
    if pod.plain is not None and pod.plain.scheduling_group:
        return Reference(NATIVE_VERSION, KIND, pod.plain.scheduling_group)
    for label in COSCHEDULING:
        if label in labels:
            return Reference(COSCHEDULING_VERSION, KIND, labels[label])
    for note in VOLCANO:
        if note in notes:
            return Reference(VOLCANO_VERSION, KIND, notes[note])
    if KAI in notes:
        return Reference(KAI_VERSION, KIND, notes[KAI])
    if GROVE in labels:
        return Reference("scheduler.grove.io/v1alpha1", "PodGang", labels[GROVE])
    return None


def unread(pod: PodFacts) -> tuple[str, str, str] | None:
    """Return (scheduler, mark, group name) if the pod names a group that Kant does not read."""
    said = {**pod.labels, **pod.annotations}
    return next(((by, mark, said[mark]) for mark, by in UNREAD.items() if mark in said), None)


def without_object(pod: PodFacts) -> Workload | None:
    """Return a pod group of Kueue, which exists only as labels of its pods. Raises Contradicts."""
    name = pod.labels.get(KUEUE)
    if name is None:
        return None
    field = f"annotation {KUEUE_COUNT}"
    total = count_of(pod.annotations, KUEUE_COUNT, 0, field)
    if not total:
        raise Contradicts(field, "Give the number of pods of the group.")
    return Workload(KUEUE_KIND, name, (GangGroup("", total),))


def read_native(_: PodFacts, found: Found) -> Workload:
    policy = part_of(found, "spec", "schedulingPolicy")
    if "gang" not in policy:
        return one_by_one(KIND, found)
    field = "spec.schedulingPolicy.gang.minCount"
    least = count_of(part_of(policy, "gang"), "minCount", 1, field)
    keys = list_of(part_of(found, "spec", "schedulingConstraints"), "topology")
    where = "spec.schedulingConstraints.topology.{}"
    asked = asked_by(keys[0], "key", "", where) if keys else ()
    more: dict[str, Any] = {"asked": asked, "version": NATIVE_VERSION}
    return gang(KIND, found, [GangGroup("", least)], elastic=True, **more)


def read_coscheduling(_: PodFacts, found: Found) -> Workload:
    least = count_of(part_of(found, "spec"), "minMember", 1, "spec.minMember")
    groups = [GangGroup("", least)]
    return gang(KIND, found, groups, elastic=True, version=COSCHEDULING_VERSION)


def read_volcano(pod: PodFacts, found: Found) -> Workload:
    spec = part_of(found, "spec")
    least = count_of(spec, "minMember", 1, "spec.minMember")
    more: dict[str, Any] = {"version": VOLCANO_VERSION, "asked": _volcano_tier(spec)}
    tasks = part_of(spec, "minTaskMember")
    groups = [GangGroup(t, count_of(tasks, t, 0, f"spec.minTaskMember.{t}")) for t in sorted(tasks)]
    if sum(group.minimum for group in groups) != least:
        # It is not said which tasks the other pods belong to.
        groups = [GangGroup("", least)]
        return gang(KIND, found, groups, elastic=True, **more)
    mine = pod.labels.get(VOLCANO_TASK, pod.annotations.get(VOLCANO_TASK, ""))
    return gang(KIND, found, groups, group=mine, elastic=True, **more)


def _volcano_tier(spec: Found) -> tuple[AskedTier, ...]:
    """Return the tier that the group asks for. Raises Contradicts.

    Without a tier Volcano only packs the pods, as Kant does anyway.
    """
    for policy in list_of(spec, "subGroupPolicy"):
        if part_of(policy, "networkTopology"):
            raise Contradicts(
                "spec.subGroupPolicy[].networkTopology",
                "Kant keeps either all pods of the group together, or none. Use a group of its "
                "own for each.",
            )
    network, field = part_of(spec, "networkTopology"), "spec.networkTopology.highestTier"
    name, tier = str(network.get("highestTierName") or ""), network.get("highestTierAllowed")
    if not name and tier is None:
        return ()
    required = network.get("mode") != "soft"
    allowed = count_of(network, "highestTierAllowed", 0, f"{field}Allowed")
    return (AskedTier(f"{field}{'Name' if name else 'Allowed'}", allowed, name, required),)


def read_kai(pod: PodFacts, found: Found) -> Workload:
    spec = part_of(found, "spec")
    more: dict[str, Any] = {"version": KAI_VERSION, "asked": _kai_levels(spec, "spec")}
    parents = {str(each.get("parent")) for each in list_of(spec, "subGroups")}
    leaves = [g for g in list_of(spec, "subGroups") if str(g.get("name")) not in parents]
    mine = pod.labels.get(KAI_GROUP, "")
    for group in list_of(spec, "subGroups"):
        name = str(group.get("name"))
        asked = _kai_levels(group, f"spec.subGroups[{name}]")
        if asked and name in parents:
            raise Contradicts(
                asked[0].field,
                "Kant keeps sub-groups that have pods together, and all pods of the group, but no "
                "sub-group of others. Say it of the group, or of each of them.",
            )
        if name == mine:
            more["asked_of_group"] = asked
    if not leaves:
        least = count_of(spec, "minMember", 1, "spec.minMember")
        return gang(KIND, found, [GangGroup("", least)], elastic=True, **more)
    groups = [_kai_group(group) for group in leaves]
    return gang(KIND, found, groups, group=mine, elastic=True, **more)


def _kai_levels(found: Mapping[str, Any], where: str) -> tuple[AskedLevel, ...]:
    topology, where = part_of(found, "topologyConstraint"), f"{where}.topologyConstraint.{{}}"
    return asked_by(topology, "requiredTopologyLevel", "preferredTopologyLevel", where)


def _kai_group(group: Mapping[str, Any]) -> GangGroup:
    name = str(group.get("name", ""))
    return GangGroup(name, count_of(group, "minMember", 1, f"spec.subGroups[{name}].minMember"))


def read_grove(pod: PodFacts, found: Found) -> Workload:
    groups, mine = [], ""
    for each in list_of(part_of(found, "spec"), "podgroups"):
        name = str(each.get("name", ""))
        field = f"spec.podgroups[{name}].minReplicas"
        groups.append(GangGroup(name, count_of(each, "minReplicas", 1, field)))
        if any(ref.get("name") == pod.name for ref in list_of(each, "podReferences")):
            mine = name
    return gang("PodGang", found, groups, group=mine, elastic=True)


RULES = (
    Rule("scheduling.k8s.io", KIND, "podgroups", read_native),
    Rule("scheduling.x-k8s.io", KIND, "podgroups", read_coscheduling),
    Rule("scheduling.volcano.sh", KIND, "podgroups", read_volcano),
    Rule("scheduling.run.ai", KIND, "podgroups", read_kai),
    Rule("scheduler.grove.io", "PodGang", "podgangs", read_grove),
)
