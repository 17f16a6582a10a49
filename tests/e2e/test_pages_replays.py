"""The replay pages: who sees them, what the form starts with and refuses, how a replay proceeds."""

from datetime import timedelta

import pytest
from django.utils import timezone

from metrics.models import Replay, ReplayState
from metrics.pages.replays import views
from metrics.replays import process, services
from scheduling.models import Cluster, ClusterPolicy
from tenants.models import Quota, User
from tests.cases import some

MINUTES = "%Y-%m-%dT%H:%M"


@pytest.fixture
def ops(as_user):
    ClusterPolicy.objects.update_or_create(
        cluster=Cluster.objects.get(),
        defaults={"document": {"queueing": "backfill", "preemption": ["reclaim"]}},
    )
    return as_user("operator")


def given(ops, **changes):
    """Return what the form as shown would send, with some fields changed."""
    form = ops.get("/replays/new/").context["form"]
    fields = {name: form[name].value() for name in form.fields}
    for name, value in fields.items():
        if name in ("since", "until"):
            fields[name] = value.strftime(MINUTES)
    found = {name: value for name, value in fields.items() if value not in (None, False)}
    return {"cluster": "demo", **found, **changes}


def asked(ops, **changes):
    answer = ops.post("/replays/new/", given(ops, **changes))
    assert answer.status_code == 302, answer.context["form"].errors
    return Replay.objects.get()


def carried_out(ops, **changes):
    replay = asked(ops, **changes)
    process.carry_out(services.take_next(), lambda _: None)
    replay.refresh_from_db()
    assert replay.state == ReplayState.DONE, replay.message
    return replay


@pytest.mark.parametrize("path", ["/replays/", "/replays/new/"])
def test_only_operators_see_them(as_user, path):
    answer = as_user("vera").get(path)
    assert answer.status_code == 403
    assert "Replays</a>" not in answer.content.decode()


def test_the_empty_list_says_what_a_replay_is(ops):
    text = ops.get("/replays/").content.decode()
    assert "No replay yet" in text
    assert 'aria-current="page">Replays' in text


def test_the_form_starts_with_the_policy_as_it_is_and_the_last_week(ops):
    form = ops.get("/replays/new/").context["form"]
    assert form["queueing"].value() == "backfill"
    assert [field.value() for field in form.preemptions()] == [False, True, False]
    assert form["until"].value() - form["since"].value() == timedelta(days=7)
    assert [field.label for field in form.nodes()] == ["H100 × 8", "H200 × 8", "L40S × 4"]


def test_only_what_is_changed_differs(ops):
    replay = asked(ops, queueing="strict-fifo", preemption_priority="on", nodes_1="-3")
    changed = {k for k, v in replay.policy.items() if replay.policy_before[k] != v}
    assert changed == {"queueing", "preemption"}
    assert replay.policy["preemption"] == ["priority", "reclaim"]
    assert replay.nodes == [{"gpu_type": "H200", "gpus": 8, "change": -3}]
    assert replay.user.username == "operator"


def cell(form, tenant, gpu_type):
    """Return the number of a tenant's quota for a GPU type, as used in the names of its fields."""
    keys = [(one.tenant, one.gpu_type) for one in form.grid.cells]
    return keys.index((tenant, gpu_type))


