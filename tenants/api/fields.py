"""Serializer fields that take JSON types as they are: "8" is not 8, 1 is not true."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from tenants.models import MAX_MILLI

MAX_GPUS = MAX_MILLI // 1000
WORD = r"\A[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"


class Serializer(serializers.Serializer[Any]):
    """Refuses names it does not know: a misspelt option must not be ignored."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            writable = {name for name, field in self.fields.items() if not field.read_only}
            unknown = sorted(str(name) for name in data if name not in writable)
            if unknown:
                known = ", ".join(sorted(writable))
                raise serializers.ValidationError(
                    {name: [f"Unknown field. Known here: {known}."] for name in unknown}
                )
        return super().to_internal_value(data)


class Text(serializers.CharField):
    """A JSON string; not trimmed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"trim_whitespace": False, "max_length": 200, **kwargs})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("Must be a text (JSON string).")
        return super().to_internal_value(data)


class Integer(serializers.IntegerField):
    """A JSON number without a fraction."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int | float) or data != int(data):
            raise serializers.ValidationError("Must be a whole number.")
        return int(data)


class Number(serializers.FloatField):
    """A finite JSON number."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise serializers.ValidationError("Must be a number.")
        try:
            return float(data)
        except OverflowError:
            raise serializers.ValidationError("The number is too large.") from None


class Choice(serializers.ChoiceField):
    """One of some names, which a refusal tells."""

    def __init__(self, names: Iterable[str], **kwargs: Any) -> None:
        super().__init__(list(names), **kwargs)
        self.error_messages["invalid_choice"] = f"Choose one of {', '.join(self.choices)}."


class Boolean(serializers.BooleanField):
    """JSON true or false."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise serializers.ValidationError("Must be true or false.")
        return data


@extend_schema_field(
    {
        "type": "number",
        "minimum": 0,
        "maximum": MAX_GPUS,
        "description": "GPUs, with at most three decimals.",
    }
)
class Gpus(serializers.Field[int, Any, Any, Any]):
    """GPUs outside (8, 0.5), milli-GPU inside (8000, 500)."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise serializers.ValidationError("Must be a number of GPUs, e.g. 8 or 0.5.")
        milli = Decimal(str(data)) * 1000
        if milli < 0:
            raise serializers.ValidationError("Must not be negative.")
        if milli > MAX_MILLI:
            raise serializers.ValidationError(f"Must be at most {MAX_GPUS} GPUs.")
        if milli != milli.to_integral_value():
            raise serializers.ValidationError("Use at most three decimals (0.001 GPU).")
        return int(milli)

    def to_representation(self, value: int) -> int | float:
        return gpus(value)


def gpus(milli: int) -> int | float:
    """Milli-GPU as a JSON number of GPUs; whole numbers stay whole."""
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


class StringMap(serializers.DictField):
    """An object of texts, as Kubernetes labels are."""

    def __init__(self, *, max_entries: int = 64, max_length: int = 1024, **kwargs: Any) -> None:
        self.max_entries = max_entries
        super().__init__(child=Text(max_length=max_length, allow_blank=True), **kwargs)

    def to_internal_value(self, data: Any) -> dict[str, str]:
        if isinstance(data, Mapping):
            if len(data) > self.max_entries:
                raise serializers.ValidationError(f"At most {self.max_entries} entries.")
            if any(not name or len(name) > 317 for name in data):
                raise serializers.ValidationError("Names must have 1 to 317 characters.")
        return super().to_internal_value(data)
