"""Dependencies, limits, faults and spares, as tables (see scenario.py)."""

import math
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import run_cycle
from scheduling.engine.verdict import Reason
from tests.engine.scenario import job, play

SCENARIOS = {
    "a job starts after the end of others": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + one   a 1x1 H100                  -> starts
          + two   a 1x1 H100 after=one        -> OnHold after=one
          + three a 1x1 H100 after=one,two    -> OnHold jobs=2
        at 1
          fails one
          two   -> starts
          three -> OnHold
        at 2
          ends two
          three -> starts
    """,
    "a job that waits for a success is told when there is none": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo
        at 0
          + one  a 1x1 H100              -> starts
          + two  a 1x1 H100 after_ok=one -> OnHold
          + next a 1x1 H100              -> starts
        at 1
          fails one
          two -> Misconfigured after=one
    """,
    "a job starts after the end of an array, which is the end of all its jobs": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + one   a 1x1 H100 array=sweep      -> starts
          + two   a 1x1 H100 array=sweep      -> starts
          + after a 1x1 H100 after=sweep      -> OnHold after=sweep jobs=2
          + ok    a 1x1 H100 after_ok=sweep   -> OnHold
        at 1
          ends one
          after -> OnHold
        at 2
          + three a 1x1 H100 array=sweep      -> starts
        at 3
          ends two
          after -> OnHold
        at 4
          ends three
          after -> starts
          ok    -> starts
        at 5
          + late  a 1x1 H100 after_ok=sweep   -> starts
    """,
    "a job that waits for the success of an array is told when one of its jobs failed": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + one   a 1x1 H100 array=sweep      -> starts
          + two   a 1x1 H100 array=sweep      -> starts
          + after a 1x1 H100 after=sweep      -> OnHold
          + ok    a 1x1 H100 after_ok=sweep   -> OnHold
        at 1
          fails one
          after -> OnHold
          ok    -> Misconfigured after=sweep
        at 2
          ends two
          after -> starts
          ok    -> Misconfigured
    """,
    "all links of a chain are told when one before them failed": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + one   a 1x1 H100                     -> starts
          + two   a 1x1 H100 after_ok=one        -> OnHold
          + three a 1x1 H100 after_ok=two        -> OnHold
          + four  a 1x1 H100 after_ok=three      -> OnHold
          + side  a 1x1 H100 after_ok=one        -> OnHold
          + joint a 1x1 H100 after_ok=four,side  -> OnHold
          + other a 1x1 H100 after=three         -> OnHold
        at 1
          fails one
          two   -> Misconfigured after=one
          three -> Misconfigured after=one
          four  -> Misconfigured after=one
          joint -> Misconfigured after=one
          other -> OnHold after=three
        at 2
          + late a 1x1 H100 after_ok=joint       -> Misconfigured after=one
        at 3
          change two after_ok=
          two   -> starts
          three -> OnHold after=two
          four  -> OnHold
          joint -> Misconfigured after=one
        at 64
          fails side
          joint -> Misconfigured after=side
        at 65
          ends two
          three -> starts
        at 66
          fails three
          four  -> Misconfigured after=three
          other -> starts
    """,
    "a held link dooms those behind it, and so does one that is cancelled": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo
        at 0
          + one   a 1x1 H100                -> starts
          + two   a 1x1 H100 after_ok=one   -> OnHold
          + three a 1x1 H100 after_ok=two   -> OnHold
          + four  a 1x1 H100 after_ok=three -> OnHold
        at 1
          hold two
          fails one
          two   -> OnHold
          three -> Misconfigured after=one
        at 62
          fails three
          four  -> Misconfigured after=three
    """,
    "an array is doomed with one of its jobs": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + one   a 1x1 H100                           -> starts
          + two   a 1x1 H100 after_ok=one array=sweep  -> OnHold
          + free  a 1x1 H100 array=sweep               -> starts
          + next  a 1x1 H100 after_ok=sweep array=more -> OnHold
          + last  a 1x1 H100 after_ok=more             -> OnHold
        at 1
          fails one
          next  -> Misconfigured after=one
          last  -> Misconfigured after=one
        at 2
          change two after_ok=
          two   -> starts
          next  -> OnHold
          last  -> OnHold
    """,
    "a tenant runs no more jobs than it may, whatever its quota": """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        tenant a max_running=2
        policy strict-fifo
        at 0
          + one   a 1x1 H100 -> starts
          + two   a 1x1 H100 -> starts
          + three a 1x1 H100 -> WaitingForQuota running=2 max_running=2
          + other b 1x1 H100 -> starts
        at 1
          ends one
          three -> starts
    """,
    "a gang that a fault stopped goes before all others of its priority": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo
        at 0
          + late a 1x8 H100 submitted_at=9 -> starts
        at 1
          + old  a 1x8 H100                -> InsufficientGpus
        at 10
          fault late
          late -> starts
          old  -> InsufficientGpus
    """,
    "pods that start one by one start beside the spares; a gang that could do without does too": """
        nodes  H100: 8 8 8
        quota  a H100 64
        policy best-effort-fifo, spare_nodes=H100:1
        at 0
          + alone a 1x4 H100            -> starts on n0
          + pods  a 5x4 H100 pods       -> starts 3 pods
        at 1
          ends alone
          ends pods
          + gang  a 3x8 H100 min=2      -> starts 2 pods
    """,
    "who is spread goes beside the spares where there is room": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, spare_nodes=H100:1
        at 0
          + one a 1x4 H100                 -> starts on n0
          + two a 1x2 H100 strategy=spread -> starts on n0
          + pod a 3x1 H100 pods strategy=spread -> starts on n0
    """,
    "spares are not taken by preemption either; the places of victims are no spares": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, spare_nodes=H100:1, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts on n0
        at 100
          + high a 1x8 H100 p9 -> WaitingForPreemption
          low -> preempted for high
        at 101
          gone low
          high -> starts
        at 102
          + fault a 1x8 H100 uses_spares=yes -> starts
        at 103
          + top  a 1x8 H100 p99 -> WaitingForPreemption
          fault -> preempted for top
    """,
    "spare nodes are kept free for those who may use them": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, spare_nodes=H100:1
        at 0
          + one   a 1x8 H100                 -> starts
          + two   a 1x8 H100                 -> InsufficientGpus spare_nodes=1
        at 1
          + three a 1x2 H100 uses_spares=yes -> starts
          + four  a 1x4 H100                 -> starts
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_life(name: str) -> None:
    play(SCENARIOS[name])


def test_a_state_that_begins_anew_is_told_since_when_its_head_is_blocked_and_who_was_in_front():
    text = """
        nodes  H100: 8
        quota  a H100 64
        policy backfill, backfill_after_s=60
        at 0
          + runs a 1x4 H100 -> starts
        at 1
          + head a 1x8 H100 -> InsufficientGpus
    """
    known = play(text)
    blocked = known.state.jobs["head"].blocked_since
    assert blocked == 1
    for since, starts in ((blocked, ()), (None, ("late",))):
        anew = play(text.replace("at 1\n", "at 50\n"))
        anew.pending = [
            d.JobHistory("head", ("x", "x"), since, front=True),
            d.JobSubmitted(job("late", "a", "1x4 H100", at=2)),
        ]
        result = anew.cycle(61)
        assert tuple(s.job_id for s in result.started) == starts
        record = anew.state.jobs["head"]
        assert (record.key[1], record.preemptions, record.preempted_by) == (-math.inf, 2, {"x"})
    ended = run_cycle(known.state, [d.JobEnded("runs")], 70)
    assert [(b.job_id, b.since) for b in ended.blocked] == [("head", None)]


def test_what_was_found_out_about_jobs_that_are_gone_is_forgotten():
    world = play("""
        nodes  H100: 8/4000
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + runs a 1x3 H100 cpu_milli=3000 -> starts
    """)
    sizes = []
    for i in range(5):
        name, now = f"job{i}", 100.0 * (i + 1)
        # A different shape each time: GPUs suffice, CPU does not.
        world.pending.append(d.JobSubmitted(job(name, "a", "1x4 H100", f"cpu_milli={2000 + i}")))
        world.cycle(now)
        assert world.state.jobs[name].verdict.reason == Reason.INSUFFICIENT_CPU_OR_MEMORY
        world.pending.append(d.JobEnded(name))
        sizes.append(len(world.state.memo._for_a_while))
    assert sizes == [1] * 5


def test_a_pod_that_found_no_place_after_all_is_placed_again_later_and_elsewhere():
    world = play("""
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, blame_s=100
        at 0
          + serves a 2x4 H100 pods -> starts on n0
    """)
    world.pending = [d.PodRequeued("serves", 0, 1, not_before=5, avoided_nodes=("n0",))]
    assert world.cycle(1).started == ()
    assert world.state.book.account("a", "H100").used == 4000
    (again,) = world.cycle(5).started
    assert [(p.ordinal, p.node) for p in again.placements] == [(1, "n1")]
    # An unknown node, or one already given back, changes nothing.
    world.pending = [d.PodRequeued("nobody", 0, 0, 9), d.PodRequeued("serves", 0, 7, 9)]
    assert world.cycle(6).started == ()


def test_a_job_that_avoids_the_nodes_that_rejected_it_is_told_so():
    world = play("""
        nodes  H100: 8 8 8/1000
        quota  a H100 64
        policy best-effort-fifo, blame_s=100
        at 0
          + one a 1x1 H100 cpu_milli=2000 -> starts on n0
    """)
    world.pending = [d.JobRequeued("one", 0.0, avoided_nodes=("n0",))]
    assert [s.placements[0].node for s in world.cycle(20).started] == ["n1"]
    world.pending = [d.JobRequeued("one", 0.0, avoided_nodes=("n1",))]
    assert world.cycle(50).started == ()
    told = world.state.jobs["one"].verdict
    assert told.reason is Reason.INSUFFICIENT_CPU_OR_MEMORY
    assert told.summary == (
        "Needs 1 × 1 H100. The free GPUs are enough for 8, but the CPU, memory, NICs and other "
        "resources beside them only for 0. Kant avoids 2 nodes that rejected pods of this job, n0 "
        "until 1970-01-01 00:02:00 UTC. Until then other jobs do not wait for it."
    )
    expected = {"pods_that_fit": 0, "avoided_nodes": 2, "avoided": "n0", "avoided_until": 120.0}
    assert told.evidence.items() >= expected.items()
    assert told.remedies[0] == "wait until the nodes are no longer avoided"
    # Once the first node is no longer avoided, the reason names only the second, where the job
    # later starts.
    world.pending = [d.NodeChanged(replace(world.state.cluster.node("n0"), schedulable=False))]
    assert world.cycle(130).started == ()
    told = world.state.jobs["one"].verdict
    assert "Kant avoids n1 until 1970-01-01 00:02:30 UTC: it rejected a pod of this job. It" in (
        told.summary
    )
    assert "it needs n0 (out of service), n1 (avoided until 1970-01-01 00:02:30 UTC" in told.summary
    assert [s.placements[0].node for s in world.cycle(150).started] == ["n1"]


def test_a_node_that_could_not_take_the_job_anyway_is_not_said_to_be_avoided():
    world = play("""
        nodes  H100: 8 8/1000
        quota  a H100 64
        policy best-effort-fifo, blame_s=100
        at 0
          + one  a 1x4 H100 cpu_milli=2000 -> starts on n0
    """)
    world.pending = [
        d.JobRequeued("one", 0.0, avoided_nodes=("n0",)),
        d.JobSubmitted(job("full", "a", "1x8 H100", "p9")),
    ]
    assert [s.job_id for s in world.cycle(1).started] == ["full"]
    told = world.state.jobs["one"].verdict
    assert told.reason is Reason.INSUFFICIENT_CPU_OR_MEMORY
    assert "avoided_nodes" not in told.evidence
    assert "needs n0 (avoided until 1970-01-01 00:01:41 UTC" in told.summary
    assert "avoided" not in told.evidence


def test_a_victim_that_its_disruption_budget_releases_is_found_at_once() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts
    """)
    world.pending = [
        d.DisruptionBudget("low", 0),
        d.JobSubmitted(job("high", "a", "1x8 H100", "p5")),
    ]
    assert world.cycle(1).preempted == ()
    world.pending = [d.DisruptionBudget("low", 0)]
    assert world.cycle(2).preempted == ()
    world.pending = [d.DisruptionBudget("low", None)]
    assert [p.job_id for p in world.cycle(3).preempted] == ["low"]


def test_pods_that_leave_already_count_against_a_disruption_budget() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 4x2 H100 pods -> starts
    """)
    world.pending = [
        d.DisruptionBudget("low", 1),
        d.JobSubmitted(job("one", "a", "1x2 H100", "p5")),
        d.JobSubmitted(job("two", "a", "1x2 H100", "p5", at=1)),
    ]
    first = world.cycle(1).preempted
    assert [(p.job_id, p.by, len(p.pods)) for p in first] == [("low", "one", 1)]
    assert world.cycle(2).preempted == ()
