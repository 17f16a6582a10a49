"""Jobs react to a node that reports a failed GPU, and to one that reports only the number of
GPUs."""

from scheduling.engine.states import JobState as S
from scheduling.models import NodeRecord

STRATEGIC = "strategic-merge-patch+json"


def tell_allocatable(world, node, gpus):
    """Report the number of GPUs as a device plugin does that does not name the failed one."""
    status = {"allocatable": {"nvidia.com/gpu": str(gpus)}}
    world.call("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, kind=STRATEGIC)


def test_a_fault_that_nothing_names_ends_no_job_and_keeps_new_ones_away(world):
    jobs = [world.submit(f"job-{i}", gpus=8) for i in range(4)]
    for job in jobs:
        world.drive_to(job, S.RUNNING)
    [place] = world.placements(jobs[0])
    tell_allocatable(world, place.node, 7)
    row = NodeRecord.objects.filter(name=place.node)
    world.drive(lambda: row.get().healthy_gpus == 7)
    assert row.get().facts["unnamed_unhealthy_gpus"]["value"] == 1
    assert "unhealthy_gpus" not in row.get().facts
    assert {world.state(job) for job in jobs} == {S.RUNNING}
    # When the job ends, its place is one GPU smaller.
    world.cancel(jobs[0])
    whole, fewer = world.submit("whole", gpus=8), world.submit("fewer", gpus=7)
    world.drive_to(fewer, S.RUNNING)
    assert world.state(whole) == S.QUOTA_RESERVED or world.state(whole) == S.PENDING
    assert [p.node for p in world.placements(fewer)] == [place.node]
    # With a named GPU, the fault costs its holder the place.
    held = world.placements(jobs[1])[0]
    world.fault("gpu-bad", node=held.node, gpu=3)
    world.drive(lambda: world.state(jobs[1]) != S.RUNNING)