def test_quotas_start_as_they_are_and_those_that_are_changed_are_asked_for(ops):
    Quota.objects.filter(tenant__name="search", gpu_type__name="H100").delete()
    Quota.objects.filter(tenant__name="ads", gpu_type__name="H100").update(lend_limit_milli=8000)
    form = ops.get("/replays/new/").context["form"]
    names = [(row.tenant.name, row.depth) for row in form.quotas()]
    assert names[:3] == [("products", 0), ("ads", 1), ("search", 1)]
    numbers = [cell(form, name, "H100") for name in ("vision", "search", "ads")]
    shown = [(form[f"quota_{i}"].value(), form[f"isolated_{i}"].value()) for i in numbers]
    assert shown == [("64", False), ("", False), ("32", False)]
    vision, search, ads = numbers
    typed = {f"quota_{vision}": "48", f"quota_{search}": "8", f"quota_{ads}": " 24.5 "}
    replay = asked(ops, **typed, **{f"isolated_{vision}": "on"})
    assert [(one["tenant"], one["guaranteed"], one["mode"]) for one in replay.quotas] == [
        ("ads", 24_500, "shared"), ("search", 8000, "shared"), ("vision", 48_000, "isolated"),
    ]  # fmt: skip
    assert [one["lend_limit"] for one in replay.quotas] == [8000, None, None]
    text = ops.get(f"/replays/{replay.pk}/").content.decode()
    assert "Quota of vision for H100" in text
    assert "48 GPUs, isolated" in text
    again = ops.get(f"/replays/new/?like={replay.pk}").context["form"]
    assert (again[f"quota_{vision}"].value(), again[f"isolated_{vision}"].value()) == ("48", True)
    edited = [place for row in again.quotas() for place in row.places if place.edited]
    assert [place.cell.tenant for place in edited] == ["ads", "search", "vision"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"quota": "many"}, "Write a number of GPUs"),
        ({"quota": ""}, "Write 0 to guarantee none."),
        ({"quota": "1,5"}, "with a point"),
        ({"quota": "900"}, "would be promised"),
    ],
)
def test_what_is_wrong_with_a_quota_stands_in_its_cell(ops, changes, text):
    number = cell(ops.get("/replays/new/").context["form"], "research", "H100")
    typed = {f"{name}_{number}": value for name, value in changes.items()}
    answer = ops.post("/replays/new/", given(ops, **typed))
    assert answer.status_code == 422
    assert text in answer.context["form"].errors[f"quota_{number}"][0]
    assert text in answer.content.decode()


def test_a_quota_that_is_isolated_has_to_be_one(ops):
    Quota.objects.filter(tenant__name="ads", gpu_type__name="H100").delete()
    number = cell(ops.get("/replays/new/").context["form"], "ads", "H100")
    answer = ops.post("/replays/new/", given(ops, **{f"isolated_{number}": "on"}))
    assert "the number of guaranteed GPUs" in answer.context["form"].errors[f"quota_{number}"][0]


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    some(
        [
            ({"since": "2020-01-01T00:00"}, "since", "more than 31 days"),
            ({"until": "2999-01-01T00:00"}, "until", "Lies in the future"),
            ({"since": "soon"}, "since", "Must be a time"),
            ({"queueing": "lifo"}, "queueing", "Choose one of"),
            ({"backfill_after_min": "-1"}, "backfill_after_min", "Must be"),
            ({"fair_users": "on"}, "fair_users", "Only with fair_share"),
            ({"nodes_0": "-99"}, "nodes_0", "from -32 to 10000"),
            ({"nodes_0": "-32", "nodes_1": "-64", "nodes_2": "-24"}, None, "No node would be left"),
        ]
    ),
)
def test_a_fault_stands_beside_its_field(ops, changes, field, text):
    answer = ops.post("/replays/new/", given(ops, **changes))
    assert answer.status_code == 422
    form = answer.context["form"]
    errors = form.errors[field] if field else form.non_field_errors()
    assert any(text in error for error in errors), form.errors
    assert not Replay.objects.exists()


def test_one_that_waits_is_followed_and_cancelled(ops):
    replay = asked(ops)
    page = ops.get(f"/replays/{replay.pk}/")
    assert 'data-poll="2"' in page.content.decode()
    assert "It starts within seconds" in page.content.decode()
    services.is_alive(services.take_next(), 0.42)
    live = ops.get(f"/replays/{replay.pk}/", headers={"HX-Request": "true"})
    assert "42 % of both runs" in live.content.decode()
    assert "Running 42 %" in ops.get("/replays/").content.decode()
    ops.post(f"/replays/{replay.pk}/cancel/")
    over = ops.get(f"/replays/{replay.pk}/", headers={"HX-Request": "true"})
    assert over["HX-Refresh"] == "true"
    assert "Cancelled by operator." in ops.get(f"/replays/{replay.pk}/").content.decode()
    again = ops.post(f"/replays/{replay.pk}/cancel/", follow=True)
    assert "over already" in again.content.decode()


