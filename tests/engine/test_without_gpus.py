"""Jobs without GPUs: on nodes without GPUs only, and in a queue of their own (decision 0036)."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.rehearse import copied, submitted
from scheduling.engine.types import (
    NO_GPUS,
    CpuJobs,
    JobKind,
    JobRequest,
    Nic,
    NodeRules,
    PodSetSpec,
    Policy,
    QueueingPolicy,
    Taint,
    TenantSpec,
)
from scheduling.engine.verdict import Reason
from tests.engine.scenario import job, node, play

# Nodes without GPUs come last; those with GPUs have CPU to spare.
SCENARIOS = {
    "it goes where no GPU is, and asks for no quota": """
        nodes  H100: 8 8 | : 0 0
        quota  a H100 0 isolated
        policy strict-fifo
        at 0
          + prep  a 2x0 * cpu_milli=100000 -> starts on n2 n3
          + train a 1x8 H100               -> ExceedsMaxQuota
    """,
    "its CPU is never that of GPUs, however much of it is idle": """
        nodes  H100: 8 8 | : 0/4000
        quota  a H100 16
        policy best-effort-fifo
        at 0
          + one  a 1x0 * cpu_milli=3000 -> starts on n2
          + two  a 1x0 * cpu_milli=3000 -> InsufficientCpuOrMemory pods_that_fit=0 usable_nodes=1
        at 1
          ends one
          two -> starts on n2
    """,
    "what no such node could ever hold is told at once, and is in nobody's way": """
        nodes  H100: 8 | : 0/4000 0/8000
        quota  a H100 16
        policy strict-fifo
        at 0
          + large  a 1x0     * cpu_milli=9000 p9 -> ExceedsCapacity asked_per_pod=9000
          + many   a 4x0     * cpu_milli=3000 p9 -> ExceedsCapacity possible_pods=3
          + sum    a 1x0+1x0 * cpu_milli=7000 p9 -> ExceedsCapacity asked=14000 installed=12000
          + some   a 9x0     * cpu_milli=4000 p9 pods -> starts 3 pods
        at 1
          ends some
          + least  a 9x0     * cpu_milli=4000 p9 min=3 -> starts 3 pods
    """,
    "no node without GPUs": """
        nodes  H100: 8
        quota  a H100 8
        policy strict-fifo
        at 0
          + prep  a 1x0 * cpu_milli=1 -> ExceedsCapacity nodes_without_gpus=0
          + train a 1x8 H100          -> starts
    """,
    "GPUs of an unknown model are GPUs": """
        nodes  H100: 8 | : 8 0/4000
        quota  a H100 8
        policy strict-fifo
        at 0
          + any   a 1x8 *                -> starts on n0
          + more  a 1x8 *                -> WaitingForQuota
          + prep  a 1x0 * cpu_milli=4000 -> starts on n2
          + next  a 1x0 * cpu_milli=4000 -> InsufficientCpuOrMemory
    """,
    "strict FIFO: it holds back its like, and neither pool the other": """
        nodes  H100: 8 | : 0/8000 0/8000
        quota  a H100 16
        policy strict-fifo
        at 0
          + r      a 1x4 H100                  -> starts
          + c      a 1x0 * cpu_milli=8000      -> starts on n1
          + head   a 2x0 * cpu_milli=8000      -> InsufficientCpuOrMemory
          + small  a 1x0 * cpu_milli=1000      -> BehindInQueue ahead=head
          + train  a 1x4 H100                  -> starts
          + wait   a 1x8 H100                  -> InsufficientGpus
          + prep   a 1x0 * cpu_milli=2000      -> BehindInQueue ahead=head
        at 1
          ends c
          head  -> starts on n1 n2
          small -> InsufficientCpuOrMemory
          prep  -> BehindInQueue
          wait  -> InsufficientGpus
        at 2
          ends head
          small -> starts
          prep  -> starts
    """,
    "strict FIFO: who waits for GPUs, or for quota, keeps no CPU back": """
        nodes  H100: 8 8 | : 0
        quota  a H100 8 isolated | b H100 8
        policy strict-fifo
        at 0
          + r      a 1x8 H100            -> starts
          + s      b 1x4 H100            -> starts
          + quota  a 1x8 H100            -> WaitingForQuota
          + gpus   b 1x8 H100            -> WaitingForQuota
          + prep   a 1x0 * cpu_milli=500 -> starts
          + more   b 1x0 * cpu_milli=500 -> starts
    """,
    "quota to borrow that is kept for others is nothing to it": """
        nodes  H100: 8 8 8 | : 0
        quota  a H100 8 | b H100 8 | c H100 8
        policy strict-fifo
        at 0
          + r      a 1x8 H100            -> starts
          + s      b 1x4 H100            -> starts
          + wide   a 2x8 H100            -> WaitingForQuota
          + prep   c 1x0 * cpu_milli=500 -> starts
    """,
    "a job with GPUs whose launcher is anywhere competes for its GPUs only": """
        nodes  H100: 8/128000 | : 0/8000
        quota  a H100 8
        policy strict-fifo
        at 0
          + c      a 1x0     *    cpu_milli=8000 -> starts on n1
          + head   a 1x0     *    cpu_milli=8000 -> InsufficientCpuOrMemory
          + both   a 1x8+1x0 H100 cpu_milli=1000 -> starts on n0
    """,
    "best-effort FIFO: what fits goes": """
        nodes  H100: 8 | : 0/8000
        quota  a H100 8
        policy best-effort-fifo
        at 0
          + c      a 1x0 * cpu_milli=5000 -> starts
          + head   a 1x0 * cpu_milli=8000 -> InsufficientCpuOrMemory
          + small  a 1x0 * cpu_milli=3000 -> starts
    """,
    "backfill: a reservation by declared times, on nodes without GPUs": """
        nodes  H100: 8 | : 0/8000
        quota  a H100 8
        policy backfill, backfill_after_s=1000
        at 0
          + c      a 1x0 * cpu_milli=5000 s=100 -> starts
          + head   a 1x0 * cpu_milli=8000       -> InsufficientCpuOrMemory
          + long   a 1x0 * cpu_milli=3000 s=500 -> ReservedForHead starts_at=100
          + train  a 1x8 H100             s=500 -> starts
        at 1
          + short  a 1x0 * cpu_milli=3000 s=50  -> starts
        at 100
          ends c short
          head -> starts
    """,
    "backfill: an overdue head closes its nodes, also to whom it could preempt if it did": """
        nodes  H100: 8 | : 0/8000
        quota  a H100 8
        policy backfill, backfill_after_s=50, preemption=backfill
        at 0
          + c      a 1x0 * cpu_milli=5000 -> starts
          + head   a 1x0 * cpu_milli=8000 -> InsufficientCpuOrMemory
          + small  a 1x0 * cpu_milli=1000 -> starts
        at 60
          + next   a 1x0 * cpu_milli=1000 -> ReservedForHead
          + train  a 1x4 H100             -> starts
        at 61
          ends c
          next -> ReservedForHead
        at 62
          ends small
          head -> starts
    """,
    "it takes nobody's place and loses none": """
        nodes  H100: 8 | : 0/8000
        quota  a H100 8 | b H100 0
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + c      a 1x0 *    cpu_milli=8000 -> starts
          + r      b 1x8 H100                -> starts borrowing 8
        at 9
          + head   a 1x0 *    cpu_milli=8000 p9 -> InsufficientCpuOrMemory
          + train  a 1x8 H100 p9                -> WaitingForPreemption
          r -> preempted for train
    """,
    "an elastic one grows, behind its like that wait": """
        nodes  H100: 8 | : 0/8000
        quota  a H100 8
        policy strict-fifo
        at 0
          + c      a 1x0 * cpu_milli=4000       -> starts
          + gang   a 3x0 * cpu_milli=2000 min=1 -> starts 2 pods
        at 1
          + head   a 1x0 * cpu_milli=8000       -> InsufficientCpuOrMemory
        at 2
          ends c
          gang -> BehindInQueue ahead=head
        at 3
          ends head
          gang -> starts 1 pods
    """,
    "limits of running jobs, dependencies and requeueing hold as for every job": """
        nodes  H100: 8 | : 0/8000
        quota  a H100 8
        tenant a max_running=1
        policy strict-fifo
        at 0
          + prep   a 1x0 *    cpu_milli=8000 -> starts
          + train  a 1x8 H100 after_ok=prep  -> OnHold
          + more   a 1x0 *    cpu_milli=8000 -> WaitingForQuota max_running=1
        at 1
          fails prep
          train -> Misconfigured
          more  -> starts
        at 2
          requeue more
          more -> BackingOff
        at 9
          more -> starts
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    play(SCENARIOS[name])


