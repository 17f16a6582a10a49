"""Device claims, as both servers store them."""

from fractions import Fraction
from uuid import UUID

import msgspec

from scheduling.kube.dra.facts import (
    ClassFacts,
    DeviceClaimFacts,
    DeviceId,
    ExtendedRequest,
    GivenDevice,
    RequestMapping,
    TemplateFacts,
)
from scheduling.kube.seam import (
    AllocateClaim,
    DevicesGone,
    DevicesSeen,
    NewClaim,
    OwnClaim,
    ReleaseClaim,
    Result,
)
from tests.kube.test_contract_storage import news

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
TOLERATES = [{"key": "broken", "operator": "Exists", "effect": "NoSchedule"}]
OPAQUE = {"opaque": {"driver": DRIVER, "parameters": {"mode": "fast"}}}


def pod(place, name, **asked):
    """Make a waiting pod and return its uid."""
    container = {"name": "c", "image": "i", "resources": {"limits": asked, "requests": asked}}
    spec = {"schedulerName": "none", "containers": [container]}
    path = f"/api/v1/namespaces/{place.namespace}/pods"
    return place.api.ok("POST", path, {"metadata": {"name": name}, "spec": spec})["metadata"]["uid"]


def test_a_claim_gets_its_devices_once_and_is_released(place, door):
    name = f"{place.namespace}.example.com"
    spec = {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
        "config": [OPAQUE],
    }
    place.api.ok("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    config = news(door, DevicesSeen, ClassFacts, name=name).config
    requests = [
        {"name": "a", "exactly": {"deviceClassName": name, "tolerations": TOLERATES}},
        {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": name}]},
    ]
    devices = {"requests": requests, "config": [{"requests": ["a"], **OPAQUE}]}
    path = f"{GROUP}/namespaces/{place.namespace}/resourceclaims"
    body = {"metadata": {"name": "two"}, "spec": {"devices": devices}}
    uid = place.api.ok("POST", path, body)["metadata"]["uid"]
    seen = news(door, DevicesSeen, DeviceClaimFacts, uid=uid)
    assert [[ask.name for ask in asks] for asks in seen.asks.requests] == [["a"], ["b/x"]]
    assert seen.given is None

    one, other = (pod(place, name) for name in ("pod-1", "pod-2"))
    given = tuple(
        GivenDevice(request, DeviceId(DRIVER, "n1", device))
        for request, device in (("a", "gpu-0"), ("b/x", "gpu-1"))
    )
    allocate = AllocateClaim(
        *("one", place.namespace, "two", uid, "pod-1", one, given, "n1"),
        class_config=((("a", "b/x"), config),),
    )
    again = msgspec.structs.replace(allocate, key="again")
    another = msgspec.structs.replace(allocate, key="other", given=given[:1])
    shared = AllocateClaim("shared", place.namespace, "two", uid, "pod-2", other)
    gone = msgspec.structs.replace(shared, key="gone", name="none")
    ends = door.carry_out(allocate, again, another, shared, gone)
    assert [end.result for end in ends] == [
        *(Result.DONE, Result.DONE, Result.TAKEN, Result.DONE, Result.GONE)
    ]
    seen = news(door, DevicesSeen, DeviceClaimFacts, reserved_for=(one, other))
    assert seen.given == given
    found = place.api.ok("GET", f"{path}/two")
    assert "resource.kubernetes.io/delete-protection" in found["metadata"]["finalizers"]
    allocation = found["status"]["allocation"]
    assert allocation["devices"]["results"][0]["tolerations"] == TOLERATES
    sources = [each["source"] for each in allocation["devices"]["config"]]
    assert sources == ["FromClass", "FromClaim"]
    [term] = allocation["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["n1"]

    def release(of):
        return ReleaseClaim(of, place.namespace, "two", uid, of)

    first, twice = door.carry_out(release(one), release("nobody"))
    assert (first.result, twice.result) == (Result.DONE, Result.DONE)
    assert news(door, DevicesSeen, DeviceClaimFacts, reserved_for=(other,)).given == given
    [last] = door.carry_out(release(other))
    assert last.result is Result.DONE
    assert news(door, DevicesSeen, DeviceClaimFacts, uid=uid, given=None).reserved_for == ()
    place.api.ok("DELETE", f"{GROUP}/deviceclasses/{name}")


def test_a_claim_gets_parts_of_devices(place, door):
    capacity = {"capacity": {"requests": {"memory": "10Gi"}}}
    devices = {"requests": [{"name": "a", "exactly": {"deviceClassName": "any", **capacity}}]}
    path = f"{GROUP}/namespaces/{place.namespace}/resourceclaims"
    body = {"metadata": {"name": "part"}, "spec": {"devices": devices}}
    uid = place.api.ok("POST", path, body)["metadata"]["uid"]
    [[ask]] = news(door, DevicesSeen, DeviceClaimFacts, uid=uid).asks.requests
    assert ask.capacity == (("memory", Fraction(10 * 2**30)),)
    consumed = (("cores", Fraction(5, 2)), ("memory", Fraction(10 * 2**30)))
    given = (GivenDevice("a", DeviceId(DRIVER, "n1", "gpu-0"), consumed=consumed),)
    one = pod(place, "pod-1")
    allocate = AllocateClaim(*("one", place.namespace, "part", uid, "pod-1", one, given, "n1"))
    again = msgspec.structs.replace(allocate, key="again")
    assert [end.result for end in door.carry_out(allocate, again)] == [Result.DONE, Result.DONE]
    assert news(door, DevicesSeen, DeviceClaimFacts, reserved_for=(one,)).given == given
    [result] = place.api.ok("GET", f"{path}/part")["status"]["allocation"]["devices"]["results"]
    assert UUID(result["shareID"])
    assert result["consumedCapacity"] == {"cores": "2500m", "memory": str(10 * 2**30)}


def test_what_drivers_say_of_devices_is_seen_and_goes_with_them(place, door):
    devices = {"requests": [{"name": "a", "exactly": {"deviceClassName": "any"}}]}
    path = f"{GROUP}/namespaces/{place.namespace}/resourceclaims"
    body = {"metadata": {"name": "slow"}, "spec": {"devices": devices}}
    uid = place.api.ok("POST", path, body)["metadata"]["uid"]
    named = DeviceId(DRIVER, "n1", "gpu-0")
    given = (GivenDevice("a", named, ready_by=("Ready",), fails_by=("Broken",)),)
    one = pod(place, "pod-1")
    allocate = AllocateClaim(*("one", place.namespace, "slow", uid, "pod-1", one, given, "n1"))
    assert [end.result for end in door.carry_out(allocate)] == [Result.DONE]
    seen = news(door, DevicesSeen, DeviceClaimFacts, uid=uid, given=given)
    assert (seen.not_ready, seen.failed) == (("gpu-0 of pool n1 is not Ready yet",), "")

    def say(kind):
        claim = place.api.ok("GET", f"{path}/slow")
        condition = {
            "type": kind,
            "status": "True",
            "reason": "R",
            "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        claim["status"]["devices"] = [{**named._asdict(), "conditions": [condition]}]
        place.api.ok("PUT", f"{path}/slow/status", claim)

    say("Ready")
    news(door, DevicesSeen, DeviceClaimFacts, uid=uid, given=given, not_ready=())
    say("Broken")
    failed = "gpu-0 of pool n1 is Broken (R: m)"
    news(door, DevicesSeen, DeviceClaimFacts, uid=uid, failed=failed)
    release = ReleaseClaim("release", place.namespace, "slow", uid, one)
    assert [end.result for end in door.carry_out(release)] == [Result.DONE]
    news(door, DevicesSeen, DeviceClaimFacts, uid=uid, given=None)
    assert "devices" not in place.api.ok("GET", f"{path}/slow").get("status", {})


def test_a_claim_is_made_that_a_pod_names(place, door):
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
    told = {"metadata": {"labels": {"team": "vision"}}, "spec": spec}
    path = f"{GROUP}/namespaces/{place.namespace}"
    body = {"metadata": {"name": "one-gpu"}, "spec": told}
    place.api.ok("POST", f"{path}/resourceclaimtemplates", body)
    template = news(door, DevicesSeen, TemplateFacts, name="one-gpu")
    assert (template.labels, template.namespace) == ({"team": "vision"}, place.namespace)
    [[ask]] = template.asks.requests
    assert (ask.name, ask.device_class, ask.amount) == ("gpu", "any", 1)
    uid, other = pod(place, "names"), pod(place, "another")
    given = (GivenDevice("gpu", DeviceId(DRIVER, "n1", "a")),)
    new = OwnClaim(template.spec, template.labels)
    of = ("one", place.namespace, "names-gpus", "not known yet", "names", uid, given, "n1")
    allocate = AllocateClaim(*of, new=new)
    again = msgspec.structs.replace(allocate, key="again")
    not_its_own = msgspec.structs.replace(allocate, key="other", pod="another", pod_uid=other)
    ends = door.carry_out(allocate, again, not_its_own)
    assert [end.result for end in ends] == [Result.DONE, Result.DONE, Result.TAKEN]
    seen = news(door, DevicesSeen, DeviceClaimFacts, reserved_for=(uid,))
    assert (seen.owner, seen.made_for, seen.given) == (("names", uid), None, given)
    assert place.api.ok("GET", f"{path}/resourceclaims/names-gpus")["metadata"]["labels"] == {
        "team": "vision"
    }
    place.api.ok("DELETE", f"{path}/resourceclaimtemplates/one-gpu")
    assert news(door, DevicesGone, TemplateFacts, name="one-gpu").uid == template.uid


def test_a_claim_is_made_for_the_extended_resources_of_a_pod(place, door):
    name = f"{place.namespace}.example.com"
    spec = {"extendedResourceName": f"{name}/gpu"}
    place.api.ok("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    assert news(door, DevicesSeen, ClassFacts, name=name).resource == f"{name}/gpu"
    uid = pod(place, "asks", **{f"{name}/gpu": "2"})
    requests = ((ExtendedRequest("container-0-request-0", f"{name}/gpu", 2), name),)
    mappings = (RequestMapping("c", f"{name}/gpu", "container-0-request-0"),)
    given = tuple(
        GivenDevice("container-0-request-0", DeviceId(DRIVER, "n1", device)) for device in "ab"
    )
    allocate = AllocateClaim(
        *("one", place.namespace, "asks-x", "not known yet", "asks", uid, given, "n1"),
        new=NewClaim(requests, mappings),
    )
    again = msgspec.structs.replace(allocate, key="again")
    another = msgspec.structs.replace(
        allocate, key="other", new=NewClaim((), mappings), given=given[:1]
    )
    ends = door.carry_out(allocate, again, another)
    assert [end.result for end in ends] == [Result.DONE, Result.DONE, Result.TAKEN]
    seen = news(door, DevicesSeen, DeviceClaimFacts, reserved_for=(uid,))
    assert (seen.made_for, seen.given) == (("asks", uid), given)
    pods = f"/api/v1/namespaces/{place.namespace}/pods"
    told = place.api.ok("GET", f"{pods}/asks")["status"]["extendedResourceClaimStatus"]
    assert told["resourceClaimName"] == "asks-x"
    assert told["requestMappings"] == [
        {
            "containerName": "c",
            "resourceName": f"{name}/gpu",
            "requestName": "container-0-request-0",
        }
    ]
    release = ReleaseClaim("gone", place.namespace, "asks-x", seen.uid, uid, "asks")
    first, twice = door.carry_out(release, msgspec.structs.replace(release, key="twice"))
    assert first.result is Result.DONE
    assert twice.result in (Result.DONE, Result.GONE)
    assert "extendedResourceClaimStatus" not in place.api.ok("GET", f"{pods}/asks")["status"]
    path = f"{GROUP}/namespaces/{place.namespace}/resourceclaims/asks-x"
    assert place.api.call("GET", path).code == 404
    place.api.ok("DELETE", f"{GROUP}/deviceclasses/{name}")
