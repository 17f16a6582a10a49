"""Combinations of GPU models for gangs of many pod sets, pruned by GPU counts.

Six pod sets that each accept four models can be combined in 4,096 ways. Most of them are impossible
because some model has too few GPUs, or too little quota, for the pod sets put on it.
"""

from collections.abc import Callable, Iterator, Sequence

from scheduling.engine.demand.pools import Pools
from scheduling.engine.types import JobRequest

# Give up a search as incomplete after this many steps.
MAX_STEPS = 20_000

# A GPU model and how much a pod set takes of it (`options_of`: in billionths of a GPU-milli).
Option = tuple[str, int]


class Search:
    """Yields the combinations that fit by count, preferred ones first.

    `fits` says whether an amount may be put on a GPU model; if it allows an amount, it must also
    allow less. `complete` is False once the search was given up.
    """

    def __init__(
        self, options: Sequence[Sequence[Option]], fits: Callable[[str, int], bool]
    ) -> None:
        self.complete = True
        self._options = options
        self._fits = fits
        self._steps = 0
        # Dead ends: (pod sets assigned so far, what is on each model by then).
        self._dead: set[tuple[int, tuple[tuple[str, int], ...]]] = set()

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return self._from((), {})

    def _from(self, chosen: tuple[str, ...], used: dict[str, int]) -> Iterator[tuple[str, ...]]:
        if len(chosen) == len(self._options):
            yield chosen
            return
        place = (len(chosen), tuple(sorted(used.items())))
        if place in self._dead:
            return
        found = False
        for model, exactly in self._options[len(chosen)]:
            self._steps += 1
            if self._steps > MAX_STEPS:
                self.complete = False
                return
            most = used.get(model, 0) + exactly
            if exactly and not self._fits(model, most):
                continue
            for choice in self._from((*chosen, model), {**used, model: most} if exactly else used):
                found = True
                yield choice
        if not found and self.complete:
            self._dead.add(place)


def options_of(
    job: JobRequest, known: tuple[str, ...], least: tuple[int, ...], pools: Pools
) -> list[list[Option]]:
    """Return what `least` pods of each set take of each model that it accepts and could use."""
    options: list[list[Option]] = []
    for s, count in zip(job.pod_sets, least, strict=True):
        if not s.gpus:
            options.append([("", 0)])
            continue
        options.append(
            [
                (m, count * pools.exactly_per_pod(s, m))
                for m in s.gpu_models or known
                if m in known and pools.pods_at_most(s, m) >= max(1, count)
            ]
        )
    return options