def prep(name, cpu=4000, *words, at=1.0, **fields):
    """A job of one pod without GPUs."""
    asked = job(name, "a", "1x0 *", f"cpu_milli={cpu}", *words, at=at)
    return replace(asked, pod_sets=(replace(asked.pod_sets[0], **fields),))


def small_cluster(policy="strict-fifo"):
    return play(f"""
        nodes  H100: 8@l0 8@l1 | : 0@l0/4000 0@l1/8000
        quota  a H100 16
        policy {policy}
        at 0
    """)


@pytest.mark.parametrize("queueing", QueueingPolicy)
@pytest.mark.parametrize(
    "asked",
    [
        {"cpu_milli": 4000},
        {"cpu_milli": 1, "memory_mib": 8000},
        {"cpu_milli": 1, "extended": {"x/y": 1}},
        {"cpu_milli": 2000, "count": 2},
        {"cpu_milli": 2000, "count": 4, "min_count": 2},
    ],
    ids=["CPU", "memory", "a resource", "a gang", "an elastic gang"],
)
@pytest.mark.parametrize("beside", [0, 8], ids=["no GPU free", "GPUs free"])
def test_where_it_may_be_anywhere_it_says_what_it_lacks_and_starts_when_that_is_there(
    queueing, asked, beside
):
    lone = node("n0", 8, cpu_milli=4000, memory_mib=8000, extended={"x/y": 1})
    policy = Policy(queueing=queueing, cpu_jobs_on_gpu_nodes=CpuJobs.FREELY)
    state = SchedulerState(policy=policy)
    jobs = [replace(prep(f"j{i}", **asked), id=f"j{i}") for i in range(3)]
    first: list[d.Delta] = [d.NodeChanged(lone), d.TenantsChanged((TenantSpec("a"),), ())]
    first += [d.NodeChanged(node("n1", beside, cpu_milli=0))] * bool(beside)
    result = run_cycle(state, [*first, *(d.JobSubmitted(each) for each in jobs)], 1.0)
    for done in jobs[:-1]:
        assert [start.job_id for start in result.started] == [done.id]
        for other in jobs[jobs.index(done) + 1 :]:
            verdict = state.jobs[other.id].verdict
            assert verdict is not None
            assert verdict.reason is Reason.INSUFFICIENT_CPU_OR_MEMORY
            assert "GPUs are free" not in verdict.summary
        result = run_cycle(state, [d.JobEnded(done.id)], 2.0)
    assert [start.job_id for start in result.started] == [jobs[-1].id]


