"""Replays: what they find on a recorded history, who may ask for what, and how they end."""

from datetime import timedelta

import pytest
from django.utils import timezone

from metrics.models import MetricSample, Replay, ReplayState
from metrics.pages.replays import tables
from metrics.replays import process, recorded, services
from metrics.replays.scenario import NodeShape, changed_nodes, differences, shapes_of
from scheduling.engine.states import JobState
from scheduling.models import Cluster, ClusterPolicy, Job, NodeRecord
from scheduling.policy.document import effective
from scheduling.queries import history
from tenants.errors import Conflict, Invalid, NotAllowed
from tenants.models import AuditRecord, Quota, Tenant, User
from tests.metrics import rows
from tests.metrics.replays import NODES, asked


@pytest.fixture
def cluster(blocked_head):
    return blocked_head


def found(replay):
    """Return the result as it comes back from the database."""
    process.carry_out(services.take_next(), lambda _: None)
    replay.refresh_from_db()
    assert (replay.state, replay.message) == (ReplayState.DONE, "")
    return replay.result


def everyone(figures):
    return next(row for row in figures["jwtd"] if row["size"] == "all")


# --- what is found --------------------------------------------------------------------------------
def test_where_nothing_is_changed_nothing_differs(cluster, operator):
    result = found(asked(cluster, operator))
    assert result["baseline"] == result["changed"]
    assert result["starts"] == {
        "earlier": 0, "later": 0, "same": 3, "gained": 0, "lost": 0, "neither": 0,
    }  # fmt: skip
    series = result["series"]
    assert series["baseline_gpus"] == series["changed_gpus"]
    assert series["baseline_gfr"] == series["changed_gfr"]
    within = result["started_within_s"]
    assert within["baseline"] == within["changed"] == within["recorded"]


def test_the_baseline_is_what_was_recorded(cluster, operator):
    result = found(asked(cluster, operator))
    baseline, real = result["baseline"], result["recorded"]
    assert everyone(baseline)["mean_s"] == pytest.approx(550 / 3)
    assert everyone(real)["mean_s"] == pytest.approx(550 / 3)
    busy = 600 * 24 + 510 * 8 + 300 * 32
    assert baseline["sor"] == pytest.approx(busy / (1200 * 32)), "also of the time after the jobs"
    assert baseline["gpu_hours"] == pytest.approx(busy / 3600)
    assert [row["size"] for row in baseline["jtted"]] == ["8", "16", "32"]
    assert real["gpu_hours"] == pytest.approx(busy / 3600)
    assert [row["gpu_hours"] for row in real["tenants"]] == [pytest.approx(busy / 3600)]
    assert result["trust"]["grade"] == "close"
    assert real["sor"] is None, "nothing was sampled"
    series = result["series"]
    assert series["recorded_gpus"] == [pytest.approx(value) for value in series["baseline_gpus"]]


def test_strict_order_keeps_a_small_job_behind_a_blocked_head(cluster, operator):
    replay = asked(cluster, operator, policy={"queueing": "strict-fifo"})
    result = found(replay)
    assert replay.policy_before["queueing"] == "best-effort-fifo"
    waits = {row["size"]: row["mean_s"] for row in result["changed"]["jwtd"]}
    assert waits["8"] == pytest.approx(910 - 100), "behind the head"
    assert {row["size"]: row["mean_s"] for row in result["baseline"]["jwtd"]}["8"] == 0
    assert result["starts"]["later"] == 1
    (hit,) = result["hardest_hit"]
    assert (hit["name"], hit["tenant"]) == ("small", "vision")
    assert (hit["wait_before_s"], hit["wait_s"]) == (0, pytest.approx(810))
    assert result["changed"]["tenants"][0]["tenant"] == "vision"


def test_more_nodes_take_the_head_at_once_and_fewer_never(cluster, operator):
    more = found(asked(cluster, operator, nodes=[change(4)]))
    assert more["changed"]["gpus"] == 64
    assert everyone(more["changed"])["mean_s"] == 0
    assert more["starts"]["earlier"] == 1
    fewer = found(asked(cluster, operator, nodes=[change(-1)]))
    assert fewer["changed"]["gpus"] == 24
    assert fewer["changed"]["never_runnable"] == 1
    assert fewer["baseline"]["never_runnable"] == 0
    # Waits stay comparable: the job that cannot run counts in neither of them.
    assert everyone(fewer["baseline"])["jobs"] == everyone(fewer["changed"])["jobs"] == 2
    assert fewer["starts"]["lost"] == 1


