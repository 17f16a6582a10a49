"""Shards: every node is in exactly one scope, and no device is given twice while nodes change
hands."""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduling.engine.deltas import JobRestored, JobSubmitted, OtherPodChanged, TenantsChanged
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.shards.division import (
    WHOLE,
    WIDE,
    able_to_hold,
    declaration_problems,
    demand_of,
    home_of,
    is_overfull,
    regrouped,
    room,
    route,
    scopes_of,
    without_nodes,
)
from scheduling.engine.shards.lending import WideOutlook
from scheduling.engine.types import CpuJobs, PodPlacement, PodSetSpec, QuotaSpec, Shard, TenantSpec
from scheduling.engine.verdict import Reason
from tests.cases import examples, seeds
from tests.engine.fleet import cluster_of, gpu_node, job_of, place, pods

SHARDS = (Shard("north", ("H800",), ("s0",)), Shard("l40", ("L40",)), Shard("rest"))
TENANCY = TenantsChanged((TenantSpec("tenant"),), (QuotaSpec("tenant", "H800", 1_000_000),))
MISTAKES = {
    "the name of the scope above": ((Shard(WIDE),), (0, "name")),
    "one name twice": ((Shard("a", ("H800",)), Shard("a")), (1, "name")),
    "nodes of no shard": ((Shard("a", ("H800",)),), (0, "gpu_models")),
    "groups of no shard": ((Shard("a", (), ("s0",)),), (0, "groups")),
    "nothing is left for the last": ((Shard("a"), Shard("b")), (0, "gpu_models")),
}


def test_a_good_declaration():
    assert declaration_problems(SHARDS) == []
    assert declaration_problems(()) == []
    assert scopes_of(SHARDS) == ("north", "l40", "rest", WIDE)
    assert scopes_of(()) == (WHOLE,)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_declaration(mistake):
    shards, where = MISTAKES[mistake]
    ((*found, why),) = declaration_problems(shards)
    assert tuple(found) == where
    assert why.endswith(".")


def test_homes():
    assert home_of(gpu_node("a", leaf="l0", spine="s0"), SHARDS) == "north"
    assert home_of(gpu_node("b", leaf="l0", spine="s0", model="L40"), SHARDS) == "l40"
    assert home_of(gpu_node("c"), SHARDS) == "rest"
    assert home_of(gpu_node("c"), ()) == WHOLE


def nodes(count, **facts):
    return {
        f"n{i}": gpu_node(f"n{i}", leaf=f"l{i // 2}", spine=f"s{i // 4}", **facts)
        for i in range(count)
    }


# --- routing --------------------------------------------------------------------------------------
def routed(job, shards, asked=None):
    return route(job, shards, asked or {}, "e-binpack")


def test_a_job_goes_where_most_room_is():
    shards = {
        "a": cluster_of(*nodes(4).values()),
        "b": cluster_of(*nodes(2).values()),
    }
    small = job_of("j", pods(1, 8, gpu_models=("H800",)))
    assert routed(small, shards) == "a"
    assert routed(small, shards, {"a": [(("H800",), 24_000)]}) == "b"
    assert routed(small, shards, {"a": [(("L40",), 24_000)]}) == "a"
    assert room(small, shards["b"], [((), 24_000)]) == -8_000


def test_only_a_shard_that_could_hold_all_of_it_gets_a_job():
    shards = {
        "big": cluster_of(*nodes(4).values()),
        "small": cluster_of(*nodes(2).values()),
    }
    full = {"big": [((), 32_000)]}
    assert routed(job_of("j", pods(3, 8)), shards, full) == "big"
    assert routed(job_of("j", pods(5, 8)), shards) == WIDE
    assert routed(job_of("j", pods(5, 8, min_count=2)), shards) == "big"
    assert routed(job_of("j", pods(5, 8), gang=False), shards) == WIDE
    assert routed(job_of("j", pods(4, 8, required_level="leaf")), shards) == WIDE
    assert routed(job_of("j", pods(1, 8, gpu_models=("L40",))), shards) == WIDE
    # Nothing can hold what no shard understands: the job stays and is told so.
    assert routed(job_of("j", pods(1, 8, required_level="continent")), shards) == "big"


