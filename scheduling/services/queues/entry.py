"""What a queue gives to jobs that enter it, and what it does not take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.engine.states import WAITING
from scheduling.engine.types import DEFAULT_QUEUE
from scheduling.models import Job
from scheduling.services.jobs.validation import JobSpec, job_spec
from tenants.errors import Conflict, FieldError, Invalid, NotAllowed
from tenants.models import Identity, Queue, QueueState, Tenant, User
from tenants.permissions import Access, strongest

# The fields of a job that a queue checks; also the names of their columns.
LOOKED_AT = ("kind", "priority", "run_limit_s")


@dataclass(frozen=True, slots=True)
class Submitter:
    """Who submits. The name and the groups are looked up only if a queue asks for them."""

    user: User
    access: Access

    def groups(self) -> set[str]:
        """Return the user's groups here and, as of the last sign-in, at the OpenID provider."""
        told = Identity.objects.filter(user=self.user).values_list("groups", flat=True)
        names = {name for groups in told for name in groups}
        return names.union(self.user.groups.values_list("name", flat=True))


def fitted(queue: Queue, document: Mapping[str, Any], spec: JobSpec) -> JobSpec:
    """Return the job with the queue's defaults for what it leaves out.

    Raises Invalid if the queue does not take such jobs.
    """
    given = {name for name, value in document.items() if value is not None}
    defaults = {n: v for n, v in defaults_of(queue).items() if n not in given}
    if defaults:
        spec = job_spec({**document, **defaults})
    refuse_unfit(queue, {name: getattr(spec.job, name) for name in LOOKED_AT})
    return spec


def queue_to_enter(who: Submitter | None, tenant: Tenant, name: str) -> Queue:
    """Return the queue of a name. `who` None: Kant itself, for a pod that nobody submitted.

    Raises Invalid (no such queue), NotAllowed, Conflict (it takes no jobs now).
    """
    return entered(who, tenant, name, Queue.objects.filter(tenant=tenant, name=name).first())


def entered(who: Submitter | None, tenant: Tenant, name: str, queue: Queue | None) -> Queue:
    """Check a queue that was read (None = there is none) like `queue_to_enter`."""
    if queue is None and name == DEFAULT_QUEUE:
        # Its tenant was made by a version of Kant without queues, or was just deleted: `take_in`
        # writes the row, in the transaction of the jobs.
        return Queue(tenant=tenant, name=name)
    if queue is None:
        names = Queue.objects.filter(tenant=tenant).values_list("name", flat=True)
        raise Invalid.field(
            "queue",
            f"Tenant “{tenant.name}” has no queue “{name}”. Its queues: {', '.join(names)}.",
        )
    refuse_entry(who, tenant, queue)
    return queue


def refuse_entry(who: Submitter | None, tenant: Tenant, queue: Queue) -> None:
    """Raise NotAllowed or Conflict like `queue_to_enter`, for an existing queue."""
    if not may_enter(who, queue):
        raise NotAllowed(
            f"You may not use queue “{queue.name}” of tenant “{tenant.name}”. Those you may use: "
            f"{_to_enter(who, tenant)}. Tenant admins decide who may use a queue."
        )
    refuse_closed(who, tenant, queue)


def _to_enter(who: Submitter | None, tenant: Tenant) -> str:
    """Return the names of the queues that take jobs of this submitter now."""
    taking = Queue.objects.filter(tenant=tenant, state__in=(QueueState.OPEN, QueueState.HELD))
    return ", ".join([queue.name for queue in taking if may_enter(who, queue)]) or "none"


def may_enter(who: Submitter | None, queue: Queue) -> bool:
    """Whether someone who may submit to the tenant may submit to this queue of it."""
    if not (queue.roles or queue.users or queue.groups):
        return True
    if who is None:
        return False
    # Tenant admins could let themselves in.
    if who.access.may_administer(queue.tenant_id) or who.user.get_username() in queue.users:
        return True
    held = who.access.role_in(queue.tenant_id)
    # A role includes those below it.
    if held is not None and any(strongest((held, role)) == held for role in queue.roles):
        return True
    return bool(queue.groups) and not who.groups().isdisjoint(queue.groups)


