"""Take in new jobs in a transaction: who may still wait, and the rows to write."""

import uuid
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta

from scheduling.engine.types import DEFAULT_QUEUE
from scheduling.models import Job, JobEvent, PodSet
from scheduling.services.common.bulk import Rows, write_together
from scheduling.services.jobs.orders import ARRAY_COUNT, ARRAY_INDEX, Order
from scheduling.services.jobs.waiting_limits import refuse_more, waiting_in
from scheduling.services.queues import entry
from tenants.models import Queue, Tenant
from tenants.services import locks
from tenants.tree import Tree


class WaitingRoom:
    """How many more jobs may wait. Make it in the transaction that writes the jobs.

    It locks the rows of limited tenants and queues, each once and in one order, so that submissions
    at the same time count each other. `tree`: the tenants of the orders, and all above them.
    """

    def __init__(self, tree: Tree, orders: Collection[Order]) -> None:
        of = {order.tenant.pk for order in orders}
        above = {b.id for each in of for b in tree.above(each) if b.max_waiting is not None}
        self._tenants = {t.pk: t for t in _locked_tenants(above)} if above else {}
        # Everything below a tenant counts against its limit.
        self._tree = Tree() if self._tenants else tree
        named = {o.queue.pk for o in orders if _may_go_or_is_limited(o.queue)}
        if named:
            locks.keep(Tenant, of)
        rows = Queue.objects.select_for_update(of=("self",)).select_related("tenant")
        self._queues = {q.pk: q for q in rows.filter(pk__in=named).order_by("id")} if named else {}
        self._waiting = self._counted()

    def take(self, order: Order, more: int) -> None:
        """Count `more` waiting jobs.

        Raises Conflict if they are too many for the tenant, one above it or the queue, or if the
        queue has been closed or deleted meanwhile.
        """
        limited = sorted(b.id for b in self._tree.above(order.tenant.pk) if b.id in self._tenants)
        for tenant_id in limited:
            below = self._tree.below(tenant_id)
            waiting = sum(n for (tenant, _), n in self._waiting.items() if tenant in below)
            refuse_more(self._tenants[tenant_id], waiting, more)
        key = order.tenant.pk, order.queue.name
        if order.queue.pk is None:
            entry.take_in(order.queue, more)  # writes the row
        elif _may_go_or_is_limited(order.queue):
            now = entry.still_open(order.queue, self._queues.get(order.queue.pk))
            entry.refuse_more(now.tenant, now, self._waiting[key], more)
        self._waiting[key] += more

    def _counted(self) -> Counter[tuple[int, str]]:
        """Return the numbers of waiting jobs by (tenant, queue), of limited ones only."""
        limited = {q.tenant_id for q in self._queues.values() if q.max_waiting is not None}
        ids = limited.union(*(self._tree.below(tenant_id) for tenant_id in self._tenants))
        return waiting_in(ids) if ids else Counter()


def _locked_tenants(ids: Collection[int]) -> list[Tenant]:
    rows = Tenant.objects.select_for_update(no_key=True).filter(id__in=ids)
    return list(rows.exclude(max_waiting=None).order_by("id"))


def _may_go_or_is_limited(queue: Queue) -> bool:
    """Whether submissions must look at the queue: it may be deleted, or has a limit.

    A default queue cannot be deleted.
    """
    return queue.pk is not None and (queue.name != DEFAULT_QUEUE or queue.max_waiting is not None)


class NewJobs:
    """Rows of new jobs, written by one statement for each table, or one in all if they are few."""

    def __init__(self) -> None:
        self._jobs, self._sets, self._events = Rows(Job), Rows(PodSet), Rows(JobEvent)

    def add(self, job: Job, sets: list[PodSet], event: JobEvent) -> None:
        self._jobs.add(self._jobs.prepare(job))
        for row in sets:
            self._sets.add(self._sets.prepare(row))
        self._events.add(self._events.prepare(event))

    def add_array(self, job: Job, sets: list[PodSet], event: JobEvent, count: int) -> datetime:
        """Add `count` copies of a job; return the time of the last.

        They stand in the queue by their index, each a microsecond after the one before.
        """
        of_job, of_event = self._jobs.prepare(job), self._events.prepare(event)
        of_sets = [(row, self._sets.prepare(row)) for row in sets]
        at = job.submitted_at
        for i in range(count):
            job_id, at = uuid.uuid4(), job.submitted_at + timedelta(microseconds=i)
            its = {"name": f"{job.name}-{i}", "array_index": i, "submitted_at": at}
            self._jobs.add(of_job, id=job_id, **its)
            for row, prepared in of_sets:
                env = {**row.env, ARRAY_COUNT: str(count), ARRAY_INDEX: str(i)}
                self._sets.add(prepared, job_id=job_id, env=env)
            self._events.add(of_event, job_id=job_id, at=at)
        return at

    def write(self) -> None:
        write_together(self._jobs, self._sets, self._events)
