"""Generated inference clusters i7, i2 and a10: services whose replicas come and go.

The shapes are those of docs/workload.md. A service swings 3.3 : 1 over the day. Services peak at
different hours, so that together they ask for nearly the same share of the cluster at every hour:
close to 93 %, and never more than there is. Replicas have their own lifetimes and are replaced
while the service needs them. The newest go when it needs fewer. Once a week a whole service is
rolled out anew. Every replica is determined to its end before the run begins, so a seed gives the
same demand under every policy. Replicas may be moved; that does not change when they end.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from numpy.random import PCG64, Generator

from scheduling.engine.native import copied_by_fields
from scheduling.engine.types import JobKind, JobRequest, Node, PodSetSpec
from scheduling.simulator.model import Arrival

HOUR, DAY, WEEK = 3600.0, 86400.0, 604800.0
STEP_S = 300.0  # how often a service compares its replicas with its demand
DEMAND = 0.935
SWING = 3.3
DEPTH = (SWING - 1) / (SWING + 1)
REPLICAS_MEDIAN, REPLICAS_P90, LARGEST_SHARE = 15.0, 125.0, 0.20
REPLICAS_SIGMA = math.log(REPLICAS_P90 / REPLICAS_MEDIAN) / 1.2816
GPUS_A_REPLICA = ((1, 0.85), (2, 0.08), (4, 0.05), (8, 0.02))
MOST_ON_A_NODE = ((2, 0.42), (4, 0.40), (8, 0.10), (None, 0.08))
# Published quantiles of lifetimes; log-linear between them and to the outer ones.
LIFE_SHARES = (0.0, 0.5, 0.9, 0.99, 1.0)
LIFE_S = (30.0, HOUR, 2.75 * DAY, 12 * DAY, 30 * DAY)
SHARED_PODS, SHARES = 0.44, (250, 500)
ZONE_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class InferenceCluster:
    """`nodes` of 8 GPUs, and how many services run on them."""

    name: str
    nodes: int
    services: int


CLUSTERS = {
    c.name: c
    for c in (
        InferenceCluster("i7", 125, 40),
        InferenceCluster("i2", 20, 20),
        InferenceCluster("a10", 8, 12),
    )
}


@dataclass(frozen=True, slots=True)
class InferenceService:
    """`weight`: the GPU-milli it asks for on average, before all are scaled to the cluster."""

    name: str
    pods: PodSetSpec
    weight: float
    peak_h: float
    rollout_at: float

    @property
    def milli(self) -> int:
        return self.pods.milli_per_pod


copied_by_fields(InferenceCluster, InferenceService)


def services_of(
    cluster: InferenceCluster, *, gpu_model: str, seed: int, sharing: bool = False
) -> tuple[InferenceService, ...]:
    """Return the services of a cluster, largest first; none asks for more than its share."""
    rng = Generator(PCG64(seed))
    made = []
    for number in range(cluster.services):
        gpus = _draw(rng, GPUS_A_REPLICA)
        most = _draw(rng, MOST_ON_A_NODE)
        replicas = REPLICAS_MEDIAN * math.exp(REPLICAS_SIGMA * float(rng.standard_normal()))
        milli = 1000
        if sharing and gpus == 1 and rng.random() < SHARED_PODS / GPUS_A_REPLICA[0][1]:
            milli = int(rng.choice(SHARES))
        pods = PodSetSpec(
            "replicas", 1, gpus or 1, (gpu_model,), gpu_milli=milli, max_per_node=most
        )
        weight = max(1.0, replicas) * pods.milli_per_pod
        made.append(
            InferenceService(f"service-{number:02}", pods, weight, 0.0, float(rng.random()) * WEEK)
        )
    weights = _capped([s.weight for s in made])
    order = sorted(range(len(made)), key=lambda i: (-weights[i], i))
    sized = [replace(made[i], weight=weights[i]) for i in order]
    return _phased(sized)


def _draw(rng: Generator, table: Sequence[tuple[int | None, float]]) -> int | None:
    at = float(rng.random())
    for value, share in table:
        at -= share
        if at < 0:
            return value
    return table[-1][0]


def _capped(weights: list[float]) -> list[float]:
    """Return weights of which none exceeds LARGEST_SHARE of all at the hour of its peak."""
    cap = LARGEST_SHARE / DEMAND / (1 + DEPTH)
    for _ in range(200):
        total = sum(weights)
        if max(weights) <= cap * total * 1.001:
            break
        weights = [min(w, cap * total) for w in weights]
    return weights


def _phased(services: Sequence[InferenceService]) -> tuple[InferenceService, ...]:
    """Set the peaks so that swings cancel: each service, large ones first, opposes the sum."""
    x = y = 0.0
    found = []
    for service in services:
        angle = math.atan2(-y, -x) if math.hypot(x, y) > 1e-9 else 14 / 24 * 2 * math.pi
        x += service.weight * math.cos(angle)
        y += service.weight * math.sin(angle)
        found.append(replace(service, peak_h=angle / (2 * math.pi) * 24 % 24))
    return tuple(found)


def demand(services: Sequence[InferenceService], at: float, capacity_milli: int) -> list[int]:
    """Return the replicas of each service at a time; together at most DEMAND of the capacity."""
    raw = [
        s.weight * (1 + DEPTH * math.cos(2 * math.pi * (at / HOUR - s.peak_h) / 24))
        for s in services
    ]
    budget = DEMAND * capacity_milli
    scale = budget / sum(raw)
    exact = [w * scale / s.milli for w, s in zip(raw, services, strict=True)]
    counts = [int(e) for e in exact]
    left = budget - sum(c * s.milli for c, s in zip(counts, services, strict=True))
    # Distribute what rounding down left to those that lost most by it.
    for i in sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i)):
        if services[i].milli <= left:
            counts[i] += 1
            left -= services[i].milli
    return counts


@dataclass(slots=True)
class _Replica:
    start: float
    end: float


def generate(
    cluster: InferenceCluster,
    *,
    gpu_model: str,
    seed: int,
    hours: float,
    sharing: bool = False,
) -> list[Arrival]:
    """Return all replicas of a run in order of time; replicas of equal fate form one job."""
    services = services_of(cluster, gpu_model=gpu_model, seed=seed, sharing=sharing)
    rng = Generator(PCG64([seed, 1]))
    capacity = cluster.nodes * 8 * 1000
    running: list[list[_Replica]] = [[] for _ in services]
    done: list[list[_Replica]] = [[] for _ in services]
    for step in range(math.ceil(hours * HOUR / STEP_S)):
        now = step * STEP_S
        for i, count in enumerate(demand(services, now, capacity)):
            _control(services[i], running[i], done[i], count, now, rng)
    for live, ended in zip(running, done, strict=True):
        ended.extend(live)
    made = [a for s, r in zip(services, done, strict=True) for a in _jobs(s, r)]
    return sorted(made, key=lambda a: (a.submitted_at, a.job.id))


def _control(
    service: InferenceService,
    live: list[_Replica],
    done: list[_Replica],
    count: int,
    now: float,
    rng: Generator,
) -> None:
    """Replace what has ended, end the newest beyond `count`, roll out when it is time."""
    rolled = now > 0 and (now - service.rollout_at) % WEEK < STEP_S and now >= service.rollout_at
    ended = [r for r in live if r.end <= now]
    live[:] = [r for r in live if r.end > now]
    if rolled:
        ended += live
        live.clear()
    live.sort(key=lambda r: r.start)
    ended += live[count:]
    del live[count:]
    for replica in ended:
        # Its end is noticed, and it is replaced, when the service looks again.
        replica.end = now
    done.extend(ended)
    while len(live) < count:
        live.append(_Replica(now, now + _lifetime(float(rng.random()))))


def _lifetime(draw: float) -> float:
    i = min(bisect_right(LIFE_SHARES, draw), len(LIFE_SHARES) - 1) - 1
    part = (draw - LIFE_SHARES[i]) / (LIFE_SHARES[i + 1] - LIFE_SHARES[i])
    return float(LIFE_S[i] * (LIFE_S[i + 1] / LIFE_S[i]) ** part)


def _jobs(service: InferenceService, replicas: Iterable[_Replica]) -> Iterable[Arrival]:
    """Yield replicas that begin and end together as one job of independent pods."""
    together: dict[tuple[float, float], int] = {}
    for r in replicas:
        together[r.start, r.end] = together.get((r.start, r.end), 0) + 1
    for number, ((start, end), count) in enumerate(sorted(together.items())):
        job = JobRequest(
            id=f"{service.name}/{number:06}",
            tenant=service.name,
            submitted_at=start,
            pod_sets=(replace(service.pods, count=count),),
            gang=False,
            kind=JobKind.INFERENCE,
        )
        yield Arrival(job, end - start)


def zoned(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes with the first ZONE_SHARE of them as the inference zone (paper 3.3.4)."""
    inside = round(ZONE_SHARE * len(nodes))
    return tuple(replace(n, zone="inference" if i < inside else "") for i, n in enumerate(nodes))


