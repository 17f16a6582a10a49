"""What the forms of all pages share: their error messages and their look."""

import re
from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm

from tenants import texts
from tenants.sign_in import attempts

# The error message of fields that cannot parse the input. All other fields accept any text.
ILLEGIBLE: dict[type[forms.Field], str] = {
    forms.IntegerField: texts.WHOLE_NUMBER,
    forms.DecimalField: texts.NUMBER,
    forms.UUIDField: texts.UUID,
    forms.DateTimeField: texts.TIME,
}

# For amounts such as GPUs; nobody writes more digits.
PLAIN_AMOUNT = re.compile(r"[0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18}")
PLAIN_NUMBER = re.compile(r"([+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+))?")


class PlainForm(forms.Form):
    """A form whose error messages are Kant's."""

    def full_clean(self) -> None:
        # Not earlier: until then a form may still set the choices of its fields.
        for field in self.fields.values():
            field.error_messages |= _told_by(field)
        super().full_clean()

    def _clean_fields(self) -> None:
        super()._clean_fields()  # type: ignore[misc]
        # Python also accepts "1_000", "1e3" and the digits of other scripts.
        for name, field in self.fields.items():
            if field.disabled or name not in self.cleaned_data:
                continue
            if isinstance(field, forms.IntegerField | forms.DecimalField):
                typed = self[name].data
                if typed is not None and not PLAIN_NUMBER.fullmatch(str(typed).strip()):
                    self.add_error(name, texts.DIGITS)


def _told_by(field: forms.Field) -> dict[str, str]:
    told = dict(texts.DJANGO)
    illegible = (ILLEGIBLE[kind] for kind in type(field).__mro__ if kind in ILLEGIBLE)
    if text := next(illegible, None):
        told["invalid"] = text
    if isinstance(field, forms.IntegerField) and None not in (field.min_value, field.max_value):
        bounds = texts.between(field.min_value, field.max_value)
        told |= {"min_value": bounds, "max_value": bounds}
    if isinstance(field, forms.ChoiceField):
        choices: Any = field.choices  # pairs, whatever the choices were set from
        names = [str(title) for value, title in choices if value]
        told["invalid_choice"] = texts.one_of(", ".join(names))
    return told


class Fields(PlainForm):
    """A form in the look of the pages: Bootstrap classes, errors tied to their fields."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.use_required_attribute = False
        for field in self.fields.values():
            _dress(field)

    def add(self, name: str, field: forms.Field) -> None:
        """Add a field that not every form of the class has."""
        _dress(field)
        self.fields[name] = field

    def mark_errors(self) -> None:
        """Tie each wrong field to its message, for screen readers and for its red border."""
        for name in self.errors:
            if name in self.fields:
                self.fields[name].widget.attrs.update(
                    {"aria-invalid": "true", "aria-describedby": f"{self[name].auto_id}-error"}
                )

    def warn(self, name: str | None, text: str) -> None:
        """Report an error in a value that the form is shown with; None = in the form as a whole."""
        # A form without data has no `cleaned_data`, and add_error would look there.
        self.cleaned_data: dict[str, Any] = getattr(self, "cleaned_data", {})
        self.add_error(name, text)

    def focus(self, name: str) -> None:
        """Set the focus on this field when the page opens."""
        self.fields[name].widget.attrs["autofocus"] = True


def _dress(field: forms.Field) -> None:
    widget = field.widget
    if isinstance(widget, forms.CheckboxInput):
        widget.attrs["class"] = "form-check-input"
    else:
        select = isinstance(widget, forms.Select)
        widget.attrs["class"] = "form-select" if select else "form-control"


class SignInForm(PlainForm, AuthenticationForm):
    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "The user name or the password is wrong.",
        "too_many": "Too many wrong passwords for this user name, or from this address. Try again "
        f"in {attempts.WINDOW_S // 60} minutes.",
        "busy": "Too many people are signing in right now. Try again in a few seconds.",
    }

    def clean(self) -> dict[str, Any]:
        if self.errors:
            return self.cleaned_data
        assert self.request is not None
        name, address = self.cleaned_data["username"], attempts.client_address(self.request)
        if attempts.too_many(name, address):
            raise forms.ValidationError(self.error_messages["too_many"], code="too_many")
        try:
            with attempts.turn():
                cleaned = super().clean()
        except attempts.Busy:
            raise forms.ValidationError(self.error_messages["busy"], code="busy") from None
        attempts.forget(name, address)
        return cleaned
