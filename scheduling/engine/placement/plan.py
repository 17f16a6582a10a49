"""What a job's placement needs, apart from the cluster; worked out once per job shape."""

from dataclasses import dataclass
from functools import lru_cache

from scheduling.engine.native import copied_by_fields
from scheduling.engine.placement.request import level_number, misconfigured
from scheduling.engine.placement.strategies.by_name import STRATEGIES, Strategy
from scheduling.engine.types import JobKind, JobRequest, PodSetSpec


@dataclass(frozen=True, slots=True)
class NetworkWish:
    """Where in the network the pods of a set should be; levels are numbers (or request.HYPER)."""

    required: int | None
    preferred: int | None
    balance: int | None
    slice_size: int

    @property
    def plain(self) -> bool:
        return self.required is None and self.preferred is None and self.balance is None


@dataclass(frozen=True, slots=True, eq=False)
class JobShape:
    """A job's shape, as placement needs it.

    `wrong`: why the job can never run; "" = nothing is wrong. `want`, `least`: how many pods of
    each set to place now, and the fewest that will do. `order`: pod sets, those with the least
    choice first. `ruled`: the sets whose pods have rules about other pods; they are placed one by
    one.
    """

    wrong: str
    how: Strategy
    wishes: tuple[NetworkWish, ...] = ()
    want: tuple[int, ...] = ()
    least: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    ruled: frozenset[int] = frozenset()


copied_by_fields(NetworkWish, JobShape)


def prepare(
    job: JobRequest, strategy: str, counts: tuple[int, ...] | None, levels: tuple[str, ...]
) -> JobShape:
    """Return the plan of a job; jobs of one shape share it, so callers may compare by identity."""
    return _prepare(
        job.pod_sets,
        job.strategy or strategy,
        job.kind,
        job.gang,
        (job.required_level, job.preferred_level),
        counts,
        levels,
    )


@lru_cache(maxsize=8192)
def _prepare(
    pod_sets: tuple[PodSetSpec, ...],
    strategy: str,
    kind: JobKind,
    gang: bool,
    job_levels: tuple[str, str],
    counts: tuple[int, ...] | None,
    levels: tuple[str, ...],
) -> JobShape:
    del kind  # only a cache key: placement treats inference jobs differently (E-Spread)
    wrong = misconfigured(pod_sets, job_levels, strategy, tuple(STRATEGIES), levels)
    how = STRATEGIES.get(strategy, STRATEGIES["binpack"])
    if wrong:
        return JobShape(wrong, how)
    want, least = [], []
    for index, pod_set in enumerate(pod_sets):
        asked = pod_set.count if counts is None else min(pod_set.count, max(counts[index], 0))
        want.append(asked - asked % max(pod_set.slice_size, 1))
        least.append(pod_set.least if gang else 0)
    wishes = tuple(_wish(pod_set, levels) for pod_set in pod_sets)
    order = sorted(range(len(pod_sets)), key=lambda index: (*_choice(pod_sets[index]), index))
    ruled = frozenset(
        [i for i, s in enumerate(pod_sets) if s.rules is not None and not s.rules.only_groups]
    )
    return JobShape("", how, wishes, tuple(want), tuple(least), tuple(order), ruled)


def _wish(pod_set: PodSetSpec, levels: tuple[str, ...]) -> NetworkWish:
    required, preferred, balance = (
        level_number(level, levels) if level else None
        for level in (pod_set.required_level, pod_set.preferred_level, pod_set.balance_level)
    )
    return NetworkWish(required, preferred, balance, pod_set.slice_size)


def _choice(pod_set: PodSetSpec) -> tuple[bool, int, int]:
    """Return a sort key: pod sets with the least choice first."""
    return not pod_set.required_level, len(pod_set.gpu_models) or 1 << 30, -pod_set.gpus
