"""What jobs on a cluster may name, by default and by its operators' rules."""

import pytest

from scheduling.models import Cluster, Job
from tenants.models import AuditRecord

JOBS, CLUSTER = "/api/v1/jobs", "/api/v1/clusters/demo"
HELLO = {"name": "x", "tenant": "vision", "gpus": 1, "gpu_type": "H100"}

DENIED = [
    ({"tolerations": [{"operator": "Exists"}]}, "/tolerations/0"),
    ({"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}, "/tolerations/0"),
    *(
        ({"tolerations": [{"key": "a", "operator": "Exists"}, {"key": key, **more}]},
         "/tolerations/1/key")
        for key in (
            "node-role.kubernetes.io/control-plane",
            "node-role.kubernetes.io/master",
            "node.kubernetes.io/unschedulable",
        )
        for more in (
            {"operator": "Exists"},
            {"operator": "Equal", "value": "x"},
            {"operator": "Exists", "effect": "NoExecute"},
        )
    ),
    *(
        ({"annotations": {name: "x"}}, f"/annotations/{name.replace('/', '~1')}")
        for name in (
            "k8s.v1.cni.cncf.io/networks",
            "v1.multus-cni.io/default-network",
            "cdi.k8s.io/vendor_x",
            "container.apparmor.security.beta.kubernetes.io/main",
        )
    ),
    ({"labels": {"app.kubernetes.io/name": "kant"}}, "/labels/app.kubernetes.io~1name"),
    ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "/env/NVIDIA_VISIBLE_DEVICES"),
    ({"env": {"NVIDIA_MIG_CONFIG_DEVICES": "all"}}, "/env/NVIDIA_MIG_CONFIG_DEVICES"),
    ({"env": {"AMD_VISIBLE_DEVICES": "all"}}, "/env/AMD_VISIBLE_DEVICES"),
    ({"env_from_secrets": {"NVIDIA_VISIBLE_DEVICES": {"secret": "a", "key": "b"}}},
     "/env_from_secrets/NVIDIA_VISIBLE_DEVICES"),
    ({"host_network": True}, "/host_network"),
    ({"security_context": {"privileged": True}}, "/security_context/privileged"),
    ({"security_context": {"seccomp": "Unconfined"}}, "/security_context/seccomp"),
    ({"security_context": {"add_capabilities": ["IPC_LOCK", "SYS_ADMIN"]}},
     "/security_context/add_capabilities/1"),
    ({"priority_class": "system-node-critical"}, "/priority_class"),
]  # fmt: skip
ALLOWED = [
    {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
    {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]},
    {"annotations": {"prometheus.io/scrape": "true"}},
    {"labels": {"app.kubernetes.io/name": "kanto"}},
    {"env": {"NVIDIA_DRIVER_CAPABILITIES": "all", "CUDA_VISIBLE_DEVICES": "0"}},
    {"service_account": "train"},
    {"priority": 1_000_000},
    {"security_context": {"restricted": True, "run_as_user": 1000}},
    {"security_context": {"add_capabilities": ["IPC_LOCK"], "allow_privilege_escalation": True}},
    {"runtime_class": "gvisor", "priority_class": "low"},
]


def shapes(change):
    """Yield the job in each form: short, with pod sets, as an array."""
    yield "", {**HELLO, **change}
    yield "", {**HELLO, **change, "array": {"count": 3}}
    if "labels" in change or "priority" in change:
        return
    one = {"name": "a", "gpus": 1, "gpu_type": "H100"}
    yield (
        "/pod_sets/1",
        {
            "name": "x",
            "tenant": "vision",
            "pod_sets": [one, {**one, "name": "b", **change}],
        },
    )


@pytest.mark.parametrize(("change", "pointer"), DENIED)
def test_what_is_denied_by_default(eve, change, pointer):
    for prefix, job in shapes(change):
        for query in ("", "?dry_run=true"):
            answer = eve.post(f"{JOBS}{query}", job, format="json")
            assert answer.status_code == 422, answer.json()
            [error] = answer.json()["errors"]
            assert error["pointer"] == prefix + pointer
            assert "ask an operator" in error["detail"]
            assert "job_rules of the cluster" in error["detail"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("change", ALLOWED)
def test_what_is_allowed_by_default(eve, change):
    for _, job in shapes(change):
        assert eve.post(f"{JOBS}?dry_run=true", job, format="json").status_code == 200


OWN = [
    ({"denied_tolerations": []}, {"tolerations": [{"key": "node-role.kubernetes.io/x",
                                                   "operator": "Exists"}]}, None),
    ({"toleration_of_everything": True}, {"tolerations": [{"operator": "Exists"}]}, None),
    ({"denied_annotations": []}, {"annotations": {"cdi.k8s.io/gpu": "x"}}, None),
    ({"denied_labels": []}, {"labels": {"app.kubernetes.io/name": "kant"}}, None),
    ({"denied_labels": ["team*"]}, {"labels": {"team-a": "b"}}, "/labels/team-a"),
    ({"denied_labels": ["team"]}, {"labels": {"team-a": "b"}}, None),
    ({"denied_env": ["LD_*"]}, {"env": {"LD_PRELOAD": "x"}}, "/env/LD_PRELOAD"),
    ({"denied_env": ["LD_*"]}, {"env": {"NVIDIA_VISIBLE_DEVICES": "x"}}, None),
    ({"service_accounts": ["train-*"]}, {"service_account": "admin"}, "/service_account"),
    ({"service_accounts": ["train-*"]}, {"service_account": "train-a"}, None),
    ({"service_accounts": []}, {"service_account": "default"}, "/service_account"),
    ({"service_accounts": []}, {}, None),
    ({"host_network": True}, {"host_network": True}, None),
    ({"privileged": True}, {"security_context": {"privileged": True}}, None),
    ({"capabilities": []}, {"security_context": {"add_capabilities": ["IPC_LOCK"]}},
     "/security_context/add_capabilities/0"),
    ({"capabilities": ["*"]}, {"security_context": {"add_capabilities": ["SYS_ADMIN"]}}, None),
    ({"denied_runtime_classes": ["kata*"]}, {"runtime_class": "kata-qemu"}, "/runtime_class"),
    ({"denied_runtime_classes": ["kata*"]}, {"runtime_class": "gvisor"}, None),
    ({"denied_priority_classes": []}, {"priority_class": "system-node-critical"}, None),
    ({"max_priority": 5}, {"priority": 6}, "/priority"),
    ({"max_priority": 5}, {"priority": 5}, None),
    ({"max_priority": -1}, {}, "/priority"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "change", "pointer"), OWN)
def test_operators_say_what_may_be_named(org, eve, rules, change, pointer):
    changed = org.client("ops").patch(CLUSTER, {"job_rules": rules}, format="json")
    assert changed.status_code == 200, changed.json()
    answer = eve.post(f"{JOBS}?dry_run=true", {**HELLO, **change}, format="json")
    assert answer.status_code == (422 if pointer else 200), answer.json()
    if pointer:
        assert [e["pointer"] for e in answer.json()["errors"]] == [pointer]


def test_all_that_is_wrong_is_told_at_once(eve):
    job = {
        **HELLO,
        "env": {"NVIDIA_VISIBLE_DEVICES": "all"},
        "tolerations": [{"operator": "Exists"}],
    }
    errors = eve.post(JOBS, job, format="json").json()["errors"]
    assert len(errors) == 2


def test_rules_are_shown_to_all_and_changed_by_operators(org, eve):
    shown = eve.get(CLUSTER).json()["job_rules"]
    assert "NVIDIA_VISIBLE_DEVICES" in shown["denied_env"]
    assert shown["service_accounts"] is None
    refused = eve.patch(CLUSTER, {"job_rules": {"denied_env": []}}, format="json")
    assert refused.status_code == 403
    ops = org.client("ops")
    ops.patch(CLUSTER, {"job_rules": {"max_priority": 3}}, format="json")
    [record] = AuditRecord.objects.filter(action="cluster.changed")
    assert (record.before["job_rules"], record.after["job_rules"]) == ({}, {"max_priority": 3})
    assert eve.get(CLUSTER).json()["job_rules"]["max_priority"] == 3


@pytest.mark.parametrize(
    ("rules", "pointer"),
    [
        ({"denied": []}, "/job_rules/denied"),
        ({"denied_env": "X"}, "/job_rules/denied_env"),
        ({"denied_env": [1]}, "/job_rules/denied_env"),
        ({"denied_env": ["a*b"]}, "/job_rules/denied_env"),
        ({"denied_env": [""]}, "/job_rules/denied_env"),
        ({"denied_env": ["x"] * 257}, "/job_rules/denied_env"),
        ({"denied_env": None}, "/job_rules/denied_env"),
        ({"service_accounts": "x"}, "/job_rules/service_accounts"),
        ({"toleration_of_everything": 1}, "/job_rules/toleration_of_everything"),
        ({"host_network": "yes"}, "/job_rules/host_network"),
        ({"capabilities": None}, "/job_rules/capabilities"),
        ({"max_priority": True}, "/job_rules/max_priority"),
        ({"max_priority": 10**7}, "/job_rules/max_priority"),
        ([], "/job_rules"),
    ],
)
def test_wrong_rules_are_refused(org, rules, pointer):
    answer = org.client("ops").patch(CLUSTER, {"job_rules": rules}, format="json")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert Cluster.objects.get().job_rules == {}


def test_jobs_that_exist_go_on_and_are_not_sent_again(org, eve):
    job = {**HELLO, "annotations": {"team/x": "y"}}
    made = eve.post(JOBS, job, format="json").json()
    array = eve.post(JOBS, {**job, "array": {"count": 2}}, format="json").json()
    rules = {"denied_annotations": ["team/*"], "max_priority": 5}
    org.client("ops").patch(CLUSTER, {"job_rules": rules}, format="json")
    for path in (f"jobs/{made['id']}", f"job-arrays/{array['id']}"):
        document = eve.get(f"/api/v1/{path}/document").json()  # what `kant submit --like` sends
        again = eve.post(JOBS, document, format="json")
        assert again.status_code == 422
        assert again.json()["errors"][0]["pointer"].endswith("annotations/team~1x")
        raised = eve.patch(f"/api/v1/{path}", {"priority": 6}, format="json")
        assert (raised.status_code, raised.json()["errors"][0]["pointer"]) == (422, "/priority")
        assert eve.patch(f"/api/v1/{path}", {"priority": 5}, format="json").status_code == 200
    assert eve.get(f"{JOBS}/{made['id']}").json()["state"] == "PENDING"
