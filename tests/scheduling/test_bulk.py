"""Rows written together in one statement equal rows written one by one."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from django.db import DataError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from scheduling.models import Cluster, Job, JobEvent, Placement
from scheduling.services.common.bulk import Changed, Rows, insert, new_ids, write_together
from tenants.models import Tenant

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
TEXT = "tab\t, line\n, back\\slash, \\N, “quotes”, ü, 😀"
LABELS = {"a": TEXT, "b": ""}


@pytest.fixture
def job():
    return Job(
        name="first",
        tenant=Tenant.objects.create(name="team"),
        cluster=Cluster.objects.create(name="c"),
        submitted_at=AT,
        message=TEXT,
        labels=LABELS,
        declared_s=7,
    )


def test_copies_differ_in_what_is_changed_only(job, django_assert_num_queries):
    rows, ids = Rows(Job), [uuid4() for _ in range(1200)]
    prepared = rows.prepare(job)
    for number, job_id in enumerate(ids):
        rows.add(prepared, id=job_id, name=f"j{number}", labels={"n": str(number)}, held=True)
    with django_assert_num_queries(1):
        rows.write()
        rows.write()  # nothing is written twice
    found = list(Job.objects.filter(pk__in=(ids[0], ids[-1])).order_by("name"))
    assert Job.objects.count() == 1200
    assert [(j.name, j.labels) for j in found] == [("j0", {"n": "0"}), ("j1199", {"n": "1199"})]
    job.save(force_insert=True)
    assert _same(found[0]) == _same(found[1]) == _same(Job.objects.get(pk=job.pk))


def test_ids_are_free_and_stay_so(job):
    job.save(force_insert=True)
    place = {"job": job, "attempt": 1, "pod_set": 0, "intended_at": AT}
    before = Placement.objects.create(**place, ordinal=0)
    rows = Rows(Placement, with_ids=True)
    ids, no_job, events = new_ids((Placement, 3), (Placement, 0), (JobEvent, 2))
    told = Rows(JobEvent, with_ids=True)
    for row_id in events:
        submitted = JobEvent(job=job, at=AT, kind="SUBMITTED", to_state="PENDING")
        told.add(told.prepare(submitted), id=row_id)
    for ordinal, row_id in enumerate(ids, start=1):
        rows.add(rows.prepare(Placement(**place, ordinal=ordinal)), id=row_id)
    write_together(told, rows)
    after = Placement.objects.create(**place, ordinal=9)
    assert len({before.pk, *ids, after.pk}) == 5
    assert dict(Placement.objects.values_list("ordinal", "id")) == {
        0: before.pk,
        9: after.pk,
        **dict(enumerate(ids, start=1)),
    }
    assert no_job == []
    assert sorted(JobEvent.objects.values_list("id", flat=True)) == sorted(events)
    more = JobEvent.objects.create(job=job, at=AT, kind="HELD", to_state="PENDING")
    assert more.pk not in events


def test_each_row_is_given_its_own_values_by_one_statement(job, django_assert_num_queries):
    jobs = [Job(**{**_columns(job), "id": uuid4(), "name": f"j{n}"}) for n in range(600)]
    insert(jobs)
    Job.objects.filter(pk=jobs[5].pk).update(bound_at=AT)
    later = AT.replace(year=2027)
    with django_assert_num_queries(1):
        times = [(j.pk, later) for j in jobs[:599]]
        Changed(Job, ["bound_at"], times, once=["bound_at"]).write()
        Changed(Job, ["bound_at"], []).write()
    times = dict(Job.objects.values_list("name", "bound_at"))
    assert (times.pop("j5"), times.pop("j599")) == (AT, None)
    assert set(times.values()) == {later}
    apart = [(jobs[1].pk, None, "new"), (jobs[2].pk, AT, None)]
    Changed(Job, ["bound_at", "message"], apart, kept=["bound_at", "message"]).write()
    found = dict(Job.objects.filter(name__in=("j1", "j2")).values_list("bound_at", "message"))
    assert found == {later: "new", AT: TEXT}
    told = [(str(j.pk), n, TEXT) for n, j in enumerate(jobs)]
    Changed(Job, ["failures", "message"], told).write()
    assert Job.objects.get(name="j17").failures == 17
    assert Job.objects.filter(message=TEXT).count() == 600


def test_what_cannot_be_written_is_an_error_of_django_and_writes_nothing(job):
    job.save(force_insert=True)
    other = Job(**{**_columns(job), "id": uuid4()})
    with pytest.raises(IntegrityError), transaction.atomic():
        insert([other, job])
    assert Job.objects.count() == 1
    insert([JobEvent(job=job, at=AT, kind="SUBMITTED", to_state="PENDING") for _ in range(3)])
    with CaptureQueriesContext(connection) as told:
        insert([])
    assert (JobEvent.objects.count(), len(told)) == (3, 0)


def _columns(job):
    return {field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields}


def _same(job):
    """Return the values that copies share with the job that they come from."""
    own = ("id", "name", "labels", "held")
    return {name: value for name, value in _columns(job).items() if name not in own}


@pytest.mark.parametrize("count", [2, 100])
def test_whatever_is_in_a_column_comes_back(job, count):
    """Few rows and many rows are written in different ways."""
    job.save(force_insert=True)
    texts = [TEXT, "", '"', "{}", "NULL", "'", "\\", '{"a,b"}', "a,b", "\n"]
    documents = [{}, [], {"a": []}, ["b"], "", 0, False, "x", {"t": TEXT}, [None], {"n": 1.5}]
    written, pods, of = [], Rows(Placement), {"job": job, "attempt": 1, "intended_at": AT}
    for number in range(count):
        other = {
            "message": texts[number % len(texts)],
            "devices": documents[number % len(documents)],
            "bound_at": AT if number % 2 else None,
            "held_milli": number * 10**6,
        }
        row = Placement(**of, pod_set=0, ordinal=number, **other)
        pods.add(pods.prepare(row))
        written.append((number, *other.values()))
    pods.write()
    columns = "ordinal", "message", "devices", "bound_at", "held_milli"
    assert list(Placement.objects.order_by("ordinal").values_list(*columns)) == written


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite keeps such texts")
@pytest.mark.parametrize("count", [2, 100])
def test_a_text_that_postgresql_does_not_keep_moves_no_other(job, count):
    rows = Rows(Job)
    prepared = rows.prepare(job)
    for number in range(count):
        rows.add(prepared, id=uuid4(), name=f"j{number}", message="a\0b" if number else "")
    with pytest.raises(DataError), transaction.atomic():
        rows.write()
    assert not Job.objects.exists()
