"""Placement by example: the purpose of each strategy, level and limit, and every kind of bad
input."""

import dataclasses
import os
import subprocess
import sys

import pytest

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.placement import PlacementFailure, explain, place_job
from scheduling.engine.statement import Statement
from scheduling.engine.types import (
    Device,
    JobKind,
    Node,
    NodeRules,
    PodPlacement,
    PodSetSpec,
    Taint,
)
from scheduling.engine.verdict import Reason
from tests.engine.fleet import (
    cluster_of,
    gpu_node,
    job_of,
    leaves,
    nodes_of,
    place,
    pods,
    two_spines,
)


class TestStrategies:
    def test_binpack_takes_the_fullest_node_that_fits(self):
        state = two_spines()
        place(state, job_of("a", pods(1, 5)), "spread")
        place(state, job_of("b", pods(1, 2)), "spread")
        first, second = state.placements_of("a")[0].node, state.placements_of("b")[0].node
        assert first != second
        assert nodes_of(place(state, job_of("c", pods(1, 3)), "binpack")) == [first]
        assert nodes_of(place(state, job_of("d", pods(1, 3)), "binpack")) == [second]

    def test_e_binpack_opens_a_node_in_the_leaf_that_small_jobs_already_use(self):
        state = two_spines()
        state.book(job_of("s", pods(1, 7)), PodPlacement(0, 0, "n09", tuple(range(7)), 1000))
        state.book(job_of("w", pods(1, 8)), PodPlacement(0, 0, "n00", tuple(range(8)), 1000))
        assert nodes_of(place(state, job_of("x", pods(1, 2)))) == ["n08"]

    def test_e_binpack_keeps_replicas_of_a_job_on_one_node(self):
        state = two_spines()
        for name, gpus in (("a", 7), ("b", 7), ("c", 4)):
            place(state, job_of(name, pods(1, gpus)), "spread")
        assert len(set(nodes_of(place(state, job_of("x", pods(4, 1)))))) == 1

    def test_spread_goes_over_nodes_and_leaves(self):
        state = two_spines()
        found = place(state, job_of("x", pods(4, 1), gang=False), "spread")
        assert len(set(nodes_of(found))) == 4
        assert len(leaves(state, found)) == 4

    def test_e_spread_fills_the_zone_first_and_packs_the_rest_outside(self):
        zone = [gpu_node(f"z{i}", leaf="z", zone="inference") for i in range(2)]
        state = cluster_of(*zone, *(gpu_node(f"n{i}", leaf="n") for i in range(3)))
        service = job_of("svc", pods(20, 1), gang=False, kind=JobKind.INFERENCE)
        found = nodes_of(place(state, service, "e-spread"))
        assert [found.count(name) for name in ("z0", "z1", "n0", "n1", "n2")] == [8, 8, 4, 0, 0]

    def test_whole_node_inference_stays_out_of_the_zone_while_there_is_room(self):
        state = cluster_of(gpu_node("a", zone="inference"), gpu_node("b"))
        big = job_of("big", pods(1, 8), kind=JobKind.INFERENCE)
        again = dataclasses.replace(big, id="again")
        assert nodes_of(place(state, big, "e-spread")) == ["b"]
        assert nodes_of(place(state, again, "e-spread")) == ["a"]

    def test_shares_fill_a_partly_used_gpu_before_a_free_one(self):
        state = two_spines()
        share = pods(1, 1, gpu_milli=300)
        spots = {(p.node, p.devices) for i in range(3) for p in place(state, job_of(f"{i}", share))}
        assert len(spots) == 1
        assert state.free_milli("H800") == 16 * 8000 - 900

    def test_a_share_by_memory_is_resolved_on_the_node(self):
        state = two_spines()
        (p,) = place(state, job_of("m", pods(1, 1, gpu_memory_mib=20_000)))
        assert p.milli == 250

    def test_the_jobs_own_wish_comes_before_the_policy(self):
        state = two_spines()
        wish = job_of("x", pods(2, 1), gang=False, strategy="spread")
        assert len(set(nodes_of(place(state, wish, "binpack")))) == 2


