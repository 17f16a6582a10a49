"""ProvisioningRequests as both servers accept them; the real server uses the definition of the
Cluster Autoscaler."""

from pathlib import Path

import pytest
import yaml

from scheduling.kube.seam import (
    AlikePods,
    CreateProvisioning,
    DeleteProvisioning,
    NodesAnswer,
    ProvisioningGone,
    ProvisioningSeen,
    ProvisioningServed,
    Reference,
    Result,
)
from scheduling.kube.translate.manifests import PROVISIONS_FOR, provisioning_name
from tests.kube.api import MERGE

DEFINITION = yaml.safe_load((Path(__file__).parent / "provisioning_requests.yaml").read_text())
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kant"
CLASS = "check-capacity.autoscaling.x-k8s.io"
JOB_ID = "3f2b8c1e-0000-4000-8000-000000000001"
NAME = provisioning_name("train", JOB_ID, "abcdef0123", 1)


@pytest.fixture
def served(server):
    if server.name != "embedded":
        answer = server.api.call("POST", DEFINITIONS, DEFINITION)
        assert answer.code in (201, 409), answer
    return server


@pytest.fixture
def asking(served, place, open_door):
    door = open_door()
    door.gateway.follow_provisioning()
    door.until(lambda each: isinstance(each, ProvisioningServed) and not each.trouble)
    return door


def path(place, kind="provisioningrequests", name=""):
    group = "/api/v1" if kind == "podtemplates" else "/apis/autoscaling.x-k8s.io/v1"
    return f"{group}/namespaces/{place.namespace}/{kind}/{name}".rstrip("/")


def create(place, *pods, key="create", name=NAME, owners=()):
    labels = {PROVISIONS_FOR: JOB_ID}
    return CreateProvisioning(key, place.namespace, name, labels, CLASS, pods, owners)


def seen(door, kind=ProvisioningSeen, **fields):
    def wanted(each):
        return isinstance(each, kind) and all(
            getattr(each.facts, name) == value for name, value in fields.items()
        )

    return door.until(wanted).facts


def test_a_request_is_made_once_with_its_templates_followed_and_deleted(place, asking):
    gate = [{"name": "example.com/wait"}]
    pod = place.make_pod("tune-0", schedulingGates=gate, nodeSelector={"a": "b"})
    owner = Reference("v1", "Pod", "tune-0", pod["metadata"]["uid"])
    pods = AlikePods(2, place.manifest("x")), AlikePods(3, "tune-0")
    twice = [create(place, *pods, key=key, owners=(owner,)) for key in ("first", "again")]
    first, again = asking.carry_out(*twice)
    assert (first.result, again.result, first.uid) == (Result.DONE, Result.DONE, again.uid)
    found = place.api.ok("GET", path(place, name=NAME))
    assert found["spec"]["provisioningClassName"] == CLASS
    asked = [(each["podTemplateRef"]["name"], each["count"]) for each in found["spec"]["podSets"]]
    assert asked == [(f"{NAME}-0", 2), (f"{NAME}-1", 3)]
    assert [each["uid"] for each in found["metadata"]["ownerReferences"]] == [owner.uid]
    template = place.api.ok("GET", path(place, "podtemplates", f"{NAME}-1"))
    spec = template["template"]["spec"]
    assert spec["nodeSelector"] == {"a": "b"}
    assert "schedulingGates" not in spec
    assert [each["uid"] for each in template["metadata"]["ownerReferences"]] == [first.uid]

    facts = seen(asking, name=NAME)
    assert (facts.job, facts.number, facts.class_name) == (JOB_ID, 1, CLASS)
    assert facts.templates == (f"{NAME}-0", f"{NAME}-1")
    assert facts.answer is NodesAnswer.NONE
    at = "2026-11-26T14:02:00Z"
    said = {"reason": "Said", "lastTransitionTime": at, "message": "none left"}
    conditions = [
        {**said, "type": "Accepted", "status": "True"},
        {**said, "type": "Failed", "status": "True"},
        {**said, "type": "Provisioned", "status": "False"},
    ]
    body = {"status": {"conditions": conditions}}
    place.api.ok("PATCH", f"{path(place, name=NAME)}/status", body, content_type=MERGE)
    facts = seen(asking, answer=NodesAnswer.FAILED)
    assert (facts.message, facts.answered_at) == ("none left", 1795701720.0)

    [other] = asking.carry_out(
        DeleteProvisioning("other", place.namespace, NAME, "another", facts.templates)
    )
    [done] = asking.carry_out(
        DeleteProvisioning("mine", place.namespace, NAME, facts.uid, facts.templates)
    )
    assert (other.result, done.result) == (Result.GONE, Result.DONE)
    assert seen(asking, ProvisioningGone).uid == facts.uid
    assert place.api.ok("GET", path(place, "podtemplates"))["items"] == []


def test_templates_of_others_are_none_of_a_request(place, asking):
    sets = [{"podTemplateRef": {"name": name}, "count": 1} for name in (f"{NAME}-0", "theirs")]
    spec = {"provisioningClassName": CLASS, "podSets": sets}
    meta = {"name": NAME, "labels": {PROVISIONS_FOR: JOB_ID}}
    kind = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
    place.api.ok("POST", path(place), {**kind, "metadata": meta, "spec": spec})
    assert seen(asking, namespace=place.namespace).templates == (f"{NAME}-0",)


def test_what_cannot_be_asked_for_leaves_nothing(place, asking):
    [gone] = asking.carry_out(
        create(place, AlikePods(1, place.manifest("x")), AlikePods(1, "no-such-pod"))
    )
    assert gone.result is Result.GONE
    theirs = {"metadata": {"name": f"{NAME}-0"}, "template": {"spec": place.manifest("x")["spec"]}}
    place.api.ok("POST", path(place, "podtemplates"), theirs)
    [refused] = asking.carry_out(create(place, AlikePods(1, place.manifest("x")), key="refused"))
    text = f"a PodTemplate named {NAME}-0 exists that Kant did not make"
    assert (refused.result, refused.message) == (Result.REFUSED, text)
    left = place.api.ok("GET", path(place, "podtemplates"))["items"]
    assert [each["metadata"].get("labels") for each in left] == [None]


@pytest.mark.apiserver
@pytest.mark.parametrize("server", ["kube-apiserver"], indirect=True)
def test_what_is_missing_is_told_precisely_and_holds_nothing_up(server, open_door):
    api = server.api
    api.call("DELETE", f"{DEFINITIONS}/{DEFINITION['metadata']['name']}")
    door = open_door()
    door.gateway.follow_provisioning()

    def trouble_with(words):
        return door.until(
            lambda each: isinstance(each, ProvisioningServed) and words in each.trouble
        )

    trouble_with(
        "the cluster does not serve ProvisioningRequest of autoscaling.x-k8s.io/v1; install"
    )
    role = api.ok("GET", ROLE)
    rules = [r for r in role["rules"] if r.get("resources") != ["provisioningrequests"]]
    assert len(rules) == len(role["rules"]) - 1
    try:
        api.ok("PUT", ROLE, {**role, "rules": rules})
        trouble_with("does not allow Kant to list and watch provisioning requests (403;")
        assert door.gateway.is_synced()
        assert not door.gateway.trouble
    finally:
        now = api.ok("GET", ROLE)
        api.ok("PUT", ROLE, {**now, "rules": role["rules"]})
    door.forget()
    api.ok("POST", DEFINITIONS, DEFINITION)
    door.until(lambda each: each == ProvisioningServed())
