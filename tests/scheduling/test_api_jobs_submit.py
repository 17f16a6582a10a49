"""POST /api/v1/jobs: what is accepted, stored and refused, and how."""

import json
import re
from pathlib import Path

import pytest
import yaml
from drf_spectacular.plumbing import get_doc
from rest_framework.renderers import JSONRenderer

from scheduling.api.job_outputs import JobOutput
from scheduling.models import Job, JobEvent, NodeRecord
from tenants.api.base import shown
from tenants.api.outputs import Output
from tenants.models import Tenant
from tests.guide import guide_text

URL = "/api/v1/jobs"
HELLO = {"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 8}

LONG_DOMAIN = ".".join(["d" * 48] * 4 + ["d" * 49])  # 245 characters
CLAIM = {"name": "data", "persistent_volume_claim": "datasets", "mount_path": "/data"}
PROXY = {"name": "proxy", "image": "envoy:1"}
NOWHERE = {"name": "data", "mount_path": "/data"}
IS_SET = {"key": "a", "operator": "Exists"}
NOT_THERE = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
EXPRESSION = "/node_affinity/0/match_expressions/0"
FIELD = "/node_affinity/0/match_fields/0"
HUGE = {"c": "x" * 65536, "d": "ü" * 24577}


def affinity(**expression):
    return {"node_affinity": [{"match_expressions": [expression]}]}


def named(**expression):
    return {"node_affinity": [{"match_fields": [NOT_THERE | expression]}]}


@pytest.fixture
def rings(monkeypatch):
    heard = []
    monkeypatch.setattr("scheduling.services.common.doorbell.ring", heard.append)
    return heard


def test_short_form_becomes_one_pod_set(org, eve, rings, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        answer = eve.post(URL, {**HELLO, "replicas": 2}, format="json")
    assert answer.status_code == 201, answer.json()
    body = answer.json()
    assert answer["Location"].endswith(f"/api/v1/jobs/{body['id']}")
    assert (body["state"], body["reason"], body["gpus"]) == ("PENDING", "PendingEvaluation", 16)
    assert body["user"] == "eve"
    assert body["pod_sets"][0]["count"] == 2
    assert body["pod_sets"][0]["gpu_types"] == ["H100"]
    job = Job.objects.get(id=body["id"])
    assert [e.kind for e in JobEvent.objects.filter(job=job)] == ["SUBMITTED"]
    assert rings == [org.cluster.pk]
    assert eve.get(answer["Location"]).json() == body


def test_a_job_is_accepted_while_the_broker_is_away(
    eve, monkeypatch, django_capture_on_commit_callbacks
):
    def nobody(cluster_id):
        raise ConnectionError(f"cannot ring for {cluster_id}")

    monkeypatch.setattr("scheduling.services.common.doorbell.ring", nobody)
    with django_capture_on_commit_callbacks(execute=True):
        answer = eve.post(URL, HELLO, format="json")
    assert answer.status_code == 201, answer.json()


def test_several_pod_sets_with_all_fields(eve):
    document = {
        "name": "pretrain",
        "tenant": "vision-lab",
        "cluster": "demo",
        "kind": "training",
        "priority": 5,
        "gang": True,
        "preemptible": False,
        "declared_s": 3600,
        "preempts": False,
        "uses_spares": True,
        "run_limit_s": 7200,
        "checkpoint_notice_s": 120,
        "max_restarts": 5,
        "not_before": "2030-01-31T12:00:00Z",
        "held": False,
        "strategy": "binpack",
        "required_level": "superspine",
        "preferred_level": "spine",
        "labels": {"team": "a"},
        "pod_sets": [
            {
                "name": "worker",
                "count": 4,
                "min_count": 2,
                "gpu_types": ["H100", "A100"],
                "gpus": 4,
                "cpu_milli": 8000,
                "memory_mib": 65536,
                "nics": 1,
                "node_selector": {"kubernetes.io/os": "linux"},
                "node_affinity": [
                    {
                        "match_expressions": [{"key": "a", "operator": "In", "values": ["b"]}],
                        "match_fields": [NOT_THERE],
                    }
                ],
                "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "required_level": "spine",
                "preferred_level": "leaf",
                "slice_size": 2,
                "balance_level": "spine",
                "max_per_node": 1,
                "max_per_leaf": 2,
                "extended": {"vendor.com/card": 2},
                "image": "registry.example/train:1",
                "command": ["python", "train.py"],
                "env": {"EPOCHS": "3"},
                "annotations": {"sim.kant.io/run-seconds": "5"},
            },
            {"name": "launcher", "gpus": 0, "cpu_milli": 1000},
            {"name": "share", "gpu_type": "A100", "gpus": 1, "gpu_milli": 250},
        ],
    }
    answer = eve.post(URL, document, format="json")
    assert answer.status_code == 201, answer.json()
    body = answer.json()
    assert body["gpus"] == 16.25
    for name in document.keys() - {"pod_sets"}:
        assert body[name] == document[name]
    assert [s["name"] for s in body["pod_sets"]] == ["worker", "launcher", "share"]
    worker = body["pod_sets"][0]
    for name, value in document["pod_sets"][0].items():
        if name != "tolerations":
            assert worker[name] == value
    assert worker["tolerations"] == [
        {"key": "gpu", "operator": "Exists", "value": "", "effect": "NoSchedule"}
    ]


def test_answers_tell_what_drf_tells(eve, monkeypatch):
    pod_set = {
        "name": "a", "gpus": 1, "gpu_milli": 500, "image": "x", "command": ["a"],
        "env": {"A": "“b”"},
        "tolerations": [{"key": "k"}], "probes": {"liveness": {"http_path": "/", "port": 80}},
        "sidecars": [{"name": "log", "image": "y"}], "required_level": "",
        "security_context": {"run_as_user": 7},
    }  # fmt: skip
    document = {"name": "all", "tenant": "vision", "labels": {"a": "b"}, "pod_sets": [pod_set]}
    told = eve.post(URL, document, format="json")
    assert told.status_code == 201, told.json()
    job = Job.objects.get(pk=told.json()["id"])
    body = shown(JobOutput, job)
    assert get_doc(Output) == ""  # OpenAPI would tell it of all that have no text of their own
    monkeypatch.delattr(Output, "to_representation")
    assert shown(JobOutput, job) == body
    assert json.loads(JSONRenderer().render(body)) == told.json()


@pytest.mark.parametrize(
    ("wishes", "most"),
    [
        ({}, 0),
        ({"max_restarts": 1000}, 1000),
        ({"kind": "inference"}, 0),
        ({"gang": False}, 0),
        ({"kind": "inference", "gang": False}, 1000),
        ({"kind": "inference", "gang": False, "max_restarts": None}, 1000),
        ({"kind": "inference", "gang": False, "max_restarts": 0}, 0),
    ],
)
def test_one_crash_ends_no_service(eve, wishes, most):
    answer = eve.post(URL, {**HELLO, **wishes}, format="json")
    assert answer.status_code == 201, answer.json()
    assert (answer.json()["max_restarts"], answer.json()["restarts"]) == (most, 0)
    refused = eve.post(URL, {**HELLO, "restarts": 1}, format="json")
    assert refused.json()["errors"][0]["pointer"] == "/restarts"


def test_what_pods_use_of_their_namespace_is_stored_and_shown(eve):
    config = {"name": "conf", "config_map": "train.v2", "mount_path": "/etc/train"}
    keys = {"name": "keys", "secret": "keys", "mount_path": "/keys", "read_only": True}
    settings = {
        "service_account": "trainer",
        "image_pull_secrets": ["registry", "mirror"],
        "shm_mib": 65536,
        "env_from_secrets": {"WANDB_API_KEY": {"secret": "wandb", "key": "api.key"}},
    }
    given = {**settings, "volumes": [{**CLAIM, "read_only": None}, config, keys]}
    absent = {"persistent_volume_claim": None, "config_map": None, "secret": None}
    for document in (given, {"pod_sets": [{"gpus": 8, **given}], "gpu_type": None, "gpus": None}):
        answer = eve.post(URL, {**HELLO, **document}, format="json")
        assert answer.status_code == 201, answer.json()
        for body in (answer.json(), eve.get(answer["Location"]).json()):
            [shown] = body["pod_sets"]
            assert {name: shown[name] for name in settings} == settings
            assert shown["volumes"] == [
                {**absent, **CLAIM, "read_only": False},
                {**absent, **config, "read_only": True},
                {**absent, **keys},
            ]
        # A document that was shown can be submitted again.
        again = {**HELLO, **document, "name": "again"}
        again |= {} if "pod_sets" in document else {"volumes": shown["volumes"]}
        assert eve.post(URL, again, format="json").status_code == 201


def test_the_example_of_the_documentation_is_taken(eve):
    text = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
    document = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    document["pod_sets"][0] |= {"gpu_type": "H100", "count": 2, "nics": 0}  # as other tests do
    answer = eve.post(f"{URL}?dry_run=true", document, format="json")
    assert answer.status_code == 200, answer.json()


def test_the_examples_of_jobs_on_parts_of_gpus_are_taken(eve):
    text = guide_text()
    section = text.split("## MIG and shared GPUs\n")[1].split("\n## ")[0]
    notebooks, pretrain = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", section, re.DOTALL))
    notebooks["gpu_type"] = pretrain["pod_sets"][0]["gpu_type"] = "H100"  # as other tests do
    for document in (notebooks, pretrain):
        answer = eve.post(f"{URL}?dry_run=true", document, format="json")
        assert answer.status_code == 200, answer.json()
    alone = {**pretrain, "pod_sets": pretrain["pod_sets"][1:]}
    refused = eve.post(f"{URL}?dry_run=true", alone, format="json")
    assert "The job asks for no GPU" in refused.json()["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"gpu_type": "H1000"}, "/gpu_type"),
        ({"gpus": -1}, "/gpus"),
        ({"gpus": 10**30}, "/gpus"),
        ({"gpus": "8"}, "/gpus"),
        ({"gpus": 1.5}, "/gpus"),
        ({"gpus": True}, "/gpus"),
        ({"gpus": 0}, "/gpus"),
        ({"gpus": 2, "gpu_milli": 500}, "/gpu_milli"),
        ({"replicas": 0}, "/replicas"),
        ({"replicas": 2, "count": 2}, "/count"),
        ({"min_count": 2}, "/min_count"),
        ({"replicas": 2, "min_count": 1, "gang": False}, "/min_count"),
        ({"name": "Not A Slug"}, "/name"),
        ({"name": "x" * 5000}, "/name"),
        ({"name": None}, "/name"),
        ({"gpu": 8}, "/gpu"),
        ({"kind": "dance"}, "/kind"),
        ({"strategy": "dance"}, "/strategy"),
        ({"required_level": "galaxy"}, "/required_level"),
        ({"cluster": "nowhere"}, "/cluster"),
        ({"labels": {"bad key!": "x"}}, "/labels/bad key!"),
        ({"labels": {"a/b": "x" * 64}}, "/labels/a~1b"),
        ({"labels": {"a": {"b": 1}}}, "/labels/a"),
        ({"env": {"1=2": "x"}}, "/env/1=2"),
        ({"pod_sets": []}, "/gpu_type"),
        ({"tolerations": [{"operator": "Equal"}]}, "/tolerations/0/key"),
        ({"node_affinity": {}}, "/node_affinity"),
        ({"node_affinity": [{}]}, "/node_affinity/0"),
        ({"node_affinity": [{"match_expressions": [], "match_fields": None}]}, "/node_affinity/0"),
        (named(key="name"), f"{FIELD}/key"),
        (named(values=["n1", "n2"]), f"{FIELD}/values"),
        (named(values=["node 1"]), f"{FIELD}/values/0"),
        (named(operator="Gt"), f"{FIELD}/values"),
        (affinity(key="a b", operator="Exists"), f"{EXPRESSION}/key"),
        (affinity(key="a", operator="Near"), f"{EXPRESSION}/operator"),
        (affinity(key="a", operator="In"), f"{EXPRESSION}/values"),
        (affinity(key="a", operator="In", values=["b", "b c"]), f"{EXPRESSION}/values/1"),
        (affinity(key="a", operator="Gt", values=["x"]), f"{EXPRESSION}/values"),
        (affinity(key="a", operator="In", values=["b"] * 1001), f"{EXPRESSION}/values"),
        (
            {"node_affinity": [{"match_expressions": [IS_SET] * 257}]},
            "/node_affinity/0/match_expressions",
        ),
        ({"node_affinity": [{"match_expressions": [IS_SET]}] * 17}, "/node_affinity"),
        ({"declared_s": 0}, "/declared_s"),
        ({"run_limit_s": 0}, "/run_limit_s"),
        ({"checkpoint_notice_s": 0}, "/checkpoint_notice_s"),
        ({"checkpoint_notice_s": 3601}, "/checkpoint_notice_s"),
        ({"max_restarts": -1}, "/max_restarts"),
        ({"max_restarts": 1001}, "/max_restarts"),
        ({"max_restarts": 1.5}, "/max_restarts"),
        ({"max_restarts": True}, "/max_restarts"),
        ({"priority": 1_000_001}, "/priority"),
        ({"priority": -(10**30)}, "/priority"),
        ({"not_before": "tomorrow"}, "/not_before"),
        ({"held": 1}, "/held"),
        ({"max_per_leaf": 0}, "/max_per_leaf"),
        ({"balance_level": "galaxy"}, "/balance_level"),
        ({"replicas": 4, "slice_size": 3, "required_level": "leaf"}, "/slice_size"),
        ({"replicas": 4, "min_count": 3, "slice_size": 2, "required_level": "leaf"}, "/slice_size"),
        ({"replicas": 4, "slice_size": 2}, "/slice_size"),
        ({"extended": {"nvidia.com/gpu": 1}}, "/extended/nvidia.com~1gpu"),
        ({"extended": {"amd.com/gpu": 1}}, "/extended/amd.com~1gpu"),
        ({"extended": {"card": 1}}, "/extended/card"),
        ({"extended": {"vendor.com/card": -1}}, "/extended/vendor.com~1card"),
        ({"extended": {"vendor.com/card": 10**30}}, "/extended/vendor.com~1card"),
        ({"command": "rm"}, "/command"),
        ({"gpus": 0, "cpu_milli": 1000}, "/gpu_type"),
        ({"gpus": None, "memory_mib": 1}, "/gpu_type"),
        ({"extended": {"requests.vendor.com/card": 1}}, "/extended/requests.vendor.com~1card"),
        ({"extended": {f"{LONG_DOMAIN}/card": 1}}, f"/extended/{LONG_DOMAIN}~1card"),
        ({"tolerations": [{"key": "a", "value": "two words"}]}, "/tolerations/0/value"),
        ({"annotations": {"a": "x" * 65536, "b": "x" * 65536, **HUGE}}, "/annotations"),
        (
            {"annotations": {"kant.io/checkpointed-at": "9"}},
            "/annotations/kant.io~1checkpointed-at",
        ),
        ({"labels": {"kant.io/job": "x"}}, "/labels/kant.io~1job"),
        ({"service_account": "Trainer"}, "/service_account"),
        ({"image_pull_secrets": ["a", "b c"]}, "/image_pull_secrets/1"),
        ({"image_pull_secrets": ["a", "a"]}, "/image_pull_secrets/1"),
        ({"shm_mib": -1}, "/shm_mib"),
        ({"security_context": {"run_as_user": -1}}, "/security_context/run_as_user"),
        ({"security_context": {"runAsUser": 1}}, "/security_context/runAsUser"),
        (
            {"security_context": {"restricted": True, "run_as_user": 0}},
            "/security_context/run_as_user",
        ),
        (
            {"security_context": {"restricted": True, "privileged": True}},
            "/security_context/privileged",
        ),
        (
            {"security_context": {"add_capabilities": ["CAP_IPC_LOCK"]}},
            "/security_context/add_capabilities/0",
        ),
        ({"security_context": {"seccomp": "default"}}, "/security_context/seccomp"),
        ({"runtime_class": "No Such"}, "/runtime_class"),
        ({"sidecars": [{"name": "main", "image": "a"}]}, "/sidecars/0/name"),
        ({"sidecars": [{"name": "a", "image": "b c"}]}, "/sidecars/0/image"),
        ({"sidecars": [PROXY], "init_containers": [PROXY]}, "/sidecars/0/name"),
        ({"cpu_milli": 100, "sidecars": [{**PROXY, "cpu_milli": 101}]}, "/sidecars/0/cpu_milli"),
        (
            {"memory_mib": 9, "init_containers": [{**PROXY, "memory_mib": 10}]},
            "/init_containers/0/memory_mib",
        ),
        (
            {
                "memory_mib": 9,
                "sidecars": [{**PROXY, "memory_mib": 5}, {**PROXY, "name": "b", "memory_mib": 5}],
            },
            "/sidecars",
        ),
        ({"probes": {"alive": {"port": 1}}}, "/probes/alive"),
        ({"probes": {"liveness": {}}}, "/probes/liveness"),
        ({"probes": {"liveness": {"port": 1, "command": ["true"]}}}, "/probes/liveness"),
        (
            {"probes": {"liveness": {"command": ["true"], "http_path": "/"}}},
            "/probes/liveness/http_path",
        ),
        ({"probes": {"startup": {"port": 70000}}}, "/probes/startup/port"),
        ({"volumes": [NOWHERE]}, "/volumes/0"),
        ({"volumes": [{**CLAIM, "secret": "keys"}]}, "/volumes/0"),
        ({"volumes": [{**CLAIM, "host_path": "/"}]}, "/volumes/0/host_path"),
        ({"volumes": [{**CLAIM, "name": "a.b"}]}, "/volumes/0/name"),
        ({"volumes": [{**CLAIM, "name": "kant"}]}, "/volumes/0/name"),
        ({"volumes": [CLAIM, {**CLAIM, "mount_path": "/b"}]}, "/volumes/1/name"),
        ({"volumes": [CLAIM, {**CLAIM, "name": "b"}]}, "/volumes/1/mount_path"),
        ({"volumes": [{**CLAIM, "mount_path": "data"}]}, "/volumes/0/mount_path"),
        ({"volumes": [{**CLAIM, "mount_path": "/"}]}, "/volumes/0/mount_path"),
        ({"volumes": [{**CLAIM, "mount_path": "/a/../b"}]}, "/volumes/0/mount_path"),
        ({"volumes": [{**CLAIM, "mount_path": "/etc/kant/"}]}, "/volumes/0/mount_path"),
        (
            {"shm_mib": 64, "volumes": [{**CLAIM, "mount_path": "/dev/shm"}]},
            "/volumes/0/mount_path",
        ),
        (
            {"volumes": [{**CLAIM, "persistent_volume_claim": "A"}]},
            "/volumes/0/persistent_volume_claim",
        ),
        (
            {"volumes": [{**NOWHERE, "secret": "keys", "read_only": False}]},
            "/volumes/0/read_only",
        ),
        ({"device_claims": {"a": {}}}, "/device_claims/a"),
        ({"device_claims": {"a": {"template": "t", "device_class": "c"}}}, "/device_claims/a"),
        ({"device_claims": {"A": {"template": "t"}}}, "/device_claims/A"),
        ({"device_claims": {"a": {"template": "T"}}}, "/device_claims/a/template"),
        ({"device_claims": {"a": {"template": "t", "count": 2}}}, "/device_claims/a/count"),
        ({"device_claims": {"a": {"device_class": "c", "count": 33}}}, "/device_claims/a/count"),
        (
            {"device_claims": {"a": {"device_class": "c", "selectors": ["1 +"]}}},
            "/device_claims/a/selectors/0",
        ),
        ({"env_from_secrets": {"1=2": {"secret": "a", "key": "b"}}}, "/env_from_secrets/1=2"),
        ({"env_from_secrets": {"A": {"secret": "a"}}}, "/env_from_secrets/A/key"),
        ({"env_from_secrets": {"A": {"secret": "", "key": "b"}}}, "/env_from_secrets/A/secret"),
        ({"env_from_secrets": {"A": {"secret": "a", "key": "../b"}}}, "/env_from_secrets/A/key"),
        (
            {"env": {"A": "1"}, "env_from_secrets": {"A": {"secret": "a", "key": "b"}}},
            "/env_from_secrets/A",
        ),
    ],
)
def test_a_wrong_field_is_named(eve, change, pointer):
    answer = eve.post(URL, {**HELLO, **change}, format="json")
    problem = answer.json()
    assert answer.status_code == 422, problem
    assert answer["Content-Type"] == "application/problem+json"
    assert pointer in [e["pointer"] for e in problem["errors"]], problem
    assert problem["request_id"] == answer["X-Request-ID"]
    assert not Job.objects.exists()


def test_levels_of_the_job_hold_for_all_pod_sets(eve):
    sets = [{"name": "a", "gpus": 1, "required_level": "leaf"}, {"name": "b", "gpus": 1}]
    document = {"name": "x", "tenant": "vision", "pod_sets": sets, "required_level": "spine"}
    body = eve.post(URL, document, format="json").json()
    assert body["required_level"] == "spine"
    assert [s["required_level"] for s in body["pod_sets"]] == ["leaf", ""]
    short = eve.post(URL, {**HELLO, "required_level": "leaf"}, format="json").json()
    assert (short["required_level"], short["pod_sets"][0]["required_level"]) == ("", "leaf")
    answer = eve.post(URL, {**document, "required_level": "galaxy"}, format="json")
    assert [e["pointer"] for e in answer.json()["errors"]] == ["/required_level"]


def test_faults_in_a_pod_set_carry_its_place(eve):
    document = {
        "name": "x",
        "tenant": "vision",
        "pod_sets": [
            {"name": "a", "gpus": 1},
            {"name": "a", "gpus": 1, "gpu_type": "nope", "tolerations": [{"effect": "x"}]},
        ],
    }
    answer = eve.post(URL, document, format="json")
    assert [e["pointer"] for e in answer.json()["errors"]] == ["/pod_sets/1/tolerations/0/effect"]
    document["pod_sets"][1]["tolerations"] = []
    answer = eve.post(URL, document, format="json")
    assert [e["pointer"] for e in answer.json()["errors"]] == ["/pod_sets/1/name"]
    document["pod_sets"][1]["name"] = "b"
    answer = eve.post(URL, document, format="json")
    assert [e["pointer"] for e in answer.json()["errors"]] == ["/pod_sets/1/gpu_type"]
    assert "Known GPU types: A100, H100, T4." in answer.json()["detail"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"gpus": 9}, "ExceedsCapacity"),
        ({"replicas": 5}, "ExceedsCapacity"),
        ({"gpu_type": "T4", "gpus": 1}, "NoMatchingGpuType"),
        ({"gpu_type": None, "gpu_types": ["A100"], "gpus": 8}, "ExceedsCapacity"),
        ({"gpu_type": None, "replicas": 6}, "ExceedsCapacity"),
    ],
)
def test_what_the_cluster_can_never_hold_is_refused_at_once(eve, change, code):
    answer = eve.post(URL, {**HELLO, **change}, format="json")
    assert answer.status_code == 422
    assert answer.json()["code"] == code
    assert "demo" in answer.json()["detail"]


