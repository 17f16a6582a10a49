"""Submit many unlike jobs at once, each with its own answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from scheduling.job_fields.definition import MAX_ARRAY
from scheduling.services.jobs.orders import Order, jobs_of
from scheduling.services.jobs.submission.acceptance import Acceptance
from scheduling.services.jobs.submission.written import Made, write_orders
from tenants.errors import DomainError, Invalid
from tenants.models import User
from tenants.services.transactions import unit_of_work

MOST_DOCUMENTS = 1000
MOST_JOBS = MAX_ARRAY  # in one call, jobs of arrays included


def submit_batch(
    actor: User, documents: Sequence[Mapping[str, Any]], *, dry_run: bool = False
) -> list[Made | DomainError]:
    """Accept each job document by itself, at most MOST_DOCUMENTS, in order.

    Returns for each the job, the array of a document with `array`, or the error that refuses it, as
    `submit_job` raises it. The accepted ones are written together, by as many statements as a
    single job takes, and stand in the queue in order. Raises Conflict, and accepts none, if
    something that one refers to is deleted meanwhile.
    """
    acceptance = Acceptance(actor, documents)
    answers: list[DomainError | Order] = []
    left = MOST_JOBS
    for document in documents:
        try:
            order = acceptance.order_of(document)
            if jobs_of(order) > left:
                raise Invalid.field(
                    "array",
                    f"One request can submit at most {MOST_JOBS:,} jobs, jobs of arrays included; "
                    f"{left:,} are left for this document. Submit it in another request.",
                )
            answers.append(order)
            left -= jobs_of(order)
        except DomainError as error:
            answers.append(error)
    orders = [answer for answer in answers if isinstance(answer, Order)]
    with unit_of_work(dry_run):
        acceptance.keep_beside(orders)
        made = iter(write_orders(acceptance.tree, [(actor, order) for order in orders]))
        return [next(made) if isinstance(answer, Order) else answer for answer in answers]
