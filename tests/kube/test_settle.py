"""How Kant handles each reply, with a scripted API server: the table of replies, case by case."""

import asyncio
from typing import Any

import msgspec
import pytest

from scheduling.kube.door import settle
from scheduling.kube.door.client import NoReply, Reply
from scheduling.kube.door.events import BURST, EventRecorder
from scheduling.kube.door.executor import Executor
from scheduling.kube.door.requests import Request
from scheduling.kube.seam import (
    Bind,
    CallOutcome,
    CreateAndBind,
    DeletePod,
    EmitEvent,
    EvictPod,
    KubeError,
    PatchCondition,
    Result,
)

BIND = Bind("key", "ns", "p", "uid-1", "n1", {"kant.io/devices": "[0]"})
DELETE = DeletePod("key", "ns", "p", "uid-1", 0)
EVICT = EvictPod("key", "ns", "p", "uid-1", 0)
TRACKED = DeletePod("key", "ns", "p", "uid-1", 0, tracked=True)
EVICT_TRACKED = EvictPod("key", "ns", "p", "uid-1", 0, tracked=True)
CONDITION = PatchCondition("key", "ns", "p", "uid-1", "Unschedulable", "full")
MANIFEST = {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"schedulerName": "kant"}}
CREATE = CreateAndBind("key", "ns", "p", MANIFEST, "n1", {"kant.io/devices": "[0]"})


def reply(code: int, body: Any = None, retry_after: float = 0.0) -> Reply:
    if body is None:
        body = {"kind": "Status", "code": code, "message": f"said {code}"}
    return Reply(code, msgspec.json.encode(body), retry_after)


def pod(uid="uid-1", *, node="", annotations=None, deleting="", gates=(), labels=None) -> Reply:
    meta = {"name": "p", "uid": uid, "annotations": annotations or {}, "labels": labels or {}}
    if deleting:
        meta["deletionTimestamp"] = deleting
    spec = {"nodeName": node, "schedulerName": "kant", "schedulingGates": list(gates)}
    return reply(200, {"metadata": meta, "spec": spec})


LOST = NoReply("the connection broke", sent=True)
REFUSED = NoReply("no connection", sent=False)
GONE = reply(404)
OURS = pod(node="n1", annotations={"kant.io/devices": "[0]"})
CONFLICT = reply(409)


class Script:
    """Stands in for the client: gives the replies in turn and records the requests."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self._replies = list(replies)
        self.asked: list[str] = []

    async def call(self, method: str, path: str, *_: Any) -> Reply:
        last = path.rpartition("/")[2]
        self.asked.append(f"{method} {last}")
        answer = self._replies.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Return the pauses that were made; none of them takes time."""
    made: list[float] = []

    async def sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(settle.asyncio, "sleep", sleep)
    return made


def carry_out(effect: Any, *replies: Reply | Exception) -> tuple[CallOutcome, list[str]]:
    script = Script(*replies)
    executor = Executor(script, lambda *_: None)
    outcome = asyncio.run(executor._perform(effect))
    assert not script._replies, "not every reply was asked for"
    return outcome, script.asked


BINDING, GET = "POST binding", "GET p"


@pytest.mark.parametrize(
    ("replies", "result", "asked"),
    [
        ([reply(201)], Result.BOUND, [BINDING]),
        ([GONE], Result.GONE, [BINDING]),
        ([CONFLICT, OURS], Result.BOUND, [BINDING, GET]),
        ([CONFLICT, pod(node="n2")], Result.TAKEN, [BINDING, GET]),
        ([CONFLICT, pod(node="n1")], Result.TAKEN, [BINDING, GET]),
        ([CONFLICT, pod("uid-2")], Result.NEW_INCARNATION, [BINDING, GET]),
        ([CONFLICT, pod(deleting="now")], Result.DELETING, [BINDING, GET]),
        ([CONFLICT, pod(gates=[{"name": "g"}])], Result.GATED, [BINDING, GET]),
        ([CONFLICT, GONE], Result.GONE, [BINDING, GET]),
        ([CONFLICT, pod(), reply(201)], Result.BOUND, [BINDING, GET, BINDING]),
        ([reply(422)], Result.REFUSED, [BINDING]),
        ([reply(400)], Result.REFUSED, [BINDING]),
        ([reply(403)], Result.REFUSED, [BINDING]),
        ([reply(429), pod(), reply(201)], Result.BOUND, [BINDING, GET, BINDING]),
        ([reply(429), OURS], Result.BOUND, [BINDING, GET]),
        ([reply(500), OURS], Result.BOUND, [BINDING, GET]),
        ([reply(504), pod(), reply(201)], Result.BOUND, [BINDING, GET, BINDING]),
        ([LOST, OURS], Result.BOUND, [BINDING, GET]),
        ([LOST, pod(), reply(201)], Result.BOUND, [BINDING, GET, BINDING]),
        ([LOST, LOST, OURS], Result.BOUND, [BINDING, GET, GET]),
        ([LOST, reply(503), OURS], Result.BOUND, [BINDING, GET, GET]),
        ([LOST, reply(403)], Result.REFUSED, [BINDING, GET]),
        ([REFUSED, reply(201)], Result.BOUND, [BINDING, BINDING]),
    ],
)
def test_bind(pauses, replies, result, asked):
    outcome, done = carry_out(BIND, *replies)
    assert (outcome.result, done) == (result, asked)


