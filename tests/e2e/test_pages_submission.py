"""The pages that submit a job, without a browser: the form and its error messages."""

import json
import re
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest
from django.forms import model_to_dict
from django.urls import reverse

from scheduling.api.job_serializers import JobInput
from scheduling.job_fields.definition import MAX_POD_SETS
from scheduling.job_fields.values import MAX_VOLUMES
from scheduling.models import Cluster, Job, JobEvent
from scheduling.pages.jobs.submit_form import OF_SEVERAL
from scheduling.templatetags.jobs import settings_of
from tests.cases import of_each_kind, some

FORM = {
    "name": "bert",
    "tenant": "vision",
    "kind": "training",
    "priority": "0",
    "declared_min": "",
    "gang": "on",
    "sets-TOTAL_FORMS": "1",
    "sets-INITIAL_FORMS": "0",
    "sets-0-name": "worker",
    "sets-0-count": "2",
    "sets-0-gpus": "8",
    "sets-0-gpu_type": "H200",
    "sets-0-required_level": "r:leaf",
    "sets-0-image": "busybox:stable",
    "sets-0-volumes-TOTAL_FORMS": "1",
    "sets-0-volumes-INITIAL_FORMS": "0",
}

# Every field of the form, including the folded parts.
FULL = {
    **FORM,
    "queue": "default",
    "declared_min": "60",
    "max_restarts": "5",
    "limit_min": "120",
    "checkpoint_notice_s": "90",
    "not_before": "2030-01-31T20:00",
    "sets-0-min_count": "1",
    "sets-0-cpus": "12",
    "sets-0-memory_gib": "64",
    "sets-0-command": "python train.py",
    "sets-0-env": "NCCL_DEBUG=WARN\r\n\r\nOPTS=a=b c\r\nEMPTY=",
    "sets-0-env_from_secrets": "WANDB_API_KEY=wandb/api-key",
    "sets-0-device_claims": "nic=nic.example.com:2 where true\r\nx=template/two",
    "sets-0-shm_gib": "1.5",
    "sets-0-nics": "8",
    "sets-0-service_account": "trainer",
    "sets-0-image_pull_secrets": "one, two three",
    "sets-0-node_selector": "kant.example/storage=fast",
    "sets-0-node_affinity": "zone in a, b\r\ncores Gt 64\r\n\r\nor\r\nnew Exists\r\n"
    "metadata.name NotIn node-17",
    "sets-0-volumes-TOTAL_FORMS": "4",
    "sets-0-volumes-0-source": "persistent_volume_claim",
    "sets-0-volumes-0-resource": "runs",
    "sets-0-volumes-0-mount_path": "/runs",
    "sets-0-volumes-1-source": "persistent_volume_claim",
    "sets-0-volumes-1-resource": "",
    "sets-0-volumes-1-mount_path": "",
    "sets-0-volumes-2-source": "persistent_volume_claim",
    "sets-0-volumes-2-resource": "datasets",
    "sets-0-volumes-2-mount_path": "/data",
    "sets-0-volumes-2-read_only": "on",
    "sets-0-volumes-3-source": "config_map",
    "sets-0-volumes-3-resource": "settings",
    "sets-0-volumes-3-mount_path": "/etc/settings",
}
# Fields of a job document that only REST and the command line accept, as docs/jobs.md says.
LEFT_OUT = {
    *("preempts", "uses_spares", "held", "after", "after_ok", "array", "strategy", "labels"),
    *("gpu_types", "gpu_memory_mib", "tolerations", "slice_size"),
    *("balance_level", "max_per_node", "max_per_leaf", "extended", "annotations"),
    *("security_context", "runtime_class", "host_network", "priority_class"),
    *("init_containers", "sidecars", "probes"),
}


def test_submit_stores_the_job_as_typed(as_user):
    answer = as_user("erin").post("/jobs/new/", FORM)
    job = Job.objects.get(name="bert")
    assert answer["Location"] == reverse("job", args=[job.pk])
    assert (job.gpu_milli, job.gang, job.preemptible) == (16_000, True, False)
    [pod_set] = job.pod_sets.all()
    assert (pod_set.count, pod_set.gpus, pod_set.gpu_models) == (2, 8, ["H200"])
    assert pod_set.required_level == "leaf"
    assert JobEvent.objects.get(job=job).actor == "erin"


