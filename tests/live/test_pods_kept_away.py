"""Running pods keep others out of their topology domain, whichever scheduler bound them."""

import pytest

from scheduling.engine.states import JobState as S
from tests.live.plain_pods import NAMESPACE, REQUIRED, job_of, make, node_of, path, state_of

pytestmark = pytest.mark.live
HOST = "kubernetes.io/hostname"


def bound_elsewhere(world, name, node, selector, *, key=HOST, labels=None, **term):
    """Bind a pod of another scheduler to the node, with a required anti-affinity."""
    rule = {"labelSelector": selector, "topologyKey": key, **term}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "nodeName": node,
            "affinity": {"podAntiAffinity": {REQUIRED: [rule]}},
            "containers": [{"name": "c", "image": "i"}],
        },
    }
    world.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)


def nodes_of(world):
    return sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])


IS_DEFAULT = {"kubernetes.io/metadata.name": NAMESPACE}
MEANT = {
    "labels": {"selector": {"matchLabels": {"app": "anti"}}},
    "expressions": {
        "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["anti"]}]}
    },
    "anything": {"selector": {}},
    "named namespace": {"selector": {}, "namespaces": [NAMESPACE]},
    "all namespaces": {"selector": {}, "namespaceSelector": {}},
    "namespaces by label": {"selector": {}, "namespaceSelector": {"matchLabels": IS_DEFAULT}},
}
NOT_MEANT = {
    "nothing": {"selector": None},
    "other labels": {"selector": {"matchLabels": {"app": "other"}}},
    "other namespace": {"selector": {}, "namespaces": ["elsewhere"]},
    "other namespaces": {"selector": {}, "namespaceSelector": {"matchLabels": {"a": "b"}}},
    "no such topology": {"selector": {}, "key": "no-such-label"},
}


@pytest.mark.parametrize("rule", MEANT.values(), ids=MEANT)
def test_a_plain_pod_goes_where_nobody_keeps_it_away(world, rule):
    nodes = nodes_of(world)
    for number, node in enumerate(nodes[:-1]):
        bound_elsewhere(world, f"keeper-{number}", node, **rule)
    labels = {"kant.io/tenant": "team", "app": "anti"}
    first = make(world, "first", gpus=1, labels=labels)
    world.drive(lambda: state_of(first) is S.RUNNING)
    assert node_of(world, "first") == nodes[-1]


@pytest.mark.parametrize("rule", NOT_MEANT.values(), ids=NOT_MEANT)
def test_rules_that_do_not_mean_it_keep_no_pod_away(world, rule):
    for number, node in enumerate(nodes_of(world)):
        bound_elsewhere(world, f"keeper-{number}", node, **rule)
    free = make(world, gpus=1, labels={"kant.io/tenant": "team", "app": "anti"})
    world.drive(lambda: state_of(free) is S.RUNNING)


def test_it_waits_while_all_nodes_are_kept_and_starts_when_one_is_left(world):
    nodes = nodes_of(world)
    for number, node in enumerate(nodes):
        bound_elsewhere(world, f"keeper-{number}", node, {"matchLabels": {"app": "anti"}})
    uid = make(world, gpus=1, labels={"kant.io/tenant": "team", "app": "anti"})
    other = make(world, "other", gpus=1)
    world.drive(lambda: state_of(other) is S.RUNNING)
    world.drive(lambda: "required anti-affinity" in (job_of(uid).message or ""))
    assert f"{NAMESPACE}/keeper-0" in job_of(uid).message
    assert not node_of(world)
    world.call("DELETE", path("keeper-0"))
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == nodes[0]


def test_own_jobs_are_kept_away_by_the_labels_of_their_pods(world):
    nodes = nodes_of(world)
    for number, node in enumerate(nodes[:-1]):
        bound_elsewhere(
            world,
            f"keeper-{number}",
            node,
            {"matchLabels": {"app": "anti"}},
            namespaceSelector={},
        )
    job = world.submit(gpus=1, labels={"app": "anti"})
    world.drive(lambda: world.placements(job))
    assert {p.node for p in world.placements(job)} == {nodes[-1]}


def test_a_topology_is_more_than_a_node(world):
    nodes = nodes_of(world)
    zones = {node: "a" if node != nodes[-1] else "b" for node in nodes}
    for node, zone in zones.items():
        patch = {"metadata": {"labels": {"zone": zone}}}
        world.call("PATCH", f"/api/v1/nodes/{node}", patch, kind="merge-patch+json")
    bound_elsewhere(world, "keeper", nodes[0], {"matchLabels": {"app": "anti"}}, key="zone")
    uid = make(world, gpus=1, labels={"kant.io/tenant": "team", "app": "anti"})
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == nodes[-1]
