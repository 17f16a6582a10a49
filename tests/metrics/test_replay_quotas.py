"""Replays with other quotas, over a history in which quotas changed."""

import pytest

from metrics.models import Replay
from metrics.replays import process, quotas, recorded, services
from scheduling.engine.types import QuotaSpec
from tenants.errors import Invalid
from tenants.models import AuditRecord, Quota, Tenant
from tests.metrics import rows
from tests.metrics.replays import asked

SHARED = {"mode": "shared", "borrow_limit": None, "lend_limit": None}


@pytest.fixture
def cluster(blocked_head):
    return blocked_head


def gpus(number, tenant="vision", gpu_type="H100", **more):
    return {"tenant": tenant, "gpu_type": gpu_type, "guaranteed": 1000 * number, **more}


def document(number, **more):
    """Return a quota as the audit trail keeps it."""
    return {"guaranteed": float(number), **SHARED, "version": 1, **more}


def changed(at, before, after, subject="vision / H100", action="quota.changed"):
    record = AuditRecord.objects.create(
        actor_name="ops", action=action, subject=subject, source="page", before=before, after=after
    )
    AuditRecord.objects.filter(pk=record.pk).update(at=rows.at(at))


def result(replay):
    process.carry_out(services.take_next(), lambda _: None)
    replay.refresh_from_db()
    assert (replay.state, replay.message) == ("DONE", "")
    return replay.result


def starts(run):
    return {row["size"]: row["mean_s"] for row in run["jwtd"]}


# --- what is found --------------------------------------------------------------------------------
def test_a_smaller_quota_holds_jobs_back_in_the_changed_run_alone(cluster, operator):
    """24 of 32 GPUs run first; 8 more start only when those are gone."""
    replay = asked(cluster, operator, quotas=[gpus(24, mode="isolated")])
    found = result(replay)
    assert (replay.quotas_before, replay.quotas) == (
        [{**gpus(64), **SHARED}],
        [gpus(24, mode="isolated", borrow_limit=None, lend_limit=None)],
    )
    assert starts(found["baseline"])["8"] == 0
    assert starts(found["changed"])["8"] == pytest.approx(510)
    assert (found["baseline"]["never_runnable"], found["changed"]["never_runnable"]) == (0, 1)
    assert found["starts"]["later"] == 1


def test_quotas_are_what_they_were_at_each_time(cluster, operator):
    """24 GPUs until second 400, when somebody noticed that the small job waits."""
    changed(400, document(24, mode="isolated"), document(64))
    found = result(asked(cluster, operator))
    for run in ("baseline", "changed"):
        assert starts(found[run])["8"] == pytest.approx(300)
        assert found[run]["never_runnable"] == 0, "it can run as soon as the quota is larger"
    assert found["history"]["quota_changes"] == 1
    assert found["starts"]["same"] == 3


def test_who_is_beyond_quota_to_the_end_never_runs(cluster, operator):
    changed(400, document(8, mode="isolated"), document(24, mode="isolated"))
    Quota.objects.update(guaranteed_milli=24_000, mode="isolated")
    found = result(asked(cluster, operator))
    assert found["baseline"]["never_runnable"] == 1
    assert found["baseline"]["jobs"] == 3


def test_a_changed_quota_stands_all_the_time(cluster, operator):
    changed(400, document(24, mode="isolated"), document(64))
    replay = asked(cluster, operator, quotas=[gpus(64)])
    found = result(replay)
    assert starts(found["baseline"])["8"] == pytest.approx(300)
    assert starts(found["changed"])["8"] == 0
    (doubt,) = found["trust"]["doubts"]
    assert doubt.startswith("The quota of vision for H100 was changed once in the period;")
    changed(500, document(24), document(64))
    assert "was changed 2 times" in recorded.doubts(replay)[0]
    assert recorded.doubts(Replay(**vars_of(replay), quotas=[])) == []


def vars_of(replay):
    names = ("cluster", "since", "until", "policy_before", "policy")
    return {name: getattr(replay, name) for name in names}


