"""The audit trail keeps what a change was predicted to do, and what happened in the hour after
it."""

import json
from datetime import timedelta

from django.utils import timezone

from kant.celery import app
from scheduling.engine.states import JobEventKind as Kind
from scheduling.models import ClusterPolicy, Job, JobEvent
from scheduling.models.jobs import PREEMPTED
from tenants import tasks
from tenants.models import AuditRecord, ChangePreview, Quota
from tenants.services.previews.kept import KEPT
from tests.scheduling.test_quota_effects import asks, borrowed, preview  # noqa: F401 - fixtures
from tests.scheduling.test_rehearsal import fleet  # noqa: F401 - a fixture

AUDIT = "/api/v1/audit"


def draft(org, who="ops", **guaranteed):
    """Set these quotas at once by a draft."""
    client = org.client(who)
    cells = [
        {"tenant": name, "gpu_type": "H100", "guaranteed": gpus}
        for name, gpus in guaranteed.items()
    ]
    url = f"/api/v1/quota-drafts/{who}"
    version = client.patch(url, {"cells": cells}, format="json").json()["version"]
    answer = client.post(
        f"{url}/apply", {"reason": "Season"}, format="json", HTTP_IF_MATCH=f'"{version}"'
    )
    assert answer.status_code == 200, answer.json()


def records(org, who="ops"):
    """Return the newest audit records of quota changes, by quota."""
    items = org.client(who).get(f"{AUDIT}?action=quota").json()["items"]
    return {one["subject"]: one for one in reversed(items)}


def an_hour_passes():
    ChangePreview.objects.filter(changed_at__isnull=False).update(
        changed_at=timezone.now() - timedelta(minutes=61)
    )
    tasks.tell_what_happened()


def happens(job, what, **evidence):
    reason = PREEMPTED if evidence else ""
    JobEvent.objects.create(
        job=job, at=timezone.now() - timedelta(minutes=30), kind=what, to_state="PENDING",
        reason=reason, evidence=evidence,
    )  # fmt: skip


def test_what_was_told_and_what_happened_stand_with_each_quota_of_a_change(borrowed):  # noqa: F811
    org, _, young = borrowed
    waiting = asks(org, "vision", 2, "eve")
    told = preview(org, law=16, vision=16).json()
    draft(org, law=16, vision=16)
    found = records(org)
    assert set(found) == {"law / H100", "vision / H100"}
    kept = found["law / H100"]["preview"]
    assert kept == found["vision / H100"]["preview"]
    assert (kept["as_of"], kept["happened"]) == (told["as_of"], None)
    assert [job["job"] for job in kept["told"]["starts"]] == [waiting]
    assert [job["job"] for job in kept["told"]["stops"]] == [str(young.pk)]
    assert kept["told"]["counts"] == told["counts"]
    assert ChangePreview.objects.count() == 1

    happens(
        Job.objects.get(pk=young.pk), Kind.PREEMPTED, by=waiting, kind="reclaim", cost_gpu_s=960.5
    )
    happens(Job.objects.get(pk=young.pk), Kind.ADMITTED)
    tasks.tell_what_happened()
    assert records(org)["law / H100"]["preview"]["happened"] is None
    an_hour_passes()
    happened = records(org)["law / H100"]["preview"]["happened"]
    assert (happened["stopped"], happened["reclaimed"], happened["lost_gpu_s"]) == (1, 1, 960.5)
    assert (happened["started"], happened["started_gpus"]) == (1, 16)
    assert (happened["told_to_start"], happened["told_and_started"]) == (1, 0)
    assert happened["stops"][0]["name"] == young.name
    # Law holds 32 GPUs of its 16 now.
    assert happened["borrowed"] == [{"tenant": "law", "gpu_type": "H100", "before": 0, "after": 16}]
    assert happened["reverted"] is None


def test_who_may_not_see_a_tenant_reads_nothing_of_its_jobs(borrowed):  # noqa: F811
    org, _, young = borrowed
    asks(org, "vision", 2, "eve")
    preview(org, law=16, vision=16)
    draft(org, law=16, vision=16)
    happens(Job.objects.get(pk=young.pk), Kind.PREEMPTED, by="x", kind="reclaim", cost_gpu_s=1.0)
    an_hour_passes()
    kept = records(org, "ada")["vision / H100"]["preview"]
    assert [job["name"] for job in kept["told"]["starts"]] == ["asks"]
    for stops in (kept["told"]["stops"], kept["happened"]["stops"]):
        assert [(job["job"], job["name"], job["tenant"]) for job in stops] == [(None,) * 3]
        assert stops[0]["gpus"] == 16
    assert kept["happened"]["borrowed"] == []
    assert "law" not in json.dumps(kept)


def test_only_the_very_change_that_was_looked_at_keeps_it(borrowed):  # noqa: F811
    org, *_ = borrowed
    preview(org, law=16)
    draft(org, law=17)
    assert records(org)["law / H100"]["preview"] is None
    ops, url = org.client("ops"), "/api/v1/quotas/law/H100"
    for query in ("?dry_run=true", ""):
        tag = {"HTTP_IF_MATCH": f'"{Quota.objects.get(tenant__name="law").version}"'}
        answer = ops.put(url + query, {"guaranteed": 18, "reason": "r"}, format="json", **tag)
        assert answer.status_code == 200
    assert records(org)["law / H100"]["preview"] is not None
    ChangePreview.objects.update(made_at=timezone.now() - 2 * KEPT)
    tasks.forget_old_drafts()
    assert ChangePreview.objects.count() == 1  # the preview of the change that was made