def test_a_shard_without_its_full_nodes_holds_less():
    shards = {
        "big": cluster_of(*nodes(4).values()),
        "small": cluster_of(gpu_node("m0"), gpu_node("m1")),
    }

    def able(job, *full):
        return able_to_hold(job, without_nodes(shards, full), "e-binpack")

    two = job_of("j", pods(2, 8))
    assert able(two) == ["big", "small"]
    assert able(two, "m0", "n0", "n1") == ["big"]
    assert able(two, "n0", "n1", "n2") == ["small"]
    assert able(two, "m0", "n0", "n1", "n2") == []
    # No shard holds what none understands; the shards are unchanged.
    assert able(job_of("j", pods(1, 8, required_level="continent"))) == []
    assert able(two) == ["big", "small"]


@pytest.mark.parametrize("gang", [True, False])
@pytest.mark.parametrize(
    ("sets", "asked", "never", "freely"),
    [
        ([pods(1, 0, cpu_milli=4_000)], {}, "cpu", "big"),
        ([pods(1, 0, cpu_milli=8_000)], {}, "cpu", "big"),
        ([pods(1, 0, cpu_milli=20_000)], {}, WIDE, "big"),
        ([pods(4, 0, cpu_milli=20_000)], {}, WIDE, "big"),
        ([pods(3, 0, cpu_milli=20_000)], {"big": 90_000}, WIDE, "big"),
        ([pods(2, 0, cpu_milli=20_000)], {"big": 90_000}, WIDE, "small"),
        ([pods(1, 0, cpu_milli=4_000)], {"big": 90_000, "small": 50_000}, "cpu", "small"),
        ([pods(1, 0, cpu_milli=4_000)], {"big": 99_000, "small": 63_999}, "cpu", "cpu"),
        ([pods(5, 0, cpu_milli=20_000)], {}, WIDE, WIDE),
        ([pods(2, 0, cpu_milli=20_000), pods(2, 0, cpu_milli=4_000)], {}, WIDE, "big"),
    ],
)
def test_a_job_without_gpus_goes_where_it_may_be(sets, asked, never, freely, gang):
    """Four and two GPU nodes with 25,000 and 32,000 milli-CPU each, and one node without GPUs."""
    shards = {
        "small": cluster_of(*nodes(2, cpu_milli=32_000).values()),
        "big": cluster_of(*nodes(4, cpu_milli=25_000).values()),
        "cpu": cluster_of(gpu_node("c0", gpus=0, model="", cpu_milli=8_000)),
    }
    job = job_of("j", *sets, gang=gang)
    ahead = {
        name: demand_of(job_of("ahead", pods(1, 0, cpu_milli=cpu))) for name, cpu in asked.items()
    }
    assert route(job, shards, ahead, "e-binpack") == never
    assert route(job, shards, ahead, "e-binpack", CpuJobs.FREELY) == freely
    for name, state in shards.items():
        left = room(job, state, ahead.get(name, ()), CpuJobs.FREELY)
        installed = {"small": 64_000, "big": 100_000, "cpu": 8_000}[name]
        assert left == installed - asked.get(name, 0)
        demand = demand_of(job_of("x", pods(1, 0, cpu_milli=installed)))
        assert not is_overfull(state, demand, CpuJobs.FREELY)
        assert is_overfull(state, [*demand, *demand], CpuJobs.FREELY)


def test_a_job_without_gpus_goes_where_most_cpu_is_on_nodes_without_gpus():
    north = gpu_node("c0", gpus=0, model="", cpu_milli=8_000)
    south = (gpu_node(f"c{i}", gpus=0, model="", cpu_milli=8_000) for i in (1, 2))
    parts = gpu_node("cut", gpus=0, model="", gpu_parts=True)
    shards = {
        "gpus": cluster_of(*nodes(4).values(), parts),
        "north": cluster_of(north, gpu_node("g")),
        "south": cluster_of(*south),
    }
    assert {home_of(node, SHARDS) for node in (north, parts)} == {"rest"}
    prep = job_of("j", pods(1, 0, cpu_milli=4_000))
    assert [room(prep, state, ()) for state in shards.values()] == [0, 8_000, 16_000]
    assert routed(prep, shards) == "south"
    asked = {"south": 3 * demand_of(prep), "north": [(("H800",), 99_000), ((), 99_000)]}
    assert routed(prep, shards, asked) == "north"
    assert [is_overfull(shards["south"], n * demand_of(prep)) for n in (4, 5)] == [False, True]
    assert not is_overfull(shards["north"], [(("H800",), 8_000), *demand_of(prep)])
    assert routed(job_of("j", pods(3, 0, cpu_milli=8_000)), shards) == WIDE
    # Jobs with GPUs do not compete for its CPU.
    small = job_of("j", pods(1, 8, gpu_models=("H800",)))
    assert room(small, shards["north"], demand_of(prep)) == 8_000


