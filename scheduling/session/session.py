"""The live loop's memory of one scope: news in, one engine cycle, rows and effects out.

A session lives in the scheduler process that leads the scope, which is the whole cluster unless
shards are declared. It can be rebuilt from the database and the Kubernetes API at any time; losing
it loses nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from datetime import UTC, datetime
from time import sleep

from scheduling.engine.cluster.constraints import in_order
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import (
    Delta,
    JobEnded,
    JobRequeued,
    NodeRemoved,
    PodRequeued,
)
from scheduling.engine.memo import Memo
from scheduling.engine.shards.division import WHOLE, WIDE, home_of
from scheduling.engine.states import WAITING, JobState
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import Node, Shard
from scheduling.kube.door.gateway import STOP_WITHIN_S, Gateway
from scheduling.kube.seam import (
    BudgetGone,
    BudgetSeen,
    Connected,
    CreateService,
    DeleteService,
    DevicesGone,
    DevicesSeen,
    Disconnected,
    EffectDone,
    NamespaceGone,
    NamespaceSeen,
    NodeFacts,
    NodeGone,
    NodeSeen,
    Observation,
    PodFacts,
    PodGone,
    PodSeen,
    ProvisioningGone,
    ProvisioningSeen,
    ProvisioningServed,
    ServiceGone,
    ServiceSeen,
    StorageGone,
    StorageSeen,
)
from scheduling.kube.translate.health import DEAD
from scheduling.models import Cluster
from scheduling.session import aside, restore
from scheduling.session.bites import Bites
from scheduling.session.changes import Changes, Reopen
from scheduling.session.devices.books import DeviceBooks
from scheduling.session.lending import Borrower, Lender
from scheduling.session.memory import divided
from scheduling.session.memory.ended_runs import LEARNED_FROM, learn_runs
from scheduling.session.memory.live import Offer, PodKey, Transition, Writes
from scheduling.session.memory.nodes import Nodes
from scheduling.session.memory.to_come import NodesToCome
from scheduling.session.pace import Backlog, Pace
from scheduling.session.passes import Pass, is_about, split
from scheduling.session.pods.budgets import Budgets
from scheduling.session.pods.drain import drained, opened
from scheduling.session.pods.filters import nodes_by_filter
from scheduling.session.pods.follow import Lifecycle
from scheduling.session.pods.leftovers import Leftovers
from scheduling.session.pods.node_loss import NodeLoss
from scheduling.session.pods.services import Services
from scheduling.session.routing import Router
from scheduling.simulator.forecast.learned import LearnedTimes
from scheduling.simulator.forecast.run_times import RunTimes

log = logging.getLogger(__name__)

AT_ONCE = 500  # jobs in one transaction
# What was due longer ago than this is decided as of now, so that recorded waits are not too short.
LATE_S = 1.0
AGAIN_S = 0.25  # until the next decision on a job that has to see others' places first


class Session:
    """One scope of a cluster as the scheduler process sees it; used by one thread."""

    def __init__(
        self,
        cluster: Cluster,
        on_news: Callable[[], None],
        scope: str = WHOLE,
        shards: Sequence[Shard] = (),
        check_share: float = 0.0,
    ) -> None:
        self.cluster_id = cluster.pk
        self.scope = scope
        self.shards = shards
        self._check_share = check_share
        self.gateway = Gateway(
            cluster.access, namespace=cluster.namespace, label_map=cluster.label_map
        )
        self.news = threading.Event()
        self.on_news = on_news
        self.life = Lifecycle(self._is_closed)
        self.life.plain.by_filter = lambda pod_set: nodes_by_filter(self.state.cluster, pod_set)
        self.life.plain.promised = self._promised
        self.budgets = Budgets()
        self.services = Services(self.life.jobs)
        self.leftovers = Leftovers(cluster, scope, shards, self.life)
        self.nodes = Nodes(scope, shards, self.life.out)
        self.to_come = NodesToCome()
        self.node_loss = NodeLoss()
        self._begin()
        self.changes = Changes(cluster, scope, shards, self.life)
        self.router = None
        if shards and scope == WIDE:
            self.router = Router(self.changes, shards, lambda: self.state.cluster.company)
        self.lending: Lender | Borrower | None = None
        if shards:
            self.life.foreign.mine = self.nodes.mine
            self._devices.inventory.divided = True
            self.lending = (Borrower if scope == WIDE else Lender)(self.changes, self.nodes)
        self.pace = Pace()
        self.connected = False
        self.trouble = ""
        self.next_at: float | None = None  # when to decide even without news
        self._first: list[Observation] = []
        self._cycled = self._claimed = False
        self._at = 0.0  # of the last cycle
        self._bites = Bites()
        self._asks_for_nodes = False  # whether ProvisioningRequests are watched
        self._learned: LearnedTimes | None = None

    # --- start ------------------------------------------------------------------------------------
    def connect(self) -> None:
        """Begin to list nodes and pods; return at once."""
        self.gateway.on_news(self._ring)
        self.gateway.start()

    def listed(self, now: float) -> None:
        """Take in what the gateway listed, once it is synced.

        Afterwards the nodes are known, with the devices that drivers report.
        """
        first = self.gateway.drain()
        of_nodes = NodeSeen, DevicesSeen
        self._first = [seen for seen in first if not isinstance(seen, of_nodes)]
        self._observe((seen for seen in first if isinstance(seen, of_nodes)), now)

    @property
    def first_pods(self) -> list[PodFacts]:
        """The pods of the cluster, between `listed` and `restore`."""
        return [seen.pod for seen in self._first if isinstance(seen, PodSeen)]

    def restore(self, mine: Set[str], now: float, still_leads: Callable[[], None]) -> None:
        """Take up what was begun: reconcile intents with what the API says.

        `mine`: the nodes of the scope, by their rows. `still_leads` is called between the steps,
        each of which may take long; it raises if the lease is lost, as going on is useless then.
        """
        self.changes.start()
        self.nodes.cordoned(self.changes.cordons)
        # A job holds GPUs of the model that its nodes have when it is taken up.
        self._tell_devices()
        self._arrived(mine)
        still_leads()
        restore.take_up_jobs(self.changes)
        still_leads()
        self._observe(self._first, now)
        still_leads()
        # Before anything is deleted: pods that a budget protects are evicted instead.
        self.life.out.deltas += self.budgets.changed(self.life.jobs)
        restore.finish_what_was_begun(self.life, self.nodes, self._first, now)
        self._first = []

    def stop(self, within: float = STOP_WITHIN_S) -> bool:
        """End all traffic; return whether that was done within this many seconds."""
        return self.gateway.stop(within)

    def wait_for_news(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether there is news to take in."""
        rest = self.rest()
        if rest >= seconds:
            sleep(seconds)
            return False
        if rest:
            sleep(rest)
        return self.news.wait(seconds - rest)

    @property
    def is_loaded(self) -> bool:
        """Whether news arrives so fast that passes are put off."""
        return self._bites.are_large

    def rest(self) -> float:
        """Return for how many seconds to collect news before the next pass; 0 = it may begin."""
        due = self.next_at is not None and self.next_at <= time.time()
        return 0.0 if due or self._has_backlog else self._bites.rest()

    @property
    def busy(self) -> bool:
        """Whether effects are under way whose results will come soon."""
        return any(
            pod.in_flight
            for job in (*self.life.starting.values(), *self.life.leave.jobs.values())
            for pod in job.pods.values()
        )

    @property
    def pending(self) -> bool:
        """Whether there is more to take in: rows, or what the last pass itself tells the engine."""
        told = self.connected and self.life.out.deltas
        return bool(self._has_backlog or told)

    @property
    def _has_backlog(self) -> bool:
        """Whether the last pass left work that was already there."""
        out = self.life.out
        more = self.changes.more or self._claimed or out.writes or out.effects
        return bool(more or (self.connected and self.life.plain.has_more))

    @property
    def backlog(self) -> Backlog:
        return Backlog(self.pace.waiting, self.gateway.waiting, self.changes.more)

    @property
    def settings(self) -> tuple[object, ...]:
        """A value that changes with tenants, queues, quotas, the policy and cluster settings."""
        return self.changes.settings

    def take_changed_nodes(self) -> tuple[list[NodeFacts], set[str]]:
        """Return nodes whose rows are to be written, and names of nodes whose rows are to go.

        The latter left the cluster, and no pod holds anything on them any more.
        """
        nodes, keepers, others = (
            self.nodes,
            self.life.volumes.keepers,
            self.life.volumes.anti_affinity,
        )
        for name in sorted(keepers.changed | others.changed):
            nodes.keepers_seen(name, keepers.rules_on(name), others.rules_on(name))
        keepers.changed.clear()
        others.changed.clear()
        gone = {name for name in nodes.gone if self.state.is_idle(name)}
        nodes.deleted(gone)
        return nodes.changed(self.state.cluster), gone

    # --- one pass ---------------------------------------------------------------------------------
    def decide_due(self) -> Pass | None:
        """Decide what was due by the passing of time alone, as of that instant.

        Otherwise the decision would depend on what else happened before the process got to it.
        """
        due = self.next_at
        if due is None or not self._at <= due <= time.time() < due + LATE_S:
            return None
        return self._decided([], due)

    def decide(self, take_up: Callable[[Sequence[Offer]], None]) -> Pass:
        """Take in everything new, run one engine cycle, and return what is to be written and done.

        `take_up` makes jobs of plain pods, which the same pass decides about.
        """
        if self.life.out.writes.transitions:
            # From the start, or after somebody else wrote first: the rows are older than these.
            return self._take_out(time.time())
        self.news.clear()
        # Rows first: compare them with what was committed, not with what this pass changes.
        self.changes.read(time.time(), at_leisure=not self.gateway.waiting)
        self.nodes.cordoned(self.changes.cordons)
        self._look_for_nodes()
        seen = self.gateway.drain()
        self._bites.took(len(seen) + self.changes.came)
        now = time.time()  # no decision about a job is dated before the job came
        self._observe(seen, now)
        if not self.connected:
            # Decisions would fail at the gateway and count against the jobs, and pods that cannot
            # be seen are not late. What the engine is to hear waits.
            self.next_at = None
            return self._take_out(now)
        self._tell_limits()
        self._tell_devices()
        self._tell_of_nodes_to_come()
        if self.shards and self.life.foreign.groups:
            self.nodes.rules_speak()
        for job in self.life.volumes.judged():
            self.changes.tell_again(job)
        self.life.overdue(now)
        self._lose_nodes(now)
        takes_up = self.scope in (WHOLE, WIDE)  # the scope that routes new jobs
        self.life.plain.look_after(takes_up=takes_up, again=self.changes.counted, now=now)
        self.life.out.deltas += self.budgets.changed(self.life.jobs)
        self._drain(now)
        self.life.foreign.delete_leftovers(self.leftovers.pods, self.life.out)
        again = self.changes.counted or not self._cycled
        self.services.look_after(self.leftovers.services, self.life.out, again=again)
        if offers := self.life.out.writes.offers:
            take_up(offers)
            self.life.plain.answered(offers)
            self.changes.taken_up(offers)
            now = time.time()  # these jobs came meanwhile
        new_kinds = self._devices.demands.new_kinds
        self._tell_devices()  # of kinds of devices that new jobs ask for
        if new_kinds:  # otherwise what others hold would look free for one pass
            self.life.volumes.devices.tell_held(of_others=True)
        self._tell_of_nodes_to_come()
        self._divide(now)
        self.changes.look_back(now)
        deltas, self.life.out.deltas = self.life.out.deltas, []
        return self._decided(deltas, now)

    def _learn(self, deltas: list[Delta], now: float) -> list[Delta]:
        """Return the run times to tell the engine, if the policy plans by learned run times."""
        if not self.life.scope.policy.plans_by_learned:
            self._learned = None
            return []
        if self._learned is None:
            known = RunTimes()
            since = datetime.fromtimestamp(now, UTC) - LEARNED_FROM
            learn_runs(known, self.cluster_id, since)
            self._learned = LearnedTimes(known, self._name_of)
        return self._learned.follow(deltas, self.state.jobs, now)

    def _name_of(self, job_id: str) -> str:
        job = self.life.jobs.get(job_id)
        return job.name if job is not None else ""

    def _decided(self, deltas: list[Delta], now: float) -> Pass:
        self.life.out.at = now
        deltas += self._learn(deltas, now)
        result = self._cycle(deltas, now)
        self.next_at, self._at = result.next_at, now
        self.life.lost(result.lost, self._is_dead, now)
        for victim in result.preempted:
            self.life.preempted(victim, now)
        self.life.room_made(result.preempted)
        for move in result.moved:
            self.life.moved(move, now)
        for job_id in result.quota_lost:
            self.life.quota_changed(job_id, Kind.QUOTA_LOST)
        for job_id in result.quota_reserved:
            self.life.quota_changed(job_id, Kind.QUOTA_RESERVED)
        for decision in result.started:
            nodes = {p.node: self.nodes.known(p.node) for p in decision.placements}
            self.life.started(decision, nodes, now)
            self.services.make(self.life.jobs[decision.job_id], self.life.out)
        self.life.volumes.follow_volumes(now)
        for limit in result.run_limits:
            self.life.run_limit(limit, now)
        # The wide scope's own nodes say little about why its jobs wait; the borrower reports that.
        for waiting in result.waiting if self.scope != WIDE else ():
            self.life.waiting(waiting, now)
        for waiting in result.staying:
            self.life.stays(waiting)
        if self.connected:
            self._ask_for_nodes(now)
        self.life.out.writes.reservations += result.reservations
        self.life.out.writes.blocked += result.blocked
        for place in result.stand_at:
            self.life.stands(place)
        return self._take_out(now)

    def _ask_for_nodes(self, now: float) -> None:
        groups, class_name = self.changes.node_groups, self.changes.provisioning_class
        if class_name and not self._asks_for_nodes:
            self._asks_for_nodes = True
            self.gateway.follow_provisioning()
        ours = self.leftovers.looked_after
        self.life.look_after_nodes_to_come(groups, class_name, ours, now)

    def _promised(self, job_id: str) -> dict[PodKey, str]:
        record = self.state.promised.get(job_id)
        held = record.nomination if record is not None else None
        return {(p.pod_set, p.ordinal): p.node for p in held.placements} if held else {}

    def _begin(self) -> None:
        """Start an engine that knows nothing yet."""
        memo = Memo(check_share=self._check_share)
        self.state = SchedulerState(told_of_runs=True, memo=memo)
        self.nodes.follow(self.state.cluster)

    def _cycle(self, deltas: list[Delta], now: float) -> CycleResult:
        """Run one engine cycle. A waiting job that makes the first one raise is set aside.

        An error in a later cycle propagates: the session is rebuilt, and its first cycle sees
        everything.
        """
        while True:
            try:
                began = time.perf_counter()
                result = run_cycle(self.state, deltas, now)
            except Exception:
                found = None if self._cycled else aside.culprit(deltas, now)
                if found is None:
                    raise
                log.exception("job %s is set aside: the scheduling cycle fails with it", found)
                self._set_aside(found)
                deltas = aside.without(deltas, [found])
                self._begin()
            else:
                self._cycled = True
                self._tell_wrong(result)
                self.pace.decided(result.stats, time.perf_counter() - began)
                return result

    def _tell_wrong(self, result: CycleResult) -> None:
        """Log remembered answers that were wrong. They are errors of Kant; their effects remain."""
        for wrong in result.wrong:
            log.error(
                "wrong answer remembered in scope %r of cluster %s: %s, of %s: remembered %s, "
                "found anew %s",
                *(self.scope, self.cluster_id, *wrong),
            )

    def _set_aside(self, job_id: str) -> None:
        job = self.life.jobs.pop(job_id)
        text = f"Internal error of the scheduler; its log has the details under job {job_id}."
        failed = Transition(
            job_id, Kind.FAILED, job.state, JobState.FAILED, job.version, "InternalError", text
        )
        self.life.out.writes.transitions.append(failed)
        self.life.out.deltas.append(JobEnded(job_id, succeeded=False))  # for jobs that wait for it

    def finish(
        self,
        decided: Pass,
        stale: set[str],
        events: Sequence[int] = (),
        put_back: Set[str] = frozenset(),
        taken_back: Set[str] = frozenset(),
    ) -> None:
        """Send the effects after the commit, and read stale jobs again (somebody else wrote first).

        - `put_back`: stale jobs that are decided about again after AGAIN_S.
        - `taken_back`: jobs that were not written; their plain pods are offered again.
        - `events`: ids of the events written about what is known here.
        """
        self.changes.wrote(events)
        effects = [e for e in decided.effects if not is_about(e, stale)]
        self.pace.sent += len(effects)
        self.gateway.submit(effects)
        for job_id in stale:
            self.services.forget(job_id)
            self._undo(job_id, decided.at + (AGAIN_S if job_id in put_back else 0.0))
        for job_id in taken_back:
            if (job := self.life.jobs.get(job_id)) is not None:
                self.changes.let_go(job)
                self.life.plain.taken_back(job)
        if stale:
            self.changes.refresh(stale, decided.at)
        for job_id in put_back:
            job = self.life.jobs.get(job_id)
            if job is not None and job.state in WAITING:
                again = JobRequeued(job_id, decided.at + AGAIN_S, front=job.front)
                self.life.out.deltas.append(again)

    def _take_out(self, now: float) -> Pass:
        self.life.plain.tell_why()
        out = self.life.out
        # Deltas that the decisions themselves caused wait for the next cycle.
        writes, out.writes = out.writes, Writes()
        effects, out.effects = out.effects, []
        return split(writes, effects, now, AT_ONCE)

    # --- observations -----------------------------------------------------------------------------
    def _observe(self, observations: Iterable[Observation], now: float) -> None:
        for seen in observations:
            self.life.out.at = now
            if isinstance(seen, EffectDone):
                self.pace.ended(seen.effect, seen.outcome)
                self.life.out.at = seen.at
            match seen:
                case EffectDone(effect=CreateService() | DeleteService() as effect):
                    self.services.done(effect, seen.outcome)
                case EffectDone(effect=effect, outcome=outcome):
                    self.life.effect_done(effect, outcome, now)
                case PodSeen(pod=pod):
                    self.life.volumes.says(pod)
                    self.life.pod_seen(pod, now)
                case PodGone(pod=pod):
                    self.life.volumes.is_silent(pod.uid)
                    self.life.pod_gone(pod, now)
                case NodeSeen(facts=facts):
                    self.nodes.seen(facts)
                    self.to_come.node_changed()
                    known = self.nodes.known(facts.node.name)
                    told = self.nodes.told(facts.node.name)
                    self._devices.inventory.node_seen(known, told)
                    self.node_loss.seen(facts, now)
                    self.life.volumes.anti_affinity.node_seen(facts.node)
                    self.life.volumes.zones.seen(facts.node)
                    if self.router is not None:
                        self.router.node_seen(facts.node)
                case NodeGone(name=name):
                    self.nodes.vanished(name)
                    self.to_come.node_changed()
                    self._devices.inventory.node_gone(name)
                    self.node_loss.gone(name)
                    self.life.volumes.zones.gone(name)
                    if self.router is not None:
                        self.router.node_gone(name)
                case BudgetSeen(budget=budget):
                    self.budgets.seen(budget)
                case BudgetGone(budget=budget):
                    self.budgets.gone(budget)
                case ServiceSeen(service=service):
                    self.services.seen(service)
                case ServiceGone(service=service):
                    self.services.gone(service, self.life.out)
                case ProvisioningSeen(facts=facts):
                    self.life.provisioning.seen(facts)
                case ProvisioningGone(facts=facts):
                    self.life.provisioning.gone(facts)
                case ProvisioningServed(trouble=trouble):
                    self.life.provisioning.served(trouble)
                case NamespaceSeen(facts=facts):
                    self.life.volumes.namespace_seen(facts)
                case NamespaceGone(facts=facts):
                    self.life.volumes.namespace_gone(facts)
                case StorageSeen(facts=facts):
                    self.life.volumes.storage.seen(facts)
                case StorageGone(facts=facts):
                    self.life.volumes.storage.gone(facts)
                case DevicesSeen(facts=facts):
                    self._devices.seen(facts)
                case DevicesGone(facts=facts):
                    self._devices.gone(facts)
                case Connected():
                    if self.trouble:
                        self.life.scope.sees_since = now
                    self.connected, self.trouble = True, ""
                case Disconnected(reason=reason):
                    self.connected, self.trouble = False, reason
        self.life.out.at = now

    def _tell_limits(self) -> None:
        """Tell nodes their changed volume limits."""
        storage = self.life.volumes.storage
        for name in sorted(storage.changed_limits):
            known = storage.limits.get(name)
            self.nodes.limits_seen(name, known.limits if known is not None else {})
        storage.changed_limits.clear()

    @property
    def _devices(self) -> DeviceBooks:
        return self.life.volumes.devices.books

    def _tell_devices(self) -> None:
        """Tell nodes their changed devices, also when new kinds of devices are counted."""
        books = self._devices
        inventory, demands = books.inventory, books.demands
        changed = inventory.changed
        if demands.new_kinds:
            changed.update(inventory.nodes)
        if changed or demands.new_kinds:
            self.to_come.node_changed()
        demands.new_kinds = False
        while changed:
            name = changed.pop()
            if name in self.nodes.facts:
                self.nodes.devices_seen(name, books.gpus(name), books.on_node(name))
                inventory.node_seen(self.nodes.known(name), self.nodes.told(name))

    def _tell_of_nodes_to_come(self) -> None:
        """Tell the engine which nodes an autoscaler may add, if that changed."""
        groups, devices = self.changes.node_groups, self._devices.on_nodes_to_come
        for delta in self.to_come.changes(groups, self.nodes.there, devices):
            name = delta.name if isinstance(delta, NodeRemoved) else delta.node.name
            if self.router is not None:
                if isinstance(delta, NodeRemoved):
                    self.router.node_gone(name)
                else:  # to route jobs as if the nodes existed
                    self.router.node_seen(in_order(delta.node))
            if isinstance(delta, NodeRemoved) or self._is_at_home(delta.node):
                self.life.out.deltas.append(delta)
        self._devices.inventory.nodes_may_come(self.to_come.nodes)

    def _is_at_home(self, node: Node) -> bool:
        return home_of(node, self.shards) == self.scope

    def _lose_nodes(self, now: float) -> None:
        """Let pods leave whose node has not answered for too long, or evicts them."""
        again = self.changes.counted or not self._cycled
        jobs, pods_on = self.life.jobs, self.state.cluster.pods_on
        found = self.node_loss.lost(jobs, pods_on, self.life.scope.policy, now, again=again)
        for why, keys in found.items():
            self.life.lost(keys, self._is_dead, now, why)

    def _drain(self, now: float) -> None:
        """Let pods leave drained nodes when their drain is due."""
        cordons, pods_on = self.changes.cordons, self.state.cluster.pods_on
        for decision in drained(cordons, self.life.jobs, pods_on, now):
            self.life.drained(decision, self.budgets.allowed(decision.job.id), now)
        self.life.out.writes.opened += opened(cordons, self.state.is_idle, now)

    def _is_dead(self, node: str) -> bool:
        """Whether nothing on the node can receive a warning."""
        facts = self.nodes.facts.get(node)
        return facts is None or any(taint.key in DEAD for taint in facts.node.taints)

    def _is_closed(self, node: str) -> bool:
        facts = self.nodes.facts.get(node)
        return facts is not None and not facts.node.schedulable

    def _ring(self) -> None:
        self.news.set()
        self.on_news()

    def _undo(self, job_id: str, now: float) -> None:
        """Undo what was decided about a stale job: none of it was written or done.

        Its new pods never existed, and none of its pods was deleted.
        """
        job = self.life.jobs.get(job_id)
        if job is None:
            return
        job.version = -1  # its row may have the version that this step would have led to
        for pod in job.pods.values():
            pod.delete_sent_at = None
        forgotten = [p for p in job.pods.values() if not p.row]
        self.life.volumes.devices.undone(job, forgotten)
        for pod in forgotten:
            job.forget(pod)
        if job.pods:
            again = (PodRequeued(job_id, *pod.key, now) for pod in forgotten)
            self.life.out.deltas.extend(again)
        else:
            self.life.starting.pop(job_id, None)
            # The job waits until its row is read again; if it was cancelled, it ends then.
            self.life.out.deltas.append(JobRequeued(job_id, now, front=job.front))

    # --- own nodes --------------------------------------------------------------------------------
    def _look_for_nodes(self) -> None:
        """Take over nodes whose rows name this scope; claim new nodes that are at home here.

        Nobody else takes nodes from a scope, so their count tells whether any came.
        """
        nodes, changes = self.nodes, self.changes
        if self._claimed or (changes.looked and nodes.mine != nodes.facts.keys()):
            self._claimed = False
            if divided.count_nodes(self.cluster_id, self.scope) != len(nodes.mine):
                new = divided.nodes_of(self.cluster_id, self.scope) - nodes.mine
                if divided.jobs_on(self.cluster_id, self.scope, new):
                    raise Reopen(f"nodes came to scope {self.scope!r} with jobs on them")
                self._arrived(new)
        # Only when all are counted, as claims of nodes that another scope has fail each time.
        if changes.counted:
            nodes.look_for_unclaimed()
        if nodes.unclaimed:
            claims = [nodes.facts[name] for name in sorted(nodes.unclaimed)]
            nodes.unclaimed.clear()
            self.life.out.writes.claims += claims
            self._claimed = True

    def _arrived(self, names: Set[str]) -> None:
        self.nodes.arrived(names)
        self.to_come.node_changed()
        if self.shards:
            for name in sorted(names):
                self.life.foreign.node_arrived(name, self.life.out)

    def _divide(self, now: float) -> None:
        """Do what only a divided cluster needs."""
        if self.router is not None:
            self.router.run()
        if self.lending is not None and self._cycled:
            self.lending.run(self.state, now)
