"""The pages that change a cluster's policy, without a browser: form, check and save."""

from dataclasses import fields

import pytest
from django.utils import timezone

from metrics.pages.policies.forms import GROUPS, LABELS, STRATEGY_TEXTS, PolicyForm, typed
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import Policy, PreemptionKind
from scheduling.models import Cluster, ClusterPolicy, Job, NodeRecord
from scheduling.policy.document import effective
from scheduling.policy.settings import settings_of
from scheduling.services.policies.changes import policy_of
from tenants.models import AuditRecord, Tenant
from tests.cases import some
from tests.e2e.policies import (
    CHANGES,
    CHECK,
    DRAFT,
    SAVE,
    URL,
    change,
    checked,
    hidden,
    now,
    plain,
    saved,
    sent,
)


@pytest.fixture
def ops(as_user):
    return as_user("operator")


# --- rights ---------------------------------------------------------------------------------------
def test_only_operators_open_them(as_user):
    record = change({"blame_s": 60}) and AuditRecord.objects.first()
    pages = (URL, CHECK, CHANGES, f"{CHANGES}{record.pk}/revert/")
    for page in pages:
        assert as_user("vera").get(page).status_code == 403
        assert as_user("operator").get(page, follow=True).status_code == 200
    for page in (URL, CHECK, SAVE, DRAFT, f"{URL}replay/", pages[-1]):
        assert as_user("vera").post(page, {}).status_code == 403
    assert as_user("vera").post(f"{pages[-1]}preview/", {}).status_code == 403
    assert policy_of(Cluster.objects.get()).version == 1
    assert as_user("operator").get("/policies/nowhere/").status_code == 404


def test_the_operations_page_leads_there(ops):
    page = ops.get("/ops/").content.decode()
    for link in (URL, CHANGES):
        assert f'href="{link}"' in page
    ClusterPolicy.objects.create(
        cluster=Cluster.objects.get(), document={"queueing": "of-a-newer-version"}
    )
    assert f'href="{URL}"' not in ops.get("/ops/").content.decode()
    for answer in (ops.get(URL), ops.post(SAVE, {"version": "1"})):
        assert answer.status_code == 404
        assert "this version cannot read it" in plain(answer)
    assert ops.get(CHANGES).status_code == 200


# --- the form -------------------------------------------------------------------------------------
def test_every_setting_of_a_policy_has_a_field_in_a_group():
    assert {name for _, _, names in GROUPS for name in names} == {f.name for f in fields(Policy)}
    assert STRATEGY_TEXTS.keys() == STRATEGIES.keys()
    assert {f"preemption.{kind}" for kind in PreemptionKind} < LABELS.keys()


def test_the_form_shows_the_policy_as_it_is_with_units_and_defaults(ops):
    change({"queueing": "backfill", "backfill_after_s": 90, "usage_half_life_s": 86400})
    answer = ops.get(URL)
    text, form = plain(answer), answer.context["form"]
    assert "by operator: “Other reasons”" in text
    assert form["queueing"].value() == "backfill"
    assert str(form["backfill_after_s"].value()) == "1.5"
    assert str(form["usage_half_life_s"].value()) == "24"
    assert "Backfill after, minutes Other jobs may pass a blocked head for this long" in text
    assert "Preempt after, seconds A job waits this long before it preempts by priority" in text
    assert "Default: 10 min" in text
    assert [f.label for f in form if f.name.startswith("spare_nodes.")] == [
        "Spare nodes of H100", "Spare nodes of H200", "Spare nodes of L40S",
    ]  # fmt: skip


def test_what_the_form_says_is_what_it_was_shown_with():
    policy = effective(
        {
            "strategies": {"training": "e-binpack"},
            "preemption": ["reclaim"],
            "spare_nodes": {"H100": 2},
            "min_runtime_s": 0.25,
            "usage_half_life_s": 0,
            "shards": [
                {"name": "a", "gpu_models": ["H100", "A100"], "groups": []},
                {"name": "b", "gpu_models": [], "groups": ["c/s1", "c/s2"]},
                {"name": "c"},
            ],
        }
    )
    data = typed(PolicyForm(policy, ["H100"]), settings_of(policy))
    assert data["shards"] == "a; H100, A100\nb; ; c/s1, c/s2\nc"
    form = PolicyForm(policy, ["H100"], data | {"shards": data["shards"].replace("\n", "\r\n")})
    assert form.is_valid(), form.errors
    # The page shows hundredths of a minute; untouched fields keep their exact value.
    assert form.changes() == {}
    before = {"strategies": {"training": "binpack"}, "preemption": []}
    other = PolicyForm(effective(before), ["H100"], data)
    assert other.is_valid()
    assert other.changes() == {
        "strategies.training": "e-binpack",
        "preemption.reclaim": True,
        "spare_nodes.H100": 2,
        "min_runtime_s": 0.6,
        "shards": policy["shards"],
    }


