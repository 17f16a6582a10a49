"""Plain pods may name the same things as jobs, by the rules of the cluster."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from scheduling.engine.types import NodeRules, Toleration
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.plain_pods import plain_pod
from scheduling.services.plain_pods.rules import refuse_what_may_not_be_named
from scheduling.services.plain_pods.spec import Refused
from tests.scheduling.test_plain_gangs import member


def named(name="p", *, labels=None, notes=None, **plain):
    pod = member(name)
    return replace(
        pod,
        labels={**pod.labels, **(labels or {})},
        annotations=notes or {},
        plain=replace(pod.plain, **plain),
    )


def told(document, *pods, priority=0):
    """Return {pod name: message}; {} = all can become jobs."""
    try:
        refuse_what_may_not_be_named(document, [(pod, priority) for pod in pods])
    except Refused as refused:
        return {each.name: tuple(refused.own.get(each.uid, refused.cause)) for each in pods}
    return {}


def tolerating(key):
    return {"nodes": NodeRules(tolerations=(Toleration(key, "Exists"),))}


CONTROL_PLANE = tolerating("node-role.kubernetes.io/control-plane")
TOLERATES_ALL = tolerating("")
DENIED = [
    (TOLERATES_ALL, {}, "spec.tolerations", "toleration_of"),
    (CONTROL_PLANE, {}, "spec.tolerations", "denied_tolerations"),
    ({"notes": {"cdi.k8s.io/x": "y"}}, {}, "metadata.annotations", "denied_annotations"),
    ({"labels": {"app.kubernetes.io/name": "kant"}}, {}, "metadata.labels", "denied_labels"),
    ({"env": ("A", "NVIDIA_VISIBLE_DEVICES")}, {}, "spec.containers[].env", "denied_env"),
    ({"service_account": "admin"}, {"service_accounts": ["train-*"]}, "spec.serviceAccountName",
     "service_accounts"),
    ({"env": ("LD_PRELOAD",)}, {"denied_env": ["LD_*"]}, "spec.containers[].env", "denied_env"),
    ({"notes": {"a/b": ""}}, {"denied_annotations": ["a/*"]}, "metadata.annotations", "denied_ann"),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "rules", "place", "rule"), DENIED)
def test_a_pod_that_names_what_is_denied_is_told_field_rule_and_remedy(pod, rules, place, rule):
    ((reason, text),) = told(rules, named(**pod)).values()
    assert reason == "DeniedByJobRules"
    assert text.startswith(f"{place}: ")
    assert rule in text
    assert "ask an operator" in text
    assert text.endswith("in job_rules of the cluster.")


ALLOWED = [
    (CONTROL_PLANE, {"denied_tolerations": []}),
    (TOLERATES_ALL, {"toleration_of_everything": True}),
    (tolerating("nvidia.com/gpu"), {}),
    ({"env": ("NVIDIA_VISIBLE_DEVICES",)}, {"denied_env": []}),
    ({"service_account": "admin"}, {}),
    ({"service_account": "train-a"}, {"service_accounts": ["train-*"]}),
    ({}, {"service_accounts": []}),
]


@pytest.mark.parametrize(("pod", "rules"), ALLOWED)
def test_a_pod_that_names_what_is_allowed_is_taken_up(pod, rules):
    assert told(rules, named(**pod)) == {}


def test_the_highest_priority_of_the_cluster_holds_for_pods():
    ((_, text),) = told({"max_priority": 3}, named(), priority=4).values()
    assert text.startswith(
        "spec.priority or annotation kant.io/priority: 4 is above the highest priority"
    )
    assert told({"max_priority": 3}, named(), priority=3) == {}
    assert told({"max_priority": 3}, named(), priority=None) == {}  # a job has it already


def test_of_a_gang_each_pod_is_told_its_own_fault_and_the_others_for_whom_they_wait():
    found = told({}, named("a"), named("b", env=("NVIDIA_VISIBLE_DEVICES",)))
    assert found["a"][1] == "Its gang waits for pod b, which breaks the job rules of the cluster."
    assert found["b"][1].startswith("spec.containers[].env: The variable NVIDIA_VISIBLE_DEVICES")


def test_all_that_is_wrong_with_a_pod_is_told_at_once():
    ((_, text),) = told({}, named(env=("NVIDIA_VISIBLE_DEVICES",), **CONTROL_PLANE)).values()
    assert "denied_env" in text
    assert "denied_tolerations" in text


@pytest.mark.parametrize(
    ("account", "found"), [("admin", "admin"), ("default", ""), ("", ""), (None, "")]
)
def test_variables_of_all_containers_and_the_service_account_are_read_from_pods(account, found):
    def variables(*names):
        return {"image": "x", "env": [{"name": name, "value": "1"} for name in names]}

    spec = {
        "initContainers": [variables("A", "B")],
        "containers": [variables("B", "C"), {"image": "y"}, {"image": "z", "env": None}],
    }
    if account is not None:
        spec["serviceAccountName"] = account
    raw = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec, "status": {}}
    read = plain_pod(msgspec.json.decode(json.dumps(raw), type=KubePod), 0.0)
    assert (read.env, read.service_account) == (("A", "B", "C"), found)
    assert read.unhonoured == ()
