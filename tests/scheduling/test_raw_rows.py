"""Jobs read as raw columns equal jobs read one by one."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.models import Job, JobPod, PodSet
from scheduling.services.jobs.submit import submit_array, submit_job
from scheduling.session.memory import load
from tests import organisation

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
ARRAY = {
    "name": "array",
    "tenant": "vision",
    "gpu_types": ["H100", "A100"],
    "gpus": 1,
    "env": {"LR": "0.1"},
    "labels": {"app": "bert"},
    "array": {"count": 3},
}


@pytest.fixture
def jobs():
    """An array, jobs that differ, and one that stands for a plain pod."""
    org = organisation.build()
    ops = org.users["ops"]
    submit_array(ops, ARRAY)
    sets = [{"name": "a", "gpus": 1, "count": 2}, {"name": "b", "cpu_milli": 5, "gpus": 0}]
    affinity = {"match_expressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
    for more in (
        {"gpus": 8, "replicas": 4, "required_level": "leaf", "declared_s": 60, "priority": 3},
        {"pod_sets": sets, "kind": "inference", "gang": False, "preemptible": False},
        {"gpus": 1, "node_affinity": [affinity], "node_selector": {"a": "b"}, "run_limit_s": 9},
    ):
        submit_job(ops, {"name": "one", "tenant": "law", **more})
    plain = Job.objects.order_by("submitted_at").last()
    Job.objects.filter(pk=plain.pk).update(
        pod_name="p",
        pod_namespace="ns",
        not_before=AT,
        blocked_since=AT - timedelta(days=1),
        stands_at=AT + timedelta(days=1),
        version=7,
    )
    JobPod.objects.create(
        job=plain, pod_set=0, ordinal=0, uid=plain.pk, name="p", labels={"x": "y"}
    )
    return [str(job_id) for job_id in Job.objects.values_list("id", flat=True)]


def one_by_one(job_id):
    job = Job.objects.get(id=job_id)
    return load.live_job(job, job.tenant.name, list(job.pod_sets.all()))


def test_what_is_read_together_is_what_is_read_one_by_one(jobs):
    found, bad = load.jobs(jobs)
    assert (len(found), bad) == (6, [])
    assert [job.request.submitted_at for job in found] == sorted(
        job.request.submitted_at for job in found
    )
    for job in found:
        alone = one_by_one(job.id)
        alone.plain = job.plain
        assert job == alone
    [plain] = [job for job in found if job.plain]
    [(key, ref)] = plain.plain.items()
    assert (key, ref) == ((0, 0), ("p", plain.id, {"x": "y"}))
    env = sorted(job.contents[0].env["KANT_ARRAY_INDEX"] for job in found if job.request.array)
    assert env == ["0", "1", "2"]


def test_the_jobs_of_an_array_share_what_they_ask_for(jobs):
    found, _ = load.jobs(jobs)
    specs = {id(job.request.pod_sets[0]) for job in found if job.request.array}
    assert len(specs) == 1


def test_statements_do_not_grow_with_the_jobs(jobs):
    with CaptureQueriesContext(connection) as one:
        load.jobs(jobs[-1:])
    with CaptureQueriesContext(connection) as all_of_them:
        load.jobs(jobs)
    assert len(all_of_them) <= len(one) + 1  # only the last one may stand for a pod


@pytest.mark.parametrize(
    ("model", "column", "value", "readable"),
    [
        (Job, "labels", [1], False),
        (Job, "evidence", [1], True),  # only told
        (PodSet, "env", {"a": 1}, False),
        (PodSet, "tolerations", {"a": 1}, False),
    ],
)
def test_a_row_of_another_shape_is_told_and_harms_no_other(jobs, model, column, value, readable):
    array = Job.objects.filter(array_index=1)
    rows = array if model is Job else PodSet.objects.filter(job__in=array)
    rows.update(**{column: value})
    found, bad = load.jobs(jobs)
    assert (len(found), len(bad)) == ((6, 0) if readable else (5, 1))
    for job_id, version, state, why in bad:
        assert (job_id, version, state) == (str(array.get().pk), 1, "PENDING")
        assert why.startswith(f"{column} cannot be read: ")


def test_a_job_without_pod_sets_is_told(jobs):
    PodSet.objects.filter(job=jobs[0]).delete()
    [(job_id, _, _, why)] = load.jobs(jobs)[1]
    assert (job_id, why) == (jobs[0], "the job has no pod set")
