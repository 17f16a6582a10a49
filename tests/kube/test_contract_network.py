"""Objects that describe the network to other schedulers, as both servers have them; the real server
uses the definitions of their authors."""

import itertools
from pathlib import Path

import pytest
import yaml

from scheduling.kube.network.hyper_nodes import GROUP as VOLCANO
from scheduling.kube.network.numa_zones import GROUP as NUMA
from scheduling.kube.network.topologies import KAI, KUEUE
from scheduling.kube.seam import Connected, NodeSeen, PodSeen
from scheduling.kube.translate.manifests import TENANT
from scheduling.kube.translate.nodes import GPUS_IN_ZONE
from tests.kube.api import eventually

HERE = Path(__file__).parent
DEFINITIONS = [
    body
    for name in ("topologies.yaml", "hyper_nodes.yaml", "node_resource_topologies.yaml")
    for body in yaml.safe_load_all((HERE / name).read_text())
]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kant"
VERSIONS = {KUEUE: f"{KUEUE}/v1beta2", KAI: f"{KAI}/v1alpha1"}
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
_numbers = itertools.count(1)


def define(server, definitions=DEFINITIONS):
    """Have the server serve these kinds; the embedded one does already."""
    for body in definitions if server.name != "embedded" else ():
        answer = server.api.call("POST", CRDS, body)
        assert answer.code in (201, 409), answer
        of, version = body["spec"], body["spec"]["versions"][-1]["name"]
        path = f"/apis/{of['group']}/{version}/{of['names']['plural']}"
        eventually(lambda path=path: server.api.call("GET", path).code == 200)


def undefine(server, definitions=DEFINITIONS):
    for body in definitions:
        path = f"{CRDS}/{body['metadata']['name']}"
        server.api.call("DELETE", path)
        eventually(lambda path=path: server.api.call("GET", path).code == 404)


class Objects:
    """Makes objects of these kinds, and deletes them afterwards."""

    def __init__(self, server):
        self._server, self._made = server, []

    def make(self, api_version, kind, plural, name, spec):
        # Objects of the same second are ordered by name.
        meta = {"name": f"{name}-{next(_numbers):05}"}
        body = {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}
        path = f"/apis/{api_version}/{plural}"
        self._server.api.ok("POST", path, body)
        self._made.append(f"{path}/{meta['name']}")
        return meta["name"]

    def topology(self, *widest_first, group=KUEUE):
        spec = {"levels": [{"nodeLabel": label} for label in widest_first]}
        return self.make(VERSIONS[group], "Topology", "topologies", "levels", spec)

    def zones(self, node, *gpus, policy="single-numa-node"):
        """Report the NUMA zones of a node, as its agent does."""

        def amounts(name, amount):
            told = dict.fromkeys(("capacity", "allocatable", "available"), amount)
            return {"name": name, **told}

        body = {
            "apiVersion": f"{NUMA}/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": node},
            "attributes": [
                {"name": "topologyManagerPolicy", "value": policy},
                {"name": "topologyManagerScope", "value": "pod"},
            ],
            "zones": [
                {
                    "name": f"node-{n}",
                    "type": "Node",
                    "costs": [{"name": "node-0", "value": 10}],
                    "resources": [amounts("cpu", "32"), amounts("nvidia.com/gpu", count)],
                }
                for n, count in enumerate(gpus)
            ],
        }
        path = f"/apis/{NUMA}/v1alpha2/noderesourcetopologies"
        self._server.api.ok("POST", path, body)
        self._made.append(f"{path}/{node}")

    def remove(self):
        for path in self._made:
            self._server.api.call("DELETE", path)
        self._made.clear()


@pytest.fixture
def objects(server, place):
    define(server)
    objects = Objects(server)
    yield objects
    objects.remove()


def placed(door, name, topology):
    """Wait until the node is reported with this topology."""

    def is_there(each):
        return (
            isinstance(each, NodeSeen)
            and each.facts.node.name == name
            and each.facts.node.topology == topology
        )

    return door.until(is_there).facts


