"""The reflector against a scripted server: each way in which a list or a watch goes wrong."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from scheduling.kube.door import watch
from scheduling.kube.door.client import Client, NoReply, Reply
from scheduling.kube.door.watch import Reflector, WatchedKind, WatchTimes, lines
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.pods import pod_translator

PODS = WatchedKind("pods", "/api/v1/pods", "spec.schedulerName=kant", KubePod)


def pod(name, version="5", **extra):
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": version}
    return {"metadata": meta, "spec": {"schedulerName": "kant"}, **extra}


def event(kind, body):
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


def bookmark(version, *, end=False):
    annotations = {"k8s.io/initial-events-end": "true"} if end else {}
    meta = {"resourceVersion": version, "annotations": annotations}
    return event("BOOKMARK", {"metadata": meta})


def error(code, message="m"):
    return event("ERROR", {"code": code, "message": message})


class Response:
    """An answer in the pieces given; an exception among them breaks the connection."""

    def __init__(self, status=200, chunks=(), headers=None):
        self.status = status
        self.headers = headers or {}
        self._chunks = iter(chunks)

    async def piece(self):
        chunk = next(self._chunks, b"")
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    async def refusal(self):
        return json.dumps({"code": self.status, "message": f"said {self.status}"}).encode()


class ScriptedClient(Client):
    """Answers in turn: a Response to each watch, a Reply to each list; then nothing more."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = []
        self.done = asyncio.Event()

    server = "http://scripted"
    origin = "a test"

    def _next(self, path):
        if not self._answers:
            self.done.set()
            return None
        self.asked.append({k: v[0] for k, v in parse_qs(urlsplit(path).query).items()})
        return self._answers.pop(0)

    async def call(self, method, path, *_):
        answer = self._next(path)
        if answer is None:
            await asyncio.Event().wait()
        return answer

    @asynccontextmanager
    async def stream(self, path, read_timeout):
        answer = self._next(path)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        yield answer


class Watched:
    """What a reflector reported while the script lasted."""

    def __init__(self, monkeypatch, *answers, seen=None):
        self.news, self.health, self.pauses = [], [], []
        asyncio.run(self._run(monkeypatch, answers, seen))

    async def _run(self, monkeypatch, answers, seen):
        real_sleep = asyncio.sleep

        async def sleep(seconds):
            self.pauses.append(seconds)
            await real_sleep(0)

        monkeypatch.setattr(watch.asyncio, "sleep", sleep)
        self.client = ScriptedClient(*answers)
        self.reflector = Reflector(
            self.client,
            PODS,
            translate=pod_translator("kant"),
            identity=lambda facts: facts.uid,
            seen=seen or (lambda facts: self.news.append(("seen", facts.name))),
            gone=lambda facts: self.news.append(("gone", facts.name)),
            health=self.health.append,
            times=WatchTimes(first=1.0, last=8.0),
        )
        task = asyncio.get_running_loop().create_task(self.reflector.run())
        async with asyncio.timeout(60):
            await self.client.done.wait()
        task.cancel()

    @property
    def asked(self):
        return self.client.asked


def streamed(*names, version="9"):
    """Return the answer to the first list, as a stream that then ends."""
    events = [event("ADDED", pod(name)) for name in names]
    return Response(chunks=[*events, bookmark(version, end=True)])


def test_lines_of_any_cut():
    async def collect(chunks):
        return [line async for line in lines(Response(chunks=chunks))]

    text = b'{"a":1}\n{"b":2}\n{"c":3}\n'
    for size in range(1, len(text) + 1):
        chunks = [text[i : i + size] for i in range(0, len(text), size)]
        assert asyncio.run(collect(chunks)) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
    assert asyncio.run(collect([b"whole\n", b"cut off"])) == [b"whole"]
    long = b"x" * 3_000_000
    assert asyncio.run(collect([long, long + b"\n"])) == [long + long]


