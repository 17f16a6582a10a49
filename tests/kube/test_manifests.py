"""Manifests of Kant's own pods: names, labels, resources, and annotations read back."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.types import NodeExpression, NodeRules, Toleration
from scheduling.kube.translate.manifests import (
    IDENTITY,
    Gang,
    PodSettings,
    PodTemplate,
    binding_annotations,
    bound_devices,
    digest_of,
    host_name,
    is_made,
    is_stand_in,
    own_labels,
    pod_manifest,
    pod_name,
    stand_in_manifest,
)
from scheduling.kube.translate.node_rules import REQUIRED

JOB_ID = "3f2b8c1e-0000-4000-8000-000000000001"


def template(**fields):
    return PodTemplate(
        **{
            "namespace": "kant-jobs",
            "job_id": JOB_ID,
            "tenant": "vision",
            "attempt": 2,
            "pod_set": 0,
            "image": "pytorch:2",
            **fields,
        }
    )


def test_a_whole_gpu_pod():
    pod = pod_manifest(
        template(
            gpus=8,
            cpu_milli=96_000,
            memory_mib=1024,
            command=["python", "train.py"],
            env={"EPOCHS": "3"},
            labels={"team": "a", "kant.io/tenant": "forged"},
            annotations={"sim.kant.io/run-seconds": "60"},
            nodes=NodeRules(
                {"zone": "a"},
                (
                    (
                        NodeExpression("cores", "Gt", ("64",)),
                        NodeExpression("old", "DoesNotExist"),
                        NodeExpression("metadata.name", "NotIn", ("n1",), of_name=True),
                    ),
                ),
                (Toleration("team", "Equal", "a", "NoSchedule"),),
            ),
            extended={"rdma/hca": 8, "none": 0},
        ),
        "train-3f2b8c1e-2-workers-3",
        3,
    )
    assert pod["metadata"]["name"] == "train-3f2b8c1e-2-workers-3"
    assert pod["metadata"]["labels"] == {
        "team": "a",
        "kant.io/job": JOB_ID,
        "kant.io/tenant": "vision",
        "kant.io/attempt": "2",
        "kant.io/pod-set": "0",
        "kant.io/ordinal": "3",
    }
    assert pod["metadata"]["annotations"] == {"sim.kant.io/run-seconds": "60"}
    spec = pod["spec"]
    assert (spec["schedulerName"], spec["restartPolicy"]) == ("kant", "Never")
    assert spec["nodeSelector"] == {"zone": "a"}
    [term] = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "cores", "operator": "Gt", "values": ["64"]},
        {"key": "old", "operator": "DoesNotExist"},
    ]
    assert term["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]},
    ]
    assert spec["tolerations"][-1] == {
        "key": "team",
        "operator": "Equal",
        "value": "a",
        "effect": "NoSchedule",
    }
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    [container] = spec["containers"]
    assert container["command"] == ["python", "train.py"]
    assert container["env"] == [{"name": "EPOCHS", "value": "3"}]
    assert container["resources"] == {
        "requests": {"cpu": "96000m", "memory": "1024Mi", "rdma/hca": "8", "nvidia.com/gpu": "8"},
        "limits": {"rdma/hca": "8", "nvidia.com/gpu": "8"},
    }
    json.dumps(pod)


GANG = Gang(job_name="train", pod_set_name="worker", first_rank=2, world_size=10, head="launcher-0")


def environment(**fields):
    [container] = pod_manifest(template(**fields), "pod", 3)["spec"]["containers"]
    return container.get("env", [])


def test_a_pod_of_several_knows_its_rank_and_has_an_address():
    spec = pod_manifest(template(gang=GANG), "pod", 3)["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("worker-3", f"job-{JOB_ID}")
    assert {each["name"]: each["value"] for each in environment(gang=GANG)} == {
        "KANT_JOB_ID": JOB_ID,
        "KANT_JOB_NAME": "train",
        "KANT_RANK": "5",
        "KANT_WORLD_SIZE": "10",
        "KANT_POD_SET": "worker",
        "KANT_ORDINAL": "3",
        "MASTER_ADDR": f"launcher-0.job-{JOB_ID}",
        "MASTER_PORT": "29500",
    }


def test_what_the_user_sets_replaces_and_may_refer_to_what_kant_sets():
    secrets = PodSettings(env_from_secrets={"MASTER_PORT": {"secret": "net", "key": "port"}})
    mine = {"KANT_RANK": "7", "NODE_RANK": "$(KANT_ORDINAL)"}
    made = environment(gang=GANG, settings=secrets, env=mine)
    names = [each["name"] for each in made]
    assert len(names) == len(set(names))
    assert {each["name"]: each.get("value") for each in made}.items() >= mine.items()
    # Kubernetes replaces $(NAME) with the value of an earlier variable.
    assert names.index("KANT_ORDINAL") < names.index("MASTER_PORT") < names.index("NODE_RANK")
    reference = {"secretKeyRef": {"name": "net", "key": "port"}}
    assert {"name": "MASTER_PORT", "valueFrom": reference} in made


def test_a_pod_that_is_alone_is_told_of_no_others():
    spec = pod_manifest(template(), "pod", 0)["spec"]
    assert "env" not in spec["containers"][0]
    assert not spec.keys() & {"hostname", "subdomain", "volumes", "serviceAccountName"}
    assert spec["automountServiceAccountToken"] is False


def test_a_host_name_is_the_end_of_the_pods_name():
    long = "prefill-worker-large-a"
    for index, name in ((0, "worker"), (2, long)):
        whole = pod_name("train", JOB_ID, 2, index, name, 7)
        assert whole == f"train-3f2b8c1e-2-{host_name(index, name, 7)}"


def test_a_pod_that_kant_makes_is_known_by_its_labels_and_name_together():
    labels = own_labels(JOB_ID, "team", 2, 0, 7)
    long = "a-name-that-is-cut-to-what-is-left-of-the-63-characters-of-a-host-name"
    for job in ("train", long, "—"):
        assert is_made(pod_name(job, JOB_ID, 2, 0, "prefill-worker-large-a", 7), labels)
    name = pod_name("train", JOB_ID, 2, 0, "worker", 7)
    for other in ("notebook", name[:-1] + "8", name.replace("-2-", "-3-")):
        assert not is_made(other, labels)
    for label in IDENTITY:
        assert not is_made(name, {n: value for n, value in labels.items() if n != label})


def test_a_stand_in_asks_for_the_same_and_is_no_pod_of_the_job():
    asked = template(gang=GANG, gpus=8, labels={"app": "x"}, annotations={"a": "b"})
    own, other = pod_manifest(asked, "pod", 3), stand_in_manifest(asked, "pod", 3)
    assert other["spec"]["containers"] == own["spec"]["containers"]
    assert other["spec"].keys() == own["spec"].keys() - {"hostname", "subdomain"}
    labels = other["metadata"]["labels"]
    assert labels == {
        "kant.io/stands-in-for": JOB_ID,
        "kant.io/tenant": own["metadata"]["labels"]["kant.io/tenant"],
        "kant.io/pod-set": own["metadata"]["labels"]["kant.io/pod-set"],
        "kant.io/ordinal": "3",
    }
    assert other["metadata"]["annotations"] == {}
    assert digest_of(own) != digest_of(other) == digest_of(stand_in_manifest(asked, "pod", 3))
    name = pod_name("train", JOB_ID, "waits", 0, "workers", 3)
    assert is_stand_in(name, labels)
    assert not is_stand_in("copy-3", labels)
    assert not is_stand_in(name, {**labels, "kant.io/ordinal": "4"})
    assert not is_stand_in(name, own["metadata"]["labels"])
    assert not is_made(name, labels)


def test_a_stand_in_has_claims_by_templates_or_none():
    claims = {"gpus": {"template": "eight"}}
    spec = stand_in_manifest(template(settings=PodSettings(device_claims=claims)), "pod", 0)["spec"]
    assert spec["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "eight"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
    claims |= {"nic": {"device_class": "nic", "count": 1}}  # Kant would make this one
    for asked in (template(settings=PodSettings(device_claims=claims)), template()):
        assert "resourceClaims" not in stand_in_manifest(asked, "pod", 0)["spec"]


def test_what_a_pod_uses_of_its_namespace():
    settings = PodSettings(
        service_account="trainer",
        image_pull_secrets=["registry"],
        shm_mib=65536,
        volumes=[
            {
                "name": "data",
                "persistent_volume_claim": "datasets",
                "mount_path": "/data",
                "read_only": True,
            },
            {
                "name": "out",
                "persistent_volume_claim": "runs",
                "mount_path": "/out",
                "read_only": False,
            },
            {"name": "conf", "config_map": "train", "mount_path": "/conf", "read_only": True},
            {"name": "keys", "secret": "keys", "mount_path": "/keys", "read_only": True},
        ],
    )
    spec = pod_manifest(template(settings=settings, is_told=True), "pod", 0)["spec"]
    assert spec["serviceAccountName"] == "trainer"
    assert "automountServiceAccountToken" not in spec
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["volumes"][1:] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "65536Mi"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "datasets", "readOnly": True}},
        {"name": "out", "persistentVolumeClaim": {"claimName": "runs"}},
        {"name": "conf", "configMap": {"name": "train"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
    ]
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "kant", "mountPath": "/etc/kant", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "out", "mountPath": "/out", "readOnly": False},
        {"name": "conf", "mountPath": "/conf", "readOnly": True},
        {"name": "keys", "mountPath": "/keys", "readOnly": True},
    ]


def test_containers_share_volumes_variables_and_rights():
    settings = PodSettings(
        shm_mib=64,
        security_context={
            "restricted": True,
            "run_as_user": 1000,
            "run_as_non_root": True,
            "supplemental_groups": [7],
            "allow_privilege_escalation": False,
            "drop_capabilities": ["ALL"],
            "seccomp": "RuntimeDefault",
        },
        init_containers=[{"name": "fetch", "image": "curl", "command": ["get"], "memory_mib": 512}],
        sidecars=[{"name": "proxy", "image": "envoy", "cpu_milli": 500}],
    )
    asked = template(settings=settings, cpu_milli=2000, memory_mib=1024, env={"A": "1"})
    spec = pod_manifest(asked, "pod", 0)["spec"]
    [main], [fetch, proxy] = spec["containers"], spec["initContainers"]
    assert spec["securityContext"] == {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "supplementalGroups": [7],
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for each in (main, fetch, proxy):
        assert each["env"] == [{"name": "A", "value": "1"}]
        assert each["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert fetch["command"] == ["get"]
    assert "restartPolicy" not in fetch
    assert proxy["restartPolicy"] == "Always"
    # The containers together request what the job says.
    assert main["resources"]["requests"] == {"cpu": "1500m", "memory": "1024Mi"}
    assert proxy["resources"] == {"requests": {"cpu": "500m"}}
    assert fetch["resources"] == {"requests": {"memory": "512Mi"}}


def test_how_the_program_is_probed_and_of_which_class_its_pods_are():
    settings = PodSettings(
        runtime_class="gvisor",
        priority_class="low",
        host_network=True,
        probes={
            "startup": {"command": ["test", "-f", "/ready"], "failures": 60, "period_s": 5},
            "liveness": {"port": 8080, "timeout_s": 3},
            "readiness": {"port": 8080, "http_path": "/healthz", "delay_s": 0},
        },
    )
    spec = pod_manifest(template(settings=settings), "pod", 0)["spec"]
    [main] = spec["containers"]
    assert main["startupProbe"] == {
        "exec": {"command": ["test", "-f", "/ready"]},
        "failureThreshold": 60,
        "periodSeconds": 5,
    }
    assert main["livenessProbe"] == {"tcpSocket": {"port": 8080}, "timeoutSeconds": 3}
    assert main["readinessProbe"] == {
        "httpGet": {"path": "/healthz", "port": 8080},
        "initialDelaySeconds": 0,
    }
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["priorityClassName"] == "low"
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_what_is_not_said_of_containers_is_left_to_kubernetes():
    pod = pod_manifest(template(), "pod", 0)["spec"]
    assert not pod.keys() & {
        *("securityContext", "initContainers", "runtimeClassName", "priorityClassName"),
        *("hostNetwork", "dnsPolicy"),
    }
    assert not {name for name in pod["containers"][0] if name.endswith(("Context", "Probe"))}


def test_gpus_are_asked_for_by_the_resource_of_the_node():
    pod = pod_manifest(template(gpus=2, gpu_resource="amd.com/gpu"), "pod", 0)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "2"}


def test_a_fraction_asks_for_milli_and_no_gpu():
    resources = pod_manifest(template(gpus=1), "pod", 0, 250)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"kant.io/gpu-milli": "250"}


def test_a_pod_without_gpus_asks_for_none():
    resources = pod_manifest(template(cpu_milli=100), "pod", 0)["spec"]["containers"][0][
        "resources"
    ]
    assert resources == {"requests": {"cpu": "100m"}, "limits": {}}


@given(
    job=st.text(min_size=1, max_size=80),
    pod_set=st.text(min_size=1, max_size=80),
    attempt=st.integers(1, 10**6),
    index=st.integers(0, 100),
    ordinal=st.integers(0, 10**6),
)
def test_every_name_is_legal_and_keeps_what_makes_it_unique(job, pod_set, attempt, index, ordinal):
    name = pod_name(job, JOB_ID, attempt, index, pod_set, ordinal)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert f"-3f2b8c1e-{attempt}-" in name
    assert name.endswith(f"-{ordinal}")


@pytest.mark.parametrize(
    ("index", "pod_set", "name"),
    [
        (0, "workers", "train-3f2b8c1e-2-workers-7"),
        (1, "prefill-worker-large", "train-3f2b8c1e-2-prefill-worker-large-7"),
        (2, "prefill-worker-large-a", "train-3f2b8c1e-2-prefill-worker-large-2-7"),
        (3, "prefill-worker-large-b", "train-3f2b8c1e-2-prefill-worker-large-3-7"),
        (4, "prefill-worker-big-2-b", "train-3f2b8c1e-2-prefill-worker-big-2-4-7"),
        (5, "prefill-worker-big-2", "train-3f2b8c1e-2-prefill-worker-big-2-7"),
    ],
)
def test_only_a_name_that_is_cut_is_followed_by_the_index(index, pod_set, name):
    assert pod_name("train", JOB_ID, 2, index, pod_set, 7) == name


@given(
    names=st.lists(st.from_regex(r"[ab]-{0,3}[ab1]{0,3}-{0,16}[12]", fullmatch=True), unique=True)
)
def test_no_two_pod_sets_of_a_job_share_a_name(names):
    made = {pod_name("train", JOB_ID, 2, at, name, 0) for at, name in enumerate(names)}
    assert len(made) == len(names)


def test_the_device_choice_in_annotations():
    assert binding_annotations((4, 5), 1000, (1,)) == {
        "kant.io/devices": "[4, 5]",
        "kant.io/milli": "1000",
        "kant.io/nics": "[1]",
    }
    assert binding_annotations((), 1000) == {}


@pytest.mark.parametrize("choice", [((4, 5), 1000, (1,)), ((0,), 250, ()), ((), 1000, ())])
def test_the_device_choice_is_read_back(choice):
    assert bound_devices(binding_annotations(*choice)) == choice


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("kant.io/devices", value) for value in ("", "7", "[-1]", "[true]", '["a"]')),
        *(("kant.io/milli", value) for value in ("", "0", "1001", "half")),
        ("kant.io/nics", "{}"),
    ],
)
def test_a_device_choice_that_kant_did_not_write_is_none(name, value):
    written = binding_annotations((4,), 1000, (1,))
    with pytest.raises(ValueError):  # noqa: PT011, of json and int too
        bound_devices({**written, name: value})