def figures(
    cluster: InferenceCluster, arrivals: Sequence[Arrival], hours: float
) -> dict[str, float | None]:
    """Return figures of what was generated, to compare with the published shapes.

    Demand as a share of the cluster (mean and maximum), the largest service's share of the cluster,
    lifetimes in hours of the replicas that ended in time (None if none did), and the share of pods
    on a part of a GPU.
    """
    capacity, end = cluster.nodes * 8 * 1000, hours * HOUR
    changes: list[tuple[float, int]] = []
    held: dict[str, float] = {}
    lives: list[float] = []
    pods = shared = 0
    for a in arrivals:
        (pod_set,) = a.job.pod_sets
        milli = a.job.gpu_milli
        changes += [(a.submitted_at, milli), (a.submitted_at + a.duration_s, -milli)]
        until = min(end, a.submitted_at + a.duration_s)
        held[a.job.tenant] = held.get(a.job.tenant, 0.0) + milli * (until - a.submitted_at)
        pods += pod_set.count
        shared += pod_set.count if pod_set.gpu_milli < 1000 else 0
        if a.submitted_at + a.duration_s < end:
            lives += [a.duration_s / HOUR] * pod_set.count
    lives.sort()
    now = most = 0
    for _, change in sorted(changes):  # at one instant ends go before begins
        now += change
        most = max(most, now)
    return {
        "demand_mean": sum(held.values()) / end / capacity,
        "demand_most": most / capacity,
        "largest_service": max(held.values()) / end / capacity,
        "replicas": pods,
        "shared_pods": shared / pods,
        "life_p50_h": lives[len(lives) // 2] if lives else None,
        "life_p90_h": lives[len(lives) * 9 // 10] if lives else None,
    }
