"""Everybody can read what jobs of a cluster may name; only operators change it."""

import pytest

from scheduling.models import Cluster, Job
from scheduling.services.jobs.permitted import effective_rules
from tenants.models import AuditRecord
from tests.cases import some

URL = "/clusters/demo/rules/"
LISTS = (
    *("denied_tolerations", "denied_annotations", "denied_labels", "denied_env"),
    *("capabilities", "denied_runtime_classes", "denied_priority_classes"),
)


@pytest.fixture(autouse=True)
def _reached(played):
    Cluster.objects.update(access={"in_cluster": True})


def typed(rules=None, shown=None, **fields):
    """Return what a browser sends for a form that was shown with the rules `shown`."""
    shown = effective_rules(shown or {})
    document = {**shown, **(rules or {})}

    def sent(rules):
        data = {name: "\r\n".join(rules[name]) for name in LISTS}
        data["service_accounts"] = "\r\n".join(rules["service_accounts"] or ())
        data["max_priority"] = "" if rules["max_priority"] is None else str(rules["max_priority"])
        for name, on in (
            ("toleration_of_everything", rules["toleration_of_everything"]),
            ("host_network", rules["host_network"]),
            ("privileged", rules["privileged"]),
            ("any_service_account", rules["service_accounts"] is None),
        ):
            data[name] = on
        return data

    data = {f"initial-{name}": str(value) for name, value in sent(shown).items()}
    data |= {name: value for name, value in sent(document).items() if value is not False}
    return {**data, **fields}


def rules():
    return Cluster.objects.get(name="demo").job_rules


@pytest.mark.parametrize(
    "changed",
    some(
        [
            {"denied_env": ["NVIDIA_VISIBLE_DEVICES", "LD_*"]},
            {"denied_annotations": []},
            {"toleration_of_everything": True},
            {"host_network": True, "privileged": True, "capabilities": []},
            {"denied_runtime_classes": ["kata*"], "denied_priority_classes": []},
            {"service_accounts": ["train-*", "default"]},
            {"service_accounts": []},
            {"max_priority": 100, "denied_labels": ["team=x"]},
        ]
    ),
)
def test_an_operator_sets_what_is_not_the_default_and_goes_back(as_user, changed):
    client = as_user("operator")
    answer = client.post(URL, typed(changed))
    assert (answer.status_code, answer["Location"]) == (302, URL)
    assert rules() == changed
    record = AuditRecord.objects.get(action="cluster.changed")
    assert (record.source, record.after["job_rules"]) == ("page", changed)
    shown = client.get(URL).content.decode()
    assert "are saved. Existing jobs are not affected." in shown
    for value in changed.values():
        assert all(name in shown for name in value) if isinstance(value, list) else True
    # Writing the defaults again restores the defaults.
    assert client.post(URL, typed(effective_rules({}), shown=changed)).status_code == 302
    assert rules() == {}


def test_what_somebody_else_set_meanwhile_stays(as_user):
    client = as_user("operator")
    Cluster.objects.update(job_rules={"max_priority": 7})
    client.post(URL, typed({"denied_env": ["LD_*"]}))  # an outdated page
    assert rules() == {"max_priority": 7, "denied_env": ["LD_*"]}


@pytest.mark.parametrize(
    ("sent", "field", "text"),
    some(
        [
            ({"max_priority": "1_000"}, "max_priority", "Write the number in the digits 0 to 9"),
            ({"max_priority": "9" * 12}, "max_priority", "Must be from"),
            ({"denied_env": "A*B"}, "denied_env", "a * is allowed only at the end"),
            ({"denied_labels": "x" * 401}, "denied_labels", "a * is allowed only at the end"),
            ({"service_accounts": "*", "any_service_account": ""}, None, None),
            (
                {"service_accounts": "train"},
                "service_accounts",
                "Any service account is allowed. Clear that checkbox",
            ),
            ({"denied_env": "\n".join(f"A{i}" for i in range(257))}, "denied_env", "256 names"),
        ]
    ),
)
def test_bad_input_is_told_beside_its_field_and_changes_nothing(as_user, sent, field, text):
    data = {**typed({"denied_annotations": ["a/b"]}), **sent}
    answer = as_user("operator").post(URL, {n: v for n, v in data.items() if v != ""})
    if field is None:
        assert rules() == {"denied_annotations": ["a/b"], "service_accounts": ["*"]}
        return
    assert answer.status_code == 422
    page = answer.content.decode()
    assert f'id="id_{field}-error"' in page
    assert text in page
    assert "a/b" in page  # the input is still there
    assert rules() == {}


def test_nothing_is_set_where_nothing_was_changed(as_user):
    answer = as_user("operator").post(URL, typed())
    assert answer.status_code == 422
    assert "Nothing was changed." in answer.content.decode()
    assert not AuditRecord.objects.filter(action="cluster.changed").exists()


def test_others_read_the_rules_and_cannot_change_them(as_user):
    Cluster.objects.update(job_rules={"service_accounts": ["train-*"], "max_priority": 1000})
    client = as_user("erin")
    page = client.get(URL).content.decode()
    for text in ("train-*", "1,000", "NVIDIA_VISIBLE_DEVICES", "Operators change these rules."):
        assert text in page
    assert '<form method="post" novalidate' not in page
    assert client.post(URL, typed({"max_priority": 5})).status_code == 404
    assert rules()["max_priority"] == 1000
    assert client.get("/clusters/nowhere/rules/").status_code == 404


def test_the_rules_are_found_from_the_operations_page_and_hold_for_the_next_job(as_user):
    client = as_user("operator")
    assert f'href="{URL}"' in client.get("/ops/").content.decode()
    client.post(URL, typed({"max_priority": 3}))
    job = {"name": "x", "tenant": "vision", "gpus": 1, "gpu_type": "H100", "priority": 4}
    answer = client.post("/api/v1/jobs", job, content_type="application/json")
    assert "max_priority in job_rules of the cluster" in answer.content.decode()
    assert not Job.objects.filter(name="x").exists()


def test_what_is_wrong_with_the_cluster_itself_is_said_above_the_form(as_user):
    Cluster.objects.update(access={"nope": 1})
    answer = as_user("operator").post(URL, typed({"denied_env": []}))
    assert answer.status_code == 422
    assert "access of the cluster: Give one of" in answer.content.decode()
