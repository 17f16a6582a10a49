"""Pod rules select namespaces by labels, which may appear and change at any time."""

import msgspec
import pytest

from scheduling.kube.seam import NamespaceFacts
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.pods import pod_translator
from scheduling.session.pods.follow import Lifecycle
from tests.engine.scenario import node

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MINE = {"matchLabels": {"team": "mine"}}
NOT_MINE = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["mine"]}]}
# A term's selection of namespaces, and which of these it selects for pods in "home".
SPACES = {"home": {}, "a": {"team": "mine"}, "b": {"team": "other"}, "c": {"team": "mine"}}
TERMS = {
    "own": ({}, {"home"}),
    "named": ({"namespaces": ["b"]}, {"b"}),
    "by labels": ({"namespaceSelector": MINE}, {"a", "c"}),
    "by other labels": ({"namespaceSelector": NOT_MINE}, {"home", "b"}),
    "named and by labels": ({"namespaceSelector": MINE, "namespaces": ["b"]}, {"a", "b", "c"}),
    "all": ({"namespaceSelector": {}}, set(SPACES)),
    "all and named": ({"namespaceSelector": {}, "namespaces": ["b"]}, set(SPACES)),
}


def term(**more):
    return {"topologyKey": "host", "labelSelector": {}, **more}


def pod(name="p", node="", *, scheduler="kant", namespace="home", **affinity):
    spec = {"schedulerName": scheduler, "nodeName": node, "affinity": affinity}
    meta = {"name": name, "uid": name, "namespace": namespace}
    raw = msgspec.json.encode({"metadata": meta, "spec": spec})
    return pod_translator("kant")(msgspec.json.decode(raw, type=KubePod))


def known(**spaces):
    life = Lifecycle(lambda node: False)
    for name, labels in spaces.items():
        life.volumes.namespace_seen(NamespaceFacts(name, f"uid-{name}", labels))
    return life


def kept_from(life):
    return {name for name in SPACES if life.volumes.anti_affinity.affinity(name, {})}


@pytest.mark.parametrize(("says", "meant"), TERMS.values(), ids=TERMS)
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity", "preferred"])
def test_which_namespaces_a_term_means(kind, says, meant):
    life, rule = known(**SPACES), {REQUIRED: [term(**says)]}
    if kind == "preferred":
        kind, rule = "podAffinity", {PREFERRED: [{"weight": 1, "podAffinityTerm": term(**says)}]}
    facts = pod(**{kind: rule})
    assert facts.plain.unhonoured == ()
    life.volumes.says(facts)
    assert {name for name in SPACES if life.foreign.groups.groups_of(name, {})} == meant
    [(name, _)] = facts.says.groups
    assert name.startswith("pods in ")


@pytest.mark.parametrize(("says", "meant"), TERMS.values(), ids=TERMS)
def test_which_namespaces_a_pod_of_somebody_else_keeps_away(says, meant):
    life = known(**SPACES)
    life.volumes.anti_affinity.node_seen(node("n", 1, labels={"host": "n"}))
    rule = {REQUIRED: [term(**says)]}
    life.volumes.says(pod(node="n", scheduler="another", podAntiAffinity=rule))
    assert kept_from(life) == meant


def test_labels_of_a_namespace_count_as_they_are_now():
    life = known(home={}, a={"team": "mine"})
    life.volumes.anti_affinity.node_seen(node("n", 1, labels={"host": "n"}))
    rule = {REQUIRED: [term(namespaceSelector=MINE)]}
    life.volumes.says(pod(node="n", scheduler="another", podAntiAffinity=rule))
    life.volumes.says(pod("own", podAffinity=rule))
    there = pod("there", node="n", scheduler="another", namespace="a")
    life.foreign.seen(there, life.out)
    told = lambda: [delta.rules for delta in life.out.deltas]  # noqa: E731
    assert [rules.groups for rules in told()] == [("pods in namespaces with team=mine",)]
    life.volumes.judged()

    def change(labels):
        del life.out.deltas[:]
        life.volumes.namespace_seen(NamespaceFacts("a", "uid-a", labels))
        life.volumes.judged()

    change({"team": "mine"})
    assert (kept_from(life), told()) == ({"a"}, [])
    change({"team": "other"})
    assert (kept_from(life), told()) == (set(), [None])
    change({"team": "mine", "more": "x"})
    assert (kept_from(life), len(told())) == ({"a"}, 1)
    life.volumes.namespace_gone(NamespaceFacts("a", "older", {}))
    assert kept_from(life) == {"a"}
    life.volumes.namespace_gone(NamespaceFacts("a", "uid-a", {}))
    assert kept_from(life) == set()


def test_nothing_is_judged_again_for_namespaces_that_no_rule_means_by_labels():
    life = known(home={})
    life.volumes.says(pod("own", podAffinity={REQUIRED: [term(namespaces=["a"])]}))
    life.volumes.judged()
    before = life.foreign.groups.version, life.volumes.anti_affinity.version
    life.volumes.namespace_seen(NamespaceFacts("a", "uid-a", {"team": "mine"}))
    assert (life.foreign.groups.version, life.volumes.anti_affinity.version) == before


def test_a_namespace_that_is_not_known_yet_has_the_label_that_each_has():
    by_name = {"matchLabels": {"kubernetes.io/metadata.name": "new"}}
    life = known()
    life.volumes.says(pod("own", podAffinity={REQUIRED: [term(namespaceSelector=by_name)]}))
    assert life.foreign.groups.groups_of("new", {})
    assert not life.foreign.groups.groups_of("other", {})
