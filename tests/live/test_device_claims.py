"""Plain pods get devices by claims."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.kube.seam import CallOutcome, Result
from scheduling.kube.translate.quantities import parse
from tests.live.devices import (
    GPU,
    NIC,
    OF_GPU,
    claim,
    claim_of,
    given,
    gpus,
    of_class,
    plain_devices,
    pod,
    publish,
    request,
    shared_gpus,
    template,
)
from tests.live.plain_pods import (
    Between,
    all_told,
    condition,
    job_of,
    make,
    node_of,
    state_of,
    told,
)
from tests.live.test_extended_resources import ONLY_THERE, node_by_driver

pytestmark = pytest.mark.live
INSTEAD = "capacity.requests of a ResourceClaim"
TAINT_RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"


def part(memory):
    return {"requests": {"memory": memory}}


def nodes_of(world):
    return sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])


def test_a_pod_gets_the_devices_of_its_claim(world):
    first = nodes_of(world)[0]
    of_class(world)
    publish(world, first, devices=gpus(8))
    template(world, "two", request(2))
    uid = pod(world, template="two")
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == first
    assert len(given(world, "plain")) == 2
    found = claim_of(world, "plain")
    assert found["status"]["reservedFor"] == [{"resource": "pods", "name": "plain", "uid": uid}]
    assert job_of(uid).gpu_milli == 2000


def test_a_gang_gets_the_devices_of_all_its_claims_or_none(world):
    first, second = nodes_of(world)[:2]
    of_class(world)
    for node in (first, second):
        publish(world, node, devices=gpus(2))
    template(world, "one", request(1))
    gang = {"kant.io/tenant": "team", "kant.io/gang": "g"}

    def make(count, start=0):
        size = {"kant.io/gang-size": "5"}
        names = [f"g-{n}" for n in range(start, count)]
        return [pod(world, name, template="one", labels=gang, notes=size) for name in names]

    make(5)
    world.drive(lambda: (condition(world, "g-0") or ("",) * 3)[1] not in ("", "GangIncomplete"))
    assert not any(node_of(world, f"g-{n}") for n in range(5))
    assert not any(given(world, f"g-{n}") for n in range(5))
    publish(
        world,
        second,
        devices=gpus(1, first=2),
        name="more",
        pool={"name": "more", "generation": 1, "resourceSliceCount": 1},
    )
    world.drive(lambda: all(given(world, f"g-{n}") for n in range(5)))
    devices = [device for n in range(5) for device in given(world, f"g-{n}")]
    assert len(set(devices)) == 5
    world.drive(lambda: all(node_of(world, f"g-{n}") for n in range(5)))


def test_pods_share_a_gpu_by_its_memory_and_quota_counts_their_parts(world):
    first, second = (node_by_driver(world, name, 0) for name in ("one", "two"))
    of_class(world)
    publish(world, first, devices=shared_gpus(1, default="10Gi"))
    template(world, "half", request(1, capacity=part("40Gi")))
    template(world, "least", request(1))
    names = {"a": "half", "b": "least", "c": "half", "d": "least"}
    uids = {}
    for name, of in list(names.items())[:3]:
        uids[name] = pod(world, name, template=of)
        world.drive(lambda name=name: job_of(uids[name]) is not None)
    world.drive(lambda: all(given(world, name) for name in "ab"))
    world.drive(lambda: (condition(world, "c") or ("",) * 3)[2])
    assert node_of(world, "c") is None
    uids["d"] = pod(world, "d", template="least")
    world.drive(lambda: state_of(uids["d"]) is S.RUNNING)
    assert [job_of(uids[name]).gpu_milli for name in names] == [500, 125, 500, 125]
    results = [
        claim_of(world, name)["status"]["allocation"]["devices"]["results"] for name in "abd"
    ]
    amounts = [parse(each["consumedCapacity"]["memory"]) / 2**30 for [each] in results]
    assert amounts == [40, 10, 10]
    assert len({each["shareID"] for [each] in results}) == 3
    # The waiting pod gets what another GPU offers.
    publish(world, second, devices=shared_gpus(1))
    world.drive(lambda: node_of(world, "c") == second)


def test_a_gang_of_parts_starts_together_or_not_at_all(world):
    first, second = (node_by_driver(world, name, 0) for name in ("one", "two"))
    of_class(world)
    publish(world, first, devices=shared_gpus(1))
    template(world, "third", request(1, capacity=part("26Gi")))
    gang = {"kant.io/tenant": "team", "kant.io/gang": "g"}
    size = {"kant.io/gang-size": "4"}
    names = [f"g-{n}" for n in range(4)]
    for name in names:
        pod(world, name, template="third", labels=gang, notes=size)
    world.drive(lambda: (condition(world, "g-0") or ("",) * 3)[1] not in ("", "GangIncomplete"))
    assert not any(given(world, name) for name in names)
    publish(world, second, devices=shared_gpus(1))
    world.drive(lambda: all(node_of(world, name) for name in names))
    assert [node_of(world, name) for name in names].count(first) in (1, 2, 3)


def test_a_share_by_name_keeps_off_gpus_that_only_a_driver_shares(world):
    node = node_by_driver(world, count=0)
    of_class(world)
    publish(world, node, devices=shared_gpus(8))
    template(world, "half", request(1, capacity=part("40Gi")))
    shares = {"cpu": "1", "kant.io/gpu-milli": "500"}
    uid = make(world, "by-name", requests=shares, **ONLY_THERE)
    world.drive(lambda: job_of(uid) is not None and job_of(uid).message)
    by_claim = pod(world, "by-claim", template="half", **ONLY_THERE)
    world.drive(lambda: state_of(by_claim) is S.RUNNING)
    assert node_of(world, "by-claim") == node
    assert node_of(world, "by-name") is None
    # Shares by Kant's resource and shares in the terms of other schedulers: people are told what to
    # write instead.
    make(world, "half", requests={"cpu": "1"}, notes={"gpu-fraction": "0.25"}, **ONLY_THERE)
    make(world, "memory", requests={"cpu": "1"}, notes={"gpu-memory": "4096"}, **ONLY_THERE)
    for name in ("by-name", "half", "memory"):
        world.drive(lambda n=name: any(INSTEAD in note for *_, note in all_told(world, n)))
        world.drive(
            lambda n=name: INSTEAD in condition(world, n)[2]
        )  # written apart from the event
    assert 'kant.io/gpu-milli: "250"' in condition(world, "half")[2]


def test_what_a_failed_binding_leaves_is_free_again(world, monkeypatch):
    of_class(world)
    for node in nodes_of(world)[:2]:
        publish(world, node, devices=gpus(1))
    template(world, "one", request(1))
    between, refused = Between(world, monkeypatch), []
    outcome = CallOutcome(Result.REFUSED, code=403, message="a webhook says no")
    between.meet = lambda bind: None if refused else refused.append(bind) or outcome
    uid = pod(world, template="one")
    world.drive(lambda: state_of(uid) is S.RUNNING)
    # It was freed on the first node and is on another one.
    [first] = refused
    assert node_of(world) != first.node
    assert given(world, "plain") == [f"{node_of(world)}/gpu-0"]
    other = pod(world, "other", template="one")
    world.drive(lambda: state_of(other) is S.RUNNING)
    assert given(world, "other") == [f"{first.node}/gpu-0"]


def test_a_shared_claim_keeps_its_pods_on_one_node(world):
    world.set_policy(cpu_jobs_on_gpu_nodes="freely")  # the second pod counts no GPU
    of_class(world)
    for node in nodes_of(world)[:2]:
        publish(world, node, devices=gpus(4))
    claim(world, "shared", request(2))
    one = pod(world, "one", of="shared")
    world.drive(lambda: state_of(one) is S.RUNNING)
    other = pod(world, "other", of="shared")
    world.drive(lambda: state_of(other) is S.RUNNING)
    assert node_of(world, "one") == node_of(world, "other")
    uids = {each["uid"] for each in claim_of(world, "shared")["status"]["reservedFor"]}
    assert uids == {one, other}
    # The second pod does not count again what the first one counts.
    assert [job_of(uid).gpu_milli for uid in (one, other)] == [2000, 0]


def test_pods_that_end_give_their_devices_to_others(world):
    first = nodes_of(world)[0]
    of_class(world)
    publish(world, first, devices=gpus(1))
    template(world, "one", request(1))
    done = pod(world, "done", template="one", notes={"sim.kant.io/run-seconds": "0.2"})
    world.drive(lambda: given(world, "done"))
    after = pod(world, "after", template="one")
    world.drive(lambda: state_of(done) is S.SUCCEEDED and state_of(after) is S.RUNNING)
    assert given(world, "after") == [f"{first}/gpu-0"]


def test_constraints_and_expressions_choose_the_devices(world):
    first, second = nodes_of(world)[:2]
    of_class(world)
    publish(world, first, devices=[*gpus(1, numa=0), *gpus(1, first=1, numa=1)])
    publish(world, second, devices=[*gpus(1, numa=1), *gpus(3, first=1, numa=0)])
    near = [{"matchAttribute": f"{GPU}/numa"}]
    odd = f"{OF_GPU}.index > 0"
    template(world, "near", request(2, "gpu", GPU, odd), constraints=near)
    uid = pod(world, template="near")
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == second
    assert not {f"{second}/gpu-0"} & set(given(world, "plain"))


def test_devices_that_are_no_gpus_count_for_no_quota(world):
    world.set_policy(cpu_jobs_on_gpu_nodes="freely")
    first = nodes_of(world)[0]
    of_class(world, NIC)
    publish(world, first, NIC, devices=plain_devices(2))
    template(world, "nic", request(2, "nic", NIC))
    one = pod(world, "one", template="nic")
    world.drive(lambda: state_of(one) is S.RUNNING)
    other = pod(world, "other", template="nic")
    world.drive(lambda: job_of(other) is not None and job_of(other).message)
    assert job_of(one).gpu_milli == 0
    assert node_of(world, "other") is None


WRONG = {
    "no claim": ({"of": "none"}, "ClaimNotReady", "There is no resource claim none in namespace"),
    "no template": ({"template": "none"}, "ClaimNotReady", "no resource claim template none in"),
    "no class": ({"of": "no-class"}, "ClaimNotReady", "There is no device class other."),
    "no device": (
        {"of": "no-device"},
        "ClaimNotReady",
        "no device of the cluster matches request gpu",
    ),
    "an expression": ({"of": "wrong"}, "WrongSelector", 'Key not found in map : "nothing"'),
    "a capacity": (
        {"of": "capacity"},
        "ClaimNotReady",
        "no device of the cluster matches request gpu",
    ),
    "gpus by alternatives": ({"of": "either"}, "NotHonoured", "ask for 1 or 2 GPUs"),
}


def test_what_cannot_be_is_told_with_its_remedy(world):
    first = nodes_of(world)[0]
    of_class(world)
    publish(world, first, devices=gpus(4))
    claim(world, "no-class", request(1, "gpu", "other"))
    claim(world, "no-device", request(1, "gpu", GPU, "false"))
    claim(world, "wrong", request(1, "gpu", GPU, f"{OF_GPU}.nothing == 1"))
    claim(world, "capacity", request(1, capacity=part("81Gi")))
    either = [{"name": n, "deviceClassName": GPU, "count": c} for n, c in (("a", 2), ("b", 1))]
    claim(world, "either", {"name": "gpu", "firstAvailable": either})
    names = {f"p{n}": case for n, case in enumerate(WRONG.values())}
    for name, (how, _, _) in names.items():
        pod(world, name, **how)
    for name, (_, reason, text) in names.items():
        world.drive(lambda name=name: (condition(world, name) or ("",) * 3)[1] != "")
        told_reason, message = condition(world, name)[1:]
        assert (told_reason, text in message) == (reason, True), (told_reason, message)
        assert (reason, message) in [each[1:] for each in told(world, name)]
    assert not any(claim_of(world, name).get("status") for name in ("wrong", "either"))
    of_class(world, "other", "true")
    fine = f"p{list(WRONG).index('no class')}"
    world.drive(lambda: node_of(world, fine) == first)


def test_a_scheduler_that_begins_anew_binds_what_has_its_claims(world, monkeypatch):
    first = nodes_of(world)[0]
    of_class(world)
    publish(world, first, devices=gpus(2))
    template(world, "one", request(1))
    between = Between(world, monkeypatch)
    sent = []
    between.meet = lambda bind: sent.append(bind) or CallOutcome(Result.NOT_SENT)
    uid = pod(world, template="one")
    world.drive(lambda: sent)
    world.restart_scheduler()
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert len(given(world, "plain")) == 1
    assert job_of(uid).attempt == 1


def test_no_device_was_given_away_twice(world):
    first = nodes_of(world)[0]
    of_class(world)
    publish(world, first, devices=gpus(3))
    template(world, "one", request(1))
    uids = [
        pod(world, f"p{n}", template="one", notes={"sim.kant.io/run-seconds": "0.1"})
        for n in range(9)
    ]
    world.drive(lambda: all(state_of(uid) is S.SUCCEEDED for uid in uids))
    audit = world.call("GET", "/sim/audit")
    assert audit["double_claims"] == []


def test_a_rule_that_taints_devices_is_honoured(world):
    first, second = nodes_of(world)[:2]
    of_class(world)
    for node in (first, second):
        publish(world, node, devices=gpus(1))
    taint = {"key": "broken", "effect": "NoSchedule"}
    body = {
        "metadata": {"name": "broken"},
        "spec": {"deviceSelector": {"pool": first}, "taint": taint},
    }
    world.call("POST", TAINT_RULES, body)
    template(world, "one", request(1))
    uid = pod(world, template="one")
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == second
    other = pod(world, "other", template="one")
    world.drive(lambda: job_of(other) is not None and job_of(other).message)
    template(world, "tolerates", request(1, tolerations=[{"key": "broken", "operator": "Exists"}]))
    third = pod(world, "third", template="tolerates")
    world.drive(lambda: state_of(third) is S.RUNNING)
    assert node_of(world, "third") == first
    world.call("DELETE", "/api/v1/namespaces/default/pods/third")
    world.call("DELETE", f"{TAINT_RULES}/broken")
    world.drive(lambda: state_of(other) is S.RUNNING)


def test_why_devices_are_not_given_is_told(world):
    first = nodes_of(world)[0]
    of_class(world)
    takes = {"nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "cores"}}}
    publish(world, first, devices=[{**each, **takes} for each in gpus(1)])
    template(world, "one", request(1))
    pod(world, template="one")
    world.drive(lambda: (condition(world) or ("",) * 3)[1] == "NotHonoured")
    text = f"as gpu-0 of pool {first}: it takes of the CPU, memory or such of its node"
    assert f"asks for devices that Kant does not give, {text}" in condition(world)[2]
