"""The manifests are complete, consistent with each other, and agree with the operator guide."""

import re

import pytest
import yaml

from scheduling.kube.translate.manifests import PodTemplate
from scheduling.services.scheduler.keeper import STUCK_S
from tests.deploy.manifests import (
    DEPLOY,
    FILE,
    ROOT,
    command,
    containers,
    deployments,
    documents,
)
from tests.guide import guide_text

GUIDE = guide_text()


def test_every_manifest_is_named_and_every_object_is_there_once():
    named = yaml.safe_load((DEPLOY / FILE).read_text())["resources"]
    there = {path.name for path in DEPLOY.glob("*.yaml")} - {FILE}
    assert {name for name in named if (DEPLOY / name).is_file()} == there
    keys = [(each["kind"], each["metadata"]["name"]) for each in documents()]
    assert len(keys) == len(set(keys))
    assert {name for kind, name in keys if kind == "ClusterRole"} == {"kant", "kant-web"}
    assert deployments().keys() == {"web", "scheduler", "worker", "beat"}
    # The repository does not contain what an operator creates.
    assert "Secret" not in {kind for kind, _ in keys}


def test_everything_is_in_the_namespace_of_kant():
    of_cluster = {
        *("Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    for each in documents():
        wanted = None if each["kind"] in of_cluster else "kant"
        assert each["metadata"].get("namespace") == wanted, each["metadata"]["name"]
    bound = {
        subject["name"]: each["roleRef"]["name"]
        for each in documents()
        if each["kind"] == "ClusterRoleBinding"
        for subject in each["subjects"]
        if (subject["kind"], subject["namespace"]) == ("ServiceAccount", "kant")
    }
    accounts = {d["metadata"]["name"] for d in documents() if d["kind"] == "ServiceAccount"}
    assert bound == {name: name for name in accounts}


def test_web_may_read_logs_and_nothing_else():
    [role] = [
        each for each in documents() if each["metadata"]["name"] == "kant-web" and "rules" in each
    ]
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"]}
    ]


@pytest.mark.parametrize("name", deployments())
def test_each_deployment(name):
    spec = deployments()[name]["spec"]
    template = spec["template"]
    pod = template["spec"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    # Kant cannot schedule itself, and its own pods are not jobs.
    assert pod.get("schedulerName") != PodTemplate.scheduler_name
    assert "tolerations" not in pod
    assert not any(label.startswith("kant.io/") for label in template["metadata"]["labels"])
    assert pod["serviceAccountName"] == ("kant-web" if name == "web" else "kant")
    # Web reads logs from the clusters and the scheduler does the rest; no other process calls an
    # API server.
    assert pod.get("automountServiceAccountToken", False) == (name in ("web", "scheduler"))
    [migrate] = pod["initContainers"]
    [main] = pod["containers"]
    assert command(migrate) == ["python", "manage.py", "migrate"]
    assert main["name"] == name
    for container in (migrate, main):
        assert container["image"] == "registry.example/kant:1"
        assert container["envFrom"] == [
            {"configMapRef": {"name": "kant"}},
            {"secretRef": {"name": "kant"}},
        ]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_pods_of_kant_come_before_others_and_are_apart():
    [priority] = [each for each in documents() if each["kind"] == "PriorityClass"]
    for name, deployment in deployments().items():
        spec = deployment["spec"]
        pod = spec["template"]["spec"]
        assert pod["priorityClassName"] == priority["metadata"]["name"]
        spread = pod.get("topologySpreadConstraints", [])
        apart = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        assert [each["topologyKey"] for each in spread] == apart * (spec["replicas"] > 1), name
        for each in spread:
            assert each["labelSelector"] == spec["selector"]


def test_nobody_connects_to_a_pod_but_to_web():
    policies = {d["metadata"]["name"]: d for d in documents() if d["kind"] == "NetworkPolicy"}
    assert policies["kant"]["spec"]["policyTypes"] == ["Ingress"]
    assert "ingress" not in policies["kant"]["spec"]
    every = policies["kant"]["spec"]["podSelector"]["matchLabels"].items()
    for deployment in deployments().values():
        assert every <= deployment["spec"]["template"]["metadata"]["labels"].items()
    web = deployments()["web"]["spec"]
    assert policies["web"]["spec"]["podSelector"] == web["selector"]
    [door] = policies["web"]["spec"]["ingress"]
    [main] = web["template"]["spec"]["containers"]
    assert [each["port"] for each in door["ports"]] == [each["name"] for each in main["ports"]]


def test_the_probe_of_the_scheduler_looks_at_the_file_that_it_writes():
    pod = deployments()["scheduler"]["spec"]["template"]["spec"]
    [main] = pod["containers"]
    [file] = [each["value"] for each in main["env"] if each["name"] == "KANT_ALIVE_FILE"]
    asked = main["livenessProbe"]["exec"]["command"]
    assert main["startupProbe"]["exec"]["command"] == asked
    assert asked[:4] == ["python", "-I", "scheduling/services/scheduler/alive.py", file]
    assert (ROOT / asked[2]).is_file()
    # A standby must not take the lease of a hung scheduler before its step counts as hung.
    assert float(asked[4]) > STUCK_S
    [folder] = [m["mountPath"] for m in main["volumeMounts"] if file.startswith(m["mountPath"])]
    assert folder == "/tmp"


def test_all_pods_have_the_same_environment_and_rights():
    every = [each for deployment in deployments().values() for each in containers(deployment)]
    for field in ("image", "envFrom", "securityContext"):
        assert all(each[field] == every[0][field] for each in every)


def test_two_beats_never_run_for_long():
    beat = deployments()["beat"]["spec"]
    assert (beat["replicas"], beat["strategy"]) == (1, {"type": "Recreate"})


def test_budgets_and_the_service_are_of_pods_that_there_are():
    several = {name for name, each in deployments().items() if each["spec"]["replicas"] > 1}
    labels = {n: d["spec"]["template"]["metadata"]["labels"] for n, d in deployments().items()}
    budgets = [each for each in documents() if each["kind"] == "PodDisruptionBudget"]
    assert {each["metadata"]["name"] for each in budgets} == several
    for each in budgets:
        assert each["spec"]["selector"]["matchLabels"] == labels[each["metadata"]["name"]]
    [service] = [each for each in documents() if each["kind"] == "Service"]
    assert service["spec"]["selector"] == labels["web"]
    [port] = service["spec"]["ports"]
    [web] = deployments()["web"]["spec"]["template"]["spec"]["containers"]
    [own] = web["ports"]
    assert port["targetPort"] == own["name"]
    assert str(own["containerPort"]) in command(web)
    for probe in ("readinessProbe", "livenessProbe"):
        assert web[probe]["httpGet"]["port"] == own["name"]


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("web", []),
        ("scheduler", []),
        ("worker", ["--concurrency", "2"]),
        ("beat", ["--schedule", "/tmp/beat"]),
    ],
)
def test_commands_are_those_of_the_guide(name, beside):
    [main] = deployments()[name]["spec"]["template"]["spec"]["containers"]
    told = re.findall(r"^\| .* \| `((?:uvicorn|celery) .*)` \|$", GUIDE, re.M)
    assert " ".join(command(main)).removesuffix(" ".join(["", *beside])) in told
    assert len(told) == len(deployments())
