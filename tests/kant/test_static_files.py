"""Django serves static files in a form that suits an ASGI server."""

import asyncio
import warnings

import pytest
from django.conf import settings
from django.test import AsyncClient, Client

STYLES = "/static/css/tokens.css"


def fetch(path: str, **headers: str):
    return asyncio.run(AsyncClient().get(path, headers=headers))


def test_a_file_is_served_whole_and_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = fetch(STYLES)
    assert answer.status_code == 200
    assert not answer.streaming
    assert answer["Content-Type"].startswith("text/css")
    assert answer.content == (settings.BASE_DIR / STYLES[1:]).read_bytes()
    assert int(answer["Content-Length"]) == len(answer.content)
    assert "Content-Security-Policy" in answer


def test_an_unchanged_file_is_not_sent_again():
    first = fetch(STYLES)
    again = fetch(STYLES, **{"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "Content-Type" not in again


@pytest.mark.parametrize(
    ("wanted", "status", "size"), [("bytes=0-9", 206, 10), ("bytes=99999999-", 416, 0)]
)
def test_a_part_of_a_file(wanted, status, size):
    answer = fetch(STYLES, Range=wanted)
    assert (answer.status_code, len(answer.content)) == (status, size)


def test_only_the_head_and_only_reading():
    head = Client().head(STYLES)
    assert (head.status_code, head.content) == (200, b"")
    assert Client().post(STYLES).status_code == 405
