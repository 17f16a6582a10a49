"""How a waiting job follows its plain pods when their owners change them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from scheduling.engine.states import JobEventKind
from scheduling.engine.verdict import Reason
from scheduling.kube.seam import PodFacts
from scheduling.kube.workloads.members import natural
from scheduling.models import Cluster, Job, JobEvent, JobPod, PodSet
from scheduling.services.jobs.changes import queue_after
from scheduling.services.plain_pods.gangs import refuse_disagreement
from scheduling.services.plain_pods.queue_names import (
    LABELS,
    QueueNames,
    WrongQueue,
    queue_of,
)
from scheduling.services.plain_pods.rules import refuse_what_may_not_be_named
from scheduling.services.plain_pods.spec import PLACES, Refused, hold_of, refusal_of, where_to
from scheduling.services.queues.entry import take_in
from scheduling.session.memory.live import Offer
from tenants.errors import DomainError

Labels = Mapping[str, str]


def follow(
    cluster: Cluster, job: Job, offer: Offer, pod: PodFacts, now: datetime
) -> list[JobEvent]:
    """Take over what may change on the pod of a waiting job: its scheduling gates and node rules.

    Those who set the gates change the node rules meanwhile. A pod that must no longer be bound is
    refused, and its job is held.
    """
    assert pod.plain is not None
    hold = hold_of(pod.plain)
    changes: dict[str, Any] = {}
    try:
        where = where_to(pod.plain)
        refuse_what_may_not_be_named(cluster.job_rules, [(pod, None)])
        [row] = job.pod_sets.all()
        changes = {name: value for name, value in where.items() if getattr(row, name) != value}
    except Refused as refused:
        cause = offer.refused[pod.uid] = refused.own.get(pod.uid, refused.cause)
        hold = hold or cause.text
    events = []
    if changes:
        PodSet.objects.filter(job=job).update(**changes)
        names = " and ".join(PLACES[name] for name in changes)
        events.append(_event(job, JobEventKind.CHANGED, f"Changed on its pod: {names}.", now))
    if hold != job.pod_hold:
        kind = JobEventKind.HELD if hold else JobEventKind.RELEASED
        events.append(_event(job, kind, hold or "Its pod can be bound now.", now))
    if events:
        job.version += 1
        values = {"pod_hold": hold, "version": job.version, **why_held(hold, now)}
        Job.objects.filter(id=job.pk).update(**values)
    return events


def follow_queue(
    cluster: Cluster,
    job: Job,
    offer: Offer,
    pods: Sequence[tuple[PodFacts, Labels]],
    now: datetime,
) -> list[JobEvent]:
    """Move a waiting job to the queue that its pods now name.

    `pods`: those that wait, each with the labels by which its queue is known. Only changed labels
    count: a job that a person has moved stays there until they change. If the job may not enter the
    queue, the pods with changed labels get the reason, and the job stays where it is.
    """
    changed = [pod for pod, known in pods if _of_queue(pod.labels) != _of_queue(known)]
    if not changed:
        return []
    try:
        name = _named(cluster, job, [pod for pod, _ in pods])
        queue = queue_after(None, job.tenant, [vars(job)], {"queue": name})
        if queue is not None:
            take_in(queue, 1)
    except DomainError as error:
        _refuse(offer, job, changed, refusal_of(error))
        return []
    except Refused as refused:
        _refuse(offer, job, changed, refused)
        return []
    for pod, known in pods:
        kept = {label: value for label, value in known.items() if label not in LABELS}
        rows = JobPod.objects.filter(job=job, uid=pod.uid)
        rows.update(labels=kept | _of_queue(pod.labels))
    if queue is None:
        return []
    text = f"Changed on its {'pods' if len(pods) > 1 else 'pod'}: queue: {job.queue} → {name}."
    job.version += 1
    Job.objects.filter(id=job.pk).update(queue=name, version=job.version)
    return [_event(job, JobEventKind.CHANGED, text, now)]


def why_held(hold: str, now: datetime) -> dict[str, Any]:
    """Return what a job that its pod holds says of itself until the scheduler has seen it."""
    if not hold:
        return {}
    return {"reason": Reason.ON_HOLD.value, "message": hold, "evidence": {}, "reason_at": now}


def _of_queue(labels: Labels) -> dict[str, str]:
    return {name: labels[name] for name in LABELS if name in labels}


def _named(cluster: Cluster, job: Job, pods: Sequence[PodFacts]) -> str:
    """Return the queue that all of the pods name. Raises Refused."""
    names = QueueNames(cluster.name, cluster.queue_map)
    found = []
    for pod in sorted(pods, key=lambda pod: natural(pod.name)):
        try:
            tenant, queue = queue_of(pod, names)
        except WrongQueue as wrong:
            raise Refused(wrong.reason, str(wrong)) from None
        if tenant and tenant != job.tenant.name:
            text = (
                f"{PLACES['queue']}: The labels name queue {tenant}/{queue}, but the job belongs "
                f"to tenant {job.tenant.name}. Create the pod again to change its tenant."
            )
            raise Refused("InvalidPod", text)
        found.append((pod, queue))
    refuse_disagreement(job.pod_gang, "queue", found)
    return found[0][1]


def _refuse(offer: Offer, job: Job, pods: Sequence[PodFacts], refused: Refused) -> None:
    cause = refused.cause
    told = cause._replace(text=f"{cause.text} The job stays in queue {job.queue} until then.")
    for pod in pods:
        offer.refused.setdefault(pod.uid, told)


def _event(job: Job, kind: JobEventKind, message: str, at: datetime) -> JobEvent:
    return JobEvent(
        job=job,
        at=at,
        kind=kind.value,
        from_state=job.state,
        to_state=job.state,
        message=message,
    )
