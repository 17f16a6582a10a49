"""A few permanent threads answer all requests, and clients that cannot be served are told so."""

import asyncio
import json
import sys
import threading
import time

import pytest
from django.core.cache import caches
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

from kant.handler import Handler
from tenants.web.listeners import nobody_listens

THREADS = 3
LATE_S = 60  # only a failure waits this long
go_on, begun, ended = threading.Event(), threading.Semaphore(0), []


def here(_):
    return JsonResponse({"thread": threading.get_ident(), "cache": id(caches["default"])})


def wait(_):
    begun.release()
    assert go_on.wait(LATE_S)
    return HttpResponse("waited")


async def lines():
    try:
        while True:
            yield b"line\n"
            await asyncio.sleep(0.01)
    finally:
        ended.append("log")


def follow(_):
    return StreamingHttpResponse(lines())


def asks_for_long(_):
    """A view that waits for another process's answer."""
    begun.release()
    until = time.monotonic() + LATE_S
    while not nobody_listens() and time.monotonic() < until:
        time.sleep(0.01)
    ended.append(nobody_listens())
    return HttpResponse("nobody hears it")


urlpatterns = [
    path("here", here),
    path("api/wait", wait),
    path("wait", wait),
    path("log", follow),
    path("long", asks_for_long),
]


@pytest.fixture
def handler(settings):
    settings.ROOT_URLCONF = sys.modules[__name__]
    settings.MIDDLEWARE = ["kant.health.Health"]
    settings.REQUEST_THREADS, settings.REQUEST_WAIT_S = THREADS, LATE_S
    go_on.clear()
    ended.clear()
    yield Handler()
    go_on.set()


async def asked(handler, address, takes=1000):
    """Return status, headers and body; the client leaves after this many messages."""
    scope = {"type": "http", "method": "GET", "path": address, "query_string": b"", "headers": []}
    sent, taken, gone = [{"type": "http.request"}], [], asyncio.Event()

    async def receive():
        if not sent:
            await gone.wait()
            return {"type": "http.disconnect"}
        return sent.pop()

    async def send(message):
        taken.append(message)
        if len(taken) == takes:
            gone.set()

    async with asyncio.timeout(LATE_S):
        await handler(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in taken[0]["headers"]}
    return taken[0]["status"], headers, b"".join(m.get("body", b"") for m in taken)


def test_threads_and_what_they_are_connected_to_stay(handler):
    """With a thread per request, each request would open a new connection to Redis."""

    async def many():
        return [
            await asyncio.gather(*(asked(handler, "/here") for _ in range(4))) for _ in range(9)
        ]

    told = [json.loads(body) for each in asyncio.run(many()) for _, _, body in each]
    assert len({one["thread"] for one in told}) <= THREADS
    assert len({one["cache"] for one in told}) <= THREADS


@pytest.mark.parametrize(("address", "kind"), [("/api/wait", "problem"), ("/wait", "text/html")])
def test_who_finds_no_thread_is_told_so_and_probes_are_answered(handler, settings, address, kind):
    async def crowd():
        waiting = [asyncio.create_task(asked(handler, "/wait")) for _ in range(THREADS)]
        for _ in waiting:
            await asyncio.to_thread(begun.acquire, timeout=LATE_S)
        try:
            settings.REQUEST_WAIT_S = 0.05
            refused = await asked(handler, address)
            settings.REQUEST_WAIT_S = LATE_S
            return refused, await asked(handler, "/healthz")
        finally:
            go_on.set()
            assert [(await each)[2] for each in waiting] == [b"waited"] * THREADS

    (status, headers, body), healthy = asyncio.run(crowd())
    assert (status, healthy[0]) == (503, 200)
    assert kind in headers["Content-Type"]
    assert int(headers["Retry-After"]) > 0
    assert b"Kant is busy: it is handling as many requests as it can." in body
    if address.startswith("/api/"):
        assert json.loads(body)["code"] == "busy"


def test_a_stream_ends_when_its_client_goes_and_takes_no_thread(handler):
    async def followed():
        return await asyncio.gather(*(asked(handler, "/log", takes=4) for _ in range(THREADS + 2)))

    assert {status for status, _, _ in asyncio.run(followed())} == {200}
    assert ended == ["log"] * (THREADS + 2)


def test_who_goes_takes_no_thread_any_more(handler):
    """A browser that asked at each key press once held a thread for each until its answer came."""

    async def gone_again():
        sent, gone = [{"type": "http.request"}], asyncio.Event()

        async def receive():
            if not sent:
                await gone.wait()
                return {"type": "http.disconnect"}
            return sent.pop()

        async def send(_):
            pass

        scope = {
            "type": "http", "method": "GET", "path": "/long", "query_string": b"", "headers": []
        }  # fmt: skip
        asks = asyncio.create_task(handler(scope, receive, send))
        await asyncio.to_thread(begun.acquire, timeout=LATE_S)
        gone.set()
        await asks

    async def many():
        async with asyncio.timeout(LATE_S):
            await asyncio.gather(*(gone_again() for _ in range(THREADS)))
            return await asked(handler, "/here")

    assert asyncio.run(many())[0] == 200
    assert ended == [True] * THREADS
    assert not nobody_listens()
