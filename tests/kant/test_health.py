"""Health probes of the web process."""

import pytest
from django.db import OperationalError, connection
from django.test import Client

BY_ADDRESS = {"host": "10.1.2.3:8000"}  # a kubelet knows no host name


def test_a_process_answers_whatever_is_away(client: Client):
    answer = client.get("/healthz", headers=BY_ADDRESS)
    assert (answer.status_code, answer.content) == (200, b"The process answers.\n")


@pytest.mark.django_db
def test_a_process_is_ready_while_the_database_answers(client: Client, monkeypatch):
    answer = client.get("/readyz", headers=BY_ADDRESS)
    assert (answer.status_code, answer.content) == (200, b"The database answers.\n")

    def away():
        raise OperationalError("no route to host")

    monkeypatch.setattr(connection, "cursor", away)
    answer = client.get("/readyz", headers=BY_ADDRESS)
    assert (answer.status_code, answer.content) == (503, b"The database does not answer.\n")


def test_other_addresses_want_a_name_that_the_site_answers_to(client: Client):
    assert client.get("/login/", headers=BY_ADDRESS).status_code == 400
