"""The definition of a job's fields agrees with the stored columns and the engine's request."""

import dataclasses
from datetime import UTC, datetime

import pytest
from msgspec import inspect

from scheduling.engine.types import JobRequest, PodSetSpec
from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.job_fields.faults import Faults
from scheduling.job_fields.nouns import check_values, columns_of, pod_set_of, wishes_of
from scheduling.job_fields.parts import fields_of, plain
from scheduling.models import Job, PodSet

# Fields of a job request that its document does not contain.
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


def wrong_values(of):
    """Yield (fault, path to it) for a type: each amount and each time gets a value beyond its
    bounds, however deep in lists and maps. Nested documents have cases of their own."""
    match plain(of):
        case inspect.IntType(ge=int(least), le=int(most)):
            yield from ((wrong, ()) for wrong in (least - 1, most + 1, -(2**70), 10**400))
        case inspect.DateTimeType():
            yield from ((wrong.replace(tzinfo=UTC), ()) for wrong in (datetime.min, datetime.max))
        case inspect.ListType(item_type=item):
            yield from (([value], (0, *at)) for value, at in wrong_values(item))
        case inspect.DictType(value_type=item):
            yield from (
                ({"vendor.com/a": v}, ("vendor.com/a", *at)) for v, at in wrong_values(item)
            )


def documents(struct, seen):
    """Yield a document and all documents inside it."""
    if struct not in seen:
        seen.append(struct)
        for field in fields_of(struct).values():
            for inner in _structs(field.type):
                documents(inner, seen)
    return seen


def _structs(of):
    match plain(of):
        case inspect.StructType(cls=struct):
            yield struct
        case inspect.ListType(item_type=item) | inspect.DictType(value_type=item):
            yield from _structs(item)


BEYOND = [
    pytest.param(struct, field.name, value, at, id=f"{struct.__name__}-{field.name}-{number}")
    for struct in documents(JobDocument, [])
    for field in fields_of(struct).values()
    for number, (value, at) in enumerate(wrong_values(field.type))
]


@pytest.mark.parametrize(("struct", "name", "value", "at"), BEYOND)
def test_no_amount_and_no_time_is_beyond_its_range_at_any_depth(struct, name, value, at):
    faults = Faults()
    check_values(struct, {name: value}, (), faults)
    assert [(one.path, one.detail.split(" to ")[0].rsplit(" ", 1)[0]) for one in faults.found] == [
        ((name, *at), "Must be from")
    ]


def test_what_is_tried_beyond_its_range_holds_amounts_in_lists_and_in_maps():
    tried = {(struct.values[0].__name__, struct.values[1]) for struct in BEYOND}
    assert ("SecurityDocument", "supplemental_groups") in tried
    assert ("PodSetDocument", "extended") in tried
    assert ("JobDocument", "not_before") in tried
    assert ("ProbeDocument", "port") in tried
