"""Forms accept plain digits, and nothing that only Python reads as a number."""

import pytest
from django import forms

from tenants import texts
from tenants.forms import PlainForm


@pytest.mark.parametrize("typed", ["1_000", "٣٢", "１２", "1e3", "1²"])
def test_numbers_of_forms_are_plain_digits(typed):
    class Numbers(PlainForm):
        whole = forms.IntegerField()
        part = forms.DecimalField()

    form = Numbers({"whole": typed, "part": typed})
    assert not form.is_valid()
    assert set(form.errors) == {"whole", "part"}
    if typed == "1_000":
        assert form.errors["whole"] == [texts.DIGITS]
    plain = Numbers({"whole": " 12 ", "part": "-0.50"})
    assert plain.is_valid()
    assert plain.cleaned_data["whole"] == 12
