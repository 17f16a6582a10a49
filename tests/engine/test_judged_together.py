"""Pods that accept several GPU models, GPU shares, pods without GPUs: the cycle decides."""

import pytest

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.deltas import (
    JobEnded,
    JobSubmitted,
    NodeChanged,
    PolicyChanged,
    TenantsChanged,
)
from scheduling.engine.types import (
    CpuJobs,
    JobKind,
    JobRequest,
    PodSetSpec,
    Policy,
    QuotaSpec,
    TenantSpec,
)
from tests.engine.fleet import gpu_node, pods

QUOTAS = TenantsChanged(
    (TenantSpec("tenant"),), tuple(QuotaSpec("tenant", model, 1_000_000) for model in ("A", "B"))
)


def policy(strategy, allowed=CpuJobs.NEVER):
    return Policy(strategies=dict.fromkeys(JobKind, strategy), cpu_jobs_on_gpu_nodes=allowed)


class World:
    def __init__(self, strategy, *nodes, allowed=CpuJobs.NEVER):
        self.state, self.now = SchedulerState(policy=policy(strategy, allowed)), 0.0
        self.cycle(QUOTAS, *map(NodeChanged, nodes))

    def cycle(self, *deltas):
        self.now += 1
        return run_cycle(self.state, deltas, self.now)

    def submit(self, name, pod_set, **facts):
        """Return where the pods of a job go; () if it waits."""
        job = JobRequest(name, "tenant", self.now, (pod_set,), **facts)
        result = self.cycle(JobSubmitted(job))
        return tuple(p.node for s in result.started if s.job_id == name for p in s.placements)


def two_models(cpu_a=32_000, cpu_b=32_000):
    return (
        *(gpu_node(f"a{i}", gpus=4, model="A", cpu_milli=cpu_a) for i in range(2)),
        *(gpu_node(f"b{i}", gpus=4, model="B", cpu_milli=cpu_b) for i in range(2)),
    )


def ask(world, times=6):
    """Submit pods that insist on model A, again and again; each leaves at once."""
    for number in range(times):
        name = f"only-a-{number}"
        world.submit(name, pods(1, 1, gpu_models=("A",), cpu_milli=1000))
        world.cycle(JobEnded(name, succeeded=True))


@pytest.mark.parametrize("accepts", [("A", "B"), ("B", "A"), ()])
def test_a_model_that_others_insist_on_is_kept_for_them(accepts):
    world = World("fragmentation", *two_models())
    ask(world)
    assert world.submit("x", pods(1, 1, gpu_models=accepts, cpu_milli=1000))[0][0] == "b"


def test_what_packs_keeps_the_order_of_preference_but_any_model_is_judged_together():
    world = World("e-binpack", *two_models())
    ask(world)
    world.submit("share", pods(1, 1, gpu_models=("A",), gpu_milli=500, cpu_milli=1000))
    world.cycle(JobEnded("share", succeeded=True))
    ask(world)
    assert world.submit("named", pods(1, 1, gpu_models=("A", "B"), cpu_milli=1000))[0][0] == "a"
    assert world.submit("any", pods(1, 1, cpu_milli=1000))[0][0] == "b"


@pytest.mark.parametrize("strategy", ["fragmentation", "e-binpack"])
def test_quota_and_taints_go_before_what_fits_best(strategy):
    world = World(strategy, *two_models())
    ask(world)
    world.cycle(TenantsChanged((TenantSpec("tenant"),), (QuotaSpec("tenant", "A", 8000),)))
    assert world.submit("x", pods(1, 1, cpu_milli=1000))[0][0] == "a"


@pytest.mark.parametrize("strategy", ["fragmentation", "e-binpack"])
def test_a_share_fills_the_gap_that_fits_it(strategy):
    """E-Binpack behaves as on its own: 300 fill the 300 that are left, rather than 200 that would
    leave a useless 100."""
    nodes = [gpu_node(f"n{i}", gpus=1, model="A") for i in range(3)]
    world = World(strategy, *nodes)
    for name, milli in (("p", 700), ("q", 800), ("r", 300), ("s", 200)):
        assert world.submit(name, pods(1, 1, gpu_milli=milli))
    free = [world.state.cluster.left_of_device(node.name, 0) for node in nodes]
    assert sorted(free) == [0, 0, 1000]


def test_a_gang_of_small_pods_still_shares_its_nodes_where_shares_are_in_use():
    nodes = [gpu_node(f"n{i}", model="A", leaf=f"l{i // 2}") for i in range(6)]
    world = World("e-binpack", *nodes)
    world.submit("share", pods(1, 1, gpu_milli=500))
    found = world.submit("gang", pods(4, 4))
    assert len(set(found)) == 2
    assert len({int(node[1:]) // 2 for node in found}) == 1


# --- pods without GPUs ----------------------------------------------------------------------------
CPU = PodSetSpec("cpu", 2, 0, cpu_milli=8000)


@pytest.mark.parametrize("strategy", ["fragmentation", "e-binpack", "binpack", "spread"])
def test_jobs_without_gpus_use_gpu_nodes_only_where_the_policy_says_so(strategy):
    nodes = two_models()
    assert World(strategy, *nodes).submit("cpu", CPU) == ()
    world = World(strategy, *nodes, allowed=CpuJobs.FREELY)
    assert len(world.submit("cpu", CPU)) == 2
    with_one = (*nodes, gpu_node("c", gpus=0, model="", cpu_milli=16_000))
    assert set(World(strategy, *with_one).submit("cpu", CPU)) == {"c"}
    if strategy != "spread":
        world = World(strategy, *with_one, allowed=CpuJobs.FREELY)
        assert set(world.submit("cpu", CPU)) == {"c"}


def test_a_job_that_waits_starts_when_the_policy_lets_it_use_gpu_nodes():
    world = World("e-binpack", *two_models())
    assert world.submit("cpu", CPU) == ()
    started = world.cycle(PolicyChanged(policy("e-binpack", CpuJobs.FREELY))).started
    assert [s.job_id for s in started] == ["cpu"]
    world.cycle(PolicyChanged(policy("e-binpack")))
    assert world.submit("other", CPU) == ()


def test_a_pod_without_gpus_goes_where_the_gpus_are_gone():
    nodes = [gpu_node(f"n{i}", gpus=2, model="A", cpu_milli=32_000) for i in range(2)]
    world = World("fragmentation", *nodes, allowed=CpuJobs.FREELY)
    (full,) = world.submit("gpu", pods(1, 2, cpu_milli=8000))
    assert world.submit("cpu", PodSetSpec("cpu", 1, 0, cpu_milli=16_000)) == (full,)
