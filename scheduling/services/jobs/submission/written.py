"""Turn orders into rows, several of several users in one transaction."""

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.utils import timezone

from scheduling.engine.states import JobState
from scheduling.models import Job
from scheduling.queries.selectors import JobArray
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.jobs.intake import NewJobs, WaitingRoom
from scheduling.services.jobs.orders import Order, jobs_of, rows_of, submitted
from tenants.errors import DomainError
from tenants.models import User
from tenants.tree import Tree

Made = Job | JobArray


def write_order(actor: User, order: Order, tree: Tree) -> Made:
    """Write one order like `write_orders`; raise the error that refuses it."""
    [made] = write_orders(tree, [(actor, order)])
    if isinstance(made, DomainError):
        raise made
    return made


def write_orders(tree: Tree, orders: Sequence[tuple[User, Order]]) -> list[Made | DomainError]:
    """Write the rows that users order, and ring. Must be called in a transaction.

    Returns for each order what was made, or the Conflict that refuses it. Jobs stand in the queue
    in order. `tree`: the tenants of the orders, and all above them.
    """
    room = WaitingRoom(tree, [order for _, order in orders])
    jobs, at = NewJobs(), timezone.now()
    given: list[Made | DomainError] = []
    for actor, order in orders:
        try:
            room.take(order, jobs_of(order))
        except DomainError as error:
            given.append(error)
            continue
        if order.spec.job.array is None:
            given.append(_job(actor, order, at, jobs))
        else:
            made, at = _array(actor, order, at, jobs)
            given.append(made)
        at += timedelta(microseconds=1)
    jobs.write()
    for cluster_id in {order.cluster.pk for _, order in orders}:
        ring_after_commit(cluster_id)
    return given


def _job(actor: User, order: Order, at: datetime, jobs: NewJobs) -> Job:
    """Add the ordered job to those that are written; return it."""
    job, sets = rows_of(actor, order, at)
    jobs.add(job, sets, submitted(actor, job))
    # What was just written need not be read again to be shown.
    job._prefetched_objects_cache = {"pod_sets": sets}  # type: ignore[attr-defined]
    return job


def _array(actor: User, order: Order, at: datetime, jobs: NewJobs) -> tuple[JobArray, datetime]:
    """Add the jobs of the ordered array to those that are written.

    Returns the array and the time of its last job. The order must have an `array`.
    """
    assert order.spec.job.array is not None
    count = order.spec.job.array.count
    job, sets = rows_of(actor, order, at)
    job.array_id = uuid.uuid4()
    last = jobs.add_array(job, sets, submitted(actor, job), count)
    array = JobArray(
        id=job.array_id,
        name=order.spec.job.name,
        tenant=order.tenant.name,
        cluster=order.cluster.name,
        user=actor.get_username(),
        count=count,
        gpu_milli=count * order.spec.gpu_milli,
        states={JobState.PENDING.value: count},
        submitted_at=at,
    )
    return array, last
