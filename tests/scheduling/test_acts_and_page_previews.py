"""A page's button and its preview refuse the same things in the same words, whoever is signed in
and whatever the state is. A preview changes nothing."""

import itertools
from collections import Counter
from datetime import timedelta

import pytest
from django.forms import Form
from django.utils import timezone

from metrics.pages.policies.views import IS_SO, MEANWHILE
from scheduling.models import Cluster, ClusterPolicy, Job
from scheduling.pages.refusals import NOTHING_TO_PREVIEW
from scheduling.services.policies.changes import change_policy
from tenants.models import AuditRecord, GpuType, Queue, Quota, Tenant
from tests.cases import some
from tests.e2e import policies
from tests.scheduling.alike import PEOPLE, rows, taken_back
from tests.scheduling.test_acts_and_dry_runs import VERBS, jobs, tree  # noqa: F401 - fixtures
from tests.scheduling.test_rehearsal import fleet  # noqa: F401 - a fixture

DRAFTS = ("tenants_quotadraft", "tenants_draftcell", "tenants_drafttenant")
LONG = "x" * 2001
# An act adds this about its own page.
OF_ITS_OWN = ("Nothing was changed.",)
NOT_FELT = "applies only to new jobs"


def texts(told):
    """Collect the sentences in a context value: a form, fields with errors, a list, a text."""
    if isinstance(told, Form):
        told = told.errors if told.is_bound else {}
    if isinstance(told, dict):
        told = [text for some in told.values() for text in some]
    return [] if not told or told is True else [told] if isinstance(told, str) else list(told)


def said(answer):
    """Return why an act was refused, according to its page or message; nothing if it was done."""
    if answer.status_code == 302:
        queued = answer.wsgi_request._messages._queued_messages
        return [str(one) for one in queued if "bad" in one.tags]
    context, found = answer.context, []
    for name in ("errors", "form", "reason_error", "time_errors", "not_kept"):
        found += texts(context.get(name))
    if isinstance(unseen := context.get("unseen"), str):  # of the matrix
        found += texts(unseen)
    if not set(found) - {*OF_ITS_OWN}:  # a revert page rehearses once more
        found += texts(context.get("refused"))
    if isinstance(reason := context.get("reason"), Form):
        found += texts(reason)
    if hasattr(shown := context.get("shown"), "placed"):
        found += [text for one in (*shown.cells, *shown.placed) for text in one.errors]
    if not found and (theirs := context.get("theirs")):
        found += [MEANWHILE, *(one.difference.name for one in theirs)]
    return [str(text) for text in found]


@pytest.fixture
def press(fleet, client):  # noqa: F811
    """`press(who, act, form, preview)` presses the button and requests its preview. No scheduler
    is connected, so nothing happens ahead of the request."""
    Cluster.objects.update(connected=False)
    found = Counter()
    signed_in = []

    def sign_in(who):
        if signed_in != [who]:
            client.force_login(fleet.users[who])
            signed_in[:] = [who]
        return client

    def press_both(who, act, form, preview, *, kept=()):
        sign_in(who)
        about = f"{who} {act} {form}"
        client.cookies.pop("messages", None)
        before = rows(*kept)
        with taken_back():
            previewed = client.post(preview, form)
            assert rows(*kept) == before, about
        with taken_back():
            client.cookies.pop("messages", None)
            done = client.post(act, form)
        assert done.status_code < 500, about
        assert previewed.status_code < 500, about
        if 403 <= done.status_code <= 404:
            assert previewed.status_code == done.status_code, about
            found[done.status_code] += 1
            return
        assert previewed.status_code == 200, about
        told = previewed.context.get("told")
        against = [text for text in said(done) if text not in OF_ITS_OWN]
        if told and any(text in (NOTHING_TO_PREVIEW, IS_SO) for text in told):
            assert done.status_code == 302 or not against or "Nothing was changed." in said(done)
            found["nothing"] += 1
            return
        if told and any(NOT_FELT in text for text in told):
            told = None
        refused = bool(against) or done.status_code == 422
        assert bool(told) == refused, f"{about}: {told} {against}"
        for text in against:
            words = text.split(" Sav")[0]  # the remedies have a button each
            assert any(words in one or one in words for one in told), f"{about}: {text} {told}"
        found["refused" if refused else "done"] += 1

    press_both.found, press_both.sign_in = found, sign_in
    return press_both


