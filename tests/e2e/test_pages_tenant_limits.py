"""Limits on the jobs of a tenant, set on a page, without a browser."""

import html
import re

import pytest

from tenants.models import AuditRecord, Tenant

URL = "/tenants/vision/limits/"
NONE = {"max_running": "", "max_waiting": "", "max_priority": "", "reason": ""}


def hidden(client) -> dict[str, str]:
    """Return the hidden values of the form, which it sends beside what was typed."""
    page = client.get(URL).content.decode()
    return dict(re.findall(r'type="hidden" name="(initial-\w+)"(?: value="([^"]*)")?', page))


def plain(answer) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", answer.content.decode()).split()))


def test_limits_are_set_from_above_and_shown(as_user):
    ops = as_user("operator")
    assert "Limits on its jobs Change None." in plain(ops.get("/tenants/vision/"))
    typed = {**NONE, "max_running": "12", "max_priority": "-5", "reason": "Season"}
    page = ops.post(URL, {**hidden(ops), **typed}, follow=True)
    assert "The limits of vision are saved." in plain(page)
    assert "Run at once 12 Wait at once no limit Highest priority -5" in plain(page)
    assert AuditRecord.objects.first().reason == "Season"
    below = Tenant.objects.filter(parent__name="vision").first()
    if below is not None:
        assert "With all below vision Run at once 12" in plain(ops.get(f"/tenants/{below.name}/"))
    ops.post(URL, {**hidden(ops), **NONE})
    assert "Limits on its jobs Change None." in plain(ops.get("/tenants/vision/"))


def test_only_what_was_touched_is_set(as_user):
    ops = as_user("operator")
    seen = hidden(ops)
    Tenant.objects.filter(name="vision").update(max_waiting=7)  # somebody else, meanwhile
    ops.post(URL, {**seen, **NONE, "max_running": "3"})
    vision = Tenant.objects.get(name="vision")
    assert (vision.max_running, vision.max_waiting) == (3, 7)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ({"max_running": "-1"}, "from 0 to 1000000"),
        ({"max_waiting": "many"}, "whole number"),
        ({"max_priority": "9999999"}, "to 1000000"),
        ({}, "Nothing was changed."),
    ],
)
def test_what_cannot_be_set_is_named(as_user, typed, text):
    ops = as_user("operator")
    answer = ops.post(URL, {**hidden(ops), **NONE, **typed})
    assert answer.status_code == 422
    assert text in plain(answer)


def test_the_tenants_own_people_see_limits_and_do_not_set_them(as_user):
    Tenant.objects.filter(name="vision").update(max_running=4)
    engineer = as_user("erin")
    page = plain(engineer.get("/tenants/vision/"))
    assert "Limits on its jobs Run at once 4" in page
    assert engineer.get(URL).status_code == 404
    assert engineer.post(URL, {**NONE, "max_running": "9"}).status_code == 404
    assert Tenant.objects.get(name="vision").max_running == 4


# --- the namespace --------------------------------------------------------------------------------
def test_operators_set_the_namespace_and_all_below_see_it(as_user):
    own = "/tenants/vision/"
    assert "That of the cluster" in plain(as_user("erin").get(own))
    ops = as_user("operator")
    assert "Empty: that of research" in plain(ops.get(URL))
    typed = {**NONE, "namespace": "vision-jobs", "reason": "Not trusted"}
    page = ops.post(URL, {**hidden(ops), **typed}, follow=True)
    assert "The limits and the namespace of vision are saved." in plain(page)
    record = AuditRecord.objects.first()
    assert (record.after["namespace"], record.reason) == ("vision-jobs", "Not trusted")
    page = plain(as_user("erin").get(own))
    assert "Namespace of its pods vision-jobs" in page
    assert "Change" not in page
    ops = as_user("operator")
    ops.post(URL, {**hidden(ops), **NONE, "namespace": ""})
    assert Tenant.objects.get(name="vision").namespace is None
    Tenant.objects.filter(name="research").update(namespace="research-jobs")
    assert "Namespace of its pods Change research-jobs from research" in plain(ops.get(own))
    assert "research-jobs from a tenant above it" in plain(as_user("erin").get(own))


def test_a_namespace_that_cannot_be_is_told_beside_its_field(as_user):
    ops = as_user("operator")
    for name, text in (("kube-system", "begin with kube-"), ("No_Name", "lower-case letters")):
        answer = ops.post(URL, {**hidden(ops), **NONE, "namespace": name})
        assert answer.status_code == 422
        assert answer.context["form"].errors.keys() == {"namespace"}
        assert text in plain(answer)


