"""Node rows: what the scheduler saw, where it read it, and which GPUs are bad."""

from datetime import UTC, datetime

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.types import Device, JobRequest, Nic, Node, PodPlacement, PodSetSpec, Taint
from scheduling.kube.seam import NodeFacts, Sourced
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import Condition, KubeNode, Meta, NodeStatus
from scheduling.models import Cluster, NodeRecord
from scheduling.queries.history import nodes_of
from scheduling.services.common.lease import take_or_renew
from scheduling.services.scheduler.projection import write_nodes

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


def test_bad_gpus_without_a_name_are_counted_and_read_back(db):
    cluster = Cluster.objects.create(name="c")
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    assert lease is not None
    amounts = {"nvidia.com/gpu": "8", "kant.io/gpu-milli": "8k"}
    told = {"nvidia.com/gpu": "7", "kant.io/gpu-milli": "7k"}
    raw = KubeNode(Meta(name="n"), status=NodeStatus(amounts, told))
    facts = NodeTranslator({}).translate(raw)
    state = ClusterState()
    state.upsert_node(facts.node)
    write_nodes(lease, state, [facts], set(), NOW)
    row = NodeRecord.objects.get()
    assert (row.gpus, row.healthy_gpus, "unhealthy_gpus" in row.facts) == (8, 7, False)
    assert row.facts["unnamed_unhealthy_gpus"]["value"] == 1
    [node] = nodes_of(cluster)
    assert (node.unnamed_unhealthy, node.healthy_gpus, node.gives_shares) == (1, 7, True)
    write_nodes(lease, state, [NodeFacts(facts.node, {}, "uid")], set(), NOW)
    assert not next(iter(nodes_of(cluster))).gives_shares


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


def test_a_row_tells_what_pods_hold_of_a_node_without_gpus(db):
    cluster = Cluster.objects.create(name="c")
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    assert lease is not None
    node, state = Node("n", cpu_milli=64_000, memory_mib=8192), ClusterState()
    state.upsert_node(node)
    job = JobRequest("j", "t", 0.0, (PodSetSpec("w", 2, 0, cpu_milli=8000, memory_mib=1024),))
    for ordinal in range(2):
        state.book(job, PodPlacement(0, ordinal, "n", (), 1000))
    state.upsert_other_pod("o", "n", 0, 500, 256, {})
    write_nodes(lease, state, [NodeFacts(node, {}, "uid")], set(), NOW)
    row = NodeRecord.objects.get()
    assert (row.allocated_cpu_milli, row.allocated_memory_mib, row.pods) == (16_500, 2304, 2)
    assert row.without_gpus
    row.facts = {"gpu_parts": {"value": "7 nvidia.com/mig-1g.10gb", "source": "status.capacity"}}
    assert not row.without_gpus


def test_which_nics_are_of_which_resource_is_read_back(db):
    cluster = Cluster.objects.create(name="c")
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    assert lease is not None
    amounts = {"nvidia.com/gpu": "8", "rdma/hca_b": "1", "rdma/hca_aa": "2"}
    facts = NodeTranslator({}).translate(KubeNode(Meta(name="n"), status=NodeStatus(amounts)))
    write_nodes(lease, ClusterState(), [facts], set(), NOW)
    assert [nic.resource for nic in facts.node.nics] == ["rdma/hca_aa", "rdma/hca_aa", "rdma/hca_b"]
    [node] = nodes_of(cluster)
    assert node.nics == facts.node.nics


def test_the_longest_and_oddest_facts_of_a_node_fit_their_columns(db):
    names = ["gpu_model", "leaf", "spine", "superspine", "hyper_node", "zone"]
    labels = {f"example.com/{name}": f"{at}" * 63 for at, name in enumerate(names)}
    translator = NodeTranslator({name: f"example.com/{name}" for name in names})
    amounts = {"nvidia.com/gpu": "8", "pods": "4P", "cpu": "4T", "memory": "4Ei"}
    odd = Condition("NTPProblem", "True", message="a\0b")
    raw = KubeNode(Meta(name="n" * 253, labels=labels), status=NodeStatus(amounts, amounts, [odd]))
    lease = take_or_renew(Cluster.objects.create(name="c").pk, "a", now=NOW, seconds=15)
    assert lease is not None
    write_nodes(lease, ClusterState(), [translator.translate(raw)], set(), NOW)
    row = NodeRecord.objects.get()
    row.clean_fields(exclude=("extended", "taints", "problems"))
    assert (row.zone, row.gpu_model) == ("5" * 63, "0" * 63)
