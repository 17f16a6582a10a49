"""`kant events` without a job shows all events; against a real Kant server."""

import json

from tests.scheduling.test_events import ago, jobs_of, past  # noqa: F401 - a fixture
from tests.scheduling.test_events import event as happen


def test_what_happened_to_all_and_to_one(kant, past):  # noqa: F811
    name = jobs_of(past)
    kant.sign_in("ops")
    code, out, told = kant("events", "--kind", "changes")
    assert (code, told) == (0, "")
    assert [line.split()[2] for line in out.splitlines()[1:]] == [
        "policy.changed", "node.drained", "quota.changed",
    ]  # fmt: skip
    assert [line.split()[2:5] for line in kant("events", "--limit", "1")[1].splitlines()[1:]] == [
        ["policy.changed", "demo", "why"]
    ]
    found = json.loads(kant("events", "-t", "law", "--since", "1h", "--all", "-o", "json")[1])
    assert [e["kind"] for e in found] == ["ADMITTED", "quota.changed", "SUBMITTED"]
    until = ago(36).isoformat()
    found = json.loads(kant("events", "--since", "6m", "--until", until, "-o", "json")[1])
    assert [(e["kind"], e["subject"]) for e in found] == [("SUBMITTED", name["vision"])]
    one = kant("events", name["law"])[1].splitlines()
    assert [line.split()[2] for line in one[1:]] == ["SUBMITTED", "ADMITTED"]


def test_what_is_wrong_is_said(kant, past):  # noqa: F811
    happen(past.cluster.jobs.get(tenant__name="vision"), "REASON", 1)
    for words, said in (
        (("x", "--node", "h000"), "--node filters all events"),
        (("--limit", "0"), "--limit must be at least 1"),
        (("--kind", "x"), "no kind of events “x”"),
    ):
        code, _, told = kant("events", *words)
        assert code == 2
        assert said in told
