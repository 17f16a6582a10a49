"""Take up pods that a database restored from an older backup does not know.

A place is written before its pod is made. So a bound pod of Kant's own without a row was placed by
a scheduler whose rows are lost. If its job is known and open, its place is written again and the
job continues with it; otherwise the job would run a second time beside its own pods.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import transaction

from scheduling.engine.placement.fit import share_beyond
from scheduling.engine.states import HOLDING, JobState, after
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import Node, PodPlacement
from scheduling.engine.verdict import counted
from scheduling.kube.seam import PodFacts
from scheduling.kube.translate import manifests
from scheduling.models import Job, JobEvent, Placement
from scheduling.models.held import columns_of
from scheduling.models.jobs import LIVE_PLACEMENTS, PlacementState
from scheduling.services.common.lease import Lease, fence
from scheduling.session.memory import divided, load
from scheduling.session.memory.live import LiveJob, PodKey
from scheduling.session.pods import pod as kant_pods
from scheduling.session.pods.requeue import UNPLACED
from tenants.database.chunks import CHUNK, chunks

log = logging.getLogger(__name__)

REASON = "FoundInCluster"
TEXT = "The cluster has {pods} of it that the database, restored from a backup, did not know"

PodName = tuple[str, str]  # namespace and name


class Found(NamedTuple):
    """A bound pod without a row, and its place by its labels and its binding."""

    facts: PodFacts
    attempt: int
    place: PodPlacement
    gpu_model: str


def take_up_pods(
    lease: Lease,
    pods: Iterable[PodFacts],
    nodes: Mapping[str, Node],
    now: datetime,
    still_leads: Callable[[], None],
) -> None:
    """Write the places of pods that the database has lost.

    `pods`: all pods of the cluster; `nodes`: those of the scope, by name. `still_leads` is called
    before each job. Raises LeaseLost.
    """
    own = {(pod.namespace, pod.name): pod for pod in pods if pod.owned}
    unknown = _without_row(lease, own)
    jobs, _ = load.jobs(unknown)
    for job in jobs:
        still_leads()
        with transaction.atomic():
            fence(lease)
            _take_up(job, unknown[job.id], own, nodes, now)


def _without_row(lease: Lease, pods: Mapping[PodName, PodFacts]) -> dict[str, list[PodFacts]]:
    """Return the pods without a row, by job, for open jobs of the scope."""
    who = {name: kant_pods.identity(pod.labels) for name, pod in pods.items()}
    known = load.versions(lease.cluster_id, lease.scope)
    rows = Placement.objects.filter(
        job__cluster_id=lease.cluster_id, job__scope=lease.scope, state__in=LIVE_PLACEMENTS
    )
    placed = set(rows.values_list("namespace", "pod_name"))
    left = {name: of for name, of in who.items() if of and of[0] in known and name not in placed}
    over = divided.made(pod for _, pod in left)
    found: dict[str, list[PodFacts]] = defaultdict(list)
    for name, of in left.items():
        if name not in over:
            found[of[0]].append(pods[name])
    return found


def _take_up(
    job: LiveJob,
    pods: Sequence[PodFacts],
    there: Mapping[PodName, PodFacts],
    nodes: Mapping[str, Node],
    now: datetime,
) -> None:
    found = _newest(job, pods, nodes)
    live = list(Placement.objects.filter(job_id=job.id, state__in=LIVE_PLACEMENTS))
    alive = {
        (row.pod_set, row.ordinal)
        for row in live
        if (pod := there.get((row.namespace, row.pod_name))) is not None and not pod.finished
    }
    again = [Kind.REQUEUED] if job.state in HOLDING else []
    if job.state in HOLDING and alive:
        more = {
            key: pod
            for key, pod in found.items()
            if key not in alive and pod.facts.namespace == job.namespace
        }
        replaced = [row for row in live if (row.pod_set, row.ordinal) in more]
        if more:
            JobEvent.objects.bulk_create([_event(job, Kind.REASON, job.state, len(more), now)])
            _write(job, more.values(), replaced, now)
    elif _is_whole(job, found):
        attempt = min(pod.attempt for pod in found.values())
        placed = {"attempt": attempt, "admitted_at": now, "held": False, "blocked_since": None}
        if _step(job, [*again, Kind.ADMITTED], placed, len(found), now):
            _write(job, found.values(), live, now)
    else:
        # The pods are leftovers; until they are gone, no other pods of the job may have their
        # names.
        last = max(who[1] for pod in pods if (who := kant_pods.identity(pod.labels)))
        if _step(job, again, {"attempt": max(last, job.attempt)}, len(pods), now):
            _write(job, (), live, now)


def _newest(
    job: LiveJob, pods: Iterable[PodFacts], nodes: Mapping[str, Node]
) -> dict[PodKey, Found]:
    """Return the newest of each pod of the job, without pods that Kant did not make and bind."""
    found: dict[PodKey, Found] = {}
    for facts in pods:
        who = kant_pods.identity(facts.labels)
        if who is None or facts.deleting or facts.node not in nodes:
            continue
        _, attempt, key = who
        try:
            devices, milli, nics = manifests.bound_devices(facts.annotations)
        except ValueError as error:
            log.warning("pod %s of job %s is not taken up: %s", facts.name, job.id, error)
            continue
        if not devices and (facts.gpus or facts.gpu_milli):
            continue  # somebody else bound it
        is_made = facts.name == kant_pods.name_of(job, attempt, *key)
        if is_made and (key not in found or found[key].attempt < attempt):
            node, spec = nodes[facts.node], job.request.pod_sets[key[0]]
            beyond = share_beyond(node.gpu_memory_mib, spec) if devices else 0
            place = PodPlacement(*key, facts.node, devices, milli, nics, beyond)
            found[key] = Found(facts, attempt, place, nodes[facts.node].gpu_model)
    return found


def _is_whole(job: LiveJob, found: Mapping[PodKey, Found]) -> bool:
    """Whether these pods are a placement of the whole job, later than all that the rows know."""
    namespaces = {pod.facts.namespace for pod in found.values()}
    is_later = all(pod.attempt > job.attempt for pod in found.values())
    return len(namespaces) == 1 and is_later and job.request.goes_on_with(found)


def _step(
    job: LiveJob, kinds: Iterable[Kind], columns: dict[str, object], pods: int, now: datetime
) -> bool:
    """Take the job along these steps; return False if somebody else changed it first."""
    state, events = job.state, []
    for kind in kinds:
        events.append(_event(job, kind, state, pods, now))
        state = after(state, kind)
    values: dict[str, object] = {
        "reason": "",
        "message": "",
        "evidence": {},
        "reason_at": now,
        "not_before": None,
    }
    values |= {**UNPLACED, **columns, "state": state.value, "version": job.version + 1}
    row = Job.objects.filter(id=job.id, state=job.state, version=job.version)
    taken = row.update(**values)
    if taken:
        JobEvent.objects.bulk_create(events)
    return bool(taken)


def _write(
    job: LiveJob, new: Collection[Found], replaced: Iterable[Placement], now: datetime
) -> None:
    """Write these places; give back those they replace, as their pods are gone."""
    log.warning("job %s: %d pods are taken up that the database had lost", job.id, len(new))
    for chunk in chunks([row.pk for row in replaced]):
        Placement.objects.filter(id__in=chunk).update(
            state=PlacementState.RELEASED.value, ended_at=now
        )
    rows = (
        Placement(
            job_id=job.id,
            attempt=pod.attempt,
            namespace=pod.facts.namespace,
            pod_name=pod.facts.name,
            pod_uid=pod.facts.uid,
            gpu_model=pod.gpu_model,
            **columns_of(pod.place),
            state=PlacementState.BOUND.value,
            intended_at=now,
            bound_at=now,
            held_from=now,
        )
        for pod in new
    )
    Placement.objects.bulk_create(rows, batch_size=CHUNK)


def _event(job: LiveJob, kind: Kind, state: JobState, pods: int, now: datetime) -> JobEvent:
    return JobEvent(
        job_id=job.id,
        at=now,
        kind=kind.value,
        from_state=state.value,
        to_state=(state if kind is Kind.REASON else after(state, kind)).value,
        reason=REASON,
        message=TEXT.format(pods=counted(pods, "pod", "pods")),
        evidence={"pods": pods},
    )
