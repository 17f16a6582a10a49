"""A waiting job is told why it waits, and told again only when that changed."""

import dataclasses

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import Quota, Tenant
from tests.engine.scenario import job, node


def test_a_verdict_is_told_again_only_when_it_changed() -> None:
    state = SchedulerState()
    first = run_cycle(
        state,
        [
            d.NodeChanged(node("n0", 8)),
            d.TenantsChanged((Tenant("a"),), (Quota("a", "H100", 80000),)),
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