# --- as they were ---------------------------------------------------------------------------------
def over_time(*changes):
    """Return [(second, {tenant: guaranteed GPUs})] of the history from second 0 to 1000."""
    found = quotas.over_time(rows.at(0), rows.at(1000), changes)
    return [
        ((at - rows.T0).total_seconds(), {q.tenant: q.guaranteed // 1000 for q in all_of})
        for at, all_of in found
    ]


def test_the_audit_trail_is_read_back_from_now(cluster):
    Tenant.objects.create(name="speech")
    changed(-10, document(1), document(8))
    changed(100, document(8), document(16))
    changed(200, None, document(4), "speech / H100")
    changed(300, document(4), None, "speech / H100", "quota.deleted")
    changed(1000, document(16), document(64))
    assert over_time() == [
        (0, {"vision": 8}),
        (100, {"vision": 16}),
        (200, {"speech": 4, "vision": 16}),
        (300, {"vision": 16}),
    ]
    assert over_time(gpus(2, **SHARED)) == [
        (0, {"vision": 2}),
        (200, {"speech": 4, "vision": 2}),
        (300, {"vision": 2}),
    ]


def test_quotas_saved_together_change_together(cluster):
    Tenant.objects.create(name="speech")
    changed(100, document(8), document(64))
    changed(100.4, None, document(4), "speech / H100")
    changed(100.8, document(4), None, "speech / H100", "quota.deleted")
    changed(102, None, document(4), "speech / H100")
    assert over_time() == [
        (0, {"vision": 8}),
        (100.8, {"vision": 64}),
        (102, {"speech": 4, "vision": 64}),
    ]


def test_limits_and_modes_are_read_too_and_tenants_that_are_gone_are_not(cluster):
    changed(100, document(8, borrow_limit=2.5, lend_limit=0.0), document(64))
    changed(200, document(8), None, "gone / H100", "quota.deleted")
    (_, first), (_, last) = quotas.over_time(rows.at(0), rows.at(1000))
    assert first == (QuotaSpec("vision", "H100", 8000, borrow_limit=2500, lend_limit=0),)
    assert last == (QuotaSpec("vision", "H100", 64_000),)


# --- who may ask for what -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ([gpus(1, "law")], "quotas.0.tenant", "There is no tenant “law”."),
        ([gpus(1, gpu_type="T4")], "quotas.0.gpu_type", "There is no GPU type “T4”."),
        ([gpus(1), gpus(2)], "quotas.1.tenant", "is given twice. Give it once."),
        ([gpus(1, mode="isolated", lend_limit=0)], "quotas.0.lend_limit", "neither borrows nor"),
        ([gpus(1, lend_limit=2000)], "quotas.0.lend_limit", "Lend at most what is guaranteed."),
        ([gpus(2 * 10**9)], "quotas.0.guaranteed", "Must be from 0 to"),
        ([gpus(70)], "quotas.0.guaranteed", "70 GPUs would be promised, 32 GPUs are installed."),
        (
            [gpus(0), gpus(8, "below"), gpus(9, "beside")],
            "quotas.1.guaranteed",
            "8 GPUs would be promised, 0 GPUs are guaranteed to “vision” above them.",
        ),
    ],
)
def test_a_fault_names_its_field_and_the_remedy(cluster, operator, given, field, text):
    Tenant.objects.create(name="below", parent=Tenant.objects.get(name="vision"))
    Tenant.objects.create(name="beside")
    with pytest.raises(Invalid) as error:
        asked(cluster, operator, quotas=given)
    assert text in " ".join(error.value.by_field[field])
    assert not Replay.objects.exists()


def test_added_nodes_count_for_what_may_be_promised(cluster, operator):
    Quota.objects.update(guaranteed_milli=32_000)
    with pytest.raises(Invalid):
        asked(cluster, operator, quotas=[gpus(40)])
    more = [{"gpu_type": "H100", "gpus": 8, "change": 1}]
    assert asked(cluster, operator, quotas=[gpus(40)], nodes=more).quotas[0]["guaranteed"] == 40_000


def test_what_is_promised_too_much_already_may_be_less(cluster, operator):
    assert asked(cluster, operator, quotas=[gpus(50)]).quotas[0]["guaranteed"] == 50_000


def test_gpus_go_from_one_tenant_to_another_in_any_order(cluster, operator):
    Quota.objects.update(guaranteed_milli=32_000)
    Tenant.objects.create(name="speech")
    given = [gpus(16, "speech"), gpus(16)]
    assert len(asked(cluster, operator, quotas=given).quotas_before) == 1
