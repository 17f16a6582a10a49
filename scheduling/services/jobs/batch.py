"""Many unlike jobs submitted at once, each with an answer of its own."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.utils import timezone

from scheduling.job_fields.definition import MAX_ARRAY
from scheduling.models import Job
from scheduling.queries.selectors import JobArray
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.jobs.acceptance import Acceptance
from scheduling.services.jobs.intake import NewJobs, WaitingRoom
from scheduling.services.jobs.orders import Order
from scheduling.services.jobs.submit import ordered_array, ordered_job
from tenants.errors import DomainError, Invalid
from tenants.models import User
from tenants.services.transactions import unit_of_work

MOST_DOCUMENTS = 1000
MOST_JOBS = MAX_ARRAY  # of one call, those of its arrays together

Answer = Job | JobArray | DomainError


def submit_batch(
    actor: User, documents: Sequence[Mapping[str, Any]], *, dry_run: bool = False
) -> list[Answer]:
    """Accept each of the job documents for itself, at most MOST_DOCUMENTS, in their order.

    Returns for each the job, the array of a document with `array`, or why it is refused, as
    `submit_job` raises it. The accepted ones are written together, by as many statements for many
    as for one, and stand in the queue in their order. Raises Conflict, and takes none, where what
    one refers to is deleted meanwhile.
    """
    acceptance = Acceptance(actor, documents)
    answers: list[Answer | Order] = []
    left = MOST_JOBS
    for document in documents:
        try:
            order = acceptance.order_of(document)
            if _jobs(order) > left:
                raise Invalid.field(
                    "array",
                    f"One call submits at most {MOST_JOBS:,} jobs, arrays included; the documents "
                    f"before leave {left:,}. Submit this one in another call.",
                )
            answers.append(order)
            left -= _jobs(order)
        except DomainError as error:
            answers.append(error)
    orders = [answer for answer in answers if isinstance(answer, Order)]
    with unit_of_work(dry_run):
        acceptance.keep_beside(orders)
        room, jobs, at = WaitingRoom(acceptance.tree, orders), NewJobs(), timezone.now()
        given: list[Answer] = []
        for answer in answers:
            if not isinstance(answer, Order):
                given.append(answer)
                continue
            try:
                room.take(answer, _jobs(answer))
            except DomainError as error:
                given.append(error)
                continue
            if answer.spec.job.array is None:
                given.append(ordered_job(actor, answer, at, jobs))
            else:
                made, at = ordered_array(actor, answer, at, jobs)
                given.append(made)
            at += timedelta(microseconds=1)
        jobs.write()
        for cluster_id in {order.cluster.pk for order in orders}:
            ring_after_commit(cluster_id)
    return given


def _jobs(order: Order) -> int:
    array = order.spec.job.array
    return 1 if array is None else array.count
