"""Every validation message is in Kant's words, never in those of Django or DRF."""

import inspect
import re
from collections.abc import Iterator

import django.forms
import pytest
import rest_framework.fields
import rest_framework.serializers
from django.core import validators
from django.forms import formsets
from django.http import QueryDict
from django.test import Client
from django.urls import get_resolver
from django.utils.http import urlencode
from rest_framework import serializers

from scheduling.pages.jobs.submit_form import JobForm, PodSets, all_forms
from tenants.api.base import View
from tenants.api.fields import Told
from tenants.api.problems import said
from tests.e2e.test_pages_submission import FORM, FULL
from tests.tenants.test_api_problems import check

WRONG = (None, True, -1, 1.5, 10**30, "", "x" * 70_000, "no such", [], ["x"], [[]], {}, {"x": 1})


def stock() -> list[re.Pattern[str]]:
    """Return the built-in messages of Django and DRF, as patterns with wildcards for inserted
    values."""
    modules = (django.forms.fields, formsets, rest_framework.fields, rest_framework.serializers)
    found = {
        str(text)
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        for text in getattr(kind, "default_error_messages", {}).values()
        if not issubclass(kind, Told)
    }
    found |= {
        str(kind.message)
        for _, kind in inspect.getmembers(validators, inspect.isclass)
        if isinstance(getattr(kind, "message", None), str) or hasattr(kind, "message")
    }
    found |= {"Ensure this value has at most %(limit_value)d characters (it has %(show_value)d)."}
    filled = [re.split(r"%\(\w+\)\w|\{\w+\}", text) for text in found]
    return [re.compile(".+".join(map(re.escape, parts))) for parts in filled]


STOCK = stock()


@pytest.mark.parametrize(
    "text",
    [
        "This field is required.",
        "A valid integer is required.",
        "Ensure this value is less than or equal to 8.",
        "Ensure this value has at most 63 characters (it has 70).",
        "Enter a whole number.",
        "Must be a valid boolean.",
        'Expected a list of items but got type "str".',
    ],
)
def test_words_of_django_and_drf_are_known_when_seen(text):
    assert any(pattern.fullmatch(text) for pattern in STOCK)


def assert_own(text: str, about: object) -> None:
    assert text, about
    assert not any(pattern.fullmatch(text) for pattern in STOCK), (about, text)


def views(patterns=None) -> Iterator[type[View]]:
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        if hasattr(pattern, "url_patterns"):
            yield from views(pattern.url_patterns)
        elif issubclass(kind := getattr(pattern.callback, "cls", object), View):
            yield kind


def inputs() -> dict[str, type[serializers.Serializer]]:
    bodies = (shape.body for view in views() for shape in view.shapes.values())
    return {body.__name__: body for body in bodies if body is not None}


def fields(field: serializers.Field) -> Iterator[serializers.Field]:
    yield field
    for child in getattr(field, "fields", {}).values():
        yield from fields(child)
    if (child := getattr(field, "child", None)) is not None:
        yield from fields(child)


def texts(detail) -> Iterator[str]:
    if isinstance(detail, str):
        yield detail
    else:
        for part in detail.values() if isinstance(detail, dict) else detail:
            yield from texts(part)


@pytest.mark.parametrize("name", inputs())
def test_no_body_is_refused_in_the_words_of_drf(name):
    serializer = inputs()[name]()
    # The values of a free-form object may be anything, so nothing is checked there.
    free = rest_framework.fields._UnvalidatedField
    for field in fields(serializer):
        assert isinstance(field, Told | free), field
    for body in (*WRONG, {}, *({name: w} for name in serializer.fields for w in WRONG)):
        with_errors = inputs()[name](data=body)
        if not with_errors.is_valid():
            for text in texts(with_errors.errors):
                assert_own(text, body)


LISTS = {v.__name__: v for v in views() if getattr(v, "filterset_class", None)}


@pytest.mark.django_db
@pytest.mark.parametrize("kind", sorted(LISTS))
def test_no_parameter_is_refused_in_the_words_of_django(kind):
    kind, refused = LISTS[kind], set()
    for name in kind.filterset_class.base_filters:
        for wrong in ("no such", "x" * 70_000, "-1", "1e400", "9" * 40, "٣", "1.23456789"):
            form = kind.filterset_class(QueryDict(urlencode({name: wrong}))).form
            for text in texts(form.errors):
                refused.add(name)
                assert_own(text, (name, wrong))
    assert refused == set(kind.filterset_class.base_filters)


@pytest.mark.parametrize(
    "typed",
    [
        *({**FULL, name: w} for name in FULL for w in ("", "x" * 700, "-1", "1e99", "1.23456789")),
        {**FORM, "sets-TOTAL_FORMS": "33"},
        {**FORM, "sets-0-volumes-TOTAL_FORMS": "33"},
        {**FORM, "sets-TOTAL_FORMS": "0"},
        {**FORM, "sets-0-cpus": "x", "sets-0-memory_gib": "9" * 20},
    ],
    ids=str,
)
def test_no_form_is_refused_in_the_words_of_django(typed):
    kinds = {"gpu_types": ["H200"]}
    job = JobForm(typed, tenants=["vision"], clusters=[])
    sets = PodSets(typed, prefix="sets", form_kwargs=kinds)
    for _, form in all_forms(job, sets):
        for text in texts(form.errors):
            assert_own(text, typed)
    for formset in (sets, *(form.volumes for form in sets.forms)):
        for text in formset.non_form_errors():
            assert_own(text, typed)


def test_a_sign_in_is_refused_in_the_words_of_kant(client, org):
    wrong = client.post("/login/", {"username": "eve", "password": "wrong"})
    assert "The user name or the password is wrong." in wrong.content.decode()


def test_the_faults_of_a_row_are_told_in_the_words_of_kant(client, org):
    client.force_login(org.users["eve"])
    page = client.post("/settings/tokens/", {"name": "x" * 101, "lasts": "90"})
    assert page.status_code == 422
    assert "Must have at most 100 characters." in page.content.decode()


def test_refusals_before_any_field_are_told_in_the_words_of_kant(client, org):
    body = check(client.get("/api/v1/jobs"), 401, "not-signed-in")
    assert body["detail"] == said("not-signed-in")
    eve = org.client("eve")
    body = check(eve.put("/api/v1/jobs", {}, format="json"), 405, "method-not-allowed")
    assert body["detail"] == said("method-not-allowed")
    body = check(eve.get("/api/v1/jobs", headers={"Accept": "text/html"}), 406, "not-acceptable")
    assert body["detail"] == said("not-acceptable")
    form = {"data": b"a=b", "content_type": "application/x-www-form-urlencoded"}
    body = check(eve.post("/api/v1/jobs", **form), 415, "unsupported-media-type")
    assert body["detail"] == said("unsupported-media-type")
    body = check(eve.post("/api/v1/jobs", [], format="json"), 422, "invalid")
    assert body["detail"] == "The body: Must be an object (JSON object)."
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(org.users["eve"])
    body = check(browser.post("/api/v1/jobs", {}, "application/json"), 403, "not-allowed")
    assert "X-CSRFToken" in body["detail"]