@pytest.mark.parametrize("group", [KUEUE, KAI])
def test_nodes_are_placed_by_a_topology_while_there_is_one(place, objects, open_door, group):
    rack, block = f"ex-{place.number}/rack", f"ex-{place.number}/block"
    place.make_node(labels={rack: "r1", block: "b1"})
    name = objects.topology(block, rack, "kubernetes.io/hostname", group=group)
    door = open_door()
    # Objects that exist at the start count before anything is decided.
    first = [each.facts for each in door.gateway.drain() if isinstance(each, NodeSeen)]
    [facts] = [each for each in first if each.node.name == place.node]
    assert facts.node.topology == ("b1/r1", "b1", "")
    assert facts.facts["leaf"].source == rack
    assert door.gateway.remarks == ""
    # This holds wherever the node is by then.
    other = objects.topology(f"ex-{place.number}/row", group=group)
    assert eventually(lambda: other in door.gateway.remarks)
    assert f"Topology {name} of {group}, which is older" in door.gateway.remarks
    objects.remove()
    placed(door, place.node, ("", "", ""))
    assert eventually(lambda: door.gateway.remarks == "") is True


def test_a_level_of_which_no_node_has_the_label_is_told(place, objects, open_door):
    rack = f"ex-{place.number}/rack"
    place.make_node()
    objects.topology(rack)
    door = open_door()
    assert eventually(lambda: door.gateway.remarks.startswith(f"No node has the label {rack}"))
    place.make_node(f"{place.node}-b", labels={rack: "r1"})
    placed(door, f"{place.node}-b", ("r1", "", ""))
    assert eventually(lambda: door.gateway.remarks == "") is True


def test_a_flavor_of_kueue_chooses_its_topology(place, objects, open_door):
    rack, row = f"ex-{place.number}/rack", f"ex-{place.number}/row"
    place.make_node(labels={rack: "r1", row: "w1"})
    objects.topology(row)
    new = objects.topology(rack)
    door = open_door()
    placed(door, place.node, ("w1", "", ""))
    spec = {"nodeLabels": {"nvidia.com/gpu.count": "8"}, "topologyName": new}
    objects.make(VERSIONS[KUEUE], "ResourceFlavor", "resourceflavors", "flavor", spec)
    placed(door, place.node, ("r1", "", ""))


def test_waiting_pods_follow_what_a_label_means(place, objects, open_door):
    rack = f"ex-{place.number}/rack"
    place.make_node(labels={rack: "r1"})
    pod = place.manifest("a")
    # A pod that Kant did not make.
    pod["metadata"] |= {"labels": {TENANT: "vision"}, "annotations": {REQUIRED: rack}}
    place.api.ok("POST", place.pods, pod)
    door = open_door()

    def told(wanted):
        def is_it(each):
            mine = isinstance(each, PodSeen) and each.pod.namespace == place.namespace
            return mine and each.pod.plain is not None and wanted(each.pod.plain.levels)

        return door.until(is_it)

    told(lambda levels: "Kant knows no network level by the label" in levels.wrong)
    objects.topology(rack)
    told(lambda levels: (levels.required, levels.wrong) == ("leaf", ""))
    door.forget()
    objects.remove()
    told(lambda levels: levels.wrong)


def test_nodes_are_placed_by_the_hyper_nodes_that_have_them(place, objects, open_door):
    def hyper_node(tier, kind, **selector):
        members = [{"type": kind, "selector": selector}]
        spec = {"tier": tier, "members": members}
        kinds = f"{VOLCANO}/v1alpha1", "HyperNode", "hypernodes"
        return objects.make(*kinds, f"tier{tier}", spec)

    place.make_node()
    leaf = hyper_node(1, "Node", regexMatch={"pattern": f"^{place.node}$"})
    spine = hyper_node(2, "HyperNode", exactMatch={"name": leaf})
    door = open_door()
    placed(door, place.node, (f"{spine}/{leaf}", spine, ""))
    assert door.gateway.remarks == ""
    other = hyper_node(1, "Node", exactMatch={"name": place.node})

    def is_told(each):
        text = f"HyperNodes {leaf} and {other} both have the node: {leaf} counts"
        return isinstance(each, NodeSeen) and text in each.facts.node.problems

    door.until(is_told)
    hyper_node(1, "HyperNode", exactMatch={"name": spine})
    assert eventually(lambda: "which is not lower" in door.gateway.remarks)
    objects.remove()
    placed(door, place.node, ("", "", ""))
    assert eventually(lambda: door.gateway.remarks == "") is True