def test_who_is_no_operator_has_no_such_field(as_user):
    admin = as_user("vera")  # of research, above vision
    page = admin.get(URL)
    assert "amespace" not in plain(page)
    assert "Minimum run time" not in plain(page)
    sent = {**hidden(admin), **NONE, "max_running": "3", "namespace": "kube-system"}
    admin.post(URL, {**sent, "min_runtime_min": "60"})
    vision = Tenant.objects.get(name="vision")
    assert (vision.max_running, vision.namespace, vision.min_runtime_s) == (3, None, None)


# --- the minimum run time -------------------------------------------------------------------------
def test_operators_set_the_minimum_run_time_in_minutes_and_all_below_see_it(as_user):
    own = "/tenants/vision/"
    assert "Minimum run time of its jobs As in the policy" in plain(as_user("erin").get(own))
    ops = as_user("operator")
    assert "Empty: that of research" in plain(ops.get(URL))
    assert "Empty: that of the cluster's policy" in plain(ops.get("/tenants/research/limits/"))
    typed = {**NONE, "min_runtime_min": "90.5", "reason": "Slow to load"}
    page = ops.post(URL, {**hidden(ops), **typed}, follow=True)
    assert "The limits of vision are saved." in plain(page)
    assert "Minimum run time of its jobs Change 1 h 30 min" in plain(page)
    record = AuditRecord.objects.first()
    assert (record.after["min_runtime_s"], record.reason) == (5430.0, "Slow to load")
    page = plain(as_user("erin").get(own))
    assert "Minimum run time of its jobs 1 h 30 min" in page
    assert "Change" not in page
    ops = as_user("operator")
    ops.post(URL, {**hidden(ops), **NONE, "min_runtime_min": "0"})
    assert Tenant.objects.get(name="vision").min_runtime_s == 0.0
    assert "Minimum run time of its jobs Change 0 s" in plain(ops.get(own))
    assert 'name="min_runtime_min" value="0"' in ops.get(URL).content.decode()
    ops.post(URL, {**hidden(ops), **NONE, "min_runtime_min": ""})
    assert Tenant.objects.get(name="vision").min_runtime_s is None
    Tenant.objects.filter(name="research").update(min_runtime_s=60)
    assert "Change 1 min from research" in plain(ops.get(own))
    assert "1 min from a tenant above it" in plain(as_user("erin").get(own))


def test_what_was_not_touched_keeps_its_parts_of_a_minute(as_user):
    """The page shows hundredths of a minute; an untouched field keeps its exact value."""
    Tenant.objects.filter(name="vision").update(min_runtime_s=0.25)
    ops = as_user("operator")
    seen = hidden(ops)
    assert seen["initial-min_runtime_min"] == "0.02"
    shown = {"min_runtime_min": "0.02", "max_running": "3"}
    ops.post(URL, {**seen, **NONE, **shown})
    vision = Tenant.objects.get(name="vision")
    assert (vision.max_running, vision.min_runtime_s) == (3, 0.25)


@pytest.mark.parametrize(
    ("typed", "text"),
    [("-1", "from 0 to 43200"), ("43200.01", "from 0 to 43200"), ("soon", "Must be a number.")],
)
def test_a_minimum_run_time_that_cannot_be_is_told_beside_its_field(as_user, typed, text):
    ops = as_user("operator")
    answer = ops.post(URL, {**hidden(ops), **NONE, "min_runtime_min": typed})
    assert answer.status_code == 422
    assert answer.context["form"].errors.keys() == {"min_runtime_min"}
    assert text in plain(answer)


def test_the_form_is_previewed_before_it_is_sent(as_user):
    ops = as_user("operator")
    seen, preview = hidden(ops), f"{URL}preview/"
    told = ops.post(preview, {**seen, **NONE, "max_running": "1"})
    assert told.context["effects"].until is not None
    assert Tenant.objects.get(name="vision").max_running is None
    for typed, text in (
        ({}, "Nothing is edited"),
        ({"max_priority": "3"}, "applies only to new jobs"),
        ({"max_running": "x"}, "Run at once: Must be a whole number."),
    ):
        assert text in plain(ops.post(preview, {**seen, **NONE, **typed})), typed
    assert as_user("erin").post(preview, NONE).status_code == 404
