"""Kant knows whether preemption could suffice without looking at every running job."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.preemption import preempt
from scheduling.engine.types import Policy, PreemptionKind, QuotaSpec, TenantSpec
from tests.engine.scenario import job, node

POLICY = Policy(preemption=(PreemptionKind.PRIORITY, PreemptionKind.RECLAIM), min_runtime_s=60.0)


def full(nodes: int = 4) -> SchedulerState:
    """Nodes of 8 GPUs, which preemptible jobs took at 0, 10, 20 and so on."""
    state = SchedulerState(policy=POLICY)
    tenants = (TenantSpec("a"), TenantSpec("b"))
    quotas = tuple(QuotaSpec(t.id, "H100", nodes * 8_000) for t in tenants)
    run_cycle(state, [d.TenantsChanged(tenants, quotas)], 0.0)
    for n in range(nodes):
        at = 10.0 * n
        come = [
            d.NodeChanged(node(f"n{n}", 8, "H100")),
            d.JobSubmitted(job(f"low-{n}", "a", "1x8 H100", at=at)),
        ]
        result = run_cycle(state, come, at)
        assert [start.job_id for start in result.started] == [f"low-{n}"]
    return state


def test_it_is_asked_again_when_enough_of_them_have_run_long_enough() -> None:
    state = full()
    high = job("high", "b", "3x8 H100", "p5", at=40.0)
    result = run_cycle(state, [d.JobSubmitted(high)], 40.0)
    assert not result.preempted
    # One job passes its minimum run time at 60, two at 70, and all three only at 80.
    assert result.next_at == 80.0
    assert not run_cycle(state, [], 79.0).preempted
    found = run_cycle(state, [], 80.0).preempted
    assert sorted(victim.job_id for victim in found) == ["low-0", "low-1", "low-2"]


@pytest.mark.interpreted
def test_a_blocked_job_that_may_take_from_nobody_looks_at_no_running_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = full()
    looked: list[object] = []
    victims = preempt.Victims
    monkeypatch.setattr(
        preempt, "Victims", lambda *args, **kw: looked.append(args) or victims(*args, **kw)
    )
    run_cycle(state, [d.JobSubmitted(job("equal", "b", "1x8 H100", at=500.0))], 500.0)
    assert not looked
    run_cycle(state, [d.JobSubmitted(job("above", "b", "1x8 H100", "p5", at=501.0))], 501.0)
    assert len(looked) == 1


@pytest.mark.parametrize("word", ["p9", "fixed"])
def test_a_change_of_a_running_job_counts(word: str) -> None:
    state = full(1)
    changed = d.JobSubmitted(job("low-0", "a", "1x8 H100", word))
    above = d.JobSubmitted(job("above", "b", "1x8 H100", "p5", at=100.0))
    assert not run_cycle(state, [changed, above], 100.0).preempted
    back = d.JobSubmitted(job("low-0", "a", "1x8 H100"))
    found = run_cycle(state, [back], 101.0).preempted
    assert [victim.job_id for victim in found] == ["low-0"]
