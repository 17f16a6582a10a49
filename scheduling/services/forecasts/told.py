"""Write start estimates: the first and the last one of a job, and when it then started."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import transaction

from scheduling.models import Cluster, Job, StartEstimate
from scheduling.simulator.forecast.bands import TOO_WIDE, Bands
from scheduling.simulator.forecast.calibration import Calibration
from tenants.database.chunks import chunks

CHUNK = 200
LAST = ("p10", "p50", "p90", "earliest", "basis", "text", "none", "as_of")
FIRST = ("first_p10", "first_p90", "first_basis", "first_as_of", "first_runs")


def write_estimates(found: Bands, calibration: Calibration) -> None:
    """Write these estimates, calibrated, in short transactions; skip jobs that are gone."""
    ids = [*found.bands, *found.none]
    for chunk in chunks(ids, CHUNK):
        with transaction.atomic():
            there = {str(i) for i in Job.objects.filter(id__in=chunk).values_list("id", flat=True)}
            told = StartEstimate.objects.filter(job_id__in=chunk, first_as_of__isnull=False)
            before = {str(i) for i in told.values_list("job_id", flat=True)}
            rows = [_row(found, job_id, calibration) for job_id in chunk if job_id in there]
            _put([row for row in rows if str(row.job_id) in before], LAST)
            _put([row for row in rows if str(row.job_id) not in before], (*LAST, *FIRST))


def _put(rows: Sequence[StartEstimate], fields: Sequence[str]) -> None:
    StartEstimate.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["job"], update_fields=list(fields)
    )


def _row(found: Bands, job_id: str, calibration: Calibration) -> StartEstimate:
    as_of = _at(found.now)
    row = StartEstimate(job_id=uuid.UUID(job_id), as_of=as_of)
    told, from_then_on = calibration.told(found, job_id)
    if told is None:
        row.none = found.none.get(job_id, TOO_WIDE)
        row.earliest = None if from_then_on is None else _at(from_then_on)
        return row
    band = found.bands[job_id]
    row.p10, row.p50, row.p90 = _at(told.p10), _at(told.p50), _at(told.p90)
    row.basis, row.text = band.basis.value, band.words
    row.first_p10, row.first_p90, row.first_as_of = row.p10, row.p90, as_of
    row.first_basis, row.first_runs = row.basis, [band.p10, band.p50, band.p90]
    return row


def note_starts(cluster: Cluster) -> int:
    """Note the starts of jobs that had an estimate; return how many."""
    rows = StartEstimate.objects.filter(
        job__cluster=cluster,
        started_at__isnull=True,
        first_as_of__isnull=False,
        job__admitted_at__isnull=False,
    ).select_related("job")
    begun = list(rows.only("job__admitted_at"))
    for row in begun:
        row.started_at = row.job.admitted_at
    for some in chunks(begun, CHUNK):
        StartEstimate.objects.bulk_update(some, ["started_at"])
    return len(begun)


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