def test_a_list_as_a_stream_then_a_watch_from_its_end(monkeypatch):
    w = Watched(
        monkeypatch,
        streamed("a", "b"),
        Response(chunks=[event("MODIFIED", pod("a", "11")), bookmark("15")]),
        Response(chunks=[event("DELETED", pod("b", "17"))]),
    )
    assert w.news == [("seen", "a"), ("seen", "b"), ("seen", "a"), ("gone", "b")]
    assert w.asked[0]["sendInitialEvents"] == "true"
    assert w.asked[0]["fieldSelector"] == "spec.schedulerName=kant"
    assert [each.get("resourceVersion") for each in w.asked] == [None, "9", "15"]
    assert all(each["allowWatchBookmarks"] == "true" for each in w.asked)
    assert w.health[-1] is None
    assert w.pauses == []


@pytest.mark.parametrize("code", [400, 422])
def test_a_server_without_stream_lists_is_listed_in_pages(monkeypatch, code):
    def page(name, token):
        meta = {"resourceVersion": "7", "continue": token}
        return Reply(200, json.dumps({"metadata": meta, "items": [pod(name)]}).encode(), 0)

    w = Watched(
        monkeypatch,
        Response(code),
        page("a", "more"),
        page("b", ""),
        Response(chunks=[bookmark("8")]),
    )
    assert w.news == [("seen", "a"), ("seen", "b")]
    assert [each.get("continue") for each in w.asked[1:3]] == [None, "more"]
    assert w.asked[3]["resourceVersion"] == "7"
    assert w.health == [None, None]


def test_a_page_that_expires_starts_the_list_again(monkeypatch):
    first = {"metadata": {"resourceVersion": "7", "continue": "t"}, "items": [pod("a")]}
    whole = {"metadata": {"resourceVersion": "9"}, "items": [pod("b")]}
    w = Watched(
        monkeypatch,
        Response(422),
        Reply(200, json.dumps(first).encode(), 0),
        Reply(410, b"{}", 0),
        Reply(200, json.dumps(whole).encode(), 0),
        Response(chunks=[bookmark("9")]),
    )
    assert w.news == [("seen", "a"), ("seen", "b"), ("gone", "a")]


@pytest.mark.parametrize("answer", [Response(410), Response(chunks=[error(410)])])
def test_410_lists_again_and_reports_what_is_missing(monkeypatch, answer):
    w = Watched(monkeypatch, streamed("a", "b"), answer, streamed("b", "c"))
    assert w.news == [("seen", "a"), ("seen", "b"), ("seen", "c"), ("gone", "a")]
    assert "sendInitialEvents" in w.asked[2]


def test_410_for_ever_is_no_hot_loop(monkeypatch):
    w = Watched(monkeypatch, *[streamed("a"), Response(410)] * 6)
    assert len(w.pauses) >= 4


@pytest.mark.parametrize(
    "answer",
    [
        Response(chunks=[error(500, "internal")]),
        Response(chunks=[error(504, "Too large resource version")]),
        Response(chunks=[b'{"type":"ADDED","obj\n']),
        Response(chunks=[NoReply("broken", sent=True)]),
        NoReply("no connection", sent=False),
        Response(503),
    ],
)
def test_other_breaks_resume_where_the_watch_was(monkeypatch, answer):
    w = Watched(monkeypatch, streamed("a"), answer, Response(chunks=[bookmark("12")]))
    assert [each.get("resourceVersion") for each in w.asked] == [None, "9", "9"]
    assert len(w.pauses) == 1
    assert w.health[-1] is None


def test_one_break_is_silent_two_are_told(monkeypatch):
    away = NoReply("no connection to x", sent=False)
    w = Watched(monkeypatch, streamed("a"), away, Response(chunks=[bookmark("10")]))
    assert w.health == [None, None]
    w = Watched(monkeypatch, streamed("a"), away, away, Response(chunks=[bookmark("10")]))
    assert [str(each) if each else None for each in w.health] == [
        None,
        "pods: no connection to x: Kant keeps trying",
        None,
    ]


def test_pauses_double_up_to_a_limit(monkeypatch):
    w = Watched(monkeypatch, streamed("a"), *[NoReply("away", sent=False)] * 7)
    for pause, middle in zip(w.pauses, [1, 2, 4, 8, 8, 8, 8], strict=True):
        assert middle * 0.5 <= pause <= middle * 1.5


