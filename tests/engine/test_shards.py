"""Shards: every node in exactly one scope, and no device given twice while nodes change hands."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduling.engine.cluster import ClusterState
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.shards import (
    WIDE,
    Shard,
    declaration_problem,
    home_of,
    nodes_to_lend,
    route,
    to_return,
)
from tests.engine.fleet import gpu_node, job_of, place, pods

SHARDS = (Shard("north", ("H800",), ("s0",)), Shard("l40", ("L40",)), Shard("rest"))


def test_declarations_are_checked():
    assert declaration_problem(SHARDS) == ""
    assert "declare at least one" in declaration_problem(())
    assert "twice" in declaration_problem((Shard("a"), Shard("a")))
    assert "not allowed" in declaration_problem((Shard(WIDE),))
    assert "take all other nodes" in declaration_problem((Shard("a", ("H800",)),))


def test_homes():
    assert home_of(gpu_node("a", leaf="l0", spine="s0"), SHARDS) == "north"
    assert home_of(gpu_node("b", leaf="l0", spine="s0", model="L40"), SHARDS) == "l40"
    assert home_of(gpu_node("c"), SHARDS) == "rest"


class Handover(RuleBasedStateMachine):
    """Two shards and the wide scope; nodes move by the rules of docs/decisions/0003-shards.md."""

    def __init__(self):
        super().__init__()
        self.nodes = {
            f"n{i}": gpu_node(f"n{i}", leaf=f"l{i // 2}", spine=f"s{i // 4}") for i in range(8)
        }
        shards = (Shard("north", (), ("s0",)), Shard("rest"))
        self.homes = {name: home_of(node, shards) for name, node in self.nodes.items()}
        self.scopes = {name: ClusterState() for name in ("north", "rest", WIDE)}
        self.row = dict(self.homes)  # the scope column of the node rows
        for name, scope in self.homes.items():
            self.scopes[scope].upsert_node(self.nodes[name])
        self.running = {}
        self.serial = 0

    @rule(count=st.integers(1, 6), gpus=st.sampled_from((1, 4, 8)))
    def submit(self, count, gpus):
        self.serial += 1
        job = job_of(f"j{self.serial}", pods(count, gpus))
        scope = route(job, self.scopes)
        if scope == WIDE:
            self.lend(job, count)
        if not isinstance(place(self.scopes[scope], job), PlacementFailure):
            self.running[job.id] = scope

    def lend(self, job, count):
        for scope in ("north", "rest"):
            missing = count - self.scopes[WIDE].capacity_milli("H800") // 8000
            for name in nodes_to_lend(self.scopes[scope], job, max(missing, 0)):
                self.move(name, scope, WIDE)

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
        for home, names in to_return(self.scopes[WIDE], self.homes).items():
            for name in names:
                self.move(name, WIDE, home)

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
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_job_too_large_for_every_shard_goes_wide():
    machine = Handover()
    machine.submit(6, 8)
    assert machine.running == {"j1": WIDE}
    machine.one_scope_a_node_and_no_device_twice()
    machine.scopes[WIDE].release_job(machine.running.popitem()[0])
    machine.give_back()
    assert machine.row == machine.homes
