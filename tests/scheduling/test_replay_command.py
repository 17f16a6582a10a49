"""`manage.py replay` checks its arguments before it makes anything."""

import asyncio

import pytest
from django.core.management import CommandError, call_command

from scheduling.replay import TraceReplay, TraceReplayError, job_document, read_trace
from tenants.models import ApiToken

TRACE = "id,submitted_at,duration_s,gpus,pods\na,0,5,1,1\n"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--speed", "nan", "--speed must be a number greater than 0"),
        ("--speed", "inf", "--speed must be a number greater than 0"),
        ("--speed", "0", "--speed must be a number greater than 0"),
        ("--limit", "0", "--limit must be a number greater than 0"),
        ("--tenants", "-1", "--tenants must be a number greater than 0"),
        ("--url", "notaurl", "--url must be the address of Kant, e.g. http://127.0.0.1:8000"),
        ("--url", "127.0.0.1:8000", "--url must be the address of Kant"),
        ("--url", "http://x:99999", "--url must be the address of Kant"),
    ],
)
def test_options_that_cannot_be(org, tmp_path, option, value, message):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    with pytest.raises(CommandError, match=message):
        call_command("replay", str(path), f"{option}={value}")
    assert not ApiToken.objects.exists()


FULL = (
    "id,submitted_at,duration_s,gpus,pods,tenant,priority,kind,declared_s,ends,after\n"
    "a,0,100,1,1,x,5,inference,300,,\n"
    "b,1,100,2,2,y,-3,development,,FAILED,a\n"
    "c,2,100,1,1,x,0,,,,b a c9\n"
    "d,3,100,1,1,,0,,,,\n"
)


def test_jobs_are_submitted_as_the_trace_has_them(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(FULL)
    replay = TraceReplay(
        "http://127.0.0.1:8000", "", read_trace(path, 10), tenants=3, speed=10_000.0
    )
    bodies = {}

    async def call(_method, _path, body, **_):
        name = body["name"][-1]
        # The later ones are answered first.
        await asyncio.sleep(0.01 * (5 - int(name)))
        bodies[name] = body
        return {"id": f"id-{name}"}

    async def submit():
        replay._call = call
        replay._ids = [asyncio.get_running_loop().create_future() for _ in replay.jobs]
        await asyncio.gather(*map(replay._submit, range(len(replay.jobs))))

    asyncio.run(submit())
    a, b, c, d = (bodies[name] for name in "0123")
    assert (a["priority"], a["kind"], a["after"], a["declared_s"]) == (5, "inference", [], 1)
    assert (b["priority"], b["kind"], b["after"]) == (-3, "development", ["id-0"])
    # The replay declares nothing that the trace does not declare.
    assert "declared_s" not in b
    assert b["pod_sets"][0]["annotations"]["sim.kant.io/exit-code"] == "1"
    assert "sim.kant.io/exit-code" not in a["pod_sets"][0]["annotations"]
    assert c["after"] == ["id-1", "id-0"]
    assert a["tenant"] == c["tenant"] != b["tenant"]
    assert d["kind"] == "training"


def test_a_declared_time_is_shortened_as_the_run_time_is(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(FULL)
    first = job_document(read_trace(path, 1)[0], "a", "t", 2.0)
    assert first["declared_s"] == 150
    assert first["pod_sets"][0]["annotations"]["sim.kant.io/run-seconds"] == "50.000"


QUEUED = (
    "id,submitted_at,duration_s,gpus,pods,tenant,queue\n"
    "a,0,5,1,1,x,night\nb,1,5,1,1,y,\nc,2,5,1,1,x,night\nd,3,5,1,1,y,night\n"
)


def test_jobs_go_to_their_queues_which_are_made_before(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(QUEUED)
    replay = TraceReplay("http://127.0.0.1:8000", "", read_trace(path, 10), tenants=2, speed=1e6)
    asked = []

    async def call(method, path, body=None, **_):
        asked.append((method, path, body))
        return {"id": "one", "items": [], "next": None}

    async def all_of_it():
        replay._call = call
        await replay._prepare_tenants()
        replay._ids = [asyncio.get_running_loop().create_future() for _ in replay.jobs]
        await asyncio.gather(*map(replay._submit, range(len(replay.jobs))))

    asyncio.run(all_of_it())
    made = [(body["tenant"], body["name"]) for _, path, body in asked if path == "/queues"]
    assert made == [("replay-01", "night"), ("replay-02", "night")]
    queues = [body["queue"] for _, path, body in asked if path == "/jobs"]
    assert sorted(queues) == ["default", "night", "night", "night"]


def test_a_name_that_no_queue_can_have_is_told_before_anything_is_made(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(QUEUED.replace("x,night", "x,Night Shift"))
    with pytest.raises(TraceReplayError, match=r"job a: queue “Night Shift” is no name of a queue"):
        read_trace(path, 10)