def as_shown(form, **typed):
    """Return what a browser sends for a form as shown, with some fields typed."""
    data = {}
    for field in form:
        value = field.value()
        data[field.html_name] = "" if value is None else value
        if field.field.show_hidden_initial:
            data[field.html_initial_name] = "" if value is None else value
    return data | typed


# --- quotas ---------------------------------------------------------------------------------------
NUMBERS = ("0", "4", "8", "12", "17.5", "25", "33", "", " ", "x", "-1", "1,000", "1 000", "１２",
           "1e1", "0.0001", "99999999999", "1.", "+5")  # fmt: skip
QUOTA = {"guaranteed": "12", "mode": "shared", "borrow_limit": "", "lend_limit": "",
         "version": "1", "reason": "r"}  # fmt: skip


def test_one_quota(tree, press, settings):  # noqa: F811
    act = "/quotas/vision/H100/"
    forms = [QUOTA | {field: text} for field in ("guaranteed", "borrow_limit", "lend_limit")
             for text in NUMBERS]  # fmt: skip
    forms += [QUOTA | {"mode": "isolated", "borrow_limit": "x"}, QUOTA | {"mode": "odd"},
              QUOTA | {"reason": LONG}, {}]  # fmt: skip
    forms += [QUOTA | {"version": version} for version in ("0", "2", "x", "", "9" * 30)]
    forms += [QUOTA | {"guaranteed": "x", "borrow_limit": "y", "lend_limit": "-1"}]
    for form in some(forms):
        press("ops", act, form, f"{act}preview/")
    for most in (None, 2.0):
        settings.KANT_QUOTA_APPROVAL_GPUS = most
        tenants, gpus = ("vision", "vision-lab", "law", "nobody"), ("12", "7")
        for who, tenant, text in some(itertools.product(PEOPLE, tenants, gpus)):
            at = f"/quotas/{tenant}/H100/"
            press(who, at, QUOTA | {"guaranteed": text}, f"{at}preview/")
    Quota.objects.filter(tenant__name="vision").delete()  # meanwhile
    press("ops", act, QUOTA, f"{act}preview/")
    Quota.objects.all().delete()
    GpuType.objects.filter(name="H100").delete()
    press("ops", act, QUOTA, f"{act}preview/")
    assert {"done", "refused", 404} <= press.found.keys()


def test_the_matrix(tree, press, settings):  # noqa: F811
    def key(tenant, gpu_type="H100"):
        return f"{tree.tenants[tenant].pk}-{tree.gpu_types[gpu_type].pk}"

    def sheet(version="1", **cells):
        typed = {f"q-{key(t.replace('_', '-'))}": text for t, text in cells.items()}
        versions = {name.replace("q-", "v-", 1): version for name in typed}
        return {"reason": "r", "fresh": " ".join(n[2:] for n in typed), **typed, **versions}

    def save(form, who="ops"):
        press(who, "/quotas/", form, "/quotas/preview/", kept=DRAFTS)

    words = ("12 isolated", "12 shared borrow 4 lend any", "8 borrow", "1" * 65)
    for text, more in some(itertools.product((*NUMBERS, *words), ({}, {"law": "4"}))):
        save(sheet(vision=text, **more))
    save(sheet(vision="12", law="12"))
    save(sheet(ml="16", vision="8", law="16"))
    save(sheet(ml="8"))
    save(sheet(vision_lab="17", vision="12"))
    save(sheet())
    for version in ("0", "7", "x"):
        save(sheet(version, vision="12"))
    times = ("2020-01-01T00:00", "2100-01-01T00:00", "x", "2026-99-99T00:00")
    for name, at in some(itertools.product(("starts_at", "ends_at"), times)):
        save(sheet(vision="12") | {name: at})
    soon = timezone.now() + timedelta(days=2)
    times = [f"{soon + timedelta(days=d):%Y-%m-%dT%H:%M}" for d in (0, 1)]
    save(sheet(vision="12") | {"starts_at": times[0], "ends_at": times[1]})
    save(sheet(vision="12") | {"starts_at": times[1], "ends_at": times[0]})
    save(sheet(vision="12") | {"reason": LONG})
    save({**sheet(vision="12"), "tab": "t", "stamp": "5"})
    for who in PEOPLE:
        save(sheet(vision="12", vision_lab="4"), who)
    settings.KANT_QUOTA_APPROVAL_GPUS = 2.0
    save(sheet(vision="12"))
    settings.KANT_QUOTA_APPROVAL_GPUS = None
    # Another tab has added to the draft something that this page does not show.
    ops = tree.client("ops")
    for cells in (
        [{"tenant": "law", "gpu_type": "H100", "guaranteed": 4}],
        [{"tenant": "law", "gpu_type": "H100", "typed": "x"}],
        [{"tenant": "law", "gpu_type": "H100", "guaranteed": 4, "version": 9}],
    ):
        with taken_back():
            assert ops.patch("/api/v1/quota-drafts/ops", {"cells": cells}, format="json")
            save(sheet(vision="12"))
            save(sheet(vision="12") | {"elsewhere": key("law")})
            save(sheet(vision="12", law="3") | {"fresh": key("vision")})
            save(sheet(vision="12", law="3"))
    # A cell that another tab took back; saving includes it all the same.
    save(sheet(vision="12") | {"fresh": ""})
    assert {"done", "refused", "nothing"} <= press.found.keys()


