"""Every polled part of a page answers 304 until something changes. Clients without the current
version get it in full, and nobody gets what only others may see."""

import re
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from django.conf import settings
from django.core.cache import cache
from django.test import Client
from django.urls import resolve
from django.utils import timezone

from metrics.models import Replay, ReplayState
from scheduling.models import Cluster, Job, JobEvent, NodeRecord, SchedulerLease
from scheduling.session.pace import Pace
from tenants.models import GpuType, Queue, Quota, QuotaOrder, Tenant, User
from tenants.services import audit
from tenants.services.drafts.edits import DraftEdit, edit_draft
from tenants.services.orders.placing import submit_draft
from tenants.services.tokens import create_token
from tenants.web import conditional
from webhooks.models import HookDelivery, Webhook

LIVE = {"HX-Request": "true"}
USERS = ("operator", "erin", "vik")
TEMPLATES = Path(settings.BASE_DIR) / "templates"


def job(state):
    return Job.objects.filter(state=state, tenant__name="vision").order_by("name").first()


def replay():
    return Replay.objects.get()


def leaf():
    return NodeRecord.objects.exclude(leaf="").values_list("leaf", flat=True).first()


def order():
    return QuotaOrder.objects.get()


# By template: the user who looks at it, and its address.
POLLED = {
    "scheduling/jobs/jobs.html": ("erin", lambda: "/jobs/"),
    "scheduling/jobs/job.html": ("erin", lambda: f"/jobs/{job('RUNNING').pk}/"),
    "scheduling/jobs/job_logs.html": ("erin", lambda: f"/jobs/{job('PENDING').pk}/logs/"),
    "scheduling/jobs/_job_live.html": ("erin", lambda: f"/jobs/{job('PENDING').pk}/outlook/"),
    "scheduling/queues/queues.html": ("vera", lambda: "/queues/"),
    "scheduling/queues/queue.html": ("vera", lambda: "/queues/vision/default/"),
    "scheduling/queues/global_queue.html": ("erin", lambda: "/clusters/demo/queue/"),
    "scheduling/events/events.html": ("erin", lambda: "/events/"),
    "scheduling/clusters/schedulers.html": ("operator", lambda: "/schedulers/"),
    "scheduling/quotas/loans.html": ("vera", lambda: "/quotas/loans/"),
    "scheduling/quotas/quotas.html": ("vera", lambda: "/quotas/editors/"),
    "scheduling/quotas/quota_order.html": ("vera", lambda: f"/quotas/orders/{order().pk}/"),
    "scheduling/tenants/tenants.html": ("erin", lambda: "/tenants/"),
    "scheduling/tenants/tenant.html": ("vera", lambda: "/tenants/vision/"),
    "metrics/overview/overview.html": ("erin", lambda: "/"),
    "metrics/overview/_overview_live.html": ("erin", lambda: "/can-start/"),
    "metrics/operations/operations.html": ("operator", lambda: "/ops/"),
    "metrics/nodes/nodes.html": ("erin", lambda: "/ops/nodes/"),
    "metrics/nodes/leaf.html": ("erin", lambda: f"/ops/leaves/demo/{leaf()}/"),
    "metrics/nodes/node.html": ("erin", lambda: "/ops/nodes/demo/node-000/"),
    "metrics/policies/policy_changes.html": ("operator", lambda: "/policies/demo/changes/"),
    "metrics/replays/replays.html": ("operator", lambda: "/replays/"),
    "metrics/replays/replay.html": ("operator", lambda: f"/replays/{replay().pk}/"),
    "tenants/tokens.html": ("erin", lambda: "/settings/tokens/"),
    "tenants/quota_changes.html": ("vera", lambda: "/quotas/changes/"),
    "webhooks/webhooks.html": ("vera", lambda: "/webhooks/"),
    "webhooks/webhook.html": ("vera", lambda: f"/webhooks/{Webhook.objects.get().pk}/"),
    "webhooks/delivery.html": (
        "vera",
        lambda: f"/webhooks/{delivery().webhook_id}/deliveries/{delivery().pk}/",
    ),
}
# Answers of the engine are reused for some seconds.
ASKED = ("scheduling/jobs/_job_live.html", "metrics/overview/_overview_live.html")


def delivery():
    return HookDelivery.objects.get()


@pytest.fixture
def organisation(played, monkeypatch):
    monkeypatch.setattr(conditional, "WORDS_LAST_S", 10**9)
    now, ticks = timezone.now(), count(1)
    # Freeze the texts that depend on the time.
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(microseconds=next(ticks)))
    Replay.objects.create(
        cluster=Cluster.objects.get(), since=now - timedelta(days=1), until=now, policy_before={},
        policy={}, state=ReplayState.RUNNING, created_at=now, progress=0.2,
    )  # fmt: skip
    create_token(User.objects.get(username="erin"), "laptop")
    hook = Webhook.objects.create(
        name="on-call", url="https://example.com", events=["job.failed"], maker_name="vera",
        tenant=Tenant.objects.get(name="vision"), since=now, pending_until=now,
    )  # fmt: skip
    hook.deliveries.create(key="k", event="job.failed", body="{}", created_at=now)
    vera = User.objects.get(username="vera")
    vision, h200 = Tenant.objects.get(name="vision"), GpuType.objects.get(name="H200")
    edit_draft(vera, [DraftEdit(vision, h200, "100")])
    submit_draft(
        vera, reason="Season", source=audit.PAGE, starts_at=timezone.now() + timedelta(days=9)
    )
    SchedulerLease.objects.create(cluster=Cluster.objects.get(), pace={"passes": 6})


