"""`kant queues` and `kant queue …` against a real Kant server."""

import json

import pytest

from scheduling.models import Job
from tenants.models import AuditRecord, Queue

WHY = ("--reason", "maintenance")


@pytest.fixture
def ada(kant):
    """Tenant admin of vision, and a member of no other tenant."""
    return kant.sign_in("ada")


def queue(name="default"):
    return Queue.objects.get(tenant__name="vision", name=name)


def rows(out):
    return [line.split() for line in out.splitlines()]


def test_queues_are_listed(ada):
    code, out, told = ada("queues")
    assert (code, told) == (0, "")
    assert " ".join(rows(out)[0]) == "QUEUE STATE WAITING RUNNING GPUS HELD RANK WEIGHT ORDER"
    assert [r[:4] for r in rows(out)[1:]] == [
        ["vision/default", "open", "0", "0"],
        ["vision-lab/default", "open", "0", "0"],
    ]
    assert len(rows(ada("queues", "-t", "vision")[1])) == 2
    code, _, told = ada("queues", "-s", "held")
    assert (code, told) == (0, "There are no such queues that you may see.\n")
    code, out, _ = ada("queues", "-o", "json")
    assert [q["name"] for q in json.loads(out)] == ["default", "default"]


def test_a_queue_is_made_set_and_shown(ada):
    code, out, told = ada(
        *("queue", "create", "nightly", "--max-running", "4", "--max-gpus", "H100=16"),
        *("--kind", "training", "--max-time-limit", "2h", "--reason", "new"),
    )
    assert (code, told) == (0, ""), told
    assert ["max_running", "-", "4"] in rows(out)
    made = queue("nightly")
    assert (made.max_gpus, made.kinds, made.max_run_limit_s) == ({"H100": 16}, ["training"], 7200)
    code, out, told = ada(
        *("queue", "set", "vision/nightly", "--max-gpus", "A100=2", "--max-gpus", "H100=any"),
        *(
            "--max-running",
            "any",
            "--kind",
            "any",
            "--order",
            "fifo",
            "--default-preemptible",
            "no",
        ),
    )
    assert (code, told) == (0, ""), told
    assert ["max_gpus", "H100", "16", "A100", "2"] in rows(out)
    assert ["max_running", "4", "any"] in rows(out)
    made = queue("nightly")
    assert (made.max_gpus, made.max_running, made.kinds) == ({"A100": 2}, None, [])
    assert (made.order, made.default_preemptible) == ("fifo", False)
    out = ada("queue", "show", "nightly")[1]
    assert ["order", "fifo"] in rows(out)
    assert ["max_run_limit_s", "7200"] in rows(out)
    assert ada("queue", "set", "nightly", "--order", "policy")[0] == 0
    assert queue("nightly").order == ""
    assert (
        ada("queue", "set", "nightly", "--order", "policy")[2]
        == "Nothing to revert: it already has the old value.\n"
    )


@pytest.mark.parametrize(
    ("verbs", "state"),
    [
        (("hold",), "held"),
        (("drain",), "draining"),
        (("close",), "closed"),
        (("hold", "release"), "open"),
        (("drain", "open"), "open"),
    ],
)
def test_the_state_of_a_queue_is_set_with_a_reason(ada, verbs, state):
    for verb in verbs:
        code, out, told = ada("queue", verb, "vision/default", *WHY)
        assert (code, told) == (0, ""), told
    assert out == f"vision/default is {state}: 0 jobs wait, 0 run.\n"
    assert (queue().state, queue().state_reason) == (state, "maintenance")
    code, _, told = ada("queue", verbs[-1], "vision/default", *WHY)
    assert code == 1
    assert "already" in told or "not held" in told
    assert ada("queue", verbs[-1], "vision/default")[0] == 2


def test_a_dry_run_changes_nothing(ada):
    out = ada("queue", "hold", "default", *WHY, "--dry-run")[1]
    assert out.startswith("vision/default would be held")
    assert ada("queue", "create", "x", "--dry-run")[0] == 0
    assert ada("queue", "set", "default", "--rank", "2", "--dry-run")[0] == 0
    assert (queue().version, Queue.objects.filter(name="x").count()) == (1, 0)
    ada("queue", "create", "x")
    told = ada("queue", "delete", "x", *WHY, "--dry-run")[2]
    assert told == "Nothing was changed: this was a dry run.\n"
    assert ada("queue", "delete", "x", *WHY)[1] == "Deleted queue vision/x.\n"
    assert not Queue.objects.filter(name="x").exists()


