"""Kant's rules for what pods say of other pods, against kube-scheduler on a real API server.

Random clusters and pods. kube-scheduler places each pod or says that it cannot. Kant's rules must
find a place in exactly the same cases, and must allow the node that kube-scheduler chose.
"""

import json
import random
from dataclasses import replace

import msgspec
import pytest

from metrics.benches.apiserver import ApiServer, ServerUnavailable, programs, scheduler
from scheduling.engine.cluster.affinity import both
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import narrowed, spread_over
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.placement.pod_rules import Around, kept_from
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodSetSpec
from scheduling.kube.door.storage import (
    SELECTED_NODE,
    capacity_facts,
    claim_facts,
    csi_node_facts,
    volume_facts,
)
from scheduling.kube.seam import CsiDriverFacts, NamespaceFacts, PodFacts, StorageClassFacts
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import (
    KubeCapacity,
    KubeClaim,
    KubeCsiNode,
    KubeNode,
    KubePod,
    KubeVolume,
)
from scheduling.kube.translate.pods import pod_translator
from scheduling.session.memory.storage import Storage
from scheduling.session.pods.anti_affinity import AntiAffinity
from scheduling.session.pods.pod_rules import PodGroups
from tests.cases import seeds
from tests.kube.api import Api, eventually
from tests.requirements import missing

pytestmark = pytest.mark.apiserver
DISK = "disk.example.com"
STORAGE = "/apis/storage.k8s.io/v1"
CAPACITIES = f"{STORAGE}/namespaces/probes/csistoragecapacities"
PODS = 20  # of each cluster, in sequence
SPACES = {"one": {"team": "a"}, "two": {}}
# kube-scheduler 1.36 applies NotIn and DoesNotExist to all namespaces: it forgets that it has
# looked them up, because `mergeAffinityTermNamespacesIfNotEmpty` changes a copy. Kant follows the
# documentation.
TEAM = {"matchLabels": {"team": "a"}}
HAS_TEAM = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
HOST, ZONE, RACK = "kubernetes.io/hostname", "zone", "rack"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NOT_READY = "node.kubernetes.io/not-ready"