@pytest.mark.parametrize("who", ["ops", "root", "ada"])
def test_where_a_tenant_stands(tree, press, who):  # noqa: F811
    """The preview of the form is that of the draft with this change, which the matrix saves."""
    client, refused, done = press.sign_in(who), 0, 0
    places = [("vision", p, w) for p in ("", "ml", "law", "vision", "vision-lab", "nobody")
              for w in ("1", "2", "0", "x", "-1")]  # fmt: skip
    places += [("vision-lab", p, "1") for p in ("", "ml", "vision", "law")]
    for tenant, parent, weight in some(places):
        at, about = f"/tenants/{tenant}/place/", f"{who} {tenant} {parent} {weight}"
        shown = client.get(at)
        if shown.status_code == 404:
            assert client.post(f"{at}preview/", {}).status_code == 404
            continue
        form = {f"now-{name}": text for name, text in shown.context["now"].items()}
        form |= {"parent": parent, "weight": weight}
        before = rows()
        with taken_back():
            told = client.post(f"{at}preview/", form).context.get("told")
            assert rows() == before, about
        with taken_back():
            kept = client.post(at, form)
            against = said(kept)
            if kept.status_code == 302:
                placed = [one.key for one in client.get("/quotas/").context["shown"].placed]
                saved = client.post("/quotas/", {"reason": "r", "placed": placed})
                against = said(saved)
                if not placed:
                    assert told == (NOTHING_TO_PREVIEW,), about
                    continue
        assert bool(told) == bool(against), f"{about}: {told} {against}"
        for text in against:
            assert any(text in one or one.split(": ", 1)[-1] in text for one in told), (
                f"{about}: {text} {told}"
            )
        refused, done = refused + bool(told), done + (not told)
    assert refused
    assert done or who == "ada"


# --- tenants, queues ------------------------------------------------------------------------------
LIMITS = (
    {}, {"max_running": "3"}, {"max_running": "-1"}, {"max_waiting": "x"}, {"max_waiting": "4"},
    {"max_priority": "9" * 9}, {"max_priority": "5"}, {"min_runtime_min": "5"},
    {"min_runtime_min": "-1"}, {"namespace": "No!"}, {"namespace": "team"},
    {"max_running": "3", "reason": LONG},
)  # fmt: skip


def test_limits_of_a_tenant(tree, press):  # noqa: F811
    at = "/tenants/vision/limits/"
    for who in PEOPLE:
        shown = press.sign_in(who).get(at)
        form = as_shown(shown.context["form"]) if shown.status_code == 200 else {}
        for typed in LIMITS if who == "ops" else some(LIMITS):
            press(who, at, form | typed, f"{at}preview/")
    assert {"done", "refused", "nothing", 404} <= press.found.keys()