CREATED = reply(201, {"metadata": {"uid": "uid-1"}})
GOING = reply(403, {"message": "unable to create new content: ns is being terminated"})
POST = "POST pods"
MINE = pod(labels={"a": "b", "more": "x"})


@pytest.mark.parametrize(
    ("replies", "result", "asked"),
    [
        ([CREATED, reply(201)], Result.BOUND, [POST, BINDING]),
        ([LOST, MINE, reply(201)], Result.BOUND, [POST, GET, BINDING]),
        ([LOST, GONE, CREATED, reply(201)], Result.BOUND, [POST, GET, POST, BINDING]),
        ([CONFLICT, MINE, reply(201)], Result.BOUND, [POST, GET, BINDING]),
        ([CONFLICT, pod()], Result.REFUSED, [POST, GET]),
        ([reply(422)], Result.REFUSED, [POST]),
        (
            [reply(404), reply(404), reply(201), CREATED, reply(201)],
            Result.BOUND,
            [POST, "GET ns", "POST namespaces", POST, BINDING],
        ),
        ([reply(404), LOST], Result.FAILED, [POST, "GET ns"]),
        ([GOING, GONE, CREATED, reply(201)], Result.BOUND, [POST, GET, POST, BINDING]),
        ([CREATED, GONE], Result.GONE, [POST, BINDING]),
        ([CREATED, LOST, OURS], Result.BOUND, [POST, BINDING, GET]),
    ],
)
def test_create_and_bind(pauses, replies, result, asked):
    outcome, done = carry_out(CREATE, *replies)
    assert (outcome.result, done) == (result, asked)


def test_the_uid_is_told_also_when_only_the_creation_worked(pauses):
    outcome, _ = carry_out(CREATE, CREATED, reply(422))
    assert (outcome.result, outcome.uid, outcome.code) == (Result.REFUSED, "uid-1", 422)


DEL, EVICTION, PATCH = "DELETE p", "POST eviction", "PATCH p"
BUDGET = {"code": 429, "message": "budget", "details": {"causes": [{"reason": "DisruptionBudget"}]}}
TWO = {"code": 500, "message": "This pod has more than one PodDisruptionBudget"}


@pytest.mark.parametrize(
    ("effect", "replies", "result", "asked"),
    [
        (DELETE, [reply(200)], Result.DONE, [DEL]),
        (DELETE, [reply(202)], Result.DONE, [DEL]),
        (DELETE, [GONE], Result.GONE, [DEL]),
        (DELETE, [CONFLICT, pod("uid-2")], Result.NEW_INCARNATION, [DEL, GET]),
        (DELETE, [LOST, GONE], Result.GONE, [DEL, GET]),
        (DELETE, [LOST, pod(deleting="now")], Result.DONE, [DEL, GET]),
        (DELETE, [LOST, pod(), reply(200)], Result.DONE, [DEL, GET, DEL]),
        (EVICT, [reply(201)], Result.DONE, [EVICTION]),
        (EVICT, [reply(429, BUDGET, 10.0)], Result.BLOCKED, [EVICTION]),
        (EVICT, [reply(500, TWO)], Result.BLOCKED, [EVICTION]),
        (EVICT, [reply(429), pod(), reply(201)], Result.DONE, [EVICTION, GET, EVICTION]),
        (EVICT, [reply(500), pod(deleting="now")], Result.DONE, [EVICTION, GET]),
        (TRACKED, [reply(200), reply(200)], Result.DONE, [PATCH, DEL]),
        (TRACKED, [reply(403), reply(200)], Result.DONE, [PATCH, DEL]),
        (
            EVICT_TRACKED,
            [reply(201), reply(200), reply(201)],
            Result.DONE,
            [EVICTION, PATCH, EVICTION],
        ),
        (EVICT_TRACKED, [reply(429, BUDGET)], Result.BLOCKED, [EVICTION]),
        (  # a later budget forbids it: the pod stays, and counts
            EVICT_TRACKED,
            [reply(201), reply(200), reply(429, BUDGET), reply(200)],
            Result.BLOCKED,
            [EVICTION, PATCH, EVICTION, PATCH],
        ),
        (CONDITION, [reply(200)], Result.DONE, ["PATCH status"]),
        (CONDITION, [GONE], Result.GONE, ["PATCH status"]),
        (CONDITION, [CONFLICT, pod("uid-2")], Result.NEW_INCARNATION, ["PATCH status", GET]),
        (
            CONDITION,
            [LOST, pod(), reply(200)],
            Result.DONE,
            ["PATCH status", GET, "PATCH status"],
        ),
    ],
)
def test_other_effects(pauses, effect, replies, result, asked):
    outcome, done = carry_out(effect, *replies)
    assert (outcome.result, done) == (result, asked)