@pytest.fixture
def signed_in(played):
    """Return a client for each user, whose session stays."""
    browsers = {}

    def of(username):
        if username not in browsers:
            browsers[username] = Client()
            browsers[username].force_login(User.objects.get(username=username))
        return browsers[username]

    return of


def much_changes():
    """Change something on each of the pages, as services and schedulers would."""
    operator = User.objects.get(username="operator")
    for state in ("RUNNING", "PENDING"):
        one = job(state)
        Job.objects.filter(pk=one.pk).update(name="renamed", message="It was changed.")
        JobEvent.objects.create(job=one, at=timezone.now(), kind="CHANGED", to_state=state)
    Tenant.objects.filter(name="vision").update(title="Vision", version=9)
    Queue.objects.filter(tenant__name="vision").update(title="Eyes", state="held", version=9)
    Quota.objects.filter(tenant__name="vision").update(guaranteed_milli=7000, version=9)
    vision = Tenant.objects.get(name="vision")
    edit_draft(operator, [DraftEdit(vision, GpuType.objects.get(name="H100"), "9")])
    audit.record(operator, "quota.changed", "vision/H100", tenant=vision, source=audit.PAGE)
    audit.record(operator, "policy.changed", "demo", source=audit.PAGE)
    NodeRecord.objects.filter(name="node-000").update(schedulable=False)
    now = timezone.now().timestamp()
    SchedulerLease.objects.update(
        pace=Pace(passes=7, since=now).document(),
        holder="h",
        expires_at=timezone.now() + timedelta(minutes=1),
    )
    Replay.objects.update(progress=0.7)
    create_token(User.objects.get(username="erin"), "desk")
    Webhook.objects.update(name="pager", failing_since=timezone.now())
    HookDelivery.objects.update(state="failed", outcome="No answer within 10 seconds.", tries=8)


def live(client, path, tag=""):
    return client.get(path, headers=LIVE | ({"If-None-Match": tag} if tag else {}))


def text_of(answer):
    """Return the text without the secrets of forms, which differ in each answer."""
    return re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", answer.content.decode())


def polling():
    """Return {template: where its polled part is requested}: the name of an address, or "" = its
    own."""
    found = {}
    for path in TEMPLATES.rglob("*.html"):
        for tag in re.findall(r"<[^<>]*\bdata-poll=.*?>", path.read_text()):
            # Charts are not HTML: their ETags come from their own texts.
            if (asked := re.search(r'hx-get="(.*?)"(?: |>)', tag)) is not None:
                named = re.search(r"{% url '([\w-]+)'", asked[1])
                found[path.relative_to(TEMPLATES).as_posix()] = named[1] if named else ""
    return found


def test_each_polled_part_is_tried_here(signed_in, organisation):
    asked = polling()
    assert sorted(asked) == sorted(POLLED)
    for template, (user, address) in POLLED.items():
        client, path = signed_in(user), address()
        if asked[template]:
            assert resolve(path).url_name == asked[template]
        else:
            shown = {part.name for part in client.get(path).templates}
            assert template in shown


def test_who_has_it_is_told_so_until_something_changes(signed_in, organisation):
    told = {}
    for template, (user, address) in POLLED.items():
        client, path = signed_in(user), address()
        first = live(client, path)
        assert first.status_code == 200, template
        again = live(client, path, first["ETag"])
        assert (again.status_code, again.content) == (304, b""), template
        assert {"Cookie", "HX-Request"} <= set(re.split(r",\s*", again["Vary"])), template
        assert again["Cache-Control"] == "private, no-cache"
        told[template] = (client, path, first)
    much_changes()
    for template in sorted(POLLED, key=ASKED.__contains__):
        if template in ASKED:
            cache.clear()
        client, path, first = told[template]
        later = live(client, path, first["ETag"])
        assert later.status_code == 200, template
        assert text_of(later) != text_of(first), template


def test_nobody_is_told_what_another_may_see(signed_in, organisation):
    for template, (_, address) in POLLED.items():
        path, alone = address(), {}
        for user in USERS:
            cache.clear()
            answer = live(signed_in(user), path)
            text = text_of(answer) if answer.status_code == 200 else ""
            alone[user] = answer.status_code, text
        cache.clear()
        others, tag = None, ""
        for user in (*USERS, USERS[0]):
            seen = alone[user]
            answer = live(signed_in(user), path, tag)
            if answer.status_code == 304:
                assert seen == others, (template, user)
                continue
            assert answer.status_code == seen[0], (template, user)
            if answer.status_code == 200:
                assert text_of(answer) == seen[1], (template, user)
                others, tag = seen, answer["ETag"]
