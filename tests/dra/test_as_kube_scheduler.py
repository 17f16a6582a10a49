"""Compare Kant's device allocation with kube-scheduler's on a real API server.

The clusters, devices, classes and claims are small and random. kube-scheduler places each pod or
reports that it cannot; Kant must find devices in exactly the same cases, also on the node that
kube-scheduler chose. Both continue from what kube-scheduler has allocated.
"""

import json
import random
from collections import Counter

import msgspec
import pytest

from metrics.benches.apiserver import ApiServer, ServerUnavailable, programs, scheduler
from scheduling.engine.cluster.affinity import matches
from scheduling.kube.dra import reading
from scheduling.kube.dra.extended import OF_CLASS, extended_asks
from scheduling.kube.dra.facts import PodClaim
from scheduling.kube.dra.objects import (
    KubeDeviceClass,
    KubeResourceClaim,
    KubeResourceSlice,
    KubeTaintRule,
)
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import KubeNode, PodSpec
from scheduling.kube.translate.quantities import holding
from scheduling.session.devices.books import NOBODY, DeviceBooks
from scheduling.session.devices.demand import DeviceRefusal
from tests.cases import seeds
from tests.kube.api import Api, eventually
from tests.kube.test_as_kube_scheduler import Line
from tests.kube.test_device_fields import RULE_TABLES
from tests.requirements import missing

