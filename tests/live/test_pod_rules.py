"""Rules between plain pods take effect from the API to the node, and people see why a pod waits."""

import pytest

from scheduling.engine.states import JobState as S
from tests.live.plain_pods import (
    REQUIRED,
    all_told,
    condition,
    job_of,
    make,
    node_of,
    path,
    state_of,
)

pytestmark = pytest.mark.live
HOST = "kubernetes.io/hostname"
MINE = {"kant.io/tenant": "team", "app": "web"}
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOST}


def container(port, gpus=1):
    limits = {"nvidia.com/gpu": str(gpus)}
    ports = [{"containerPort": port}]
    return {"name": "c", "image": "i", "ports": ports, "resources": {"limits": limits}}


def nodes_of(world):
    return sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])


def message(uid):
    job = job_of(uid)
    return job.message if job else ""


def bound(world, names):
    """Return the nodes of these pods once all have one."""
    world.drive(lambda: all(node_of(world, name) for name in names))
    return [node_of(world, name) for name in names]


def test_pods_with_the_same_host_port_are_on_different_nodes(world):
    nodes = nodes_of(world)
    names = [f"web-{n}" for n in range(len(nodes))]
    for name in names:  # for pods in the host's network the API server sets the host ports
        make(world, name, hostNetwork=True, containers=[container(8080)])
    assert sorted(bound(world, names)) == nodes
    late = make(world, "late", hostNetwork=True, containers=[container(8080)])
    other = make(world, "other", hostNetwork=True, containers=[container(8081)])
    world.drive(lambda: state_of(other) is S.RUNNING)
    world.drive(lambda: "host ports are taken" in message(late))
    world.drive(lambda: [note for _, _, note in all_told(world, "late") if "0/4 nodes" in note])
    assert "4 its host ports are taken" in all_told(world, "late")[0][2]
    assert condition(world, "late")[1] == "Unschedulable"
    freed = node_of(world, names[0])
    world.call("DELETE", path(names[0]))
    assert bound(world, ["late"]) == [freed]


def test_replicas_keep_apart_and_a_new_scheduler_knows_it(world):
    nodes = nodes_of(world)
    names = [f"web-{n}" for n in range(len(nodes) - 1)]
    rule = {"podAntiAffinity": {REQUIRED: [WEB]}}
    for name in names:
        make(world, name, gpus=1, labels=MINE, affinity=rule)
    taken = bound(world, names)
    assert len(set(taken)) == len(taken)
    world.drive(lambda: all(state_of(uid_of(world, name)) is S.RUNNING for name in names))
    world.restart_scheduler()
    make(world, "plain", gpus=1, labels=MINE)  # no rule of its own: the others' rules apply to it
    assert set(bound(world, ["plain"])) == set(nodes) - set(taken)
    beside = {"podAffinity": {REQUIRED: [WEB]}}
    make(world, "beside", gpus=1, affinity=beside)
    assert bound(world, ["beside"])[0] in nodes
    lost = make(world, "lost", gpus=1, affinity={"podAffinity": {REQUIRED: [NOBODY]}})
    world.drive(lambda: "not beside pods with app=nobody in default" in message(lost))


NOBODY = {"labelSelector": {"matchLabels": {"app": "nobody"}}, "topologyKey": HOST}


def uid_of(world, name):
    return world.call("GET", path(name))["metadata"]["uid"]


def test_a_gang_is_spread_as_its_pods_say(world):
    nodes = nodes_of(world)
    for number, node in enumerate(nodes):
        patch = {"metadata": {"labels": {"zone": "ab"[number % 2]}}}
        world.call("PATCH", f"/api/v1/nodes/{node}", patch, kind="merge-patch+json")
    even = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": WEB["labelSelector"]}
    names = [f"gang-{n}" for n in range(4)]
    for name in names:
        make(
            world,
            name,
            gpus=1,
            labels={**MINE, "kant.io/gang": "g"},
            notes={"kant.io/gang-size": "4"},
            topologySpreadConstraints=[{**even, "whenUnsatisfiable": "DoNotSchedule"}],
        )
    zones = ["ab"[nodes.index(node) % 2] for node in bound(world, names)]
    assert sorted(zones) == ["a", "a", "b", "b"]
