"""Form fields generated from the definition of a job's fields, and their values as a document."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django import forms
from msgspec import Struct, inspect

from scheduling.job_fields.definition import DeviceClaimDocument, SecretKeyDocument
from scheduling.job_fields.parts import Field, fields_of, plain
from scheduling.job_fields.values import SLUGS
from scheduling.pages.form_fields import ClaimLines, NamesField, NodeTerms, Pairs, SecretKeys
from tenants.forms import Fields
from tenants.models import slug_validator

F = TypeVar("F", bound=type[Fields])


def asks(struct: type[Struct]) -> Callable[[F], F]:
    """Return a class decorator that adds a form field for each field that the definition asks
    for."""

    def with_fields(form: F) -> F:
        for name, field in asked_of(struct).items():
            form.base_fields.setdefault(name, _form_field(field))
        return form

    return with_fields


def asked_of(struct: type[Struct]) -> dict[str, Field]:
    """Return {name of the form field: the field it stands for}."""
    fields = fields_of(struct).values()
    return {f.asked.name or f.name: f for f in fields if f.asked is not None}


def asked(struct: type[Struct], name: str, **kwargs: Any) -> Any:
    """Return the form field for one of them; `kwargs` override what a submission uses."""
    return _form_field(fields_of(struct)[name], **kwargs)


def folded(struct: type[Struct]) -> list[str]:
    """Return the names of the form fields that few people need."""
    return [name for name, f in asked_of(struct).items() if f.asked and f.asked.folded]


def document_of(form: Fields, struct: type[Struct]) -> dict[str, Any]:
    """Return the values of these fields of a valid form; empty ones are left out."""
    typed = {f.name: read(f, form.cleaned_data.get(n)) for n, f in asked_of(struct).items()}
    return {name: value for name, value in typed.items() if value not in (None, "", [], {})}


def read(field: Field, typed: Any) -> Any:
    """Convert a cleaned value to its form in the document."""
    return typed if field.unit is None or typed is None else field.unit.read(typed)


def typed_of(struct: type[Struct], document: dict[str, Any]) -> dict[str, Any]:
    """Take from the document the values that fields can show, and return the fields' contents.

    Of a mapping, entries that do not fit on a line stay in the document.
    """
    found: dict[str, Any] = {}
    for name, field in asked_of(struct).items():
        if field.name in document:
            value = document.pop(field.name)
            typed, lost = write(field, value)
            if typed is not None:
                found[name] = typed
            if typed is None or lost:
                document[field.name] = {n: value[n] for n in lost} if lost else value
    return found


def write(field: Field, value: Any) -> tuple[Any, list[str]]:
    """Return (the value as people type it, or None if it cannot be typed; the entries that cannot
    be typed)."""
    if field.unit is not None:
        return field.unit.write(value), []
    kind = _class_of(field)
    if issubclass(kind, Pairs):
        return kind.typed(value)
    if issubclass(kind, NamesField | NodeTerms):
        return kind.typed(value), []
    if issubclass(kind, forms.DateTimeField):
        return (value if value == value.replace(second=0, microsecond=0) else None), []
    return value, []


def _form_field(field: Field, **kwargs: Any) -> forms.Field:
    assert field.asked is not None, field.name
    said = {"label": field.asked.label, "help_text": field.asked.hint}
    return _class_of(field)(**{**said, **_arguments(field), **kwargs})


def _class_of(field: Field) -> type[forms.Field]:
    of = plain(field.type)
    if field.unit is not None:
        return forms.DecimalField
    if field.kind.one_of:
        return forms.ChoiceField
    match of:
        case inspect.DictType(value_type=inspect.StructType(cls=of_value)):
            return {SecretKeyDocument: SecretKeys, DeviceClaimDocument: ClaimLines}[of_value]
        case inspect.DictType():
            return Pairs
        case inspect.ListType(item_type=inspect.StructType()):
            return NodeTerms
        case inspect.ListType():
            return NamesField
    return _SIMPLE[type(of)]


_SIMPLE: Mapping[type, type[forms.Field]] = {
    inspect.IntType: forms.IntegerField,
    inspect.BoolType: forms.BooleanField,
    inspect.StrType: forms.CharField,
    inspect.DateTimeType: forms.DateTimeField,
}


def _arguments(field: Field) -> dict[str, Any]:
    assert field.asked is not None
    unit, of = field.unit, plain(field.type)
    least, most = field.limits or (0, 0)
    # An empty field means the document's default.
    needed = not (field.asked.folded or field.optional)
    match of:
        case inspect.IntType() if unit is not None:
            return {
                "required": False,
                "min_value": unit.least,
                "max_value": most // unit.size,
                "decimal_places": unit.decimals,
            }
        case inspect.IntType():
            initial = {"initial": field.default} if needed else {}
            return {"required": needed, "min_value": least, "max_value": most, **initial}
        case inspect.BoolType():
            return {"required": False, "initial": field.default}
        case inspect.StrType() if field.kind.one_of:
            choices = [(one, one.capitalize()) for one in field.kind.one_of]
            return {"choices": choices, "initial": field.default}
        case inspect.StrType(max_length=longest):
            validators = [slug_validator] if field.kind is SLUGS else []
            # A value typed into a folded field unfolds it, so it gets no initial one.
            typed = isinstance(field.default, str) and not field.asked.folded
            initial = {"initial": field.default} if typed else {}
            return {
                "required": needed,
                "max_length": longest,
                "validators": validators,
                **initial,
            }
        case inspect.DateTimeType():
            widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
            return {"required": False, "widget": widget}
        case inspect.DictType(max_length=longest):
            return {"most": longest}
        case inspect.ListType(item_type=inspect.StrType(), max_length=longest):
            return {"most": longest}
    return {}
