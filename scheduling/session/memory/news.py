"""Of which jobs something was written since the last look, by people and by other schedulers."""

import time
from collections.abc import Container, Iterable
from typing import Any

from scheduling.models import JobEvent
from scheduling.session.memory.look import NEWS, DatabaseLook, JobNews, Span, look
from tenants.database.chunks import CHUNK

AT_ONCE = 1000  # news of jobs taken in by one pass
# A transaction that has not written its event so long after it was given its id was rolled back.
LATE_S = 10.0
# Its own events are left out by so many spans of ids at most; what is told of them harms nobody.
SPANS = 50
COLUMNS = ("id", "job_id", "job__scope", "job__cluster_id")


class News:
    """The events of a cluster's jobs, each told once, but for those that this scheduler has written
    itself. `more`: there are further ones.

    An event gets its id before its transaction commits, so one with a smaller id can appear after
    those with larger ones. The ids that were passed over are looked for again.
    """

    def __init__(self, cluster_id: int) -> None:
        self.more = False
        self._cluster_id = cluster_id
        self._read_to = 0
        self._own: list[Span] = []  # ids of events of its own behind that, in order
        self._late: dict[int, float] = {}  # ids without an event, and since when

    def start(self) -> DatabaseLook:
        """From here on everything that is written is news."""
        found = look(self._cluster_id)
        self._read_to = found.newest
        return found

    def wrote(self, ids: Iterable[int]) -> None:
        """Events with these ids are this scheduler's own: no news."""
        for event in sorted(ids):
            if self._own and self._own[-1][1] == event - 1:
                self._own[-1] = self._own[-1][0], event
            elif event > self._read_to and len(self._own) < SPANS:
                self._own.append((event, event))

    def read(self, known: Container[str] = ()) -> tuple[DatabaseLook, list[tuple[str, str]]]:
        """What was found, and (id, scope) of the jobs that were submitted, changed or routed since
        the last call. Of jobs of other clusters those that are `known`: they were here before.

        At most AT_ONCE events at a time: of a thousand new jobs the first are already being bound
        while the last are still being read.
        """
        # First: whatever was settled before they were written is in what is found after them.
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
        """Of its own events only those count that stand among others."""
        while self._own and self._own[0][0] <= self._read_to + 1:
            _, last = self._own.pop(0)
            self._read_to = max(self._read_to, last)

    def _look_for_gaps(self, to: int) -> list[JobNews]:
        """Note the ids without an event; returns the news that have appeared meanwhile."""
        span = JobEvent.objects.filter(id__gt=self._read_to, id__lte=to)
        rows = {row[0]: row for row in span.values_list(*COLUMNS, "kind")}
        own = {event for first, last in self._own for event in range(first, last + 1)}
        now = time.monotonic()
        # The newest matter: what was begun long ago is there, or was rolled back.
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
