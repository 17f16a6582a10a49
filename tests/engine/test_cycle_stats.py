"""What a cycle reports about its own work."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleStats
from scheduling.engine.memo import Memo
from scheduling.engine.types import Policy, PreemptionKind, QuotaSpec, TenantSpec
from tests.engine.scenario import job, node


def full(memo: Memo | None = None) -> SchedulerState:
    """One node; a job of priority 0 holds its 8 GPUs."""
    state = SchedulerState(policy=Policy(preemption=(PreemptionKind.PRIORITY,)), memo=memo)
    facts = [
        d.NodeChanged(node("n1", 8)),
        d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)),
        d.JobSubmitted(job("low", "a", "1x8 H100")),
    ]
    done = run_cycle(state, facts, 0.0)
    assert done.stats == CycleStats(walks=1, asked=1, attempts=1, starts=1)
    return state


def test_a_class_that_waits_is_asked_once_and_then_remembered() -> None:
    state = full()
    same = [d.JobSubmitted(job(f"w{i}", "a", "1x8 H100", at=1.0)) for i in range(5)]
    first = run_cycle(state, same, 1.0).stats
    assert (first.walks, first.asked, first.remembered, first.starts) == (1, 1, 0, 0)
    other = d.JobSubmitted(job("other", "a", "1x4 H100", at=2.0))
    again = run_cycle(state, [other], 2.0).stats
    assert (again.walks, again.asked, again.remembered, again.starts) == (1, 1, 1, 0)


def test_plans_of_a_preemption_are_counted() -> None:
    state = full()
    above = d.JobSubmitted(job("high", "a", "1x8 H100", "p9", at=1000.0))
    stats = run_cycle(state, [above], 1000.0).stats
    assert stats.plans == 1


def test_a_cycle_without_waiting_jobs_does_nothing() -> None:
    assert run_cycle(full(), [], 5.0).stats == CycleStats()


@pytest.mark.parametrize("memo", [Memo, Memo.off], ids=["remembers", "asks everybody"])
@pytest.mark.parametrize(
    "goes",
    [
        lambda job: d.JobEnded(job.id),
        lambda job: d.JobSubmitted(job, held=True),
        lambda job: d.JobSubmitted(job, not_before=1000.0),
        lambda job: d.JobChanged(replace(job, pod_sets=(replace(job.pod_sets[0], count=3),))),
    ],
    ids=["ends", "is held", "waits for its time", "becomes another shape"],
)
def test_a_job_that_came_and_left_its_class_again_lets_nobody_be_asked_twice(memo, goes) -> None:
    """The equivalence class that the job leaves empty does not count as one whose quota answer
    changed."""
    state = full(memo())
    waits, came = (job(name, "a", "2x8 H100", at=1.0) for name in ("waits", "came"))
    came = replace(came, priority=-1, pod_sets=(replace(came.pod_sets[0], count=2, gpus=4),))
    run_cycle(state, [d.JobSubmitted(waits)], 1.0)
    more = d.NodeChanged(node("n2", 4, "L4"))
    result = run_cycle(state, [more, d.JobSubmitted(came), goes(came)], 2.0)
    assert not result.started
    assert result.stats.walks == 1
