"""Forms, queries, flags and files accept numbers in the digits 0 to 9 only."""

import argparse

import django_filters
import pytest
from django import forms
from django.apps import apps
from django.core.management import get_commands
from django.utils.module_loading import import_string

from kant.client.__main__ import _parser
from kant.commands import Commands
from scheduling.api.filters import JobFilter
from scheduling.models import Job
from scheduling.pages.queues.settings_form import GpuLimits
from scheduling.simulator.traces.table import Row, TraceFormatError
from tenants.forms import PlainForm

# Texts that only Python reads as numbers, or that are no numbers at all.
BAD = ["1e3", "1E3", "٤٨", "１６", "१", "NaN", "nan", "inf", "-inf", "1_000", "1,000", "0x10",
       "1 0", "²", "½", "1.5.", "--1", "1e400", "", "8h8"]  # fmt: skip
OWN = ("scheduling", "metrics", "webhooks", "tenants")
OF_TRACES = {"1e3", "1E3"}  # programs write times and sizes like this; people do not write traces


def subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def actions(parser, path=()):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from actions(below, (*path, name))
        elif action.type is not None:
            name = "/".join(action.option_strings) or action.dest
            read = parser._registry_get("type", action.type, action.type)
            yield pytest.param(read, id=" ".join((*path, name)))


def is_a_number(read):
    try:
        return read("8") in (8, 8.0, 8000)
    except Exception:
        return False


def takes_words(read):
    """Return whether the reader takes words beside a number. Quota cells do, because they also hold
    the mode; Kant itself checks their words."""
    try:
        return read("8 isolated") == "8 isolated"
    except Exception:
        return False


FLAGS = [one for one in actions(_parser()) if is_a_number(one.values[0])]
OF_COMMANDS = [
    one
    for name, app in get_commands().items()
    if app in ("kant", *OWN)
    for one in actions(Commands(["manage.py"]).fetch_command(name).create_parser("", name), (name,))
    if is_a_number(one.values[0])
]


def test_flags_that_take_numbers_are_found():
    assert len({one.id for one in FLAGS}) > 40
    assert len({one.id for one in OF_COMMANDS}) > 40


@pytest.mark.parametrize("text", ["1_000", "1e3", "٤٨"])
def test_manage_says_what_a_number_is(text, capsys):
    with pytest.raises(SystemExit):
        Commands(["manage.py", "simulate", "--seed", text]).execute()
    assert f"{text!r} is not a whole number in the digits 0 to 9" in capsys.readouterr().err


@pytest.mark.parametrize("read", [*FLAGS, *OF_COMMANDS])
def test_no_flag_reads_other_numbers(read):
    for text in BAD:
        if " " in text and takes_words(read):
            continue
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            pytest.fail(f"{text!r} is read as {read(text)!r}")


@pytest.mark.parametrize("text", BAD)
def test_no_limit_of_gpus_is_read_otherwise(text):
    assert GpuLimits(most=8).read(text) is None
    assert [GpuLimits(most=8).read(good) for good in ("8", " 0.5 ", "0")] == [8.0, 0.5, 0.0]


def test_a_queue_has_limits_in_digits(org, client):
    client.force_login(org.users["ada"])
    for text in (text for text in BAD if text):
        body = {"tenant": "vision", "name": "q", "rank": "0", "weight": "1"}
        answer = client.post("/queues/new/", {**body, "max_gpus": f"H100={text}"})
        assert answer.status_code == 422, text
        assert "TYPE=GPUS" in answer.content.decode()


def test_every_form_and_filter_reads_numbers_so():
    """`PlainForm` rejects other digits for its fields, so all forms of the product must inherit
    from it."""
    for app in ("scheduling.urls", "metrics.urls", "webhooks.urls", "tenants.urls"):
        import_string(f"{app}.urlpatterns")
    assert apps.ready
    mine = [f for f in subclasses(forms.Form) if f.__module__.split(".")[0] in OWN]
    assert len(mine) > 15
    assert [f for f in mine if not issubclass(f, PlainForm)] == []
    sets = [f for f in subclasses(django_filters.FilterSet) if f.__module__.split(".")[0] in OWN]
    numbers = 0
    for of in sets:
        for name, one in of.base_filters.items():
            if isinstance(one, django_filters.NumberFilter):
                numbers += 1
                for text in BAD[:-2]:
                    made = of({name: text}, queryset=Job.objects.none())
                    assert text == "" or not made.form.is_valid(), (of, name, text)
    assert numbers >= 2
    assert JobFilter in sets


@pytest.mark.parametrize("text", [text for text in BAD if text not in {*OF_TRACES, ""}])
def test_no_trace_has_other_numbers(text):
    with pytest.raises(TraceFormatError):
        Row(1, {"gpus": text}).number("gpus")
