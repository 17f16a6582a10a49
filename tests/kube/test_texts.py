"""Any text in a pod, a node or an answer arrives in a form that the database can store."""

import msgspec
import pytest

from scheduling.kube.door.client import Reply
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import KubeNode, KubePod, PodStatus
from scheduling.kube.translate.pods import pod_translator
from scheduling.models import JobEvent

REASON = JobEvent._meta.get_field("reason")
translate = pod_translator("kant")


@pytest.mark.parametrize(
    ("reason", "stored"),
    [
        ("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicyNotSupported"),
        ("Out of luck " * 10, ("Out of luck " * 10)[:64]),
        ("a\0b\ud800", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_pods_reason_fits_its_column(reason, stored):
    facts = translate(KubePod(status=PodStatus("Failed", reason, "any\0thing")))
    assert (facts.reason, facts.message) == (stored, "any\N{REPLACEMENT CHARACTER}thing")
    REASON.run_validators(facts.reason)


def test_a_termination_message_has_no_nul():
    raw = rb"""{"status": {"phase": "Failed", "containerStatuses": [
        {"state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "a\u0000b"}}}]}}"""
    facts = translate(msgspec.json.decode(raw, type=KubePod))
    assert (facts.reason, facts.message) == ("Error", "a\N{REPLACEMENT CHARACTER}b")


@pytest.mark.parametrize("body", [b'{"code": 500, "message": "no \\u0000 luck"}', b"no \0 luck"])
def test_an_answer_of_the_server_has_no_nul(body):
    assert Reply(500, body, 0.0).status.message == "no \N{REPLACEMENT CHARACTER} luck"


def test_what_a_node_says_has_no_nul():
    raw = rb"""{"metadata": {"name": "n", "annotations": {
            "kant.io/gpu-ids": "[\"\\ud800\", \"\\ud800\"]", "kant.io/link-model": "NV18\u0000"}},
        "status": {"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"},
            "conditions": [{"type": "NTPProblem", "status": "True", "message": "a\u0000b"}]}}"""
    facts = NodeTranslator({}).translate(msgspec.json.decode(raw, type=KubeNode))
    told = [*facts.node.problems, *(str(fact.value) for fact in facts.facts.values())]
    assert "condition NTPProblem: a\N{REPLACEMENT CHARACTER}b" in told
    assert "NV18\N{REPLACEMENT CHARACTER}" in told
    assert any("more than once" in each for each in told)
    assert not any("\0" in each or "\ud800" in each for each in told)
