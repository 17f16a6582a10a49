"""Of which jobs something was written since the last look, by people and by other schedulers."""

import time

from django.db.models import Max

from scheduling.engine.states import JobEventKind as Kind
from scheduling.models import JobEvent
from tenants.chunks import CHUNK

# What happens to a job that waits without its scheduler.
NEWS = (
    Kind.SUBMITTED, Kind.CANCELLED, Kind.HELD, Kind.RELEASED, Kind.CHANGED, Kind.ROUTED,
)  # fmt: skip
AT_ONCE = 1000  # news of jobs taken in by one pass
# A transaction that has not written its event so long after it was given its id was rolled back.
LATE_S = 10.0
Row = tuple[int, object, str, int]
COLUMNS = ("id", "job_id", "job__scope", "job__cluster_id")


class News:
    """The events of a cluster's jobs, each told once. `more`: there are further ones.

    An event gets its id before its transaction commits, so one with a smaller id can appear after
    those with larger ones. The ids that were passed over are looked for again.
    """

    def __init__(self, cluster_id: int) -> None:
        self.more = False
        self._cluster_id = cluster_id
        self._read_to = 0
        self._late: dict[int, float] = {}  # ids without an event, and since when

    def start(self) -> None:
        """From here on everything that is written is news."""
        self._read_to = _newest()

    def read(self) -> list[tuple[str, str]]:
        """(id, scope) of the jobs that were submitted, changed or routed since the last call.

        At most AT_ONCE events at a time: of a thousand new jobs the first are already being bound
        while the last are still being read.
        """
        rows = self._came_late()
        newest = _newest()
        self.more = False
        if newest > self._read_to:
            # First: what appears between the two queries is then told twice instead of never.
            self._look_for_gaps(newest)
            new = self._between(self._read_to, newest)
            self.more = len(new) == AT_ONCE
            self._read_to = new[-1][0] if self.more else newest
            rows += new
        mine = (row[1:3] for row in rows if row[3] == self._cluster_id)
        return list({str(job): (str(job), scope) for job, scope in mine}.values())

    def _between(self, after: int, to: int) -> list[Row]:
        # Of all clusters: asked for one of them, SQLite walks through all jobs that it ever had.
        rows = JobEvent.objects.filter(id__gt=after, id__lte=to, kind__in=NEWS)
        return list(rows.order_by("id").values_list(*COLUMNS)[:AT_ONCE])

    def _look_for_gaps(self, to: int) -> None:
        span = JobEvent.objects.filter(id__gt=self._read_to, id__lte=to)
        if span.count() == to - self._read_to:
            return
        there = set(span.values_list("id", flat=True))
        now = time.monotonic()
        # The newest matter: what was begun long ago is there, or was rolled back.
        ids = [i for i in range(to, self._read_to, -1) if i not in there]
        self._late.update(dict.fromkeys(ids[:CHUNK], now))

    def _came_late(self) -> list[Row]:
        if not self._late:
            return []
        earliest = time.monotonic() - LATE_S
        self._late = {i: since for i, since in self._late.items() if since > earliest}
        ids = sorted(self._late, reverse=True)[:CHUNK]
        rows = list(JobEvent.objects.filter(id__in=ids).values_list(*COLUMNS, "kind"))
        for row in rows:
            del self._late[row[0]]
        return [row[:4] for row in rows if row[4] in NEWS]


def _newest() -> int:
    newest: int | None = JobEvent.objects.aggregate(Max("id"))["id__max"]
    return newest or 0
