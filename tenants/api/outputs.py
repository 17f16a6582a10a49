"""Serializers of answers that are given by the thousand."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from rest_framework import serializers

T = TypeVar("T")
# By kind of field the type whose values it tells as they are.
_AS_THEY_ARE: dict[type, type] = {
    serializers.BooleanField: bool,
    serializers.CharField: str,
    serializers.ChoiceField: str,
    serializers.IntegerField: int,
}


class _Output(NamedTuple):
    """How a field of an answer is told. `attribute`: that it tells, "" = the field finds it.
    `plain`: the type of values that are told as they are."""

    name: str
    attribute: str
    plain: type | None
    field: Any


# What is told of things whose attributes are not called; its fields are looked at once. It tells
# what DRF's own serializer tells, which asks for each value how it is found. No docstring: OpenAPI
# would show it for each kind of answer that has none.
class Output(serializers.Serializer[T]):
    @cached_property
    def _outputs(self) -> list[_Output]:
        return [
            _Output(
                str(field.field_name),
                field.source_attrs[0] if len(field.source_attrs) == 1 else "",
                _AS_THEY_ARE.get(type(field)),
                field,
            )
            for field in self.fields.values()
            if not field.write_only
        ]

    def to_representation(self, instance: Any) -> Any:
        if issubclass(type(instance), Mapping):
            return super().to_representation(instance)
        told = {}
        for name, attribute, plain, field in self._outputs:
            value = getattr(instance, attribute) if attribute else field.get_attribute(instance)
            if value is not None and type(value) is not plain:
                value = field.to_representation(value)
            told[name] = value
        return told
