"""`bench pages` answers each of its questions, here on a small database, with few SQL
statements."""

from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command

from metrics.benches.pages import ask
from metrics.benches.pages.ask import QUESTIONS, measured
from metrics.benches.pages.fill import ForeignDatabase, Size, filled
from tenants.models import Tenant
from tenants.web import conditional

pytestmark = pytest.mark.django_db


def test_every_question_is_answered_by_few_statements(monkeypatch):
    monkeypatch.setattr(conditional, "WORDS_LAST_S", 10**9)
    # One answer of each kind shows what is measured over many.
    once = {name: replace(question, repeats=1) for name, question in ask.PAGES.items()}
    monkeypatch.setattr(ask, "PAGES", once)
    filled(Size().times(0.0005))
    found = {name: measured(name) for name in QUESTIONS}
    for told in found.values():
        for one in told.values():
            assert one["status"] in (0, 200, 304)
            assert one["statements"] > 0
            assert (one["bytes"] > 0) == (one["status"] == 200)
    for page in ("operations", "overview", "gang"):
        assert found[page]["unchanged"]["status"] == 304
        assert found[page]["unchanged"]["statements"] <= 8
    assert found["overview"]["again"]["statements"] <= 12


def test_a_database_of_others_is_left_alone():
    Tenant.objects.create(name="theirs")
    with pytest.raises(ForeignDatabase, match="create an empty one"):
        filled(Size())


def test_a_scale_has_to_be_above_nothing():
    with pytest.raises(CommandError, match="--scale 0: give a number above 0"):
        call_command("bench", "pages", "--scale", "0")