SETTINGS = (
    {}, {"rank": "3"}, {"rank": "x"}, {"rank": "9" * 9}, {"weight": "0"}, {"weight": "2"},
    {"max_running": "2"}, {"max_gpus": "H100=8"}, {"max_gpus": "X1=8"}, {"max_gpus": "H100"},
    {"users": "nobody"}, {"users": "eve"}, {"default_priority": "5", "max_priority": "3"},
    {"default_limit_min": "9", "max_limit_min": "3"}, {"kinds": "odd"}, {"title": "T"},
    {"rank": "2", "reason": LONG},
)  # fmt: skip


def test_queues(tree, press):  # noqa: F811
    night = Queue.objects.create(tenant=tree.tenants["vision"], name="night")
    at = "/queues/vision/night/"
    for who in PEOPLE:
        shown = press.sign_in(who).get(f"{at}settings/")
        form = as_shown(shown.context["form"]) if shown.status_code == 200 else {}
        for typed in SETTINGS if who == "ada" else SETTINGS[:2]:
            press(who, f"{at}settings/", form | typed, f"{at}settings/preview/")
    for state in ("open", "held", "draining", "closed"):
        Queue.objects.filter(pk=night.pk).update(state=state)
        for verb, reason in (*((verb, "r") for verb in VERBS), *((v, LONG) for v in some(VERBS))):
            press("ada", f"{at}{verb}/", {"reason": reason}, f"{at}{verb}/preview/")
    for who in PEOPLE:
        press(who, f"{at}hold/", {"reason": "r"}, f"{at}hold/preview/")
    night.delete()
    press("ada", f"{at}hold/", {"reason": "r"}, f"{at}hold/preview/")
    press("ada", f"{at}settings/", {"rank": "3"}, f"{at}settings/preview/")
    assert {"done", "refused", "nothing", 404} <= press.found.keys()


# --- jobs -----------------------------------------------------------------------------------------
CHANGES = (
    {}, {"priority": "x"}, {"priority": "50"}, {"priority": "15"},
    {"priority": "15", "queue": "night"}, {"queue": "night"}, {"queue": "odd"},
    {"limit_min": "-1"}, {"limit_min": "60"}, {"limit_min": "0"}, {"declared_min": "x"},
    {"pods_0": "3"}, {"pods_0": "0"}, {"pods_0": "999"},
)  # fmt: skip


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUCCEEDED"])
def test_jobs(jobs, press, state):  # noqa: F811
    key, array = jobs
    shown = press.sign_in("eve").get(f"/jobs/{key}/").context["present"]
    form = as_shown(shown)
    for held in (False, True):
        over = {"ended_at": timezone.now()} if state == "SUCCEEDED" else {}
        Job.objects.update(state=state, held=held, admitted_at=timezone.now(), **over)
        for who in PEOPLE if held and state == "RUNNING" else ("eve",):
            for verb in ("hold", "release", "cancel"):
                for at in (f"/jobs/{key}/{verb}/", f"/jobs/arrays/{array}/{verb}/"):
                    press(who, at, {}, f"{at}preview/")
            press(who, f"/jobs/{key}/change/", form | {"change-priority": "5"},
                 f"/jobs/{key}/change/preview/")  # fmt: skip
        for typed in some(CHANGES) if held else CHANGES:
            sent = {f"change-{name}": text for name, text in typed.items()}
            at = f"/jobs/{key}/change/"
            press("eve", at, form | sent, f"{at}preview/")
    gone = f"/jobs/{str(key).replace(str(key)[:4], '0000')}/"
    for verb in ("hold", "release", "cancel", "change"):
        press("eve", f"{gone}{verb}/", form, f"{gone}{verb}/preview/")
    assert {"refused", 404} <= press.found.keys()
    assert press.found["done"] or state == "SUCCEEDED"