def test_what_one_pod_can_get_of_a_node_follows_its_zones(place, objects, open_door):
    place.make_node()
    loose = f"{place.node}-b"
    place.make_node(loose)
    objects.zones(place.node, 4, "4")
    objects.zones(loose, 4, 4, policy="restricted")
    door = open_door()

    def told(most):
        def is_it(each):
            mine = isinstance(each, NodeSeen) and each.facts.node.name == place.node
            return mine and each.facts.node.labels.get(GPUS_IN_ZONE) == most

        return door.until(is_it).facts

    assert told("4").facts["gpus_in_zone"].value == 4
    others = [each.facts for each in door.seen if isinstance(each, NodeSeen)]
    [other] = [facts for facts in others if facts.node.name == loose]
    assert GPUS_IN_ZONE not in other.node.labels
    door.forget()
    objects.remove()
    assert "gpus_in_zone" not in told(None).facts


@pytest.mark.apiserver
@pytest.mark.parametrize("server", ["kube-apiserver"], indirect=True)
def test_a_kind_that_is_defined_later_or_in_another_version_is_followed(
    server, place, open_door, monkeypatch
):
    monkeypatch.setattr("scheduling.kube.door.watch.SERVED_S", 0.2)
    undefine(server)
    rack = f"ex-{place.number}/rack"
    place.make_node(labels={rack: "r1"})
    door = open_door()
    placed(door, place.node, ("", "", ""))
    assert door.gateway.remarks == ""
    only_older = yaml.safe_load((HERE / "topologies.yaml").read_text().split("\n---\n")[1])
    [older, _] = only_older["spec"]["versions"]
    only_older["spec"]["versions"] = [{**older, "storage": True}]
    define(server, [only_older])
    try:
        spec = {"levels": [{"nodeLabel": rack}]}
        meta = {"name": "older"}
        body = {
            "apiVersion": f"{KUEUE}/v1beta1",
            "kind": "Topology",
            "metadata": meta,
            "spec": spec,
        }
        server.api.ok("POST", f"/apis/{KUEUE}/v1beta1/topologies", body)
        placed(door, place.node, ("r1", "", ""))
        # All objects go with their definition.
        door.forget()
        undefine(server, [only_older])
        placed(door, place.node, ("", "", ""))
    finally:
        undefine(server, [only_older])


@pytest.mark.apiserver
@pytest.mark.parametrize("server", ["kube-apiserver"], indirect=True)
def test_a_right_that_is_missing_is_named_and_holds_nothing_up(server, place, objects, open_door):
    rack = f"ex-{place.number}/rack"
    place.make_node(labels={rack: "r1"})
    objects.topology(rack, group=KAI)
    role = server.api.ok("GET", ROLE)
    rules = [rule for rule in role["rules"] if rule["apiGroups"] != [KAI]]
    assert len(rules) == len(role["rules"]) - 1
    try:
        server.api.ok("PUT", ROLE, {**role, "rules": rules})
        door = open_door(sync=False)
        right = f"does not allow Kant to list and watch topologies.{KAI} (403;"
        assert eventually(lambda: right in door.gateway.remarks)
        door.until(lambda each: isinstance(each, Connected))
        assert door.gateway.is_synced()
        assert not door.gateway.trouble
        placed(door, place.node, ("", "", ""))
    finally:
        now = server.api.ok("GET", ROLE)
        server.api.ok("PUT", ROLE, {**now, "rules": role["rules"]})
    placed(door, place.node, ("r1", "", ""))
    assert eventually(lambda: door.gateway.remarks == "") is True
