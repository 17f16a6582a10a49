"""When the database takes no writes (a standby, a full disk, a lock), readers are served and
writers are told why they cannot write."""

import re
from contextlib import ExitStack, contextmanager
from html import unescape

import pytest
from django.contrib.sessions.backends.base import UpdateError
from django.contrib.sessions.models import Session
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.urls import resolve

from tenants import outage
from tenants.models import ApiToken, User
from tenants.outage import trouble_of
from tenants.services.tokens import create_token
from tenants.sign_in.idle import SEEN
from tenants.sign_in.sessions import SessionStore
from tests.cases import some

READ_ONLY = "The database accepts no writes at the moment."
LINK = re.compile(r'(?:href|hx-get)="(/[^"#]*)')
# Streams, and views that end a session.
NOT_READ = ("events", "logout", "oidc")
AT_LEAST = 60  # views


@contextmanager
def takes_no_writes():
    sqlite = connection.vendor == "sqlite"
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("PRAGMA query_only = ON" if sqlite else "SET TRANSACTION READ ONLY")
        yield
        transaction.set_rollback(True)
    if sqlite:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA query_only = OFF")


@pytest.fixture
def read_only():
    """Call it to make the database read-only for the rest of the test."""
    with ExitStack() as rest:
        yield lambda: rest.enter_context(takes_no_writes())


def of_rest(client):
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    return [path for path, operations in paths.items() if "get" in operations and "{" not in path]


def walked(client):
    """Return {view: status} for the first address of each view that pages or REST lead to."""
    found, todo = {}, ["/", *of_rest(client)]
    for path in todo:
        if path.startswith("/static/"):
            continue
        view = resolve(path.partition("?")[0]).view_name
        if view in found or any(word in view for word in NOT_READ):
            continue
        answer = client.get(path)
        found[view] = answer.status_code
        if answer.status_code == 302:
            todo.append(answer.url)
        elif not answer.streaming and "html" in answer.headers.get("Content-Type", ""):
            todo += map(unescape, LINK.findall(answer.content.decode()))
    return found


@pytest.mark.parametrize("user", some(["operator", "vera", "erin"]))
def test_whoever_reads_is_served_as_before(as_user, user, read_only, settings):
    settings.KANT_IDLE_MINUTES = 120  # records who uses pages
    before = walked(as_user(user))
    assert len(before) > (AT_LEAST if user == "operator" else AT_LEAST / 2)
    as_user(user).logout()
    client = as_user(user)  # a session with no such record yet
    read_only()
    assert walked(client) == before


def test_programs_read_with_a_token_that_was_never_used(as_user, read_only):
    as_user("erin")
    token = create_token(User.objects.get(username="erin"), "test")
    authorization = {"Authorization": f"Bearer {token.secret}"}
    read_only()
    client = Client()
    assert client.get("/api/v1/jobs", headers=authorization).status_code == 200
    refused = client.post(
        "/api/v1/tokens", {"name": "x"}, content_type="application/json", headers=authorization
    )
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert refused.json()["detail"].startswith(READ_ONLY)
    assert ApiToken.objects.get(name="test").last_used_at is None


def test_what_is_wrong_with_the_database_is_not_taken_for_the_end_of_a_session(as_user, read_only):
    client = as_user("erin")
    read_only()
    client.raise_request_exception = False
    refused = client.post("/settings/tokens/", {"name": "x"})
    assert refused.status_code == 503
    assert READ_ONLY in refused.content.decode()
    session = SessionStore(client.cookies["sessionid"].value)
    session["x"] = 1
    with pytest.raises(DatabaseError) as told:
        session.save()
    assert trouble_of(told.value) == outage.READ_ONLY


def test_a_session_that_somebody_ended_is_told_as_before(as_user):
    client = as_user("erin")
    session = SessionStore(client.cookies["sessionid"].value)
    session["x"] = 1
    Session.objects.all().delete()
    with pytest.raises(UpdateError):
        session.save()


def test_what_is_noted_is_stored_where_it_can_be(as_user, settings):
    settings.KANT_IDLE_MINUTES = 120
    client = as_user("erin")
    assert client.get("/").cookies["sessionid"]["max-age"]  # it also lasts longer
    assert SessionStore(client.cookies["sessionid"].value)[SEEN] > 0