def test_settings_without_effect_are_marked_and_kept(ops):
    change({"preemption": []})
    draft = ops.post(DRAFT, sent(ops.get(URL)), headers={"HX-Request": "true"})
    idle = {i.field.name for g in draft.context["groups"] for i in g.items if i.idle}
    assert idle == {"preemption.backfill", "learned_run_times", "backfill_after_s",
                    "preempt_after_s", "max_preemptions", "min_runtime_s", "fair_users",
                    "usage_half_life_s", "defrag_above", "defrag_moves"}  # fmt: skip
    changes = {"queueing": "backfill", "preemption.priority": "on", "backfill_after_s": "5"}
    draft = ops.post(DRAFT, sent(ops.get(URL), **changes), headers={"HX-Request": "true"})
    idle = {i.field.name for g in draft.context["groups"] for i in g.items if i.idle}
    assert idle == {"fair_users", "usage_half_life_s", "defrag_above", "defrag_moves"}
    text = plain(draft)
    assert "3 changes" in text
    assert "Was 10 min." in text
    check = checked(ops, backfill_after_s="5")
    assert "No effect then. Only under backfill, or with several schedulers." in plain(check)
    saved(ops, check)
    assert now() == {"backfill_after_s": 300.0, "preemption": []}


@pytest.mark.parametrize(
    ("typed_in", "field", "text"),
    some(
        [
            ({"max_attempts": "-1"}, "max_attempts", "from 0 to 1000000"),
            ({"max_attempts": "many"}, "max_attempts", "whole number"),
            ({"blame_s": ""}, "blame_s", "Fill this in."),
            ({"blame_s": "527041"}, "blame_s", "from 0 to 527040"),
            ({"queueing": "lottery"}, "queueing", "Choose one of"),
            ({"strategies.training": "x"}, "strategies.training", "Choose one of"),
            ({"fair_users": "on"}, "fair_users", "Only with fair_share"),
            ({"spare_nodes.H100": "-1"}, "spare_nodes.H100", "from 0 to"),
            ({"shards": "a; b; c; d"}, "shards", "Line 1: write NAME; GPU TYPES; GROUPS."),
            ({"shards": "a; H100\nA; ; s"}, "shards", "Shard 2, name: Must be 1 to 63 lower-case"),
            ({"shards": "a\nb"}, "shards", "Shard 1, gpu_models: Only the last shard takes all"),
            ({}, None, "Nothing was changed."),
        ]
    ),
)
def test_what_cannot_be_stands_beside_its_field_and_nothing_typed_is_lost(
    ops, typed_in, field, text
):
    answer = checked(ops, gang_timeout_s="12", **typed_in) if typed_in else checked(ops)
    assert answer.status_code == 422
    form = answer.context["form"]
    errors = form.errors[field] if field else form.non_field_errors()
    assert any(text in error for error in errors), form.errors
    assert form["gang_timeout_s"].value() == ("12" if typed_in else "10")
    live = ops.post(DRAFT, sent(ops.get(URL), **typed_in), headers={"HX-Request": "true"})
    assert live.status_code == 200
    if field:
        assert live.context["form"].errors.keys() == {field}
    assert not ClusterPolicy.objects.exists()


@pytest.mark.parametrize(
    "broken",
    some(
        [
            {"version": "x"},
            {"shown": "{"},
            {"shown": "[]"},
            {"shown": '{"queueing": "lottery"}'},
            {"changes": '{"queueing.x": 1}'},
            {"changes": "7"},
            {"changes": '{"blame_s": "x"}'},
            {"changes": '{"shards": [{}]}'},
        ]
    ),
)
def test_a_damaged_page_says_so(ops, broken):
    check = checked(ops, queueing="backfill")
    for url in (SAVE, URL, CHECK, f"{URL}replay/"):
        answer = ops.post(url, hidden(check) | broken)
        assert answer.status_code == 422
        assert "The form is damaged. Load the page again." in plain(answer)
    assert ops.post(DRAFT, broken).status_code == 400
    assert not ClusterPolicy.objects.exists()


