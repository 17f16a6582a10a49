"""Serializers for answers with thousands of entries."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from rest_framework import serializers

T = TypeVar("T")
# Kind of field → the type of values that it outputs unchanged.
_AS_THEY_ARE: dict[type, type] = {
    serializers.BooleanField: bool,
    serializers.CharField: str,
    serializers.ChoiceField: str,
    serializers.IntegerField: int,
}


class _Output(NamedTuple):
    """How to output a field. `attribute`: where its value comes from; "" = ask the field. `plain`:
    the type of values to output unchanged."""

    name: str
    attribute: str
    plain: type | None
    field: Any


# Outputs the same as DRF's serializer, but looks up each field only once instead of for each value;
# attributes are never called. No docstring: OpenAPI would show it for every answer without one of
# its own.
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
