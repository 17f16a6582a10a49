"""Pods of jobs in a namespace that enforces the Pod Security Standard `restricted`, on a real API
server: from the job document to the admitted pod."""

import pytest

from scheduling.job_fields.nouns import columns_of
from scheduling.kube.translate.manifests import PodTemplate, pod_manifest
from scheduling.models import PodSet
from scheduling.services.jobs.validation import job_spec
from scheduling.session.memory.load import content

pytestmark = pytest.mark.apiserver
ENFORCED = {"pod-security.kubernetes.io/enforce": "restricted"}
CLAIM = {"name": "data", "persistent_volume_claim": "data", "mount_path": "/data"}
HELLO = {"name": "hello", "tenant": "vision", "gpus": 1, "gpu_type": "H100", "cpu_milli": 1000}
ALL = {
    "security_context": {"restricted": True, "run_as_user": 1000, "fs_group": 1000},
    "memory_mib": 2048,
    "shm_mib": 64,
    "volumes": [CLAIM, {"name": "conf", "config_map": "conf", "mount_path": "/conf"}],
    "env_from_secrets": {"TOKEN": {"secret": "wandb", "key": "token"}},
    "init_containers": [{"name": "fetch", "image": "curl:8", "cpu_milli": 500}],
    "sidecars": [{"name": "proxy", "image": "envoy:1", "memory_mib": 128}],
    "probes": {"startup": {"port": 80}, "readiness": {"port": 80, "http_path": "/ready"}},
}


@pytest.fixture(scope="module")
def restricted(kube_apiserver):
    meta = {"name": "restricted", "labels": ENFORCED}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
    kube_apiserver.api.ok("POST", "/api/v1/namespaces", body)
    sandbox = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runsc"}
    sandbox["metadata"] = {"name": "gvisor"}
    kube_apiserver.api.ok("POST", "/apis/node.k8s.io/v1/runtimeclasses", sandbox)
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 5}
    low["metadata"] = {"name": "low"}
    kube_apiserver.api.ok("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", low)
    return kube_apiserver.api


def created(api, change, name="pod"):
    """Return the answer to the pod that Kant makes of a job with this change."""
    [pods] = job_spec({**HELLO, **change}).job.pod_sets
    run = content(PodSet(**columns_of(pods)))
    template = PodTemplate(
        namespace="restricted",
        job_id="00000000-0000-0000-0000-000000000001",
        tenant="vision",
        attempt=1,
        pod_set=0,
        image=run.image,
        command=run.command,
        env=run.env,
        gpus=pods.gpus,
        cpu_milli=pods.cpu_milli,
        memory_mib=pods.memory_mib,
        settings=run.settings,
        is_told=True,
    )
    path = "/api/v1/namespaces/restricted/pods?fieldValidation=Strict"
    return api.call("POST", path, pod_manifest(template, name, 0))


def test_a_job_that_says_restricted_runs_there(restricted):
    answer = created(restricted, {"security_context": {"restricted": True}})
    assert answer.code == 201, answer
    assert answer.body["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_so_does_one_with_all_that_a_job_may_say(restricted):
    classes = {"runtime_class": "gvisor", "priority_class": "low"}
    answer = created(restricted, {**ALL, **classes}, "all")
    assert answer.code == 201, answer
    spec = answer.body["spec"]
    assert (spec["priority"], spec["runtimeClassName"]) == (5, "gvisor")
    assert [each["name"] for each in spec["initContainers"]] == ["fetch", "proxy"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"security_context": {"run_as_non_root": True}},
        {"security_context": {"restricted": True, "add_capabilities": ["IPC_LOCK"]}},
        {"security_context": {"restricted": True}, "host_network": True},
    ],
)
def test_another_is_refused_there_and_told_why(restricted, change):
    answer = created(restricted, change, "refused")
    assert answer.code == 403
    assert 'violates PodSecurity "restricted' in answer.message