class TestGangs:
    def test_pod_sets_of_several_models_jointly_or_not_at_all(self):
        state = cluster_of(gpu_node("a"), gpu_node("b", model="L40"))
        both = (pods(1, 8, gpu_models=("H800",)), pods(2, 8, gpu_models=("L40",)))
        failure = place(state, job_of("x", *both))
        assert isinstance(failure, PlacementFailure)
        assert failure.pod_set == 1
        assert state.free_milli("H800") == 8000

    def test_the_flexible_pod_set_leaves_the_scarce_pool_to_the_strict_one(self):
        state = cluster_of(gpu_node("a"), gpu_node("b", model="L40"))
        any_model, strict = pods(1, 8), pods(1, 8, gpu_models=("H800",))
        assert nodes_of(place(state, job_of("x", any_model, strict))) == ["b", "a"]

    def test_minimum_or_nothing_more_where_it_is_free(self):
        state = two_spines()
        assert len(place(state, job_of("x", pods(20, 8, min_count=10)))) == 16
        state.release_job("x")
        assert isinstance(place(state, job_of("y", pods(20, 8, min_count=17))), PlacementFailure)

    def test_competing_elastic_sets_get_their_least_first(self):
        state = two_spines()
        sets = (pods(16, 8, min_count=4), pods(16, 8, min_count=6))
        found = place(state, job_of("x", *sets))
        assert len(found) == 16
        assert sum(p.pod_set == 1 for p in found) >= 6

    def test_counts_limit_a_job_that_is_no_gang(self):
        state = two_spines()
        service = job_of("x", pods(5, 1), gang=False)
        assert [p.ordinal for p in place(state, service, counts=(2,))] == [0, 1]
        assert [p.ordinal for p in place(state, service, counts=(2,))] == [2, 3]


class TestHealth:
    def test_a_lost_device_and_a_lost_node_are_reported_once(self):
        state = two_spines()
        place(state, job_of("x", pods(1, 8)))
        node = state.node("n00")
        sick = dataclasses.replace(
            node, devices=(dataclasses.replace(node.devices[0], healthy=False), *node.devices[1:])
        )
        assert state.upsert_node(sick) == (("x", 0, 0),)
        assert state.upsert_node(dataclasses.replace(sick, labels={"a": "b"})) == ()
        assert state.available_milli("H800") == 16 * 8000  # a bad GPU still counts while held
        state.release_job("x")
        assert state.available_milli("H800") == 16 * 8000 - 1000
        place(state, job_of("y", pods(1, 4)), avoid=frozenset({"n01"}))
        assert state.remove_node(state.placements_of("y")[0].node) == (("y", 0, 0),)

    def test_neither_a_cordon_nor_a_taint_reports_pods(self):
        state = two_spines()
        place(state, job_of("x", pods(1, 8)))
        node = state.node("n00")
        assert state.upsert_node(dataclasses.replace(node, schedulable=False)) == ()
        gone = dataclasses.replace(node, taints=(Taint("gone", effect="NoExecute"),))
        assert state.upsert_node(gone) == ()
        assert state.remove_node("n00") == (("x", 0, 0),)

    def test_unhealthy_gpus_and_nics_are_never_chosen(self):
        node = gpu_node("a")
        devices = tuple(dataclasses.replace(d, healthy=d.index != 2) for d in node.devices)
        nics = tuple(dataclasses.replace(n, healthy=n.index != 5) for n in node.nics)
        state = cluster_of(dataclasses.replace(node, devices=devices, nics=nics))
        (p,) = place(state, job_of("x", pods(1, 7)))
        assert p.devices == (0, 1, 3, 4, 5, 6, 7)
        assert 5 not in p.nics

    def test_blamed_nodes_are_avoided(self):
        state = cluster_of(gpu_node("a"), gpu_node("b"))
        assert nodes_of(place(state, job_of("x", pods(1, 1)), avoid=frozenset("a"))) == ["b"]


class TestInfeasibleShapes:
    def test_remembered_until_something_is_released_and_forgotten_with_its_cause(self):
        state = cluster_of(gpu_node("a"))
        filler, job = job_of("f", pods(1, 8)), job_of("x", pods(1, 1))
        statement = Statement(state)
        mark = statement.checkpoint()
        place_job(statement, filler, strategy="binpack")
        assert isinstance(place_job(statement, job, strategy="binpack"), PlacementFailure)
        assert len(state.infeasible) == 1
        statement.rollback(mark)
        assert not state.infeasible
        assert nodes_of(place_job(statement, job, strategy="binpack")) == ["a"]

    def test_an_eviction_makes_room_and_its_rollback_takes_it_back(self):
        state = cluster_of(gpu_node("a"))
        place(state, job_of("f", pods(1, 8)))
        job = job_of("x", pods(1, 1))
        assert isinstance(place(state, job), PlacementFailure)
        version = state.version
        statement = Statement(state)
        statement.evict(("f", 0, 0))
        assert nodes_of(place_job(statement, job, strategy="e-binpack")) == ["a"]
        statement.rollback()
        assert state.version == version
        assert isinstance(place(state, job), PlacementFailure)
        state.release_job("f")
        assert nodes_of(place(state, job)) == ["a"]


