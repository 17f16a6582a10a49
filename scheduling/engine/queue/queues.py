"""Queues of tenants: which one goes first, which are held, and what each may hold.

A queue has an order, a share and limits but no quota: quota belongs to its tenant. What a queue
holds is counted in GPUs of any model. Tenants without configured queues cost nothing here.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scheduling.engine.deltas import QueuesChanged
from scheduling.engine.native import mypyc_attr
from scheduling.engine.types import DEFAULT_QUEUE, MILLI, NOISE, JobRequest, QueueSpec
from scheduling.engine.verdict import Reason, Verdict

QueueName = tuple[str, str]  # tenant, queue
QueueUser = tuple[str, str, str]  # tenant, queue, user

DIGITS: Final = 9  # to which GPUs are compared: smaller differences only come from rounding
SMALLEST_WEIGHT: Final = 1e-9
# A shortfall that lasted this many seconds counts as much as the same amount held now.
REPAID_S: Final = 3600.0
FORGOTTEN_S: Final = 24 * 3600.0  # after this time 1/e of a debt is left
MOST_OWED: Final = 4.0  # parts; a queue that could not start must not shut others out for long
# A queue that owes starts nothing past the jobs of a queue that is owed, once either amount exceeds
# this many parts. That ends after WAITED_FOR_S if no job of the queue that is owed starts.
PASSED_OVER: Final = 0.5
WAITED_FOR_S: Final = 4 * 3600.0


class Beyond(NamedTuple):
    """A demand beyond a queue's limit: the queue may hold `most` milli of a GPU model.

    It has `used` so much of that and would need `asked` more.
    """

    model: str
    asked: int
    used: float
    most: int


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class Queues:
    """The configured queues, and what their jobs hold.

    `held`: why the waiting jobs of a held queue do not start. `ordered`: the tenants whose jobs are
    ordered by queues, because they have several queues or one with an order of its own.
    """

    def __init__(self) -> None:
        self.told = QueuesChanged(())
        self.known: dict[QueueName, QueueSpec] = {}
        self.held: dict[QueueName, Verdict] = {}
        self.limited: dict[QueueName, QueueSpec] = {}
        self.ordered: frozenset[str] = frozenset()
        self.tenants: frozenset[str] = frozenset()
        self._holds: dict[QueueName, dict[str, float]] = {}  # GPU-milli by model
        self._users: dict[QueueUser, dict[str, float]] = {}
        self._elsewhere: dict[QueueName, dict[str, float]] = {}
        self._runs_elsewhere: dict[QueueName, int] = {}
        self._even: dict[QueueName, float] = {}  # GPUs per weight if all queues held equally much
        self._usual: dict[QueueName, float] = {}  # running average of its part, in GPUs
        self._owed: dict[QueueName, float] = {}  # GPUs, of queues with waiting jobs
        self._waits_since: dict[QueueName, float] = {}  # its last start, or when it began to wait
        self._at: float | None = None

    def pass_time(self, now: float, waiting: Mapping[QueueName, int]) -> None:
        """Account for the time since the last call, during which nothing changed.

        Update each queue's part of what all hold now, and what it is owed. `waiting`: the queues
        with jobs that may start; other queues neither owe nor are owed anything. A second call at
        the same instant leaves the debts of waiting queues as they are, because nodes may be empty
        only until this cycle has placed its jobs.
        """
        since, self._at = self._at, now
        if not self.ordered or since is None:
            return
        rivals: dict[tuple[str, int], list[QueueName]] = {}
        for name in sorted(waiting):
            if name[0] in self.ordered:
                rivals.setdefault((name[0], self._rank_and_weight(name)[0]), []).append(name)
        before, self._owed = self._owed, {}
        waited, self._waits_since = self._waits_since, {}
        usual, self._usual = self._usual, {}
        passed = now - since
        kept = math.exp(-passed / FORGOTTEN_S)
        for names in rivals.values():
            even = self._even_of(names)
            short: list[QueueName] = []
            for name in names:
                part = even * self._weight(name)
                self._waits_since[name] = waited.get(name, since)
                self._usual[name] = (usual.get(name, 0.0) or part) * kept + part * (1 - kept)
                self._owe(name, even, before.get(name, 0.0) * kept, passed)
                if self._owed[name] >= MOST_OWED * self._part(name) > 0.0:
                    short.append(name)
            # Queues that cannot reach their part for long leave the rest to the others.
            rest = [name for name in names if name not in short] if short else []
            even = self._even_of(rest) if rest else 0.0
            for name in rest:
                self._owe(name, even, before.get(name, 0.0) * kept, passed)
            if passed > 0.0:
                self._forgive(names)
            for name in names:
                if self._owed[name] <= 0.0:
                    self._waits_since[name] = now

    def _even_of(self, names: list[QueueName]) -> float:
        """Return what each of these queues would hold per weight if all held equally much."""
        # Start from 0.0: compiled code (mypyc) takes a sum that starts from 0 for an integer.
        held = sum([_gpus(self._holds.get(name)) for name in names], 0.0)
        return held / sum([self._weight(name) for name in names], 0.0)

    def _owe(self, name: QueueName, even: float, before: float, passed: float) -> None:
        self._even[name] = even
        if passed <= 0.0:
            self._owed[name] = before
            return
        part, held = even * self._weight(name), _gpus(self._holds.get(name))
        owed = before + (part - held) * passed / REPAID_S
        self._owed[name] = min(MOST_OWED * self._part(name), owed)

    def _forgive(self, names: list[QueueName]) -> None:
        """Reduce debts to what the other queues are owed: they could not take more."""
        owed = sum([max(self._owed[name], 0.0) for name in names], 0.0)
        owing = -sum([min(self._owed[name], 0.0) for name in names], 0.0)
        if owing > owed:
            for name in names:
                if self._owed[name] < 0.0:
                    self._owed[name] *= owed / owing

    def _part(self, name: QueueName) -> float:
        """Return the GPUs that a queue has a right to, at least its usual part.

        While nodes empty for a job of one queue, all queues hold little; the average evens that
        out.
        """
        now = self._even.get(name, 0.0) * self._weight(name)
        return max(now, self._usual.get(name, 0.0))

    def debts(self) -> tuple[tuple[str, str, float], ...]:
        """Return (tenant, queue, GPUs owed), for the next scheduler."""
        known = sorted(self._owed.items())
        return tuple([(name[0], name[1], owed) for name, owed in known if owed])

    def remember(self, owed: Iterable[tuple[str, str, float]], passed: float) -> None:
        """Take over debts that an earlier scheduler stored `passed` seconds ago."""
        kept = math.exp(-passed / FORGOTTEN_S)
        self._owed = {(tenant, queue): gpus * kept for tenant, queue, gpus in owed}

    def go_on_from(self, before: "Queues") -> bool:
        """Take over what does not depend on the configuration.

        Return whether that includes what jobs hold, because the tenants are the same.
        """
        self._owed, self._even, self._at = before._owed, before._even, before._at
        self._usual, self._waits_since = before._usual, before._waits_since
        if self.tenants == before.tenants:
            self._holds, self._users = before._holds, before._users
            return True
        return False

    def replace(self, told: QueuesChanged) -> None:
        """Take over a configuration; nobody holds anything yet."""
        self.told = told
        self.known = {(q.tenant, q.name): q for q in told.queues}
        self.held = {name: _held(q) for name, q in self.known.items() if q.held}
        self.limited = {
            name: q for name, q in self.known.items() if q.max_running is not None or q.max_milli
        }
        names: dict[str, int] = {}
        for q in told.queues:
            # A single queue with an order of its own counts as several.
            names[q.tenant] = names.get(q.tenant, 0) + (2 if q.fifo or q.fair_users else 1)
        self.tenants = frozenset(names)
        self.ordered = frozenset([tenant for tenant, number in names.items() if number > 1])
        self._elsewhere, self._runs_elsewhere = {}, {}
        for tenant, queue, model, milli in told.held_elsewhere:
            self._elsewhere.setdefault((tenant, queue), {})[model] = milli
        for tenant, queue, jobs in told.jobs_elsewhere:
            self._runs_elsewhere[tenant, queue] = jobs
        self._holds, self._users = {}, {}

    def change(self, job: JobRequest, model: str, milli: float) -> None:
        """Count places that a job got (`milli` > 0) or gave back (`milli` < 0)."""
        if job.tenant not in self.tenants:
            return
        if milli > 0 and self._at is not None:
            self._waits_since[job.tenant, job.queue] = self._at
        holds = self._holds.setdefault((job.tenant, job.queue), {})
        holds[model] = holds.get(model, 0.0) + milli
        by_user = self._users.setdefault((job.tenant, job.queue, job.user), {})
        by_user[model] = by_user.get(model, 0.0) + milli

    def of(self, job: JobRequest) -> QueueSpec | None:
        """Return the configuration of a job's queue; None if it has none."""
        return self.known.get((job.tenant, job.queue)) if self.known else None

    def why_held(self, job: JobRequest) -> Verdict | None:
        """Return why jobs of its queue do not start; None if they may."""
        return self.held.get((job.tenant, job.queue)) if self.held else None

    def by_users(self, job: JobRequest, *, policy: bool) -> bool:
        """Return whether users of its queue are told apart; `policy`: those of tenants are."""
        queue = self.of(job)
        return policy or (queue is not None and queue.fair_users)

    # --- order ----------------------------------------------------------------------------------
    def fair_users(self, tenant: str, queue: str, *, policy: bool) -> bool:
        """Return whether jobs of the queue are ordered by the shares of their users."""
        known = self.known.get((tenant, queue))
        return policy if known is None else known.fair_users or (policy and not known.fifo)

    def standing(self, job: JobRequest) -> tuple[float, float]:
        """Return the key that orders the queues of a tenant by their next jobs; the smallest first.

        Half of the job counts as held, so that shares are met on average: a queue below its part by
        less than half a job is then as near to it as a queue above it by as much. What the queue is
        owed is subtracted: a queue whose turns come late, because its jobs are large or other jobs
        go before them, would otherwise hold too little.
        """
        name = (job.tenant, job.queue)
        rank, weight = self._rank_and_weight(name)
        held = _gpus(self._holds.get(name)) + self._half(name, job.gpu_milli / MILLI)
        return -float(rank), round((held - self._owed.get(name, 0.0)) / weight, DIGITS)

    def comes_before(self, job: JobRequest, demand: Mapping[str, int], by: JobRequest) -> bool:
        """Return whether a job's queue goes before the queue of another job of the tenant.

        Both queues need equal rank. With half of the job, less what it is owed, the queue of `job`
        may hold no more for its weight than the queue of `by`, nor more than its part. If both jobs
        are in one queue that tells users apart, their users are compared in the same way. `demand`:
        GPU-milli by model.
        """
        name, other = (job.tenant, job.queue), (by.tenant, by.queue)
        half = self._half(name, _gpus(demand))
        if name == other:
            queue = self.known.get(name)
            if queue is None or not queue.fair_users:
                return False
            mine = self.user_share(*name, job.user) + half
            return round(mine, DIGITS) <= self.user_share(*other, by.user)
        rank, weight = self._rank_and_weight(name)
        their_rank, their_weight = self._rank_and_weight(other)
        if rank != their_rank:
            return False
        mine = _gpus(self._holds.get(name)) + half - self._owed.get(name, 0.0)
        theirs = _gpus(self._holds.get(other)) - self._owed.get(other, 0.0)
        most = min(theirs / their_weight, self._even.get(name, math.inf))
        return round(mine / weight, DIGITS) <= round(most, DIGITS)

    def _half(self, name: QueueName, gpus: float) -> float:
        """Return half of a job; for a job of more than two parts of its queue, one part.

        Otherwise other queues would go before it for as long as the queue holds anything.
        """
        part = self._part(name)
        return min(gpus / 2, part) if part else gpus / 2

    def wait_for(self, job: JobRequest) -> frozenset[str]:
        """Return the queues of the tenant whose jobs may not start past this blocked job.

        They have equal rank and had more than their part while the job's queue had less, and one of
        the two is off by too much. A queue that could not start for long, or that is owed the
        maximum, is no longer waited for.
        """
        name = (job.tenant, job.queue)
        owed, rank = self._owed.get(name, 0.0), self._rank_and_weight(name)[0]
        part, at = self._part(name), self._at
        if not 0.0 < owed < MOST_OWED * part or at is None or at >= self.waited_for_until(job):
            return frozenset()
        found: set[str] = set()
        for other, more in self._owed.items():
            if other[0] != name[0] or more >= 0.0 or self._rank_and_weight(other)[0] != rank:
                continue
            if owed > PASSED_OVER * part or -more > PASSED_OVER * self._part(other):
                found.add(other[1])
        return frozenset(found)

    def waited_for_until(self, job: JobRequest) -> float:
        """Return when others stop waiting for a job's queue if none of its jobs starts."""
        return self._waits_since.get((job.tenant, job.queue), -math.inf) + WAITED_FOR_S

    def missed(self, job: JobRequest, demand: Mapping[str, int]) -> int:
        """Return by how many jobs of this demand its queue is below its part."""
        name, one = (job.tenant, job.queue), _gpus(demand)
        if not one or name not in self._even:
            return 0
        part = self._even[name] * self._weight(name)
        return int((part - _gpus(self._holds.get(name))) / one)

    def _weight(self, name: QueueName) -> float:
        return self._rank_and_weight(name)[1]

    def _rank_and_weight(self, name: QueueName) -> tuple[int, float]:
        known = self.known.get(name)
        return (0, 1.0) if known is None else (known.rank, max(known.weight, SMALLEST_WEIGHT))

    def user_share(self, tenant: str, queue: str, user: str) -> float:
        """Return the GPUs that a user holds by jobs of the queue."""
        return round(_gpus(self._users.get((tenant, queue, user))), DIGITS)

    # --- limits ---------------------------------------------------------------------------------
    def limit_of(self, job: JobRequest) -> QueueSpec | None:
        """Return the queue of a job if it has a limit."""
        return self.limited.get((job.tenant, job.queue)) if self.limited else None

    def runs_elsewhere(self, queue: QueueSpec) -> int:
        return self._runs_elsewhere.get((queue.tenant, queue.name), 0)

    def beyond(self, job: JobRequest, demand: Mapping[str, int]) -> Beyond | None:
        """Return what of a demand (GPU-milli by model) exceeds the limit of the job's queue."""
        queue = self.limit_of(job)
        if queue is None or not queue.max_milli:
            return None
        name = (queue.tenant, queue.name)
        holds, elsewhere = self._holds.get(name, {}), self._elsewhere.get(name, {})
        for model, asked in demand.items():
            most = queue.max_milli.get(model)
            if most is None or not asked:
                continue
            used = holds.get(model, 0.0) + elsewhere.get(model, 0.0)
            if used + asked > most + NOISE:
                return Beyond(model, asked, used, most)
        return None


def _gpus(holds: Mapping[str, float] | Mapping[str, int] | None) -> float:
    """Return the GPUs of all models together, from milli by model."""
    milli = 0.0
    for of_model in holds.values() if holds else ():
        milli += of_model
    return milli / MILLI


def _held(queue: QueueSpec) -> Verdict:
    why = f": {queue.why}" if queue.why else "."
    return Verdict(
        Reason.QUEUE_HELD,
        f"Queue {queue.name} of tenant {queue.tenant} is on hold{why}",
        {"tenant": queue.tenant, "queue": queue.name},
        ("release the queue", "move the job to another queue"),
    )


def own_lane(job: JobRequest) -> str:
    """Return what separates the classes of its queue from those of other queues of its tenant."""
    return "" if job.queue == DEFAULT_QUEUE else job.queue