class Line:
    """An API server over one connection."""

    def __init__(self, api):
        self._api, self._to = api, api._connect(timeout=60)

    def __call__(self, method, path, body=None, *, may_be_gone=False):
        kind = "merge-patch+json" if method == "PATCH" else "json"
        self._api._send(self._to, method, path, body, f"application/{kind}")
        reply = self._to.getresponse()
        text = reply.read()
        gone = may_be_gone and reply.status == 404
        assert reply.status < 300 or gone, (method, path, text)
        return text


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    try:
        programs(build=False)
        scheduler(build=False)
    except ServerUnavailable as error:
        missing("kube-scheduler", str(error))
    with ApiServer(tmp_path_factory.mktemp("oracle")) as pair:
        line = Line(Api(pair.url, "admin-token", str(pair.ca_file)))
        for name, labels in (*SPACES.items(), ("probes", {})):
            line("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        driver = {"metadata": {"name": DISK}, "spec": {"storageCapacity": True}}
        line("POST", f"{STORAGE}/csidrivers", driver)
        late = {"provisioner": DISK, "volumeBindingMode": "WaitForFirstConsumer"}
        line("POST", f"{STORAGE}/storageclasses", {"metadata": {"name": "late"}, **late})
        pair.start_scheduler()
        yield line


# --- what there is --------------------------------------------------------------------------------
def any_node(rng, name):
    labels = {HOST: name}
    for key, values in ((ZONE, "abc"), (RACK, "rs")):
        if rng.random() < 0.85:
            labels[key] = rng.choice(values)
    taints = [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]
    spec = {"taints": taints} if rng.random() < 0.2 else {}
    amounts = {"cpu": str(rng.randint(2, 5)), "memory": "64Gi", "pods": "110"}
    if rng.random() < 0.7:
        amounts |= {"ephemeral-storage": "3Gi", "hugepages-2Mi": rng.choice(("0", "8Mi"))}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


def any_limit(rng, name):
    allocatable = {"count": rng.randint(1, 2)} if rng.random() < 0.8 else None
    driver = {"name": DISK, "nodeID": name, "allocatable": allocatable}
    return {"metadata": {"name": name}, "spec": {"drivers": [driver]}}


def any_capacity(rng, name):
    zones = rng.choice(({}, {"matchLabels": {ZONE: rng.choice("abc")}}))
    sizes = {"capacity": rng.choice(("1Gi", "10Gi"))}
    if rng.random() < 0.3:
        sizes["maximumVolumeSize"] = "1Gi"
    meta = {"name": name}
    return {"metadata": meta, "storageClassName": "late", "nodeTopology": zones, **sizes}


class Claims:
    """Volume claims of one cluster; some wait for their first consumer."""

    def __init__(self, rng, line, seed):
        self.line, self.names = line, [f"c{seed}-{n}" for n in range(5)]
        for space in SPACES:
            for name in self.names:
                bound = rng.random() < 0.7
                modes = [rng.choice(("ReadWriteOncePod", "ReadWriteOnce", "ReadWriteMany"))]
                asked = {"requests": {"storage": rng.choice(("1Gi", "5Gi"))}}
                spec = {"accessModes": modes, "resources": asked, "storageClassName": "late"}
                claim = {"metadata": {"name": name}, "spec": spec}
                claim = json.loads(line("POST", self.path(space), claim))
                if bound:
                    terms = [{"matchExpressions": [any_zones(rng)]}]
                    nodes = {"required": {"nodeSelectorTerms": terms}}
                    self.bind(claim, nodes if rng.random() < 0.3 else None)

    def path(self, space, name=""):
        return f"/api/v1/namespaces/{space}/persistentvolumeclaims/{name}".rstrip("/")

    def bind(self, claim, nodes=None):
        """Bind a claim as the volume controller does after making a volume."""
        meta, spec = claim["metadata"], claim["spec"]
        name = f"{meta['namespace']}-{meta['name']}"
        ref = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        ref |= {key: meta[key] for key in ("name", "namespace", "uid")}
        volume = {
            "capacity": {"storage": "5Gi"},
            "accessModes": spec["accessModes"],
            "storageClassName": "late",
            "csi": {"driver": DISK, "volumeHandle": name},
            "claimRef": ref,
            **({"nodeAffinity": nodes} if nodes else {}),
        }
        self.line("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume})
        done = {"pv.kubernetes.io/bind-completed": "yes"}
        change = {"metadata": {"annotations": done}, "spec": {"volumeName": name}}
        path = self.path(meta["namespace"], meta["name"])
        self.line("PATCH", path, change)
        self.line("PATCH", f"{path}/status", {"status": {"phase": "Bound"}})

    def make_those_asked_for(self, pod):
        """Make volumes for those claims of the pod for which kube-scheduler has chosen a node."""
        for volume in pod["spec"].get("volumes", ()):
            space, name = pod["metadata"]["namespace"], volume["persistentVolumeClaim"]["claimName"]
            claim = json.loads(self.line("GET", self.path(space, name)))
            selected = SELECTED_NODE in claim["metadata"].get("annotations", {})
            if selected and not claim["spec"].get("volumeName"):
                self.bind(claim)

    def told(self):
        """Return the facts of all claims and of their volumes."""
        for space in SPACES:
            for name in self.names:
                raw = msgspec.json.decode(self.line("GET", self.path(space, name)), type=KubeClaim)
                if raw.spec.volume_name:
                    path = f"/api/v1/persistentvolumes/{raw.spec.volume_name}"
                    volume = msgspec.json.decode(self.line("GET", path), type=KubeVolume)
                    yield volume_facts(volume)
                yield claim_facts(raw)


def any_zones(rng):
    operator = rng.choice(("In", "NotIn"))
    return {"key": ZONE, "operator": operator, "values": rng.sample("abc", 2)}


def any_selector(rng):
    match rng.randrange(6):
        case 0 | 1 | 2:
            return {"matchLabels": {"app": rng.choice("xy")}}
        case 3:
            values = rng.sample(["1", "2", "3"], 2)
            operator = rng.choice(("In", "NotIn"))
            return {"matchExpressions": [{"key": "tier", "operator": operator, "values": values}]}
        case 4:
            operator = rng.choice(("Exists", "DoesNotExist"))
            return {"matchExpressions": [{"key": "tier", "operator": operator}]}
    return {}


def any_key(rng):
    return rng.choice(
        (HOST, ZONE, ZONE, RACK, "none") if rng.random() < 0.2 else (HOST, ZONE, RACK)
    )


def any_term(rng, *, near=False):
    term = {"topologyKey": any_key(rng), "labelSelector": any_selector(rng)}
    if rng.random() < 0.2:
        term["namespaces"] = rng.sample(list(SPACES), rng.randint(1, 2))
    elif rng.random() < 0.15:
        term["namespaceSelector"] = rng.choice(({}, TEAM, HAS_TEAM))
    if rng.random() < 0.15:
        term[rng.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["rev"]
    if near and rng.random() < 0.1:
        term.pop("labelSelector")
        term.pop("matchLabelKeys", None)
        term.pop("mismatchLabelKeys", None)
    return term


def any_spread(rng):
    found = {}
    for _ in range(rng.randint(1, 2)):
        hard = rng.random() < 0.8
        spread = {
            "maxSkew": rng.randint(1, 2),
            "topologyKey": any_key(rng),
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            "labelSelector": any_selector(rng),
        }
        if hard and rng.random() < 0.3:
            spread["minDomains"] = rng.randint(1, 4)
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if rng.random() < 0.3:
                spread[policy] = rng.choice(("Honor", "Ignore"))
        if rng.random() < 0.2:
            spread["matchLabelKeys"] = ["rev"]
        found[spread["topologyKey"], hard] = spread
    return list(found.values())


def any_pod(rng, name, claims):
    labels = {"app": rng.choice("xy"), "rev": rng.choice("ab")}
    if rng.random() < 0.6:
        labels["tier"] = rng.choice("123")
    container = {
        "name": "c",
        "image": "i",
        "resources": {"requests": {"cpu": rng.choice(("100m", "1"))}},
    }
    asks = container["resources"]["requests"]
    if rng.random() < 0.15:
        asks["ephemeral-storage"] = rng.choice(("100Mi", "1Gi"))
    elif rng.random() < 0.05:
        container["resources"]["limits"] = {"hugepages-2Mi": "4Mi"}
    spec = {"containers": [container], "affinity": {}}
    if rng.random() < 0.3:
        port = {"containerPort": rng.choice((80, 81)), "protocol": rng.choice(("TCP", "UDP"))}
        if rng.random() < 0.3:
            spec["hostNetwork"] = True
        else:
            port["hostPort"] = port["containerPort"]
            if rng.random() < 0.3:
                port["hostIP"] = rng.choice(("10.0.0.1", "10.0.0.2"))
        container["ports"] = [port]
    for kind, odds in (("podAffinity", 0.25), ("podAntiAffinity", 0.35)):
        rules = {}
        if rng.random() < odds:
            near = kind == "podAffinity"
            rules[REQUIRED] = [any_term(rng, near=near) for _ in range(rng.randint(1, 2))]
        if rng.random() < 0.2:
            term = any_term(rng)
            rules[PREFERRED] = [{"weight": rng.randint(1, 100), "podAffinityTerm": term}]
        if rules:
            spec["affinity"][kind] = rules
    if rng.random() < 0.4:
        spec["topologySpreadConstraints"] = any_spread(rng)
    if rng.random() < 0.3:
        spec["volumes"] = [
            {"name": name, "persistentVolumeClaim": {"claimName": name}}
            for name in rng.sample(claims, rng.randint(1, 2))
        ]
    if rng.random() < 0.2:
        terms = {"nodeSelectorTerms": [{"matchExpressions": [any_zones(rng)]}]}
        spec["affinity"]["nodeAffinity"] = {REQUIRED: terms}
    elif rng.random() < 0.1:
        spec["nodeSelector"] = {RACK: rng.choice("rs")}
    if rng.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


# --- Kant -----------------------------------------------------------------------------------------
class Kant:
    """Kant's rules on the same cluster. Every second pod with a place counts as Kant's own, the
    others as foreign pods."""

    def __init__(self, nodes, limits, capacities):
        self.storage = Storage()
        for facts in (*map(csi_node_facts, limits), *map(capacity_facts, capacities)):
            self.storage.seen(facts)
        self.storage.seen(CsiDriverFacts(DISK, "d", tells_capacity=True))
        self.storage.seen(StorageClassFacts("late", "c", True, True, (), DISK))
        self.state, self.groups = ClusterState(), PodGroups()
        self.keepers = AntiAffinity(self.groups.spaces)
        for name, labels in SPACES.items():
            self.groups.spaces.seen(NamespaceFacts(name, name, labels))
        self._own = pod_translator("default-scheduler")
        self._foreign = pod_translator("kant")
        self._there: list[tuple[PodFacts, bool]] = []
        translator = NodeTranslator({})
        for raw in nodes:
            node = translator.translate(msgspec.json.decode(raw, type=KubeNode)).node
            known = self.storage.limits.get(node.name)
            node = replace(node, attach_limits=known.limits if known is not None else {})
            self.state.upsert_node(node)
            self.keepers.node_seen(node)

    def asks(self, facts):
        """Return the job of a pod, as the session would pass it to the engine."""
        assert not facts.plain.unhonoured, facts.plain.unhonoured
        version = self.groups.version
        self.groups.seen(facts)
        if self.groups.version != version:
            for other, own in self._there:
                self._count(other, own)
        rules = self.groups.rules_of([facts.uid], facts.namespace, [facts.labels])
        if rules is not None:
            rules = spread_over(rules, facts.plain.nodes)
        rules = self.storage.with_mounts(rules, facts.namespace, facts.claims)
        away = self.keepers.affinity(facts.namespace, facts.labels)
        for need in self.needs(facts):
            for terms in need.affinity:
                away = both(away, terms)
        pod_set = PodSetSpec(
            "s",
            1,
            0,
            cpu_milli=facts.cpu_milli,
            extended=facts.extended,
            nodes=narrowed(facts.plain.nodes, away),
            rules=rules,
        )
        return JobRequest(facts.uid, "t", 0.0, (pod_set,))

    def needs(self, facts):
        return [self.storage.need(facts.namespace, name) for name in facts.claims]

    def claims_seen(self, told):
        """Take in the current claims; a change can alter the needs of pods already placed."""
        for facts in told:
            self.storage.seen(facts)
        for other, own in self._there if self.storage.changed else ():
            self._count(other, own)

    def places(self, text):
        """Return where a waiting pod may go (by the rules alone), where Kant places it, if
        anywhere, and why."""
        facts = self._own(msgspec.json.decode(text, type=KubePod))
        job = self.asks(facts)
        statement = Statement(self.state)
        found = place_job(statement, job, strategy="e-binpack")
        statement.rollback()
        [pod_set] = job.pod_sets
        shut = {
            words: [self.state.names[slot] for slot in nodes.nonzero()[0]]
            for words, nodes in kept_from(Around(self.state), pod_set)
        }
        allowed = set(self.state.names).difference(*shut.values())
        held = any(need.hold for need in self.needs(facts))
        chosen = None if held or isinstance(found, PlacementFailure) else found[0].node
        return allowed, chosen, (shut, pod_set, self.state.company.members)

    def has_place(self, text, *, own):
        raw = msgspec.json.decode(text, type=KubePod)
        facts = self._own(raw) if own else self._foreign(raw)
        self._there.append((facts, own))
        if own:
            self.groups.seen(facts)
        else:
            self.keepers.seen(facts)
        self._count(facts, own)

    def _count(self, facts, own):
        if own:
            rules = self.groups.rules_of([facts.uid], facts.namespace, [facts.labels])
        else:
            rules = self.groups.rules_of_other(facts)
        rules = self.storage.with_mounts(rules, facts.namespace, facts.claims)
        held = 0, facts.cpu_milli, 0, facts.extended
        self.state.upsert_other_pod(facts.uid, facts.node, *held, rules)


@pytest.mark.parametrize("seed", seeds(250, usual=6))
def test_kant_finds_a_place_where_kube_scheduler_does(line, seed):
    rng = random.Random(seed)
    nodes = [any_node(rng, f"n{seed}-{n}") for n in range(rng.randint(3, 6))]
    limits = [any_limit(rng, n["metadata"]["name"]) for n in nodes]
    room = [any_capacity(rng, f"r{seed}-{n}") for n in range(rng.randint(0, 2))]
    for node, limit in zip(nodes, limits, strict=True):
        line("POST", f"{STORAGE}/csinodes", limit)
        line("POST", "/api/v1/nodes", node)
    for each in room:
        line("POST", CAPACITIES, each)
    claims = Claims(rng, line, seed)
    known = [line("GET", f"/api/v1/nodes/{n['metadata']['name']}") for n in nodes]
    kant = Kant(known, as_read(KubeCsiNode, limits), as_read(KubeCapacity, room))
    kant.claims_seen(claims.told())
    know(line, nodes[-1])
    made = []
    try:
        for number in range(PODS):
            path = f"/api/v1/namespaces/{rng.choice(list(SPACES))}/pods"
            waiting = line("POST", path, any_pod(rng, f"p{seed}-{number}", claims.names))
            allowed, chosen, why = kant.places(waiting)
            made.append(path := f"{path}/p{seed}-{number}")
            text = eventually(lambda path=path: judged(line("GET", path), claims))
            node = json.loads(text)["spec"].get("nodeName")
            assert (node is None) == (chosen is None), (node, chosen, why)
            if node is None:
                line("DELETE", f"{made.pop()}?gracePeriodSeconds=0")
                continue
            assert node in allowed, (node, allowed, why)
            kant.has_place(text, own=number % 2 == 0)
            if "volumes" in json.loads(text)["spec"]:
                kant.claims_seen(claims.told())
    finally:
        for path in made:
            line("DELETE", f"{path}?gracePeriodSeconds=0")
        for node in nodes:
            line("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")
        for each in room:
            line("DELETE", f"{CAPACITIES}/{each['metadata']['name']}")


def as_read(kind, objects):
    """Return objects as the API server would send them; their names are their uids."""
    for each in objects:
        meta = {**each["metadata"], "uid": each["metadata"]["name"]}
        yield msgspec.json.decode(msgspec.json.encode({**each, "metadata": meta}), type=kind)


def know(line, node):
    """Wait until kube-scheduler knows the nodes: it has placed a pod on the last of them."""
    name = node["metadata"]["name"]
    anywhere = {"nodeSelector": {HOST: name}, "tolerations": [{"operator": "Exists"}]}
    spec = {"containers": [{"name": "c", "image": "i"}], **anywhere}
    space = "/api/v1/namespaces/probes/pods"
    line("POST", space, {"metadata": {"name": name}, "spec": spec})
    path = f"{space}/{name}"
    eventually(lambda: json.loads(line("GET", path))["spec"].get("nodeName"))
    line("DELETE", f"{path}?gracePeriodSeconds=0")


def judged(text, claims):
    """Return the pod once kube-scheduler has placed it or said that it cannot; otherwise None."""
    pod = json.loads(text)
    claims.make_those_asked_for(pod)
    told = pod["status"].get("conditions") or ()
    unplaced = any(c["type"] == "PodScheduled" and c["status"] == "False" for c in told)
    return text if pod["spec"].get("nodeName") or unplaced else None