@pytest.mark.parametrize("dry_run", ["", "?dry_run=true"])
def test_pod_sets_that_never_fit_together_are_refused_at_once(eve, dry_run):
    """Each pod set alone would fit: the cluster has 4 nodes of 8 H100."""

    def submit(first: int, second: int):
        counts = {"a": first, "b": second}
        sets = [
            {"name": name, "gpu_type": "H100", "gpus": 5, "count": count}
            for name, count in counts.items()
        ]
        document = {"name": "x", "tenant": "vision", "pod_sets": sets}
        return eve.post(URL + dry_run, document, format="json")

    answer = submit(3, 2)
    assert answer.status_code == 422, answer.json()
    assert answer.json()["code"] == "ExceedsCapacity"
    assert "Empty nodes hold at most 4 of the 5 pods" in answer.json()["detail"]
    NodeRecord.objects.filter(name="h003").update(schedulable=False)  # not for good
    assert submit(2, 2).status_code in (200, 201)


def test_what_may_fit_in_time_is_accepted(eve):
    for change in ({"replicas": 5, "gang": False}, {"replicas": 6, "min_count": 4}):
        assert eve.post(URL, {**HELLO, **change}, format="json").status_code == 201
    NodeRecord.objects.all().delete()
    assert eve.post(URL, {**HELLO, "replicas": 500}, format="json").status_code == 201


