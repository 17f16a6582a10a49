"""The pages that submit a job, without a browser: form, faults, preview."""

import re

import pytest
from django.urls import reverse
from django.utils import timezone

from scheduling.models import Cluster, Job, JobEvent, NodeRecord
from tenants.models import Quota

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


def test_half_a_gpu_is_a_share_of_one(as_user):
    as_user("erin").post("/jobs/new/", {**FORM, "sets-0-gpus": "0.5"})
    [pod_set] = Job.objects.get(name="bert").pod_sets.all()
    assert (pod_set.gpus, pod_set.gpu_milli) == (1, 500)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"name": ""}, "id_name", "Fill this in."),
        ({"name": "Big Job"}, "id_name", "Use lower-case letters"),
        ({"priority": "high"}, "id_priority", "Must be a whole number."),
        ({"priority": "1" + 30 * "0"}, "id_priority", "Must be from -1000000 to"),
        ({"sets-0-gpus": "9"}, "id_sets-0-gpus", "has 8. Ask for at most 8"),
        ({"sets-0-gpus": "1.5"}, "id_sets-0-gpus", "A share is of one GPU"),
        ({"sets-0-gpus": "0"}, "id_sets-0-gpus", "The job asks for no GPU"),
        ({"sets-0-gpus": "NaN"}, "id_sets-0-gpus", "Must be a number."),
        ({"sets-0-count": "-1"}, "id_sets-0-count", "Must be at least 1."),
        ({"sets-0-count": "500"}, "id_sets-0-gpus", "Ask for fewer, or set gang to false"),
        ({"sets-0-gpu_type": "B200"}, "id_sets-0-gpu_type", "Choose one of H100, H200, L40S."),
        ({"sets-0-min_count": "3"}, "id_sets-0-min_count", "Must be at most count (2)."),
        ({"sets-0-min_count": "0"}, "id_sets-0-min_count", "Must be at least 1."),
        (
            {"sets-0-min_count": "1", "gang": ""},
            "id_sets-0-min_count",
            "Pods that start one by one have no least number.",
        ),
        ({"sets-0-image": "two words"}, "id_sets-0-image", "Not the name of an image"),
        ({"tenant": "search"}, "id_tenant", "Choose one of vision."),
    ],
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


@pytest.mark.parametrize("total", ["", "x", "-1", "99999999999999999999", "0"])
def test_a_damaged_form_is_refused_in_words(as_user, total):
    client = as_user("erin")
    for more in ({}, {"add": "1"}):
        answer = client.post("/jobs/new/", {**FORM, "sets-TOTAL_FORMS": total, **more})
        assert answer.status_code in (200, 422)
    assert not Job.objects.filter(name="bert").exists()


@pytest.fixture
def unheard(played):
    """No scheduler has been at work yet: the preview tells what quotas alone say."""
    Cluster.objects.update(last_cycle_at=None)


@pytest.mark.usefixtures("unheard")
def test_preview_rehearses_and_writes_nothing(as_user):
    client = as_user("erin")
    good = client.post("/jobs/new/preview/", FORM).content.decode()
    assert "Would be accepted" in good
    assert "-d &#x27;{" in good
    bad = client.post("/jobs/new/preview/", {**FORM, "sets-0-gpus": "9"}).content.decode()
    assert "Would be refused" in bad
    assert "GPUs per pod: A pod asks for 9 GPUs" in bad
    assert not Job.objects.filter(name="bert").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # vision may borrow all that research and products leave idle.
        ({"sets-0-gpu_type": "H100", "sets-0-count": "28"}, ""),
        (
            {"sets-0-gpu_type": "L40S", "sets-0-gpus": "4", "sets-0-count": "23"},
            "It asks for 92 L40S GPUs; tenant vision can never hold more than 88 L40S GPUs",
        ),
        (
            {"sets-0-gpu_type": "L40S", "sets-0-gpus": "4", "sets-0-count": "23", "gang": ""},
            "",
        ),
        ({"sets-0-gpu_type": "", "sets-0-count": "61"}, "It asks for 488 GPUs of one type;"),
    ],
)
@pytest.mark.usefixtures("unheard")
def test_preview_warns_of_what_quotas_never_let_start(as_user, change, message):
    text = as_user("erin").post("/jobs/new/preview/", {**FORM, **change}).content.decode()
    assert message in text
    assert ("Would never start" in text) == bool(message)
    assert ("Would be accepted" in text) != bool(message)


def test_an_elastic_gang_is_previewed_submitted_and_shown(as_user):
    client, elastic = as_user("erin"), {**FORM, "sets-0-count": "8", "sets-0-min_count": "2"}
    preview = client.post("/jobs/new/preview/", elastic).content.decode()
    assert "64 GPUs for vision on cluster demo; it starts with 16 GPUs or more and grows" in preview
    assert "&quot;min_count&quot;: 2" in preview
    page = client.post("/jobs/new/", elastic, follow=True).content.decode()
    assert Job.objects.get(name="bert").pod_sets.get().min_count == 2
    assert "starts with 2 or more" in page
    assert "with 2 of its 8 pods or more, and grows (elastic gang)" in page
    assert '8<span class="soft"> (at least 2)</span>' in page
    assert "grows" not in client.post("/jobs/new/preview/", FORM).content.decode()


@pytest.mark.usefixtures("unheard")
def test_what_never_starts_is_judged_by_the_least_pods_of_an_elastic_gang(as_user):
    large = {**FORM, "sets-0-gpu_type": "L40S", "sets-0-gpus": "4", "sets-0-count": "23"}
    client = as_user("erin")
    assert "Would never start" in client.post("/jobs/new/preview/", large).content.decode()
    elastic = {**large, "sets-0-min_count": "22"}
    assert "Would be accepted" in client.post("/jobs/new/preview/", elastic).content.decode()


def test_preview_says_whether_the_job_would_start_and_what_would(as_user):
    Cluster.objects.update(last_cycle_at=timezone.now())
    client = as_user("erin")

    def preview(**change):
        return client.post("/jobs/new/preview/", FORM | change).content.decode()

    text = preview(**{"sets-0-count": "1"})
    assert "Would start now" in text
    assert "It would start now: 1 pod on 1 node in 1 leaf." in text
    assert re.search(r"vision uses \d+ of its 64 H200", text.replace("128", "64"))
    assert "As of " in text
    text = preview(**{"sets-0-count": "9"})
    assert "Would never start" in text  # a leaf has 8 nodes
    NodeRecord.objects.filter(gpu_model="H200").update(schedulable=False)
    text = preview(**{"sets-0-count": "1", "sets-0-gpus": "4"})
    assert "Would wait" in text
    assert "What would start now" in text
    assert "On L40S: 1 pod on 1 node in 1 leaf." in text
    assert "What would help" in text
    assert not Job.objects.filter(name="bert").exists()


def test_preview_warns_where_there_is_no_quota_at_all(as_user):
    Quota.objects.filter(gpu_type__name="H200").delete()
    text = as_user("erin").post("/jobs/new/preview/", FORM).content.decode()
    assert "Tenant vision has no quota for H200." in text


def test_a_viewer_is_told_why_there_is_no_form(as_user):
    assert "You may not submit" in as_user("vik").get("/jobs/new/").content.decode()
    assert as_user("vik").post("/jobs/new/", FORM).status_code == 200
    assert not Job.objects.filter(name="bert").exists()