# --- a changed declaration ------------------------------------------------------------------------
def test_nodes_go_home_with_their_jobs_or_wide_together():
    homes = {"n0": "a", "n1": "a", "n2": "b", "n3": "b", "n4": "c"}
    jobs = {"inside": ("n0", "n1"), "across": ("n2", "n4"), "beside": ("n3",)}
    moved, with_them = regrouped("c", homes, jobs)
    assert moved == {"n0": "a", "n1": "a", "n2": WIDE, "n3": "b", "n4": WIDE}
    assert with_them == {"inside": "a", "across": WIDE, "beside": "b"}


def test_jobs_join_nodes_over_several_steps():
    homes = {"n0": "a", "n1": "a", "n2": "a", "n3": "b"}
    jobs = {"x": ("n0", "n1"), "y": ("n2", "n3"), "z": ("n1", "n2", "unknown")}
    assert regrouped("a", homes, jobs) == (dict.fromkeys(homes, WIDE), dict.fromkeys(jobs, WIDE))


def test_nothing_moves_when_all_is_at_home():
    assert regrouped("a", {"n0": "a"}, {"x": ("n0",)}) == ({}, {})


# --- lending --------------------------------------------------------------------------------------
def test_what_would_start_on_idle_nodes():
    job = job_of("j", pods(3, 8))
    known = [TENANCY, JobSubmitted(job)]
    result = WideOutlook().what_if(known, nodes(4), {"n1"}, 0.0)
    assert {p.node for p in result.started[0].placements} == {"n0", "n2", "n3"}
    result = WideOutlook().what_if(known, nodes(4), {"n1", "n2"}, 0.0)
    assert result.started == ()
    # The verdict is about the whole cluster, not the nodes lent so far.
    assert result.waiting[0].verdict.reason is Reason.INSUFFICIENT_GPUS


def test_the_least_loaded_nodes_are_emptied():
    taken = {f"n{i}": 1000 * (i % 8 + 1) for i in range(40)}
    job = job_of("j", pods(6, 8))
    wanted = WideOutlook().nodes_to_empty([TENANCY], job, nodes(42), taken, 0.0)
    assert len(wanted) == 6
    assert sum(taken.get(name, 0) for name in wanted) <= 8 * 2000
    assert (
        WideOutlook().nodes_to_empty([TENANCY], job_of("j", pods(43, 8)), nodes(42), taken, 0.0)
        == frozenset()
    )


def test_what_the_wide_scope_runs_is_not_asked_for_again():
    running = job_of("r", pods(1, 8))
    place_of = PodPlacement(0, 0, "n0", tuple(range(8)), 1000)
    known = [TENANCY, JobRestored(running, (place_of,), 0.0)]
    job = job_of("j", pods(2, 8))
    assert WideOutlook().nodes_to_empty(known, job, nodes(3), {"n1": 4000, "n2": 8000}, 0.0) == {
        "n1",
        "n2",
    }


def test_for_a_gang_that_would_grow_no_nodes_are_asked_for_and_none_emptied():
    elastic = job_of("e", PodSetSpec("pods", 4, 8, min_count=1))
    place_of = PodPlacement(0, 0, "n0", tuple(range(8)), 1000)
    known = [TENANCY, JobRestored(elastic, (place_of,), 0.0)]
    small = JobSubmitted(job_of("s", pods(1, 8)))
    result = WideOutlook().what_if([*known, small], nodes(8), (), 0.0)
    assert [start.job_id for start in result.started] == ["s"]
    taken = {f"n{i}": 1000 * i for i in range(1, 24)}
    job = job_of("j", pods(12, 8))
    wanted = WideOutlook().nodes_to_empty(known, job, nodes(24), taken, 0.0)
    assert len(wanted) == 12