# --- policies -------------------------------------------------------------------------------------
def test_policies(fleet, press):  # noqa: F811
    ops, cluster = press.sign_in("ops"), fleet.cluster
    at, preview = policies.SAVE, f"{policies.URL}preview/"

    def meanwhile(**document):
        before = ClusterPolicy.objects.filter(cluster=cluster).first()
        version = before.version if before else 0
        document = {**(before.document if before else {}), **document}
        change_policy(fleet.users["ops"], cluster, document, expected_version=version,
                      source="api")  # fmt: skip

    meanwhile(fair_share=True)
    drafts = {
        "blame": {"blame_s": "60"},
        "fair": {"fair_users": "on"},
        "spare": {"spare_nodes.A100": "1"},
    }
    sent = {}
    for name, changes in drafts.items():
        check = policies.checked(ops, **changes)
        assert check.status_code == 200, check.context["form"].errors
        sent[name] = policies.hidden(check) | {"reason": "r"}
    nothing = sent["blame"] | {"changes": "{}"}
    damaged = sent["blame"] | {"changes": "{"}
    wrong = [sent["blame"] | {"changes": f'{{"{name}": {value}}}'} for name, value in
             (("blame_s", "-1"), ("blame_s", '"x"'), ("odd", "1"), ("spare_nodes.X1", "1"),
              ("queueing", '"odd"'), ("blame_s", "300.0"))]  # fmt: skip
    longs = sent["blame"] | {"reason": LONG}
    versions = [sent["blame"] | {"version": version} for version in ("", "x", "7")]
    forms = (*sent.values(), nothing, damaged, *wrong, longs, *versions)
    changed = (
        None,
        {"max_attempts": 4},  # another setting
        {"blame_s": 60.0},  # the very same
        {"blame_s": 90.0, "fair_share": False},  # incompatible with the draft
        {},  # saved unchanged
    )
    for document in changed:
        with taken_back():
            if document is not None:
                meanwhile(**document)
            for form in forms if document is None else some(forms):
                press("ops", at, form, preview)
    with taken_back():
        Quota.objects.filter(gpu_type__name="A100").delete()
        GpuType.objects.filter(name="A100").delete()
        press("ops", at, sent["spare"], preview)
    for who in PEOPLE:
        press(who, at, sent["blame"], preview)
    assert {"done", "refused", 403} <= press.found.keys()


# --- reverts --------------------------------------------------------------------------------------
VERSIONS = ("", "1", "x", "0", "2", "3", "9")


def test_reverts(tree, press):  # noqa: F811
    ops = tree.client("ops")

    def put(path, body, version):
        tag = {"If-Match": f'"{version}"'}
        answer = ops.put(f"/api/v1/{path}", body, format="json", headers=tag)
        assert answer.status_code == 200, answer.json()

    def change(version, gpus, blame, weight):
        put("quotas/vision-lab/H100", {"guaranteed": gpus, "reason": "r"}, version)
        put("clusters/demo/policy", {"policy": {"blame_s": blame}}, version - 1)
        ops.patch("/api/v1/tenants/vision", {"weight": weight}, format="json")

    change(1, 4, 60, 2.0)
    last = {one.action: one.pk for one in AuditRecord.objects.order_by("at")}
    quota = f"/quotas/changes/{last['quota.changed']}/revert/"
    policy = f"/policies/demo/changes/{last['policy.changed']}/revert/"
    tenant = f"/quotas/changes/{last['tenant.changed']}/revert-tenant/"
    for then in (None, (2, 6, 90, 3.0)):
        if then:
            change(*then)
        for who in PEOPLE:
            for at, version in ((quota, "2"), (policy, "1"), (tenant, "")):
                press(who, at, {"version": version, "reason": "r"}, f"{at}preview/")
        for at in (quota, policy, tenant):
            for version in VERSIONS if then else some(VERSIONS):
                press("ops", at, {"version": version, "reason": "r"}, f"{at}preview/")
            press("ops", at, {"version": "2", "reason": LONG}, f"{at}preview/")
    Tenant.objects.filter(name="vision-lab").delete()
    for at in (quota, policy, tenant):
        press("ops", at, {"version": "2", "reason": "r"}, f"{at}preview/")
    assert {"done", "refused", 403, 404} <= press.found.keys()


# --- nodes ----------------------------------------------------------------------------------------
def test_nodes(fleet, press):  # noqa: F811
    for node in ("h000", "h999"):
        at = f"/ops/nodes/demo/{node}/drain/"
        for who in PEOPLE if node == "h000" else ("ops",):
            typed = tuple(itertools.product(("0", "3600", "x"), ("", "ends", "time", "odd")))
            for within, way in typed if (who, node) == ("ops", "h000") else some(typed):
                form = {"way": way, "within": within, "reason": "r"}
                press(who, at, form, f"{at}preview/")
    assert {"done", "refused", 404} <= press.found.keys()
