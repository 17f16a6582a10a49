"""The submit page previews what would become of a job before it is submitted."""

import re

import pytest

from scheduling.engine.states import JobEventKind, JobState
from scheduling.models import Cluster, Job, NodeRecord
from tenants.models import Quota
from tests.e2e.test_pages_submission import FORM


@pytest.fixture
def unheard(played):
    """No scheduler has run yet: the preview shows what follows from quotas alone."""
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
    form = {**FORM, "preemptible": "on", **change}
    text = as_user("erin").post("/jobs/new/preview/", form).content.decode()
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
    large = {**FORM, "preemptible": "on", "sets-0-gpu_type": "L40S"}
    large |= {"sets-0-gpus": "4", "sets-0-count": "23"}
    client = as_user("erin")
    assert "Would never start" in client.post("/jobs/new/preview/", large).content.decode()
    elastic = {**large, "sets-0-min_count": "22"}
    assert "Would be accepted" in client.post("/jobs/new/preview/", elastic).content.decode()


def test_preview_says_whether_the_job_would_start_and_what_would(now, as_user):
    Cluster.objects.update(last_cycle_at=now)
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
    assert 'data-apply data-gpu_type="L40S">Apply<' in text
    assert "What would help" in text
    assert not Job.objects.filter(name="bert").exists()


def test_what_would_start_instead_of_a_job_that_waits_can_be_done(now, as_user):
    Cluster.objects.update(last_cycle_at=now)
    NodeRecord.objects.filter(gpu_model="H200").update(schedulable=False)
    client = as_user("erin")
    client.post("/jobs/new/", FORM | {"sets-0-count": "2", "sets-0-gpus": "4"})
    job = Job.objects.get(name="bert")
    outlook = client.get(f"/jobs/{job.pk}/outlook/").content.decode()
    again = f"/jobs/new/?like={job.pk}&amp;gpu_type=L40S"
    assert f'href="{again}">Submit it so' in outlook
    form = client.get(again.replace("&amp;", "&")).content.decode()
    assert '<option value="L40S" selected>' in form
    odd = client.get(f"/jobs/new/?like={job.pk}&gpu_type=B200").content.decode()
    assert "GPU type B200 does not exist. Choose another." in odd
    outlook = as_user("vik").get(f"/jobs/{job.pk}/outlook/")
    assert outlook.status_code == 404


def test_preview_warns_where_there_is_no_quota_at_all(as_user):
    Quota.objects.filter(gpu_type__name="H200").delete()
    text = as_user("erin").post("/jobs/new/preview/", FORM).content.decode()
    assert "Tenant vision has no quota for H200." in text


def test_a_job_without_gpus_is_previewed_submitted_and_shown(as_user):
    cluster = Cluster.objects.get(name="demo")
    NodeRecord.objects.create(
        cluster=cluster, name="cpu-0", cpu_milli=8000, memory_mib=64000, max_pods=110
    )
    client = as_user("erin")
    form = {**FORM, "sets-0-gpus": "0", "sets-0-gpu_type": "", "sets-0-required_level": ""}
    preview = client.post("/jobs/new/preview/", form).content.decode()
    assert "GPUs per pod: The pod asks for nothing." in preview
    form["sets-0-cpus"] = "2"
    preview = client.post("/jobs/new/preview/", form).content.decode()
    assert "no GPU for vision on cluster demo" in preview
    assert "Would start now" in preview
    assert "Quota" not in preview
    page = client.post("/jobs/new/", form, follow=True).content.decode()
    text = re.sub(r"<[^>]+>|\s+", " ", page)
    assert "No GPU on nodes without GPUs" in re.sub(r"\s+", " ", text)
    job = Job.objects.get(name="bert")
    assert job.gpu_milli == 0
    Job.objects.filter(pk=job.pk).update(state=JobState.QUOTA_RESERVED)
    job.events.create(kind=JobEventKind.QUOTA_RESERVED, at=job.submitted_at)
    for shown, state in ((f"/jobs/{job.pk}/", "Queued"), ("/jobs/?q=bert", "Waiting")):
        page = client.get(shown).content.decode()
        assert (f"{state}</span>" in page, "quota held</span>" in page) == (True, False)
        assert "Quota reserved" not in page
    assert 'title="none"' in client.get("/jobs/?q=bert").content.decode()
    typed = client.post("/jobs/new/preview/", {**form, "sets-0-gpu_type": "H200"})
    assert "GPU type: The job asks for no GPU." in typed.content.decode()