def test_annotations_up_to_what_kubernetes_takes(eve):
    notes = dict.fromkeys("abcd", "x" * (61440 - 1))
    answer = eve.post(URL, {**HELLO, "annotations": notes}, format="json")
    assert answer.status_code == 201, answer.json()
    answer = eve.post(URL, {**HELLO, "annotations": {**notes, "e": ""}}, format="json")
    assert "245,761 bytes" in answer.json()["detail"]


def test_tenants(org, eve):
    foreign = eve.post(URL, {**HELLO, "tenant": "law"}, format="json")
    missing = eve.post(URL, {**HELLO, "tenant": "nobody"}, format="json")
    assert (foreign.status_code, missing.status_code) == (404, 404)
    assert foreign.json()["detail"].replace("law", "nobody") == missing.json()["detail"]
    assert org.client("vic").post(URL, HELLO, format="json").status_code == 403
    Tenant.objects.filter(name="vision").update(is_active=False)
    assert eve.post(URL, HELLO, format="json").status_code == 409


def test_a_dry_run_says_what_would_be_and_changes_nothing(eve, org):
    answer = eve.post(f"{URL}?dry_run=true", HELLO, format="json")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["dry_run"], body["would"]) == (True, "create")
    assert body["result"]["gpus"] == 8
    assert "id" not in body["result"]
    assert not Job.objects.exists()
    assert not JobEvent.objects.exists()
    refused = org.client("vic").post(f"{URL}?dry_run=true", HELLO, format="json")
    assert refused.status_code == 403
    assert eve.post(f"{URL}?dry_run=maybe", HELLO, format="json").status_code == 400


def test_submission_costs_few_queries(eve, django_assert_max_num_queries):
    with django_assert_max_num_queries(14):
        eve.post(URL, HELLO, format="json")