def documents(client, form: dict[str, str]) -> dict[str, Any]:
    """Return the job document that the preview shows for a form, as JSON."""
    page = unescape(client.post("/jobs/new/preview/", form).content.decode())
    return json.loads(page.partition("-d '")[2].partition("'</pre>")[0])


def asked(job: Job) -> list[dict[str, Any]]:
    """Return what a job and its pod sets request, without what tells one job from another."""
    own = {"id", "job", "name", "submitted_at", "reason_at"}
    return [model_to_dict(row, exclude=own) for row in (job, *job.pod_sets.all())]


def test_the_form_asks_for_what_its_document_asks_for_over_rest(as_user):
    client = as_user("erin")
    document = documents(client, FULL)
    client.post("/jobs/new/", FULL)
    body = {**document, "name": "over-rest"}
    answer = client.post("/api/v1/jobs", body, content_type="application/json")
    assert answer.status_code == 201, answer.content
    job, other = Job.objects.get(name="bert"), Job.objects.get(name="over-rest")
    assert asked(job) == asked(other)
    assert (job.max_restarts, job.run_limit_s, job.checkpoint_notice_s) == (5, 7200, 90)
    assert job.start_not_before == datetime(2030, 1, 31, 20, tzinfo=UTC)
    [pods] = job.pod_sets.all()
    assert pods.env == {"NCCL_DEBUG": "WARN", "OPTS": "a=b c", "EMPTY": ""}
    assert pods.env_from_secrets == {"WANDB_API_KEY": {"secret": "wandb", "key": "api-key"}}
    assert pods.device_claims == {
        "nic": {
            "device_class": "nic.example.com",
            "count": 2,
            "selectors": ["true"],
        },
        "x": {"template": "two"},
    }
    assert (pods.shm_mib, pods.nics, pods.service_account) == (1536, 8, "trainer")
    assert pods.image_pull_secrets == ["one", "two", "three"]
    assert pods.node_selector == {"kant.example/storage": "fast"}
    assert dict(settings_of(pods))["Only on nodes with"] == [
        "kant.example/storage = fast",
        "zone in a, b and cores above 64 or new of any value and name not in node-17",
    ]
    claim, data, settings = pods.volumes
    assert (claim["persistent_volume_claim"], claim["read_only"]) == ("runs", False)
    assert (data["mount_path"], data["read_only"]) == ("/data", True)
    assert (settings["config_map"], settings["read_only"]) == ("settings", True)


def test_what_the_form_cannot_say_is_known(as_user):
    document = documents(as_user("erin"), FULL)
    said = document.keys() | document["pod_sets"][0].keys()
    # These appear after other choices on the form, or with several clusters.
    said |= {"cluster", "gpu_milli", "preferred_level", "replicas", *OF_SEVERAL}
    assert said.isdisjoint(LEFT_OUT)
    assert said | LEFT_OUT == set(JobInput().fields)


def test_of_several_clusters_the_form_asks_for_any_first_and_the_page_says_which(as_user):
    client = as_user("erin")
    assert "cluster_selector" not in client.get("/jobs/new/").content.decode()
    Cluster.objects.create(name="zz-far", labels={"data": "local"})
    form = unescape(client.get("/jobs/new/").content.decode())
    first = re.search(r'name="cluster".*?<option value="([^"]*)"[^>]*>([^<]*)<', form, re.DOTALL)
    assert first
    assert first.groups() == ("any", "Any: where it starts first")
    said = {**FORM, "cluster": "any", "cluster_selector": "data=local"}
    client.post("/jobs/new/", said)
    job = Job.objects.get(name="bert")
    assert (job.any_cluster, job.cluster.name) == (True, "zz-far")
    page = unescape(client.get(reverse("job", args=[job.pk])).content.decode())
    assert "Sent to zz-far: not heard from yet." in page
    again = client.get(f"/jobs/new/?like={job.pk}").content.decode()
    assert '<option value="any" selected>' in again
    client.post("/jobs/new/", {**said, "name": "nowhere", "cluster_selector": "data=x"})
    assert not Job.objects.filter(name="nowhere").exists()


