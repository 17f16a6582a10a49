"""Device drivers, and the claims for devices that people make."""

from http import HTTPStatus
from urllib.error import HTTPError

from tests.live.plain_pods import NAMESPACE, make

GROUP = "/apis/resource.k8s.io/v1"
GPU, NIC = "gpu.example.com", "nic.example.com"
OF_GPU = f'device.attributes["{GPU}"]'


def publish(world, node, driver=GPU, devices=(), name="", generation=1, **spec):
    """Publish a slice of devices on a node."""
    body = {
        "metadata": {"name": name or f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "nodeName": node,
            "devices": list(devices),
            **spec,
        },
    }
    return world.call("POST", f"{GROUP}/resourceslices", body)


def gpus(count, model="NVIDIA H100 80GB HBM3", first=0, **attributes):
    more = {name: {kind_of(value): value} for name, value in attributes.items()}
    return [
        {
            "name": f"gpu-{n}",
            "attributes": {"productName": {"string": model}, "index": {"int": n}, **more},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for n in range(first, first + count)
    ]


def shared_gpus(count, default=None, **attributes):
    """Publish GPUs whose memory claims can share."""
    policy = {"requestPolicy": {"default": default, "validRange": {"min": default}}}
    memory = {"value": "80Gi", **(policy if default else {})}
    more = {"allowMultipleAllocations": True, "capacity": {"memory": memory}}
    return [{**each, **more} for each in gpus(count, **attributes)]


def conditional(devices):
    """Publish devices that are not ready until their driver says so."""
    conditions = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}
    return [{**each, **conditions} for each in devices]


def say(world, name, namespace=NAMESPACE, **conditions):
    """Set these conditions on the devices of a claim, as a driver would. The name is that of the
    claim or its pod."""
    _say(world, claim_of(world, name, namespace), conditions)


def say_once(world, name, namespace=NAMESPACE, **conditions):
    """Do as `say` if the claim has devices now of which nothing was said yet."""
    claim = claim_of(world, name, namespace)
    status = (claim or {}).get("status") or {}
    if not status.get("allocation") or status.get("devices"):
        return
    try:
        _say(world, claim, conditions)
    except HTTPError as error:
        if error.code != HTTPStatus.CONFLICT:  # its devices were given back meanwhile
            raise


def _say(world, claim, conditions):
    results = claim["status"]["allocation"]["devices"]["results"]
    held = [
        {
            "type": kind,
            "status": str(holds),
            "reason": "Driver",
            "message": "it says so",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind, holds in conditions.items()
    ]
    devices = [{k: r[k] for k in ("driver", "pool", "device")} for r in results]
    claim["status"]["devices"] = [{**each, "conditions": held} for each in devices]
    of = claim["metadata"]
    path = claims(of["name"], namespace=of["namespace"])
    world.call("PUT", f"{path}/status", claim)


def plain_devices(count, **attributes):
    """Publish devices that are not GPUs."""
    more = {name: {kind_of(value): value} for name, value in attributes.items()}
    return [{"name": f"dev-{n}", "attributes": more} for n in range(count)]


def has_namespace(world, name="kant-jobs"):
    """Return whether Kant has made the namespace of its jobs."""
    items = world.call("GET", "/api/v1/namespaces")["items"]
    return name in [each["metadata"]["name"] for each in items]


def kind_of(value):
    return {bool: "bool", int: "int", str: "string"}[type(value)]


def of_class(world, name=GPU, *expressions):
    said = expressions or (f'device.driver == "{name}"',)
    selectors = [{"cel": {"expression": each}} for each in said]
    body = {"metadata": {"name": name}, "spec": {"selectors": selectors}}
    return world.call("POST", f"{GROUP}/deviceclasses", body)


def request(count=1, name="gpu", of=GPU, *expressions, **more):
    exactly = {"deviceClassName": of, "allocationMode": "ExactCount", "count": count, **more}
    if count is None:
        exactly |= {"allocationMode": "All"}
        del exactly["count"]
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in expressions]
    return {"name": name, "exactly": exactly}


def claims(name="", kind="resourceclaims", namespace=NAMESPACE):
    return f"{GROUP}/namespaces/{namespace}/{kind}/{name}".rstrip("/")


def claim(world, name, *requests, **devices):
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests, **devices}}}
    return world.call("POST", claims(), body)


def template(world, name, *requests, **devices):
    spec = {"spec": {"devices": {"requests": list(requests), **devices}}}
    body = {"metadata": {"name": name}, "spec": spec}
    return world.call("POST", claims(kind="resourceclaimtemplates"), body)


def pod(world, name="plain", of="", template="", **more):
    """Create a pod with one claim of that name, or one made from that template; return its uid."""
    source = {"resourceClaimName": of} if of else {"resourceClaimTemplateName": template}
    more.setdefault("requests", {"cpu": "100m"})
    return make(world, name, resourceClaims=[{"name": "devices", **source}], **more)


def claim_of(world, name, namespace=NAMESPACE):
    """Return the claim of that name, or that of the pod of that name."""
    found = world.call("GET", claims(namespace=namespace))["items"]
    for each in found:
        owners = [o["name"] for o in each["metadata"].get("ownerReferences", ())]
        if each["metadata"]["name"] == name or name in owners:
            return each
    return None


def given(world, name):
    """Return the claim's devices, as pool/device."""
    status = (claim_of(world, name) or {}).get("status") or {}
    results = status.get("allocation", {}).get("devices", {}).get("results", ())
    return sorted(f"{r['pool']}/{r['device']}" for r in results)
