"""A run over several clusters with one queue (docs/decisions/0075).

A job that names no cluster is sent to the one on which it starts first, and moves while it waits if
that gains it enough. Each cluster is a run of its own with its own policy. All share one clock, one
table of jobs and one quota book: what is held on one counts on the others at the same instant.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop

from scheduling.engine.cluster_choice.choice import (
    MIN_STAY_S,
    MOST_DOUBLED,
    ClusterOutlook,
    choose,
    gains,
)
from scheduling.engine.types import DEFAULT_LEVELS, QueueSpec, QuotaSpec, TenantSpec
from scheduling.simulator.agenda import ARRIVAL, LOOK, WARM, Agenda
from scheduling.simulator.journal import RunJournal
from scheduling.simulator.loop import LOOK_EVENTS, Progress
from scheduling.simulator.member import InstantOutlook, Member, in_order, labels_of, sum_of
from scheduling.simulator.model import Arrival, ClusterOfRun, Settings
from scheduling.simulator.observe import FAILED, RUNNING, Observer
from scheduling.simulator.run import Run, RunOutcome, TraceError

LOOK_S = 5.0  # at least this long between two looks at the waiting jobs
MOST = 100  # how many jobs one look covers, the first in the order
ANYWHERE = "any"


class SeveralClusters:
    """One run over several clusters. Build it and call `run()` once."""

    def __init__(
        self,
        clusters: Sequence[ClusterOfRun],
        arrivals: Iterable[Arrival],
        *,
        tenants: tuple[TenantSpec, ...] = (),
        quotas: tuple[QuotaSpec, ...] = (),
        queues: tuple[QueueSpec, ...] = (),
        settings: Settings | None = None,
        start: float = 0.0,
        levels: tuple[str, ...] = DEFAULT_LEVELS,
        journal: RunJournal | None = None,
    ) -> None:
        """Set the run up.

        `queues` may have no limits, because these would have to be counted over all clusters, and
        `settings` no period of cycles. Raises ValueError for either, and for names that occur
        twice.
        """
        self.settings = settings or Settings()
        _check(clusters, queues, self.settings)
        self.now = start
        cluster_of = {node.name: c.name for c in clusters for node in c.nodes}
        self.observer = Observer(start, self.settings.sample_s, journal, cluster_of)
        self._agenda = Agenda(start, arrivals, ())
        tenancy = tenants, quotas, queues
        self.members = {
            c.name: Member(c, self.observer, tenancy, self.settings, levels, self._submit_again)
            for c in clusters
        }
        self.never: dict[str, str] = {}
        self._events = 0
        self._behind: list[Arrival] = []  # jobs that wait for jobs on several clusters
        self._sent: dict[str, tuple[float, int]] = {}  # job -> last sent at, number of moves
        self._looked_at = start - LOOK_S
        self._look_at: float | None = None
        self._warming = self.settings.warm_up_s > 0
        if self._warming:
            self._agenda.push(start + self.settings.warm_up_s, WARM, None)
        self._agenda.next_arrival(start)
        for member in self.members.values():
            member.advance(start)

    def run(
        self, progress: Progress | None = None, cancelled: Callable[[], bool] | None = None
    ) -> RunOutcome:
        """Run to rest, to `settings.stop_s`, or until `cancelled()`; call this at most once."""
        stop, partial, look_at = self.settings.stop_s, False, LOOK_EVENTS
        while self._lives():
            now = self._next_at()
            if stop is not None and now > stop:
                self.now = stop
                break
            self.observer.sample_until(now)
            self.now = now
            self._instant(now)
            events = self._total_events()
            if events >= look_at:
                look_at = events + LOOK_EVENTS
                if progress is not None:
                    progress(now, events, len(self.observer.jobs))
                if cancelled is not None and cancelled():
                    partial = True
                    break
        return self._result(partial=partial)

    def _lives(self) -> bool:
        waiting = self._agenda.arriving > 0 or self._look_at is not None
        return waiting or any(member.lives for member in self.members.values())

    def _next_at(self) -> float:
        times = [member.next_at for member in self.members.values()]
        if self._agenda.heap:
            times.append(self._agenda.heap[0][0])
        return min(at for at in times if at is not None)

    def _total_events(self) -> int:
        return self._events + sum(member.events for member in self.members.values())

    def _instant(self, now: float) -> None:
        """Let everything happen that is due now.

        On all clusters ends go first, so that what arrives finds the freed places.
        """
        news = False
        for member in self.members.values():
            if member.next_at is not None and member.next_at <= now:
                member.advance(now)
                news = True
        heap, looks = self._agenda.heap, False
        while heap and heap[0][0] == now:
            _, kind, _, payload = heappop(heap)
            self._events += 1
            if kind == ARRIVAL:
                self._arrive(payload, now)
                news = True
            elif kind == LOOK:
                looks = looks or now == self._look_at
            else:
                self._warming = False
                self.observer.end_warm_up(now)
        if news:
            self._count_quota(now)
            behind, self._behind = self._behind, []
            for arrival in behind:
                self._send(arrival, now)
        if looks:
            self._look_at, self._looked_at = None, now
            self._look(now)
        elif news:
            self._look_by(max(now, self._looked_at + LOOK_S))

    def _count_quota(self, now: float) -> None:
        """Tell each member what the others hold, until nothing more starts because of it."""
        news = len(self.members) > 1
        while news:
            news = False
            for name, member in self.members.items():
                others = [other for of, other in self.members.items() if of != name]
                jobs: dict[str, int] = {}
                for other in others:
                    for tenant, count in other.running().items():
                        jobs[tenant] = jobs.get(tenant, 0) + count
                member.now = now
                if member.hear_of_others(sum_of([other.held() for other in others]), jobs):
                    member.advance(now)
                    news = True

    # --- arrivals -----------------------------------------------------------------------------
    def _submit_again(self, at: float, arrival: Arrival) -> None:
        self._agenda.push(at, ARRIVAL, arrival)

    def _arrive(self, payload: Arrival | tuple[Arrival], now: float) -> None:
        self._agenda.arriving -= 1
        if isinstance(payload, tuple):  # it comes from the trace, not from a resubmission
            (arrival,) = payload
            self._agenda.next_arrival(now)
        else:
            arrival = payload
        self._send(arrival, now)

    def _send(self, arrival: Arrival, now: float) -> None:
        """Send a job to its cluster, to that of the jobs it waits for, or to the best of all."""
        job = arrival.job
        links = (*job.after, *job.after_ok)
        awaited = [m for m in self.members.values() if any(name in m.jobs for name in links)]
        named = "" if arrival.cluster == ANYWHERE else arrival.cluster
        if named and named not in self.members:
            known = ", ".join(self.members)
            raise TraceError(f"job {job.id}: cluster {named} is unknown; known are {known}")
        if len(awaited) > 1 or (named and any(m.name != named for m in awaited)):
            self._behind.append(arrival)
            return
        if named:
            to: Member | None = self.members[named]
        else:
            to = awaited[0] if awaited else self._best(arrival, now)
        row = self.observer.jobs.add(job)
        run = Run(arrival, row, self.observer.jobs.unit[row])
        if to is None:
            self.observer.jobs.ended[row], self.observer.jobs.state[row] = now, FAILED
            return
        self._goes(run, to, now, 0)

    def _best(self, arrival: Arrival, now: float) -> Member | None:
        """Return the member on which the job starts first; None if it can run nowhere."""
        able = [member for member in self.members.values() if member.of.takes_any]
        outlooks = [member.outlook(arrival) for member in able]
        chosen = choose(outlooks, now)
        if chosen is None:
            wanted = labels_of(arrival.cluster_selector)
            why = "; ".join(f"{o.name}: {o.refused}" for o in outlooks)
            suffix = f" (of the labels {wanted})" if wanted else ""
            told = why or f"no cluster takes jobs that name none{suffix}"
            self.never[arrival.job.id] = told
            return None
        return self.members[chosen.name]

    def _goes(self, run: Run, to: Member, now: float, moves: int) -> None:
        self._sent[run.arrival.job.id] = now, moves
        self.observer.was_sent(run.row, now, to.name)
        to.submit(run, now)

    # --- moves --------------------------------------------------------------------------------
    def _look_by(self, at: float) -> None:
        """Schedule a look for `at` at the latest, if any job could move."""
        if len(self.members) < 2 or (self._look_at is not None and self._look_at <= at):
            return
        if any(self._may_move(member) for member in self.members.values()):
            self._look_at = at
            self._agenda.push(at, LOOK, None)

    def _may_move(self, member: Member) -> list[Run]:
        return [run for run in member.may_leave() if run.arrival.cluster in ("", ANYWHERE)]

    def _look(self, now: float) -> None:
        """Move each job that gains enough by it."""
        asked = {m.name: InstantOutlook(m, now) for m in self.members.values() if m.of.takes_any}
        home = {run.arrival.job.id: m for m in self.members.values() for run in self._may_move(m)}
        runs = [member.jobs[job_id] for job_id, member in home.items()]
        moved = False
        for run in in_order(runs)[:MOST]:
            member = home[run.arrival.job.id]
            since, moves = self._sent[run.arrival.job.id]
            stay = MIN_STAY_S * 2 ** min(moves, MOST_DOUBLED)
            if now - since < stay:
                self._look_by(since + stay)
            elif self._move(run, member, asked, now - since, moves, now):
                moved = True
        if moved:
            self._count_quota(now)

    def _move(
        self,
        run: Run,
        here: Member,
        asked: dict[str, InstantOutlook],
        stayed: float,
        moves: int,
        now: float,
    ) -> bool:
        at_home = here.outlook_of(run)
        others = {name: a.outlook(run) for name, a in asked.items() if name != here.name}
        better: list[ClusterOutlook] = [
            there for there in others.values() if gains(at_home, there, stayed, moves, now)
        ]
        chosen = choose([at_home, *better], now) if better else None
        went = chosen is not None and chosen.name != here.name
        for name in others:
            if not (went and chosen is not None and name == chosen.name):
                asked[name].forget(run)
        if went and chosen is not None:
            here.withdraw(run.arrival.job.id, now)
            if here.name in asked:
                asked[here.name].forget(run)
            self._goes(run, self.members[chosen.name], now, moves + 1)
        return went

    # --- the end ------------------------------------------------------------------------------
    def _result(self, *, partial: bool) -> RunOutcome:
        if self._warming:  # what was observed so far does not count
            self.observer.end_warm_up(self.now)
        for arrival in self._behind:
            self.observer.jobs.add(arrival.job)
        runs = [run for member in self.members.values() for run in member.jobs.values()]
        for run in runs:
            if run.places:
                self.observer.jobs.state[run.row] = RUNNING
        never = dict(self.never)
        for member in self.members.values():
            never.update(member.never)
        return RunOutcome(
            observer=self.observer,
            pools=dict(self.observer.finish(self.now)),
            ended_at=self.now,
            events=self._total_events(),
            cycles=sum(member.cycles for member in self.members.values()),
            partial=partial,
            never=never,
            waiting=len(self._behind) + sum(not run.places for run in runs),
        )


def _check(
    clusters: Sequence[ClusterOfRun], queues: Sequence[QueueSpec], settings: Settings
) -> None:
    if settings.cycle_s:
        raise ValueError("several clusters decide at every event; leave out --cycle")
    names = [c.name for c in clusters]
    nodes = [node.name for c in clusters for node in c.nodes]
    for what, given in (("cluster", names), ("node", nodes)):
        if len(set(given)) < len(given):
            twice = next(name for name in given if given.count(name) > 1)
            raise ValueError(f"{what} {twice} appears twice; give each a name of its own")
    if ANYWHERE in names:
        raise ValueError(f"a cluster cannot be called {ANYWHERE}; that stands for all of them")
    limited = [q for q in queues if q.max_running is not None or q.max_milli]
    if limited:
        queue = f"{limited[0].tenant}/{limited[0].name}"
        raise ValueError(f"queue {queue} has limits; a run of several clusters knows none")