class TestGains:
    """The capacity given back since some time, which waiting lanes rely on."""

    def test_what_is_taken_back_was_given_back_to_nobody(self):
        state = cluster_of(gpu_node("a"), gpu_node("b"), gpu_node("c"))
        for name, gpus in (("f", 8), ("g", 3), ("h", 7)):
            place(state, job_of(name, pods(1, gpus)))
        before = state.gains
        state.release_job("g")
        assert state.gained(before) == 8
        then = state.gains
        statement = Statement(state)
        statement.evict(("f", 0, 0))
        mark = statement.checkpoint()
        place_job(statement, job_of("x", pods(1, 8)), strategy="spread")
        assert state.gained(then) == 0  # x took the place at once
        statement.rollback(mark)
        assert state.gained(then) == 8
        statement.rollback()
        assert (state.gains, state.gained(then), state.gained(before)) == (then, 0, 8)
        state.release_job("h")
        assert state.gained(then) == 8

    def test_it_cannot_be_told_where_more_was_given_back_than_is_remembered(self, monkeypatch):
        monkeypatch.setattr("scheduling.engine.cluster.cluster.MAX_GAINED", 2)
        state = cluster_of(gpu_node("a"), gpu_node("b"), gpu_node("c"))
        for name in "fgh":
            place(state, job_of(name, pods(1, 8)))
        before = state.gains
        state.release_job("f")
        then = state.gains
        statement = Statement(state)
        statement.evict(("g", 0, 0))
        statement.evict(("h", 0, 0))
        statement.rollback()
        assert (state.gained(before), state.gained(then)) == (None, 0)
        state.release_job("g")
        assert (state.gained(before), state.gained(then)) == (None, 8)


BAD = {
    "nothing": (pods(1, 0), "asks for no GPU"),
    "a share of two GPUs": (pods(1, 2, gpu_milli=300), "share is of exactly one GPU"),
    "a share of nothing": (pods(1, 1, gpu_milli=0), "gpu_milli is 0"),
    "share and memory": (pods(1, 2, gpu_memory_mib=5), "leave gpus at 1"),
    "no pods": (pods(0, 1), "at least one pod"),
    "negative": (pods(1, -1), "negative"),
    "astronomic": (pods(1, 1, cpu_milli=10**30), "larger than any cluster"),
    "minimum above count": (pods(2, 1, min_count=3), "between 1 and count"),
    "unknown level": (pods(1, 1, required_level="rack"), "'rack' does not exist"),
    "unknown preference": (pods(1, 1, preferred_level="rack"), "leaf, spine, superspine"),
    "slices that do not divide": (pods(4, 1, required_level="leaf", slice_size=3), "divide count"),
    "slices of no level": (pods(4, 1, slice_size=2), "name the level"),
    "a limit of none": (pods(1, 1, max_per_node=0), "allow at least one"),
}


