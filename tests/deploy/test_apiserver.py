"""A real kube-apiserver accepts the manifests, and their pods under strict Pod Security."""

import copy
import time
import urllib.error

import pytest

from tests import requirements
from tests.deploy.chart import chart_documents
from tests.deploy.manifests import config, deployments, documents
from tests.guide import guide_examples
from tests.kube.api import APPLY, Api, eventually

pytestmark = pytest.mark.apiserver
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/kant/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/kant/configmaps",
    "Service": "/api/v1/namespaces/kant/services",
    "Deployment": "/apis/apps/v1/namespaces/kant/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/kant/statefulsets",
    "Secret": "/api/v1/namespaces/kant/secrets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/kant/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/kant/networkpolicies",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
STRICT = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
PODS = "/api/v1/namespaces/kant/pods?fieldValidation=Strict"


def apply_all(server):
    """Apply in the order of the kustomization; a field that the API server does not know is an
    error."""
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
    """Create the pods directly: no controller runs here to make them, and for Deployments the
    API server only warns."""
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
    [ingress] = [each for each in guide_examples() if each.get("kind") == "Ingress"]
    path = "/apis/networking.k8s.io/v1/namespaces/kant/ingresses?fieldValidation=Strict"
    [rule] = apiserver.request("POST", path, ingress)["spec"]["rules"]
    assert rule["host"] in config()["KANT_ALLOWED_HOSTS"].split(",")
    [backend] = [each["backend"]["service"] for each in rule["http"]["paths"]]
    [service] = [each for each in documents() if each["kind"] == "Service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]


@pytest.fixture(scope="module")
def api(apiserver):
    return Api(apiserver.url, "admin-token", str(apiserver.ca_file))


EVERYTHING = {
    "image": "registry.example/other/kant@sha256:" + "0" * 64,
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"KANT_SAMPLE_SECONDS": 30, "KANT_METRICS_OPEN": True},
    "web": {"replicas": 3},
    "scheduler": {"resources": {"limits": {"memory": "4Gi"}}},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "networkPolicy": {"webFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]},
    "trial": {"postgresql": {"enabled": True}, "redis": {"enabled": True}},
}


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"otherCluster": True}])
def test_the_chart_is_taken_by_server_side_apply(api, values):
    names = []
    for each in chart_documents(values):
        name = each["metadata"]["name"]
        path = f"{PATHS[each['kind']]}/{name}?dryRun=All&fieldManager=helm&force=true"
        answer = api.call("PATCH", f"{path}&fieldValidation=Strict", each, APPLY)
        assert answer.code in (200, 201), (each, answer)
        names.append((each["kind"], name))
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["postgresql", "redis"])
def test_pods_of_a_trial_are_let_into_a_restricted_namespace(api, name):
    [found] = [
        each
        for each in chart_documents(EVERYTHING)
        if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", name)
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", **found["spec"]["template"]}
    pod["metadata"]["name"] = name
    claims = found["spec"].get("volumeClaimTemplates", ())
    pod["spec"]["volumes"] += [
        {
            "name": each["metadata"]["name"],
            "persistentVolumeClaim": {"claimName": each["metadata"]["name"]},
        }
        for each in claims
    ]
    api.ok("POST", f"{PODS}&dryRun=All", pod)


def test_kant_changes_nothing_in_namespaces_of_kubernetes_nor_in_its_own(apiserver, api):
    """The ClusterRole would allow changes in all namespaces; the admission policy denies these."""
    kant = Api(apiserver.url, "kant-token", str(apiserver.ca_file))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "jobs"}}
    kant.ok("POST", "/api/v1/namespaces", namespace)
    for kept in ("kube-system", "kube-public", "kant"):
        pod = plain_pod("p", kept)
        pod["spec"]["containers"][0]["securityContext"] = STRICT
        pod["spec"]["securityContext"] = {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        pods = f"/api/v1/namespaces/{kept}/pods"
        eventually(
            lambda pods=pods, pod=pod: kant.call("POST", f"{pods}?dryRun=All", pod).code > 400
        )
        api.ok("POST", pods, pod)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p"},
            "target": {"kind": "Node", "name": "n"},
        }
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
        service["spec"] = {"clusterIP": "None"}
        for method, path, body in (
            ("POST", pods, {**pod, "metadata": {**pod["metadata"], "name": "q"}}),
            ("POST", f"{pods}/p/binding", binding),
            ("POST", f"{pods}/p/eviction", EVICTION),
            ("DELETE", f"{pods}/p", None),
            ("POST", f"/api/v1/namespaces/{kept}/services", service),
        ):
            answer = kant.call(method, path, body)
            assert answer.code in (403, 422), (method, path, answer)
            assert f"Kant changes nothing in the namespace {kept}" in answer.message
        assert kant.call("GET", f"{pods}/p").code == 200
    kant.ok("POST", "/api/v1/namespaces/jobs/pods", plain_pod("p", "jobs"))
    kant.ok("DELETE", "/api/v1/namespaces/jobs/pods/p")


def plain_pod(name, namespace, **labels):
    spec = {"schedulerName": "kant", "containers": [{"name": "c", "image": "i"}]}
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def refusal(server, pod):
    """Return the API server's reason for rejecting a pod, "" if it accepts it."""
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
    deadline = time.monotonic() + 60  # policies take effect shortly after their creation
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