def test_half_a_gpu_is_a_share_of_one(as_user):
    as_user("erin").post("/jobs/new/", {**FORM, "sets-0-gpus": "0.5"})
    [pod_set] = Job.objects.get(name="bert").pod_sets.all()
    assert (pod_set.gpus, pod_set.gpu_milli) == (1, 500)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    some(
        [
            ({"name": ""}, "id_name", "Fill this in."),
            ({"name": "Big Job"}, "id_name", "Use lower-case letters"),
            ({"priority": "high"}, "id_priority", "Must be a whole number."),
            ({"priority": "1" + 30 * "0"}, "id_priority", "Must be from -1000000 to"),
            ({"sets-0-gpus": "9"}, "id_sets-0-gpus", "has 8. Ask for at most 8"),
            ({"sets-0-gpus": "1.5"}, "id_sets-0-gpus", "for a share of one GPU"),
            ({"sets-0-gpus": "0"}, "id_sets-0-gpus", "The pod asks for nothing"),
            ({"sets-0-gpus": "NaN"}, "id_sets-0-gpus", "Must be a number."),
            ({"sets-0-count": "-1"}, "id_sets-0-count", "Must be from 1 to 100000."),
            ({"sets-0-count": "500"}, "id_sets-0-gpus", "Ask for fewer, or set gang to false"),
            ({"sets-0-gpu_type": "B200"}, "id_sets-0-gpu_type", "Choose one of H100, H200, L40S."),
            ({"sets-0-min_count": "3"}, "id_sets-0-min_count", "Must be at most count (2)."),
            ({"sets-0-min_count": "0"}, "id_sets-0-min_count", "Must be from 1 to 100000."),
            (
                {"sets-0-min_count": "1", "gang": ""},
                "id_sets-0-min_count",
                "Pods that start one by one have no minimum number.",
            ),
            ({"sets-0-image": "two words"}, "id_sets-0-image", "Not a valid image name"),
            ({"tenant": "search"}, "id_tenant", "Choose one of vision."),
            ({"max_restarts": "1001"}, "id_max_restarts", "Must be from 0 to 1000."),
            ({"limit_min": "0"}, "id_limit_min", "Must be from 0.02 to"),
            ({"checkpoint_notice_s": "3601"}, "id_checkpoint_notice_s", "Must be from 1 to 3600."),
            ({"not_before": "soon"}, "id_not_before", "Must be a time"),
            ({"sets-0-env": "A=1\n\nB"}, "id_sets-0-env", "Line 3: write NAME=VALUE."),
            ({"sets-0-env": "=1"}, "id_sets-0-env", "Line 1: write NAME=VALUE."),
            ({"sets-0-env": "A=1\nA=2"}, "id_sets-0-env", "Line 2: A is given twice."),
            ({"sets-0-env": "A B=1"}, "id_sets-0-env", "A B: Not the name of a variable."),
            (
                {"sets-0-env": "\n".join(f"A{i}=" for i in range(257))},
                "id_sets-0-env",
                "Must have at most 256 lines.",
            ),
            (
                {"sets-0-env_from_secrets": "KEY=wandb"},
                "id_sets-0-env_from_secrets",
                "Line 1: write NAME=SECRET/KEY.",
            ),
            (
                {"sets-0-env_from_secrets": "KEY=Wandb/key"},
                "id_sets-0-env_from_secrets",
                "KEY: Not a name of Kubernetes",
            ),
            (
                {"sets-0-env": "KEY=1", "sets-0-env_from_secrets": "KEY=wandb/key"},
                "id_sets-0-env_from_secrets",
                "KEY: `env` also sets KEY.",
            ),
            (
                {"sets-0-device_claims": "gpu"},
                "id_sets-0-device_claims",
                "Line 1: write NAME=CLASS, NAME=CLASS:COUNT",
            ),
            (
                {"sets-0-device_claims": "gpu=a.example.com where device.("},
                "id_sets-0-device_claims",
                "gpu: Not a valid CEL expression",
            ),
            ({"sets-0-shm_gib": "-1"}, "id_sets-0-shm_gib", "Must be from 0 to 976562."),
            ({"sets-0-memory_gib": "976563"}, "id_sets-0-memory_gib", "Must be from 0 to 976562."),
            ({"sets-0-nics": "1025"}, "id_sets-0-nics", "Must be from 0 to 1024."),
            (
                {"sets-0-service_account": "A"},
                "id_sets-0-service_account",
                "Not a name of Kubernetes",
            ),
            (
                {"sets-0-image_pull_secrets": "good Bad"},
                "id_sets-0-image_pull_secrets",
                "Bad: Not a name of Kubernetes",
            ),
            (
                {"sets-0-image_pull_secrets": "a " * 17},
                "id_sets-0-image_pull_secrets",
                "Must have at most 16 names.",
            ),
            (
                {"sets-0-node_selector": "a b=c"},
                "id_sets-0-node_selector",
                "a b: Not the name of a Kubernetes label.",
            ),
            (
                {"sets-0-node_affinity": "disk In ssd\r\n\r\nzone = a"},
                "id_sets-0-node_affinity",
                "Line 3: write LABEL, one of In, NotIn, Exists, DoesNotExist, Gt, Lt, and VALUES.",
            ),
            (
                {"sets-0-node_affinity": "zone"},
                "id_sets-0-node_affinity",
                "Line 1: write LABEL, one of",
            ),
            (
                {"sets-0-node_affinity": "or\nzone Exists"},
                "id_sets-0-node_affinity",
                "Line 1: give a condition before or.",
            ),
            (
                {"sets-0-node_affinity": "zone Exists\nor\n\n"},
                "id_sets-0-node_affinity",
                "Give a condition after the last or.",
            ),
            (
                {"sets-0-node_affinity": "zone Exists\nor\ndisk Exists\ncores Gt many"},
                "id_sets-0-node_affinity",
                "cores Gt many: Gt takes one whole number.",
            ),
            (
                {"sets-0-node_affinity": "metadata.name In UP"},
                "id_sets-0-node_affinity",
                "metadata.name In UP: Not the name of a node.",
            ),
            (
                {"sets-0-node_affinity": "zone Exists\nor\n" + "disk Exists\n" * 257},
                "id_sets-0-node_affinity",
                "Choice 2: Must have at most 256 expressions.",
            ),
            (
                {"sets-0-node_affinity": "\nor\n".join(["zone Exists"] * 17)},
                "id_sets-0-node_affinity",
                "Must have at most 16 terms.",
            ),
            (
                {"sets-0-volumes-0-source": "secret", "sets-0-volumes-0-resource": "data"},
                "id_sets-0-volumes-0-mount_path",
                "Fill this in.",
            ),
        ]
    ),
)
def test_a_wrong_field_says_so_beside_itself(as_user, change, field, message):
    answer = as_user("erin").post("/jobs/new/", {**FORM, **change})
    assert answer.status_code == 422
    text = answer.content.decode()
    error = re.search(rf'id="{field}-error">.*?</svg>([^<]*)', text, re.DOTALL)
    assert error, "no message beside the field"
    assert message in error[1]
    assert f'aria-describedby="{field}-error"' in text
    assert re.findall(r"<[^>]* autofocus[^>]*>", text)[0].count(f'id="{field}"') == 1
    assert not Job.objects.filter(name="bert").exists()


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"resource": "Runs"}, "resource", "Not a name of Kubernetes"),
        ({"resource": "Runs", "source": "secret"}, "resource", "Not a name of Kubernetes"),
        ({"mount_path": "data"}, "mount_path", "Must be an absolute path below /"),
        ({"mount_path": "/runs"}, "mount_path", "Volume &#x27;volume-1&#x27; is mounted there."),
        ({"mount_path": "/dev/shm"}, "mount_path", "Kant&#x27;s volume &#x27;shm&#x27; is"),
        ({"mount_path": "/" + 1024 * "x"}, "mount_path", "Must have at most 1024 characters."),
    ],
)
def test_a_wrong_volume_says_so_in_its_row(as_user, change, field, message):
    """The empty row before it is not part of the document."""
    row = {f"sets-0-volumes-2-{name}": value for name, value in change.items()}
    answer = as_user("erin").post("/jobs/new/", {**FULL, **row})
    assert answer.status_code == 422
    text = answer.content.decode()
    assert re.findall(r'id="(\S+)-error"', text) == [f"id_sets-0-volumes-2-{field}"]
    assert message in text
    assert not Job.objects.filter(name="bert").exists()


