"""Take over, pass by pass, what people and other schedulers changed in the database."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

from scheduling.engine.deltas import (
    JobChanged,
    JobEnded,
    JobHistory,
    JobSubmitted,
    OtherScopesChanged,
    PolicyChanged,
    QueuesChanged,
    TenantsChanged,
)
from scheduling.engine.shards.division import WHOLE, WIDE
from scheduling.engine.states import TERMINAL, WAITING, JobState
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import Shard
from scheduling.kube.translate.node_groups import NodeGroup, groups_of
from scheduling.models import Cluster
from scheduling.session.memory import divided, load
from scheduling.session.memory.live import LiveJob, Offer, Transition
from scheduling.session.memory.look import DatabaseLook
from scheduling.session.memory.news import News
from scheduling.session.memory.orders import Cordon, cordons
from scheduling.session.memory.past import half_life_of, past_use
from scheduling.session.memory.past_moves import moves_before
from scheduling.session.memory.queues import debts, queues
from scheduling.session.pods.follow import Lifecycle

log = logging.getLogger(__name__)

LOOK_S = 0.2  # how often to check which nodes exist and which may be lent
USED_S = 0.5  # how often to read how much quota the jobs of other scopes use
PUT_OFF = 2  # while news waits, periodic work runs this many times less often
AT_ONCE = 1000  # jobs without a wake-up that one pass takes in
COUNT_S = 10.0  # how often to compare the versions of all open jobs: finds a lost wake-up


class Reopen(Exception):
    """What the session was built from has changed; the leader of the scope must build a new one."""


class Inactive(Exception):
    """The cluster is inactive: nobody schedules it any more."""


class Changes:
    """Reads the database for news of one scope.

    - `touched`, only in the wide scope: jobs of the cluster that something happened to since the
      set was last emptied.
    - `came`: the number of jobs that the last read had news of.
    - `looked`, `counted`: whether the last read did its periodic work.
    - `cordons`: what operators want of nodes.
    - `node_groups`: what an autoscaler may add.
    - `provisioning_class`: how gangs ask an autoscaler for nodes.
    """

    def __init__(
        self, cluster: Cluster, scope: str, shards: Sequence[Shard], life: Lifecycle
    ) -> None:
        self.cluster_id = cluster.pk
        self._reached_by = load.reached_by(cluster)
        self._namespace = cluster.namespace
        self.scope = scope
        self.life = life
        self.touched: set[str] = set()
        self.looked = self.counted = False
        self.came = 0
        self._news = News(cluster.pk)
        self._shards = tuple(shards)
        self.settings: tuple[object, ...] = ()
        self.tenancy = TenantsChanged((), ())
        self.queues = QueuesChanged(())
        self.others = OtherScopesChanged()
        self.cordons: Mapping[str, Cordon] = {}
        self.node_groups: tuple[NodeGroup, ...] = ()
        self.provisioning_class = ""
        self._looked_back = (0.0, False)  # the half-life, and whether users count
        self._budgeted = False  # the engine has what earlier schedulers spent on moves
        self._looked_at = self._counted_at = self._used_at = 0.0

    @property
    def more(self) -> bool:
        """Whether the last read left changes for the next one."""
        return self._news.more

    def start(self) -> None:
        """Count everything new from here on as a change."""
        self._read_tenancy(self._news.start())
        self._counted_at = time.monotonic()

    def wrote(self, events: Iterable[int]) -> None:
        """Note that this scheduler wrote these job events itself: they are no news."""
        self._news.wrote(events)

    def taken_up(self, offers: Iterable[Offer]) -> None:
        """Enqueue the jobs made of plain pods; in a divided cluster they are routed first."""
        for job in (job for offer in offers if self.scope == WHOLE for job in offer.jobs):
            self.enqueue(job)

    def read(self, now: float, *, at_leisure: bool = True) -> None:
        """Take over what is new.

        `at_leisure`: no news of the cluster waits. Otherwise periodic work is put off for a while.
        Raises Inactive or Reopen.
        """
        found, touched = self._news.read(self.life.jobs)
        if not found.is_active:
            raise Inactive(f"cluster {self.cluster_id} is not active")
        self.came = len(touched)
        ids = {i for i, scope in touched if scope == self.scope or i in self.life.jobs}
        if self.scope == WIDE:
            self.touched.update(i for i, _ in touched)
        clock = time.monotonic()
        self._look(found, clock)
        self.looked = clock - self._looked_at > LOOK_S
        if self.looked:
            self._looked_at = clock
        self.counted = clock - self._counted_at > COUNT_S * (1 if at_leisure else PUT_OFF)
        if self.counted:
            self._counted_at = clock
            ids.update(self._differing())
        self.refresh(ids, now)

    def look_back(self, now: float) -> None:
        """Tell the engine past use when the policy starts to count it, or counts it differently.

        The first time, also tell it how much work the moves of earlier schedulers have lost.
        """
        policy, at = self.life.scope.policy, datetime.fromtimestamp(now, UTC)
        half_life_s = half_life_of(policy)
        counted = half_life_s, policy.fair_users
        if counted != self._looked_back and half_life_s:
            self.life.out.deltas.append(past_use(self.cluster_id, half_life_s, at))
        self._looked_back = counted
        if policy.defragments and not self._budgeted:
            self.life.out.deltas.append(moves_before(self.cluster_id, self.scope, at))
        self._budgeted = True

    def refresh(self, ids: Set[str], now: float) -> None:
        """Read these jobs and take over what people did: submit, cancel, hold, release, change."""
        if not ids:
            return
        rows, bad = load.jobs(sorted(ids))
        for row in rows:
            known = self.life.jobs.get(row.id)
            if (row.cluster, row.scope) != (self.cluster_id, self.scope):
                if known is not None:
                    self.let_go(known)
            elif known is None:
                if row.state in WAITING:
                    self.enqueue(row)
                    if row.attempt:  # from another scope, where it may have been preempted
                        self.life.out.deltas += self._history(row)
            elif row.state in TERMINAL:
                if known.state not in TERMINAL:
                    self.life.cancelled(known, row.version, now)
            else:
                if known.version != row.version:
                    self._replace(known, row)
                self._adapt(known, row, now)
        self.refuse(bad)

    def _history(self, job: LiveJob) -> Iterable[JobHistory]:
        return load.histories(self.cluster_id, self.scope, [job], self.life.scope.policy)

    def refuse(self, bad: Iterable[tuple[str, int, object, str]]) -> None:
        for job_id, version, state, why in bad:
            if state not in WAITING:
                log.error("job %s cannot be read: %s", job_id, why)
                continue
            self.life.out.writes.transitions.append(
                Transition(
                    job_id,
                    Kind.FAILED,
                    state,  # type: ignore[arg-type]
                    # The state table allows no other end for a job that could never be placed.
                    to_state=JobState.FAILED,
                    version=version,
                    reason="Misconfigured",
                    message=f"The job cannot be read: {why}",
                )
            )

    def enqueue(self, job: LiveJob) -> None:
        self.life.know(job)
        for failed in load.failed_among(job.request.after_ok):
            self.life.out.deltas.append(JobEnded(failed, succeeded=False))
        self._submit(job)

    def _submit(self, job: LiveJob) -> None:
        held = job.is_held or self._waits_for_others(job)
        self.life.out.deltas.append(JobSubmitted(job.request, job.not_before, held))

    def tell_again(self, job: LiveJob) -> None:
        """Tell the engine of a job again after the places it may use have changed."""
        if job.state in WAITING:
            self._submit(job)
        else:
            self.life.out.deltas.append(JobChanged(job.request))

    def _waits_for_others(self, job: LiveJob) -> bool:
        """Whether the job waits for others.

        A divided cluster may not know them; then the job is routed again.
        """
        before = (*job.request.after, *job.request.after_ok)
        return self.scope != WHOLE and bool(before) and bool(load.open_among(before))

    def _replace(self, known: LiveJob, row: LiveJob) -> None:
        """Take over a person's change of a job. What it requests changes only while it waits."""
        known.state, known.version = row.state, row.version
        if row.state in WAITING:
            if (known.held, known.pod_hold) != (row.held, row.pod_hold):
                known.reason = ""  # the next reason is news again
            known.asked, known.contents, known.held = row.asked, row.contents, row.held
            known.notice_s, known.pod_hold = row.notice_s, row.pod_hold
            known.max_restarts, known.not_before = row.max_restarts, row.not_before
            self.life.volumes.judge(known)
            self._submit(known)

    def _adapt(self, known: LiveJob, row: LiveJob, now: float) -> None:
        """Take over a change of a started job's run limit, declared run time, or number of pods.

        The job may have lost its places since.
        """
        before, asked = known.request, row.asked
        known.asked = replace(
            known.asked,
            run_limit_s=asked.run_limit_s,
            declared_s=asked.declared_s,
            pod_sets=known.asked.pod_sets if known.plain else asked.pod_sets,
        )
        self.life.volumes.judge(known)
        if known.request != before:
            self.life.out.deltas.append(JobChanged(known.request))
            self.life.requeueing.let_surplus_go(known, now)
            self.life.follow(known, now)

    def let_go(self, job: LiveJob) -> None:
        """Forget a job that now waits in another scope or cluster, or whose row was never written.

        None of its pods was left here when it was sent away.
        """
        del self.life.jobs[job.id]
        self.life.starting.pop(job.id, None)
        self.life.out.deltas.append(JobEnded(job.id))

    def _differing(self) -> list[str]:
        """Return the jobs whose row and memory differ.

        Either a wake-up was lost, or rows were edited by hand. Jobs whose news is still unread are
        left to a later read, as no pass should read many thousands at once.
        """
        rows = load.versions(self.cluster_id, self.scope)
        known = {job.id: job.version for job in self.life.jobs.values()}
        found = [
            i for i, job in self.life.jobs.items() if i not in rows and job.state not in TERMINAL
        ]
        found += [i for i, version in rows.items() if known.get(i, version) != version]
        unknown = (i for i in rows if i not in known)
        return found if self._news.more else [*found, *islice(unknown, AT_ONCE)]

    # --- tenants, quotas, policy --------------------------------------------------------------
    def _look(self, found: DatabaseLook, clock: float) -> None:
        if found.settings != self.settings:
            self._read_tenancy(found)
        elif clock - self._used_at > USED_S:
            self._used_at = clock
            if self.scope == WHOLE and found.alone:
                return
            used = load.used_elsewhere(self.cluster_id, self.scope)
            jobs = load.jobs_elsewhere(self.cluster_id, self.scope)
            if (used, jobs) != (self.tenancy.used_elsewhere, self.tenancy.jobs_elsewhere):
                self._tell_tenancy()
            else:
                if any(q.max_running is not None or q.max_milli for q in self.queues.queues):
                    self._tell_queues()  # what its jobs hold elsewhere counts
                self._tell_others()

    def _read_tenancy(self, found: DatabaseLook) -> None:
        self.settings = found.settings
        cluster = Cluster.objects.get(id=self.cluster_id)
        if load.reached_by(cluster) != self._reached_by:
            raise Reopen(f"cluster {self.cluster_id} is reached in another way from now on")
        try:
            policy = load.policy(self.cluster_id)
        except (TypeError, ValueError) as error:
            log.error("policy of cluster %s ignored: %s", self.cluster_id, error)
        else:
            if policy.shards != self._shards:
                raise Reopen(f"the shards of cluster {self.cluster_id} are declared anew")
            self.life.scope.policy = policy
            self.life.out.deltas.append(PolicyChanged(policy))
        self.cordons = cordons(self.cluster_id)
        self.node_groups = groups_of(cluster.node_groups, cluster.label_map)
        self.provisioning_class = cluster.provisioning_class
        self._tell_tenancy()

    def _tell_tenancy(self) -> None:
        self.tenancy = load.tenancy(self.cluster_id, self.scope)
        # Read after the tenancy, so that every tenant the engine knows has a namespace.
        self.life.scope.namespaces = load.namespaces(self._namespace)
        self.life.volumes.judge_again()
        self.life.out.deltas.append(self.tenancy)
        self._tell_queues()
        self._tell_others()

    def _tell_queues(self) -> None:
        told = queues(self.cluster_id, self.scope)
        if told != self.queues:
            first = not self.queues.queues
            self.queues = told
            self.life.out.deltas.append(told)
            if first and (owed := debts(self.cluster_id, self.scope)):
                self.life.out.deltas.append(owed)

    def _tell_others(self) -> None:
        """Tell the engine what counts for fair share outside this scope."""
        others = OtherScopesChanged()
        if self.scope != WHOLE and self.life.scope.policy.fair_share:
            others = divided.others(self.cluster_id, self.scope)
        if others != self.others:
            self.others = others
            self.life.out.deltas.append(others)
