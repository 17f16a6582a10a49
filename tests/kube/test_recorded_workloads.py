"""Gangs of what real controllers made on a real API server (tests/kube/recorded)."""

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

# The gangs of each, with the least of each of their groups that starts together.
GANGS = {
    "jobset": {"JobSet/train": {"driver": 1, "workers": 4}},
    "jobset-depends-on": {"JobSet/steps/1": {"load": 1}},
}


def test_every_record_is_looked_at():
    assert sorted(GANGS) == sorted(each.name for each in recorded())


@pytest.mark.parametrize("each", recorded(), ids=lambda each: each.name)
def test_pods_of_a_real_controller_are_the_gangs_of_their_owner(each):
    owners = {owner["metadata"]["uid"]: owner for owner in each.owners}

    def read(reference):
        if reference.uid not in owners:
            raise Unknown(Unclear("OwnerGone", f"There is no {reference.kind}.", is_answer=True))
        return owner_facts(msgspec.convert(owners[reference.uid], KubeOwner)).found

    gangs, members = {}, Counter()
    for raw in each.pods:
        pod = translate(msgspec.json.decode(msgspec.json.encode(raw), type=KubePod))
        workload = workload_of(pod, read)
        assert workload.wait is None
        gangs[workload.gang] = {group.name: group.minimum for group in workload.groups}
        members[workload.gang, workload.group] += 1
    assert gangs == GANGS[each.name]
    for gang, groups in gangs.items():
        for group, least in groups.items():
            assert members[gang, group] >= least
