"""The definition of a job's fields agrees with what is stored and what the engine knows."""

import dataclasses

import pytest

from scheduling.engine.types import JobRequest, PodSetSpec
from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.job_fields.nouns import columns_of, pod_set_of, wishes_of
from scheduling.job_fields.parts import fields_of
from scheduling.models import Job, PodSet

# Of a job request, what its document does not say.
NOT_ASKED = {"id", "tenant", "submitted_at", "pod_sets", "array", "user"}


@pytest.mark.parametrize(("struct", "row"), [(JobDocument, Job), (PodSetDocument, PodSet)])
def test_every_field_has_its_column_and_default_there(struct, row):
    columns = {f.name: f for f in row._meta.concrete_fields}
    for field in fields_of(struct).values():
        if field.column and field.name not in ("name", "count", "gpus"):  # always written
            assert columns[field.column].get_default() == field.default, field.name


def test_the_engine_is_told_all_that_it_asks_of_a_job():
    job, pods = JobDocument(name="hello", tenant="vision"), PodSetDocument(name="worker", gpus=8)
    wishes = wishes_of(columns_of(job))
    assert wishes.keys() | NOT_ASKED == {f.name for f in dataclasses.fields(JobRequest)}
    assert JobRequest("", "", 0.0, (), **wishes) == JobRequest("", "", 0.0, ())
    assert pod_set_of(columns_of(pods)) == PodSetSpec("worker", 1, 8)


def test_what_is_stored_is_nobody_elses():
    one, other = (PodSetDocument(name="worker") for _ in range(2))
    columns_of(one)["env"]["A"] = "1"
    assert columns_of(other)["env"] == {}
    assert fields_of(PodSetDocument)["env"].default == {}
