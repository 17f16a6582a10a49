"""Filters of query parameters, stricter than the library's: no guess, no silent default."""

from datetime import UTC, datetime
from typing import Any

import django_filters as filters
from django import forms
from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_datetime


class MomentField(forms.Field):
    """An ISO 8601 time; without an offset it is UTC."""

    def to_python(self, value: Any) -> datetime | None:
        if value in self.empty_values:
            return None
        try:
            # In a query string an unescaped “+” arrives as a space.
            moment = parse_datetime(str(value).strip().replace(" ", "+", 1))
        except ValueError:
            moment = None
        # Far years overflow when a database converts them.
        if moment is None or not 1970 <= moment.year <= 9000:
            raise ValidationError("Write a time as 2030-01-31T12:00:00Z.")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class Moment(filters.Filter):
    field_class = MomentField


class FlagField(forms.Field):
    def to_python(self, value: Any) -> bool | None:
        if value in self.empty_values:
            return None
        if value not in ("true", "false"):
            raise ValidationError("Must be “true” or “false”.")
        return bool(value == "true")


class Flag(filters.Filter):
    field_class = FlagField
