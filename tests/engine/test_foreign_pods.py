"""Foreign pods count on their nodes, whatever they request."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import Device, JobRequest, Node, PodSetSpec, QuotaSpec, TenantSpec
from scheduling.engine.verdict import Reason

TENANCY = d.TenantsChanged((TenantSpec("t"),), (QuotaSpec("t", "H100", 10**9),))
NODE = Node(
    "n0",
    "H100",
    tuple(Device(i) for i in range(8)),
    cpu_milli=32_000,
    memory_mib=64_000,
    max_pods=5000,
    extended={"x.io/thing": 1},
)


def ask(name: str, **amounts) -> d.JobSubmitted:
    return d.JobSubmitted(
        JobRequest(name, "t", 0.0, (PodSetSpec("pods", 1, 1, ("H100",), **amounts),))
    )


def cycle_beside(*others: d.OtherPodChanged, job: d.JobSubmitted):
    """Return the state, and the cycle that finds the job waiting beside these pods."""
    state = SchedulerState()
    return state, run_cycle(state, [TENANCY, d.NodeChanged(NODE), *others, job], 0.0)


@pytest.mark.parametrize("pods", [1, 2500])
def test_pods_that_ask_for_more_than_any_machine_fill_their_node(pods):
    """`9E` of CPU is 9 · 10²¹ milli, and the sum of many legal amounts can be as large."""
    amount = 9 * 10**21 if pods == 1 else 1 << 52
    every = {"x.io/thing": amount}
    others = [d.OtherPodChanged(f"u{i}", "n0", 0, amount, amount, every) for i in range(pods)]
    state, found = cycle_beside(*others, job=ask("j", cpu_milli=1000, extended={"x.io/thing": 1}))
    assert [w.verdict.reason for w in found.waiting] == [Reason.INSUFFICIENT_CPU_OR_MEMORY]
    gone = [d.OtherPodRemoved(other.uid) for other in others]
    assert [s.job_id for s in run_cycle(state, gone, 1.0).started] == ["j"]


def test_extended_resources_of_other_pods_are_counted():
    holder = d.OtherPodChanged("u", "n0", extended={"x.io/thing": 1})
    wants = ask("j", extended={"x.io/thing": 1})
    state, found = cycle_beside(holder, job=wants)
    assert [w.verdict.reason for w in found.waiting] == [Reason.INSUFFICIENT_CPU_OR_MEMORY]
    assert [s.job_id for s in run_cycle(state, [ask("other")], 1.0).started] == ["other"]
    assert [s.job_id for s in run_cycle(state, [d.OtherPodRemoved("u")], 2.0).started] == ["j"]
