"""A victim that was made smaller: pods beyond its count are lost with the others and are not placed
again. What it can regain is considered before other jobs lose pods for it."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import Policy, PreemptionKind, QueueingPolicy, QuotaSpec, TenantSpec
from tests.engine.scenario import job, node

KINDS = ((PreemptionKind.PRIORITY,), (PreemptionKind.PRIORITY, PreemptionKind.RECLAIM))


def smaller(pods: int, count: int, ended: int, kinds: tuple[PreemptionKind, ...]):
    """Return a cluster filled by a service of `pods`, whose first `ended` pods end before it is
    made smaller, and by a job of lower priority from which it could take a place."""
    state = SchedulerState()
    run_cycle(
        state,
        [
            d.PolicyChanged(Policy(QueueingPolicy.BACKFILL, preemption=kinds, min_runtime_s=0)),
            d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), (
                QuotaSpec("a", "H100", 16_000), QuotaSpec("b", "H100", 16_000),
            )),
            d.NodeChanged(node("n0", pods)),
            d.JobSubmitted(job("service", "a", f"{pods}x1 H100", "pods"), 0.0, False),
        ],
        0.0,
    )  # fmt: skip
    assert len(state.jobs["service"].pods) == pods
    over = [d.PodEnded("service", 0, ordinal) for ordinal in range(ended)]
    low = job("low", "a", "1x1 H100", "p-5", at=5.0)
    beside = [d.NodeChanged(node("n2", 1)), d.JobSubmitted(low, 0.0, False)]
    run_cycle(state, beside, 5.0)
    assert [p.node for p in state.cluster.placements_of("low")] == ["n2"]
    run_cycle(state, over, 10.0)
    changed = d.JobChanged(job("service", "a", f"{count}x1 H100", "pods"))
    run_cycle(state, [changed], 20.0)
    return state


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize(("pods", "ended"), [(5, 2), (5, 1), (8, 3), (3, 0)])
@pytest.mark.parametrize("fewer", [1, 2])
def test_what_is_beyond_its_count_is_no_place_to_come_back_to(pods, ended, fewer, kinds):
    state = smaller(pods, pods - fewer, ended, kinds)
    held = len(state.jobs["service"].pods)
    urgent = job("urgent", "b", f"1x{pods} H100", "p9", at=30.0)
    other = d.NodeChanged(node("n1", pods - 1))  # room for its return, too little for `urgent`
    result = run_cycle(state, [other, d.JobSubmitted(urgent, 0.0, False)], 30.0)
    assert held == pods - ended
    assert {victim.job_id for victim in result.preempted} == {"service"}
    assert sum(len(victim.pods) for victim in result.preempted) == held
    gone = [d.PodEnded(v.job_id, *pod) for v in result.preempted for pod in v.pods]
    result = run_cycle(state, gone, 40.0)
    assert "urgent" in {start.job_id for start in result.started}