# --- hand over ------------------------------------------------------------------------------------
class Handover(RuleBasedStateMachine):
    """Two shards and the wide scope; nodes move by the rules of docs/decisions/0003-shards.md."""

    def __init__(self):
        super().__init__()
        self.nodes = nodes(8)
        shards = (Shard("north", (), ("s0",)), Shard("rest"))
        self.homes = {name: home_of(node, shards) for name, node in self.nodes.items()}
        self.scopes = {name: cluster_of() for name in scopes_of(shards)}
        self.empty = {name: cluster_of() for name in ("north", "rest")}
        self.row = dict(self.homes)  # the scope column of the node rows
        for name, scope in self.homes.items():
            self.scopes[scope].upsert_node(self.nodes[name])
            self.empty[scope].upsert_node(self.nodes[name])
        self.running = {}
        self.serial = 0

    @rule(count=st.integers(1, 6), gpus=st.sampled_from((1, 4, 8)))
    def submit(self, count, gpus):
        self.serial += 1
        job = job_of(f"j{self.serial}", pods(count, gpus))
        scope = route(job, self.empty, {}, "e-binpack")
        if scope == WIDE:
            self.lend(job)
        if not isinstance(place(self.scopes[scope], job), PlacementFailure):
            self.running[job.id] = scope

    def lend(self, job):
        taken = [n for n in self.nodes if any(s.pods_on(n) for s in self.scopes.values())]
        for start in (
            WideOutlook().what_if([TENANCY, JobSubmitted(job)], self.nodes, taken, 0.0).started
        ):
            for name in {p.node for p in start.placements}:
                if self.row[name] != WIDE:
                    self.move(name, self.row[name], WIDE)

    def move(self, name, source, target):
        assert self.scopes[source].remove_node(name) == ()
        assert self.row[name] == source  # the guarded update
        self.row[name] = target
        self.scopes[target].upsert_node(self.nodes[name])

    @rule(data=st.data())
    def end(self, data):
        if self.running:
            job = data.draw(st.sampled_from(sorted(self.running)))
            self.scopes[self.running.pop(job)].release_job(job)

    @rule()
    def give_back(self):
        for name, scope in self.row.items():
            if scope == WIDE and not self.scopes[WIDE].pods_on(name):
                self.move(name, WIDE, self.homes[name])

    @invariant()
    def one_scope_a_node_and_no_device_twice(self):
        held = set()
        for scope, state in self.scopes.items():
            for name in self.nodes:
                assert (state.node(name) is not None) == (self.row[name] == scope)
            for job in self.running:
                for p in state.placements_of(job):
                    assert self.row[p.node] == scope
                    for device in p.devices:
                        assert (p.node, device) not in held
                        held.add((p.node, device))


TestHandover = Handover.TestCase
TestHandover.settings = settings(
    max_examples=examples(30),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_a_job_too_large_for_every_shard_goes_wide():
    machine = Handover()
    machine.submit(6, 8)
    assert machine.running == {"j1": WIDE}
    machine.one_scope_a_node_and_no_device_twice()
    machine.scopes[WIDE].release_job(machine.running.popitem()[0])
    machine.give_back()
    assert machine.row == machine.homes


def test_jobs_of_other_scopes_count_against_the_limit_of_a_tenant():
    tenants = (TenantSpec("company", max_running=3), TenantSpec("tenant", "company"))
    quotas = (QuotaSpec("tenant", "H800", 1_000_000),)
    job = JobSubmitted(job_of("j", pods(1, 8)))
    for elsewhere, reason in ((2, None), (3, Reason.WAITING_FOR_QUOTA)):
        tenancy = TenantsChanged(tenants, quotas, (), (("tenant", elsewhere),))
        result = WideOutlook().what_if([tenancy, job], nodes(1), (), 0.0)
        assert len(result.started) == (reason is None)
        assert [w.verdict.reason for w in result.waiting] == ([reason] if reason else [])


@pytest.mark.parametrize("seed", seeds(20))
def test_what_is_kept_between_two_questions_changes_no_answer(seed):
    dice = Random(seed)
    kept = WideOutlook()
    for now in range(12):
        there = {n: node for n, node in nodes(12).items() if dice.random() < 0.9}
        taken = [name for name in there if dice.random() < 0.4]
        known = [TENANCY]
        for name in taken[:2]:
            known.append(OtherPodChanged(f"{name}-{dice.randrange(2)}", name, dice.randrange(5)))
        if dice.random() < 0.5:
            running = job_of("r", pods(1, 8))
            known.append(JobRestored(running, (PodPlacement(0, 0, "n0", (0, 1), 1000),), 0.0))
        for i in range(dice.randrange(3)):
            known.append(JobSubmitted(job_of(f"j{i}", pods(dice.randrange(1, 9), 8))))
        again, fresh = (
            each.what_if(known, there, taken, float(now)) for each in (kept, WideOutlook())
        )
        assert again.started == fresh.started
        reasons = [[(w.job_id, w.verdict.reason) for w in r.waiting] for r in (again, fresh)]
        assert reasons[0] == reasons[1]
