"""The naive reference of the fair order: it keeps everything that any job ever held, and sums up
shares from that on every question."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from scheduling.engine.types import JobRequest, Policy, QueueingPolicy


@dataclass
class Stay:
    """GPUs that a job holds, or held until `until`."""

    job: JobRequest
    since: float
    until: float | None = None

    @property
    def gpus(self) -> int:
        return self.job.pod_sets[0].gpus

    @property
    def model(self) -> str:
        return self.job.pod_sets[0].gpu_models[0]


@dataclass
class Queue:
    """Jobs of one pod each, on one node per GPU model, without quota limits. Users have no known
    past before `users_since`."""

    capacity: dict[str, int]
    weights: dict[str, float]
    policy: Policy
    parents: dict[str, str] = field(default_factory=dict)
    waiting: list[JobRequest] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    users_since: float = 0.0
    turns: dict[str, JobRequest] = field(default_factory=dict)  # by GPU model

    def end(self, job_id: str, now: float) -> None:
        self.waiting = [job for job in self.waiting if job.id != job_id]
        for stay in self.running():
            if stay.job.id == job_id:
                stay.until = now

    def running(self) -> Iterator[Stay]:
        return (stay for stay in self.stays if stay.until is None)

    def free(self, model: str) -> int:
        return self.capacity[model] - sum(s.gpus for s in self.running() if s.model == model)

    def dominant(
        self, stays: list[Stay], since: float, now: float, more: JobRequest | None = None
    ) -> float:
        """Return the largest share, over the GPU models, of present and past use. The weight of
        past use halves every half-life. `more` is a job to count in addition."""
        half_life, shares = self.policy.usage_half_life_s, dict.fromkeys(self.capacity, 0.0)
        for stay in [*stays, *([Stay(more, now)] if more else [])]:
            part = float(stay.until is None)
            if half_life:
                begin, end = max(stay.since, since), now if stay.until is None else stay.until
                ages = max(0.0, now - max(begin, end)), now - begin
                part += 2 ** (-ages[0] / half_life) - 2 ** (-ages[1] / half_life)
            shares[stay.model] += stay.gpus * part / self.capacity[stay.model]
        return max(shares.values())

    def lineage(self, tenant: str) -> list[str]:
        """Return the path from the root to the tenant."""
        above = self.parents.get(tenant)
        return [*(self.lineage(above) if above else []), tenant]

    def branches(self, job: JobRequest) -> list[tuple[str, list[Stay], float, float]]:
        """Return the job's path from the root down: name, share, weight, since when."""
        lineage, found = self.lineage(job.tenant), []
        for name in lineage:
            below = [s for s in self.stays if name in self.lineage(s.job.tenant)]
            found.append((name, below, self.weights.get(name, 1.0), 0.0))
        own = [s for s in self.stays if s.job.tenant == job.tenant]
        if job.tenant in self.parents.values():
            found.append((f"{job.tenant} itself", own, 1.0, 0.0))
        if self.policy.fair_users:
            of_user = [s for s in own if s.job.user == job.user]
            found.append((f"{job.tenant}'s {job.user}", of_user, 1.0, self.users_since))
        return found

    def shares(self, job: JobRequest, now: float) -> list[float]:
        branches = self.branches(job) if self.policy.fair_share else []
        shares = [
            round(self.dominant(stays, since, now) / weight, 9)
            for _, stays, weight, since in branches
        ]
        user = [shares.pop()] if self.policy.fair_users and shares else []
        return [*shares, *[0.0] * (5 - len(shares)), *user]

    def order(self, now: float, turns: Collection[JobRequest]) -> list[JobRequest]:
        def key(job: JobRequest) -> tuple[object, ...]:
            has_turn = job in turns
            shares = [] if has_turn else self.shares(job, now)
            return -job.priority, not has_turn, shares, job.submitted_at, job.gpu_milli, job.id

        return sorted(self.waiting, key=key)

    def keeps_from(self, job: JobRequest, other: JobRequest, now: float) -> bool:
        """Whether nodes are kept for the job: counting it, its branch has no larger share than the
        other job's branch where the two part."""
        for mine, theirs in zip(self.branches(job), self.branches(other), strict=False):
            if mine[0] != theirs[0]:
                with_it = self.dominant(mine[1], mine[3], now, job) / mine[2]
                has = self.dominant(theirs[1], theirs[3], now) / theirs[2]
                return round(with_it, 9) <= round(has, 9)
        return False

    def cycle(self, now: float) -> list[str]:
        """Return the jobs that start, in order; shares change after each start."""
        started: list[str] = []
        while more := self.walk(now):
            started += more
        return started

    def walk(self, now: float) -> list[str]:
        """Ask each job once, always the one whose turn it is."""
        started, asked, closed = list[str](), set[str](), set[str]()
        line: dict[str, JobRequest] = {}
        best_effort = self.policy.queueing is QueueingPolicy.BEST_EFFORT_FIFO
        keeps = best_effort and self.policy.fair_share
        self.turns = {m: j for m, j in self.turns.items() if keeps and j in self.waiting}
        had, held = list(self.turns.values()), dict[str, JobRequest]()
        while rest := [job for job in self.order(now, had) if job.id not in asked]:
            job = rest[0]
            stay = Stay(job, now)
            asked.add(job.id)
            ahead = line.get(stay.model)
            if ahead and stay.model not in held and self.keeps_from(ahead, job, now):
                held[stay.model] = self.turns[stay.model] = ahead
            if stay.model in closed or held.get(stay.model, job) is not job:
                continue
            # Jobs ahead of the one that has a turn have a higher priority.
            if stay.gpus <= self.free(stay.model):
                self.waiting.remove(job)
                self.stays.append(stay)
                started.append(job.id)
                if self.turns.get(stay.model) is job:
                    del self.turns[stay.model]
            elif not best_effort:
                closed.add(stay.model)
            elif job in had:
                held[stay.model] = job
            elif keeps:
                line.setdefault(stay.model, job)
        return started
