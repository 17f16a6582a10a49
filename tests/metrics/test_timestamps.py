"""Times that the database writes as text and numpy reads."""

from datetime import UTC, datetime, timedelta

import pytest

from metrics.timestamps import Timestamp, seconds_between, timestamp
from scheduling.models import Job
from tests.metrics import rows

START = datetime(2026, 10, 25, 0, 59, 58, 999_999, tzinfo=UTC)
LENGTHS = [0, 1, 999_999, 1_000_000, 59_000_001, 86_400_000_000 * 40 + 123_456]


@pytest.mark.django_db
def test_times_are_exact_to_the_microsecond_and_sort_as_text():
    cluster = rows.cluster(1)
    for i, length in enumerate(LENGTHS):
        made = rows.job(cluster, f"j{i}")
        end = START + timedelta(microseconds=length)
        Job.objects.filter(pk=made.pk).update(submitted_at=START, ended_at=end)
    found = list(
        Job.objects.order_by("ended_at").values_list(
            Timestamp("submitted_at"), Timestamp("ended_at"), Timestamp("bound_at")
        )
    )
    begins, ends, nothing = zip(*found, strict=True)
    assert list(ends) == sorted(ends)
    assert set(nothing) == {None}
    expected = [timedelta(microseconds=n).total_seconds() for n in LENGTHS]
    assert seconds_between(begins, ends).tolist() == expected


def test_a_time_of_another_zone_is_written_in_utc():
    zone = START.astimezone(datetime.strptime("+0530", "%z").tzinfo)
    assert timestamp(zone) == "2026-10-25 00:59:58.999999"