def test_retry_after_is_the_least_pause(monkeypatch):
    w = Watched(monkeypatch, Response(429, headers={"retry-after": "30"}), streamed("a"))
    assert w.pauses == [30.0]


def test_a_server_that_ends_every_watch_at_once_is_left_in_peace(monkeypatch):
    w = Watched(monkeypatch, streamed("a"), *[Response()] * 5)
    assert len(w.pauses) == 5
    assert w.pauses[-1] > w.pauses[0]


def test_an_object_that_cannot_be_read_is_left_out(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "scheduling.kube.door.watch")
    bad = pod("bad", "20", spec={"nodeName": 7})
    w = Watched(
        monkeypatch,
        streamed("a"),
        Response(chunks=[event("ADDED", bad), event("DELETED", pod("a", "21"))]),
        Response(chunks=[bookmark("22")]),
    )
    assert w.news == [("seen", "a"), ("gone", "a")]
    assert "pods ns/bad is left out, it cannot be read" in caplog.text
    assert w.asked[2]["resourceVersion"] == "21"


def test_an_answer_that_is_no_list(monkeypatch):
    w = Watched(
        monkeypatch,
        Response(422),
        Reply(200, b"<html>", 0),
        Reply(200, b'{"metadata": {"resourceVersion": "1"}}', 0),
        Response(chunks=[bookmark("2")]),
    )
    assert "is no Kubernetes list" in str(w.health[0])
    assert w.health[-1] is None


@pytest.mark.parametrize(("code", "words"), [(401, "credentials (401"), (403, "does not allow")])
def test_refusals_name_the_remedy(monkeypatch, code, words):
    w = Watched(monkeypatch, Response(code), streamed("a"))
    assert words in str(w.health[0])
    assert w.health[0].code == code


def test_a_defect_is_logged_told_and_survived(monkeypatch, caplog):
    broken = [True]

    def seen(facts):
        if broken:
            broken.clear()
            raise RuntimeError("a defect")
        told.append(facts.name)

    told = []
    w = Watched(monkeypatch, streamed("a"), streamed("a", "b"), seen=seen)
    assert "a defect" in str(w.health[0])
    assert "a defect" in caplog.text
    assert w.health[-1] is None
    assert told == ["a", "b"]


def test_a_list_may_take_any_time_and_each_longer_pause(monkeypatch):
    def silent(*_):
        try:
            raise TimeoutError
        except TimeoutError as error:
            none = NoReply("silent", sent=True)
            none.__cause__ = error
            return none

    asked = []
    stream = ScriptedClient.stream

    def noting(self, path, read_timeout):
        asked.append((parse_qs(urlsplit(path).query)["timeoutSeconds"][0], read_timeout))
        return stream(self, path, read_timeout)

    monkeypatch.setattr(ScriptedClient, "stream", noting)
    Watched(monkeypatch, silent(), silent(), streamed("a"), silent())
    times = WatchTimes()
    assert [silence for _, silence in asked[:3]] == [120, 240, 480]
    assert {within for within, _ in asked[:3]} == {"86400"}
    # The list is complete: this is now a watch, whose silence means that the connection died.
    for within, silence in asked[3:]:
        assert times.watch[0] <= int(within) <= times.watch[1]
        assert silence == int(within) + times.grace


def test_pages_that_expire_on_the_way_are_asked_for_as_one(monkeypatch):
    def answer(*names, token=""):
        items = [pod(name) for name in names]
        meta = {"resourceVersion": "9", "continue": token}
        return Reply(200, json.dumps({"items": items, "metadata": meta}).encode(), 0.0)

    expired = Reply(410, b"{}", 0.0)
    watched = Watched(
        monkeypatch,
        Response(status=422),
        answer("a", token="next"),
        expired,
        answer("a", "b"),
    )
    limits = [query.get("limit") for query in watched.asked[1:4]]
    assert limits == ["500", "500", None]
    assert [kind for kind, name in watched.news] == ["seen", "seen"]