# --- the preview, and the save --------------------------------------------------------------------
def test_a_change_is_looked_at_field_by_field_and_saved_with_its_reason(ops):
    before = {"strategies": {"training": "binpack"}, "preemption": []}
    change({"queueing": "backfill", "blame_s": 60, **before})
    check = checked(ops, **{"strategies.training": "e-binpack", "preemption.reclaim": "on"})
    text = plain(check)
    assert "2 settings; the others stay as they are" in text
    assert "Training strategy binpack e-binpack Preemption: reclaim no yes" in text
    assert policy_of(Cluster.objects.get()).version == 1
    page = ops.get(saved(ops, check)["Location"])
    assert "The policy of Demo cluster is changed; it is version 2 now." in plain(page)
    assert now() == {
        "queueing": "backfill",
        "blame_s": 60,
        "strategies": {"training": "e-binpack", "inference": "binpack", "development": "binpack"},
        "preemption": ["reclaim"],
    }
    record = AuditRecord.objects.first()
    assert (record.action, record.reason, record.source) == ("policy.changed", "Gangs wait", "page")


def test_whom_it_concerns_is_told_from_what_is_so_now(ops):
    change({"preemption": []})
    Tenant.objects.filter(name="speech").update(min_runtime_s=5400)
    Job.objects.filter(name="wait-000").update(
        blocked_since=timezone.now() - timezone.timedelta(minutes=11)
    )
    Job.objects.filter(name="train-000").update(preemptible=False)
    for number, (kind, gang) in enumerate([("inference", False), ("inference", True)]):
        name = f"train-{number + 1:03d}"
        assert Job.objects.filter(name=name).update(kind=kind, gang=gang)
    check = checked(
        ops,
        queueing="backfill",
        consolidation="on",
        defrag_loss="0.5",
        min_runtime_s="2",
        shards="h; H100\nrest",
        **{"preemption.reclaim": "on", "spare_nodes.H100": "3", "strategies.training": "spread"},
    )
    told = check.context["effects"]
    running = Job.objects.filter(state="RUNNING").count()
    idle = NodeRecord.objects.filter(gpu_model="H100", allocated_milli=0, schedulable=True).count()
    assert told[0].startswith("Waiting: 5 jobs (632 GPUs). Holding places: ")
    assert "so overdue immediately: 1 job (64 GPUs)." in told[1]
    assert told[2].startswith(f"Preemptible jobs that hold places: {running - 1} jobs")
    assert "Not preemptible: 1 job" in told[2]
    assert told[3].startswith("Tenants that borrow GPUs now, on all clusters:")
    assert "speech 1 h 30 min" in told[4]
    assert told[5].startswith("Waiting training jobs, to be placed by spread: 5 jobs (632 GPUs)")
    assert told[6].startswith("Inference jobs whose replicas may be moved: 1 job")
    running = Job.objects.filter(state="RUNNING", gang=True, preemptible=True)
    alone = [job for job in running if sum(s.count for s in job.pod_sets.all()) == 1]
    some = f"{len(alone)} job{'s'[: len(alone) > 1]}" if alone else "no job"
    assert told[7].startswith(f"Jobs of one pod that may be moved: {some}")
    assert told[8] == f"Nodes with H100: 32, of which {idle} are idle now; 3 would be kept free."
    assert told[9].startswith("Nodes of each shard: h 32, rest 88.")
    other = checked(ops, blame_s="1").context["effects"]
    assert len(other) == 1


def test_one_goes_back_to_the_form_with_what_was_typed(ops):
    check = checked(ops, queueing="strict-fifo", fair_share="on", **{"spare_nodes.H200": "2"})
    form = ops.post(URL, hidden(check) | {"reason": "Half a"})
    items = [item for group in form.context["groups"] for item in group.items]
    edited = {item.field.name: item.was for item in items if item.was}
    was = {"queueing": "best-effort-fifo", "fair_share": "no", "spare_nodes.H200": "none"}
    assert edited == was
    assert "fair_users" not in {item.field.name for item in items if item.idle}
    again = ops.post(CHECK, sent(form, queueing="strict-fifo"))
    assert again.context["reason"]["reason"].value() == "Half a"