def test_a_volume_may_have_any_place_below_shm_that_is_of_the_node(as_user):
    own = {"sets-0-shm_gib": "", "sets-0-volumes-2-mount_path": "/dev/shm"}
    as_user("erin").post("/jobs/new/", {**FULL, **own})
    assert Job.objects.filter(name="bert").exists()


def test_what_was_typed_stays_after_an_error(as_user):
    text = as_user("erin").post("/jobs/new/", {**FULL, "priority": "high"}).content.decode()
    for value in (
        "5",
        "120",
        "90",
        "2030-01-31T20:00",
        "1.5",
        "trainer",
        "one, two three",
        "/data",
    ):
        assert f'value="{value}"' in text
    assert "OPTS=a=b c" in text
    assert '<option value="config_map" selected>' in text
    assert re.search(r'id="id_sets-0-volumes-2-read_only"[^>]* checked', text)
    assert not re.search(r'id="id_sets-0-volumes-0-read_only"[^>]* checked', text)


@pytest.mark.parametrize(
    ("change", "unfolded"),
    some(
        [
            ({}, [False, False]),
            ({"max_restarts": "0"}, [True, False]),
            ({"not_before": "2030-01-31T20:00"}, [True, False]),
            ({"sets-0-env": "A=1"}, [False, True]),
            ({"sets-0-volumes-0-mount_path": "/data"}, [False, True]),
            ({"add_volume": "0"}, [False, True]),
            ({"sets-0-volumes-TOTAL_FORMS": "x"}, [False, True]),
        ]
    ),
)
def test_settings_are_folded_while_nobody_uses_them(as_user, change, unfolded):
    client = as_user("erin")
    text = client.post("/jobs/new/", {**FORM, "name": "", **change}).content.decode()
    assert [
        bool(found) for found in re.findall(r'<details class="more"( open)?>', text)
    ] == unfolded
    text = client.get("/jobs/new/").content.decode()
    assert text.count('<details class="more">') == 2


