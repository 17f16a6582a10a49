"""Jobs of several people, submitted at once and written by one transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scheduling.services.jobs.orders import Order
from scheduling.services.jobs.submission.acceptance import Acceptance, CommonGround
from scheduling.services.jobs.submission.written import Made, write_orders
from tenants.errors import DomainError
from tenants.models import User
from tenants.services.joined import EachAlone, nothing_done, one_transaction
from tenants.services.receipts import Receipt, keep, taken

MOST_TOGETHER = 32  # no more rows are told by one JSON text (`bulk.FEW`)


class UsersJob(NamedTuple):
    """A job document, and who submits it. `receipt`: of one that came with a key."""

    actor: User
    document: Mapping[str, Any]
    receipt: Receipt | None = None


def submit_together(jobs: Sequence[UsersJob]) -> list[Made | Exception]:
    """Accept each for itself, in their order: the job, or why it is refused, as `submit_job` raises
    it; EachAlone where it has to be asked alone. All are written by as many statements as one.
    Raises as `one_transaction`, and then none is accepted."""
    with nothing_done():
        ground = CommonGround({job.actor.pk for job in jobs}, [job.document for job in jobs])
        there = taken([job.receipt for job in jobs if job.receipt])
        answers: list[Order | Exception] = []
        for job in jobs:
            if job.receipt is None or job.receipt.whose not in there:
                answers.append(_order(job, ground))
            else:  # it has been answered, or is when those before it here are
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
    # It would hold the leases of its cluster, which several have to take in one order.
    return EachAlone() if order.awaits_movable or order.spec.job.array is not None else order
