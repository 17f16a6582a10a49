"""Pods whose devices have binding conditions are bound when the driver says that these hold."""

import pytest

from scheduling.engine.states import JobState as S
from tests.live.devices import (
    claim,
    claim_of,
    conditional,
    given,
    gpus,
    of_class,
    pod,
    publish,
    request,
    say,
    say_once,
    template,
)
from tests.live.plain_pods import all_told, condition, job_of, make, node_of, pod_of, state_of
from tests.live.test_extended_resources import ONLY_THERE, class_for, made_for, node_by_driver
from tests.live.test_job_device_claims import NAMESPACE, TWO, claims_of

pytestmark = pytest.mark.live
WAITS = "Resource claim {}: gpu-0 of pool {} is not Ready yet"


def nominated(world, name="plain"):
    return pod_of(world, name)["status"].get("nominatedNodeName")


def failed(world, name="plain"):
    """Return the texts of its Events that say that its devices did not become ready."""
    events = (each for each in all_told(world, name) if "DevicesNotReady" in each[2])
    return [text for _, _, text in events]


@pytest.fixture
def two(world):
    """Two nodes, each with a GPU that is not ready at once."""
    nodes = [node_by_driver(world, name, 0) for name in ("one", "two")]
    of_class(world)
    for node in nodes:
        publish(world, node, devices=conditional(gpus(1)))
    template(world, "one", request(1))
    return nodes


def test_a_pod_is_bound_when_its_device_is_ready(world, two):
    uid = pod(world, template="one")
    world.drive(lambda: given(world, "plain") and nominated(world))
    node = nominated(world)
    [result] = claim_of(world, "plain")["status"]["allocation"]["devices"]["results"]
    assert result["bindingConditions"] == ["Ready"]
    assert result["bindingFailureConditions"] == ["Broken"]
    _, reason, text = condition(world)
    name = claim_of(world, "plain")["metadata"]["name"]
    assert (reason, text) == (
        "WaitingForDevices",
        f"WaitingForDevices: {WAITS.format(name, node)}",
    )
    say(world, "plain", Ready=False)
    world.scheduler.run(world.cluster.pk, budget_s=0.2)
    assert node_of(world) is None
    # A scheduler that starts later waits for it, too.
    world.restart_scheduler()
    for _ in range(3):
        world.scheduler.run(world.cluster.pk, budget_s=0.2)
    assert node_of(world) is None
    say(world, "plain", Ready=True)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == node
    assert job_of(uid).attempt == 1


def test_a_pod_whose_device_fails_gets_another(world, two):
    uid = pod(world, template="one")
    world.drive(lambda: given(world, "plain") and nominated(world))
    node = nominated(world)
    say(world, "plain", Broken=True)
    world.drive(lambda: nominated(world) not in (None, node))
    other = nominated(world)
    assert given(world, "plain") == [f"{other}/gpu-0"]
    [text] = set(failed(world))
    assert f"gpu-0 of pool {node} is Broken (Driver: it says so)" in text
    say(world, "plain", Ready=True)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == other


def test_a_pod_whose_device_is_not_ready_in_time_gives_it_back(world, two):
    # On a slow machine it fails again before the Event is written: any number of times.
    world.set_policy(gang_timeout_s=0.5, blame_s=0.0, max_attempts=1_000_000)
    pod(world, template="one")
    world.drive(lambda: failed(world))
    assert "is not Ready yet, " in failed(world)[0]
    world.set_policy(gang_timeout_s=600)
    uid = pod_of(world)["metadata"]["uid"]

    def ready():
        say_once(world, "plain", Ready=True)
        return state_of(uid) is S.RUNNING

    world.drive(ready)


def test_a_gang_is_bound_when_all_devices_are_ready_or_gives_all_back(world, two):
    gang = {"kant.io/tenant": "team", "kant.io/gang": "g"}
    names = ["g-0", "g-1"]
    for name in names:
        pod(world, name, template="one", labels=gang, notes={"kant.io/gang-size": "2"})
    world.drive(lambda: all(given(world, name) for name in names))
    say(world, "g-0", Ready=True)
    for _ in range(3):
        world.scheduler.run(world.cluster.pk, budget_s=0.2)
    assert not any(node_of(world, name) for name in names)
    say(world, "g-1", Broken=True)
    world.drive(lambda: failed(world, "g-0") and failed(world, "g-1"))
    assert not any(node_of(world, name) for name in names)
    publish(world, node_by_driver(world, "three", 0), devices=conditional(gpus(1)))

    def ready():
        for name in names:
            say_once(world, name, Ready=True)
        return all(node_of(world, name) for name in names)

    world.drive(ready)
    assert len({node_of(world, name) for name in names}) == 2


def test_a_second_pod_of_a_claim_waits_for_its_devices_too(world, two):
    world.set_policy(cpu_jobs_on_gpu_nodes="freely")
    claim(world, "shared", request(1))
    pod(world, "first", of="shared")
    world.drive(lambda: nominated(world, "first"))
    pod(world, "second", of="shared")
    world.drive(lambda: nominated(world, "second"))
    assert not any(node_of(world, name) for name in ("first", "second"))
    say(world, "shared", Ready=True)
    world.drive(lambda: all(node_of(world, name) for name in ("first", "second")))


def test_jobs_and_pods_that_ask_by_name_wait_for_their_devices(world):
    node = node_by_driver(world, count=0)
    publish(world, node, devices=conditional(gpus(4)))
    class_for(world)
    by_claims = world.submit("claims", gpus=2, device_claims=TWO)
    world.drive(lambda: any("allocation" in c.get("status", {}) for c in owned(world, by_claims)))
    by_name = make(world, gpus=2, **ONLY_THERE)
    world.drive(lambda: any(c.get("status") for c in made_for(world, "plain")))
    for _ in range(2):
        world.scheduler.run(world.cluster.pk, budget_s=0.2)
    [place] = world.placements(by_claims)
    assert not world.pods()[place.pod_name]["spec"].get("nodeName")
    assert node_of(world) is None
    say(world, place.pod_name, namespace=NAMESPACE, Ready=True)
    say(world, "plain", Ready=True)
    world.drive_to(by_claims, S.RUNNING)
    world.drive(lambda: state_of(by_name) is S.RUNNING)


def owned(world, job):
    return list(claims_of(world, job).values())
