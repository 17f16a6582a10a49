"""Inventories, the openb list, and the Kubernetes nodes made of them."""

import os
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import yaml

from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import KubeNode
from scheduling.simcluster.controllers.fleet import SHIPPED, load_fleet, node_object
from scheduling.simcluster.objects.quantities import amounts
from scheduling.simulator.fleet import Fleet, FleetError, parse_inventory, parse_openb
from scheduling.simulator.nodes import engine_nodes
from tests.requirements import missing

from .harness import FLEET

OPENB = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\nn0,96000,786432,8,G2\n"


@pytest.mark.parametrize(
    ("name", "nodes", "gpus", "models"),
    [("demo", 122, 880, 3), ("paper", 1000, 8000, 1), ("large", 12500, 100_000, 1)],
)
def test_shipped_fleets(name, nodes, gpus, models):
    fleet = load_fleet(name)
    assert name in SHIPPED
    assert (fleet.name, len(fleet.nodes), fleet.gpus) == (name, nodes, gpus)
    assert len({n.gpu_model for n in fleet.nodes if n.gpus}) == models
    assert len({n.name for n in fleet.nodes}) == nodes
    # A leaf lies under one spine, a spine under one superspine.
    spine_of = {(n.leaf, n.spine) for n in fleet.nodes}
    assert len(spine_of) == len({leaf for leaf, _ in spine_of})
    assert len({n.superspine for n in fleet.nodes}) == 1


def test_the_paper_fleet_has_leaves_of_eight_nodes():
    sizes = Counter(n.leaf for n in load_fleet("paper").nodes)
    assert set(sizes.values()) == {8}


def test_the_demo_fleet_has_an_inference_zone():
    zone = [n for n in load_fleet("demo").nodes if n.zone == "inference"]
    assert len(zone) == 8
    assert len({n.leaf for n in zone}) == 1


def test_the_demo_fleet_has_nodes_without_gpus():
    names = [n.name for n in load_fleet("demo").nodes if not n.gpus]
    assert names == ["cpu-0000", "cpu-0001"]


def test_an_inventory_expands_to_nodes():
    fleet = parse_inventory(yaml.safe_load(FLEET))
    first, _, third, _, cpu = fleet.nodes
    assert (first.name, first.leaf, first.spine) == ("gpu-0000", "leaf-0001", "spine-01")
    assert (third.leaf, third.spine, third.hyper_node) == (
        "leaf-0002",
        "spine-02",
        "gpu-domain-001",
    )
    assert (cpu.gpus, cpu.zone, cpu.labels) == (0, "inference", {"disk": "ssd"})
    assert cpu.taints == (("dedicated", "web", "NoSchedule"),)


POOL = {"name": "a", "count": 1, "cpu_milli": 1000, "memory_mib": 1024}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "pools[0].count: must be a whole number from 1 to 100000, not 0"),
        ({"count": "8"}, "pools[0].count: must be a whole number"),
        ({"count": True}, "pools[0].count: must be a whole number"),
        ({"cpu_milli": None}, "pools[0].cpu_milli: must be a whole number"),
        ({"gpus": 8}, "pools[0]: gpu_model and gpus must be given together"),
        ({"gpu_model": "X", "gpus": 257}, "pools[0].gpus: must be a whole number from 0 to 256"),
        ({"extended": {"card": 1}}, "pools[0].extended: must map names such as vendor.com/card"),
        ({"extended": {"a/b": "1"}}, "pools[0].extended: must map names such as vendor.com/card"),
        ({"zone": "edge"}, "pools[0].zone: must be one of '', 'inference', not 'edge'"),
        ({"labels": {"a": 1}}, "pools[0].labels: must map label names to texts"),
        ({"taints": [{"key": "k"}]}, "pools[0].taints[0].effect: is required"),
        ({"taints": [{"key": "k", "effect": "Never"}]}, "taints[0].effect: must be one of"),
        ({"speed": 1}, "pools[0].speed: is not a known field"),
        ({"name": ""}, "pools[0].name: must be a text"),
    ],
)  # fmt: skip
def test_a_wrong_inventory_names_the_field(change, message):
    with pytest.raises(FleetError) as refused:
        parse_inventory({"name": "x", "pools": [{**POOL, **change}]})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "inventory: must be a mapping"),
        ({"name": "x"}, "inventory.pools: is required"),
        ({"name": "x", "pools": []}, "pools: a fleet needs at least one pool"),
        ({"name": "x", "pools": [POOL, POOL]}, "pools[1].name: 'a' is used by another pool"),
        ({"name": "x", "pools": ["a"]}, "pools[0]: must be a mapping"),
        ({"name": "x", "pools": [POOL], "racks": 1}, "inventory.racks: is not a known field"),
    ],
)
def test_a_wrong_document_is_refused(document, message):
    with pytest.raises(FleetError) as refused:
        parse_inventory(document)
    assert message in str(refused.value)