WRONG = {
    "NICs": ({"nics": 1}, Reason.MISCONFIGURED, "asks for NICs, which come with GPUs"),
    "nothing": ({"cpu_milli": 0}, Reason.MISCONFIGURED, "asks for no GPU, CPU or memory"),
    "a selector": (
        {"nodes": NodeRules({"zone": "z"})},
        Reason.EXCEEDS_CAPACITY,
        "no node may run such pods: ",
    ),
    "one group": (
        {"count": 3, "required_level": "leaf"},
        Reason.EXCEEDS_CAPACITY,
        "the 2 nodes that may run such pods would hold 2 when empty",
    ),
    "a device that only GPU nodes have": (
        {"extended": {"v.com/card": 1}},
        Reason.EXCEEDS_CAPACITY,
        "Needs 1 pod without GPU, with 1 v.com/card per pod; the 2 nodes that may run such pods "
        "each have none",
    ),
}


@pytest.mark.parametrize("models", [(), ("H100",), (NO_GPUS,)])
@pytest.mark.parametrize("gang", [True, False])
def test_no_pod_without_gpus_waits_for_nics(models, gang):
    """This holds beside pods with GPUs too: whichever nodes have NICs, it would get none there."""
    world = small_cluster()
    world.pending.append(d.NodeChanged(replace(node("n0", 8), nics=(Nic(0), Nic(1)))))
    sets = (PodSetSpec("gpu", 1, 1), PodSetSpec("cpu", 1, 0, models, cpu_milli=1, nics=1))
    job = JobRequest("j", "a", 0.0, sets, gang=gang)
    world.pending.append(d.JobSubmitted(job))
    assert not world.cycle(1.0).started
    verdict = world.state.jobs["j"].verdict
    assert verdict.reason is Reason.MISCONFIGURED
    assert "'cpu': asks for NICs, which come with GPUs" in verdict.summary


@pytest.mark.parametrize("name", WRONG)
def test_what_can_never_be_is_said_with_its_numbers(name):
    fields, reason, text = WRONG[name]
    world = small_cluster()
    keep_out = (Taint("nvidia.com/gpu"),)
    facts = {"taints": keep_out, "extended": {"v.com/card": 4}, "labels": {"zone": "z"}}
    world.pending.append(d.NodeChanged(node("n0", 8, **facts)))
    world.pending.append(d.JobSubmitted(prep("bad", **fields)))
    world.pending.append(d.JobSubmitted(prep("good", 8000, at=2.0)))
    assert [start.job_id for start in world.cycle(2.0).started] == ["good"]
    verdict = world.state.jobs["bad"].verdict
    assert verdict.reason is reason
    assert text in verdict.summary
    assert not any("nvidia.com" in remedy for remedy in verdict.remedies)


def test_pods_may_ask_for_extended_resources_alone():
    world = small_cluster()
    world.pending.append(d.NodeChanged(node("n2", 0, "", extended={"v.com/fpga": 2})))
    asked = prep("fpga", 0, extended={"v.com/fpga": 1})
    world.pending.append(d.JobSubmitted(asked))
    (start,) = world.cycle(1.0).started
    assert [p.node for p in start.placements] == ["n2"]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("kind", JobKind)
