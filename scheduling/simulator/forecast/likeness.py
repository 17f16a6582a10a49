"""Which earlier runs a job is like: from its owner's runs of its name and size to all runs."""

import re
from typing import NamedTuple

from scheduling.engine.types import MILLI, JobRequest

_NUMBERED = re.compile(r"[-_.]?\d[\w.\-]*$")


class Traits(NamedTuple):
    """What likeness is judged by. `declared_s`: the declared run time in seconds; None = none."""

    tenant: str
    user: str
    name: str
    gpu_milli: int
    declared_s: float | None


def traits_of(job: JobRequest, name: str = "") -> Traits:
    """Return the traits of a job with this name."""
    return Traits(job.tenant, job.user, name, job.gpu_milli, job.declared_s)


class Kin(NamedTuple):
    """A group of jobs that are like each other; "" and -1 = any.

    `size`: the size class by GPUs; the largest of each class is a power of two.
    """

    tenant: str
    user: str
    stem: str
    size: int


EVERYBODY = Kin("", "", "", -1)


def stem_of(name: str) -> str:
    """Return what names of repeated runs share: "train-17" and "train-18b" give "train"."""
    return _NUMBERED.sub("", name)


def size_of(gpu_milli: int) -> int:
    """Return the size class: 0 for no GPU, 1 for up to one, 2 for two, 3 for up to four, …"""
    gpus = -(-gpu_milli // MILLI)
    return (gpus - 1).bit_length() + 1 if gpus > 0 else 0


def size_kin(job: Traits) -> Kin:
    """Return the group of all jobs of its size class."""
    return Kin("", "", "", size_of(job.gpu_milli))


def kin_of(job: Traits) -> tuple[Kin, ...]:
    """Return the groups that a job belongs to, the most alike first."""
    stem, of_size = stem_of(job.name), size_kin(job)
    size = of_size.size
    found: list[Kin] = []
    if job.user:
        if stem:
            found += [Kin(job.tenant, job.user, stem, size), Kin(job.tenant, job.user, stem, -1)]
        found += [Kin(job.tenant, job.user, "", size), Kin(job.tenant, job.user, "", -1)]
    elif stem:
        found.append(Kin(job.tenant, "", stem, size))
    return (*found, Kin(job.tenant, "", "", size), of_size, EVERYBODY)


def in_words(kin: Kin, count: int) -> str:
    """Describe a group, for example "42 earlier runs of train-* by this user"."""
    runs = "1 earlier run" if count == 1 else f"{count} earlier runs"
    of = f" of {kin.stem}-*" if kin.stem else ""
    if kin.user:
        return f"{runs}{of} by this user"
    if kin.tenant:
        return f"{runs}{of} in this tenant"
    return f"{runs} of this size" if kin.size >= 0 else f"{runs} of all sizes"