def test_rows_for_volumes_are_added_without_losing_what_was_typed(as_user):
    client = as_user("erin")
    text = client.post("/jobs/new/", {**FULL, "add_volume": "0"}).content.decode()
    # The empty row in between is gone, and there is one for another volume.
    for i, name in enumerate(("runs", "datasets", "settings")):
        assert re.search(rf'value="{name}"[^>]* id="id_sets-0-volumes-{i}-resource"', text)
    assert 'name="sets-0-volumes-TOTAL_FORMS" value="4"' in text
    assert re.findall(r' autofocus[^>]* id="(\S+)"', text) == ["id_sets-0-volumes-3-source"]
    assert "OPTS=a=b c" in text
    assert not Job.objects.filter(name="bert").exists()


def test_the_rule_of_names_is_told_with_the_other_faults(as_user):
    wrong = {"name": "Big Job", "priority": "high", "sets-0-name": "A B"}
    text = as_user("erin").post("/jobs/new/", {**FORM, **wrong}).content.decode()
    for field in ("id_name", "id_priority", "id_sets-0-name"):
        assert f'id="{field}-error"' in text
    assert text.count(" autofocus") == 1


def test_pod_sets_are_added_and_removed_without_losing_what_was_typed(as_user):
    client = as_user("erin")
    added = client.post("/jobs/new/", {**FORM, "name": "Not Yet Right", "add": "1"})
    text = added.content.decode()
    assert 'value="Not Yet Right"' in text
    assert 'name="sets-1-count"' in text
    assert 'id="id_preemptible" checked' not in text
    assert re.findall(r' autofocus[^>]* id="(\S+)"', text) == ["id_sets-1-count"]
    removed = client.post("/jobs/new/", {**FORM, "sets-TOTAL_FORMS": "2", "remove": "1"})
    assert 'name="sets-1-count"' not in removed.content.decode()
    assert not Job.objects.filter(name="bert").exists()


