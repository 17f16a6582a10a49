"""Pods with channels of ComputeDomains on racks of GB200 NVL72, on both servers."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.models import Job, NodeRecord
from tenants.models import GpuType, Quota
from tests.cases import paired
from tests.live.devices import claims, has_namespace, request, template
from tests.live.nvl72 import (
    CHANNEL,
    DRIVER,
    GB200,
    GPU,
    ComputeDomain,
    RealRacks,
    classes,
    config_of,
    tray,
)
from tests.live.plain_pods import condition, make, node_of, path
from tests.live.test_real_apiserver import apiserver, grant_rights, server

pytestmark = pytest.mark.live
__all__ = ["apiserver", "server"]
# Two racks, the first of which is divided into two partitions.
RACK = "9a1d51ae-ab3d-4a9c-8f5b-5be4b84ba1b1"
OTHER = "14a84a86-9d5c-4a2d-b6b1-3f1a1d2f7a11"
TRAYS = {
    "a-0": f"{RACK}.1", "a-1": f"{RACK}.1",
    "b-0": f"{RACK}.2", "b-1": f"{RACK}.2",
    "c-0": f"{OTHER}.32766", "c-1": f"{OTHER}.32766", "c-2": f"{OTHER}.32766",
}  # fmt: skip
SERVERS = ["embedded", pytest.param("real", marks=pytest.mark.apiserver)]


@pytest.fixture(params=SERVERS)
def there(db, request):
    """A cluster without such nodes."""
    if request.param == "embedded":
        yield request.getfixturevalue("world")
        return
    on = request.getfixturevalue("apiserver")
    grant_rights(on)
    real = RealRacks(on)
    yield real
    real.close()


def build(world, trays=TRAYS, *, by_plugin=True, **config):
    world.by_plugin = by_plugin
    gpu_type = GpuType.objects.create(name=GB200)
    Quota.objects.create(tenant=world.tenant, gpu_type=gpu_type, guaranteed_milli=100_000)
    classes(world.call, **config)
    for name in trays:
        tray(world, name, TRAYS[name], by_plugin=by_plugin)
    if not by_plugin:
        for count in (2, 4):
            template(world, f"gpus-{count}", request(count, "gpu", GPU))


def gang(world, name, pods, gpus=4, channel="channel", **notes):
    """Create a gang of pods with GPUs and a channel each; return the pods' names."""
    named = [{"name": "channel", "resourceClaimTemplateName": channel}]
    amounts = {"cpu": "1"}
    if world.by_plugin:
        amounts["nvidia.com/gpu"] = str(gpus)
    else:
        named.append({"name": "gpus", "resourceClaimTemplateName": f"gpus-{gpus}"})
    labels = {"kant.io/tenant": "team", "kant.io/gang": name}
    notes = {"kant.io/gang-size": str(pods), **notes}
    names = [f"{name}-{n}" for n in range(pods)]
    for each in names:
        make(world, each, 0, labels, notes, amounts, resourceClaims=named)
    return names


def bound(world, pods):
    """Return the pods' nodes once all have one."""
    world.drive(lambda: all(node_of(world, pod) for pod in pods))
    return [node_of(world, pod) for pod in pods]


def channel_of(world, pod):
    """Return the pod's claim for a channel."""
    for each in world.call("GET", claims())["items"]:
        owners = [owner["name"] for owner in each["metadata"].get("ownerReferences", ())]
        asks = [r["exactly"]["deviceClassName"] for r in each["spec"]["devices"]["requests"]]
        if pod in owners and asks == [CHANNEL]:
            return each
    return None


def says(world, pod, reason, *texts):
    def told():
        _, by, text = condition(world, pod) or ("",) * 3
        return by == reason and all(each in text for each in texts)

    world.drive(told)


PODS = "/api/v1/namespaces/default/pods"
ON_RACKS = {"nodeSelector": {"nvidia.com/gpu.product": GB200}}
NEAR = {"kant.io/required-level": "hyper-node"}


