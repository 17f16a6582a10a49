"""Node rules, which say where a pod may run: the same from the document to the pod, and back."""

import random
from dataclasses import fields

import msgspec

from scheduling.engine.types import NodeExpression, NodeRules, Toleration
from scheduling.job_fields.nouns import document_of_rules, node_rules_of
from scheduling.kube.translate.node_rules import PLACES_IN_POD, rules_in_pod, rules_of
from scheduling.kube.translate.objects import PodSpec

TERMS = (
    (NodeExpression("zone", "In", ("a", "b")), NodeExpression("old", "DoesNotExist")),
    (NodeExpression("metadata.name", "NotIn", ("n1",), of_name=True),),
)
TOLERATIONS = (Toleration("team", "Equal", "a", "NoSchedule"), Toleration("", "Exists"))


def test_rules_come_back_from_a_pod_and_from_a_document():
    rng = random.Random(7)
    for _ in range(40):
        rules = NodeRules(
            rng.choice(({}, {"zone": "a"})),
            tuple(rng.sample(TERMS, rng.randrange(3))),
            tuple(rng.sample(TOLERATIONS, rng.randrange(3))),
        )
        spec = msgspec.json.decode(msgspec.json.encode(rules_in_pod(rules)), type=PodSpec)
        assert rules_of(spec) == rules
        assert node_rules_of(document_of_rules(rules)) == rules
        assert hash(node_rules_of(document_of_rules(rules))) == hash(rules)


def test_each_rule_has_a_field_of_the_document_and_a_place_in_the_pod():
    names = {field.name for field in fields(NodeRules)}
    assert set(document_of_rules(NodeRules())) == set(PLACES_IN_POD) == names