class TestBadInput:
    @pytest.mark.parametrize("name", BAD)
    def test_a_precise_verdict(self, name):
        pod_set, words = BAD[name]
        state, job = two_spines(), job_of("x", pod_set)
        verdict = explain(state, job, place(state, job))
        assert verdict.reason is Reason.MISCONFIGURED
        assert words in verdict.summary
        assert verdict.remedies

    def test_an_unknown_strategy_names_the_known_ones(self):
        state, job = two_spines(), job_of("x", pods(1, 1), strategy="magic")
        verdict = explain(state, job, place(state, job))
        assert "'magic' does not exist" in verdict.summary
        assert "e-binpack" in verdict.summary

    def test_no_such_model_and_more_than_a_node_has(self):
        state = two_spines()
        model = job_of("x", pods(1, 1, gpu_models=("B200",)))
        large = job_of("y", pods(1, 9))
        assert explain(state, model, place(state, model)).reason is Reason.NO_MATCHING_GPU_TYPE
        assert explain(state, large, place(state, large)).reason is Reason.EXCEEDS_CAPACITY

    def test_too_few_free_and_too_little_cpu_are_told_apart(self):
        state = two_spines()
        place(state, job_of("f", pods(15, 8)))
        two, hungry = job_of("x", pods(2, 8)), job_of("y", pods(2, 1, cpu_milli=100_000))
        verdict = explain(state, two, place(state, two))
        assert verdict.reason is Reason.INSUFFICIENT_GPUS
        assert verdict.evidence["to_end_milli"] == 8000
        verdict = explain(state, hungry, place(state, hungry))
        assert verdict.reason is Reason.INSUFFICIENT_CPU_OR_MEMORY
        assert verdict.remedies[0] == "ask for less of CPU per pod"

    def test_a_selector_no_node_has_names_the_remedy(self):
        state, job = two_spines(), job_of("x", pods(1, 1, nodes=NodeRules({"disk": "ssd"})))
        verdict = explain(state, job, place(state, job))
        assert verdict.reason is Reason.EXCEEDS_CAPACITY
        assert "relax the node selector" in verdict.remedies

    @pytest.mark.parametrize(
        ("fields", "resource", "asked", "most", "words"),
        [
            ({"nics": 99}, "nics", 99, 8, "NICs"),
            ({"cpu_milli": 10**8}, "cpu_milli", 10**8, 128_000, "milli-CPU"),
            ({"memory_mib": 10**9}, "memory_mib", 10**9, 1_000_000, "MiB of memory"),
            ({"extended": {"x.io/thing": 1}}, "x.io/thing", 1, 0, "x.io/thing"),
        ],
    )
    def test_an_amount_that_no_node_has_is_named(self, fields, resource, asked, most, words):
        state, job = two_spines(), job_of("x", pods(1, 1, gpu_models=("H800",), **fields))
        verdict = explain(state, job, place(state, job))
        assert verdict.reason is Reason.EXCEEDS_CAPACITY
        assert verdict.summary == (
            f"Needs 1 × 1 H800, with {asked} {words} per pod; "
            f"the 16 nodes that may run such pods each have {f'at most {most}' if most else 'none'}"
        )
        told = {"resource": resource, "asked_per_pod": asked, "most_on_a_node": most}
        assert verdict.evidence.items() >= told.items()
        able = f"at most {most} {words} per pod" if most else f"no {words}"
        assert verdict.remedies == (f"ask for {able}",)

    def test_where_no_single_amount_is_too_large_or_gpus_are_none_is_named(self):
        state = cluster_of(gpu_node("a", cpu_milli=1000), gpu_node("b", memory_mib=1000))
        for job in (
            job_of("both", pods(1, 1, cpu_milli=2000, memory_mib=2000)),
            job_of("gpus", pods(1, 9, nics=99)),
            job_of("many", pods(3, 8)),
        ):
            verdict = explain(state, job, place(state, job))
            assert verdict.reason is Reason.EXCEEDS_CAPACITY
            assert "resource" not in verdict.evidence
            assert verdict.remedies == ("ask for fewer or smaller pods",)

    def test_contradictory_nodes_are_used_as_far_as_they_make_sense(self):
        state = cluster_of(
            gpu_node("a", leaf="l0", spine="s0"),
            gpu_node("b", leaf="l0", spine="s1"),
            Node("c", gpu_model="H800"),
            Node(
                "d",
                gpu_model="H800",
                devices=(Device(0), Device(0), Device(256), Device(-1)),
                cpu_milli=-5,
                memory_mib=10**30,
            ),
        )
        assert len(state.node("d").problems) == 5
        assert state.capacity_milli("H800") == 17_000
        assert len(nodes_of(place(state, job_of("x", pods(2, 8, required_level="spine"))))) == 2
        assert nodes_of(place(state, job_of("y", pods(1, 1)))) == ["d"]

    def test_an_empty_cluster_gives_a_verdict(self):
        state, job = ClusterState(), job_of("x", pods(1, 1))
        assert explain(state, job, place(state, job)).reason is Reason.NO_MATCHING_GPU_TYPE


def test_decisions_do_not_depend_on_the_hash_seed():
    """The same history in two interpreters with different hash seeds gives the same bytes."""
    outputs = set()
    for seed in ("0", "1", "4711"):
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", "from tests.engine.test_placement import story; story()"],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            ).stdout
        )
    assert len(outputs) == 1
    assert outputs.pop()


def story():
    """Jobs of every strategy come and go; print each decision."""
    state = cluster_of(
        *(
            gpu_node(
                f"n{i}",
                gpus=(4, 8)[i % 3 > 0],
                model=("H800", "L40")[i % 5 == 0],
                leaf=f"l{i // 4}",
                spine=f"s{i // 8}",
                zone="inference" if i % 4 == 0 else "",
                labels={"a": str(i % 2)},
            )
            for i in range(24)
        )
    )
    for i in range(120):
        how = ("binpack", "e-binpack", "spread", "e-spread", "native", "fragmentation")[i % 6]
        pod_set = PodSetSpec(
            "pods",
            1 + i % 4,
            1 + i % 3 if i % 2 else 1,
            gpu_milli=1000 if i % 2 else 250,
            nodes=NodeRules({"a": "1"}) if i % 7 == 0 else NodeRules(),
        )
        kind = JobKind.INFERENCE if i % 2 else JobKind.TRAINING
        print(place(state, job_of(f"j{i}", pod_set, kind=kind, gang=i % 3 > 0), how))
        if i % 3 == 2:
            state.release_job(f"j{i // 2}")
