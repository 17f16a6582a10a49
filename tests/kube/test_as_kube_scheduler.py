"""What Kant lets pods say of other pods, against kube-scheduler on a real API server.

Random clusters and pods. kube-scheduler places each pod, or says that it cannot; Kant's rules have
to find a place then and only then, and that of kube-scheduler among those that it allows.
"""

import json
import random

import msgspec
import pytest

from metrics.benches.apiserver import ApiServer, ServerUnavailable, programs, scheduler
from scheduling.engine.cluster.affinity import both
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.placement.pod_rules import Around, kept_from
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodSet
from scheduling.kube.seam import NamespaceFacts, PodFacts
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import KubeNode, KubePod
from scheduling.kube.translate.pods import pod_translator
from scheduling.session.pods.anti_affinity import AntiAffinity
from scheduling.session.pods.pod_rules import PodGroups
from tests.cases import seeds
from tests.kube.api import Api, eventually
from tests.requirements import missing

pytestmark = pytest.mark.apiserver
PODS = 20  # of each cluster, one after the other
SPACES = {"one": {"team": "a"}, "two": {}}
HOST, ZONE, RACK = "kubernetes.io/hostname", "zone", "rack"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NOT_READY = "node.kubernetes.io/not-ready"


class Line:
    """An API server over one connection."""

    def __init__(self, api):
        self._api, self._to = api, api._connect(timeout=60)

    def __call__(self, method, path, body=None):
        self._api._send(self._to, method, path, body, "application/json")
        reply = self._to.getresponse()
        text = reply.read()
        assert reply.status < 300, (method, path, text)
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


def any_team(rng):
    operator = rng.choice(("In", "NotIn"))
    return {"matchExpressions": [{"key": "team", "operator": operator, "values": ["a"]}]}


def any_key(rng):
    return rng.choice(
        (HOST, ZONE, ZONE, RACK, "none") if rng.random() < 0.2 else (HOST, ZONE, RACK)
    )


def any_term(rng, *, near=False):
    term = {"topologyKey": any_key(rng), "labelSelector": any_selector(rng)}
    if rng.random() < 0.2:
        term["namespaces"] = rng.sample(list(SPACES), rng.randint(1, 2))
    elif rng.random() < 0.15:
        term["namespaceSelector"] = rng.choice(({}, {"matchLabels": {"team": "a"}}, any_team(rng)))
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


def any_pod(rng, name):
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
    zones = {"key": ZONE, "operator": rng.choice(("In", "NotIn")), "values": rng.sample("abc", 2)}
    if rng.random() < 0.2:
        terms = {"nodeSelectorTerms": [{"matchExpressions": [zones]}]}
        spec["affinity"]["nodeAffinity"] = {REQUIRED: terms}
    elif rng.random() < 0.1:
        spec["nodeSelector"] = {RACK: rng.choice("rs")}
    if rng.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


# --- Kant -----------------------------------------------------------------------------------------
class Kant:
    """Its rules on the same cluster. Every second pod that has a place counts as its own, the
    others as somebody else's."""

    def __init__(self, nodes):
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
            self.state.upsert_node(node)
            self.keepers.node_seen(node)

    def asks(self, facts):
        """The job of a pod, as the session would tell the engine of it."""
        assert not facts.plain.unhonoured, facts.plain.unhonoured
        version = self.groups.version
        self.groups.seen(facts)
        if self.groups.version != version:
            for other, own in self._there:
                self._count(other, own)
        rules = self.groups.rules_of([facts.uid], facts.namespace, [facts.labels])
        if rules is not None:
            rules = rules._replace(affinity=facts.plain.node_affinity)
        away = self.keepers.affinity(facts.namespace, facts.labels)
        pod_set = PodSet(
            "s",
            1,
            0,
            cpu_milli=facts.cpu_milli,
            extended=facts.extended,
            node_selector=facts.plain.node_selector,
            node_affinity=both(facts.plain.node_affinity, away),
            tolerations=facts.plain.tolerations,
            rules=rules,
        )
        return JobRequest(facts.uid, "t", 0.0, (pod_set,))

    def places(self, text):
        """Where a pod that waits may go (by rules alone), where Kant places it, if
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
        chosen = None if isinstance(found, PlacementFailure) else found[0].node
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
        held = 0, facts.cpu_milli, 0, facts.extended
        self.state.upsert_other_pod(facts.uid, facts.node, *held, rules)


@pytest.mark.parametrize("seed", seeds(250, usual=6))
def test_kant_finds_a_place_where_kube_scheduler_does(line, seed):
    rng = random.Random(seed)
    nodes = [any_node(rng, f"n{seed}-{n}") for n in range(rng.randint(3, 6))]
    for node in nodes:
        line("POST", "/api/v1/nodes", node)
    kant = Kant([line("GET", f"/api/v1/nodes/{n['metadata']['name']}") for n in nodes])
    know(line, nodes[-1])
    made = []
    try:
        for number in range(PODS):
            path = f"/api/v1/namespaces/{rng.choice(list(SPACES))}/pods"
            waiting = line("POST", path, any_pod(rng, f"p{seed}-{number}"))
            allowed, chosen, why = kant.places(waiting)
            made.append(path := f"{path}/p{seed}-{number}")
            text = eventually(lambda path=path: judged(line("GET", path)))
            node = json.loads(text)["spec"].get("nodeName")
            assert (node is None) == (chosen is None), (node, chosen, why)
            if node is None:
                line("DELETE", f"{made.pop()}?gracePeriodSeconds=0")
                continue
            assert node in allowed, (node, allowed, why)
            kant.has_place(text, own=number % 2 == 0)
    finally:
        for path in made:
            line("DELETE", f"{path}?gracePeriodSeconds=0")
        for node in nodes:
            line("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")


def know(line, node):
    """Let kube-scheduler know the nodes: it has placed a pod on the last of them."""
    name = node["metadata"]["name"]
    anywhere = {"nodeSelector": {HOST: name}, "tolerations": [{"operator": "Exists"}]}
    spec = {"containers": [{"name": "c", "image": "i"}], **anywhere}
    space = "/api/v1/namespaces/probes/pods"
    line("POST", space, {"metadata": {"name": name}, "spec": spec})
    path = f"{space}/{name}"
    eventually(lambda: json.loads(line("GET", path))["spec"].get("nodeName"))
    line("DELETE", f"{path}?gracePeriodSeconds=0")


def judged(text):
    """The pod when kube-scheduler has placed it or said that it cannot; else nothing."""
    pod = json.loads(text)
    told = pod["status"].get("conditions") or ()
    unplaced = any(c["type"] == "PodScheduled" and c["status"] == "False" for c in told)
    return text if pod["spec"].get("nodeName") or unplaced else None
