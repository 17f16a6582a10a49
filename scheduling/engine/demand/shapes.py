"""Request shapes: jobs of one tenant that no check can tell apart wait in one equivalence class.

A shape contains everything that quota, dynamic admission and placement look at. So one failed
attempt answers for all jobs of the shape.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice, product
from math import prod
from operator import attrgetter

from scheduling.engine.native import copied_by_fields
from scheduling.engine.types import JobRequest, PodSetSpec

Key = tuple[object, ...]

# How many combinations of GPU models to try for several pod sets. A gang with more combinations
# tries this many of those that fit by GPU counts (model_choices.py).
MAX_CHOICES = 64


# Fields that differ between jobs but do not matter to whether they fit.
_NOT_SHAPE = {
    "id", "tenant", "submitted_at", "priority", "declared_s", "after", "after_ok",
    "array", "run_limit_s", "user", "queue",
}  # fmt: skip
_shape = attrgetter(*(f.name for f in fields(JobRequest) if f.name not in _NOT_SHAPE))


def shape_of(job: JobRequest) -> Key:
    """Return all that placement looks at; it is equal for jobs that fit or fail alike."""
    shape: Key = _shape(job)
    return shape


def narrowed(job: JobRequest, models: tuple[str, ...]) -> JobRequest:
    """Return the job with each pod set restricted to one GPU model."""
    sets = job.pod_sets
    if len(sets) == 1 and sets[0].gpu_models == models:
        return job
    if all(not s.gpus or s.gpu_models == (m,) for s, m in zip(sets, models, strict=True)):
        return job
    return replace(
        job,
        pod_sets=tuple(
            replace(s, gpu_models=(m,)) if s.gpus else s for s, m in zip(sets, models, strict=True)
        ),
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """How many pods of each pod set are still wanted (`most`), and the fewest that may start."""

    least: tuple[int, ...]
    most: tuple[int, ...]

    def filled(self, extra: int) -> tuple[int, ...]:
        """Return the least plus `extra` pods, given to the pod sets in order."""
        counts = []
        for least, most in zip(self.least, self.most, strict=True):
            more = min(extra, most - least)
            counts.append(least + more)
            extra -= more
        return tuple(counts)

    @property
    def room(self) -> int:
        return sum(self.most) - sum(self.least)


copied_by_fields(Wish)


def wish_of(job: JobRequest, missing: tuple[int, ...]) -> Wish:
    """Return the wish of a job: a gang needs `min_count` of each set, other jobs any one pod."""
    if not job.gang:
        return Wish((0,) * len(missing), missing)
    least = (min(s.least, n) for s, n in zip(job.pod_sets, missing, strict=True))
    return Wish(tuple(least), missing)


def choices(job: JobRequest, known: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield combinations of one GPU model per pod set, preferred ones first.

    `known`: the models of the cluster. For a gang these are the first MAX_CHOICES combinations.
    The pods of other jobs start one by one, so each pod set only needs each of its models once.
    """
    acceptable = _acceptable(job, known)
    if job.gang:
        return islice(product(*acceptable), MAX_CHOICES)
    if not all(acceptable):
        return iter(())
    most = max(map(len, acceptable), default=0)
    return (tuple(models[min(i, len(models) - 1)] for models in acceptable) for i in range(most))


def beyond_choices(job: JobRequest, known: tuple[str, ...]) -> int:
    """Return how many combinations a gang has, if more than `choices` yields; else 0."""
    in_all = prod(map(len, _acceptable(job, known)))
    return in_all if job.gang and in_all > MAX_CHOICES else 0


def _acceptable(job: JobRequest, known: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [
        tuple(m for m in s.gpu_models or known if m in known) if s.gpus else ("",)
        for s in job.pod_sets
    ]


def pools_of(pod_sets: Iterable[PodSetSpec], known: tuple[str, ...]) -> frozenset[str]:
    """Return the GPU models whose pools the pod sets compete for.

    NO_GPUS is the pool of nodes without GPUs; only jobs without GPUs compete for it.
    """
    return frozenset(
        m
        for s in pod_sets
        if s.gpus or s.avoids_gpus
        for m in (s.gpu_models or known)
        if m in known or s.avoids_gpus
    )
