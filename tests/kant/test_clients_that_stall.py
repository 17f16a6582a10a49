"""Kant stops waiting for a client that stays connected but neither sends nor reads."""

import asyncio
import json
import sys

import pytest
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path

from kant import answers, bodies
from kant.answers import TakenAnswers
from kant.bodies import BoundedBodies
from kant.handler import Handler

SHORT_S, LONG_S, PATIENT_S = 0.1, 0.5, 2.0
ended = []


async def pieces():
    """A log that is followed: a line comes now and then."""
    try:
        for _ in range(3):
            yield b"line\n"
            await asyncio.sleep(LONG_S)
    finally:
        ended.append("log")


async def follow(_):
    return StreamingHttpResponse(pieces())


async def take(request):
    await asyncio.sleep(LONG_S)
    return HttpResponse(str(len(request.body)))


urlpatterns = [path("follow", follow), path("take", take)]


@pytest.fixture(autouse=True)
def _impatient(settings, monkeypatch):
    monkeypatch.setattr(answers, "TAKEN_WITHIN_S", SHORT_S)
    monkeypatch.setattr(bodies, "PAUSE_S", SHORT_S)
    monkeypatch.setattr(bodies, "LINGER_S", SHORT_S)
    settings.ROOT_URLCONF = sys.modules[__name__]
    settings.MIDDLEWARE = []
    ended.clear()


class Client:
    """Send these pieces of a body, the last one completely, and read this many messages."""

    def __init__(self, *sends, takes=1000, pause_s=0.0):
        self.sends, self.takes, self.pause_s, self.taken = list(sends), takes, pause_s, []

    async def receive(self):
        if not self.sends:
            await asyncio.Event().wait()
        await asyncio.sleep(self.pause_s)
        body = self.sends.pop(0)
        return {"type": "http.request", "body": body, "more_body": body != b"end"}

    async def send(self, message):
        if len(self.taken) >= self.takes:
            await asyncio.Event().wait()
        await asyncio.sleep(self.pause_s)
        self.taken.append(message)

    def asks(self, address, method="POST"):
        """Return the status and as much of the answer's body as was read."""
        scope = {
            "type": "http",
            "method": method,
            "path": address,
            "raw_path": address.encode(),
            "query_string": b"",
            "headers": [],
        }
        app = TakenAnswers(BoundedBodies(Handler()))

        async def within():
            async with asyncio.timeout(60.0):
                await app(scope, self.receive, self.send)

        asyncio.run(within())
        text = b"".join(message.get("body", b"") for message in self.taken)
        return self.taken[0]["status"] if self.taken else None, text


@pytest.mark.parametrize("begins", [[], [b"a" * 100]])
def test_a_body_that_stops_coming_is_refused(begins):
    status, told = Client(*begins).asks("/api/v1/take")
    assert (status, json.loads(told)["code"]) == (408, "too-slow")


def test_a_slow_body_and_a_slow_answer_are_waited_for(monkeypatch):
    """Only pauses count, not the total time. A busy machine may sleep for longer than asked."""
    monkeypatch.setattr(answers, "TAKEN_WITHIN_S", PATIENT_S)
    monkeypatch.setattr(bodies, "PAUSE_S", PATIENT_S)
    pause_s = PATIENT_S / 10
    client = Client(*[b"abc"] * 11, b"end", pause_s=pause_s)
    assert client.asks("/take") == (200, b"36")


def test_lines_may_be_far_apart():
    assert Client(b"end").asks("/follow", "GET") == (200, b"line\n" * 3)
    assert ended == ["log"]


@pytest.mark.parametrize("takes", [0, 1, 2])
def test_an_answer_that_nobody_takes_is_given_up(takes, caplog):
    status, told = Client(b"end", takes=takes).asks("/follow", "GET")
    assert (status, told) == (200 if takes else None, b"line\n" * max(0, takes - 1))
    assert ended == ["log"] * (takes > 0)
    assert "the answer to /follow is given up" in caplog.text
