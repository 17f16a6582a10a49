"""Request shapes: jobs of one tenant that no check can tell apart wait in one class.

A shape names everything that quota, dynamic admission and placement look at, so one failed
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

# Several pod sets with several acceptable models each: how many joint choices are tried, without
# a look at counts and, for gangs that have more, with one.
MAX_CHOICES = 64


# What tells jobs apart without mattering to whether they fit.
_NOT_SHAPE = {
    "id", "tenant", "submitted_at", "priority", "declared_s", "after", "after_ok",
    "array", "run_limit_s", "user", "queue",
}  # fmt: skip
_shape = attrgetter(*(f.name for f in fields(JobRequest) if f.name not in _NOT_SHAPE))


def shape_of(job: JobRequest) -> Key:
    """What placement looks at; equal for jobs that fit or fail alike."""
    shape: Key = _shape(job)
    return shape


def narrowed(job: JobRequest, models: tuple[str, ...]) -> JobRequest:
    """The job with each pod set on one GPU model."""
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
    """How many pods of each pod set are still asked for, and the least that may start."""

    least: tuple[int, ...]
    most: tuple[int, ...]

    def filled(self, extra: int) -> tuple[int, ...]:
        """The least plus `extra` pods, given to the pod sets in their order."""
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
    """A gang starts with `min_count` of each pod set or not at all, other jobs pod by pod."""
    if not job.gang:
        return Wish((0,) * len(missing), missing)
    least = (min(s.least, n) for s, n in zip(job.pod_sets, missing, strict=True))
    return Wish(tuple(least), missing)


def choices(job: JobRequest, known: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """One GPU model per pod set, the preferred combinations first; `known` are the cluster's.

    The pods of a job that is no gang start one by one, so it is enough that every pod set comes
    onto each of its models once. Of the combinations of a gang these are the first.
    """
    acceptable = _acceptable(job, known)
    if job.gang:
        return islice(product(*acceptable), MAX_CHOICES)
    if not all(acceptable):
        return iter(())
    most = max(map(len, acceptable), default=0)
    return (tuple(models[min(i, len(models) - 1)] for models in acceptable) for i in range(most))


def beyond_choices(job: JobRequest, known: tuple[str, ...]) -> int:
    """How many combinations a gang has in all, if more than `choices` names; else 0."""
    in_all = prod(map(len, _acceptable(job, known)))
    return in_all if job.gang and in_all > MAX_CHOICES else 0


def _acceptable(job: JobRequest, known: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [
        tuple(m for m in s.gpu_models or known if m in known) if s.gpus else ("",)
        for s in job.pod_sets
    ]


def pools_of(pod_sets: Iterable[PodSetSpec], known: tuple[str, ...]) -> frozenset[str]:
    """GPU models whose pools the pod sets compete for, NO_GPUS being that of the nodes without
    GPUs, for which only jobs without GPUs compete."""
    return frozenset(
        m
        for s in pod_sets
        if s.gpus or s.avoids_gpus
        for m in (s.gpu_models or known)
        if m in known or s.avoids_gpus
    )
