"""`kant replay` against a real Kant server."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from kant.client import replays
from metrics.models import Replay, ReplayState
from metrics.replays import process, services
from scheduling.models import Cluster
from tenants.models import Quota
from tests.metrics.replays import job_that_ran


@pytest.fixture
def ops(kant):
    """An operator; a job with 8 GPUs ran for an hour."""
    vision, h100 = kant.org.tenants["vision"], kant.org.gpu_types["H100"]
    Quota.objects.create(
        tenant=vision, gpu_type=h100, guaranteed_milli=32_000, lend_limit_milli=8000
    )
    job_that_ran(vision, kant.org.cluster)
    return kant.sign_in("ops")


@pytest.fixture
def worker(monkeypatch):
    """Advance the replay while the client waits: first to half done, then to done."""

    def works(_seconds):
        running = Replay.objects.filter(state=ReplayState.RUNNING).first()
        if running is None:
            assert services.is_alive(services.take_next(), 0.46)
        else:
            process.carry_out(running, lambda _: None)

    monkeypatch.setattr(replays.time, "sleep", works)


def replay() -> Replay:
    return Replay.objects.get()


def columns(out: str, name: str) -> list[str]:
    """Return the words of the table line that begins like this."""
    (line,) = (line for line in out.splitlines() if line.startswith(name))
    return line.removeprefix(name).split()


def test_a_replay_is_asked_for_followed_and_compared(ops, worker):
    code, out, told = ops(
        "replay", "start", "--since", "2d", "--policy", "queueing=strict-fifo",
        "--policy", "preemption=priority,backfill", "--policy", "strategies.training=spread",
        "--policy", "fair_share=true", "--policy", "min_runtime_s=90",
        "--nodes", "H100/8=+2", "--nodes", "A100/4=-1",
        "--quota", "vision/H100:guaranteed=16.5",
    )  # fmt: skip
    assert code == 0, told
    made = replay()
    assert made.until - made.since == timedelta(days=2)
    assert timezone.now() - made.until < timedelta(minutes=2)
    differs = {k: v for k, v in made.policy.items() if v != made.policy_before[k]}
    assert differs.pop("strategies")["training"] == "spread"
    assert differs == {
        "queueing": "strict-fifo", "preemption": ["priority", "backfill"], "fair_share": True,
        "min_runtime_s": 90,
    }  # fmt: skip
    assert [(one["gpu_type"], one["change"]) for one in made.nodes] == [("H100", 2), ("A100", -1)]
    (quota,) = made.quotas
    assert (quota["guaranteed"], quota["lend_limit"]) == (16_500, 8000), "the rest as it is"
    assert told.splitlines()[:3] == [
        f"Replay {str(made.pk)[:8]} of demo.", "QUEUED", "RUNNING 40 %",
    ]  # fmt: skip
    assert "quota of vision/H100" in out
    assert "32, lends 8 at most → 16.5, lends 8 at most" in out
    assert columns(out, "GPUs ") == ["-", "40", "52", "+12"]
    assert columns(out, "GPU-hours ") == ["8.0", "8.0", "8.0"]
    assert columns(out, "vision ")[:7] == ["1", "0", "s", "0", "s", "0", "s"]
    assert "at the same time: 1." in out
    assert "comes close to what was recorded" in told


def test_json_is_the_document_of_the_replay(ops, worker):
    code, out, _ = ops("replay", "start", "-o", "json")
    assert code == 0
    document = json.loads(out)
    assert (document["state"], document["result"]["starts"]["same"]) == ("DONE", 1)
    assert replay().until - replay().since == timedelta(days=7)
    code, out, _ = ops("replay", "show", document["id"][:6], "-o", "json")
    assert json.loads(out) == document
    assert ops("replay", "show", document["id"], "-o", "id")[1] == f"{document['id']}\n"


def test_one_is_asked_for_listed_shown_and_cancelled(ops):
    until = timezone.now().replace(microsecond=0) - timedelta(hours=1)
    code, out, _ = ops(
        "replay", "start", "--until", f"{until:%Y-%m-%dT%H:%M:%SZ}", "--since", "36h", "--no-wait",
        "-o", "id",
    )  # fmt: skip
    made = replay()
    assert (code, out) == (0, f"{made.pk}\n")
    assert (made.until, made.since) == (until, until - timedelta(hours=36))
    ops("replay", "start", "--no-wait", "--nodes", "H100/8=-1")
    code, out, _ = ops("replay", "list", "-s", "queued")
    assert code == 0
    heads, newest, oldest = out.splitlines()
    assert heads.split()[:3] == ["ID", "STATE", "CLUSTER"]
    assert "nodes of H100/8 -1" in newest
    assert oldest.startswith(str(made.pk)[:8])
    assert ops("replay", "list", "-s", "done") == (0, "", "No such replays.\n")
    assert len(ops("replay", "list", "--limit", "1", "-o", "id")[1].splitlines()) == 1
    code, out, told = ops("replay", "cancel", str(made.pk), "ffff")
    assert (code, told) == (3, "There is no replay 'ffff'. See: kant replay list\n")
    assert "CANCELLED" in out
    assert ops("replay", "show", str(made.pk)) == (1, "", "CANCELLED: Cancelled by ops.\n")
    code, _, told = ops("replay", "cancel", str(made.pk))
    assert (code, "is over already" in told) == (1, True)


def test_one_that_waits_or_fails_is_told_so(ops, monkeypatch):
    ops("replay", "start", "--no-wait")
    made = str(replay().pk)
    assert ops("replay", "show", made) == (0, "QUEUED\n", "")
    services.is_alive(services.take_next(), 0.337)
    assert ops("replay", "show", made)[1] == "RUNNING 33 %\n"

    def fails(_seconds):
        services.fail(replay(), "Choose a shorter period.")

    monkeypatch.setattr(replays.time, "sleep", fails)
    code, out, told = ops("replay", "show", made, "--wait")
    assert (code, out) == (1, "")
    assert told == "RUNNING 30 %\nFAILED: Choose a shorter period.\n"


def test_who_stops_waiting_is_told_how_to_go_on(ops, monkeypatch):
    def stops(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(replays.time, "sleep", stops)
    code, _, told = ops("replay", "start")
    assert code == 130
    assert told.endswith(f"kant replay show {str(replay().pk)[:8]} --wait\n")
    assert replay().state == ReplayState.QUEUED


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--since", "yesterday"), "argument --since: 'yesterday' is not a time, e.g."),
        (("--since", "40d"), "--since: The period has more than 31 days"),
        (("--until", "2999-01-01"), "--until: Lies in the future"),
        (("--policy", "backfill"), "argument --policy: 'backfill' is not FIELD=VALUE"),
        (("--policy", "queueing=lifo"), "--policy queueing: Choose one of strict-fifo"),
        (("--policy", "qeueing=backfill"), "--policy qeueing: Unknown field."),
        (("--policy", "strategies.training=best"), "--policy strategies.training: Choose one"),
        (("--policy", "fair_share=often"), "--policy fair_share: Must be true or false."),
        (("--nodes", "H100=3"), "argument --nodes: 'H100=3' is not TYPE/GPUS=CHANGE"),
        (("--nodes", "H100/8=+1", "--nodes", "T4/8=2"), "--nodes T4/8=+2: The cluster has no"),
        (("--quota", "vision/H100"), "argument --quota: 'vision/H100' is not TENANT/TYPE:"),
        (("--quota", "vision/H100:most=4"), "argument --quota: 'most' is not a field of a quota"),
        (("--quota", "vision/H100:guaranteed=x"), "argument --quota: 'x' is not a number of GPUs"),
        (("--quota", "law/H100:mode=isolated"), "--quota law/H100: law has no quota for H100"),
        (("--quota", "vision/H100:mode=mixed"), "--quota vision/H100:mode: "),
        (("--quota", "vision/H100:lend-limit=40"), "--quota vision/H100:lend_limit: 40 GPUs"),
        (("--quota", "no/H100:guaranteed=1"), "--quota no/H100:tenant: There is no tenant"),
        (("--cluster", "nowhere"), "--cluster: There is no cluster “nowhere”."),
    ],
)
def test_what_is_wrong_names_its_flag(ops, words, text):
    code, out, told = ops("replay", "start", *words)
    assert (code, out) == (2, ""), told
    assert text in told
    assert not Replay.objects.exists()


def test_an_isolated_quota_loses_its_limits_and_any_is_no_limit(ops):
    for text in ("mode=isolated", "lend-limit=any, borrow_limit=4"):
        code, _, told = ops("replay", "start", "--no-wait", "--quota", f"vision/H100:{text}")
        assert code == 0, told
    shared, isolated = (one.quotas[0] for one in Replay.objects.all())
    assert (isolated["mode"], isolated["lend_limit"]) == ("isolated", None)
    assert (shared["borrow_limit"], shared["lend_limit"]) == (4000, None)


def test_only_operators_may(kant):
    for words in (("start",), ("list",), ("show", "ffff"), ("cancel", "ffff")):
        assert kant("replay", *words)[0] == 4


def test_shells_complete_it(ops):
    ops("replay", "start", "--no-wait")
    made = str(replay().pk)

    def offered(*words):
        lines = ops("complete", "replay", *words)[1].splitlines()
        return [line.partition("\t")[0] for line in lines]

    assert offered("") == ["start", "list", "show", "cancel"]
    assert offered("show", made[:4]) == [made]
    assert offered("cancel", "zz") == []
    assert offered("list", "--state", "DO") == ["DONE"]
    assert offered("start", "--policy", "que") == ["queueing="]
    assert "strategies.training=" in offered("start", "--policy", "str")
    assert offered("start", "--nodes", "") == ["A100/4=", "H100/8="]
    assert offered("start", "--quota", "v") == ["vision/H100:"]
    Cluster.objects.create(name="second")
    assert offered("start", "--nodes", "") == [], "of several it is not known which is meant"
