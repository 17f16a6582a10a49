"""A submission needs few database statements, and what it reads together equals what is read one
by one."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.services.common import bulk
from scheduling.services.jobs.submission.batch import submit_batch
from scheduling.services.jobs.submission.standing import standing
from scheduling.services.jobs.submit import submit_job
from tenants.database import rows
from tenants.models import ApiToken, Queue, Tenant, User
from tenants.services.tokens import create_token
from tests import organisation

pytestmark = pytest.mark.django_db
URL = "/api/v1/jobs"
JOB = {"name": "one", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
# The last two begin and end the writing transaction on PostgreSQL, the first of them on SQLite.
FRAMES = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")


@pytest.fixture
def org():
    return organisation.build()


def test_a_submission_by_a_token_costs_three_statements(org):
    client = APIClient()
    secret = create_token(org.users["eve"], "test").secret
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert client.post(URL, JOB, format="json").status_code == 201  # the token has been used by now
    with CaptureQueriesContext(connection) as told:
        assert client.post(URL, JOB, format="json").status_code == 201
    asked = [one["sql"] for one in told.captured_queries if not one["sql"].startswith(FRAMES)]
    writes = 1 if connection.vendor == "postgresql" else 3
    assert len(asked) == 2 + writes, asked


def test_what_the_jobs_of_a_batch_wait_for_is_looked_up_together(org):
    before = [str(submit_job(org.users["eve"], JOB).pk) for _ in range(4)]

    def statements(*documents):
        with CaptureQueriesContext(connection) as told:
            answers = submit_batch(org.users["eve"], documents, dry_run=True)
        assert all(isinstance(one, Job) for one in answers), answers
        return len(told.captured_queries)

    one = statements({**JOB, "after": before[:1]})
    assert statements(*({**JOB, "after_ok": [job]} for job in before)) == one
    wrong, right = submit_batch(
        org.users["eve"], [{**JOB, "after": [str(uuid4()), "x"]}, {**JOB, "after": before}]
    )
    assert [fault.path for fault in wrong.errors] == [("after", 0), ("after", 1)]
    assert isinstance(right, Job)


@pytest.mark.parametrize("model", [Tenant, Queue, Cluster, User, ApiToken])
def test_rows_as_json_are_the_rows_of_the_model(org, model):
    create_token(org.users["eve"], "test", expires_at=timezone.now() + timedelta(days=1))
    Tenant.objects.filter(name="vision").update(weight=2, max_priority=7, min_runtime_s=0.5)
    entry = {"users": ["eve"], "state_at": timezone.now(), "max_gpus": {"H100": 3}}
    Queue.objects.filter(tenant__name="vision").update(**entry)
    Cluster.objects.update(label_map={"a": [1, None, "b"]}, last_cycle_at=timezone.now())
    table = connection.ops.quote_name(model._meta.db_table)
    found = rows.ask(f"SELECT {rows.listed(rows.as_json(model, 'x'), f'{table} x')}", [])
    read = {one.pk: one for one in (rows.row(model, told) for told in found[0])}
    wanted = {one.pk: one for one in model.objects.all()}
    assert wanted
    for pk, one in wanted.items():
        for field in model._meta.concrete_fields:
            mine, theirs = getattr(read[pk], field.attname), getattr(one, field.attname)
            assert (mine, type(mine)) == (theirs, type(theirs)), field
    assert read.keys() == wanted.keys()


def test_a_submission_reads_the_line_of_its_tenant_and_no_other(org):
    eve, vic = org.users["eve"], org.users["vic"]
    found = standing([eve.pk, vic.pk], ["vision", "unknown"], ["default"])
    vision = Tenant.objects.get(name="vision")
    line = [vision]
    while line[-1].parent is not None:
        line.append(line[-1].parent)
    assert found.tenants.keys() == {tenant.name for tenant in line}
    assert found.roles == {
        user.pk: dict(user.memberships.filter(tenant__in=line).values_list("tenant_id", "role"))
        for user in (eve, vic)
    }
    queues = Queue.objects.filter(tenant__in=line, name="default")
    assert found.queues == {(queue.tenant_id, queue.name): queue for queue in queues}
    assert all(queue.tenant.name in found.tenants for queue in found.queues.values())


def test_rows_written_together_are_those_written_table_by_table(org, monkeypatch):
    document = {
        **{k: v for k, v in JOB.items() if k not in ("gpus", "gpu_type")},
        "labels": {"app": "bert"},
        "start_not_before": timezone.now(),
        "pod_sets": [
            {"name": "a", "gpus": 1, "gpu_types": ["H100", "A100"], "env": {"LR": "“0.1\\ne'\n"}},
            {"name": "b", "gpus": 0, "cpu_milli": 5, "tolerations": [{"key": "k"}]},
        ],
    }

    def written():
        job = submit_job(org.users["ops"], document)
        sets, events = PodSet.objects.filter(job=job), JobEvent.objects.filter(job=job)
        [one] = Job.objects.filter(pk=job.pk).values()
        times = {"submitted_at", "reason_at", "at"}
        told = [[one], list(sets.order_by("index").values()), list(events.values())]
        return [
            [{k: v for k, v in row.items() if k not in times | {"id", "job_id"}} for row in table]
            for table in told
        ]

    together = written()
    monkeypatch.setattr(bulk, "FEW", 0)
    assert together == written()
    assert [len(table) for table in together] == [1, 2, 1]
