"""Jobs for pods that somebody else made (docs/decisions/0015-plain-pods.md, 0026).

Called inside the transaction of a pass, under its lease. The id of the job is the uid of the pod,
or comes of the uids of its gang: pods never become two jobs, whoever offers them again.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduling.engine.states import HOLDING, TERMINAL, WAITING, JobState
from scheduling.engine.verdict import counted
from scheduling.kube.seam import PodFacts
from scheduling.kube.translate.manifests import TENANT
from scheduling.kube.translate.plain_pods import GANG, GANG_SIZE
from scheduling.kube.workloads.members import gang_of, is_elastic, members
from scheduling.models import Cluster, Job, JobEvent, JobPod, PodSet
from scheduling.models.jobs import CANCELLED
from scheduling.queries.wording import in_state
from scheduling.services.clusters import namespace_rights
from scheduling.services.common.chunks import CHUNK, chunks
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.common.lease import Lease
from scheduling.services.jobs.capacity import Pool, pools, refuse_what_never_fits
from scheduling.services.jobs.orders import (
    Order,
    refuse_inactive,
    refuse_unknown_gpu_types,
    rows_of,
    submitted,
)
from scheduling.services.jobs.priority_limits import refuse_too_high
from scheduling.services.jobs.spec import job_spec
from scheduling.services.jobs.waiting_limits import refuse_too_many_waiting
from scheduling.services.plain_pods.follow import follow, follow_queue, why_held
from scheduling.services.plain_pods.gangs import groups_of, pod_sets_of
from scheduling.services.plain_pods.queue_names import QueueNames
from scheduling.services.plain_pods.rules import refuse_what_may_not_be_named
from scheduling.services.plain_pods.spec import (
    PodSets,
    Refused,
    document_of,
    hold_of,
    refusal_of,
)
from scheduling.services.queues.entry import entered, take_in
from scheduling.session.memory.live import Cause, Offer
from scheduling.session.pods.plain import GANG_INCOMPLETE, LOST_ONE
from tenants.errors import DomainError
from tenants.models import Tenant


def take_up(lease: Lease, offers: Sequence[Offer], now: datetime) -> list[JobEvent]:
    """Make a job of each pod, or gang of pods, that has none, or have the job follow its pod; the
    answers are written into the offers. Returns the events of the jobs, to be written."""
    if not offers:
        return []
    known, labels = _jobs_of([pod.uid for offer in offers for pod in offer.pods])
    cluster = Cluster.objects.get(id=lease.cluster_id)
    place = _Place(cluster, pools(cluster))
    events: list[JobEvent] = []
    for offer in offers:
        free: list[PodFacts] = []
        waiting: dict[Job, list[PodFacts]] = {}
        for pod in offer.pods:
            job = known.get(pod.uid)
            if job is None:
                free.append(pod)
            elif job.cluster_id != cluster.pk:
                continue  # the same cluster under another name; that one has it
            elif _lets_go(job):
                free.append(pod)
            elif job.state in TERMINAL:
                offer.over[pod.uid] = _end_of(job)
            elif job.state in WAITING:
                waiting.setdefault(job, []).append(pod)
        for job, pods in waiting.items():
            if not job.pod_gang:
                events += follow(cluster, job, offer, pods[0], now)
            known_by = [(pod, labels[pod.uid]) for pod in pods]
            events += follow_queue(cluster, job, offer, known_by, now)
        for pods in groups_of(free):
            for unit in _units(cluster, pods):
                # A microsecond apart, so that they stand in the queue in their order.
                at = now + timedelta(microseconds=len(events))
                try:
                    events.append(_new_job(place, offer, unit, known, at))
                except Refused as refused:
                    causes = {p.uid: refused.own.get(p.uid, refused.cause) for p in unit.pods}
                    offer.refused.update(causes)
    if events:
        ring_after_commit(cluster.pk)
    return events


def _jobs_of(uids: Sequence[str]) -> tuple[dict[str, Job], dict[str, dict[str, str]]]:
    """By uid the last job of each of these pods that has, or had, one, and the labels by which it
    knows the pod."""
    last: dict[str, uuid.UUID] = {}
    labels: dict[str, dict[str, str]] = {}
    for some in chunks(uids):
        rows = JobPod.objects.filter(uid__in=some).order_by("pk")
        for uid, job_id, known in rows.values_list("uid", "job_id", "labels"):
            last[str(uid)], labels[str(uid)] = job_id, known
    jobs: dict[uuid.UUID, Job] = {}
    for ids in chunks(sorted(set(last.values()))):
        rows_of_jobs = Job.objects.select_for_update().filter(id__in=ids)
        jobs.update((job.pk, job) for job in rows_of_jobs)
    return {uid: jobs[job_id] for uid, job_id in last.items()}, labels


def _lets_go(job: Job) -> bool:
    """Whether its pods may be taken up again: a gang that lost one before it had places."""
    ended = bool(job.pod_gang) and job.state in TERMINAL and job.admitted_at is None
    return ended and job.reason in LOST_ONE


def _beside(offer: Offer, pods: Sequence[PodFacts], known: Mapping[str, Job]) -> str:
    """What is to be told of other pods that wait and name the gang of these."""
    mine = {pod.uid for pod in pods}
    others = [pod for pod in offer.pods if pod.uid not in mine]
    has_job = [pod for pod in others if pod.uid in known and not _lets_go(known[pod.uid])]
    mine.update(pod.uid for pod in has_job)
    left = [pod.labels.get(TENANT, "") for pod in others if pod.uid not in mine]
    parts = []
    if has_job:
        count = counted(len(has_job), "pod", "pods")
        parts.append(f"Job {known[has_job[0].uid].pk} has {count} of that name already.")
    if left:
        count, names = counted(len(left), "pod", "pods"), ", ".join(sorted({*left} - {""}))
        parts.append(f"Another gang has that name: {count} of another tenant ({names or 'none'}).")
    return " ".join(parts)


@dataclass(frozen=True, slots=True)
class _Unit:
    """Pods that become one job. `gang`: its name, "" = it is one pod by itself. `behind`: the pods
    that they wait for before they may become one, "" = none."""

    pods: Sequence[PodFacts]
    gang: str
    behind: str = ""


def _units(cluster: Cluster, pods: Sequence[PodFacts]) -> list[_Unit]:
    """The jobs that waiting pods of one gang become: all of them one, or, where it can do with
    fewer, its minimum one, and when that has places each other pod one."""
    gang = gang_of(pods[0])
    if not gang or not is_elastic(pods):
        return [_Unit(pods, gang)]
    open_jobs = Job.objects.filter(
        cluster=cluster, pod_namespace=pods[0].namespace, pod_gang=gang
    ).exclude(state__in=TERMINAL)
    states = set(open_jobs.values_list("state", flat=True))
    if states & HOLDING:
        return [_Unit([pod], "") for pod in pods]
    if states:
        return [_Unit(pods, gang, behind=gang)]
    found = members(pods)
    first = _Unit(found.gang, gang)
    return [first, _Unit(found.others, gang, behind=gang)] if found.others else [first]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the pods are to run."""

    cluster: Cluster
    installed: Mapping[str, Pool]


