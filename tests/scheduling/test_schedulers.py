"""The state of schedulers: counts of the last minutes, the backlog, and what to do about it."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from scheduling.kube.seam import CallOutcome, EmitEvent, Result
from scheduling.models import ClusterPolicy, NodeRecord, SchedulerLease
from scheduling.session.pace import LATELY_S, MARKS, Backlog, Pace, from_document
from tests.scheduling.test_rehearsal import fleet  # noqa: F401 - a fixture

BEGUN = 1_900_000_000.0


def bound(pace, count):
    pace.effects["create_and_bind", "bound"] += count


@pytest.fixture
def led(fleet):  # noqa: F811
    """The lease of a scheduler that has led for ten minutes."""
    now = timezone.now()
    fleet.cluster.connected, fleet.cluster.last_cycle_at = True, now
    fleet.cluster.save()
    lease, _ = SchedulerLease.objects.update_or_create(
        cluster=fleet.cluster,
        defaults={"holder": "host-a:1:x", "expires_at": now + timedelta(minutes=1), "token": 3},
    )
    return fleet, lease, now.timestamp() - 600


def written(lease, pace, backlog=Backlog()):  # noqa: B008
    lease.pace = pace.document() | {"backlog": list(backlog)}
    lease.save()


def asked(org, who="ops", **query):
    return org.client(who).get("/api/v1/schedulers", query)


def test_lately_is_what_was_counted_in_the_last_minutes():
    pace = Pace()
    pace.mark(BEGUN)
    bound(pace, 100)
    for second in range(0, 3600, 5):
        bound(pace, 10)  # two a second
        pace.took(0.5)
        pace.mark(BEGUN + second)
    pace = from_document(pace.document())
    assert len(pace.marks) == MARKS
    counted, over = pace.lately(BEGUN + 3600)
    assert over == LATELY_S
    assert counted.bound / over == pytest.approx(2, rel=0.1)
    assert counted.seconds / over == pytest.approx(0.1, rel=0.1)
    pace.mark(BEGUN + 3620)
    assert pace.lately(BEGUN + 3620 + 2 * LATELY_S)[0].bound == 0  # it has been idle since


def test_a_session_that_began_a_moment_ago_is_counted_since_then():
    pace = Pace()
    pace.mark(BEGUN)
    bound(pace, 30)
    counted, over = pace.lately(BEGUN + 10)
    assert (counted.bound, over) == (30, 10)
    assert Pace().lately(BEGUN)[1] == 0
    older = {name: value for name, value in pace.document().items()
             if name not in ("sent", "since", "marks")}  # fmt: skip
    assert from_document(older).bound == 30


def test_effects_wait_until_it_is_known_how_they_ended():
    pace = Pace(sent=2)
    assert pace.waiting == 2
    pace.ended(
        EmitEvent("key", "ns", "pod", "uid", "Started", "It started."), CallOutcome(Result.BOUND)
    )
    assert pace.waiting == 1


def test_operators_read_who_leads_and_what_is_left_to_do(led):
    org, lease, begun = led
    pace = Pace(sent=7)
    pace.mark(begun)
    pace.mark(begun + 590)
    bound(pace, 3)
    pace.effects["bind", "refused"] += 1
    pace.took(3)
    written(lease, pace, Backlog(3, 40, True))
    (one,) = asked(org).json()["items"]
    assert (one["cluster"], one["scope"], one["holder"], one["token"]) == (
        org.cluster.name, "", "host-a:1:x", 3,
    )  # fmt: skip
    assert one["backlog"] == {"effects": 3, "news": 40, "rows": True}
    assert one["binds_per_second"] == pytest.approx(3 / LATELY_S)
    assert one["busy"] == pytest.approx(0.01)
    assert (one["pass_seconds"], one["failed"], one["advice"]) == (3, 1, [])
    assert one["failures"] == [{"effect": "bind", "result": "refused", "count": 1}]
    assert one["nodes"] == NodeRecord.objects.count()
    assert datetime.fromisoformat(one["since"]) == datetime.fromtimestamp(begun, UTC)
    assert asked(org, "eve").status_code == 403
    assert asked(org, cluster="nowhere").status_code == 400
    page = org.client("ops")
    page.force_login(org.users["ops"])
    text = " ".join(page.get("/schedulers/").content.decode().split())
    assert "Keeps up" in text
    assert "40 updates not read yet, and more jobs to read" in text


@pytest.mark.parametrize(
    ("decide", "write", "said"),
    [(200, 10, "divide the cluster into shards"), (10, 200, "goes to the database"), (1, 1, "")],
)
def test_what_to_do_where_one_is_not_enough(led, decide, write, said):
    org, lease, begun = led
    pace = Pace()
    pace.mark(begun)
    pace.mark(begun + 250)
    pace.took(decide + write)
    pace.phases = {"decide": decide, "write": write}
    written(lease, pace)
    (one,) = asked(org).json()["items"]
    assert [said] * bool(said) == [said for told in one["advice"] if said in told]
    assert bool(one["advice"]) == bool(said)


def test_a_shard_that_nobody_leads_is_told(led):
    org, lease, _ = led
    ClusterPolicy.objects.update_or_create(cluster=org.cluster)
    SchedulerLease.objects.filter(pk=lease.pk).update(expires_at=None)
    (one,) = asked(org).json()["items"]
    assert (one["holder"], one["since"], one["lease_until"]) == ("", None, None)
    assert "Start a scheduler process" in one["advice"][0]