def test_every_strategy_places_it(strategy, kind):
    world = small_cluster()
    world.pending.append(d.PolicyChanged(Policy(strategies=dict.fromkeys(JobKind, strategy))))
    gang = job("gang", "a", "2x0 *", "cpu_milli=2000", f"kind={kind.value}", at=1.0)
    pods = job("pods", "a", "9x0 *", "cpu_milli=2000", f"kind={kind.value}", "pods", at=2.0)
    world.pending += [d.JobSubmitted(gang), d.JobSubmitted(pods)]
    started = world.cycle(2.0).started
    assert [(s.job_id, len(s.placements)) for s in started] == [("gang", 2), ("pods", 4)]
    assert {p.node for s in started for p in s.placements} == {"n2", "n3"}
    assert world.state.cluster.cpu[world.state.cluster.slot_of["n2"]] == 0


def test_what_is_free_in_no_one_group_is_said_so():
    world = small_cluster()
    world.pending.append(d.JobSubmitted(prep("c", 3000)))
    world.cycle(1.0)
    gang = prep("gang", 2000, at=2.0, count=4, required_level="leaf")
    world.pending += [d.JobSubmitted(prep("more", 3000, at=1.5)), d.JobSubmitted(gang)]
    world.cycle(2.0)
    verdict = world.state.jobs["gang"].verdict
    assert verdict.reason is Reason.INSUFFICIENT_CPU_OR_MEMORY
    assert not {"asked_milli", "free_milli"} & verdict.evidence.keys()
    world.pending.append(d.NodeChanged(node("n4", 0, "", cpu_milli=4000, topology=("l2", "", ""))))
    world.cycle(3.0)
    verdict = world.state.jobs["gang"].verdict
    assert verdict.reason is Reason.FRAGMENTED_CAPACITY
    assert verdict.summary == (
        "Needs 4 pods without GPU. Nodes without GPUs have room, but no group holds them all; l1 "
        "holds the most, 2"
    )


def test_a_restored_one_keeps_its_place_and_grows_where_it_may():
    world = small_cluster()
    gang = job("gang", "a", "6x0 *", "cpu_milli=2000", "min=1", at=1.0)
    world.pending.append(d.JobSubmitted(gang))
    (start,) = world.cycle(1.0).started
    again = small_cluster()
    again.pending.append(d.JobRestored(gang, start.placements[:2], 1.0))
    (grown,) = again.cycle(2.0).started
    assert len(start.placements) == 6
    assert len(grown.placements) == 4
    again.pending.append(d.JobEnded("gang"))
    again.cycle(3.0)
    assert [again.state.cluster.cpu[slot] for slot in (2, 3)] == [4000, 8000]


def test_a_node_that_gets_gpus_is_used_no_more():
    world = small_cluster()
    world.pending += [d.NodeChanged(node(name, 8)) for name in ("n2", "n3")]
    world.pending.append(d.JobSubmitted(prep("c")))
    assert not world.cycle(1.0).started
    assert world.state.jobs["c"].verdict.evidence == {"nodes_without_gpus": 0}
    world.pending.append(d.NodeRemoved("n2"))
    world.pending.append(d.NodeChanged(node("n2", 0, "")))
    assert [start.job_id for start in world.cycle(2.0).started] == ["c"]


def test_it_is_rehearsed_without_other_gpu_models():
    world = small_cluster()
    gang = replace(prep("gang", 4000, at=2.0, count=9), pod_sets=(prep("x", 4000).pod_sets[0],))
    said = submitted(copied(world.state), d.JobSubmitted(gang), 2.0)
    assert (said.places.pods, said.quota, said.instead) == (1, (), ())
    world.pending.append(d.JobSubmitted(prep("c", 4000, "s=100")))
    world.cycle(2.0)
    said = submitted(copied(world.state), d.JobSubmitted(prep("gang", 4000, at=2.0, count=3)), 2.0)
    assert said.verdict.reason is Reason.INSUFFICIENT_CPU_OR_MEMORY
    assert said.room_at == 102.0
    assert [(other.gpu_model, other.pods) for other in said.instead] == [("", 2)]


def test_where_past_use_orders_the_queue_it_neither_counts_nor_divides():
    world = small_cluster("best-effort-fifo, fair_share=yes, fair_users=yes, usage_half_life_s=60")
    world.pending.append(d.JobSubmitted(prep("c", 4000)))
    world.cycle(1.0)
    run_cycle(world.state, [d.JobSubmitted(prep("next", 8000))], 100.0)
    assert world.state.shares().tenants.get("a", 0.0) == 0.0
    assert sorted(world.state.running) == ["c", "next"]
