"""Serializer fields that take JSON types strictly: "8" is not 8, 1 is not true."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any

from django.core.exceptions import ValidationError as DjangoInvalid
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.fields import SkipField, empty, get_error_detail

from tenants import texts
from tenants.api.problems import MOST_ERRORS
from tenants.errors import unknown_name
from tenants.models import MAX_MILLI
from tenants.services.quota_terms import gpus

MOST_OF_A_TIME = 64
MAX_GPUS = MAX_MILLI // 1000
WORD = r"\A[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"


class Told(serializers.Field[Any, Any, Any, Any]):
    """A field whose error messages are Kant's; list it before DRF's field class."""

    default_error_messages = {**texts.DRF}


class Serializer(Told, serializers.Serializer[Any]):
    """Refuses unknown names: a misspelt option must not be ignored."""

    default_error_messages = {"invalid": texts.DRF["not_a_dict"]}

    @cached_property
    def _inputs(self) -> dict[str, tuple[Any, Any, bool]]:
        """{name: its field, the `validate_` method for it if any, whether it also runs without a
        value}."""
        return {
            str(name): (
                field,
                getattr(self, f"validate_{name}", None),
                field.required or field.default is not empty,
            )
            for name, field in self.fields.items()
            if not field.read_only
        }

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return super().to_internal_value(data)  # raises the error
        inputs = self._inputs
        if unknown := [str(name) for name in data if name not in inputs]:
            known = sorted(inputs)
            raise serializers.ValidationError(
                {
                    name: [unknown_name("field", name, known)]
                    for name in sorted(unknown)[:MOST_ERRORS]
                }
            )
        found: dict[str, Any] = {}
        errors: dict[str, Any] = {}
        for name, (field, check, asked) in inputs.items():
            if not asked and name not in data:  # the field accepts a missing value
                continue
            try:
                value = field.run_validation(field.get_value(data))
                if check is not None:
                    value = check(value)
            except serializers.ValidationError as error:
                errors[name] = error.detail
            except DjangoInvalid as error:
                errors[name] = get_error_detail(error)
            except SkipField:
                pass
            else:
                self.set_value(found, field.source_attrs, value)
        if errors:
            raise serializers.ValidationError(errors)
        return found


class Text(Told, serializers.CharField):
    """A JSON string; whitespace is kept."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"trim_whitespace": False, "max_length": 200, **kwargs})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("Must be a JSON string.")
        return super().to_internal_value(data)


class Integer(Told, serializers.IntegerField):
    """A JSON number without a fraction."""

    def __init__(self, **kwargs: Any) -> None:
        if "min_value" in kwargs and "max_value" in kwargs:
            bounds = texts.between(kwargs["min_value"], kwargs["max_value"])
            kwargs["error_messages"] = {"min_value": bounds, "max_value": bounds}
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int | float) or data != int(data):
            raise serializers.ValidationError(texts.WHOLE_NUMBER)
        return int(data)


class Number(Told, serializers.FloatField):
    """A finite JSON number."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise serializers.ValidationError(texts.NUMBER)
        try:
            return float(data)
        except OverflowError:
            raise serializers.ValidationError("The number is too large.") from None


class Choice(Told, serializers.ChoiceField):
    """One of several names; the error message lists them."""

    def __init__(self, names: Iterable[str], **kwargs: Any) -> None:
        super().__init__(list(names), **kwargs)
        self.error_messages["invalid_choice"] = texts.one_of(", ".join(self.choices))


class Boolean(Told, serializers.BooleanField):
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
        "description": "Number of GPUs, with at most three decimals.",
    }
)
class Gpus(Told, serializers.Field[int, Any, Any, Any]):
    """GPUs in JSON (8, 0.5), milli-GPU inside Kant (8000, 500)."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise serializers.ValidationError("Must be a number of GPUs, e.g. 8 or 0.5.")
        milli = Decimal(str(data)) * 1000
        if milli < 0:
            raise serializers.ValidationError("Must not be negative.")
        if milli > MAX_MILLI:
            raise serializers.ValidationError(texts.at_most(f"{MAX_GPUS} GPUs"))
        if milli != milli.to_integral_value():
            raise serializers.ValidationError("Use at most three decimals (0.001 GPU).")
        return int(milli)

    def to_representation(self, value: int) -> int | float:
        return gpus(value)


class Uuid(Told, serializers.UUIDField):
    """A UUID as a JSON string; not a number."""

    default_error_messages = {"invalid": texts.UUID}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class Moment(Told, serializers.DateTimeField):
    """An ISO 8601 time; without an offset it is UTC."""

    default_error_messages = dict.fromkeys(
        ("invalid", "date", "make_aware", "overflow"), texts.TIME
    )

    def to_internal_value(self, value: Any) -> Any:
        # The library accepts any number of digits as fractions of a second.
        if isinstance(value, str) and len(value) > MOST_OF_A_TIME:
            self.fail("invalid", format="ISO 8601")
        return super().to_internal_value(value)


class List(Told, serializers.ListField):
    """A JSON array."""

    default_error_messages = {"max_length": texts.no_longer_than("{max_length}", "items")}

    def to_internal_value(self, data: Any) -> Any:
        # Before validating the items: otherwise each of too many would be reported.
        if isinstance(data, list) and self.max_length is not None and len(data) > self.max_length:
            self.fail("max_length", max_length=self.max_length)
        return super().to_internal_value(data)


class Object(Told, serializers.DictField):
    """A JSON object with arbitrary names, at most `max_entries` of them."""

    def __init__(self, *, max_entries: int = 1024, **kwargs: Any) -> None:
        self.max_entries = max_entries
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and len(data) > self.max_entries:
            raise serializers.ValidationError(texts.no_longer_than(self.max_entries, "entries"))
        return super().to_internal_value(data)


class StringMap(Object):
    """An object of strings, such as Kubernetes labels."""

    def __init__(self, *, max_entries: int = 64, max_length: int = 1024, **kwargs: Any) -> None:
        child = Text(max_length=max_length, allow_blank=True)
        super().__init__(max_entries=max_entries, child=child, **kwargs)

    def to_internal_value(self, data: Any) -> dict[str, str]:
        if isinstance(data, Mapping) and any(not name or len(name) > 317 for name in data):
            raise serializers.ValidationError("Names must have 1 to 317 characters.")
        found: dict[str, str] = super().to_internal_value(data)
        return found