@pytest.mark.parametrize(
    ("formset", "total"),
    of_each_kind(
        [
            *(("sets-0-volumes", total) for total in ("", "x", "²", "9" * 20, "9" * 5000)),
            *(("sets", total) for total in ("", "x", "-1", "²", "9" * 20, "9" * 5000, "0")),
        ],
        lambda it: it[1][:1] if it[1].isascii() else "no digit",
    ),
)
def test_a_damaged_form_is_refused_in_words(as_user, formset, total):
    client = as_user("erin")
    for more in ({}, {"add": "1"}, {"remove": total}, {"add_volume": total}):
        answer = client.post("/jobs/new/", {**FORM, f"{formset}-TOTAL_FORMS": total, **more})
        assert answer.status_code in (200, 422)
    assert not Job.objects.filter(name="bert").exists()


def test_a_pod_set_that_equals_the_defaults_is_one_too(as_user):
    plain = {"name": "worker", "count": "1", "gpus": "1", "image": "busybox:stable"}
    second = {f"sets-1-{name}": value for name, value in plain.items()}
    second["sets-1-volumes-TOTAL_FORMS"] = second["sets-1-volumes-INITIAL_FORMS"] = "0"
    answer = as_user("erin").post("/jobs/new/", {**FORM, **second, "sets-TOTAL_FORMS": "2"})
    assert "Another pod set of this job has the name" in answer.content.decode()


def test_a_name_is_all_that_the_form_needs(as_user):
    """The form opens with one pod set: one pod with one GPU of any type."""
    page = as_user("erin").get("/jobs/new/")
    [pod_set] = page.context["sets"]
    defaults = {field.html_name: field.value() or "" for field in pod_set}
    only = {**FORM, "sets-0-required_level": "", "sets-0-gpu_type": "", **defaults}
    assert as_user("erin").post("/jobs/new/", only).status_code == 302
    [pods] = Job.objects.get(name="bert").pod_sets.all()
    assert (pods.name, pods.count, pods.gpus) == ("worker", 1, 1)


def test_the_largest_form_is_read(as_user):
    """With as many pod sets and volumes as allowed."""
    rows = {
        f"sets-{s}-volumes-{v}-{name}": value
        for s in range(MAX_POD_SETS)
        for v in range(MAX_VOLUMES)
        for name, value in {"source": "secret", "resource": "a", "mount_path": f"/{v}"}.items()
    }
    sets = {
        name.replace("sets-0-", f"sets-{s}-"): value
        for s in range(MAX_POD_SETS)
        for name, value in FULL.items()
        if name.startswith("sets-0-")
    }
    sets |= {f"sets-{s}-name": f"set-{s}" for s in range(MAX_POD_SETS)}
    sets |= {f"sets-{s}-volumes-TOTAL_FORMS": str(MAX_VOLUMES) for s in range(MAX_POD_SETS)}
    form = {**FULL, **sets, **rows, "sets-TOTAL_FORMS": str(MAX_POD_SETS)}
    as_user("erin").post("/jobs/new/", {**form, "sets-0-gpus": "1"})
    assert Job.objects.get(name="bert").pod_sets.count() == MAX_POD_SETS


def test_a_viewer_is_told_why_there_is_no_form(as_user):
    assert "You may not submit" in as_user("vik").get("/jobs/new/").content.decode()
    assert as_user("vik").post("/jobs/new/", FORM).status_code == 200
    assert not Job.objects.filter(name="bert").exists()


def test_a_form_that_is_too_large_is_refused_on_a_page(as_user):
    answer = as_user("erin").post(reverse("job-new"), {"name": "a" * 2_700_000})
    assert answer.status_code == 400
    assert "A form may have at most 2.5 MB" in answer.content.decode()
    assert "Nothing was changed." in answer.content.decode()