def change(number, gpu_type="H100", gpus=8):
    return {"gpu_type": gpu_type, "gpus": gpus, "change": number}


def test_preemption_that_is_switched_on_costs_work(cluster, operator):
    Job.objects.filter(name="head").update(priority=100)
    ClusterPolicy.objects.create(cluster=cluster, document={"preemption": []})
    policy = {"preemption": ["priority"], "min_runtime_s": 0}
    result = found(asked(cluster, operator, policy=policy))
    assert result["baseline"]["preempted_jobs"] == 0
    assert result["changed"]["preempted_jobs"] == 1
    assert result["changed"]["lost_gpu_hours"] == pytest.approx(50 * 24 / 3600)


@pytest.mark.parametrize(("after_s", "wait_s"), [(0, 0), (300, 300), (600, 550)])
def test_who_preempts_later_may_get_room_without(cluster, operator, after_s, wait_s):
    Job.objects.filter(name="head").update(priority=100)
    policy = {"preemption": ["priority"], "min_runtime_s": 0, "preempt_after_s": after_s}
    result = found(asked(cluster, operator, policy=policy))
    waits = {row["size"]: row["mean_s"] for row in result["changed"]["jwtd"]}
    assert waits["32"] == pytest.approx(wait_s)
    assert bool(result["changed"]["preempted_jobs"]) == (wait_s == after_s)


def test_what_is_not_known_of_jobs_is_told(cluster, operator):
    rows.job(cluster, "runs-on", submitted=1000, bound=1000, nodes=NODES[:1])
    waits = rows.job(cluster, "gave-up", submitted=1010)
    Job.objects.filter(pk=waits.pk).update(
        state=JobState.CANCELLED, ended_at=rows.at(1020), declared_s=30
    )
    held = rows.job(cluster, "held", submitted=1030)
    Job.objects.filter(pk=held.pk).update(held=True)
    bad = rows.job(cluster, "bad", submitted=1040)
    bad.pod_sets.all().delete()
    rows.job(cluster, "before", submitted=-50, bound=-40, ended=5, nodes=NODES[:1])
    told = found(asked(cluster, operator))["history"]
    assert told["unreadable_first"] == [f"job {bad.pk}: cannot be read (the job has no pod set)"]
    assert {name: told[name] for name in told if isinstance(told[name], int)} == {
        "jobs": 6, "carried_over": 1, "open_ended": 2, "gave_up": 1, "declared": 1, "held": 1,
        "unreadable": 1, "quota_changes": 0,
    }  # fmt: skip


def test_who_never_started_runs_as_long_as_declared(cluster, operator):
    """In reality the job finds no place; with another node it does."""
    rows.job(cluster, "fills", pods=4, submitted=910, bound=910, ended=1190, nodes=NODES)
    lost = rows.job(cluster, "gave-up", submitted=920)
    gave_up = {"state": JobState.CANCELLED, "ended_at": rows.at(1100)}
    Job.objects.filter(pk=lost.pk).update(**gave_up, declared_s=50)
    with_one_more = {"nodes": [change(1)]}
    told = found(asked(cluster, operator, **with_one_more))
    assert told["starts"]["gained"] == 1
    assert told["changed"]["unknown_gpu_hours"] == 0
    more = told["changed"]["gpu_hours"] - told["baseline"]["gpu_hours"]
    assert more == pytest.approx(50 * 8 / 3600)
    Job.objects.filter(pk=lost.pk).update(declared_s=None)
    told = found(asked(cluster, operator, **with_one_more))
    assert told["changed"]["unknown_gpu_hours"] == pytest.approx(180 * 8 / 3600)
    assert tables.unknown_share(told) == pytest.approx(
        180 * 8 / 3600 / told["changed"]["gpu_hours"]
    )


def test_who_waits_for_ever_waits_to_the_end_of_the_period(cluster, operator):
    Job.objects.all().delete()
    rows.job(cluster, "first", submitted=0, bound=0, ended=100, nodes=NODES[:1])
    late = rows.job(cluster, "late", submitted=200)
    Job.objects.filter(pk=late.pk).update(held=True)
    waits = everyone(found(asked(cluster, operator))["baseline"])
    assert (waits["waiting"], waits["mean_s"]) == (1, pytest.approx(500))


