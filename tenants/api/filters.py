"""Filters of query parameters, stricter than the library's: no guesses, no silent defaults."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import django_filters as filters
from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import exceptions

from tenants import texts
from tenants.api.problems import bad_query
from tenants.forms import PlainForm
from tenants.models import (
    AuditRecord,
    Membership,
    OrderState,
    Queue,
    QueueState,
    Quota,
    QuotaDraft,
    QuotaMode,
    QuotaOrder,
    Role,
    Tenant,
)
from tenants.names import Names, gpu_type_names, tenant_names, user_names
from tenants.selectors import id_begins
from tenants.services.audit import ACTIONS


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
            raise ValidationError(texts.TIME)
        # PostgreSQL refuses offsets of 16 hours and more.
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


@extend_schema_field(OpenApiTypes.DATETIME)
class MomentFilter(filters.Filter):
    field_class = MomentField


class NumberField(forms.IntegerField):
    """A whole number written in digits only."""

    def to_python(self, value: Any) -> int | None:
        text = "" if value in self.empty_values else str(value)
        if text and not (text.isascii() and text.isdigit()):
            raise ValidationError(texts.WHOLE_NUMBER)
        return super().to_python(text)


@extend_schema_field(OpenApiTypes.INT)
class NumberFilter(filters.Filter):
    field_class = NumberField


class FlagField(forms.Field):
    def to_python(self, value: Any) -> bool | None:
        if value in self.empty_values:
            return None
        if value not in ("true", "false"):
            raise ValidationError("Must be “true” or “false”.")
        return bool(value == "true")


@extend_schema_field(OpenApiTypes.BOOL)
class FlagFilter(filters.Filter):
    field_class = FlagField


class OneOf(filters.ChoiceFilter):
    """One of several names; the error message lists them."""

    def __init__(self, names: Iterable[str], **kwargs: Any) -> None:
        super().__init__(choices=_choices(names), **kwargs)


class AnyOf(filters.MultipleChoiceFilter):
    """Like OneOf; may be repeated."""

    def __init__(self, names: Iterable[str], **kwargs: Any) -> None:
        super().__init__(choices=_choices(names), label="May be given several times.", **kwargs)


def _choices(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(str(name), str(name)) for name in names]


class Named(filters.CharFilter):
    """The name of a thing that rows belong to.

    An unknown name is refused. `names` returns the known ones, given the user and the unfiltered
    rows.
    """

    def __init__(
        self, *args: Any, names: Callable[[Any, QuerySet[Any]], Names], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.names = names


def of_tenant(*args: Any, label: str = "Name of the tenant.", **kwargs: Any) -> Named:
    return Named(
        *args, names=lambda user, _: tenant_names(user), max_length=63, label=label, **kwargs
    )


class FilterSet(filters.FilterSet):
    """The filters of a list, with Kant's error messages."""

    def get_form_class(self) -> type[forms.Form]:
        fields = {name: filter_.field for name, filter_ in self.filters.items()}
        return type("Parameters", (PlainForm,), fields)

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        refused = {}
        for name, value in self.form.cleaned_data.items():
            if value and isinstance(filter_ := self.filters[name], Named):
                names = filter_.names(self.request.user, queryset)
                if value not in names:
                    refused[name] = [names.refusal(value)]
        if refused:
            raise exceptions.ValidationError(refused)
        return super().filter_queryset(queryset)


def asked_for(parameter: str, name: str, names: Names) -> Any:
    """Return the row that a parameter names; raise a Problem when there is none."""
    if (row := names.row(name)) is None:
        raise bad_query(parameter, names.refusal(name))
    return row


class TenantFilter(FilterSet):
    parent = of_tenant("parent__name", label="Name of the parent.")
    is_active = FlagFilter("is_active", label="true or false.")
    q = filters.CharFilter(method="matching", max_length=100, label="Part of name or title.")

    class Meta:
        model = Tenant
        fields: list[str] = []

    def matching(self, rows: QuerySet[Tenant], _: str, text: str) -> QuerySet[Tenant]:
        return rows.filter(Q(name__icontains=text) | Q(title__icontains=text))


class MemberFilter(FilterSet):
    role = AnyOf(Role.values)
    q = filters.CharFilter(
        "user__username", "icontains", max_length=150, label="Part of the user name."
    )
    inherited = FlagFilter(method="as_listed", label="true = also members of tenants above.")

    class Meta:
        model = Membership
        fields: list[str] = []

    def as_listed(self, rows: QuerySet[Membership], _: str, __: bool) -> QuerySet[Membership]:
        """The view has already selected the rows."""
        return rows


class QuotaFilter(FilterSet):
    tenant = of_tenant("tenant__name")
    gpu_type = Named(
        "gpu_type__name",
        names=lambda *_: gpu_type_names(),
        max_length=63,
        label="Name of the GPU type.",
    )
    mode = OneOf(QuotaMode)

    class Meta:
        model = Quota
        fields: list[str] = []


def author_names(user: Any, drafts: QuerySet[QuotaDraft]) -> Names:
    """The users that the user may know, and the authors of these drafts."""
    known = user_names(user)
    return replace(known, sources=(*known.sources, (drafts, "author__username")))


class DraftFilter(FilterSet):
    author = Named(
        "author__username",
        names=author_names,
        max_length=150,
        label="Name of the user.",
    )

    class Meta:
        model = QuotaDraft
        fields: list[str] = []


class OrderFilter(FilterSet):
    state = AnyOf(OrderState)

    class Meta:
        model = QuotaOrder
        fields: list[str] = []


class QueueFilter(FilterSet):
    tenant = of_tenant("tenant__name")
    state = AnyOf(QueueState)
    name = filters.CharFilter("name", max_length=63, label="The full name.")
    q = filters.CharFilter(method="matching", max_length=100, label="Part of name or title.")

    class Meta:
        model = Queue
        fields: list[str] = []

    def matching(self, rows: QuerySet[Queue], _: str, text: str) -> QuerySet[Queue]:
        return rows.filter(Q(name__icontains=text) | Q(title__icontains=text))


def actor_names(user: Any, records: QuerySet[AuditRecord]) -> Names:
    """The users that the user may know, and the authors of these changes."""
    known = user_names(user)
    return replace(known, sources=(*known.sources, (records, "actor_name")))


def _subject(action: str) -> str:
    return action.partition(".")[0]


class AuditFilter(FilterSet):
    tenant = of_tenant("tenant__name")
    actor = Named("actor_name", names=actor_names, max_length=150, label="Name of the user.")
    action = Named(
        method="of_action",
        names=lambda *_: Names("action", fixed=(*ACTIONS, *dict.fromkeys(map(_subject, ACTIONS)))),
        max_length=64,
        label="E.g. quota.changed; quota = all actions on quotas.",
    )
    q = filters.CharFilter(
        method="matching", max_length=200, label="Part of the subject, or the start of the id."
    )
    after = MomentFilter("at", "gt", label="Time, e.g. 2030-01-31T12:00:00Z.")
    before = MomentFilter("at", "lt", label="Time, e.g. 2030-01-31T12:00:00Z.")

    class Meta:
        model = AuditRecord
        fields: list[str] = []

    def of_action(self, rows: QuerySet[AuditRecord], _: str, name: str) -> QuerySet[AuditRecord]:
        return rows.filter(Q(action=name) | Q(action__startswith=f"{name}."))

    def matching(self, rows: QuerySet[AuditRecord], _: str, text: str) -> QuerySet[AuditRecord]:
        return rows.filter(Q(subject__icontains=text) | id_begins(text))
