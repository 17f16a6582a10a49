"""Placement over the levels of the network: near, within, in slices, evenly."""

from scheduling.engine.placement import PlacementFailure, explain
from scheduling.engine.types import PodPlacement
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


class TestTopology:
    def test_a_gang_goes_into_the_tightest_leaf_that_holds_it(self):
        state = two_spines()
        place(state, job_of("a", pods(2, 8)))  # leaf-0 keeps two idle nodes
        assert leaves(state, place(state, job_of("b", pods(2, 8)))) == {"leaf-0"}

    def test_a_wider_gang_stays_in_one_spine(self):
        state = two_spines()
        place(state, job_of("a", pods(1, 8)))
        assert leaves(state, place(state, job_of("b", pods(8, 8)))) == {"leaf-2", "leaf-3"}

    def test_ranks_follow_the_topology(self):
        state = two_spines()
        found = nodes_of(place(state, job_of("b", pods(12, 8))))
        assert found == sorted(found)

    def test_a_required_level_larger_than_any_group_exceeds_capacity(self):
        state = two_spines()
        job = job_of("x", pods(5, 8, required_level="leaf"))
        assert explain(state, job, place(state, job)).reason is Reason.EXCEEDS_CAPACITY

    def test_a_required_level_that_no_group_holds_now_is_fragmented_capacity(self):
        state = two_spines()
        for leaf in range(4):
            small = PodPlacement(0, 0, f"n{leaf * 4 + 3:02d}", (0,), 1000)
            state.book(job_of(f"s{leaf}", pods(1, 1)), small)
        job = job_of("x", pods(4, 8, required_level="leaf"))
        verdict = explain(state, job, place(state, job))
        assert verdict.reason is Reason.FRAGMENTED_CAPACITY
        assert verdict.evidence["best_group_pods"] == 3
        assert verdict.evidence["pods_to_end"] == 1

    def test_unknown_topology_never_counts_as_near(self):
        state = cluster_of(*(gpu_node(f"n{i}") for i in range(4)))
        assert isinstance(
            place(state, job_of("x", pods(2, 8, required_level="leaf"))), PlacementFailure
        )
        assert len(nodes_of(place(state, job_of("y", pods(2, 8))))) == 2

    def test_a_node_whose_labels_contradicted_the_others_is_forgotten_with_it(self):
        state = cluster_of(
            gpu_node("n0", gpus=4, spine="s1", top="c1"),
            gpu_node("n1", leaf="l0", spine="s0", top="c0"),
            gpu_node("n2", leaf="l1", spine="s1", top="c0"),
        )
        job = job_of("x", pods(2, 8, required_level="superspine"))
        assert isinstance(place(state, job), PlacementFailure)
        state.remove_node("n0")
        assert nodes_of(place(state, job)) == ["n1", "n2"]

    def test_only_a_node_that_has_the_label_names_the_parent_of_a_group(self):
        state = cluster_of(
            gpu_node("n0", leaf="l0"),
            gpu_node("n1", leaf="l0", spine="s0"),
            gpu_node("n2", leaf="l1", spine="s0"),
        )
        job = job_of("x", pods(3, 8, required_level="spine"))
        assert nodes_of(place(state, job)) == ["n0", "n1", "n2"]
        state.remove_node("n1")  # nothing says any more that l0 is in s0
        beside = job_of("y", pods(2, 8, required_level="spine"))
        assert isinstance(place(state, beside), PlacementFailure)

    def test_slices_stay_whole_inside_hyper_nodes_by_best_fit(self):
        state = cluster_of(
            *(gpu_node(f"a{i}", hyper_node="big") for i in range(4)),
            *(gpu_node(f"b{i}", hyper_node="small") for i in range(2)),
            gpu_node("c0"),
        )
        found = place(state, job_of("x", pods(6, 8, required_level="hyper-node", slice_size=2)))
        slices = [nodes_of(found)[i : i + 2] for i in (0, 2, 4)]
        assert [{name[0] for name in part} for part in slices] == [{"a"}, {"a"}, {"b"}]

    def test_balanced_replicas_differ_by_one_at_most(self):
        state = two_spines()
        found = nodes_of(place(state, job_of("x", pods(6, 1, balance_level="leaf"))))
        per_leaf = [sum(state.node(n).topology[0] == f"leaf-{i}" for n in found) for i in range(4)]
        assert per_leaf == [2, 2, 1, 1]

    def test_pods_balanced_over_a_wide_level_stay_inside_a_narrow_one_that_is_required(self):
        state = cluster_of(
            *(gpu_node(f"a{i}", leaf="l0", spine="s0") for i in range(2)),
            gpu_node("b0", leaf="l1", spine="s0"),
        )
        for i in range(2):
            state.book(job_of(f"s{i}", pods(1, 1)), PodPlacement(0, 0, f"a{i}", (0,), 1000))
        job = job_of("x", pods(2, 4, required_level="leaf", balance_level="spine"))
        assert nodes_of(place(state, job, strategy="native")) == ["a0", "a1"]

    def test_all_pod_sets_of_a_job_share_one_group_when_the_job_asks_for_it(self):
        state = cluster_of(
            gpu_node("a0", leaf="l0", spine="s0"),
            gpu_node("a1", leaf="l1", spine="s1"),
            gpu_node("b1", leaf="l2", spine="s1", model="L40"),
        )
        sets = (pods(1, 8, gpu_models=("H800",)), pods(1, 8, gpu_models=("L40",)))
        assert nodes_of(place(state, job_of("x", *sets, required_level="spine"))) == ["a1", "b1"]

    def test_replica_limits(self):
        state = two_spines()
        found = nodes_of(place(state, job_of("x", pods(4, 1, max_per_node=1, max_per_leaf=2))))
        assert len(set(found)) == 4
        assert len({name for name in found if name < "n04"}) == 2
