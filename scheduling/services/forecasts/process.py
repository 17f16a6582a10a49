"""The process that forecasts, answers what-if questions, and moves jobs between clusters.

It is a child of the worker, because runs ahead take a core for seconds.
"""

import logging
import time
from functools import partial

from django.db import Error, connection
from django.utils import timezone

from scheduling.models import Cluster
from scheduling.queries.whatif import line
from scheduling.queries.whatif.state import KeptState
from scheduling.services.cluster_choice import moves
from scheduling.services.common.child import WorkerChild, is_gone
from scheduling.services.forecasts.answers import Answers
from scheduling.services.forecasts.forecaster import Forecaster, claim, is_wanted, let_go
from tenants.outage import trouble_of

log = logging.getLogger(__name__)

LOOK_S = 1.0
IDLE_S = 60.0  # without waiting jobs, the process ends after this

_child = WorkerChild("keep_forecasts")


def start_if_wanted() -> None:
    """Start the process if it is wanted.

    It is if jobs wait without forecasts, jobs may move elsewhere, or somebody asks a what-if
    question.
    """
    now = timezone.now()
    wanted = is_wanted(now) or moves.is_wanted(now) or any(map(line.is_wanted, _active()))
    if not _child.lives and wanted:
        _child.start()


def keep(parent: int | None) -> None:
    """Forecast and answer until no job waits and nobody asks, or the parent is gone."""
    answers = Answers(line.open_desk())
    forecaster = Forecaster(answers=answers)
    mover = moves.Mover(partial(_kept_here, forecaster, answers))
    wanted_at = time.monotonic()
    while not is_gone(parent) and time.monotonic() < wanted_at + IDLE_S:
        try:
            turns = forecaster.turn(), mover.turn(), _keep_states(forecaster, answers)
            if any(turns):
                wanted_at = time.monotonic()
            until = time.monotonic() + LOOK_S
            while (left := until - time.monotonic()) > 0:
                answers.turn(left)
        except Error as error:
            # The last answers stay, with their time; the next turn reconnects.
            trouble = trouble_of(error)
            log.exception("a turn failed: %s", trouble.said if trouble else "a fault of Kant")
            connection.close()
            time.sleep(LOOK_S)
    answers.close()
    let_go(forecaster.holder)


def _keep_states(forecaster: Forecaster, answers: Answers) -> int:
    """Refresh the states that somebody asks for; return how many states there are."""
    answers.drop_unwanted()
    lately, kept = answers.asked_lately(), answers.clusters
    active = Cluster.objects.filter(is_active=True).order_by("pk")
    answers.wanted.update(c.pk for c in active if c.pk not in kept and line.is_wanted(c.pk))
    for cluster in active:
        due = cluster.pk in lately or cluster.pk in answers.wanted
        if due and claim(cluster, forecaster.holder, timezone.now()):
            answers.keep(cluster)
    answers.wanted.clear()
    return len(answers.clusters)


def _kept_here(forecaster: Forecaster, answers: Answers, cluster: Cluster) -> KeptState | None:
    """Return the state of a cluster, unless another process has claimed it."""
    mine = claim(cluster, forecaster.holder, timezone.now())
    return answers.keep(cluster) if mine else None


def _active() -> list[int]:
    return list(Cluster.objects.filter(is_active=True).values_list("pk", flat=True))
