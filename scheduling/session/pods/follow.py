"""From placement to the end: how jobs follow their pods.

In come decisions of the engine, facts of the watch, results of effects and the passing of time;
deltas, rows to write and effects go to the outbox.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

from scheduling.engine.decisions import Moved, Preempted, RunLimit, StandsAt, Started, Waiting
from scheduling.engine.deltas import (
    Checkpointed,
    JobEnded,
    JobRequeued,
    JobSubmitted,
    PodEnded,
    PodRequeued,
    PodsRunning,
)
from scheduling.engine.reasons.after import IN_THE_WAY, ON_HOLD, held_by
from scheduling.engine.states import HOLDING, WAITING, JobState
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import Node
from scheduling.engine.verdict import Reason, Verdict, counted
from scheduling.kube.seam import (
    AllocateClaim,
    Annotate,
    Bind,
    CallOutcome,
    CreateAndBind,
    CreatePod,
    CreateProvisioning,
    CreateToBind,
    DeletePod,
    DeleteProvisioning,
    Effect,
    EvictPod,
    PatchCondition,
    PodFacts,
    ReleaseClaim,
    Result,
    SelectNode,
)
from scheduling.models.jobs import (
    CANCELLED,
    DRAINED,
    GROWN,
    MOVED,
    POD_FAILED,
    PREEMPTED,
    ROOM_MADE,
    RUN_LIMIT,
)
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.live import (
    NOTHING,
    OVER,
    Cause,
    EffectKey,
    HeldFrom,
    LiveJob,
    LivePod,
    Note,
    ReasonChange,
)
from scheduling.session.pods import pod as kant_pods
from scheduling.session.pods.autoscaling.lacking import Groups
from scheduling.session.pods.autoscaling.provisioning import Provisioning
from scheduling.session.pods.autoscaling.stand_ins import StandIns
from scheduling.session.pods.autoscaling.waits import would_help
from scheduling.session.pods.drain import Drained
from scheduling.session.pods.leave import Leaving
from scheduling.session.pods.plain import PlainPods
from scheduling.session.pods.requeue import (
    COMING,
    EVICTED,
    NO_ANSWER,
    POD_DELETED,
    UNPLACED,
    Requeueing,
    with_slices,
)
from scheduling.session.pods.scope import SharedScope
from scheduling.session.pods.steps import Evidence, advance, record_of, release, step, which
from scheduling.session.pods.volumes import Volumes

log = logging.getLogger(__name__)

VICTIMS_TOLD = 20  # of a preemption: victims whose ids the preemptor's event lists


class Lifecycle:
    """All jobs of a cluster that wait, hold devices or have pods that do.

    `is_closed`: whether a node takes no new pods.
    """

    def __init__(self, is_closed: Callable[[str], bool] = lambda _: False) -> None:
        self.is_closed = is_closed
        self.scope = SharedScope()
        self.jobs, self.starting, self.out = self.scope.jobs, self.scope.starting, self.scope.out
        self.leave = Leaving(self.jobs, self.out)
        self.foreign = self.leave.foreign
        self.requeueing = Requeueing(self.scope, self.leave)
        self.plain = PlainPods(self.scope, self.requeueing)
        self.volumes = Volumes(self.scope, self.requeueing, self.plain)
        self.provisioning = Provisioning(self.scope, self.plain.unbound_of)
        self.stand_ins = StandIns(self.scope, self.provisioning)

    def know(self, job: LiveJob) -> None:
        """Look after the job from now on."""
        self.plain.know(job)
        self.volumes.judge(job)

    # --- decisions of the engine ----------------------------------------------------------------
    def started(self, decision: Started, nodes: Mapping[str, Node], now: float) -> None:
        """Write the places of pods as intents, then create and bind the pods.

        `nodes`: the nodes of these places, by name.
        """
        job = self.jobs[decision.job_id]
        if job.leaving is not None:
            # The engine hears that a job leaves only once all of it is gone. Until then it may
            # still find places for missing pods; these are not taken.
            ended = (PodEnded(job.id, p.pod_set, p.ordinal) for p in decision.placements)
            self.out.deltas.extend(ended)
            return
        later = job.state not in WAITING
        if not later and job.volume_hold is not None:
            # It waits again, and its claims changed while it did not wait.
            self.out.deltas.append(JobRequeued(job.id, now, front=job.front))
            self.out.deltas.append(JobSubmitted(job.request, job.not_before, held=True))
            return
        if not later:
            job.attempt += 1
            job.admitted_at = now
            job.bound_at = None
            job.noted_at = NOTHING
            job.waits_for = ""
            if not job.plain:
                job.namespace = self.scope.namespaces[job.request.tenant]
            step(self.out, job, Kind.ADMITTED, attempt=job.attempt, not_before=None)
            self.starting[job.id] = job
            self.plain.groups.starts(job, self.plain.unbound_of(job))
        else:
            if any((p.pod_set, p.ordinal) in job.replaced for p in decision.placements):
                job.attempt += 1
            if job.request.gang:
                self.starting[job.id] = job
                self._grew(job, len(decision.placements))
        placed = []
        for place in decision.placements:
            node = nodes[place.node]
            pod = kant_pods.new_pod(job, place, node.gpu_model, later=later)
            job.add(pod)
            self.out.writes.intents.append((job, pod))
            placed.append((pod, node))
        self.volumes.send(job, placed)
        job.complete = job.has_all()

    def _grew(self, job: LiveJob, more: int) -> None:
        """Tell in the job's events that a running elastic gang got pods."""
        has = more + sum(p.leaving is None and p.state not in OVER for p in job.pods.values())
        got = counted(more, "more pod has a place", "more pods have places")
        text = f"{got}: {has} of {job.request.pods}"
        record: Evidence = (("pods", more), ("has", has), ("asked", job.request.pods))
        self.out.writes.notes.append(Note(job.id, job.state, GROWN, text, record))

    def look_after_nodes_to_come(
        self,
        groups: Groups,
        class_name: str,
        is_ours: Callable[[Set[str]], Set[str]],
        now: float,
    ) -> None:
        """Let autoscalers know of the jobs that wait for nodes of these groups.

        Gangs use ProvisioningRequests of `class_name`, "" = none. `is_ours`: of jobs that are not
        known here, returns those that this scope looks after.
        """
        for job in self.provisioning.look_after(groups, class_name, is_ours, now):
            if job.said is not None and job.said.verdict.reason == job.reason:
                job.told = ""  # its pods are to show it, too
                self.waiting(job.said, now)
        self.stand_ins.look_after(groups, is_ours, now)

    def quota_changed(self, job_id: str, kind: Kind) -> None:
        job = self.jobs.get(job_id)
        wanted = JobState.PENDING if kind == Kind.QUOTA_RESERVED else JobState.QUOTA_RESERVED
        if job is not None and job.state == wanted:
            step(self.out, job, kind)

    def stands(self, decision: StandsAt) -> None:
        """Keep since when a job stands in the queue."""
        job, writes = self.jobs.get(decision.job_id), self.out.writes
        if job is None:
            return
        job.stands_at = decision.at
        if decision.at is None:
            writes.stand_as_submitted.append(job.id)
        else:
            writes.stand_at[job.id] = decision.at

    def waiting(self, decision: Waiting, now: float) -> None:
        """Keep why a job waits, or runs without some pods.

        A waiting job gets an event, but only if the reason itself changed.
        """
        job = self.jobs.get(decision.job_id)
        if job is None:
            return
        if job.state not in WAITING:
            self.stays(decision)
            return
        verdict = self._verdict_on(job, decision.verdict)
        job.said = decision
        if job.asked_for and would_help(verdict.reason):
            verdict = replace(verdict, summary=f"{verdict.summary} {job.asked_for}")
        job.waits_for = f"{verdict.reason}: {verdict.summary}"
        # While it backs off, the last event has to say why it failed.
        backs_off = verdict.reason is Reason.BACKING_OFF
        failed = backs_off and (job.failures.number > 0 or job.reason == POD_FAILED)
        is_new = verdict.reason != job.reason and not failed
        is_noted = is_new and job.notes(verdict.reason, now)
        self.out.writes.reasons.append(ReasonChange(job.id, job.state, verdict, is_new, is_noted))
        job.reason = verdict.reason

    def _verdict_on(self, job: LiveJob, verdict: Verdict) -> Verdict:
        """Return the engine's verdict with what the engine does not know: why jobs are on hold.

        That may be this job or one in its way.
        """
        held = self.jobs.get(str(verdict.evidence.get(IN_THE_WAY, "")))
        if held is not None:
            why, is_array = (
                self._verdict_on(held, ON_HOLD),
                verdict.evidence["after"] not in self.jobs,
            )
            return held_by(verdict, job.request, held.request, why, is_array=is_array)
        return self.plain.verdict_on(job, self.volumes.verdict_on(job, verdict))

    def stays(self, decision: Waiting) -> None:
        """Keep why a running job misses pods."""
        self.out.writes.staying.append(decision)
        job = self.jobs.get(decision.job_id)
        if job is not None:
            verdict = decision.verdict
            job.waits_for = f"{verdict.reason}: {verdict.summary}"
            pods = verdict.evidence.get("missing_pods")
            job.may_grow_by = pods if isinstance(pods, int) else None

    def lost(
        self,
        keys: Iterable[tuple[str, int, int]],
        is_dead: Callable[[str], bool],
        now: float,
        why: str = "or a GPU of it failed",
    ) -> None:
        """Take in pods whose node or device is gone or bad; warn those that may still run.

        `is_dead`: whether nothing on a node can receive a warning. `why`: what to say of the nodes.
        """
        found: dict[str, list[LivePod]] = {}
        for job_id, pod_set, ordinal in keys:
            job = self.jobs.get(job_id)
            pod = job.pods.get((pod_set, ordinal)) if job else None
            if pod is not None and pod.state not in OVER:
                pod.lost = True
                if pod.leaving is None:
                    found.setdefault(job_id, []).append(pod)
        for job_id, pods in found.items():
            avoided_nodes = tuple(sorted({pod.place.node for pod in pods}))
            text = f"Node {', '.join(avoided_nodes)} {why}"
            if not any(map(is_dead, avoided_nodes)):
                self.requeueing.tell(self.jobs[job_id], pods, now)
            self.requeueing.displaced(self.jobs[job_id], pods, "NodeLost", text, avoided_nodes, now)

    def preempted(self, decision: Preempted, now: float) -> None:
        """Make a job, or some of its pods, leave for another job."""
        job = self.jobs.get(decision.job_id)
        if job is None or job.leaving is not None or job.state not in HOLDING:
            return
        text = f"Preempted ({decision.kind}) to make room for job {decision.by}"
        why = record_of(decision)
        if job.plain:
            self.plain.makes_room(job, Cause(PREEMPTED, text), why, now)
            return
        if decision.whole:
            job.front = False
            step(self.out, job, Kind.PREEMPTED, PREEMPTED, text, why, front=False, **UNPLACED)
            self.leave.tell(job, job.pods.values(), now)
            self.requeueing.leaves(job, JobRequeued(job.id, 0.0), Cause(PREEMPTED, text), now)
            return
        pods = [job.pods[key] for key in decision.pods if key in job.pods]
        self.out.writes.notes.append(Note(job.id, job.state, PREEMPTED, text, why + which(pods)))
        leaves = [(p, PodEnded(job.id, *p.key)) for p in pods if p.state not in OVER]
        self.leave.tell(job, pods, now)
        self.leave.pods(job, leaves, Cause(PREEMPTED, text), now)

    def room_made(self, victims: Sequence[Preempted]) -> None:
        """Tell each preemptor how many jobs make room for it, and what that costs."""
        for job_id in dict.fromkeys(victim.by for victim in victims):
            job = self.jobs.get(job_id)
            mine = [victim for victim in victims if victim.by == job_id]
            if job is None:
                continue
            kinds = " and ".join(sorted({victim.kind.value for victim in mine}))
            who = "1 job makes" if len(mine) == 1 else f"{len(mine)} jobs make"
            text = f"{who} room ({kinds})"
            record: Evidence = (
                ("jobs", len(mine)),
                ("pods", sum(len(victim.pods) for victim in mine)),
                ("total_gpu_s", round(mine[0].total_gpu_s, 1)),
                ("victims", ",".join(victim.job_id for victim in mine[:VICTIMS_TOLD])),
            )
            self.out.writes.notes.append(Note(job.id, job.state, ROOM_MADE, text, record))

    def moved(self, decision: Moved, now: float) -> None:
        """Move a pod, or a job of one pod, to another node, to have fewer nodes partly used."""
        job, key = self.jobs.get(decision.job_id), (decision.pod_set, decision.ordinal)
        pod = job.pods.get(key) if job else None
        if job is None or job.leaving is not None or pod is None or pod.state in OVER:
            return
        text = (
            f"Pod {pod.name} moves from node {decision.source} to {decision.target}, "
            "so that one node fewer is partly used"
        )
        if decision.whole:
            self._moved_whole(job, pod, decision, text, now)
            return
        record: Evidence = (
            ("pod_set", decision.pod_set),
            ("ordinal", decision.ordinal),
            ("which", pod.name),
            ("from", decision.source),
            ("to", decision.target),
        )
        self.out.writes.notes.append(Note(job.id, job.state, MOVED, text, record))
        self.leave.tell(job, [pod], now)
        leaves = [(pod, PodEnded(job.id, *key))]
        self.leave.pods(job, leaves, Cause(MOVED, f"Moved to node {decision.target}"), now)

    def _moved_whole(
        self, job: LiveJob, pod: LivePod, decision: Moved, text: str, now: float
    ) -> None:
        """Stop the job; it continues from its last checkpoint in the place kept for it.

        A plain pod is evicted; its owner makes another.
        """
        if job.state not in HOLDING:
            return
        cause = Cause(MOVED, text)
        record: Evidence = (
            ("from", decision.source),
            ("to", decision.target),
            ("cost_gpu_s", round(decision.cost_gpu_s, 1)),
        )
        if job.plain:
            self.plain.makes_room(job, cause, record, now)
            return
        job.front = False
        self.leave.tell(job, [pod], now)
        self.requeueing.wait_again(job, cause, record + which([pod]), now, (), now)

    def drained(self, decision: Drained, allowed: int | None, now: float) -> None:
        """Take pods off drained nodes to place them elsewhere.

        If the job cannot run without them, all of it leaves.

        `allowed`: how many pods may go now by disruption budgets, None = all.
        """
        job, cause = decision.job, Cause(DRAINED, decision.text)
        pods = with_slices(job, decision.pods)
        if allowed is not None and not job.request.gang:
            # One after another; pods that already leave count.
            leaving = sum(p.leaving is not None for p in job.pods.values())
            pods = pods[: max(0, allowed - leaving)]
        alone = not job.plain and self.requeueing.goes_on_without(job, pods)
        leave = pods if alone else [pod for pod in job.pods.values() if pod.state not in OVER]
        if not pods or (allowed is not None and allowed < len(leave)):
            return
        record: Evidence = (("nodes", ", ".join(decision.nodes)), ("pods", len(leave)))
        if job.plain:
            self.plain.makes_room(job, cause, record, now)
            return
        self.leave.tell(job, leave, now)
        if not alone:
            job.front = job.state == JobState.RUNNING
            self.requeueing.wait_again(job, cause, record, now, (), now)
            return
        self.out.writes.notes.append(Note(job.id, job.state, *cause, record + which(pods)))
        self.leave.pods(job, [(p, PodRequeued(job.id, *p.key, now)) for p in pods], cause, now)

    def run_limit(self, decision: RunLimit, now: float) -> None:
        """End a job past its run limit, or note once that the limit is near."""
        job = self.jobs.get(decision.job_id)
        if job is None or job.leaving is not None or job.state not in HOLDING:
            return
        ends = datetime.fromtimestamp(decision.ends_at, UTC)
        if decision.exceeded:
            text = f"Its run-time limit ended at {ends:%Y-%m-%d %H:%M:%S} UTC"
            self.requeueing.end(job, Kind.FAILED, RUN_LIMIT, text, now)
        else:
            text = f"Its run-time limit ends at {ends:%Y-%m-%d %H:%M:%S} UTC"
            self.out.writes.notes.append(Note(job.id, job.state, "RunLimitNear", text))

    # --- observations ---------------------------------------------------------------------------
    def pod_seen(self, facts: PodFacts, now: float) -> None:
        if self.stand_ins.seen(facts):
            return
        self.plain.groups.seen(facts)
        found = self._find(facts)
        if found is None:
            self.plain.unplaced_seen(facts, now)
            self.requeueing.crashed_before(facts)
            return
        self.plain.keep(facts)
        job, pod = found
        if pod.uid and pod.uid != facts.uid:
            # A name belongs to one pod at a time, so the pod that was placed is gone.
            if pod.state not in OVER:
                self.vanished(job, pod, now)
            self.foreign.seen(facts, self.out)
            return
        pod.uid, pod.tracked, pod.going = facts.uid, facts.tracked, facts.deleting
        if facts.node == pod.place.node:
            self._count_more(job, pod, facts)
        saved_at = kant_pods.checkpointed_at(facts, now)
        told_by = kant_pods.told_by(facts)
        if told_by is not None:
            self.leave.was_told(job, pod, told_by, now)
        if saved_at is not None:
            pod.saved_at = max(pod.saved_at, saved_at)
        if saved_at is not None and saved_at > job.saved_at:
            job.saved_at = saved_at
            self.out.deltas.append(Checkpointed(job.id, saved_at))
        if facts.node and facts.node != pod.place.node and job.plain:
            self.plain.taken(job, pod, facts.node, now)
            self.foreign.seen(facts, self.out)
        elif facts.node and facts.node != pod.place.node:
            where = f"Pod {pod.name} was bound to {facts.node} instead of {pod.place.node}"
            self.requeueing.displaced(job, [pod], "BoundElsewhere", where, (), now)
        elif facts.phase == "Running" and facts.deleting and self.requeueing.is_news(job, pod):
            self._runs(job, pod, now)
            text = (
                self._evicted(pod, facts)
                or f"Pod {pod.name} on node {pod.place.node} is being deleted, not by Kant"
            )
            self.requeueing.tell(job, [pod], now)
            self.requeueing.displaced(
                job, [pod], _why_deleted(job, facts), text, (pod.place.node,), now
            )
        elif facts.phase == "Running":
            self._runs(job, pod, now)
            self.requeueing.forgive(job, pod)
        elif facts.phase == "Succeeded":
            advance(self.out, job, pod, P.SUCCEEDED)
        elif facts.phase == "Failed":
            self._pod_failed(job, pod, facts, now)
            return
        elif facts.node:
            advance(self.out, job, pod, P.BOUND)
        self.follow(job, now)

    def _count_more(self, job: LiveJob, pod: LivePod, facts: PodFacts) -> None:
        asked = job.request.pod_sets[pod.place.pod_set]
        more = facts.cpu_milli - asked.cpu_milli, facts.memory_mib - asked.memory_mib
        cpu_milli, memory_mib = (0 if facts.finished else max(each, 0) for each in more)
        self.foreign.holds_more(facts.uid, facts.node, cpu_milli, memory_mib, self.out)

    def _runs(self, job: LiveJob, pod: LivePod, now: float) -> None:
        before = pod.state
        advance(self.out, job, pod, P.RUNNING)
        if pod.state == P.RUNNING != before:
            pod.running_at = now
            self.out.deltas.append(PodsRunning(job.id, now, (pod.key,)))

    def pod_gone(self, facts: PodFacts, now: float) -> None:
        if self.stand_ins.gone(facts):
            return
        self.plain.groups.gone(facts)
        self.plain.forget(facts)
        # Whatever job it turns out to belong to: it may have been counted as foreign before.
        self.foreign.gone(facts.uid, self.out)
        found = self._find(facts)
        if found is None:
            self.plain.unplaced_gone(facts, now)
            return
        job, pod = found
        if pod.uid and pod.uid != facts.uid:
            return
        if facts.finished:
            self.pod_seen(facts, now)
        if pod.state in OVER:
            return
        self.vanished(job, pod, now, self._evicted(pod, facts))

    def _evicted(self, pod: LivePod, facts: PodFacts) -> str:
        """Return how somebody else ended the pod, by its condition; "" = it has none."""
        if not facts.disrupted:
            return ""
        node = pod.place.node
        drained = ", which takes no new pods" if self.is_closed(node) else ""
        return f"Pod {pod.name} was evicted from node {node}{drained} ({facts.disrupted})"

    def vanished(self, job: LiveJob, pod: LivePod, now: float, evicted: str = "") -> None:
        """Take in that an unfinished pod left the API. `evicted`: what is known of that."""
        reason = EVICTED if evicted else "PodLost"
        text = evicted or f"Pod {pod.name} disappeared from node {pod.place.node}"
        if pod.leaving is None and self.requeueing.goes_on_without(job, [pod]):
            self.requeueing.displaced(job, [pod], reason, text, (), now)
        leaves_alone = pod.leaving is not None
        release(self.out, job, pod)
        if not leaves_alone:
            self.requeueing.requeue(job, reason, text, (), now)
        self.follow(job, now)

    def effect_done(self, effect: Effect, outcome: CallOutcome, now: float) -> None:
        if isinstance(effect, PatchCondition) and outcome.result == Result.FAILED:
            self.plain.not_told(effect.uid)
        if isinstance(effect, PatchCondition | CreatePod):
            self.stand_ins.done(effect, outcome)
        if isinstance(effect, CreateProvisioning | DeleteProvisioning | Annotate):
            self.provisioning.done(effect, outcome)
        if isinstance(effect, SelectNode):
            self.volumes.selected(effect, outcome, now)
        if isinstance(effect, AllocateClaim | ReleaseClaim):
            self.volumes.devices.written(effect, outcome, now)
        if not isinstance(effect, CreateAndBind | CreateToBind | Bind | DeletePod | EvictPod):
            return
        job_id, attempt, pod_set, ordinal = cast(EffectKey, effect.key)
        job = self.jobs.get(job_id)
        pod = job.pods.get((pod_set, ordinal)) if job else None
        if not job or not pod or pod.attempt != attempt:
            return
        if isinstance(effect, DeletePod | EvictPod):
            if outcome.result == Result.GONE and pod.state not in OVER:
                release(self.out, job, pod)
                self.follow(job, now)
            elif outcome.result == Result.BLOCKED:
                self.leave.blocked(pod, outcome.retry_after, now)
            elif outcome.result not in (Result.DONE, Result.GONE):
                log.warning("cannot delete pod %s: %s", pod.name, outcome.message)
            return
        if isinstance(effect, Bind):
            self.plain.bind_done(job, pod, effect, outcome, now)
            self.follow(job, now)
            return
        pod.uid = pod.uid or outcome.uid
        if outcome.result == Result.NOT_SENT and job.leaving is None and pod.leaving is None:
            # The lease ran out on the way. If it is gone for good, the next write finds out.
            self.out.effects.append(effect)
            return
        pod.in_flight = False
        if isinstance(effect, CreateToBind) and self.volumes.devices.created(job, pod, outcome):
            pass  # bound once its claims are written
        elif outcome.result == Result.BOUND:
            advance(self.out, job, pod, P.BOUND)
            self.plain.tell_scheduled(job, pod)
            self.follow(job, now)
        elif job.leaving is None and pod.leaving is None:
            node = pod.place.node
            # A pod that could not even be created says nothing about the node.
            what, avoided_nodes = (f"bound to {node}", (node,)) if pod.uid else ("created", ())
            text = f"Pod {pod.name} could not be {what}: {outcome.message or outcome.result}"
            reason = "BindingFailed"
            if outcome.result is Result.FAILED:
                reason, avoided_nodes = NO_ANSWER, ()
            self.requeueing.displaced(job, [pod], reason, text, avoided_nodes, now)
        if job.leaving is not None:
            self.leave.give_back(job, now)

    # --- time and people ------------------------------------------------------------------------
    def overdue(self, now: float) -> None:
        """Send pods whose volumes are ready, release late gangs, repeat unconfirmed deletions."""
        self.volumes.follow_volumes(now)
        for job in list(self.starting.values()):
            if job.request.gang:
                self.requeueing.release_late(job, now)
        for job in self.leave.sweep(now):
            self.follow(job, now)

    def cancelled(self, job: LiveJob, version: int, now: float) -> None:
        """The database says CANCELLED: give back whatever the job holds."""
        job.state, job.version = JobState.CANCELLED, version
        cause = Cause(CANCELLED, "Its job was cancelled")
        self.requeueing.leaves(job, JobEnded(job.id, succeeded=False), cause, now)

    # --- how a job follows its pods -------------------------------------------------------------
    def _pod_failed(self, job: LiveJob, pod: LivePod, facts: PodFacts, now: float) -> None:
        if job.leaving is not None or pod.leaving is not None:
            release(self.out, job, pod)  # its deletion killed it
            self.follow(job, now)
            return
        text = kant_pods.failure_text(facts)
        reason, node = facts.reason or "Rejected", pod.place.node
        if facts.deleting:
            reason = _why_deleted(job, facts)
            text = (
                self._evicted(pod, facts)
                or f"Pod {pod.name} on node {node} was deleted, not by Kant"
            )
        if not (facts.deleting or kant_pods.was_rejected(facts)):
            self.requeueing.crashed(job, pod, text, now)
            self.follow(job, now)
        elif self.requeueing.goes_on_without(job, [pod]):
            self.requeueing.displaced(job, [pod], reason, text, (node,), now)
            advance(self.out, job, pod, P.FAILED, text)
            self.follow(job, now)
        else:
            advance(self.out, job, pod, P.FAILED, text)
            self.requeueing.requeue(job, reason, text, (node,), now)

    def follow(self, job: LiveJob, now: float) -> None:
        """Advance the job to what its pods have reached together."""
        if job.leaving is not None:
            self.leave.settle(job)
            return
        if job.state not in HOLDING:
            return
        gang, up = job.request.gang, job.tally[P.RUNNING] + job.tally[P.SUCCEEDED]
        whole = gang or job.complete
        if whole and job.bound_at is None and self.requeueing.is_there(job, {P.INTENDED}):
            there = [pod for pod in job.pods.values() if pod.state != P.INTENDED]
            # Replies to bindings arrive in any order.
            at = job.bound_at = max((pod.bound_at for pod in there), default=self.out.at)
            self.plain.groups.placed(job)
            self.out.writes.bound_jobs[job.id] = at
            if gang:
                self.out.writes.held.extend(HeldFrom(pod, at) for pod in there)
        if whole and self.requeueing.is_done(job):
            self.requeueing.end(job, Kind.SUCCEEDED, "", "", now)
        elif job.state == JobState.ADMITTED and (
            self.requeueing.is_there(job, COMING) if gang else up
        ):
            step(self.out, job, Kind.RUNNING, failures=0)
            job.failures.number = 0
            self.out.writes.failures.pop(job.id, None)  # noted earlier in this pass
            if not gang:
                self.starting.pop(job.id, None)

    def _find(self, facts: PodFacts) -> tuple[LiveJob, LivePod] | None:
        """Return the job and pod that a pod of the API belongs to, if it has a place now."""
        if (plain := self.plain.placed(facts)) is not None:
            return plain
        who = kant_pods.identity(facts.labels) if facts.owned else None
        job = self.jobs.get(who[0]) if who else None
        pod = job.pods.get(who[2]) if who and job else None
        if not who or not job or not pod or pod.attempt != who[1]:
            return None
        if (facts.namespace, facts.name) != (job.namespace, pod.name):
            return None  # somebody's copy
        return None if pod.lost and pod.state in OVER else (job, pod)


def _why_deleted(job: LiveJob, facts: PodFacts) -> str:
    """Return why somebody else deleted the pod. The owner of a plain pod may simply not need it."""
    return POD_DELETED if job.plain and not facts.disrupted else EVICTED
