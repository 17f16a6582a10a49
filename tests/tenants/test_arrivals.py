"""Which answers confirm that a form has arrived."""

import pytest
from django.core.exceptions import SuspiciousOperation
from django.db import OperationalError
from django.http import HttpResponse
from django.shortcuts import redirect
from django.test import Client
from django.urls import path

from kant.urls import handler400, handler500  # noqa: F401  (of the site below, too)
from kant.urls import urlpatterns as ours
from tenants.models import User
from tenants.web.pages import page_login_required

NUMBER = "0123456789abcdef" * 2


def refuse(request):
    raise SuspiciousOperation("too large")


def be_away(request):
    raise OperationalError("no connection")


def crash(request):
    raise ZeroDivisionError


ANSWERS = {
    "done": lambda request: redirect("/jobs/"),
    "shown": lambda request: HttpResponse("<p>What it would do"),
    "faults": lambda request: HttpResponse("<p>Correct it", status=422),
    "gone": lambda request: HttpResponse("<p>Gone", status=404),
    "unreadable": refuse,
    "away": be_away,
    "broken": crash,
    "signed-out": page_login_required(lambda request: HttpResponse("in")),
}
urlpatterns = [
    *(path(f"try/{name}/", view) for name, view in ANSWERS.items()),
    path("api/v1/try/", ANSWERS["shown"]),
    *ours,
]
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


def cookies(answer):
    return {name: one for name, one in answer.cookies.items() if name.startswith("kant-arrived")}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_form_has_arrived_when_its_view_has_judged_it(client, name):
    client.raise_request_exception = False
    if name != "signed-out":
        client.force_login(User.objects.create_user("ann"))
    answer = client.post(f"/try/{name}/", {"arrival": NUMBER})
    arrived = {f"kant-arrived-{NUMBER}"} if name in ("done", "shown", "faults", "gone") else set()
    assert set(cookies(answer)) == arrived, answer.status_code


@pytest.mark.parametrize("number", ["", "x" * 32, NUMBER[1:], f"{NUMBER}\n", NUMBER.upper()])
def test_what_is_no_number_of_ours_names_no_cookie(client, number):
    client.force_login(User.objects.create_user("ann"))
    assert not cookies(client.post("/try/shown/", {"arrival": number}))


def test_neither_rest_nor_a_page_that_is_read_is_told(client):
    client.force_login(User.objects.create_user("ann"))
    assert not cookies(client.get("/try/shown/", {"arrival": NUMBER}))
    assert not cookies(client.post("/api/v1/try/", {"arrival": NUMBER}))


def test_a_form_of_another_session_has_not_arrived():
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_user("ann"))
    answer = client.post("/try/done/", {"arrival": NUMBER})
    assert answer.status_code == 403
    assert not cookies(answer)


def test_the_cookie_goes_the_way_of_the_session(client, settings):
    settings.SESSION_COOKIE_SECURE = True
    client.force_login(User.objects.create_user("ann"))
    one = cookies(client.post("/try/done/", {"arrival": NUMBER}))[f"kant-arrived-{NUMBER}"]
    assert one["secure"]
    assert one["samesite"] == "Lax"
    assert not one["httponly"]  # the script of the page reads it
