"""What a waiting job requests, by GPU model, in each way that it may start.

It is the same for all jobs of a class, so it is worked out once and not in every cycle.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from scheduling.engine.demand.model_choices import Option, Search, options_of
from scheduling.engine.demand.never import demand_of, needs_of
from scheduling.engine.demand.pools import Pools
from scheduling.engine.demand.shapes import (
    MAX_CHOICES,
    Wish,
    beyond_choices,
    choices,
    pools_of,
    wish_of,
)
from scheduling.engine.native import copied_by_fields
from scheduling.engine.types import BEYOND, MILLI, JobRequest

Demand = Mapping[str, int]  # GPU-milli by GPU model


@dataclass(frozen=True, slots=True)
class Way:
    """One choice of a GPU model for each pod set, with its demand in GPU-milli by model.

    `starts`: what quota must allow for each smallest start; `most`: the same for all missing pods.
    `needs`: what must be free for each smallest start; `gang`: the same for the smallest start of a
    gang that holds nothing yet.
    """

    models: tuple[str, ...]
    starts: tuple[Demand, ...]
    most: Demand
    gang: Demand
    needs: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job requests: its `wish` in pods, the `ways` to start, preferred first, and its pools.

    `gpus`: how many wholly free GPUs a node must have to take any of the pods; 0 if some pods need
    less than one. `beyond`: the number of combinations of GPU models, if a gang has more of them
    than `ways` lists, else 0; `options` then has the models of each pod set and what its least
    takes (`Option`). `only`: GPU model and GPU-milli of the smallest start, if there is just one.
    `whole`: that start is all that the job requests.
    """

    wish: Wish
    ways: tuple[Way, ...]
    pools: frozenset[str]
    gpus: int
    beyond: int = 0
    options: tuple[Sequence[Option], ...] = ()
    only: tuple[str, int] | None = None
    whole: bool = False


copied_by_fields(Way, Ask)


def work_out(job: JobRequest, missing: tuple[int, ...], pools: Pools) -> Ask:
    """Work out the request of a job that misses these numbers of pods of each pod set."""
    known = pools.models()
    wish = wish_of(job, missing)
    starts = tuple(smallest_starts(job, missing))
    gang = wish_of(job, tuple(s.count for s in job.pod_sets)).least
    beyond = beyond_choices(job, known)
    options = options_of(job, known, gang, pools) if beyond else []
    held = Search(
        options,
        lambda model, most: pools.unlike(model) or most <= pools.capacity(model) * MILLI * BEYOND,
    )
    possible = tuple(islice(held, MAX_CHOICES)) if beyond else ()
    ways = tuple(
        Way(
            models,
            tuple(demand_of(job, models, start, pools) for start in starts),
            demand_of(job, models, wish.most, pools),
            needs_of(job, models, gang, pools),
            tuple(needs_of(job, models, start, pools) for start in starts),
        )
        for models in possible or choices(job, known)
    )
    asked = [s for s, n in zip(job.pod_sets, missing, strict=True) if n]
    whole = all(s.gpu_milli == MILLI and not s.gpu_memory_mib for s in asked)
    gpus = min((s.gpus for s in asked), default=0) if whole else 0
    only = None if beyond else _only(ways)
    whole = only is not None and dict([only]) == ways[0].most
    return Ask(wish, ways, pools_of(asked, known), gpus, beyond, tuple(options), only, whole)


def _only(ways: Sequence[Way]) -> tuple[str, int] | None:
    starts = [start for way in ways for start in way.starts]
    if len(starts) != 1 or len(starts[0]) != 1:
        return None
    return next(iter(starts[0].items()))


def smallest_starts(job: JobRequest, missing: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the pod counts of each smallest start: the gang's minimum, or any one missing pod."""
    if job.gang:
        yield wish_of(job, missing).least
        return
    for i, n in enumerate(missing):
        if n:
            yield tuple(int(i == j) for j in range(len(missing)))
