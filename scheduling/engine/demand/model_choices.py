"""Joint choices of GPU models for gangs of many pod sets, pruned by count.

Six pod sets that each accept four models can be combined in 4,096 ways. Most are out of the
question because some model has too few GPUs, or too little quota, for the pod sets put on it.
"""

from collections.abc import Callable, Iterator, Sequence

from scheduling.engine.demand.pools import Pools
from scheduling.engine.types import JobRequest

# Steps of one search, after which it is given up as incomplete.
MAX_STEPS = 20_000

# GPU model and what the pod set takes of it: of `options_of` in billionths of a GPU-milli.
Option = tuple[str, int]


class Search:
    """Choices that fit by count, the preferred first: `fits` says of a GPU model and an amount
    whether so much may be put on it, and of less if of more. `complete` is False once the search
    was given up.
    """

    def __init__(
        self, options: Sequence[Sequence[Option]], fits: Callable[[str, int], bool]
    ) -> None:
        self.complete = True
        self._options = options
        self._fits = fits
        self._steps = 0
        # Pod sets put so far, and what is on the models by then: known to lead nowhere.
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
    """What the least of each pod set takes of each model that it accepts and the pool can hold."""
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
