"""How pages tell times relative to now: what has happened, and what may be past or to come."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tenants.templatetags.ui import ago, expected, lasted, when


@pytest.mark.parametrize(
    ("seconds", "past", "either", "span", "due"),
    [
        (-7200, "2 h ago", "2 h ago", "2 h", "overdue by 2 h"),
        (-90, "1 min 30 s ago", "1 min 30 s ago", "1 min 30 s", "overdue by 1 min 30 s"),
        (-1.5, "just now", "just now", "1 s", "overdue by 1 s"),
        # Clocks of machines differ: nothing that has happened lies ahead.
        (5.5, "just now", "in 5 s", "0 s", "in 5 s"),
        (7200.5, "just now", "in 2 h", "0 s", "in 2 h"),
    ],
)
def test_times_are_told_relative_to_now(time_machine, seconds, past, either, span, due):
    now = timezone.now()
    time_machine.move_to(now, tick=False)
    at = now + timedelta(seconds=seconds)
    texts = [tell(at).partition(">")[2].removesuffix("</time>") for tell in (ago, when, lasted)]
    assert texts == [past, either, span]
    assert f">{due}<" in expected(at)
    assert f'title="{at:%Y-%m-%d %H:%M:%S} UTC"' in ago(at)


def test_what_never_happened_is_told_so():
    assert ago(None) == "never"