def test_a_number_of_spare_nodes_that_is_cleared_is_none(ops):
    change({"spare_nodes": {"H100": 2, "L40S": 1}})
    check = checked(ops, **{"spare_nodes.H100": ""})
    assert "Spare nodes of H100 2 none" in plain(check)
    saved(ops, check)
    assert now() == {"spare_nodes": {"L40S": 1}}


def test_a_reason_that_is_too_long_is_refused(ops):
    answer = saved(ops, checked(ops, queueing="backfill"), reason="x" * 2001)
    assert answer.status_code == 422
    assert "at most 2000 characters" in plain(answer)
    assert not ClusterPolicy.objects.exists()


# --- somebody else --------------------------------------------------------------------------------
def test_a_change_made_meanwhile_is_told_and_not_overwritten_unseen(ops):
    form = ops.get(URL)
    check = ops.post(CHECK, sent(form, queueing="backfill", blame_s="1"))
    change({"queueing": "strict-fifo", "max_attempts": 3}, reason="Order first")
    answer = saved(ops, check)
    assert answer.status_code == 422
    text = plain(answer)
    assert "This policy was changed in the meantime. Your change was not saved." in text
    assert "Queueing: best-effort-fifo to strict-fifo , by operator just now" in text
    assert "“Order first”" in text
    assert "strict-fifo operator set it meanwhile; it was best-effort-fifo backfill" in text
    assert 'value="Gangs wait"' in answer.content.decode()
    assert now() == {"queueing": "strict-fifo", "max_attempts": 3}
    saved(ops, answer)  # having seen it
    assert now() == {"queueing": "backfill", "max_attempts": 3, "blame_s": 60.0}
    assert AuditRecord.objects.first().before["max_attempts"] == 3
    # A person with the form still open is told too, and fields untouched there keep the new value.
    live = ops.post(DRAFT, sent(form, warn_before_s="7"), headers={"HX-Request": "true"})
    assert "Max attempts: 8 to 3 , by operator" in plain(live)
    late = ops.post(CHECK, sent(form, warn_before_s="7"))
    assert "Warn before 5 min 7 min" in plain(late)
    saved(ops, late)
    assert now()["max_attempts"] == 3
    assert now()["warn_before_s"] == 420.0


def test_a_policy_that_was_saved_as_it_was_meanwhile_is_saved_at_the_second_try(ops):
    check = checked(ops, queueing="backfill")
    change({})
    answer = saved(ops, check)
    assert "Somebody saved this policy without a change in the meantime" in plain(answer)
    assert saved(ops, answer).status_code == 302
    again = saved(ops, check)  # an outdated page: the change is already made
    assert again["Location"] == CHANGES
    assert policy_of(Cluster.objects.get()).version == 2


def test_what_cannot_be_saved_any_more_comes_back_in_the_form(ops):
    change({"fair_share": True})
    check = checked(ops, fair_users="on")
    change({})
    answer = saved(ops, check)
    assert answer.status_code == 422
    assert "Only with fair_share" in answer.context["form"].errors["fair_users"][0]
    assert "Fair share: yes to no , by operator" in plain(answer)
    nothing = saved(ops, ops.get(URL))
    assert "Nothing was changed." in plain(nothing)
    assert now() == {}


def test_the_change_is_previewed_from_now_on_and_not_saved(ops):
    check, before = checked(ops, queueing="strict-fifo", **{"preemption.reclaim": "on"}), now()
    answer = ops.post(f"{URL}preview/", hidden(check) | {"reason": ""})
    assert "What it would do from now on" in plain(answer)
    assert "ahead, assuming likely run times" in plain(answer)
    assert now() == before


def test_a_share_is_typed_in_percent(ops):
    form = ops.get(URL)
    assert "GPU time that moves may lose, %" in plain(form)
    check = checked(ops, defrag_loss="0.25", defrag_above="1")
    assert "0.25 %" in plain(check)
    saved(ops, check)
    assert (now()["defrag_loss"], now()["defrag_above"]) == (0.0025, 0.01)
    shown = {
        i.field.name: i.field.value()
        for g in PolicyForm(effective(now()), ()).groups()
        for i in g.items
    }
    assert (str(shown["defrag_loss"]), str(shown["defrag_above"])) == ("0.25", "1")
    again = ops.post(CHECK, sent(ops.get(URL), defrag_loss="101"))
    assert "defrag_loss" in again.context["form"].errors