pytestmark = pytest.mark.apiserver
GROUP = "/apis/resource.k8s.io/v1"
# Off by default in 1.36.
OF_RULES, RULES_ON = "resource.k8s.io/v1beta2", "--feature-gates=DRADeviceTaintRules=true"
RULES = f"/apis/{OF_RULES}/devicetaintrules"
DRIVERS = ("a.example.com", "b.example.com")
PODS = 8
BY_NAME = "example.com/device"
RESOURCES = (BY_NAME, f"{OF_CLASS}{DRIVERS[1]}", f"{OF_CLASS}none", "example.com/none")
# For a request for all devices, kube-scheduler waits while a pool of any node is being updated;
# Kant waits only for pools of that node.
UPDATING = "is currently being updated"
# If all devices of the first alternative break a constraint, kube-scheduler gives up and Kant tries
# the next alternative.
NO_NEXT = "because a claim constraint would not be satisfied"
# For devices that several claims may share.
POLICIES = (
    None,
    {"default": "4Gi"},
    {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]},
    {"default": "2Gi", "validRange": {"min": "2Gi", "max": "14Gi", "step": "4Gi"}},
    {"default": "2Gi", "validRange": {"min": "1Gi"}},
)
BROKEN = {"key": "broken", "value": "", "effect": "NoSchedule"}
TOLERATES = [{"key": "broken", "operator": "Exists"}]


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    try:
        programs(build=False)
        scheduler(build=False)
    except ServerUnavailable as error:
        missing("kube-scheduler", str(error))
    flags = (f"--runtime-config={OF_RULES}=true", RULES_ON)
    with ApiServer(tmp_path_factory.mktemp("devices"), flags=flags) as pair:
        line = Line(Api(pair.url, "admin-token", str(pair.ca_file)))
        labels = {"resource.kubernetes.io/admin-access": "true"}
        line("POST", "/api/v1/namespaces", {"metadata": {"name": "one", "labels": labels}})
        for driver in DRIVERS:
            of = {"metadata": {"name": driver}, "spec": {"selectors": selectors_of(driver)}}
            line("POST", f"{GROUP}/deviceclasses", of)
        line("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "any"}, "spec": {}})
        spec = {"selectors": selectors_of(DRIVERS[0]), "extendedResourceName": BY_NAME}
        line("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "by-name"}, "spec": spec})
        pair.start_scheduler(RULES_ON)
        yield line


def selectors_of(driver):
    return [{"cel": {"expression": f'device.driver == "{driver}"'}}]


def any_device(rng, number):
    attributes = {
        "kind": {"string": rng.choice("xy")},
        "numa": {"int": rng.randrange(2)},
        "version": {"version": rng.choice(("1.0.0", "1.2.0"))},
        "example.com/root": {"string": rng.choice("rs")},
    }
    if rng.random() < 0.3:
        attributes["fast"] = {"bool": True}
    device = {"name": f"d{number}", "attributes": attributes}
    memory = {"value": rng.choice(("16Gi", "32Gi"))}
    device["capacity"] = {"memory": memory}
    if rng.random() < 0.3:
        device["allowMultipleAllocations"] = True
        if policy := rng.choice(POLICIES):
            memory["requestPolicy"] = policy
        if rng.random() < 0.3:
            device["capacity"]["cores"] = {"value": "10"}
    if rng.random() < 0.1:
        device["taints"] = [BROKEN]
    return device


def any_slices(rng, nodes):
    """Draw slices of nodes, devices that all nodes may use, and pools that are being replaced."""
    for node in nodes:
        for driver in DRIVERS:
            if rng.random() < 0.8:
                devices = [any_device(rng, n) for n in range(rng.randint(1, 4))]
                count = 2 if rng.random() < 0.1 else 1  # one of them does not exist
                yield of_pool(f"{node}-{driver}", driver, node, devices, count, nodeName=node)
                if rng.random() < 0.2:
                    old = [any_device(rng, n) for n in range(9)]
                    name = f"{node}-{driver}-old"
                    yield of_pool(name, driver, node, old, 1, generation=0, nodeName=node)
    if rng.random() < 0.5:
        devices = [any_device(rng, n) for n in range(2)]
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
        where = (
            {"allNodes": True}
            if rng.random() < 0.5
            else {"nodeSelector": {"nodeSelectorTerms": [term]}}
        )
        yield of_pool(f"shared-{nodes[0]}", DRIVERS[1], f"shared-{nodes[0]}", devices, 1, **where)


def any_taint_rules(rng, name, nodes):
    """Draw device taints by driver, pool and name, or by some of these."""
    for number in range(rng.choice((0, 0, 1, 2))):
        wishes = {
            "driver": rng.choice(DRIVERS),
            "pool": f"{rng.choice(nodes)}-{rng.choice(DRIVERS)}",
            "device": f"d{rng.randrange(3)}",
        }
        selector = {field: value for field, value in wishes.items() if rng.random() < 0.6}
        taint = {**BROKEN, "effect": rng.choice(("NoSchedule", "NoExecute", "None"))}
        spec = {"deviceSelector": selector, "taint": taint}
        yield {"metadata": {"name": f"{name}-{number}"}, "spec": spec}


def of_pool(name, driver, pool, devices, count, generation=1, **where):
    of = {"name": pool, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": driver, "pool": of, "devices": devices, **where}
    return {"metadata": {"name": name}, "spec": spec}


def any_ask(rng):
    driver = rng.choice(DRIVERS)
    of = f'device.attributes["{driver}"]'
    memory = f'device.capacity["{driver}"].?memory.orValue(quantity("0"))'
    ask = {"deviceClassName": rng.choice((driver, driver, "any"))}
    everything = rng.random() < 0.15
    ask["allocationMode"] = "All" if everything else "ExactCount"
    if not everything:
        ask["count"] = rng.choice((1, 1, 2, 3))
    expressions = (
        f'{of}.?kind.orValue("") == "{rng.choice("xy")}"',
        f'device.driver == "{driver}" && {of}.numa == {rng.randrange(2)}',
        f'device.driver == "{driver}" && {of}.version.isGreaterThan(semver("1.1.0"))',
        f'{memory}.isGreaterThan(quantity("20Gi"))',
        f"has({of}.fast) && {of}.fast",
        f"device.allowMultipleAllocations == {rng.choice(('true', 'false'))}",
        'device.attributes["example.com"].root in ["r"]',
    )
    if rng.random() < 0.5:
        ask["selectors"] = [{"cel": {"expression": rng.choice(expressions)}}]
    if rng.random() < 0.3:
        ask["tolerations"] = TOLERATES
    if rng.random() < 0.4:
        asked = {"memory": rng.choice(("1Gi", "3Gi", "5Gi", "9Gi", "15Gi", "17Gi"))}
        if rng.random() < 0.2:
            asked["cores"] = rng.choice(("1", "5"))
        ask["capacity"] = {"requests": asked}
    return ask


def any_claim(rng, name):
    requests = []
    for number in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.8:
            ask = any_ask(rng)
            if rng.random() < 0.1:
                ask["adminAccess"] = True
            requests.append({"name": f"r{number}", "exactly": ask})
        else:
            asks = [{"name": n, **any_ask(rng)} for n in "uv"]
            requests.append({"name": f"r{number}", "firstAvailable": asks})
    devices = {"requests": requests}
    if rng.random() < 0.4:
        attribute = rng.choice((f"{DRIVERS[0]}/numa", "example.com/root"))
        # kube-scheduler applies `distinctAttribute` only to the last device of each request.
        single = all(r.get("exactly", {}).get("count") == 1 for r in requests)
        kind = "distinctAttribute" if single and rng.random() < 0.5 else "matchAttribute"
        devices["constraints"] = [{kind: attribute}]
    return {"metadata": {"name": name}, "spec": {"devices": devices}}


def any_containers(rng):
    """Draw containers of a pod, some of which request devices by resource name."""

    def container(name, **more):
        asked = {"cpu": "10m"} if rng.random() < 0.5 else {}
        for resource in rng.choices(RESOURCES, (6, 6, 0.3, 0.3), k=rng.choice((0, 1, 1, 2))):
            asked[resource] = str(rng.choice((0, 1, 1, 2, 3)))
        extended = {name: amount for name, amount in asked.items() if "/" in name}
        resources = {"requests": asked, "limits": extended}
        return {"name": name, "image": "i", "resources": resources, **more}

    inits = [
        container(f"i{n}", **({"restartPolicy": "Always"} if rng.random() < 0.4 else {}))
        for n in range(rng.choice((0, 0, 1, 2)))
    ]
    return {
        "initContainers": inits,
        "containers": [container(f"c{n}") for n in range(rng.choice((1, 1, 2)))],
    }


def any_node(rng, name, plugins):
    labels = {"kubernetes.io/hostname": name, "zone": rng.choice("ab")}
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    if plugins and rng.random() < 0.5:
        amounts[BY_NAME] = str(rng.choice((0, 1, 2)))  # by a device plugin
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


class Kant:
    """Kant's books of the same cluster."""

    def __init__(self, line, seed):
        self.line, self.books, self.seed = line, DeviceBooks(), seed
        self.used = Counter()  # amounts that device plugins provide, by node and resource
        for raw in self._items("deviceclasses", KubeDeviceClass):
            self.books.seen(reading.class_facts(raw))
        for raw in self._items(RULES, KubeTaintRule):
            self.books.seen(reading.taint_rule_facts(raw))
        for raw in self._items("resourceslices", KubeResourceSlice):
            self.books.seen(reading.slice_facts(raw))
        translator = NodeTranslator({})
        nodes = msgspec.json.decode(line("GET", "/api/v1/nodes"))["items"]
        for each in nodes:
            raw = msgspec.convert(each, KubeNode)
            self.books.inventory.node_seen(translator.translate(raw).node)

    def _items(self, of, kind):
        path = of if of.startswith("/") else f"{GROUP}/{of}"
        return msgspec.convert(json.loads(self.line("GET", path))["items"], list[kind])

    def look(self):
        for raw in self._items("resourceclaims", KubeResourceClaim):
            self.books.seen(reading.claim_facts(raw))

    def places(self, uid, names, spec):
        """Return the nodes on which the pod gets devices for all its claims and for the
        resources that it requests by name."""
        named = [PodClaim(name, name) for name in names]
        extended = extended_asks(spec)
        try:
            demand = self.books.demand("one", uid, named, extended)
        except DeviceRefusal as refusal:
            return set(), refusal.unclear.text
        asked = holding(spec).extended
        found = {
            name
            for name, node in self.books.inventory.nodes.items()
            if all(matches(node, terms) for terms in demand.pinned)
            and self.is_left(node, asked, extended)
            and self.books.choose(demand, node, NOBODY) is not None
        }
        terms = self.books.nodes_for(demand)
        nodes = self.books.inventory.nodes
        # The engine knows what is left of the resources that device plugins provide.
        has = {n for n in found if terms is None or matches(nodes[n], terms)}
        assert has == found
        for name in found:
            on_node = {**nodes[name].extended, **self.books.on_node(name)}
            wanted = {**asked, **demand.amounts}
            assert all(on_node.get(kind, 0) >= amount for kind, amount in wanted.items() if amount)
        return found, demand

    def is_left(self, node, asked, extended):
        """Return whether enough is left of what device plugins provide, and whether a device class
        stands for every other resource."""
        given = {name: n for name, n in node.extended.items() if n}
        return all(
            given[name] - self.used[node.name, name] >= amount
            for name, amount in asked.items()
            if name in given
        ) and all(
            name in given or self.books.inventory.class_of(name)
            for name, amount in asked.items()
            if amount
        )

    def chose(self, pod, node, spec):
        """Check the special claim of a pod that kube-scheduler placed: its requests must equal
        those that Kant would have made."""
        given = self.books.inventory.nodes[node].extended
        for name, amount in holding(spec).extended.items():
            if given.get(name):
                self.used[node, name] += amount
        demand = self.books.demand("one", "", (), extended_asks(spec))
        requested = self.books.demands.requests_on(
            self.books.inventory.nodes[node], demand.extended
        )
        status = pod["status"].get("extendedResourceClaimStatus")
        assert bool(status) == bool(requested)
        if not status:
            return
        path = f"{GROUP}/namespaces/one/resourceclaims/{status['resourceClaimName']}"
        claim = msgspec.json.decode(self.line("GET", path), type=KubeResourceClaim)
        facts = reading.claim_facts(claim)
        asks = [(ask.name, ask.device_class, ask.amount) for (ask,) in facts.asks.requests]
        assert asks == [(r.name, device_class, r.amount) for r, device_class in requested]
        assert facts.made_for == (pod["metadata"]["name"], pod["metadata"]["uid"])
        names = {request.name for request, _ in requested}
        mappings = [m for m in demand.extended.mappings if m.request in names]
        told = [
            (m["containerName"], m["resourceName"], m["requestName"])
            for m in status["requestMappings"]
        ]
        assert told == [(m.container, m.resource, m.request) for m in mappings]


@pytest.mark.parametrize("seed", seeds(150, usual=6))
def test_kant_finds_devices_where_kube_scheduler_does(line, seed):
    rng = random.Random(seed)
    names = [f"n{seed}-{n}" for n in range(rng.randint(2, 4))]
    plugins = rng.random() < 0.5
    for name in names:
        line("POST", "/api/v1/nodes", any_node(rng, name, plugins))
    rules = list(any_taint_rules(rng, f"rule-{seed}", names))
    for each in rules:
        line("POST", RULES, each)
    slices = list(any_slices(rng, names))
    for each in slices:
        line("POST", f"{GROUP}/resourceslices", each)
    kant = Kant(line, seed)
    claims, pods = [], []
    for number in range(PODS):
        by_name = rng.random() < 0.4
        # If a pod has claims of its own and a device plugin provides the named resource,
        # kube-scheduler makes a claim for nothing and fails.
        count = rng.choice((0, 0, 0 if plugins else 1) if by_name else (1, 1, 2))
        wanted = [f"c{seed}-{number}-{n}" for n in range(count)]
        for name in wanted:
            line("POST", f"{GROUP}/namespaces/one/resourceclaims", any_claim(rng, name))
        if claims and rng.random() < 0.2 and not (by_name and plugins):
            wanted.append(rng.choice(claims))
        claims += wanted
        kant.look()
        name = f"p{seed}-{number}"
        containers = {"containers": [{"name": "c", "image": "i"}]}
        spec = any_containers(rng) if by_name else containers
        pod = {
            "metadata": {"name": name},
            "spec": {
                **spec,
                "resourceClaims": [{"name": n, "resourceClaimName": n} for n in wanted],
            },
        }
        decoded = msgspec.json.decode(msgspec.json.encode(spec), type=PodSpec)
        found, why = kant.places(name, wanted, decoded)
        line("POST", "/api/v1/namespaces/one/pods", pod)
        pods.append(name)
        node, told = placed(line, name)
        if UPDATING in told or NO_NEXT in told:
            continue
        assert bool(node) == bool(found), (seed, number, node, found, told, why)
        assert not node or node in found, (seed, number, node, found, why)
        if node:
            placed_pod = json.loads(line("GET", f"/api/v1/namespaces/one/pods/{name}"))
            kant.chose(placed_pod, node, decoded)
    for name in pods:
        line("DELETE", f"/api/v1/namespaces/one/pods/{name}", {"gracePeriodSeconds": 0})
    all_claims = json.loads(line("GET", f"{GROUP}/namespaces/one/resourceclaims"))["items"]
    for name in (each["metadata"]["name"] for each in all_claims):
        path = f"{GROUP}/namespaces/one/resourceclaims/{name}"
        # kube-scheduler deletes the claim that it made for a pod that it could not bind.
        free = {"status": {"reservedFor": None, "allocation": None}}
        line("PATCH", f"{path}/status", free, may_be_gone=True)
        line("PATCH", path, {"metadata": {"finalizers": None}}, may_be_gone=True)
        line("DELETE", path, may_be_gone=True)
    for each in slices:
        line("DELETE", f"{GROUP}/resourceslices/{each['metadata']['name']}")
    for each in rules:
        line("DELETE", f"{RULES}/{each['metadata']['name']}")
    for name in names:
        line("DELETE", f"/api/v1/nodes/{name}")


def test_every_field_of_taint_rules_is_known(line):
    schemas = json.loads(line("GET", f"/openapi/v3/apis/{OF_RULES}"))["components"]["schemas"]
    for kind, table in RULE_TABLES.items():
        there = schemas[f"io.k8s.api.resource.v1beta2.{kind}"]["properties"].keys()
        assert there == table.keys(), kind


def placed(line, name):
    """Return the node that kube-scheduler chose, or "" and its message."""

    def decided():
        pod = json.loads(line("GET", f"/api/v1/namespaces/one/pods/{name}"))
        if node := pod["spec"].get("nodeName"):
            return node, ""
        for each in pod["status"].get("conditions", ()):
            if each["type"] == "PodScheduled" and each["status"] == "False":
                message = each.get("message", "")
                # It has not seen the claim yet; try again.
                return None if "not found" in message else ("", message)
        return None

    return eventually(decided)