def test_one_that_failed_says_why(ops):
    replay = asked(ops)
    services.take_next()
    Replay.objects.update(alive_at=timezone.now() - services.SILENT * 2)
    services.is_wanted(timezone.now())
    text = ops.get(f"/replays/{replay.pk}/").content.decode()
    assert "It was interrupted" in text
    assert ops.get(f"/replays/{replay.pk}/charts/waits.json").status_code == 404


def test_a_result_stands_side_by_side_with_its_charts(ops):
    since = timezone.now() - timedelta(hours=20)
    replay = carried_out(ops, since=since.strftime(MINUTES), queueing="strict-fifo", nodes_1="8")
    answer = ops.get(f"/replays/{replay.pk}/")
    context, text = answer.context, answer.content.decode()
    lines = {line.name: line for line in context["totals"]}
    assert lines["GPUs"].pair.difference == "+64"
    assert lines["GAR"].recorded != "–"
    assert "What was replayed" in text
    assert [line.gpu_type for line in context["pools"]] == ["H100", "H200", "L40S"]
    assert context["sizes"][-1].name == "All"
    for name in views.FIGURES:
        figure = ops.get(f"/replays/{replay.pk}/charts/{name}.json").json()
        assert [line["name"] for line in figure["data"]][:3] == [
            "recorded",
            "as it was",
            "with the change",
        ]
        assert figure["layout"]["meta"]["summary"]
    assert ops.get(f"/replays/{replay.pk}/charts/nope.json").status_code == 404
    services.create_replay(replay.user, replay.cluster, policy=replay.policy)
    waits, queued = lines["Mean wait"].pair, None
    rows = ops.get("/replays/").context["rows"]
    assert [row.waits for row in rows] == [queued, waits]
    assert waits.difference in ops.get("/replays/").content.decode()


def test_where_nothing_is_changed_both_runs_are_said_to_be_the_same(ops):
    replay = carried_out(ops)
    text = ops.get(f"/replays/{replay.pk}/").content.decode()
    assert "Nothing: both runs are the same." in text
    assert "No job starts earlier or later." in text
    assert "the same as it was" in text


def test_another_one_starts_from_an_earlier_one(ops):
    replay = asked(ops, queueing="strict-fifo", nodes_1="8")
    del replay.policy["fair_users"]  # as an earlier version, which did not know it, would store it
    replay.save()
    form = ops.get(f"/replays/new/?like={replay.pk}").context["form"]
    assert (form["queueing"].value(), form["nodes_1"].value()) == ("strict-fifo", 8)
    assert form["since"].value() == replay.since.replace(tzinfo=None)
    for wrong in ("like=x", "cluster=nowhere"):
        assert ops.get(f"/replays/new/?{wrong}").status_code == 404


def test_what_the_form_has_no_field_for_is_kept_of_an_earlier_one(ops):
    operator, cluster = User.objects.get(username="operator"), Cluster.objects.get()
    tried = {"blame_s": 60, "max_attempts": 2, "queueing": "strict-fifo"}
    earlier = services.create_replay(operator, cluster, policy=tried)
    page = ops.get(f"/replays/new/?like={earlier.pk}")
    assert [(one.name, one.after) for one in page.context["kept"]] == [
        ("Max attempts", "2"), ("Blame", "1 min"),
    ]  # fmt: skip
    assert "As in the earlier replay also" in page.content.decode()
    answer = ops.post("/replays/new/", given(ops, like=str(earlier.pk), queueing="backfill"))
    again = Replay.objects.get(pk=answer["Location"].split("/")[2])
    values = [again.policy[name] for name in ("blame_s", "max_attempts", "queueing")]
    assert values == [60.0, 2, "backfill"]


def test_many_are_paged(ops, monkeypatch):
    monkeypatch.setattr(views, "PER_PAGE", 2)
    cluster, operator = Cluster.objects.get(), User.objects.get(username="operator")
    for _ in range(3):
        services.create_replay(operator, cluster)
    assert len(ops.get("/replays/").context["rows"]) == 2
    assert len(ops.get("/replays/?page=2").context["rows"]) == 1
