"""Which jobs people and other schedulers wrote about since the last look."""

import time
from collections.abc import Container, Iterable
from typing import Any

from scheduling.models import JobEvent
from scheduling.session.memory.look import NEWS, DatabaseLook, JobNews, Span, look
from tenants.database.chunks import CHUNK

AT_ONCE = 1000  # news of jobs that one pass takes in
# A transaction that has not committed its event this long after it got its id was rolled back.
LATE_S = 10.0
# Own events are skipped by at most this many id spans; news of the rest does no harm.
SPANS = 50
COLUMNS = ("id", "job_id", "job__scope", "job__cluster_id")


class News:
    """The events of a cluster's jobs, each reported once, except those this scheduler wrote.

    `more`: there are further ones. An event gets its id before its transaction commits, so one with
    a smaller id can appear after larger ones. Skipped ids are therefore looked up again.
    """

    def __init__(self, cluster_id: int) -> None:
        self.more = False
        self._cluster_id = cluster_id
        self._read_to = 0
        self._own: list[Span] = []  # own events above `_read_to`, in order
        self._late: dict[int, float] = {}  # ids without an event, and since when

    def start(self) -> DatabaseLook:
        """Count everything written from here on as news."""
        found = look(self._cluster_id)
        self._read_to = found.newest
        return found

    def wrote(self, ids: Iterable[int]) -> None:
        """Note events with these ids as this scheduler's own."""
        for event in sorted(ids):
            if self._own and self._own[-1][1] == event - 1:
                self._own[-1] = self._own[-1][0], event
            elif event > self._read_to and len(self._own) < SPANS:
                self._own.append((event, event))

    def read(self, known: Container[str] = ()) -> tuple[DatabaseLook, list[tuple[str, str]]]:
        """Return what was found, and (id, scope) of jobs with news since the last call.

        Jobs of other clusters count if they are in `known`: they were here before. At most AT_ONCE
        events are read at a time, so that of a thousand new jobs the first are bound while the last
        are still being read.
        """
        # First: whatever was settled before these were written is then in what `look` finds.
        told = self._came_late()
        self._pass_over_own()
        found = look(self._cluster_id, self._read_to, self._own, AT_ONCE)
        told += found.news
        unknown = found.newest - self._read_to - _length(self._own)
        self.more = len(found.news) == AT_ONCE
        to = found.news[-1].event if self.more else found.newest
        if found.there < unknown:
            told += self._look_for_gaps(to)
        self._read_to = max(self._read_to, to)
        self._pass_over_own()
        mine = (one for one in told if one.cluster == self._cluster_id or one.job in known)
        return found, list({one.job: (one.job, one.scope) for one in mine}.values())

    def _pass_over_own(self) -> None:
        """Advance past own events that directly follow; only those among others need a span."""
        while self._own and self._own[0][0] <= self._read_to + 1:
            _, last = self._own.pop(0)
            self._read_to = max(self._read_to, last)

    def _look_for_gaps(self, to: int) -> list[JobNews]:
        """Note the ids without an event; return news that appeared meanwhile."""
        span = JobEvent.objects.filter(id__gt=self._read_to, id__lte=to)
        rows = {row[0]: row for row in span.values_list(*COLUMNS, "kind")}
        own = {event for first, last in self._own for event in range(first, last + 1)}
        now = time.monotonic()
        # The newest matter: an older transaction has committed by now, or was rolled back.
        ids = (i for i in range(to, self._read_to, -1) if i not in rows and i not in own)
        for event, _ in zip(ids, range(CHUNK), strict=False):
            self._late[event] = now
        return _news_of(rows[event] for event in rows.keys() - own)

    def _came_late(self) -> list[JobNews]:
        if not self._late:
            return []
        earliest = time.monotonic() - LATE_S
        self._late = {i: since for i, since in self._late.items() if since > earliest}
        ids = sorted(self._late, reverse=True)[:CHUNK]
        rows = list(JobEvent.objects.filter(id__in=ids).values_list(*COLUMNS, "kind"))
        for row in rows:
            del self._late[row[0]]
        return _news_of(rows)


def _news_of(rows: Iterable[tuple[Any, ...]]) -> list[JobNews]:
    return [JobNews(event, str(job), *of) for event, job, *of, kind in rows if kind in NEWS]


def _length(spans: Iterable[Span]) -> int:
    return sum(last - first + 1 for first, last in spans)
