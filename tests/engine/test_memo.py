"""What the memo remembers, when that stops being true, and how it finds its own errors."""

import math

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.memo import Finding, Found, Memo, Question
from scheduling.engine.types import Policy, PreemptionKind, QueueingPolicy, QuotaSpec, TenantSpec
from tests.engine.scenario import job, node


class Thing:
    """Something that answers may be about."""

    about = "a thing"

    def __init__(self) -> None:
        self.found: Found = {}


class Doubled(Question):
    """Doubles its argument and counts how often it computes."""

    def __init__(self) -> None:
        super().__init__("doubled")
        self.asked = 0

    def work_out(self, state, subject, depends_on) -> int:
        self.asked += 1
        return 2 * depends_on


def remembering(**how) -> Memo:
    """Return the memo of a state in which nothing happens; its time is 0."""
    return SchedulerState(memo=Memo(**how)).memo


def test_an_answer_stands_until_what_it_depends_on_changes() -> None:
    memo, thing, doubled = remembering(), Thing(), Doubled()
    assert [memo.answer(doubled, thing, n) for n in (1, 1, 3, 3, 1)] == [2, 2, 6, 6, 2]
    assert doubled.asked == 3
    memo.forget("doubled", thing)
    assert memo.recall(doubled, thing, 1) is None


def test_an_answer_stands_until_its_time_is_over() -> None:
    state, thing, doubled = SchedulerState(), Thing(), Doubled()
    state.memo.note(doubled, thing, 2, 1, until=10.0)
    state.cluster.now = 9.9
    assert state.memo.recall(doubled, thing, 1).answer == 2
    state.cluster.now = 10.0
    assert state.memo.recall(doubled, thing, 1) is None


def test_nothing_is_recalled_where_it_is_off() -> None:
    memo, thing, doubled = Memo.off(), Thing(), Doubled()
    SchedulerState(memo=memo)
    assert [memo.answer(doubled, thing, 1) for _ in range(3)] == [2, 2, 2]
    assert doubled.asked == 3
    memo.note_for(math.inf, "key", "answer")
    assert memo.lately("key") is None
    assert not memo.since_assessed().nothing
    assert not memo.since_assessed().nothing


def test_what_is_kept_for_a_while_goes_when_its_time_is_over() -> None:
    state = SchedulerState()
    state.memo.note_for(5.0, "a", 1)
    state.cluster.now = 4.0
    assert state.memo.lately("a") == 1
    state.cluster.now = 5.0
    assert state.memo.lately("a") is None
    state.memo.note_for(5.0, "b", 2)
    assert list(state.memo._for_a_while) == ["b"]


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_is_one(share: float) -> None:
    with pytest.raises(ValueError, match="give a share of 0 to 1"):
        Memo(check_share=share)


def test_a_share_of_the_answers_is_checked() -> None:
    memo, thing, doubled = remembering(check_share=0.2), Thing(), Doubled()
    for _ in range(5_000):
        assert memo.answer(doubled, thing, 1) == 2
    checked, wrong, told = memo.take_checks()
    assert checked == doubled.asked - 1
    assert 900 < checked < 1_100
    assert (wrong, told) == (0, ())
    assert memo.take_checks() == (0, 0, ())


def test_a_wrong_answer_is_told_with_both() -> None:
    memo, thing, doubled = remembering(check_share=1.0), Thing(), Doubled()
    thing.found["doubled"] = Finding(7, 1)
    assert memo.answer(doubled, thing, 1) == 7
    assert memo.take_checks() == (1, 1, (("doubled", "a thing", "7", "2"),))


# --- the engine finds itself wrong ----------------------------------------------------------------
def full(policy: Policy, memo: Memo) -> SchedulerState:
    """One job fills a node; another job of its tenant waits and has been told why."""
    state = SchedulerState(policy=policy, memo=memo, refresh_s=math.inf)
    quota = QuotaSpec("a", "H100", 64_000)
    facts = [d.NodeChanged(node("n1", 8)), d.TenantsChanged((TenantSpec("a"),), (quota,))]
    low = d.JobSubmitted(job("low", "a", "1x8 H100"))
    waits = d.JobSubmitted(job("waits", "a", "1x8 H100", "p1", at=1.0))
    run_cycle(state, [*facts, low], 0.0)
    for now in (1.0, 2.0):
        result = run_cycle(state, [waits] if now == 1.0 else [], now)
        assert not result.wrong
    state.dirty = True
    result = run_cycle(state, [], 3.0)
    assert not result.wrong
    return state


def free_unnoticed(state: SchedulerState) -> None:
    """Free the job's place without changing a version, as if the code had forgotten to."""
    cluster = state.cluster
    before = cluster.version, cluster.gains
    cluster.release("low", 0, 0)
    cluster.forget_gains(*before)


POLICIES = {
    "nobody in the way": Policy(QueueingPolicy.BEST_EFFORT_FIFO),
    "strict": Policy(QueueingPolicy.STRICT_FIFO),
    "backfill": Policy(QueueingPolicy.BACKFILL, backfill_after_s=100),
    "preemption": Policy(
        QueueingPolicy.BEST_EFFORT_FIFO,
        preemption=(PreemptionKind.PRIORITY,),
        min_runtime_s=10_000,
    ),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_a_class_that_is_passed_by_wrongly_is_told(policy: Policy) -> None:
    state = full(policy, Memo(check_share=1.0))
    free_unnoticed(state)
    state.dirty = True
    result = run_cycle(state, [], 4.0)
    assert not result.started, "the memo was to be wrong"
    assert result.stats.wrong >= 1
    assert {wrong.subject for wrong in result.wrong} == {"the class of job waits"}
    assert {wrong.anew for wrong in result.wrong} == {"True"}


def test_what_is_not_checked_is_not_found_wrong() -> None:
    state = full(POLICIES["strict"], Memo())
    free_unnoticed(state)
    state.dirty = True
    result = run_cycle(state, [], 4.0)
    assert (result.started, result.wrong, result.stats.checked) == ((), (), 0)


def test_an_engine_without_memory_notices() -> None:
    state = full(POLICIES["strict"], Memo.off())
    free_unnoticed(state)
    state.dirty = True
    assert [start.job_id for start in run_cycle(state, [], 4.0).started] == ["waits"]