def test_files_that_cannot_be_read_name_themselves(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    odd = tmp_path / "odd.yaml"
    odd.write_text("name: x\n")
    deep = tmp_path / "deep.yaml"
    deep.write_text("[" * 5000)
    for path, part in (
        (broken, "is not YAML"),
        (odd, "inventory.pools: is required"),
        (deep, "is nested far too deeply"),
        (tmp_path / "none", "cannot be read"),
    ):
        with pytest.raises(FleetError) as refused:
            load_fleet(str(path))
        assert str(refused.value).startswith(f"{path}: ")
        assert part in str(refused.value)


def test_the_openb_list():
    fleet = parse_openb(OPENB)
    assert [(n.name, n.gpu_model, n.gpus) for n in fleet.nodes] == [
        ("n0", "G2", 8),
        ("n1", "P100", 2),
    ]
    for text, message in (
        ("sn,cpu_milli\n", "line 1: the columns"),
        (
            OPENB.replace("64000", "many"),
            "line 2, cpu_milli: must be a whole number from 0 to 16777216, not 'many'",
        ),
        (OPENB.replace("64000", "1_0"), "line 2, cpu_milli: must be a whole number from 0"),
        (OPENB.replace(",2,", ",100000000,"), "line 2, gpu: must be a whole number from 0 to 256"),
        (OPENB.replace("n0", "\n\nn0").replace(",G2", ","), "line 5, model: a machine"),
        (OPENB + '"' + 200_000 * "x", "line 4: field larger than field limit"),
        (OPENB.replace(",P100", ","), "line 2, model: a machine with GPUs needs a model"),
        (OPENB.replace("n0", "n1"), "two machines have the same name"),
        (OPENB.splitlines()[0], "line 2: the list has no machines"),
    ):
        with pytest.raises(FleetError) as refused:
            parse_openb(text)
        assert message in str(refused.value)


def test_the_whole_openb_list():
    root = Path(__file__).resolve().parents[3] / "shared" / "traces"
    path = Path(os.environ.get("KANT_TRACES", root)) / "openb" / "openb_node_list_gpu_node.csv"
    if not path.exists():
        missing("the openb node list", "set KANT_TRACES to a folder with openb/")
    fleet = load_fleet(f"openb:{path}")
    assert (len(fleet.nodes), fleet.gpus) == (1213, 6212)


def test_a_node_carries_the_labels_of_a_real_cluster():
    fleet = parse_inventory(yaml.safe_load(FLEET))
    node = node_object(fleet.nodes[0], 300, 0.0)
    labels = node["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "TestGPU-80GB"
    assert labels["nvidia.com/gpu.count"] == "4"
    assert labels["nvidia.com/gpu.memory"] == "81920"
    assert labels["network.topology.nvidia.com/leaf"] == "leaf-0001"
    assert labels["network.topology.nvidia.com/core"] == "core-1"
    assert labels["nvidia.com/gpu.clique"] == "gpu-domain-000"
    assert labels["kant.io/link-model"] == "pcie-4"
    assert node["metadata"]["annotations"] == {"kant.io/nics": "2"}
    assert amounts(node["status"]["capacity"]) == {
        "cpu": 8000,
        "memory": 64 << 30,
        "pods": 6,
        "nvidia.com/gpu": 4,
        "kant.io/gpu-milli": 4000,
    }
    plain = node_object(fleet.nodes[4], 1, 0.0)
    assert "nvidia.com/gpu.product" not in plain["metadata"]["labels"]
    assert plain["spec"]["taints"][0]["effect"] == "NoSchedule"


README = Path(__file__).parents[2] / "scheduling/simcluster/README.md"


def test_the_inventory_of_the_guide_has_nodes_whose_gpus_are_parts():
    [text] = re.findall(r"```yaml\n(name: parts\n.*?)```", README.read_text(), re.DOTALL)
    translator, found = NodeTranslator({}), []
    for number, node in enumerate(parse_inventory(yaml.safe_load(text)).nodes[::2]):
        raw = msgspec.convert(node_object(node, number, 0.0), KubeNode)
        seen = translator.translate(raw).node
        assert seen.problems == ()
        [same] = engine_nodes(Fleet("one", (node,)))
        assert (seen.gives_shares, seen.extended) == (same.gives_shares, same.extended)
        found.append((seen.gpu_model, seen.healthy_gpus, seen.gives_shares, seen.extended))
    h100 = "NVIDIA-H100-80GB-HBM3"
    assert found == [
        (f"{h100}-MIG-1g.10gb", 56, False, {}),
        (h100, 4, True, {"nvidia.com/mig-1g.10gb": 14, "nvidia.com/mig-3g.40gb": 4}),
        (f"{h100}-SHARED", 32, False, {}),
    ]
