"""Kant honours or refuses what slices, classes, claims and taint rules say, and never ignores it:
field by field of resource.k8s.io, as `test_pod_fields` does for pods.

Each field is in one table. Either it changes what Kant knows (other tests show that Kant honours
it), or Kant refuses it by name, or it does not affect which device a pod gets. A field that a newer
Kubernetes adds fails the last test until somebody classifies it.
"""

from typing import NamedTuple

import msgspec
import pytest

from scheduling.kube.dra import reading
from scheduling.kube.dra.objects import (
    KubeClaimTemplate,
    KubeDeviceClass,
    KubeResourceClaim,
    KubeResourceSlice,
    KubeTaintRule,
)

COUNTS = "counts"
CEL = [{"cel": {"expression": "true"}}]
OPAQUE = {"opaque": {"driver": "d", "parameters": {"a": 1}}}
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
NODES = {"nodeSelectorTerms": [TERM]}


class Use(NamedTuple):
    """An object that uses a field, one that does not, and what Kant does: COUNTS, or the words of
    its refusal."""

    used: dict
    unused: dict
    how: str = COUNTS


def of_slice(device=None, **spec):
    devices = [{"name": "a", **device}] if device is not None else []
    return {"kind": "slice", "spec": {"driver": "d", "devices": devices, **spec}}


def device(**fields):
    return of_slice(fields)


def policy(**fields):
    return device(capacity={"memory": {"value": "8Gi", "requestPolicy": fields}})


def attribute(**value):
    return device(attributes={"x": value})


def claim(status=None, **devices):
    return {"kind": "claim", "spec": {"devices": devices}, "status": status or {}}


def exactly(**fields):
    return claim(requests=[{"name": "r", "exactly": {"deviceClassName": "c", **fields}}])


def one_of(**fields):
    ask = {"name": "s", "deviceClassName": "c", **fields}
    return claim(requests=[{"name": "r", "firstAvailable": [ask]}])


def given(**result):
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "a", **result}]
    return allocated(devices={"results": results})


def allocated(**allocation):
    return claim({"allocation": {"devices": {"results": []}, **allocation}})


def told(**fields):
    """Return a claim whose device has binding conditions, and what its driver reports."""
    device = {"request": "r", "driver": "d", "pool": "p", "device": "a"}
    conditional = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}
    result = {**device, **conditional, "shareID": "s"}
    said = {"driver": "d", "pool": "p", "device": "a", "shareID": "s"}
    ready = {"type": "Ready", "status": "True"}
    devices = [{**said, "conditions": [ready], **fields}]
    return claim({"allocation": {"devices": {"results": [result]}}, "devices": devices})


def of_class(**spec):
    return {"kind": "class", "spec": spec}


def rule(selector=None, **taint):
    spec = {"deviceSelector": selector, "taint": {"key": "k", "effect": "NoSchedule", **taint}}
    return {"kind": "rule", "spec": spec}


def template(**spec):
    return {"kind": "template", "spec": spec}


def tolerates(**fields):
    return exactly(tolerations=[{"key": "k", "operator": "Exists", **fields}])


def taint(**fields):
    return device(taints=[{"key": "k", "effect": "NoSchedule", **fields}])


