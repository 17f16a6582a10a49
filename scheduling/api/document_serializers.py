"""Serializers made from the definitions of a job's fields (`scheduling.job_fields`).

They check types and sizes of the input. `services.jobs.validation.job_spec` checks ranges and
rules.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec import NODEFAULT, Struct, inspect
from rest_framework import serializers

from scheduling.job_fields.parts import Field, fields_of, plain
from tenants.api.fields import (
    Boolean,
    Choice,
    Integer,
    List,
    Moment,
    Object,
    Serializer,
    StringMap,
    Text,
    Uuid,
)
from tenants.api.outputs import Output

AnySerializer = type[serializers.Serializer[Any]]
AnyField = serializers.Field[Any, Any, Any, Any]


class AmountField(Integer):
    """A whole number; its range is documented here but checked later, with all other rules."""

    def __init__(self, least: int | None, most: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.min_value, self.max_value = least, most


# --- in -------------------------------------------------------------------------------------------
def input_of(
    name: str, struct: type[Struct], said: str | None = None, **more: AnyField
) -> type[Serializer]:
    """Return the serializer of a document with all its input fields; `more` adds fields or aliases.

    Null means "not given", unless null is a choice of its own.
    """
    fields = {one.name: given(one) for one in fields_of(struct).values()}
    return made(name, said or struct.__doc__, fields | more)


def made(name: str, said: str | None, fields: dict[str, AnyField]) -> type[Serializer]:
    return type(name, (Serializer,), {"__doc__": said, "__module__": __name__, **fields})


def given(field: Field, **kwargs: Any) -> AnyField:
    """Return the input field of `field`; `kwargs` override what holds in a document."""
    return _given(
        field.type,
        required=field.default is NODEFAULT,
        help_text=field.help or None,
        one_of=field.kind.one_of,
        **{"allow_null": _may_be_null(field), **kwargs},
    )


def _may_be_null(field: Field) -> bool:
    of = field.type
    of_ids = isinstance(of, inspect.ListType) and _is_id(of.item_type)
    return field.default is not NODEFAULT and not (field.kind.one_of or of_ids)


def _given(of: inspect.Type, one_of: tuple[str, ...] = (), **kwargs: Any) -> AnyField:
    of_id = _is_id(of)
    match plain(of):
        case inspect.IntType(ge=least, le=most):
            return AmountField(least, most, **kwargs)
        case inspect.BoolType():
            return Boolean(**kwargs)
        case inspect.DateTimeType():
            return Moment(**kwargs)
        case inspect.StrType() if of_id:
            return Uuid(**kwargs)
        case inspect.StrType(min_length=shortest, max_length=longest):
            blank = not shortest
            if one_of:
                names = [one for one in one_of if one]
                return Choice(names, allow_blank="" in one_of, **kwargs)
            return Text(max_length=longest, allow_blank=blank, **kwargs)
        case inspect.ListType(item_type=item, max_length=longest):
            return List(child=_given(item), max_length=longest, **kwargs)
        case inspect.DictType(
            value_type=inspect.StrType(max_length=int(size)), max_length=int(most)
        ):
            return StringMap(max_entries=most, max_length=size, **kwargs)
        case inspect.DictType(value_type=value, max_length=int(most)):
            return Object(child=_given(value), max_entries=most, **kwargs)
        case inspect.StructType(cls=struct):
            return _input(struct)(**kwargs)
        case other:
            raise TypeError(other)


@cache
def _input(struct: type[Struct]) -> type[Serializer]:
    return input_of(_called(struct, "Input"), struct)


# --- out ------------------------------------------------------------------------------------------
def output_of(struct: type[Struct], without: Iterable[str] = ()) -> dict[str, AnyField]:
    """Return the output fields of a document, read from the columns of a row."""
    fields = fields_of(struct).values()
    return {one.name: _told_of(one) for one in fields if one.name not in without}


def _told_of(field: Field) -> AnyField:
    elsewhere = field.column not in ("", field.name)
    source = {"source": field.column} if elsewhere else {}
    return _told(field.type, allow_null=field.optional, **source)


def _told(of: inspect.Type, **kwargs: Any) -> AnyField:
    of_id = _is_id(of)
    match plain(of):
        case inspect.IntType():
            return serializers.IntegerField(**kwargs)
        case inspect.BoolType():
            return serializers.BooleanField(**kwargs)
        case inspect.DateTimeType():
            return serializers.DateTimeField(**kwargs)
        case inspect.StrType():
            kind = serializers.UUIDField if of_id else serializers.CharField
            return kind(**kwargs)
        case inspect.ListType(item_type=inspect.StructType(cls=struct)):
            return output(struct)(many=True, **kwargs)
        case inspect.ListType(item_type=item):
            return serializers.ListField(child=_told(item), **kwargs)
        case inspect.DictType(value_type=value):
            return serializers.DictField(child=_told(value), **kwargs)
        case inspect.StructType(cls=struct):
            return output(struct)(**kwargs)
        case other:
            raise TypeError(other)


@cache
def output(struct: type[Struct]) -> AnySerializer:
    """Return the output serializer of a struct inside a document."""
    name = _called(struct, "Output")
    return type(name, (Output,), {"__module__": __name__, **output_of(struct)})


def _called(struct: type[Struct], end: str) -> str:
    return struct.__name__.removesuffix("Document") + end


def _is_id(of: inspect.Type) -> bool:
    return isinstance(of, inspect.Metadata) and of.extra_json_schema == {"format": "uuid"}