def test_a_blocked_eviction_says_when_to_ask_again(pauses):
    outcome, _ = carry_out(EVICT, reply(429, BUDGET, 10.0))
    assert (outcome.code, outcome.retry_after, outcome.message) == (429, 10.0, "budget")


# --- pauses ---------------------------------------------------------------------------------------
def test_retry_after_is_honoured(pauses):
    carry_out(BIND, reply(429, retry_after=7.0), pod(), reply(201))
    assert pauses == [7.0]


def test_pauses_grow_and_a_conflict_is_looked_at_without_one(pauses):
    replies = [CONFLICT, pod()] + [reply(500), pod()] * 4 + [reply(201)]
    carry_out(BIND, *replies)
    assert pauses[0] == 0
    growing = [settle.FIRST_PAUSE_S * 2**n for n in range(1, 5)]
    for pause, middle in zip(pauses[1:], growing, strict=True):
        assert middle * 0.5 <= pause <= middle * 1.5


def test_giving_up(monkeypatch, pauses):
    monkeypatch.setattr(settle, "BUDGET_S", 0.0)
    outcome, asked = carry_out(BIND, reply(503, retry_after=9.0))
    assert (outcome.result, outcome.code, outcome.retry_after) == (Result.FAILED, 503, 9.0)
    assert outcome.message == "said 503"
    assert asked == [BINDING]


def test_a_server_long_out_of_reach_is_tried_once_by_each(monkeypatch, pauses):
    monkeypatch.setattr(settle, "BUDGET_S", 0.0)
    script = Script(REFUSED, REFUSED, REFUSED, reply(201))
    executor = Executor(script, lambda *_: None)

    async def several():
        return [await executor._perform(BIND) for _ in range(4)]

    results = [each.result for each in asyncio.run(several())]
    assert results == [Result.FAILED] * 3 + [Result.BOUND]


CANNOT = {"code": 403, "message": 'User "kant" cannot create resource "pods/binding"'}


def test_a_starting_server_is_borne_with(pauses):
    outcome, asked = carry_out(BIND, reply(403, CANNOT), reply(403, CANNOT), reply(201))
    assert outcome.result is Result.BOUND
    assert asked == [BINDING] * 3
    assert all(pause >= settle.STARTING_PAUSE_S / 2 for pause in pauses)


def test_missing_rights_are_believed_in_the_end(monkeypatch, pauses):
    monkeypatch.setattr(settle, "RIGHTS_WITHIN_S", 0.0)
    outcome, _ = carry_out(BIND, reply(403, CANNOT))
    assert (outcome.result, outcome.code) == (Result.REFUSED, 403)


def test_unreadable_credentials_are_told(pauses):
    outcome, _ = carry_out(BIND, KubeError("token file t cannot be read", "mend it"))
    assert outcome.result is Result.REFUSED
    assert "token file t" in outcome.message


def test_a_defect_costs_only_its_own_effect(pauses):
    async def run():
        done = {}
        script = Script(reply(201, {"no": "metadata"}), CREATED, reply(201))
        executor = Executor(script, lambda effect, outcome: done.setdefault(effect.key, outcome))
        task = asyncio.get_running_loop().create_task(executor.run())
        for key in ("bad", "good"):
            executor.submit([msgspec.structs.replace(CREATE, key=key, name=key)])
            while key not in done:
                await asyncio.wait([task], timeout=0.01)
        task.cancel()
        return done

    done = asyncio.run(run())
    assert done["bad"].result is Result.FAILED
    assert "metadata" in done["bad"].message
    assert done["good"].result is Result.BOUND


# --- events ---------------------------------------------------------------------------------------
def event(note="full", uid="u"):
    return EmitEvent("k", "ns", "p", uid, "Waiting", note)


def test_equal_events_are_one_series():
    recorder = EventRecorder()
    assert isinstance(recorder.request(event()), Request)
    counted = recorder.request(event())
    assert isinstance(counted, CallOutcome)
    assert counted.result is Result.DONE
    assert isinstance(recorder.request(event(uid="other")), Request)


def test_a_flood_of_events_is_cut():
    recorder = EventRecorder()
    answers = [recorder.request(event(f"note {i}")) for i in range(BURST + 50)]
    assert all(isinstance(each, Request) for each in answers[:BURST])
    assert isinstance(answers[-1], CallOutcome)
    assert answers[-1].result is Result.NOT_SENT


def test_an_event_is_not_asked_for(pauses):
    outcome, asked = carry_out(event(), LOST)
    assert outcome.result is Result.FAILED
    assert asked == ["POST events"]
