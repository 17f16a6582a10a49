"""A policy change is replayed, listed and reverted on pages, without a browser."""

import json
import uuid

import pytest

from metrics.models import Replay, ReplayState
from metrics.replays import process, services
from scheduling.models import Cluster
from scheduling.policy.document import effective
from tenants.models import AuditRecord, User
from tests.e2e.policies import CHANGES, CHECK, URL, change, checked, hidden, now, plain, saved


@pytest.fixture
def ops(as_user):
    return as_user("operator")


# --- the replay -----------------------------------------------------------------------------------
def test_exactly_this_policy_is_replayed_and_one_comes_back_from_there(ops):
    change({"blame_s": 60, "max_preemptions": 2, "preemption": []})
    check = checked(ops, queueing="backfill", **{"preemption.priority": "on"})
    assert "Replay the last 7 days" in plain(check)
    assert "no difference in a replay" not in plain(check)
    started = ops.post(f"{URL}replay/", hidden(check))
    replay = Replay.objects.get()
    assert started["Location"] == f"/replays/{replay.pk}/"
    tried = {"queueing": "backfill", "preemption": ["priority"]}
    assert replay.policy_before == effective(now())
    assert replay.policy == effective(now() | tried)
    back = f"{CHECK}?replay={replay.pk}"
    assert f'href="{back}"' in ops.get(started["Location"]).content.decode()
    page = ops.get(back)
    assert "Queueing best-effort-fifo backfill" in plain(page)
    assert "Waiting A replay of this change is not done yet" in plain(page)
    process.carry_out(services.take_next(), lambda _: None)
    replay.refresh_from_db()
    assert replay.state == ReplayState.DONE, replay.message
    text = plain(ops.get(back))
    assert "What it would have meant Replay of" in text
    assert "The policy was changed on" in text  # a caveat that the replay reports about itself
    assert "Mean wait" in text
    assert "start earlier" in text
    assert "Mean wait" in plain(checked(ops, queueing="backfill", **{"preemption.priority": "on"}))
    assert "Mean wait" not in plain(checked(ops, queueing="backfill"))
    assert saved(ops, ops.get(back)).status_code == 302
    assert now() == {"blame_s": 60, "max_preemptions": 2, **tried}
    done = ops.get(back, follow=True)
    assert "The policy already has the values that this replay tried." in plain(done)


def test_the_reason_that_was_typed_is_there_after_a_replay(ops, as_user):
    check = checked(ops, queueing="backfill")
    assert f'formaction="{URL}replay/"' in check.content.decode()
    told = [f"Gangs wait {number}" for number in range(6)]
    for reason in told:
        ops.post(f"{URL}replay/", hidden(check) | {"reason": reason})
        Replay.objects.filter(state=ReplayState.QUEUED).update(state=ReplayState.CANCELLED)
    found = [
        ops.get(f"{CHECK}?replay={replay.pk}").context["reason"]["reason"].value()
        for replay in Replay.objects.order_by("created_at")
    ]
    assert found == ["", *told[1:]]  # of the newest ones
    back = ops.get(f"{CHECK}?replay={Replay.objects.first().pk}")
    assert 'value="Gangs wait 5"' in back.content.decode()
    User.objects.create_user("other", is_operator=True)
    page = as_user("other").get(f"{CHECK}?replay={Replay.objects.first().pk}")
    assert "Gangs wait" not in page.content.decode()


def test_a_reason_that_is_too_long_is_told_before_the_replay(ops):
    check = checked(ops, queueing="backfill")
    answer = ops.post(f"{URL}replay/", hidden(check) | {"reason": "x" * 2001})
    assert answer.status_code == 422
    assert answer.context["reason"].errors["reason"]
    assert not Replay.objects.exists()


def test_what_a_replay_cannot_show_is_said(ops):
    check = checked(ops, max_attempts="3", queueing="backfill", shards="h; H100\nrest")
    assert "Max attempts, Shards: no difference in a replay" in plain(check)
    ops.post(f"{URL}replay/", hidden(check))
    process.carry_out(services.take_next(), lambda _: None)
    doubts = Replay.objects.get().result["trust"]["doubts"]
    assert doubts == ["Shards make no difference: the runs decide about the cluster as a whole."]


