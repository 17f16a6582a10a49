"""Gangs of pods that real controllers made on a real API server (tests/kube/recorded)."""

import re
from collections import Counter

import msgspec
import pytest

from scheduling.kube.door.owners import KubeOwner, owner_facts
from scheduling.kube.seam import Unclear
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.pods import pod_translator
from scheduling.kube.workloads.registry import Unknown, workload_of
from tests.kube.recorded import recorded

translate = pod_translator("kant")

# The gangs of each workload, with the minimum of each group that starts together.
GANGS = {
    "jobset": {"JobSet/train": {"driver": 1, "workers": 4}},
    "jobset-depends-on": {"JobSet/steps/1": {"load": 1}},
    "jobset-in-order": {"JobSet/order/1": {"driver": 1}},
    "lws": {
        "LeaderWorkerSet/serve/0": {"leader": 1, "worker": 2},
        "LeaderWorkerSet/serve/1": {"leader": 1, "worker": 2},
    },
    "lws-leader-ready": {"LeaderWorkerSet/later/0/leader": {"leader": 1}},
    "mpijob": {"MPIJob/ring": {"launcher": 1, "worker": 2}},
    # Its launcher comes when the workers are ready.
    "mpijob-waits": {"MPIJob/late/workers": {"worker": 2}},
    "pytorchjob": {"PyTorchJob/tune": {"master": 1, "worker": 2}},
    "pytorchjob-elastic": {"PyTorchJob/grow": {"worker": 2}},
    # Any three of its four pods.
    "tfjob-min-available": {"TFJob/fit": {"": 3}},
    "trainjob": {"JobSet/train": {"node": 2}},
    "trainjob-mpi": {"JobSet/pi": {"launcher": 1, "node": 2}},
    "xgboostjob": {"XGBoostJob/boost": {"master": 1, "worker": 2}},
    "mpijob-of-training-operator": {"MPIJob/old": {"launcher": 1, "worker": 2}},
    "paddlejob": {"PaddleJob/paddle": {"worker": 3}},
    "raycluster": {"RayCluster/ray": {"headgroup": 1, "small": 2, "hosts": 2}},
    "rayjob": {"RayCluster/*": {"headgroup": 1, "small": 2, "hosts": 2}},
    "rayservice": {"RayCluster/*": {"headgroup": 1, "small": 2, "hosts": 2}},
}
ELASTIC = {"pytorchjob-elastic", "tfjob-min-available", "raycluster", "rayjob", "rayservice"}
# Which pods request no GPU: the leaders.
LEADERS = {
    "jobset": {"driver"},
    "jobset-depends-on": {"load"},
    "jobset-in-order": {"driver"},
    "lws": {"leader"},
    "lws-leader-ready": {"leader"},
    "mpijob": {"launcher"},
    "tfjob-min-available": {""},
    "raycluster": {"headgroup"},
    "rayjob": {"headgroup"},
    "rayservice": {"headgroup"},
    "mpijob-of-training-operator": {"launcher"},
}


def test_every_record_is_looked_at():
    assert sorted(GANGS) == sorted(each.name for each in recorded())


@pytest.mark.parametrize("each", recorded(), ids=lambda each: each.name)
def test_pods_of_a_real_controller_are_the_gangs_of_their_owner(each):
    owners = {owner["metadata"]["uid"]: owner for owner in each.owners}

    def read(reference):
        """Find an owner by uid; without a uid, by name, because pods may name an owner other than
        the one that made them."""
        asked = reference.kind, reference.name
        named = (o for o in each.owners if (o["kind"], o["metadata"]["name"]) == asked)
        found = owners.get(reference.uid) if reference.uid else next(named, None)
        if found is None:
            raise Unknown(Unclear("OwnerGone", f"There is no {reference.kind}.", is_answer=True))
        return owner_facts(msgspec.convert(found, KubeOwner)).found

    gangs, members, leaders = {}, Counter(), set()
    for raw in each.pods:
        pod = translate(msgspec.json.decode(msgspec.json.encode(raw), type=KubePod))
        workload = workload_of(pod, read)
        assert workload.wait is None
        assert workload.elastic is (each.name in ELASTIC)
        name = re.sub(
            r"(?<=^RayCluster/)(job|chat)-.*", "*", workload.gang
        )  # others have random names
        gangs[name] = {group.name: group.minimum for group in workload.groups}
        members[name, workload.group] += 1
        if not pod.gpus:
            leaders.add(workload.group)
    assert gangs == GANGS[each.name]
    assert leaders == LEADERS.get(each.name, set())
    for gang, groups in gangs.items():
        for group, least in groups.items():
            assert members[gang, group] >= least