def _new_job(
    place: _Place, offer: Offer, unit: _Unit, known: Mapping[str, Job], at: datetime
) -> JobEvent:
    pods, gang = unit.pods, unit.gang
    if unit.behind:
        text = (
            f"The pod is beyond the minimum of gang {unit.behind}: it follows when that has places."
        )
        raise Refused(GANG_INCOMPLETE, text)
    cluster = place.cluster
    named = all(TENANT in pod.labels for pod in pods)
    of_namespace = "" if named else namespace_rights.only_tenant(cluster, pods[0].namespace)
    queues = QueueNames(cluster.name, cluster.queue_map, of_namespace)
    sets = pod_sets_of(pods, _beside(offer, pods, known), alone=not gang, queues=queues)
    order = _accepted(place, sets)
    first = sets[0][0].pod
    assert first.plain is not None
    of_pods = {
        "id": _id_of(gang, pods, known),
        "pod_namespace": first.namespace,
        "pod_name": first.name,
        "pod_gang": gang,
        "pod_hold": hold_of(first.plain),
    }
    job, rows = rows_of(None, order, at, **of_pods)
    for name, value in why_held(job.pod_hold, at).items():
        setattr(job, name, value)
    try:
        refuse_too_many_waiting(order.tenant, 1)
        take_in(order.queue, 1)
    except DomainError as error:
        raise Refused("TooManyWaiting", error.detail) from None
    job.save(force_insert=True)
    PodSet.objects.bulk_create(rows)
    JobPod.objects.bulk_create(
        [
            JobPod(
                job=job,
                pod_set=index,
                ordinal=ordinal,
                uid=one.pod.uid,
                name=one.pod.name,
                labels=dict(one.pod.labels),
            )
            for index, part in enumerate(sets)
            for ordinal, one in enumerate(part)
        ],
        batch_size=CHUNK,
    )
    event = submitted(None, job)
    event.message = f"Taken up from pod {first.namespace}/{first.name}."
    if gang:
        count = counted(len(pods), "pod", "pods")
        event.message = f"Taken up from {count} of gang {first.namespace}/{gang}."
    return event


