"""A waiting job is told why it waits, and told again only when the reason changes."""

import dataclasses

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import JobRequest, PodSetSpec, QuotaSpec, TenantSpec
from tests.engine.scenario import job, node


def test_a_verdict_is_told_again_only_when_it_changed() -> None:
    state = SchedulerState()
    first = run_cycle(
        state,
        [
            d.NodeChanged(node("n0", 8)),
            d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 80000),)),
            *(d.JobSubmitted(job(f"j{i}", "a", "1x8 H100", at=i)) for i in range(50)),
        ],
        0.0,
    )
    assert len(first.started) == 1
    assert len(first.waiting) == 49
    for now in range(1, 50):
        more = d.JobSubmitted(job(f"k{now}", "a", "1x8 H100", at=100 + now))
        result = run_cycle(state, [more], float(now))
        assert [w.job_id for w in result.waiting] == [f"k{now}"]
    assert dataclasses.asdict(state.jobs["j7"].verdict)["reason"] == "InsufficientGpus"


def test_one_of_a_thing_is_told_in_the_singular() -> None:
    def told(*jobs: JobRequest, **tenant: int) -> str:
        tenants = d.TenantsChanged((TenantSpec("a", **tenant),), (QuotaSpec("a", "H100", 80000),))
        nodes = [d.NodeChanged(node("n0", 8)), tenants]
        result = run_cycle(SchedulerState(), [*nodes, *map(d.JobSubmitted, jobs)], 0.0)
        return result.waiting[-1].verdict.summary

    first, second = (job(name, "a", "1x4 H100", at=at) for at, name in enumerate(("j", "k")))
    assert told(first, second, max_running=1) == "Tenant a runs 1 job and may run 1 at once."
    after = dataclasses.replace(second, after=("j",))
    assert told(first, after) == "The job waits until 1 other job has ended."
    whole = job("k", "a", "1x8 H100", at=1)
    one = dataclasses.replace(first, pod_sets=(PodSetSpec("pods", 1, 7, ("H100",)),))
    assert told(one, job("k", "a", "1x2 H100", at=1)) == ("Needs 2 H100 GPUs at once; 1 is free.")
    assert told(whole, job("l", "a", "1x1 H100", at=2)) == ("Needs 1 H100 GPU at once; 0 are free.")