def moved(org, query="", **fields):
    """Apply, or preview, a draft with these fields for vision and 20 GPUs for law."""
    ops, url = org.client("ops"), "/api/v1/quota-drafts/ops"
    body = {
        "tenants": [{"tenant": "vision", **fields}],
        "cells": [{"tenant": "law", "gpu_type": "H100", "guaranteed": 20}],
    }
    tag = {"HTTP_IF_MATCH": f'"{ops.patch(url, body, format="json").json()["version"]}"'}
    answer = ops.post(f"{url}/apply{query}", {"reason": "Season"}, format="json", **tag)
    assert answer.status_code == 200, answer.json()
    return answer.json()


def test_a_move_keeps_its_preview_with_the_quotas_that_change_with_it(borrowed):  # noqa: F811
    org, *_ = borrowed
    waiting = asks(org, "vision", 2, "eve")
    told = moved(org, "?dry_run=true", parent="law", weight=2)["effects"]
    moved(org, parent="law", weight=2)
    place = AuditRecord.objects.get(action="tenant.changed", subject="vision")
    quota = AuditRecord.objects.get(action="quota.changed", subject="law / H100")
    (kept,) = ChangePreview.objects.all()
    assert (place.preview, quota.preview, kept.changed_at is None) == (kept, kept, False)
    (shown,) = org.client("ops").get(f"{AUDIT}?action=tenant.changed").json()["items"]
    assert shown["preview"]["as_of"] == told["as_of"]
    assert shown["preview"]["told"]["counts"] == told["counts"]
    happens(Job.objects.get(pk=waiting), Kind.ADMITTED)
    # The revert is a change with a preview of its own, and the first change shows that preview.
    url = f"/api/v1/tenants/vision/changes/{place.pk}/revert"
    for query in ("?dry_run=true", ""):
        done = org.client("ops").post(url + query, {"reason": "No"}, format="json")
        assert done.status_code == 200, done.json()
    back = AuditRecord.objects.get(reverts=place)
    assert back.preview is not None
    assert back.preview != kept
    AuditRecord.objects.filter(pk=back.pk).update(at=timezone.now() - timedelta(minutes=20))
    an_hour_passes()
    kept.refresh_from_db()
    assert kept.happened["started"] == 1
    assert kept.happened["reverted"]["by"] == "ops"


def test_only_the_very_move_that_was_looked_at_keeps_it(borrowed):  # noqa: F811
    org, *_ = borrowed
    moved(org, "?dry_run=true", parent="law", weight=2)
    moved(org, parent="law", weight=3)
    assert not AuditRecord.objects.filter(preview__isnull=False).exists()
    assert ChangePreview.objects.get().changed_at is None


def test_a_change_that_was_taken_back_within_the_hour_says_so(borrowed):  # noqa: F811
    org, *_ = borrowed
    preview(org, law=16)
    draft(org, law=16)
    record = AuditRecord.objects.get(action="quota.changed")
    answer = org.client("ops").post(
        f"{AUDIT}/{record.pk}/revert",
        {"reason": "No"},
        format="json",
        HTTP_IF_MATCH=f'"{Quota.objects.get(tenant__name="law").version}"',
    )
    assert answer.status_code == 200, answer.json()
    AuditRecord.objects.filter(reverts=record).update(at=timezone.now() - timedelta(minutes=20))
    an_hour_passes()
    happened = AuditRecord.objects.get(pk=record.pk).preview.happened
    assert happened["reverted"]["by"] == "ops"


def test_a_change_of_a_policy_keeps_it_too(borrowed):  # noqa: F811
    org, *_ = borrowed
    ops, url = org.client("ops"), f"/api/v1/clusters/{org.cluster.name}/policy"
    for query in ("?dry_run=true", ""):
        tag = {"HTTP_IF_MATCH": f'"{ClusterPolicy.objects.get().version}"'}
        answer = ops.put(url + query, {"policy": {}, "reason": "r"}, format="json", **tag)
        assert answer.status_code == 200, answer.json()
    an_hour_passes()
    (found,) = ops.get(f"{AUDIT}?action=policy").json()["items"]
    assert found["preview"]["happened"]["started"] == 0


def test_a_bounded_number_of_statements_counts_it(borrowed, django_assert_max_num_queries):  # noqa: F811
    org, _, young = borrowed
    preview(org, law=16)
    draft(org, law=16)
    for _ in range(30):
        happens(Job.objects.get(pk=young.pk), Kind.ADMITTED)
    ChangePreview.objects.update(changed_at=timezone.now() - timedelta(minutes=61))
    with django_assert_max_num_queries(16):
        assert tasks.tell_what_happened() is None
    assert ChangePreview.objects.get().happened["started"] == 1


def test_it_is_told_every_minute():
    assert app.conf.beat_schedule["happened"]["task"] in app.tasks