ASK = {
    "allocationMode": [
        ({"allocationMode": "All"}, {}, COUNTS),
        ({"allocationMode": "Some"}, {}, "allocationMode: Kant does not know Some"),
    ],
    "capacity": [({"capacity": {"requests": {"memory": "1Gi"}}}, {}, COUNTS)],
    "count": [({"count": 2}, {}, COUNTS)],
    "deviceClassName": [({"deviceClassName": "other"}, {}, COUNTS)],
    "selectors": [({"selectors": CEL}, {}, COUNTS), ({"selectors": [{}]}, {}, "selectors: Kant")],
    "tolerations": [({"tolerations": [{"operator": "Exists"}]}, {}, COUNTS)],
}
LISTS = "are lists, which Kant does not compare"
TABLES = {
    "ResourceSliceSpec": {
        "allNodes": [Use(of_slice(allNodes=True), of_slice())],
        "devices": [Use(device(), of_slice())],
        "driver": [Use(of_slice(driver="e"), of_slice())],
        "nodeName": [Use(of_slice(nodeName="n"), of_slice())],
        "nodeSelector": [Use(of_slice(nodeSelector=NODES), of_slice())],
        "perDeviceNodeSelection": [Use(of_slice(perDeviceNodeSelection=True), of_slice())],
        "pool": [Use(of_slice(pool={"name": "p"}), of_slice())],
        "sharedCounters": [
            Use(
                of_slice(sharedCounters=[{"name": "s", "counters": {"c": {"value": "1"}}}]),
                of_slice(),
            )
        ],
    },
    "ResourcePool": {
        name: [Use(of_slice(pool={name: value}), of_slice())]
        for name, value in (("generation", 2), ("name", "p"), ("resourceSliceCount", 2))
    },
    "Device": {
        "allNodes": [Use(device(allNodes=True), device())],
        "allowMultipleAllocations": [Use(device(allowMultipleAllocations=True), device())],
        "attributes": [Use(attribute(int=1), device())],
        "bindingConditions": [Use(device(bindingConditions=["Ready"]), device())],
        "bindingFailureConditions": [Use(device(bindingFailureConditions=["Failed"]), device())],
        "bindsToNode": [Use(device(bindsToNode=True), device())],
        "capacity": [Use(device(capacity={"memory": {"value": "1Gi"}}), device())],
        "consumesCounters": [
            Use(
                device(consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}]),
                device(),
            )
        ],
        "name": [Use(device(name="b"), device())],
        "nodeAllocatableResourceMappings": [
            Use(
                device(nodeAllocatableResourceMappings={"cpu": {"capacityKey": "cores"}}),
                device(),
                "it takes of the CPU",
            )
        ],
        "nodeName": [Use(device(nodeName="n"), device())],
        "nodeSelector": [Use(device(nodeSelector=NODES), device())],
        "taints": [Use(taint(), device())],
    },
    "DeviceAttribute": {
        "bool": [Use(attribute(bool=True), attribute(bool=False))],
        "int": [Use(attribute(int=1), attribute(int=2))],
        "string": [Use(attribute(string="a"), attribute(string="b"))],
        "version": [Use(attribute(version="1.0.0"), attribute(string="1.0.0"))],
        "bools": [Use(attribute(bools=[True]), device(), LISTS)],
        "ints": [Use(attribute(ints=[1]), device(), LISTS)],
        "strings": [Use(attribute(strings=["a"]), device(), LISTS)],
        "versions": [Use(attribute(versions=["1.0.0"]), device(), LISTS)],
    },
    "DeviceCapacity": {
        "value": [
            Use(
                device(capacity={"memory": {"value": "1Gi"}}),
                device(capacity={"memory": {"value": "2Gi"}}),
            )
        ],
        "requestPolicy": [Use(policy(default="1Gi"), policy())],
    },
    "CapacityRequestPolicy": {
        "default": [Use(policy(default="1Gi"), policy())],
        "validRange": [Use(policy(validRange={"min": "1Gi"}), policy())],
        "validValues": [Use(policy(validValues=["1Gi"]), policy())],
    },
    "CapacityRequestPolicyRange": {
        name: [Use(policy(validRange={name: "1Gi"}), policy(validRange={}))]
        for name in ("max", "min", "step")
    },
    "CapacityRequirements": {
        "requests": [
            Use(
                exactly(capacity={"requests": {"memory": "1Gi"}}),
                exactly(capacity={"requests": {"memory": "2Gi"}}),
            )
        ]
    },
    "DeviceTaint": {
        "effect": [Use(taint(effect="NoExecute"), taint())],
        "key": [Use(taint(key="l"), taint())],
        "value": [Use(taint(value="v"), taint())],
    },
    "DeviceToleration": {
        "effect": [Use(tolerates(effect="NoExecute"), tolerates())],
        "key": [Use(tolerates(key="l"), tolerates())],
        "operator": [Use(tolerates(operator="Equal"), tolerates())],
        "value": [Use(tolerates(operator="Equal", value="v"), tolerates(operator="Equal"))],
    },
    "DeviceClassSpec": {
        "config": [Use(of_class(config=[OPAQUE]), of_class())],
        "extendedResourceName": [Use(of_class(extendedResourceName="a/b"), of_class())],
        "selectors": [Use(of_class(selectors=CEL), of_class())],
    },
    "DeviceClaim": {
        # Read where the claim is written (`kube.dra.requests`).
        "config": [],
        "constraints": [
            Use(claim(constraints=[{"matchAttribute": "d/x"}]), claim()),
            Use(claim(constraints=[{"like": "x"}]), claim(), "a constraint is of a kind"),
        ],
        "requests": [Use(exactly(), claim())],
    },
    "DeviceConstraint": {
        "distinctAttribute": [
            Use(
                claim(constraints=[{"distinctAttribute": "d/x"}]),
                claim(constraints=[{"matchAttribute": "d/x"}]),
            )
        ],
        "matchAttribute": [Use(claim(constraints=[{"matchAttribute": "d/x"}]), claim())],
        "requests": [
            Use(
                claim(constraints=[{"matchAttribute": "d/x", "requests": ["r"]}]),
                claim(constraints=[{"matchAttribute": "d/x"}]),
            )
        ],
    },
    "DeviceRequest": {
        "exactly": [Use(exactly(), claim())],
        "firstAvailable": [Use(one_of(), claim())],
        "name": [
            Use(
                claim(requests=[{"name": "q", "exactly": {"deviceClassName": "c"}}]),
                exactly(),
            )
        ],
    },
    "ExactDeviceRequest": {
        "adminAccess": [Use(exactly(adminAccess=True), exactly())],
        **{
            name: [Use(exactly(**used), exactly(**unused), how) for used, unused, how in uses]
            for name, uses in ASK.items()
        },
    },
    "DeviceSubRequest": {
        "name": [Use(one_of(name="t"), one_of())],
        **{
            name: [Use(one_of(**used), one_of(**unused), how) for used, unused, how in uses]
            for name, uses in ASK.items()
        },
    },
    "AllocatedDeviceStatus": {
        "conditions": [
            Use(told(), told(conditions=[])),
            Use(told(conditions=[{"type": "Failed", "status": "True"}]), told(conditions=[])),
        ],
        **{
            name: [Use(told(), told(**{name: "other"}))]
            for name in ("device", "driver", "pool", "shareID")
        },
    },
    "ResourceClaimStatus": {
        "devices": [Use(told(), told(conditions=[]))],
        "allocation": [Use(allocated(), claim())],
        "reservedFor": [Use(claim({"reservedFor": [{"uid": "p"}]}), claim())],
    },
    "AllocationResult": {
        "devices": [Use(given(), allocated())],
        "nodeSelector": [Use(allocated(nodeSelector=NODES), allocated())],
    },
    "DeviceRequestAllocationResult": {
        "adminAccess": [Use(given(adminAccess=True), given())],
        "bindingConditions": [Use(given(bindingConditions=["Ready"]), given())],
        "bindingFailureConditions": [Use(given(bindingFailureConditions=["Failed"]), given())],
        "consumedCapacity": [
            Use(given(shareID="s", consumedCapacity={"memory": "1Gi"}), given(shareID="s"))
        ],
        "shareID": [Use(given(shareID="s"), given())],
        **{
            name: [Use(given(**{name: "other"}), given())]
            for name in ("device", "driver", "pool", "request")
        },
    },
    "ResourceClaimTemplateSpec": {
        "metadata": [Use(template(metadata={"labels": {"a": "b"}}), template())],
        "spec": [Use(template(spec=exactly()["spec"]), template())],
    },
}
# From resource.k8s.io/v1beta2.
RULE_TABLES = {
    "DeviceTaintRuleSpec": {
        "deviceSelector": [Use(rule({"driver": "d"}), rule())],
        "taint": [Use(rule(key="l"), rule())],
    },
    "DeviceTaintSelector": {
        name: [Use(rule({name: "x"}), rule())] for name in ("device", "driver", "pool")
    },
}
# Why these do not affect which device a pod gets.
ELSEWHERE = {
    "DeviceTaint": {"of those who evict pods": "timeAdded"},
    "DeviceToleration": {"of those who evict pods": "tolerationSeconds"},
    "AllocatedDeviceStatus": {"what drivers tell of devices in use": "data networkData"},
    "AllocationResult": {"for people to see": "allocationTimestamp"},
    "DeviceRequestAllocationResult": {
        "of those who evict pods": "tolerations",
    },
}
# Kinds without a table have no fields of their own that could be ignored.
OTHERS = {
    "objects and lists": "DeviceClass DeviceClassList ResourceClaim ResourceClaimList "
    "ResourceClaimSpec ResourceClaimTemplate ResourceClaimTemplateList ResourceSlice "
    "ResourceSliceList",
    "read whole": "CELDeviceSelector Counter CounterSet DeviceCounterConsumption DeviceSelector "
    "ResourceClaimConsumerReference",
    "copied whole": "DeviceAllocationConfiguration DeviceAllocationResult DeviceClaimConfiguration "
    "DeviceClassConfiguration OpaqueDeviceConfiguration",
    "of what is refused": "NodeAllocatableResourceMapping",
    "what drivers tell of devices in use": "NetworkDeviceData",
}
CASES = [
    pytest.param(*use, id=f"{kind}.{field}-{number}")
    for kind, table in (TABLES | RULE_TABLES).items()
    for field, uses in table.items()
    for number, use in enumerate(uses)
]
READERS = {
    "slice": (KubeResourceSlice, reading.slice_facts),
    "class": (KubeDeviceClass, reading.class_facts),
    "claim": (KubeResourceClaim, reading.claim_facts),
    "template": (KubeClaimTemplate, reading.template_facts),
    "rule": (KubeTaintRule, reading.taint_rule_facts),
}


