"""Rows of nodes: what the scheduler saw, where it read it, and which GPUs are bad."""

from datetime import UTC, datetime

from scheduling.engine.cluster import ClusterState
from scheduling.engine.types import Device, Nic, Node, Taint
from scheduling.kube.seam import NodeFacts, Sourced
from scheduling.models import Cluster, NodeRecord
from scheduling.services.lease import take_or_renew
from scheduling.services.projection import write_nodes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = "status.allocatable[nvidia.com/gpu], kant.io/unhealthy-gpus"


def seen(*bad: int) -> NodeFacts:
    devices = tuple(Device(i, healthy=i not in bad) for i in range(8))
    return NodeFacts(
        Node("n", gpu_model="H100", devices=devices),
        {"healthy_gpus": Sourced(8 - len(bad), SOURCE)},
        "uid",
    )


def test_bad_gpus_are_named_by_index_until_they_are_well(db):
    cluster = Cluster.objects.create(name="c")
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    assert lease is not None
    for facts, healthy, named in (
        (seen(2, 5), 6, {"value": [2, 5], "source": SOURCE}),
        (seen(), 8, None),
    ):
        state = ClusterState()
        state.upsert_node(facts.node)
        write_nodes(lease, state, [facts], set(), NOW)
        row = NodeRecord.objects.get()
        assert (row.gpus, row.healthy_gpus, row.free_gpus) == (8, healthy, healthy)
        assert row.facts["healthy_gpus"] == {"value": healthy, "source": SOURCE}
        assert row.facts.get("unhealthy_gpus") == named


def test_a_row_holds_all_that_placement_depends_on(db):
    cluster = Cluster.objects.create(name="c")
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    assert lease is not None
    node = Node(
        "n",
        cpu_milli=64_000,
        memory_mib=5 << 30,
        max_pods=250,
        nics=(Nic(0), Nic(1, healthy=False)),
        extended={"example.com/fpga": 2},
        labels={"disk": "ssd"},
        taints=(Taint("team", "a"),),
    )
    facts = {"nics": Sourced(2, "annotation kant.io/nics")}
    write_nodes(lease, ClusterState(), [NodeFacts(node, facts, "uid")], set(), NOW)
    row = NodeRecord.objects.get()
    assert (row.cpu_milli, row.memory_mib, row.max_pods) == (64_000, 5 << 30, 250)
    assert (row.extended, row.labels) == ({"example.com/fpga": 2}, {"disk": "ssd"})
    assert row.taints == [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    assert row.facts["unhealthy_nics"] == {"value": [1], "source": "annotation kant.io/nics"}
