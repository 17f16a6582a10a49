"""How to free whole nodes, or to start a waiting job, and what that costs."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from django.utils import timezone

from scheduling.models import Cluster
from scheduling.queries.effects import WITHIN_S, JobsTold
from scheduling.queries.known import CannotTell, Known, scopes_of
from scheduling.queries.standstill import standstill
from scheduling.queries.whatif.by_rows import asked_or
from scheduling.queries.whatif.line import LONGEST_S
from scheduling.queries.whatif.questions import PlanWanted
from scheduling.simulator.forecast.emptying import EmptyingPlan, JobMove, NodeFigures
from scheduling.simulator.forecast.ground import ground_of
from scheduling.simulator.forecast.scene import scene_of
from tenants.effects import AffectedJob
from tenants.errors import Conflict, Invalid
from tenants.models import User


@dataclass(frozen=True, slots=True)
class MovingJob:
    """A job of which `pods` pods leave (all of it if `whole`) and are placed on `targets`.

    `lost_gpu_s`: work to be done again, unless the job saves it within the `notice_s` seconds of
    its warning (0 = no warning).
    """

    job: AffectedJob
    pods: int
    whole: bool
    lost_gpu_s: float
    notice_s: float
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """A plan as of an instant: `nodes` are emptied by `moves`, so that `starts` start.

    `gained`: how many more nodes are then whole. Not `reached`: the plan is the nearest to the goal
    that was found.
    """

    as_of: datetime
    gpu_model: str
    nodes: tuple[str, ...]
    moves: Sequence[MovingJob]
    starts: Sequence[AffectedJob]
    lost_gpu_s: float
    before: NodeFigures
    after: NodeFigures
    gained: int
    reached: bool


def defragmentation(
    viewer: User,
    cluster: Cluster,
    *,
    gpu_model: str = "",
    nodes: int = 0,
    job: uuid.UUID | None = None,
) -> Defragmentation:
    """Return a plan for that many more whole nodes of a GPU model, or for a waiting job.

    Raises Invalid naming the field, Conflict if nothing can be said of the cluster.
    """
    question = PlanWanted(gpu_model, nodes, str(job or ""), WITHIN_S)
    try:
        if why := standstill(cluster):
            raise CannotTell(why)
        by_rows = partial(_by_rows, cluster, question)
        best = asked_or(cluster.pk, question, by_rows, time.time(), LONGEST_S)
    except CannotTell as error:
        raise Conflict(f"Nothing can be planned on {cluster.name}. {error}") from None
    if best is None:
        raise _unknown(cluster, gpu_model, job)
    return _told(viewer, *best)


def _by_rows(cluster: Cluster, question: PlanWanted) -> tuple[EmptyingPlan, str] | None:
    """Return the best plan of all scopes. Raises CannotTell."""
    until = time.monotonic() + question.within_s
    known = Known(cluster)
    best: tuple[EmptyingPlan, str] | None = None
    for scope in scopes_of(known.policy):
        found = question.on(ground_of(scene_of(known.facts(scope), time.time())), until)
        if found is not None and (best is None or _worth(found[0]) > _worth(best[0])):
            best = found
    return best


def _worth(plan: EmptyingPlan) -> tuple[bool, int]:
    return plan.reached, plan.gained


def _unknown(cluster: Cluster, gpu_model: str, job: uuid.UUID | None) -> Invalid:
    if job is not None:
        detail = f"No job {job} waits for GPUs on cluster “{cluster.name}”."
        return Invalid.field("job", detail)
    detail = f"Cluster “{cluster.name}” has no node of {gpu_model}."
    return Invalid.field("gpu_type", detail)


def _told(viewer: User, plan: EmptyingPlan, model: str) -> Defragmentation:
    jobs = JobsTold(viewer, [*(move.job for move in plan.moves), *plan.starts])

    def moving(move: JobMove) -> MovingJob:
        notice_s = jobs.notices.get(move.job, 0.0)
        told = jobs.one(move.job)
        return MovingJob(told, move.pods, move.whole, move.lost_gpu_s, notice_s, move.targets)

    return Defragmentation(
        timezone.now(),
        model,
        plan.nodes,
        [moving(move) for move in plan.moves],
        jobs.of(plan.starts),
        plan.lost_gpu_s,
        plan.before,
        plan.after,
        plan.gained,
        plan.reached,
    )