def facts(of):
    kind, read = READERS[of["kind"]]
    raw = {"metadata": {"name": "n", "uid": "u"}, **of}
    return read(msgspec.json.decode(msgspec.json.encode(raw), type=kind))


def refusals(found):
    """Return why Kant refuses the request, or does not give out the device."""
    asks = [ask for of in found.asks.requests for ask in of] if hasattr(found, "asks") else ()
    texts = [getattr(found, "problem", ""), *(ask.problem for ask in asks)]
    texts += [device.unusable for device in getattr(found, "devices", ())]
    return [text for text in texts if text]


@pytest.mark.parametrize(("used", "unused", "how"), CASES)
def test_what_is_said_of_devices_is_not_ignored(used, unused, how):
    found, without = facts(used), facts(unused)
    assert not refusals(without)
    if how == COUNTS:
        assert found != without
        assert not refusals(found)
    else:
        [refused] = refusals(found)
        assert how in refused


@pytest.mark.apiserver
def test_every_field_that_a_real_server_knows_is_in_a_table(kube_apiserver):
    path = "/openapi/v3/apis/resource.k8s.io/v1"
    schemas = kube_apiserver.api.ok("GET", path)["components"]["schemas"]
    group = "io.k8s.api.resource.v1."
    kinds = {name.removeprefix(group) for name in schemas if name.startswith(group)}
    assert kinds == {*TABLES, *" ".join(OTHERS.values()).split()}
    for kind, table in TABLES.items():
        known = {*table, *" ".join(ELSEWHERE.get(kind, {}).values()).split()}
        there = schemas[f"{group}{kind}"]["properties"].keys()
        assert there == known, kind
