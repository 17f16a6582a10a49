"""What happened in the hour after a previewed change, counted from the database."""

from datetime import datetime, timedelta

from django.utils import timezone

from tenants import facts
from tenants.models import AuditRecord, ChangePreview
from tenants.services.previews.kept import JOBS_KEPT, Document, borrowed, job_of

AFTER = timedelta(hours=1)
AT_ONCE = 20  # changes per run


def tell_what_happened() -> int:
    """Write what happened next to the previews of changes that are an hour old; return how many."""
    now = timezone.now()
    due = ChangePreview.objects.filter(changed_at__lte=now - AFTER, happened__isnull=True)
    found = list(due.order_by("changed_at")[:AT_ONCE])
    for preview in found:
        ChangePreview.objects.filter(pk=preview.pk).update(happened=_happened(preview, now))
    return len(found)


def _happened(preview: ChangePreview, now: datetime) -> Document:
    assert preview.changed_at is not None
    since, until = preview.changed_at, preview.changed_at + AFTER
    told = [one["job"] for one in preview.told["starts"] if one["job"]]
    found = facts.scheduling().aftermath(
        since, until, gpu_types=preview.gpu_types, cluster=preview.cluster, told=told
    )
    revert = AuditRecord.objects.filter(
        reverts__preview=preview, at__gte=since, at__lt=until
    ).order_by("at")
    taken_back = revert.first()
    return {
        "until": until.isoformat(),
        "started": found.started,
        "started_gpus": found.started_milli / 1000,
        "told_to_start": len(told),
        "told_and_started": found.told_and_started,
        "starts": [job_of(job) for job in found.starts[:JOBS_KEPT]],
        "stopped": found.stopped,
        "reclaimed": found.reclaimed,
        "lost_gpu_s": found.lost_gpu_s,
        "stops": [job_of(job) for job in found.stops[:JOBS_KEPT]],
        "borrowed_at": now.isoformat(),
        "borrowed": _shifts(preview),
        "reverted": taken_back and {"by": taken_back.actor_name, "at": taken_back.at.isoformat()},
    }


def _shifts(preview: ChangePreview) -> list[Document]:
    """Return who now borrows another number of GPUs than at the preview, largest change first."""
    before = {(one["tenant"], one["gpu_type"]): one["gpus"] for one in preview.borrowed}
    now = {(o["tenant"], o["gpu_type"]): o["gpus"] for o in borrowed(preview.gpu_types)}
    rows = [
        {"tenant": tenant, "gpu_type": model, "before": was, "after": is_now}
        for tenant, model in before | now
        if (was := before.get((tenant, model), 0)) != (is_now := now.get((tenant, model), 0))
    ]
    return sorted(rows, key=lambda one: -abs(one["after"] - one["before"]))[: 2 * JOBS_KEPT]