def refuse_closed(who: Submitter | None, tenant: Tenant, queue: Queue) -> None:
    """Raise Conflict if the queue takes no more jobs."""
    if queue.state not in (QueueState.DRAINING, QueueState.CLOSED):
        return
    why = f": {queue.state_reason.rstrip('.')}" if queue.state_reason else ""
    by = f", by {queue.state_by}" if queue.state_by else ""
    since = f" since {queue.state_at:%Y-%m-%d %H:%M} UTC" if queue.state_at else ""
    raise Conflict(
        f"Queue “{queue.name}” of tenant “{tenant.name}” accepts no jobs: it is "
        f"{queue.state}{since}{by}{why}. Name another queue ({_to_enter(who, tenant)}), or ask "
        "a tenant admin to open this one."
    )


def defaults_of(queue: Queue) -> dict[str, Any]:
    """Return {field of a job: what the queue gives to jobs that leave it out}.

    If there is a maximum run time and no default, a job gets the maximum.
    """
    limit = queue.default_run_limit_s
    given = {
        "priority": queue.default_priority,
        "run_limit_s": queue.max_run_limit_s if limit is None else limit,
        "preemptible": queue.default_preemptible,
    }
    return {name: value for name, value in given.items() if value is not None}


def given_to(job: Job) -> set[str]:
    """Return the fields that the job's queue gives to jobs that leave them out."""
    queue = Queue.objects.filter(tenant=job.tenant_id, name=job.queue).first()
    return set() if queue is None else set(defaults_of(queue))


def refuse_unfit(queue: Queue, asked: Mapping[str, Any]) -> None:
    """Raise Invalid naming each field of `asked`, of LOOKED_AT, that the queue does not allow."""
    faults = []
    name = f"Queue “{queue.name}”"
    if "kind" in asked and queue.kinds and asked["kind"] not in queue.kinds:
        text = f"{name} accepts only jobs of kind {', '.join(queue.kinds)}. Name another queue."
        faults.append(FieldError(("kind",), text))
    most = queue.max_priority
    if "priority" in asked and most is not None and asked["priority"] > most:
        text = f"Jobs of queue “{queue.name}” may ask for at most {most}. Ask for less, or name "
        faults.append(FieldError(("priority",), f"{text}another queue."))
    longest, limit = queue.max_run_limit_s, asked.get("run_limit_s")
    if "run_limit_s" in asked and longest is not None and (limit is None or limit > longest):
        asks = "no limit is" if limit is None else f"{limit} s are"
        text = f"Jobs of queue “{queue.name}” run for at most {longest} s; {asks} more. "
        faults.append(FieldError(("run_limit_s",), f"{text}Ask for less, or name another queue."))
    if faults:
        raise Invalid.fields(faults)


def take_in(queue: Queue, more: int) -> None:
    """Check that `more` jobs may wait in the queue; write a default queue that does not exist yet.

    Raises Conflict if they are too many for the queue, or if it was closed or deleted meanwhile.
    Must be called in the transaction that writes the jobs: it locks the row, so that submissions
    and changes of the queue at the same time see each other.
    """
    if queue.pk is None:
        queue, _ = Queue.objects.get_or_create(tenant=queue.tenant, name=queue.name)
    if queue.max_waiting is None and queue.name == DEFAULT_QUEUE:
        return  # it cannot be deleted
    now = still_open(queue, Queue.objects.select_for_update().filter(pk=queue.pk).first())
    if now.max_waiting is None:
        return
    waits = Job.objects.filter(tenant=now.tenant, queue=now.name, state__in=list(WAITING))
    refuse_more(now.tenant, now, waits.count(), more)


def still_open(queue: Queue, now: Queue | None) -> Queue:
    """Return the queue as it is `now`, its row locked.

    Raises Conflict if it was deleted or closed since it was read.
    """
    if now is None:
        raise Conflict(f"Queue “{queue.name}” has just been deleted. Name another queue.")
    refuse_closed(None, now.tenant, now)
    return now


def refuse_more(tenant: Tenant, queue: Queue, waiting: int, more: int) -> None:
    """Raise Conflict if that many more jobs may not wait in the queue."""
    if queue.max_waiting is not None and waiting + more > queue.max_waiting:
        raise Conflict(
            f"Queue “{queue.name}” of tenant “{tenant.name}” has {waiting} waiting jobs of at "
            f"most {queue.max_waiting}; {more} more would exceed the limit. Wait until some "
            "have started, cancel some, name another queue, or ask for a higher max_waiting of "
            "this one.",
        )
