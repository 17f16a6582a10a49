"""The policy of a cluster without its own, and of clusters that are older than it."""

from dataclasses import replace
from importlib import import_module

import pytest
from django.apps import apps
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.deltas import JobRestored, JobSubmitted, NodeChanged, TenantsChanged
from scheduling.engine.types import (
    JobKind,
    JobRequest,
    PodPlacement,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.models import Cluster, ClusterPolicy
from scheduling.policy.document import DEFAULT, effective, to_policy
from scheduling.session.memory.load import policy as policy_in_force
from tests.engine.fleet import gpu_node, pods

migration = import_module("scheduling.migrations.0024_policies_as_they_were")

MODEL, GPUS = "H800", 8
IN_LEAF = 4  # nodes per leaf


def cluster(held=(0,) * 20, lender=0):
    """Nodes under the default policy, with a job on each that holds this many of its GPUs. The
    tenant `lender` is guaranteed this many GPUs, `borrower` the rest."""
    state = SchedulerState(policy=to_policy({}))
    nodes = [gpu_node(f"n{i:02}", leaf=f"l{i // IN_LEAF}") for i in range(len(held))]
    quotas = {"lender": lender, "borrower": len(held) * GPUS - lender}
    tenants = TenantsChanged(
        tuple(TenantSpec(name) for name in quotas),
        tuple(QuotaSpec(name, MODEL, 1000 * gpus) for name, gpus in quotas.items()),
    )
    there = [
        JobRestored(
            JobRequest(f"on-{node.name}", "borrower", 0.0, (pods(1, gpus),)),
            (PodPlacement(0, 0, node.name, tuple(range(gpus)), 1000),),
            0.0,
        )
        for node, gpus in zip(nodes, held, strict=True)
        if gpus
    ]
    run_cycle(state, [*map(NodeChanged, nodes), tenants, *there], 0.0)
    return state


def gang(count, gpus, name="gang", tenant="borrower", **facts):
    return JobSubmitted(JobRequest(name, tenant, 0.0, (pods(count, gpus),), **facts))


def numbers_of(result):
    return [int(p.node[1:]) for s in result.started for p in s.placements]


@given(
    st.lists(st.sampled_from((0, 0, 2, 4, 6)), min_size=8, max_size=20),
    st.sampled_from(((8, 4), (4, 4), (6, 4), (4, 8), (6, 2), (8, 2))),
)
def test_a_gang_takes_the_fewest_nodes_of_one_leaf(held, asked):
    count, gpus = asked
    found = numbers_of(run_cycle(cluster(held), [gang(count, gpus)], 1.0))
    room = [(GPUS - there) // gpus for there in held]
    leaves = [room[at : at + IN_LEAF] for at in range(0, len(room), IN_LEAF)]
    if not any(sum(leaf) >= count for leaf in leaves):
        return
    assert len(found) == count
    (chosen,) = {number // IN_LEAF for number in found}
    fullest = sorted(leaves[chosen], reverse=True)
    fewest = next(n for n in range(1, IN_LEAF + 1) if sum(fullest[:n]) >= count)
    assert len(set(found)) == fewest


def test_a_gang_that_no_leaf_holds_takes_few_nodes_all_the_same():
    """Half of each node of two leaves is free, and three nodes of a third leaf."""
    held = (8,) * 9 + (4,) * 7 + (0, 0, 4, 0)
    found = numbers_of(run_cycle(cluster(held), [gang(8, 4)], 1.0))
    assert len(set(found)) == 5
    assert len({number // IN_LEAF for number in found}) == 2


@pytest.mark.parametrize(
    ("asks", "lender"),
    [({"priority": 5}, 0), ({"tenant": "lender"}, 8)],
    ids=["priority", "reclaim"],
)
def test_room_is_made_by_priority_and_for_who_lent_its_quota(asks, lender):
    state = cluster((8, 8), lender)
    early = run_cycle(state, [gang(1, 8, **asks)], 1.0)
    assert not early.preempted
    late = run_cycle(state, [], 1 + DEFAULT.min_runtime_s)
    assert len(late.preempted) == 1


def test_others_are_not_made_room_for():
    state = cluster((8, 8))
    run_cycle(state, [gang(1, 8)], 1.0)
    assert not run_cycle(state, [], 1e6).preempted


# --- documents ------------------------------------------------------------------------------------
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "queueing": st.sampled_from([q.value for q in QueueingPolicy]),
        "strategies": st.dictionaries(
            st.sampled_from([k.value for k in JobKind]), st.sampled_from(["spread", "e-binpack"])
        ),
        "preemption": st.lists(st.sampled_from([k.value for k in PreemptionKind]), unique=True),
        "max_attempts": st.integers(1, 9),
        "from_the_future": st.just({}),
    },
)


@given(DOCUMENTS)
def test_what_a_document_leaves_out_is_as_without_one(document):
    meant = to_policy(document)
    for name in {"queueing", "preemption", "max_attempts", "min_runtime_s"} - document.keys():
        assert getattr(meant, name) == getattr(DEFAULT, name)
    for kind in JobKind:
        named = document.get("strategies", {}).get(kind.value, DEFAULT.strategies[kind])
        assert meant.strategies[kind] == named
    assert dict(DEFAULT.strategies)["training"] == "e-binpack"


@given(DOCUMENTS)
def test_a_document_that_was_there_before_means_what_it_meant(document):
    kept = migration.spelt_out(document)
    assert to_policy(kept) == replace(
        Policy(),  # omitted fields meant this, field by field
        queueing=document.get("queueing", Policy().queueing),
        strategies={k: document.get("strategies", {}).get(k.value, "binpack") for k in JobKind},
        preemption=tuple(map(PreemptionKind, document.get("preemption", ()))),
        max_attempts=document.get("max_attempts", Policy().max_attempts),
    )
    assert migration.spelt_out(kept) == kept


@pytest.mark.django_db
def test_clusters_that_are_there_keep_their_policy():
    plain, own = (Cluster.objects.create(name=name) for name in ("plain", "own"))
    ClusterPolicy.objects.create(
        cluster=own,
        document={"queueing": "backfill", "strategies": {"inference": "e-spread"}},
        version=7,
    )
    migration.keep(apps, None)
    later = Cluster.objects.create(name="later")
    assert policy_in_force(plain.pk) == Policy()
    binpack = {"training": "binpack", "development": "binpack"}
    assert effective(ClusterPolicy.objects.get(cluster=own).document) == {
        **effective({}),
        "queueing": "backfill",
        "strategies": {"inference": "e-spread", **binpack},
        "preemption": [],
    }
    assert ClusterPolicy.objects.get(cluster=own).version == 7
    assert policy_in_force(later.pk) == DEFAULT


def test_a_fresh_cluster_over_rest(org):
    ops = org.client("ops")
    body = {"name": "fresh", "access": {"server": "http://127.0.0.1:1"}}
    assert ops.post("/api/v1/clusters", body, format="json").status_code == 201
    url = "/api/v1/clusters/fresh/policy"
    fresh = ops.get(url)
    told = fresh.json()["policy"]
    assert (fresh["ETag"], told["preemption"]) == ('"0"', ["priority", "reclaim"])
    assert told["strategies"]["training"] == "e-binpack"
    changed = ops.put(
        url, {"policy": {"queueing": "backfill"}}, format="json", headers={"If-Match": '"0"'}
    ).json()["policy"]
    assert changed == told | {"queueing": "backfill"}
    off = {"policy": {"preemption": [], "strategies": {"training": "binpack"}}}
    without = ops.put(url, off, format="json", headers={"If-Match": '"1"'}).json()["policy"]
    assert (without["preemption"], without["strategies"]["training"]) == ([], "binpack")
