"""At the start of a session: reconcile intents with what the API says."""

from collections.abc import Sequence, Set

from scheduling.engine.decisions import Reservation
from scheduling.engine.states import HOLDING, WAITING, JobState
from scheduling.kube.seam import Observation, PodSeen
from scheduling.models.jobs import PlacementState as P
from scheduling.session.changes import Changes
from scheduling.session.memory import load
from scheduling.session.memory.live import OVER, LiveJob, LivePod
from scheduling.session.memory.nodes import Nodes
from scheduling.session.pods.follow import Lifecycle


def take_up_jobs(changes: Changes) -> None:
    """Load jobs and pods from the rows before looking at any pod of the API.

    Each pod then finds its intent, and a pod without one is known to be a leftover.
    """
    life, cluster_id, scope = changes.life, changes.cluster_id, changes.scope
    rows, bad = load.jobs(load.waiting_or_holding(cluster_id, scope))
    changes.refuse(bad)
    stored = (Reservation(job_id, None) for job_id in load.reserved(cluster_id, scope))
    life.out.writes.reservations += stored  # shown by the last scheduler
    load.add_placements(cluster_id, scope, {job.id: job for job in rows})
    load.add_constraints(cluster_id, scope, {job.id: job for job in rows})
    for job in rows:
        if not job.pods and job.state in WAITING:
            changes.enqueue(job)
        else:
            _take_up(life, job)
    life.out.deltas += load.histories(cluster_id, scope, rows, life.scope.policy)


def finish_what_was_begun(
    life: Lifecycle, nodes: Nodes, seen: Sequence[Observation], now: float
) -> None:
    """Complete the gangs that the last scheduler began, or give them back.

    `seen`: the first observations, which the jobs have taken in.
    """
    pods = [news.pod for news in seen if isinstance(news, PodSeen)]
    alive = {("", pod.uid) for pod in pods if pod.owned}
    alive.update((pod.namespace, pod.name) for pod in pods)
    for job in list(life.jobs.values()):
        _complete(life, nodes, job, alive, now)


def _take_up(life: Lifecycle, job: LiveJob) -> None:
    """Take up a job that holds places, or held them when the last scheduler stopped."""
    life.know(job)
    if job.state in HOLDING:
        # These left alone, to be placed again.
        for pod in [p for p in job.pods.values() if p.state in (P.FAILED, P.RELEASED)]:
            job.replace_later(pod)
        life.leave.resume(job)
    job.complete = job.has_all()
    life.out.deltas.append(job.restored())
    if job.state == JobState.ADMITTED or (job.state == JobState.RUNNING and job.request.elastic):
        life.starting[job.id] = job


def _complete(
    life: Lifecycle, nodes: Nodes, job: LiveJob, alive: Set[tuple[str, str]], now: float
) -> None:
    if job.state not in HOLDING:
        if job.leaving is None and job.pods:
            life.requeueing.resume_leaving(job, now)
        return
    begun = [pod for pod in job.pods.values() if pod.state == P.INTENDED]
    life.volumes.send(job, [(pod, nodes.known(pod.place.node)) for pod in begun])
    for pod in list(job.pods.values()):
        if pod.state not in (P.INTENDED, *OVER) and _named(job, pod) not in alive:
            life.vanished(job, pod, now)
    life.leave.tell_again(job, now)
    life.requeueing.let_surplus_go(job, now)
    life.follow(job, now)


def _named(job: LiveJob, pod: LivePod) -> tuple[str, str]:
    """Return the pod's identity: name for pods made by Kant, uid for plain pods."""
    return ("", pod.uid) if job.plain else (job.namespace, pod.name)
