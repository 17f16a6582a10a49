"""Submit jobs of several users at once and write them in one transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scheduling.services.jobs.orders import Order
from scheduling.services.jobs.submission.acceptance import Acceptance, CommonGround
from scheduling.services.jobs.submission.written import Made, write_orders
from tenants.errors import DomainError
from tenants.models import User
from tenants.services.joined import EachAlone, nothing_done, one_transaction
from tenants.services.receipts import Receipt, keep, taken

MOST_TOGETHER = 32  # up to this many rows go as one JSON text (`bulk.FEW`)


class UsersJob(NamedTuple):
    """A job document and its submitter. `receipt`: for a request that came with a key."""

    actor: User
    document: Mapping[str, Any]
    receipt: Receipt | None = None


def submit_together(jobs: Sequence[UsersJob]) -> list[Made | Exception]:
    """Accept each job by itself, in order; write all by as many statements as one job takes.

    Returns for each the job, the error that refuses it (as `submit_job` raises it), or EachAlone if
    it must be submitted alone. Raises like `one_transaction`, and then accepts none.
    """
    with nothing_done():
        ground = CommonGround({job.actor.pk for job in jobs}, [job.document for job in jobs])
        there = taken([job.receipt for job in jobs if job.receipt])
        answers: list[Order | Exception] = []
        for job in jobs:
            if job.receipt is None or job.receipt.whose not in there:
                answers.append(_order(job, ground))
            else:  # answered before, or will be by an earlier one here
                answers.append(EachAlone())
            if job.receipt:
                there.add(job.receipt.whose)
    asked = [
        (job, order) for job, order in zip(jobs, answers, strict=True) if isinstance(order, Order)
    ]
    if not asked:
        return [answer for answer in answers if isinstance(answer, Exception)]
    with one_transaction():
        given = write_orders(ground.tree, [(job.actor, order) for job, order in asked])
        keep(
            [
                (job.receipt, made)
                for (job, _), made in zip(asked, given, strict=True)
                if job.receipt and not isinstance(made, DomainError)
            ]
        )
        of_orders = iter(given)
        return [next(of_orders) if isinstance(answer, Order) else answer for answer in answers]


def _order(job: UsersJob, ground: CommonGround) -> Order | Exception:
    try:
        order = Acceptance(job.actor, [job.document], ground).order_of(job.document)
    except DomainError as error:
        return error
    # Such orders hold the leases of their cluster; several would have to take them in one order.
    return EachAlone() if order.awaits_movable or order.spec.job.array is not None else order