def test_a_period_begins_with_what_was_held_before_it(cluster, operator):
    """Which tenants held GPUs before the period decides whose job comes first in it."""
    Job.objects.all().delete()
    gpu_type = Quota.objects.get().gpu_type
    others = [Tenant.objects.create(name=name) for name in ("law", "third")]
    for tenant in others:
        Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=64_000)
    rows.job(cluster, "before", pods=4, submitted=-600, bound=-600, ended=-300, nodes=NODES)
    full = rows.job(cluster, "full", pods=4, submitted=-300, bound=-300, ended=100, nodes=NODES)
    rows.job(cluster, "first", pods=4, submitted=10, bound=100, ended=200, nodes=NODES)
    second = rows.job(cluster, "second", pods=4, submitted=20, bound=200, ended=300, nodes=NODES)
    for job, tenant in zip((second, full), others, strict=True):
        Job.objects.filter(pk=job.pk).update(tenant=tenant)
    fair = {"fair_share": True, "usage_half_life_s": 1000}
    ClusterPolicy.objects.create(cluster=cluster, document=fair)
    tried = found(asked(cluster, operator, policy={"usage_half_life_s": 0}))
    assert everyone(tried["baseline"])["mean_s"] == pytest.approx((190 + 80) / 2)
    assert everyone(tried["changed"])["mean_s"] == pytest.approx((90 + 180) / 2)
    assert (tried["starts"]["earlier"], tried["starts"]["later"]) == (1, 1)


def test_what_was_sampled_is_beside_the_runs(cluster, operator):
    for at in range(0, 1201, 60):
        held = 24 if 10 <= at < 700 else 0
        MetricSample.objects.create(
            cluster=cluster, at=rows.at(at), available_milli=32000, allocated_milli=1000 * held,
            nodes=4, fragmented_nodes=at < 600, allocated_milli_s=1000 * 16 * at,
            available_milli_s=32000 * at,
        )  # fmt: skip
    result = found(asked(cluster, operator))
    real = result["recorded"]
    assert (real["sor"], real["gar"], real["gfr"]) == (0.5, 0.75, pytest.approx(0.5 / 4))
    assert real["sampled"] == 1.0


def test_what_was_sampled_for_a_part_does_not_speak_for_all(cluster, operator):
    for at in (0, 900):
        MetricSample.objects.create(
            cluster=cluster, at=rows.at(at), available_milli=32000, allocated_milli=0, nodes=4,
            fragmented_nodes=0, allocated_milli_s=0, available_milli_s=32000 * at,
        )  # fmt: skip
    real = found(asked(cluster, operator))["recorded"]
    assert (real["sampled"], real["sor"], real["gar"], real["gfr"]) == (0.75, None, None, None)


@pytest.mark.parametrize(
    ("held", "wait", "grade"),
    [
        ((0.5, 0.51), (100, 150), "close"),
        ((0.5, 0.55), (100, 150), "rough"),
        ((0.5, 0.5), (1000, 1400), "rough"),
        ((0.5, 0.5), (10_000, 16_000), "far"),
        ((0.5, 0.7), (None, None), "far"),
        ((None, None), (None, 3.0), "unknown"),
    ],
)
def test_the_worse_of_two_differences_is_the_grade(held, wait, grade):
    assert recorded.grade(held, wait) == grade


def test_what_the_runs_do_not_know_is_told(cluster, operator):
    replay = asked(cluster, operator)
    assert recorded.doubts(replay) == []
    replay.policy_before = effective({"shards": [{"name": "a"}]})
    ClusterPolicy.objects.create(cluster=cluster)
    for title, seconds in (("same", None), ("other", 60.0), ("other", 90.0)):
        AuditRecord.objects.create(
            actor_name="ops", action="tenant.changed", subject="vision", source="page",
            before={"title": "Vision"}, after={"title": title, "min_runtime_s": seconds},
        )  # fmt: skip
    Cluster.objects.create(name="other")
    assert "tenants were changed 2 times" in recorded.doubts(replay)[1]
    assert [text.split()[:3] for text in recorded.doubts(replay)] == [
        ["The", "policy", "was"],
        ["Minimum", "run", "times"],
        ["Shards", "make", "no"],
        ["Quota", "that", "is"],
    ]


# --- nodes ----------------------------------------------------------------------------------------
def test_added_nodes_are_whole_and_stand_in_leaves_of_their_own(cluster):
    NodeRecord.objects.filter(name="n000").update(schedulable=False)
    nodes = list(history.nodes_of(cluster))
    shape = NodeShape("H100", 8)
    assert shapes_of(cluster) == {shape: 4}
    added = changed_nodes(nodes, {shape: 5})[4:]
    assert [node.name for node in added] == ["n001+1", "n002+1", "n003+1", "n000+1", "n001+2"]
    assert all(node.schedulable for node in added)
    assert [node.topology[0] for node in added] == ["l0+1", "l1+1", "l1+1", "l0+1", "l0+2"]
    left = changed_nodes(nodes, {shape: -3})
    assert [node.name for node in left] == ["n000"], "those in service go first"


