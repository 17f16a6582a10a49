"""A cluster at an instant from which runs go on: what a scheduler is told at its start."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduling.engine.deltas import (
    Delta,
    JobRestored,
    JobSubmitted,
    NodeChanged,
    PolicyChanged,
)
from scheduling.engine.types import DEFAULT_LEVELS, JobRequest, Node, Policy


@dataclass(frozen=True, slots=True)
class Scene:
    """`facts`: everything but nodes and policy, in the order in which a scheduler is told.

    `waiting`: the jobs that may start, in that order. `held`: jobs that do not start until somebody
    releases them. `names`: job id -> name, if it has one. `notices`: job id -> seconds of warning
    before its pods are deleted, if it asks for that.
    """

    now: float
    nodes: tuple[Node, ...]
    policy: Policy
    facts: tuple[Delta, ...]
    waiting: tuple[JobRequest, ...]
    held: tuple[JobRequest, ...]
    running: tuple[JobRestored, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    notices: Mapping[str, float] = field(default_factory=dict)
    levels: tuple[str, ...] = DEFAULT_LEVELS

    def name_of(self, job: JobRequest) -> str:
        return self.name_by_id(job.id)

    def name_by_id(self, job_id: str) -> str:
        return self.names.get(job_id, "")


def scene_of(
    facts: Iterable[Delta],
    now: float,
    names: Mapping[str, str] | None = None,
    notices: Mapping[str, float] | None = None,
    levels: tuple[str, ...] = DEFAULT_LEVELS,
) -> Scene:
    """Make a scene of what a scheduler would be told; `now` in seconds since the epoch."""
    nodes: list[Node] = []
    policy = Policy()
    others: list[Delta] = []
    waiting: list[JobRequest] = []
    held: list[JobRequest] = []
    running: list[JobRestored] = []
    for fact in facts:
        if isinstance(fact, NodeChanged):
            nodes.append(fact.node)
            continue
        if isinstance(fact, PolicyChanged):
            policy = fact.policy
            continue
        others.append(fact)
        if isinstance(fact, JobSubmitted):
            (held if fact.held else waiting).append(fact.job)
        elif isinstance(fact, JobRestored):
            running.append(fact)
    return Scene(
        now,
        tuple(nodes),
        policy,
        tuple(others),
        tuple(waiting),
        tuple(held),
        tuple(running),
        names or {},
        notices or {},
        levels,
    )
