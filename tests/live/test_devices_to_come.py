"""Devices that no node has yet, on clusters that can grow and on those that cannot."""

import pytest

from metrics.benches import stage
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster
from tests.live.devices import GPU, gpus, of_class, pod, publish, request, template
from tests.live.growing import GROUP
from tests.live.plain_pods import condition, node_of, state_of
from tests.live.test_extended_resources import node_by_driver

pytestmark = pytest.mark.live
H200 = "NVIDIA H200"
# Four of the nodes exist: a device plugin provides their GPUs.
GROUPS = {"h100": {**GROUP, "gpu_type": stage.MODEL, "max_nodes": 6}}
OF_ONE = {"constraints": [{"matchAttribute": f"{GPU}/productName"}]}


@pytest.fixture
def grows(world):
    of_class(world)
    Cluster.objects.update(node_groups=GROUPS)
    return world


def waits_by(world, name, reason, text=""):
    def told():
        _, by, said = condition(world, name) or ("",) * 3
        return by == reason and text in said

    world.drive(told)


def test_a_pod_whose_device_no_node_has_is_unschedulable_until_one_comes(grows):
    template(grows, "two", request(2))
    uid = pod(grows, template="two")
    waits_by(grows, "plain", "Unschedulable", "no device of the cluster matches request gpu")
    node = node_by_driver(grows, count=8)
    grows.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(grows) == node


def test_on_a_cluster_that_does_not_grow_it_is_told_what_is_missing(grows):
    Cluster.objects.update(node_groups={})
    template(grows, "two", request(2))
    pod(grows, template="two")
    waits_by(grows, "plain", "ClaimNotReady", "Add one, or change it.")
    Cluster.objects.update(node_groups=GROUPS)
    waits_by(grows, "plain", "Unschedulable")
    Cluster.objects.update(node_groups={})
    waits_by(grows, "plain", "ClaimNotReady")


def test_a_pod_whose_devices_are_gone_while_it_waits_is_unschedulable(grows):
    node = node_by_driver(grows, count=2)
    template(grows, "two", request(2))
    first = pod(grows, "first", template="two")
    grows.drive(lambda: state_of(first) is S.RUNNING)
    pod(grows, "second", template="two")
    waits_by(grows, "second", "Unschedulable")
    publish(grows, node, devices=(), name="newer", generation=2)
    waits_by(grows, "second", "Unschedulable", "A node added by an autoscaler may have one")


@pytest.mark.parametrize("devices", [{}, OF_ONE], ids=["counted", "by constraints"])
def test_more_devices_than_any_node_has_are_those_of_nodes_to_come(grows, devices):
    node_by_driver(grows, count=2)
    for count in (3, 9):
        template(grows, f"of-{count}", request(count), **devices)
    uid = pod(grows, "fits", template="of-3")
    pod(grows, "never", template="of-9")
    waits_by(grows, "fits", "Unschedulable")
    waits_by(grows, "never", "ExceedsCapacity")
    node = node_by_driver(grows, "driver-2", count=8)
    grows.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(grows, "fits") == node


def test_devices_of_another_model_do_not_come(grows):
    node = node_by_driver(grows, count=0)
    publish(grows, node, devices=gpus(2, model=H200))
    template(grows, "three", request(3))
    pod(grows, template="three")
    grows.drive(lambda: (condition(grows, "plain") or ("",) * 3)[1] not in ("", "ClaimNotReady"))
    assert condition(grows)[1] != "Unschedulable"
