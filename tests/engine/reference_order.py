"""The naive reference of the fair order: everything that anybody ever held is kept, and shares are
summed up from it whenever they are asked for."""

from collections.abc import Iterator
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
    """Jobs of one pod each on one node for each GPU model, without limits of quota. Of the users'
    past nothing is known before `users_since`."""

    capacity: dict[str, int]
    weights: dict[str, float]
    policy: Policy
    waiting: list[JobRequest] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    users_since: float = 0.0

    def end(self, job_id: str, now: float) -> None:
        self.waiting = [job for job in self.waiting if job.id != job_id]
        for stay in self.running():
            if stay.job.id == job_id:
                stay.until = now

    def running(self) -> Iterator[Stay]:
        return (stay for stay in self.stays if stay.until is None)

    def free(self, model: str) -> int:
        return self.capacity[model] - sum(s.gpus for s in self.running() if s.model == model)

    def dominant(self, stays: list[Stay], since: float, now: float) -> float:
        """The largest share over the GPU models, each moment weighing half as much every half-life
        that it is further away; what is held now where there is none."""
        half_life, shares = self.policy.usage_half_life_s, dict.fromkeys(self.capacity, 0.0)
        for stay in stays:
            part = float(stay.until is None)
            if half_life:
                begin, end = max(stay.since, since), now if stay.until is None else stay.until
                ages = max(0.0, now - max(begin, end)), now - begin
                part = 2 ** (-ages[0] / half_life) - 2 ** (-ages[1] / half_life)
            shares[stay.model] += stay.gpus * part / self.capacity[stay.model]
        return round(max(shares.values()), 12)

    def order(self, now: float) -> list[JobRequest]:
        def key(job: JobRequest) -> tuple[float, float, float, float, int, str]:
            of_tenant = [s for s in self.stays if s.job.tenant == job.tenant]
            of_user = [s for s in of_tenant if s.job.user == job.user]
            tenant = self.dominant(of_tenant, 0.0, now) / self.weights[job.tenant]
            fair, users = self.policy.fair_share, self.policy.fair_users
            return (
                -job.priority,
                round(tenant, 12) if fair else 0.0,
                self.dominant(of_user, self.users_since, now) if users else 0.0,
                job.submitted_at,
                job.gpu_milli,
                job.id,
            )

        return sorted(self.waiting, key=key)

    def cycle(self, now: float) -> list[str]:
        """The jobs that start, in their order: after each walk the shares are others."""
        started: list[str] = []
        more = True
        while more:
            more, closed = False, set[str]()
            for job in self.order(now):
                stay = Stay(job, now)
                if stay.model in closed:
                    continue
                if stay.gpus <= self.free(stay.model):
                    self.waiting.remove(job)
                    self.stays.append(stay)
                    started.append(job.id)
                    more = True
                elif self.policy.queueing is QueueingPolicy.STRICT_FIFO:
                    closed.add(stay.model)
        return started
