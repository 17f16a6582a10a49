"""If a pod of Kant's holds more than its job requests, the surplus counts on its node."""

import pytest
from msgspec.structs import replace

from scheduling.engine.deltas import OtherPodChanged, OtherPodRemoved
from scheduling.engine.states import JobState
from scheduling.engine.types import JobRequest, PodPlacement, PodSetSpec
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.live import LiveJob, LivePod, PodRef
from scheduling.session.pods.follow import Lifecycle
from tests.scheduling.test_scope_of_session import pod

NAME = "uid beyond its job"


@pytest.mark.parametrize("end", [{"phase": "Succeeded"}, {"seen": False}], ids=["over", "gone"])
def test_what_a_pod_holds_beyond_its_job_counts_until_it_is_gone(end):
    life = Lifecycle()
    asks = JobRequest("job", "t", 0.0, (PodSetSpec("w", 1, 1, cpu_milli=1000, memory_mib=100),))
    job = LiveJob(asks, "job", (), JobState.RUNNING, 1, 1, plain={(0, 0): PodRef("p", "uid", {})})
    life.know(job)
    job.add(LivePod(PodPlacement(0, 0, "n", (0,), 1000), 1, "p", "H100", P.RUNNING, uid="uid"))
    runs = replace(pod("p", "n"), uid="uid", owned=True, namespace=job.namespace)

    def others(cpu_milli, memory_mib, seen=True, **more):
        del life.out.deltas[:]
        facts = replace(runs, cpu_milli=cpu_milli, memory_mib=memory_mib, **more)
        (life.pod_seen if seen else life.pod_gone)(facts, 1.0)
        kinds = OtherPodChanged, OtherPodRemoved
        return [d for d in life.out.deltas if isinstance(d, kinds) and d.uid == NAME]

    assert others(1000, 100) == []
    assert others(1500, 90) == [OtherPodChanged(NAME, "n", 0, 500, 0)]
    assert others(1500, 90) == []
    assert others(1500, 132) == [OtherPodChanged(NAME, "n", 0, 500, 32)]
    assert others(800, 100) == [OtherPodRemoved(NAME)]
    assert others(2000, 100) == [OtherPodChanged(NAME, "n", 0, 1000, 0)]
    assert others(2000, 100, **end) == [OtherPodRemoved(NAME)]
