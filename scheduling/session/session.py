"""The live loop's memory of one cluster: news in, one engine cycle, rows and effects out.

A session lives in the scheduler process that leads the cluster. It is rebuilt from the database
and the Kubernetes API at any time; losing it loses nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult, Reservation
from scheduling.engine.deltas import (
    Delta,
    JobEnded,
    JobHistory,
    JobRequeued,
    JobRestored,
    JobSubmitted,
    NodeChanged,
    NodeRemoved,
    OtherPodChanged,
    PodEnded,
    PolicyChanged,
)
from scheduling.engine.states import HOLDING, TERMINAL, WAITING, JobState
from scheduling.engine.states import JobEventKind as Kind
from scheduling.kube.gateway import Gateway
from scheduling.kube.seam import (
    Connected,
    Disconnected,
    Effect,
    EffectDone,
    NodeFacts,
    NodeGone,
    NodeSeen,
    Observation,
    PodGone,
    PodSeen,
)
from scheduling.models import Cluster
from scheduling.models.jobs import PlacementState as P
from scheduling.session import aside, load
from scheduling.session.lifecycle import Lifecycle
from scheduling.session.live import OVER, LiveJob, Transition, Writes
from scheduling.session.pods import create_and_bind

log = logging.getLogger(__name__)

SYNC_TIMEOUT_S = 60.0
LOOK_S = 0.2  # how often tenants, quotas and policy are compared with what is known
# The node controller's taints of a node whose kubelet does not answer.
DEAD = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})
AT_ONCE = 500  # jobs in one transaction
COUNT_S = 10.0  # how often the versions of all open jobs are compared: finds a lost wake-up


@dataclass(slots=True)
class Pass:
    """What one pass decided: first written, then, without the stale jobs, done.

    `later` are the decisions about further jobs, to be written and done after it: transactions
    stay short, and the first pods are being bound while the next are written.
    """

    writes: Writes
    effects: list[Effect]
    later: "Pass | None" = None


class Session:
    """One cluster as the scheduler process sees it; used by one thread."""

    def __init__(self, cluster: Cluster, on_news: Callable[[], None]) -> None:
        self.cluster_id = cluster.pk
        self.gateway = Gateway(
            cluster.access, namespace=cluster.namespace, label_map=cluster.label_map
        )
        self.news = threading.Event()
        self.on_news = on_news
        self.state = SchedulerState()
        self.life = Lifecycle(cluster.namespace)
        self.nodes: dict[str, NodeFacts] = {}
        self.dirty_nodes: set[str] = set()
        self.gone_nodes: set[str] = set()
        self.connected = False
        self.trouble = ""
        self._event_id = 0
        self._more_rows = self._cycled = False
        self._signature: tuple[object, ...] = ()
        self._looked_at = self._counted_at = 0.0

    def start(self, now: float) -> None:
        """Connect, read everything, and take up what was begun; raises KubeError."""
        self.gateway.on_news(self._ring)
        self.gateway.start()
        try:
            self.gateway.wait_synced(SYNC_TIMEOUT_S)
            self._read_tenancy()
            self._restore(now)
        except BaseException:
            self.gateway.stop()
            raise

    def stop(self) -> None:
        self.gateway.stop()

    def wait_for_news(self, seconds: float) -> bool:
        """Whether something arrived within `seconds`."""
        return self.news.wait(seconds)

    @property
    def busy(self) -> bool:
        """Effects are on their way whose ends will come soon."""
        return any(
            pod.in_flight
            for job in (*self.life.admitted.values(), *self.life.leave.jobs.values())
            for pod in job.pods.values()
        )

    @property
    def pending(self) -> bool:
        """There is more to take in: rows, or what the last pass itself tells the engine."""
        out = self.life.out
        return bool(self._more_rows or out.deltas or out.writes or out.effects)

    def take_changed_nodes(self) -> tuple[list[NodeFacts], set[str]]:
        """Nodes whose rows are to be written, and names of those whose rows are to go."""
        changed = [self.nodes[name] for name in sorted(self.dirty_nodes) if name in self.nodes]
        gone, self.gone_nodes = self.gone_nodes, set()
        self.dirty_nodes = set()
        return changed, gone

    # --- one pass ---------------------------------------------------------------------------------
    def decide(self, now: float) -> Pass:
        """Take in everything new, run one engine cycle, and say what is to be written and done."""
        self.news.clear()
        # Rows first: they are compared with what was committed, not with what this pass changes.
        self._read_changes(now)
        self._observe(self.gateway.drain(), now)
        self.life.overdue(now)
        deltas, self.life.out.deltas = self.life.out.deltas, []
        self._mark_nodes(deltas)
        result = self._cycle(deltas, now)
        self.life.lost(result.lost, self._is_dead, now)
        for victim in result.preempted:
            self.life.preempted(victim, now)
        started = {decision.job_id for decision in result.started}
        for job_id in result.quota_lost:
            self.life.quota_changed(job_id, Kind.QUOTA_LOST)
        for job_id in result.quota_reserved:
            if job_id not in started:
                self.life.quota_changed(job_id, Kind.QUOTA_RESERVED)
        for decision in result.started:
            models = {p.node: self._gpu_model(p.node) for p in decision.placements}
            self.dirty_nodes.update(models)
            self.life.started(decision, models, now)
        for limit in result.run_limits:
            self.life.run_limit(limit, now)
        for waiting in result.waiting:
            self.life.waiting(waiting)
        self.life.out.writes.reservations += result.reservations
        self.life.out.writes.blocked += result.blocked
        return self._take_out()

    def _cycle(self, deltas: list[Delta], now: float) -> CycleResult:
        """One engine cycle. A waiting job that makes the first one raise is set aside.

        Later the error goes up: the session is rebuilt, and its first cycle sees everything.
        """
        while True:
            try:
                result = run_cycle(self.state, deltas, now)
            except Exception:
                found = None if self._cycled else aside.culprit(deltas, now)
                if found is None:
                    raise
                log.exception("job %s is set aside: the scheduling cycle fails with it", found)
                self._set_aside(found)
                deltas = aside.without(deltas, [found])
                self.state = SchedulerState()
            else:
                self._cycled = True
                return result

    def _set_aside(self, job_id: str) -> None:
        job = self.life.jobs.pop(job_id)
        text = f"An internal error of the scheduler; its log has the details under job {job_id}."
        failed = Transition(
            job_id, Kind.FAILED, job.state, JobState.FAILED, job.version, "InternalError", text
        )
        self.life.out.writes.transitions.append(failed)
        self.life.out.deltas.append(JobEnded(job_id, succeeded=False))  # for those that wait for it

    def finish(self, decided: Pass, stale: set[str], now: float) -> None:
        """After the commit: send the effects; a stale job (somebody was faster) is read again."""
        self.gateway.submit([e for e in decided.effects if not _of(e, stale)])
        for job_id in stale:
            self._forget_intents(job_id, now)
        if stale:
            self._refresh(stale, now)

    def _take_out(self) -> Pass:
        out = self.life.out
        # Deltas that the decisions themselves caused wait for the next cycle.
        writes, out.writes = out.writes, Writes()
        effects, out.effects = out.effects, []
        return split(writes, effects, AT_ONCE)

    def _mark_nodes(self, deltas: Iterable[Delta]) -> None:
        """Nodes whose allocation these deltas change."""
        for delta in deltas:
            if isinstance(delta, JobEnded | JobRequeued | PodEnded):
                places = self.state.cluster.placements_of(delta.job_id)
                self.dirty_nodes.update(p.node for p in places)
            elif isinstance(delta, JobRestored):
                self.dirty_nodes.update(p.node for p in delta.placements)
            elif isinstance(delta, OtherPodChanged):
                self.dirty_nodes.add(delta.node)

    # --- from the cluster -------------------------------------------------------------------------
    def _observe(self, observations: Iterable[Observation], now: float) -> None:
        for seen in observations:
            match seen:
                case EffectDone(effect=effect, outcome=outcome):
                    self.life.effect_done(effect, outcome, now)
                case PodSeen(pod=pod):
                    self.life.pod_seen(pod, now)
                case PodGone(pod=pod):
                    self.life.pod_gone(pod, now)
                case NodeSeen(facts=facts):
                    self._node_seen(facts)
                case NodeGone(name=name):
                    self.nodes.pop(name, None)
                    self.dirty_nodes.discard(name)
                    self.gone_nodes.add(name)
                    self.life.out.deltas.append(NodeRemoved(name))
                case Connected():
                    self.connected, self.trouble = True, ""
                case Disconnected(reason=reason):
                    self.connected, self.trouble = False, reason

    def _node_seen(self, facts: NodeFacts) -> None:
        node = facts.node
        self.nodes[node.name] = facts
        self.gone_nodes.discard(node.name)
        self.dirty_nodes.add(node.name)
        self.life.out.deltas.append(NodeChanged(node))

    def _is_dead(self, node: str) -> bool:
        """Whether nothing that runs on the node can hear us."""
        facts = self.nodes.get(node)
        return facts is None or any(taint.key in DEAD for taint in facts.node.taints)

    def _gpu_model(self, node: str) -> str:
        facts = self.nodes.get(node)
        return facts.node.gpu_model if facts else ""

    def _ring(self) -> None:
        self.news.set()
        self.on_news()

    # --- from the database ------------------------------------------------------------------------
    def _read_changes(self, now: float) -> None:
        self._event_id, touched = load.touched_since(self.cluster_id, self._event_id)
        self._more_rows = len(touched) >= load.AT_ONCE
        clock = time.monotonic()
        if clock - self._looked_at > LOOK_S:
            self._looked_at = clock
            if load.signature(self.cluster_id) != self._signature:
                self._read_tenancy()
        if clock - self._counted_at > COUNT_S:
            self._counted_at = clock
            touched += self._differing()
        self._refresh(set(touched), now)

    def _differing(self) -> list[str]:
        """Jobs whose row and memory differ: a wake-up was lost, or rows were changed by hand."""
        rows = load.versions(self.cluster_id)
        known = {job.id: job.version for job in self.life.jobs.values()}
        missing = [i for i, job in self.life.jobs.items() if i not in rows and not _ended(job)]
        return [i for i, version in rows.items() if known.get(i) != version] + missing

    def _refresh(self, ids: set[str], now: float) -> None:
        """Read these jobs and take over what people did: submit, cancel, hold, release, change."""
        if not ids:
            return
        rows, bad = load.jobs(sorted(ids))
        for row in rows:
            known = self.life.jobs.get(row.id)
            if known is None:
                if row.state in WAITING:
                    self._enqueue(row)
            elif row.state in TERMINAL:
                if known.state not in TERMINAL:
                    self.life.cancelled(known, row.version, now)
            elif known.version != row.version:
                self._replace(known, row)
        self._refuse(bad)

    def _refuse(self, bad: Iterable[tuple[str, int, object, str]]) -> None:
        for job_id, version, state, why in bad:
            if state not in WAITING:
                log.error("job %s cannot be read: %s", job_id, why)
                continue
            self.life.out.writes.transitions.append(
                Transition(
                    job_id,
                    Kind.FAILED,
                    state,  # type: ignore[arg-type]
                    # The only end that the table allows a job that never could be placed.
                    to_state=JobState.FAILED,
                    version=version,
                    reason="Misconfigured",
                    message=f"The job cannot be read: {why}",
                )
            )

    def _enqueue(self, job: LiveJob) -> None:
        self.life.jobs[job.id] = job
        for failed in load.failed_among(job.request.after_ok):
            self.life.out.deltas.append(JobEnded(failed, succeeded=False))
        self.life.out.deltas.append(JobSubmitted(job.request, job.not_before, job.held))

    def _replace(self, known: LiveJob, row: LiveJob) -> None:
        """A person changed a job; what it asks for changes only while it waits."""
        known.state, known.version = row.state, row.version
        if row.state in WAITING:
            known.request, known.contents, known.held = row.request, row.contents, row.held
            self.life.out.deltas.append(JobSubmitted(row.request, row.not_before, row.held))

    def _forget_intents(self, job_id: str, now: float) -> None:
        """A stale job's new pods were neither written nor created: as if they had never been."""
        job = self.life.jobs.get(job_id)
        if job is None:
            return
        for pod in [p for p in job.pods.values() if not p.row]:
            job.forget(pod)
        if not job.pods:
            self.life.admitted.pop(job_id, None)
            # Until the row is read again the job waits; a cancelled one is ended then.
            self.life.out.deltas.append(JobRequeued(job_id, now, front=job.front))

    def _read_tenancy(self) -> None:
        self._signature = load.signature(self.cluster_id)
        try:
            policy = load.policy(self.cluster_id)
        except (TypeError, ValueError) as error:
            log.error("policy of cluster %s ignored: %s", self.cluster_id, error)
        else:
            self.life.policy = policy
            self.life.out.deltas.append(PolicyChanged(policy))
        self.life.out.deltas.append(load.tenancy(self.cluster_id))

    # --- at start ---------------------------------------------------------------------------------
    def _restore(self, now: float) -> None:
        """Bring intents and the API's truth together: finish what was begun, or give it back.

        The pods are known from the rows before the first observation is taken in, so that each
        pod of the API finds its intent, and a pod without one is known to be a leftover.
        """
        self._event_id = load.last_event_id()
        rows, bad = load.jobs(load.waiting_or_holding(self.cluster_id))
        self._refuse(bad)
        stored = (Reservation(job_id, None) for job_id in load.reserved(self.cluster_id))
        self.life.out.writes.reservations += stored  # those of the last scheduler
        jobs = {job.id: job for job in rows}
        load.add_placements(self.cluster_id, jobs)
        observations = self.gateway.drain()
        nodes = [seen for seen in observations if isinstance(seen, NodeSeen)]
        rest = [seen for seen in observations if not isinstance(seen, NodeSeen)]
        alive = {seen.pod.name for seen in rest if isinstance(seen, PodSeen)}
        self._observe(nodes, now)
        for job in rows:
            if not job.pods and job.state in WAITING:
                self._enqueue(job)
            else:
                self._take_up(job)
        preempted_by = load.preemptions(self.cluster_id)
        for job in rows:
            by = preempted_by.get(job.id, ())
            if by or job.front or job.blocked_since is not None:
                history = JobHistory(job.id, by, job.blocked_since, job.front)
                self.life.out.deltas.append(history)
        self._observe(rest, now)
        for job in list(self.life.jobs.values()):
            self._complete(job, alive, now)
        self._counted_at = time.monotonic()

    def _take_up(self, job: LiveJob) -> None:
        """A job that holds places, or held them when the last scheduler stopped."""
        self.life.jobs[job.id] = job
        if job.state in HOLDING:
            # They left alone, and were to be placed again.
            for pod in [p for p in job.pods.values() if p.state in (P.FAILED, P.RELEASED)]:
                job.replaced.add(pod.key)
                job.forget(pod)
        places = tuple(p.place for p in job.pods.values() if p.state not in OVER)
        ended = tuple(pod.key for pod in job.pods.values() if pod.state in OVER)
        self.life.out.deltas.append(JobRestored(job.request, places, job.admitted_at, ended))
        wanted = sum(pod_set.count for pod_set in job.request.pod_sets)
        job.complete = len(job.pods) == wanted
        if job.state == JobState.ADMITTED:
            self.life.admitted[job.id] = job

    def _complete(self, job: LiveJob, alive: set[str], now: float) -> None:
        if job.state not in HOLDING:
            if job.leaving is None and job.pods:
                self.life.resume_leaving(job, now)
            return
        for pod in list(job.pods.values()):
            if pod.state == P.INTENDED:
                # Creating or binding once more is harmless: the door finds what is there.
                pod.in_flight = True
                self.life.out.effects.append(create_and_bind(job, pod, self.life.namespace))
            elif pod.state not in OVER and pod.name not in alive:
                self.life.vanished(job, pod, now)
        self.life.follow(job, now)


def split(writes: Writes, effects: list[Effect], size: int) -> Pass:
    """Everything in one part, but at most `size` jobs that get places, the others in later ones.

    All that is about one job stays together and in order.
    """
    placed = list(dict.fromkeys(job.id for job, _ in writes.intents))
    if len(placed) <= size:
        return Pass(writes, effects)
    rest = set(placed[size:])
    later = Writes(
        transitions=[t for t in writes.transitions if t.job_id in rest],
        intents=[i for i in writes.intents if i[0].id in rest],
    )
    writes.transitions = [t for t in writes.transitions if t.job_id not in rest]
    writes.intents = [i for i in writes.intents if i[0].id not in rest]
    mine = [e for e in effects if not _of(e, rest)]
    theirs = [e for e in effects if _of(e, rest)]
    return Pass(writes, mine, split(later, theirs, size))


def _ended(job: LiveJob) -> bool:
    return job.state in TERMINAL


def _of(effect: Effect, stale: set[str]) -> bool:
    key = effect.key
    return isinstance(key, tuple) and bool(key) and key[0] in stale