def test_changes_are_listed_and_taken_back(ada):
    ada("queue", "set", "default", "--rank", "2", "--max-gpus", "H100=8", "--reason", "first")
    code, out, _ = ada("queue", "changes")
    assert code == 0
    line = rows(out)[1]
    assert " ".join(line[3:]) == "ada vision/default rank 0 → 2, max_gpus any → H100 8 first"
    code, out, told = ada("queue", "revert", line[0], *WHY)
    assert (code, told) == (0, ""), told
    assert ["rank", "2", "0"] in rows(out)
    assert (queue().rank, queue().max_gpus) == (0, {})
    assert AuditRecord.objects.first().reverts is not None
    assert ada("queue", "revert", "nope", *WHY)[0] == 3
    ada("queue", "create", "x")
    ada("queue", "delete", "x", *WHY)
    out = ada("queue", "changes", "--limit", "2")[1]
    assert [r[5] for r in rows(out)[1:]] == ["deleted", "created"]
    assert ada("queue", "revert", rows(out)[1][0], *WHY)[0] == 0
    assert Queue.objects.filter(name="x").exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("set", "default"), 2, "Nothing to set."),
        (("set", "default", "--weight", "0"), 2, "weight: Must be more than 0"),
        (("set", "default", "--max-running", "few"), 2, "'few' is not a number of jobs"),
        (("set", "default", "--max-gpus", "H100"), 2, "'H100' is not TYPE=GPUS"),
        (("set", "default", "--max-gpus", "B200=1"), 2, "There is no GPU type “B200”"),
        (("set", "default", "--kind", "batch"), 2, "Choose one of training"),
        (("set", "nope", "--rank", "1"), 3, "There is no queue “vision/nope”"),
        (("set", "law/default", "--rank", "1"), 3, "There is no queue “law/default”"),
        (("set", "vision/", "--rank", "1"), 2, "Name a queue, e.g. vision/nightly"),
        (("create", "default"), 1, "has a queue “default” already"),
        (("delete", "default", *WHY), 1, "takes the jobs that name no queue"),
    ],
)
def test_what_is_wrong_is_told(ada, words, code, text):
    got, out, told = ada("queue", *words)
    assert (got, out) == (code, ""), told
    assert text in told


def test_who_is_of_several_tenants_names_one(kant):
    kant.sign_in("ops")
    code, _, told = kant("queue", "show", "default")
    assert (code, "Write the tenant before its name: TENANT/QUEUE." in told) == (2, True)
    assert "There are law/default, ml/default" in told
    assert kant("queue", "show", "law/default")[0] == 0
    kant("queue", "create", "vision-lab/night")
    assert kant("queue", "hold", "night", *WHY)[1].startswith("vision-lab/night is held")
    kant.sign_in("eve")
    assert kant("queue", "hold", "default", *WHY)[0] == 4


def test_shells_complete_queues(ada):
    out = ada("complete", "queue", "hold", "vision/")[1]
    assert out.startswith("vision/default\topen")


def test_waiting_jobs_are_moved_and_keep_their_submission_time(ada):
    ada("queue", "create", "nightly")
    for name in ("one", "two"):
        assert ada("submit", "-n", name, "-t", "vision", "-G", "H100", "-g", "1")[0] == 0
    before = dict(Job.objects.values_list("name", "submitted_at"))
    code, out, told = ada("move", "one", "two", "nightly")
    assert (code, told) == (0, ""), told
    assert [r[1] for r in rows(out)] == ["one", "two"]
    assert set(Job.objects.values_list("queue", flat=True)) == {"nightly"}
    assert dict(Job.objects.values_list("name", "submitted_at")) == before
    out = ada("jobs", "--queue", "nightly", "-o", "id")[1]
    assert len(out.splitlines()) == 2
    code, _, told = ada("move", "one", "nope")
    assert (code, "has no queue “nope”" in told) == (2, True)
    Job.objects.filter(name="one").update(state="RUNNING")
    code, _, told = ada("move", "one", "default")
    assert (code, "after a job has started, only" in told) == (1, True)
    ada("queue", "close", "default", *WHY)
    code, _, told = ada("move", "two", "vision/default")
    assert (code, "accepts no jobs: it is closed" in told) == (1, True)
    assert ada("submit", "-n", "three", "-G", "H100", "-g", "1", "--queue", "nightly")[0] == 0
    assert Job.objects.get(name="three").queue == "nightly"


def test_the_global_queue_is_listed(kant, ada):
    for i in range(3):
        kant("submit", "-o", "id", "-n", f"j{i}", "-g", "1", "-G", "H100")
    code, out, told = ada("queue", "global", "--limit", "2")
    assert (code, told) == (0, "The first 2; --all shows all.\n")
    assert " ".join(rows(out)[0]) == "PLACE ID NAME QUEUE PRIORITY GPUS TYPES WAITED HEAD OF WHY"
    assert [(r[0], r[2], r[3]) for r in rows(out)[1:]] == [
        ("1", "j0", "vision/default"),
        ("2", "j1", "vision/default"),
    ]
    found = json.loads(ada("queue", "global", "demo", "-G", "H100", "--all", "-o", "json")[1])
    assert [p["name"] for p in found] == ["j0", "j1", "j2"]
    code, _, told = ada("queue", "global", "demo", "-G", "H300")
    assert code != 0
    assert "There is no GPU type “H300”" in told


def test_what_a_change_would_do_is_told_without_a_reason(ada):
    Queue.objects.create(tenant=queue().tenant, name="night")
    for words in (("set", "night", "--rank", "3"), ("hold", "night"), ("drain", "night")):
        code, _, told = ada("queue", words[0], "vision/night", *words[2:], "--preview")
        assert code == 0, told
    assert (queue("night").rank, queue("night").state) == (0, "open")
    code, out, _ = ada("queue", "hold", "vision/night", "--preview", "-o", "json")
    assert (code, json.loads(out)["counts"]["stops"]) == (0, 0)
    code, _, told = ada("queue", "hold", "vision/night")
    assert code == 2
    assert "Give a reason with --reason" in told