def test_what_was_changed_since_the_replay_is_told(ops):
    operator, cluster = User.objects.get(username="operator"), Cluster.objects.get()
    quota = {"tenant": "vision", "gpu_type": "H200", "guaranteed": 144_000, "mode": "shared"}
    wanted = {"policy": {"queueing": "backfill"}, "quotas": [quota]}
    replay = services.create_replay(operator, cluster, **wanted)
    change({"blame_s": 60})
    page = ops.get(f"{CHECK}?replay={replay.pk}")
    text = plain(page)
    assert "Blame: 5 min to 1 min" in text
    assert "compared with a different policy than the current one" in text
    assert "nodes and quotas, which it changed too, stay as they are" in text
    saved(ops, page)
    assert now() == {"blame_s": 60, "queueing": "backfill"}
    same = services.create_replay(operator, cluster)
    assert "To the change of the policy" not in plain(ops.get(f"/replays/{same.pk}/"))
    for wrong in ("x", uuid.uuid4()):
        assert ops.get(f"{CHECK}?replay={wrong}").status_code == 404
    Cluster.objects.create(name="east", access={"in_cluster": True})
    assert ops.get(f"/policies/east/check/?replay={replay.pk}").status_code == 404


def test_why_a_replay_cannot_be_started_is_told_beside_the_change(ops, monkeypatch):
    check = checked(ops, queueing="backfill")
    monkeypatch.setattr(services, "MOST_QUEUED", 0)
    answer = ops.post(f"{URL}replay/", hidden(check))
    assert answer.status_code == 422
    assert "0 replays are already waiting." in plain(answer)
    assert hidden(answer)["changes"] == json.dumps({"queueing": "backfill"})
    gone = hidden(check) | {"changes": '{"spare_nodes.X": 2}'}
    answer = ops.post(f"{URL}replay/", gone)
    assert "There is no GPU type “X”." in answer.context["form"].errors["spare_nodes.X"][0]


# --- history --------------------------------------------------------------------------------------
def test_changes_are_listed_with_who_why_and_what_and_reverted(ops):
    assert "The policy has not been changed yet" in plain(ops.get(CHANGES))
    change({"queueing": "backfill", "blame_s": 60})
    change({"queueing": "backfill", "blame_s": 60, "max_attempts": 2}, reason="Fewer")
    later, first = AuditRecord.objects.all()
    text = plain(ops.get(CHANGES))
    assert "operator Max attempts 8 to 2 Fewer api Revert" in text
    assert "Queueing best-effort-fifo to backfill" in text
    url = f"{CHANGES}{first.pk}/revert/"
    page = ops.get(url)
    assert "Blame 5 min to 1 min 1 min 5 min" in plain(page)
    assert "Max attempts" not in plain(page)
    assert "What it affects now Waiting: " in plain(page)
    before = now()
    told = ops.post(f"{url}preview/", hidden(page))
    assert "What reverting it would do from now on" in plain(told)
    assert "ahead, assuming likely run times" in plain(told)
    assert now() == before
    done = ops.post(url, {**hidden(page), "reason": "Back"}, follow=True)
    assert "The change of the policy is reverted." in plain(done)
    assert effective(now()) == effective({"max_attempts": 2})
    own = AuditRecord.objects.first()
    assert (own.reverts, own.reason, own.source) == (first, "Back", "page")
    text = plain(done)
    assert "reverts the change of operator" in text
    assert "reverted by operator" in text
    assert url not in done.content.decode()
    assert "The policy already has its values from before this change." in plain(ops.get(url))
    live = ops.get(CHANGES, headers={"HX-Request": "true"})
    assert "<h1>" not in live.content.decode()
    assert later.reverted_by.count() == 0


def test_a_revert_that_others_were_faster_than_is_refused(ops):
    change({"blame_s": 60})
    first = AuditRecord.objects.first()
    url = f"{CHANGES}{first.pk}/revert/"
    page = ops.get(url)
    change({"blame_s": 60, "max_attempts": 2})
    answer = ops.post(url, {**hidden(page), "reason": "Back"})
    assert answer.status_code == 422
    assert "Somebody has changed this policy in the meantime." in plain(answer)
    assert 'value="Back"' in answer.content.decode()
    assert "The form is damaged." in plain(ops.post(url, {"version": "x"}))
    long = ops.post(url, {"version": "2", "reason": "x" * 2001})
    assert "at most 2000 characters" in plain(long)
    change({"blame_s": 30})
    answer = ops.post(url, {"version": "3", "reason": "By force"})
    assert answer.status_code == 422
    assert "Blame was set to 1 min by this change and is 30 s now." in plain(answer)
    assert now() == {"blame_s": 30}
    assert "Blame was set to 1 min by this change" in plain(
        ops.post(f"{url}preview/", {"version": "3"})
    )
    assert ops.post(f"{CHANGES}{uuid.uuid4()}/revert/preview/").status_code == 404
    assert ops.get(f"{CHANGES}{uuid.uuid4()}/revert/").status_code == 404


def test_many_changes_are_paged(ops):
    for minutes in range(27):
        change({"blame_s": 60 * minutes})
    assert len(ops.get(CHANGES).context["changes"]) == 25
    assert len(ops.get(f"{CHANGES}?page=2").context["changes"]) == 2
