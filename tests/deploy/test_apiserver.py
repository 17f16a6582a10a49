"""A real kube-apiserver takes the manifests, and the pods of them where Pod Security is strict."""

import copy
import re
import time
import urllib.error

import pytest
import yaml

from tests import requirements
from tests.deploy.manifests import config, deployments, documents
from tests.guide import guide_text

pytestmark = pytest.mark.apiserver
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/kant/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/kant/configmaps",
    "Service": "/api/v1/namespaces/kant/services",
    "Deployment": "/apis/apps/v1/namespaces/kant/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/kant/poddisruptionbudgets",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
PODS = "/api/v1/namespaces/kant/pods?fieldValidation=Strict"


def apply_all(server):
    """In the order of the kustomization; what the API server does not know is an error."""
    for each in documents():
        server.request("POST", f"{PATHS[each['kind']]}?fieldValidation=Strict", each)


@pytest.fixture(scope="module")
def apiserver(tmp_path_factory):
    with requirements.apiserver(tmp_path_factory.mktemp("deploy") / "apiserver") as server:
        apply_all(server)
        yield server


def test_a_field_that_is_not_known_would_be_refused(apiserver):
    wrong = copy.deepcopy(deployments()["beat"])
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["template"]["spec"]["containers"][0]["comand"] = []
    with pytest.raises(urllib.error.HTTPError) as error:
        apiserver.request("POST", f"{PATHS['Deployment']}?fieldValidation=Strict", wrong)
    assert b"comand" in error.value.read()


@pytest.mark.parametrize("name", deployments())
def test_pods_are_let_into_a_restricted_namespace(apiserver, name):
    """The controller that would make them does not run here, and Deployments are only warned of."""
    namespace = apiserver.request("GET", "/api/v1/namespaces/kant")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    template = deployments()[name]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(template)}
    pod["metadata"]["name"] = name
    assert apiserver.request("POST", PODS, pod)["spec"]["schedulerName"] == "default-scheduler"

    pod["metadata"]["name"] = f"{name}-loose"
    del pod["spec"]["containers"][0]["securityContext"]["capabilities"]
    with pytest.raises(urllib.error.HTTPError) as error:
        apiserver.request("POST", PODS, pod)
    assert b'violates PodSecurity \\"restricted' in error.value.read()


def test_the_ingress_of_the_guide_leads_to_the_service_by_a_name_that_kant_answers_to(apiserver):
    guide = guide_text()
    examples = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", guide, re.S))
    [ingress] = [each for each in examples if each.get("kind") == "Ingress"]
    path = "/apis/networking.k8s.io/v1/namespaces/kant/ingresses?fieldValidation=Strict"
    [rule] = apiserver.request("POST", path, ingress)["spec"]["rules"]
    assert rule["host"] in config()["KANT_ALLOWED_HOSTS"].split(",")
    [backend] = [each["backend"]["service"] for each in rule["http"]["paths"]]
    [service] = [each for each in documents() if each["kind"] == "Service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]


def plain_pod(name, namespace, **labels):
    spec = {"schedulerName": "kant", "containers": [{"name": "c", "image": "i"}]}
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def refusal(server, pod):
    """What the API server says against a pod, "" if nothing."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?dryRun=All"
    try:
        server.request("POST", path, pod)
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def test_pods_of_a_labelled_namespace_name_its_tenant_and_no_other(apiserver):
    for name, labels in (("vision-jobs", {"kant.io/tenant": "vision"}), ("free", {})):
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels},
        }
        apiserver.request("POST", "/api/v1/namespaces", body)
    other = plain_pod("p", "vision-jobs", **{"kant.io/tenant": "search"})
    deadline = time.monotonic() + 60  # policies are in force a moment after they are made
    while not refusal(apiserver, other) and time.monotonic() < deadline:
        time.sleep(0.2)
    for wrong in (other, plain_pod("p", "vision-jobs")):
        said = refusal(apiserver, wrong)
        assert "the label kant.io/tenant of the pod has to be that of its namespace: vision" in said
    assert not refusal(apiserver, plain_pod("p", "vision-jobs", **{"kant.io/tenant": "vision"}))
    assert not refusal(apiserver, plain_pod("p", "free", **{"kant.io/tenant": "search"}))
    elsewhere = plain_pod("p", "vision-jobs")
    del elsewhere["spec"]["schedulerName"]
    assert not refusal(apiserver, elsewhere)
