"""Conversions between documents, rows and the engine's types, by the names of the fields.

`columns`: {column: value} of a row, as `vars(row)` has them or `columns_of` makes them.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from msgspec import Struct, inspect

from scheduling.engine.types import JobRequest, NodeRules, PodSetSpec
from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.job_fields.faults import Faults
from scheduling.job_fields.parts import Field, fields_of, plain
from tenants import texts
from tenants.errors import Path

S = TypeVar("S", bound=Struct)
STRUCT = inspect.StructType
# The engine counts in seconds: the last moments of the calendar would be rounded past its end.
FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


def check_values(struct: type[Struct], given: Mapping[str, Any], at: Path, faults: Faults) -> None:
    """Check each given value by itself; the types are already right."""
    for field in fields_of(struct).values():
        if field.name not in given:
            continue
        value, here = given[field.name], (*at, field.name)
        _check_ranges(field.type, value, here, faults)
        if field.kind.check is not None:
            field.kind.check(value, here, faults)
        if field.column:  # others hold documents that are checked separately
            for inner, part, its in _inside(plain(field.type), value, here):
                check_values(inner, part, its, faults)


def _check_ranges(of: inspect.Type, value: Any, at: Path, faults: Faults) -> None:
    """Check the ranges of all amounts and times in a value, also inside lists and maps."""
    match plain(of):
        case inspect.IntType(ge=int(least), le=int(most)):
            faults.unless(least <= value <= most, at, texts.between(least, most))
        case inspect.DateTimeType():
            faults.unless(FIRST <= value <= LAST, at, texts.between(FIRST.date(), LAST.date()))
        case inspect.ListType(item_type=item):
            for index, each in enumerate(value):
                _check_ranges(item, each, (*at, index), faults)
        case inspect.DictType(value_type=item):
            for name, each in value.items():
                _check_ranges(item, each, (*at, name), faults)


def _inside(
    of: inspect.Type, value: Any, at: Path
) -> Iterator[tuple[type[Struct], Mapping[str, Any], Path]]:
    """Yield the documents inside a value that are part of the job's document."""
    match of:
        case inspect.StructType(cls=struct):
            yield struct, value, at
        case inspect.ListType(item_type=item) if isinstance(inner := plain(item), STRUCT):
            yield from ((inner.cls, each, (*at, index)) for index, each in enumerate(value))
        case inspect.DictType(value_type=item) if isinstance(inner := plain(item), STRUCT):
            yield from ((inner.cls, each, (*at, name)) for name, each in value.items())


def made_of(struct: type[S], given: Mapping[str, Any]) -> S:
    """Return the document with all fields, given valid values; unknown names are ignored."""
    known = (field for field in fields_of(struct).values() if field.name in given)
    return struct(**{field.name: _stored_value(field, given[field.name]) for field in known})


def _stored_value(field: Field, value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(of := plain(field.type), inspect.StructType):
        value = made_of(of.cls, value)
    return field.kind.stored(value)


def columns_of(document: Struct) -> dict[str, Any]:
    """Return the columns of a document's row."""
    return {field.column: getattr(document, field.name) for field in _stored(type(document))}


def document_of(
    struct: type[Struct], columns: Mapping[str, Any], without: Iterable[str] = ()
) -> dict[str, Any]:
    """Return, in document form, the values of a row that differ from the defaults."""
    return {
        field.name: field.kind.short(value)
        for field in _stored(struct)
        if field.name not in without and (value := columns[field.column]) != field.default
    }


def pod_set_of(columns: Mapping[str, Any]) -> PodSetSpec:
    """Return the engine's view of a pod set."""
    return PodSetSpec(
        nodes=node_rules_of(columns), **{f.column: f.kind.noun(columns[f.column]) for f in _POD_SET}
    )


def node_rules_of(columns: Mapping[str, Any]) -> NodeRules:
    """Return which nodes the pods of a pod set may use."""
    return NodeRules(**{f.column: f.kind.noun(columns[f.column]) for f in _NODE_RULES})


def document_of_rules(rules: NodeRules) -> dict[str, Any]:
    """Return the fields of a pod set that say the same."""
    return {f.name: f.kind.written(getattr(rules, f.column)) for f in _NODE_RULES}


def wishes_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's wishes as fields of the engine's `JobRequest`."""
    return {f.column: f.kind.noun(columns[f.column]) for f in _JOB_REQUEST}


def _stored(struct: type[Struct]) -> list[Field]:
    return [field for field in fields_of(struct).values() if field.column]


def _known(struct: type[Struct], noun: type) -> tuple[Field, ...]:
    """Return the fields whose columns have the same names as fields of the engine's type."""
    names = {field.name for field in dataclasses.fields(noun)}
    return tuple(field for field in _stored(struct) if field.column in names)


_POD_SET, _NODE_RULES = _known(PodSetDocument, PodSetSpec), _known(PodSetDocument, NodeRules)
_JOB_REQUEST = _known(JobDocument, JobRequest)