def test_what_differs_is_told_in_words():
    shared = {"mode": "shared", "borrow_limit": None, "lend_limit": None}
    quota = {"tenant": "vision", "gpu_type": "H100", "guaranteed": 64_000, **shared}
    replay = Replay(
        policy_before=effective({}),
        policy=effective({"queueing": "backfill", "strategies": {"training": "spread"}}),
        nodes=[change(-2)],
        quotas_before=[quota],
        quotas=[
            {**quota, "guaranteed": 8500, "borrow_limit": 0, "lend_limit": 4000},
            {**quota, "tenant": "speech", "mode": "isolated"},
        ],
    )
    assert list(differences(replay)) == [
        ("Queueing", "best-effort-fifo", "backfill"),
        ("Training strategy", "e-binpack", "spread"),
        ("Nodes of H100 × 8", "as now", "−2"),
        (
            "Quota of vision for H100",
            "64 GPUs",
            "8.5 GPUs, borrows at most 0, lends at most 4",
        ),
        ("Quota of speech for H100", "none", "64 GPUs, isolated"),
    ]


# --- who may ask for what -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"until": 4e9}, "until", "Lies in the future"),
        ({"until": 0}, "since", "Must be before the end"),
        ({"since": -86400 * 31}, "since", "The period has more than 31 days"),
        ({"policy": {"queueing": "lifo"}}, "policy.queueing", "Choose one of strict-fifo"),
        (
            {"policy": {"qeueing": "backfill"}},
            "policy.qeueing",
            "Unknown field. Did you mean queueing? Known here",
        ),
        ({"policy": {"fair_users": True}}, "policy.fair_users", "Only with fair_share"),
        ({"policy": {"spare_nodes": {"H9": 1}}}, "policy.spare_nodes.H9", "no GPU type “H9”"),
        ({"nodes": [change(1, "H9")]}, "nodes.0.gpu_type", "it has H100 × 8."),
        ({"nodes": [change(1), change(2)]}, "nodes.1.gpu_type", "is given twice"),
        ({"nodes": [change(-5)]}, "nodes.0.change", "from −4 (all nodes there are) to 10000"),
        ({"nodes": [change(-4)]}, "nodes", "No node would be left. Keep one."),
        ({"since": 1e6, "until": 1.1e6}, "since", "No job waited or ran on c1 from 2026-01-12"),
    ],
)
def test_a_fault_names_its_field_and_the_remedy(cluster, operator, given, field, text):
    period = {name: rows.at(given.pop(name, at)) for name, at in (("since", 0), ("until", 1200))}
    with pytest.raises(Invalid) as error:
        services.create_replay(operator, cluster, **period, **given)
    assert text in " ".join(error.value.by_field[field])
    assert not Replay.objects.exists()


def test_fields_that_need_each_other_are_held_against_the_policy_as_it_is(cluster, operator):
    ClusterPolicy.objects.create(cluster=cluster, document={"fair_share": True})
    assert asked(cluster, operator, policy={"fair_users": True}).policy["fair_share"]
    ClusterPolicy.objects.update(document={"fair_share": True, "fair_users": True})
    with pytest.raises(Invalid, match="Only with fair_share"):
        asked(cluster, operator, policy={"fair_share": False})


def test_only_operators_ask_and_only_so_many_wait(cluster, operator):
    with pytest.raises(NotAllowed):
        asked(cluster, User.objects.create_user("erin"))
    for _ in range(services.MOST_QUEUED):
        asked(cluster, operator)
    with pytest.raises(Conflict, match="20 replays are already waiting"):
        asked(cluster, operator)


def test_the_last_seven_days_unless_it_says_otherwise(cluster, operator):
    now = timezone.now()
    rows.job(cluster, "new", submitted=(now - rows.T0).total_seconds() - 60)
    replay = services.create_replay(operator, cluster)
    assert replay.until - replay.since == timedelta(days=7)
    assert replay.policy == replay.policy_before == effective({})


def test_a_cluster_without_nodes_has_nothing_to_replay(cluster, operator):
    NodeRecord.objects.all().delete()
    with pytest.raises(Invalid) as error:
        asked(cluster, operator)
    assert error.value.by_field == {"cluster": ["The cluster has no nodes with GPUs."]}