def _id_of(gang: str, pods: Sequence[PodFacts], known: Mapping[str, Job]) -> uuid.UUID:
    """The id of their job; of a gang, another one than of the jobs that have let its pods go."""
    if not gang:
        return uuid.UUID(pods[0].uid)
    earlier = {str(known[pod.uid].pk) for pod in pods if pod.uid in known}
    parts = sorted(earlier.union(pod.uid for pod in pods))
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{GANG}/{','.join(parts)}")


def _accepted(place: _Place, sets: PodSets) -> Order:
    name = sets[0][0].of_job["tenant"]
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None:
        text = f"There is no tenant “{name}”. Set the label kant.io/tenant to one that there is."
        raise Refused("UnknownTenant", text)
    try:
        refuse_inactive(tenant)
    except DomainError as error:
        raise Refused("TenantInactive", error.detail) from None
    namespace = sets[0][0].pod.namespace
    if no := namespace_rights.refusal(place.cluster, namespace, tenant):
        raise Refused("TenantNotAllowed", no)
    pods = [(one.pod, one.of_job["priority"]) for part in sets for one in part]
    refuse_what_may_not_be_named(place.cluster.job_rules, pods)
    return _order(place, tenant, sets)


def _order(place: _Place, tenant: Tenant, sets: PodSets) -> Order:
    try:
        document = document_of(sets, place.cluster.name)
        queue, spec = entered(None, tenant, document, job_spec(document))
        refuse_unknown_gpu_types(spec)
        refuse_what_never_fits(place.cluster, spec, place.installed, _apart(sets[0][0].pod))
        refuse_too_high(tenant.pk, spec.job.priority)
    except DomainError as error:
        raise refusal_of(error, sets) from None
    return Order(spec, tenant, place.cluster, queue)


def _apart(pod: PodFacts) -> str:
    """How pods of its gang are made to start one by one."""
    if GANG in pod.labels or not gang_of(pod):
        return f"leave {GANG} and {GANG_SIZE} out"
    return f'set the annotation {GANG_SIZE} to "1"'


def _end_of(job: Job) -> Cause:
    reason = CANCELLED if job.state == JobState.CANCELLED else job.reason or "JobOver"
    why = f": {job.message}" if job.message else ""
    return Cause(reason, f"Its job is {in_state(job.state)}{why}")
