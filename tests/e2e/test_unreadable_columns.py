"""Pages survive JSON columns of jobs that somebody edited by hand into a shape that Kant never
writes."""

from typing import Any

import pytest
from django.core.cache import cache
from django.db.models.fields.json import JSONField

from scheduling.models import Job, PodSet, unreadable
from scheduling.models.jobs import TOLD
from scheduling.models.shaped import ShapedField, Unreadable
from scheduling.session.memory.load import live_job
from tests.cases import NIGHTLY, some

COLUMNS = [
    (model, field.attname)
    for model in (Job, PodSet)
    for field in model._meta.concrete_fields
    if isinstance(field, ShapedField)
]
WRONG = ["x", 3, [3], [{"a": 1}], {"a": [1]}, {"a": {}}]


def wrong_for(model: Any, column: str) -> list[Any]:
    """Return the values whose shape differs from the column's."""
    job = Job.objects.filter(tenant__name="vision").first()
    assert job is not None
    rows = rows_of(model, job)
    found = []
    for value in WRONG:
        rows.update(**{column: value})
        found += [value] if isinstance(getattr(rows.first(), column), Unreadable) else []
    return found


def rows_of(model: Any, job: Job) -> Any:
    return Job.objects.filter(pk=job.pk) if model is Job else job.pod_sets.all()


def test_every_json_column_that_says_what_a_job_asks_for_has_a_shape():
    plain = [
        field.attname
        for model in (Job, PodSet)
        for field in model._meta.concrete_fields
        if isinstance(field, JSONField) and not isinstance(field, ShapedField)
    ]
    assert plain == ["growth"]  # pages show what they can of these


@pytest.mark.parametrize(("model", "column"), some(COLUMNS), ids=[n for _, n in some(COLUMNS)])
def test_a_value_of_another_shape_is_told_and_keeps_nothing_from_being_shown(
    as_user, model, column
):
    client = as_user("erin")
    job = Job.objects.filter(tenant__name="vision").first()
    wrong = wrong_for(model, column)
    assert len(wrong) >= 3
    # By day a single value, a different one for each column.
    number = COLUMNS.index((model, column)) % len(wrong)
    for value in wrong if NIGHTLY else wrong[number : number + 1]:
        rows_of(model, job).update(**{column: value})
        for url in ("/jobs/", f"/jobs/{job.pk}/", "/api/v1/jobs", f"/api/v1/jobs/{job.pk}"):
            assert client.get(url).status_code == 200, (value, url)
        assert client.get(f"/api/v1/jobs/{job.pk}/explain").status_code == 200
        Job.objects.filter(pk=job.pk).update(state="PENDING")
        cache.clear()
        for url in (f"/api/v1/jobs/{job.pk}/outlook", f"/jobs/{job.pk}/outlook/"):
            assert client.get(url).status_code == 200, (value, url)
        answer = client.get(f"/api/v1/jobs/{job.pk}/document")
        page = client.get("/jobs/new/", {"like": job.pk}, follow=True)
        assert (answer.status_code, page.status_code) == (200 if column in TOLD else 409, 200)
        if column not in TOLD:
            told = f"The row of job {job.name} in the database is wrong: {column} cannot be read: "
            assert answer.json()["detail"].startswith(told)
            assert told in page.content.decode()
        if model is PodSet:
            text = client.get(f"/jobs/{job.pk}/").content.decode()
            assert ("Not readable" in text, f"{column}: " in text) == (True, True)


@pytest.mark.parametrize(("model", "column"), COLUMNS, ids=[name for _, name in COLUMNS])
def test_nothing_is_decided_by_it_and_nothing_is_lost(played, model, column):
    job = Job.objects.filter(tenant__name="vision").first()
    value = wrong_for(model, column)[0]
    rows_of(model, job).update(**{column: value})
    job.refresh_from_db()
    row = rows_of(model, job).first()
    [(name, why)] = unreadable(row)
    assert (name, bool(why)) == (column, True)
    if column in TOLD:
        assert live_job(job, "vision", list(job.pod_sets.all())).request.id == str(job.pk)
    else:
        with pytest.raises(ValueError, match=f"^{column} cannot be read: "):
            live_job(job, "vision", list(job.pod_sets.all()))
    row.save()
    assert getattr(rows_of(model, job).first(), column).raw == value