@pytest.mark.parametrize(("mode", "by_plugin"), paired(["Single", "All"], [True, False]))
def test_each_pod_of_a_gang_has_a_channel_on_its_node(there, by_plugin, mode):
    common = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig"}
    build(there, by_plugin=by_plugin, **common, domainID="of-the-class")
    domain = ComputeDomain(there, mode=mode).made()
    pods = gang(there, "train", 3, **NEAR)
    nodes = bound(there, pods)
    assert sorted(nodes) == ["c-0", "c-1", "c-2"]  # the only partition with that many nodes
    for pod, node in zip(pods, nodes, strict=True):
        claim = channel_of(there, pod)
        devices = claim["status"]["allocation"]["devices"]
        where = {"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}
        assert [{key: each[key] for key in where} for each in devices["results"]] == [where]
        # In the driver's order of precedence: the claim's configuration comes last.
        of_class = {**common, "domainID": "of-the-class"}
        assert config_of(claim) == [
            ("FromClass", ["channel"], of_class),
            ("FromClaim", ["channel"], domain.config),
        ]
        assert claim["status"]["reservedFor"][0]["name"] == pod
    job = Job.objects.get()
    assert (job.gpu_milli, {p.gpu_model for p in job.placements.all()}) == (12_000, {GB200})


def test_a_gang_keeps_within_one_partition_of_a_rack(there):
    build(there, ("a-0", "a-1", "b-0", "b-1"))
    ComputeDomain(there).made()
    too_wide = gang(there, "wide", 3, **NEAR)
    says(there, "wide-0", "ExceedsCapacity")
    assert not any(node_of(there, pod) for pod in too_wide)
    found = [{node[0] for node in bound(there, gang(there, f"two-{n}", 2, **NEAR))} for n in "xy"]
    assert sorted(map(sorted, found)) == [["a"], ["b"]]
    keys = dict(NodeRecord.objects.values_list("name", "hyper_node"))
    assert keys == keys | {name: TRAYS[name] for name in ("a-0", "a-1", "b-0", "b-1")}


@pytest.mark.parametrize("by_plugin", [True, False], ids=["plugin", "driver"])
def test_two_domains_have_no_node_together(there, by_plugin):
    build(there, ("a-0", "a-1"), by_plugin=by_plugin)
    for name in ("one", "two"):
        ComputeDomain(there, f"channel-{name}").made()
    first = gang(there, "one", 2, 2, "channel-one")
    assert sorted(bound(there, first)) == ["a-0", "a-1"]
    second = gang(there, "two", 2, 2, "channel-two")
    says(there, "two-0", "Unschedulable")
    assert not any(node_of(there, pod) for pod in second)
    end(there, first)
    assert sorted(bound(there, second)) == ["a-0", "a-1"]


def end(world, pods):
    for pod in pods:
        world.call("DELETE", path(pod), {"gracePeriodSeconds": 0})


def test_daemons_of_the_driver_change_nothing(there):
    build(there, ("a-0", "a-1"))
    domain = ComputeDomain(there).made()
    pods = gang(there, "one", 2, 2)
    nodes = bound(there, pods)
    daemons = [domain.daemon_on(node) for node in nodes]
    there.restart_scheduler()
    # Others may use the remaining GPUs, but not the channels, and the daemons are not jobs.
    other = make(there, "other", requests={"cpu": "1", "nvidia.com/gpu": "2"}, **ON_RACKS)
    assert bound(there, ["other"])[0] in nodes
    assert {str(job.pk) for job in Job.objects.filter(pod_gang="")} == {other}
    more = gang(there, "more", 1, 1)
    says(there, "more-0", "Unschedulable")
    assert {each["metadata"]["name"] for each in there.call("GET", PODS)["items"]} >= {*daemons}
    end(there, pods)  # daemons end later than the pods that use the channels
    assert bound(there, more)[0] in nodes


def test_pods_wait_for_a_domain_whose_controller_is_late(there):
    build(there, ("a-0", "a-1"))
    pods = gang(there, "early", 2)
    for pod in pods:
        says(there, pod, "ClaimNotReady", "There is no resource claim template channel in namesp")
    domain = ComputeDomain(there).made()
    assert sorted(bound(there, pods)) == ["a-0", "a-1"]
    assert {config_of(channel_of(there, pod))[0][2]["domainID"] for pod in pods} == {domain.uid}


@pytest.mark.parametrize("is_gone", [False, True], ids=["going", "gone"])
def test_pods_whose_domain_was_deleted_start_nowhere(there, is_gone):
    build(there, ("a-0", "a-1"))
    domain = ComputeDomain(there).made()
    first = gang(there, "first", 2)
    bound(there, first)
    waits = gang(there, "waits", 2)
    says(there, "waits-0", "Unschedulable")
    domain.deleted()
    if is_gone:
        domain.gone()
    says(there, "waits-0", "WaitingForDevices", f"of ComputeDomain {domain.uid}, which is gone")
    end(there, first)
    there.drive(lambda: not any(channel_of(there, pod) for pod in first))
    there.restart_scheduler()
    says(there, "waits-0", "WaitingForDevices", domain.uid)
    assert not any(node_of(there, pod) for pod in waits)
    if not is_gone:
        domain.gone()
    # A domain of the same name is a different one: the pods' claims do not belong to it.
    ComputeDomain(there).made()
    again = gang(there, "again", 2)
    assert sorted(bound(there, again)) == ["a-0", "a-1"]
    assert not any(node_of(there, pod) for pod in waits)


def test_a_job_of_kant_has_channels(world):
    build(world, ("a-0", "a-1"))
    world.drive(lambda: has_namespace(world))
    domain = ComputeDomain(world, namespace="kant-jobs").made()
    channel = {"channel": {"template": "channel"}}
    job = world.submit(pods=2, gpus=4, gpu_models=[GB200], device_claims=channel)
    world.drive_to(job, S.RUNNING)
    assert {place.node for place in world.placements(job)} == {"a-0", "a-1"}
    made = world.call("GET", claims(namespace="kant-jobs"))["items"]
    assert [config_of(each) for each in made] == [[("FromClaim", ["channel"], domain.config)]] * 2
