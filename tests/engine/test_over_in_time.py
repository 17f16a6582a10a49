"""Jobs that end before a head starts go before those that do not. The passing of time alone changes
which jobs end in time."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.memo import Memo
from scheduling.engine.types import Policy, QueueingPolicy, QuotaSpec, Sharing, TenantSpec
from tests.engine.scenario import job, node

MODELS = ("H100", "L4")
Told = list[tuple[float, str, float | None]]

# At 10 a head gets the H100 node from 100 on. Then a tenant that cannot start submits two jobs: the
# first would end by 100 if it started by 40, the second if it started by 80.
WAIT_FOR = {
    "a limit of jobs": {"most": 1},
    "the limit of its department": {"above": 1},
    "its quota": {"quota": 2_000, "asks": ("1x1 H100", "1x2 H100")},
    "what it would borrow": {"quota": 0, "lent": 2_000, "asks": ("1x1 H100", "1x2 H100")},
    "places of a model that it accepts, too": {"asks": ("1x4 H100|L4", "1x2 H100|L4")},
}


def history(
    state: SchedulerState,
    *,
    most: int | None = None,
    above: int | None = None,
    quota: int = 64_000,
    lent: int = 0,
    asks: tuple[str, str] = ("1x1 H100", "1x2 H100"),
) -> Told:
    """Return what was told of reservations: when, for which job, and the start."""
    tenants = (
        *(TenantSpec("a"), TenantSpec("dept", max_running=above)),
        *(TenantSpec("c", "dept", max_running=most), TenantSpec("lender", "dept")),
    )
    milli = {"a": 64_000, "dept": quota + lent, "c": quota, "lender": lent}
    quotas = [
        QuotaSpec(t, m, n, Sharing.SHARED, None, None if t in ("c", "lender") else 0)
        for t, n in milli.items()
        for m in MODELS
    ]
    facts: list[d.Delta] = [d.NodeChanged(node("n0", 8)), d.NodeChanged(node("n1", 4, "L4"))]
    facts += [d.TenantsChanged(tenants, tuple(quotas))]
    facts += [d.PolicyChanged(Policy(QueueingPolicy.BACKFILL, preemption=()))]

    def came(name: str, tenant: str, asked: str, *words: str, at: float) -> d.Delta:
        return d.JobSubmitted(job(name, tenant, asked, *words, at=at))

    steps: dict[float, list[d.Delta]] = {
        0.0: [
            *facts,
            came("long", "a", "1x5 H100", "s=100", at=0.0),
            came("c0", "c", "1x2 H100", "s=120", at=0.1),
            came("full", "a", "1x4 L4", "s=150", at=0.2),
        ],
        10.0: [came("head", "a", "1x6 H100", "s=100", "p9", at=1.0)],
        20.0: [
            came("first", "c", asks[0], "s=60", at=2.0),
            came("second", "c", asks[1], "s=20", at=3.0),
        ],
    }
    for now in (30.0, 41.0, 50.0, 81.0, 90.0):  # jobs that no other job waits for
        steps[now] = [came(f"new{now:g}", "a", "1x1 B300", at=now)]
    told: Told = []
    for now, deltas in steps.items():
        result = run_cycle(state, deltas, now)
        told += [(now, r.job_id, r.start_at) for r in result.reservations]
    return told


@pytest.mark.parametrize("name", WAIT_FOR)
def test_who_remembers_tells_the_same(name: str) -> None:
    anew = history(SchedulerState(memo=Memo.off()), **WAIT_FOR[name])
    assert history(SchedulerState(memo=Memo(check_share=1.0)), **WAIT_FOR[name]) == anew
    assert len(anew) > 1


@pytest.mark.parametrize("name", list(WAIT_FOR)[:4])
def test_the_first_to_wait_for_quota_or_a_limit_keeps_its_reservation(name: str) -> None:
    told = history(SchedulerState(), **WAIT_FOR[name])
    assert [(at, name) for at, name, _ in told] == [(10.0, "head"), (20.0, "first")]
