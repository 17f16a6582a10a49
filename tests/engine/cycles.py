"""A machine of random steps through the cycle; what must hold after each of them."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduling.engine import deltas as d
from scheduling.engine.cluster import PodKey
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import Preempted
from scheduling.engine.queueing.admission import ask_of, pools_wanted
from scheduling.engine.queueing.waiting import UNASKED, UNPLANNED, Merge
from scheduling.engine.types import (
    MILLI,
    JobKind,
    JobRequest,
    PodPlacement,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    Quota,
    QuotaMode,
    Tenant,
)
from scheduling.engine.verdict import Reason
from tests.engine.scenario import ASKS, job, node
from tests.engine.test_quota_book import check_balance

TENANTS = (Tenant("a"), Tenant("b"), Tenant("dept"), Tenant("c", "dept"))
NODES = {"n0": (8, "H100"), "n1": (8, "H100"), "n2": (8, "H100"), "n3": (4, "L4"), "n4": (4, "L4")}
SORTS = ("", "", "fixed", "preempts=no", "uses_spares=yes", "kind=inference", "kind=inference")
QUOTAS = st.fixed_dictionaries(
    {
        (tenant.id, model): st.builds(
            Quota,
            st.just(tenant.id),
            st.just(model),
            st.sampled_from((0, 4000, 8000, 24000)),
            st.sampled_from(QuotaMode),
            st.sampled_from((None, 2000, 8000)),
            st.sampled_from((None, 0, 4000)),
        )
        for tenant in TENANTS
        for model in ("H100", "L4")
    }
).map(lambda rows: tuple(rows.values()))


class AsksEverybody(SchedulerState):
    """Each walk over the queue asks every lane and remembers nothing of what failed before."""

    def next_walk(self) -> Merge:
        self.dirty = True
        for lane in self.queue.lanes:
            lane.settled = None
            lane.failed_at = lane.quota_at = UNASKED
            lane.unplanned_at = UNPLANNED
            lane.ask = lane.would_start = None
        for record in self.jobs.values():
            record.in_vain.clear()
        self.asks.clear()
        self.possible.clear()
        self.forecasts.clear()
        self.cluster.infeasible.clear()
        return super().next_walk()


class Cycles(RuleBasedStateMachine):
    policies = tuple(QueueingPolicy)

    def __init__(self) -> None:
        super().__init__()
        self.state = SchedulerState()
        self.anew = AsksEverybody()
        self.now = 0.0
        self.count = 0
        self.alive: dict[str, JobRequest] = {}
        self.pending: list[d.Delta] = [
            d.NodeChanged(node(name, *facts)) for name, facts in NODES.items()
        ]
        quotas = tuple(Quota(t.id, m, 24000) for t in TENANTS for m in ("H100", "L4"))
        self.pending.append(d.TenantsChanged(TENANTS, quotas))
        self.pending.append(d.PolicyChanged(Policy(QueueingPolicy.STRICT_FIFO)))
        self.leaving: list[Preempted] = []
        self.left_on: dict[PodKey, PodPlacement] = {}  # where they still are
        self.pairs: set[tuple[str, str]] = set()  # (victim, preemptor)
        self.promised: set[str] = set()
        self.disturbed: set[str] = set()  # preemptors that something happened to meanwhile

    @rule(
        asks=st.sampled_from(ASKS),
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from((0, 0, 5)),
        gang=st.booleans(),
        held=st.sampled_from((False, False, True)),
        wait=st.sampled_from((0, 0, 30)),
        declared=st.sampled_from((0, 0, 20, 100)),
        elastic=st.booleans(),
        sort=st.sampled_from(SORTS),
    )
    def submit(
        self,
        asks: str,
        tenant: str,
        priority: int,
        gang: bool,
        held: bool,
        wait: int,
        declared: int,
        elastic: bool = False,
        sort: str = "",
    ) -> None:
        words = [f"p{priority}"] + ([] if gang else ["pods"]) + sort.split()
        words += [f"s={declared}"] if declared else []
        words += ["min=1"] if elastic else []
        request = job(f"j{self.count}", tenant, asks, *words, at=self.now)
        self.count += 1
        self.alive[request.id] = request
        self.pending.append(d.JobSubmitted(request, self.now + wait, held))

    def _some(self, pick: int) -> str | None:
        names = sorted(self.alive)
        return names[pick % len(names)] if names else None

    @rule(pick=st.integers(0, 99))
    def end(self, pick: int) -> None:
        if name := self._some(pick):
            self.disturbed.add(name)
            del self.alive[name]
            self.pending.append(d.JobEnded(name))

    @rule(pick=st.integers(0, 99))
    def requeue(self, pick: int) -> None:
        if name := self._some(pick):
            self.disturbed.add(name)
            self.pending.append(d.JobRequeued(name, self.now + 20, ("n0",)))

    @rule(pick=st.integers(0, 99))
    def hold_or_release(self, pick: int) -> None:
        if name := self._some(pick):
            self.disturbed.add(name)
            held = not self.state.jobs[name].held if name in self.state.jobs else True
            self.pending.append(d.JobSubmitted(self.alive[name], 0.0, held))

    @rule(pick=st.integers(0, 99))
    def pod_ends(self, pick: int) -> None:
        name = self._some(pick)
        if name and name in self.state.promised:
            return  # its pods do not run yet
        if name and (places := self.state.cluster.placements_of(name)):
            self.pending.append(d.PodEnded(name, places[0].pod_set, places[0].ordinal))

    @rule(pick=st.integers(0, 99))
    def pod_fails(self, pick: int) -> None:
        """The last pod of a job that can do without it is placed again, not on its node."""
        name = self._some(pick)
        if not name or name in self.state.promised:
            return
        *others, last = self.state.cluster.placements_of(name) or [None]
        if others and self.alive[name].goes_on_with((p.pod_set, p.ordinal) for p in others):
            where = (last.pod_set, last.ordinal)
            self.pending.append(d.PodRequeued(name, *where, self.now + 10, (last.node,)))

    @rule(name=st.sampled_from(sorted(NODES)), up=st.booleans())
    def node_comes_or_goes(self, name: str, up: bool) -> None:
        facts = node(name, *NODES[name])
        self.disturbed |= self.promised
        self.pending.append(d.NodeChanged(facts) if up else d.NodeRemoved(name))

    @rule(name=st.sampled_from(sorted(NODES)), gpus=st.integers(0, 3))
    def others_come_or_go(self, name: str, gpus: int) -> None:
        self.disturbed |= self.promised
        other = d.OtherPodChanged(f"other on {name}", name, gpus, 1000, 1000)
        self.pending.append(other if gpus else d.OtherPodRemoved(other.uid))

    @rule(pick=st.integers(0, 99), allowed=st.sampled_from((None, 0, 1, 5)))
    def budget(self, pick: int, allowed: int | None) -> None:
        if name := self._some(pick):
            self.pending.append(d.DisruptionBudget(name, allowed))

    @rule(pick=st.integers(0, 99))
    def checkpoint(self, pick: int) -> None:
        if name := self._some(pick):
            self.pending.append(d.Checkpointed(name, self.now))

    @rule(name=st.sampled_from(sorted(NODES)), device=st.integers(0, 7))
    def device_breaks(self, name: str, device: int) -> None:
        facts = node(name, *NODES[name])
        devices = tuple(replace(it, healthy=it.index != device) for it in facts.devices)
        self.disturbed |= self.promised
        self.pending.append(d.NodeChanged(replace(facts, devices=devices)))

    @rule(quotas=QUOTAS, most=st.sampled_from((None, None, 1, 3)))
    def change_quotas(self, quotas: tuple[Quota, ...], most: int | None = None) -> None:
        tenants = tuple(replace(t, max_running=most) for t in TENANTS)
        self.pending.append(d.TenantsChanged(tenants, quotas))

    @rule(pick=st.integers(0, 9), preempt=st.booleans())
    def switch_policy(self, pick: int, preempt: bool) -> None:
        together = pick % 2 == 1  # what was spread before is moved now
        policy = Policy(
            self.policies[pick % len(self.policies)],
            blame_s=30,
            backfill_after_s=40,
            preemption=tuple(PreemptionKind) if preempt else (),
            min_runtime_s=10,
            max_preemptions=3,
            fair_share=pick % 4 == 3,
            spare_nodes={"H100": 1} if pick % 5 == 4 else {},
            consolidation=together,
            strategies=dict.fromkeys(JobKind, "binpack" if together else "native"),
        )
        self.pending.append(d.PolicyChanged(policy))

    @rule(pick=st.integers(0, 99))
    def victim_is_gone(self, pick: int) -> None:
        if not self.leaving:
            return
        victim = self.leaving.pop(pick % len(self.leaving))
        if victim.whole:
            self.pending.append(d.JobRequeued(victim.job_id, self.now))
        else:
            self.pending += [d.PodEnded(victim.job_id, *pod) for pod in victim.pods]

    @rule(seconds=st.sampled_from((1, 10, 60)))
    def cycle(self, seconds: int) -> None:
        self.now += seconds
        edited = any(isinstance(delta, d.TenantsChanged) for delta in self.pending)
        before = {} if edited else {a.tenant + a.gpu_model: a.used for a in self._isolated()}
        placed = {name: self.state.cluster.placements_of(name) for name in self.state.jobs}
        held = set(self.state.promised)
        way = self.state.in_the_way
        result = run_cycle(self.state, self.pending, self.now)
        self._asking_everybody_decides_the_same(result)
        self.pending = []
        self._gangs_come_whole_and_grow(result)
        for account in self._isolated():
            used = before.get(account.tenant + account.gpu_model)
            if used is not None and account.used > used:
                assert account.used <= account.guaranteed
        self._nobody_overtook(result, held)
        self._places_are_empty_when_they_are_given(result, placed)
        self._preemptions_are_sound(result)
        self._moves_are_sound(result, placed)
        if result.next_at is not None and result.next_at <= self.now:
            return
        told = not self.state.dirty  # else quota may be what a job waits for now
        again = run_cycle(self.state, (), self.now)
        self.anew.dirty |= self.state.in_the_way is not way  # else much time may have passed
        asked = run_cycle(self.anew, (), self.now)
        assert not asked.started
        assert not asked.preempted
        assert not asked.moved
        assert not asked.reservations
        assert not again.started
        assert not again.preempted
        assert not again.moved
        assert not told or (not again.waiting and again.considered == 0)

    def _gangs_come_whole_and_grow(self, result) -> None:
        seen = {name for name in self.state.running if self._ran_before(name)}
        for start in result.started:
            record = self.state.jobs[start.job_id]
            if record.job.gang:
                wanted = sum(s.min_count or s.count for s in record.job.pod_sets)
                if start.job_id in seen:
                    assert record.job.elastic
                    assert not record.ended
                else:
                    assert len(start.placements) >= wanted
                seen.add(start.job_id)
                assert len(record.pods) >= wanted
                on = {(i, model) for (i, _), (model, milli) in record.pods.items() if milli}
                assert len(on) == len({i for i, _ in on}), "a pod set on two GPU models"

    def _ran_before(self, name: str) -> bool:
        return self.state.jobs[name].started_at < self.now

    def _asking_everybody_decides_the_same(self, result) -> None:
        again = run_cycle(self.anew, self.pending, self.now)
        assert result.started == again.started
        assert result.preempted == again.preempted
        assert result.moved == again.moved
        assert result.reservations == again.reservations
        assert result.quota_reserved == again.quota_reserved
        assert result.quota_lost == again.quota_lost

    def _behind_for_quota(self, name: str) -> bool:
        verdict = self.state.jobs[name].verdict
        if verdict is None or verdict.reason is not Reason.BEHIND_IN_QUEUE:
            return False
        ahead = self.state.jobs.get(str(verdict.evidence["ahead"]))
        if ahead is None or ahead.lane is None:
            return False
        return ahead.lane.refusal is not None or self._behind_for_quota(ahead.job.id)

    def _preemptions_are_sound(self, result) -> None:
        self.promised -= {start.job_id for start in result.started}
        for name in sorted(self.promised):
            record = self.state.jobs.get(name)
            if record is None or record.promise is None:
                assert name in self.disturbed, f"{name} preempted others and does not start"
                self.promised.remove(name)
        self.disturbed.clear()
        begun = {(s.job_id, p.pod_set, p.ordinal) for s in result.started for p in s.placements}
        assert not any((v.job_id, *pod) in begun for v in result.preempted for pod in v.pods)
        for victim in result.preempted:
            pair = (victim.job_id, victim.by)
            assert pair[::-1] not in self.pairs, "two jobs preempted each other"
            self.pairs.add(pair)
            lost, by = self.state.jobs[victim.job_id], self.state.jobs[victim.by]
            assert lost.job.preemptible
            assert lost.preemptions <= 3
            assert victim.cost_gpu_s >= 0
            if victim.kind is not PreemptionKind.RECLAIM:
                assert lost.job.priority <= by.job.priority
            assert by.promise is not None
            assert self.state.cluster.placements_of(victim.by)
            self.promised.add(victim.by)
        self.leaving += result.preempted

    def _moves_are_sound(self, result, placed) -> None:
        started = {start.job_id for start in result.started}
        assert len({move.job_id for move in result.moved}) == len(result.moved)
        for move in result.moved:
            record, pod = self.state.jobs[move.job_id], (move.pod_set, move.ordinal)
            (before,) = (p for p in placed[move.job_id] if (p.pod_set, p.ordinal) == pod)
            (after,) = (p for p in record.promise.placements if (p.pod_set, p.ordinal) == pod)
            assert (before.node, after.node) == (move.source, move.target)
            assert before.milli * len(before.devices) == after.milli * len(after.devices)
            assert record.job.preemptible
            assert not record.job.gang
            assert move.job_id not in started
            self.leaving.append(
                Preempted(move.job_id, (pod,), False, "", PreemptionKind.BACKFILL, 0.0)
            )

    def _isolated(self) -> list:
        return [a for a in self.state.book.accounts() if not a.shared]

    def _places_are_empty_when_they_are_given(self, result, placed) -> None:
        for victim in result.preempted:
            for p in placed[victim.job_id]:
                if (p.pod_set, p.ordinal) in victim.pods:
                    self.left_on[victim.job_id, p.pod_set, p.ordinal] = p
        for move in result.moved:
            for p in placed[move.job_id]:
                if (p.pod_set, p.ordinal) == (move.pod_set, move.ordinal):
                    self.left_on[move.job_id, p.pod_set, p.ordinal] = p
        for key in list(self.left_on):
            record = self.state.jobs.get(key[0])
            if record is None or key[1:] not in record.leaving:
                del self.left_on[key]
        on = list(self.left_on.values())
        for name in self.state.running:
            on += self.state.cluster.placements_of(name) if name not in self.state.promised else ()
        used: dict[tuple[str, int], int] = {}
        for p in on:
            for device in p.devices:
                used[p.node, device] = used.get((p.node, device), 0) + p.milli
        assert all(milli <= MILLI for milli in used.values())

    def _nobody_overtook(self, result, held) -> None:
        """Strict FIFO: who passes quota and still waits was not overtaken in any of its pools, and
        no gang grows in them, whatever its place in the order."""
        policy = self.state.policy
        if policy.queueing is not QueueingPolicy.STRICT_FIFO or policy.fair_share:
            return
        if result.preempted:
            return
        for start in result.started:
            record = self.state.jobs[start.job_id]
            if start.job_id in held:
                continue
            used = {self.state.pools.model_of[p.node] for p in start.placements}
            grows = record.job.gang and self._ran_before(start.job_id)
            for lane in self.state.queue.lanes:
                if lane.never is not None or lane.refusal is not None:
                    continue
                if lane.failure is not None and lane.failure.will_never_run:
                    continue
                if self._behind_for_quota(lane.head) or self._over_job_limit(lane.head):
                    continue
                for key in lane.jobs:
                    other = self.state.jobs[key[3]]
                    if other is not record and (grows or key < record.key):
                        contested = used & pools_wanted(self.state, other)
                        assert all(self._closed_by_quota(other, model) for model in contested)

    def _over_job_limit(self, name: str) -> bool:
        verdict = self.state.jobs[name].verdict
        return verdict is not None and "max_running" in verdict.evidence

    def _closed_by_quota(self, record, model: str) -> bool:
        way, book, tenant = self.state.in_the_way, self.state.book, record.job.tenant
        chain = book.chain(tenant, model)
        if chain and (chain[0].tenant, model) in way.accounts:
            return True
        starts = [start for way in ask_of(self.state, record).ways for start in way.starts]
        return bool(way.kept) and all(
            book.refusal_of(tenant, start, frozenset(way.kept))
            for start in starts
            if model in start
        )

    @invariant()
    def no_device_holds_more_than_one_gpu(self) -> None:
        used: dict[tuple[str, int], int] = {}
        for name in self.state.jobs:
            for p in self.state.cluster.placements_of(name):
                for device in p.devices:
                    used[p.node, device] = used.get((p.node, device), 0) + p.milli
        assert all(milli <= MILLI for milli in used.values())

    @invariant()
    def books_equal_what_is_placed(self) -> None:
        held = {}
        for name, record in self.state.jobs.items():
            places = self.state.cluster.placements_of(name)
            assert {(p.pod_set, p.ordinal) for p in places} == set(record.pods)
            for model, milli in record.pods.values():
                if milli:
                    held.setdefault(name, {}).setdefault(model, 0)
                    held[name][model] += milli
        assert {name: b.held for name, b in self.state.book.bookings.items()} == held

    @invariant()
    def who_owes_whom_adds_up(self) -> None:
        for model in ("H100", "L4"):
            check_balance(self.state.book, model)

    @invariant()
    def no_job_is_lost_or_twice(self) -> None:
        if self.pending:
            return
        assert set(self.state.jobs) == set(self.alive)
        standing = [key[3] for lane in self.state.queue.lanes for key in lane.jobs]
        assert len(standing) == len(set(standing))
        for name, record in self.state.jobs.items():
            parked = record.held or record.not_before > self.now
            if record.promise is not None or record.left:
                assert name not in standing
            elif record.started_at is None:
                assert (name in standing) != parked
                assert record.verdict is not None

    def teardown(self) -> None:
        """Once nothing new comes, every victim goes and every job ends: all that can start does,
        and who is left is held or has been told that it never will."""
        self.victim_is_gone(0)
        self.pending += [d.OtherPodRemoved(f"other on {name}") for name in NODES]
        self.pending.append(d.PolicyChanged(replace(self.state.policy, spare_nodes={})))
        self.pending += [d.NodeChanged(node(name, *facts)) for name, facts in NODES.items()]
        at_rest = 0
        for _ in range(200):
            busy = self.pending or self.leaving or self.state.running or self.state.promised
            at_rest = 0 if busy else at_rest + 1
            if at_rest > 5:  # longer than any back-off, blame or threshold
                break
            while self.leaving:
                self.victim_is_gone(0)
            for name in sorted(self.state.running):
                self.alive.pop(name, None)
                self.disturbed.add(name)
                self.pending.append(d.JobEnded(name))
            self.cycle(60)
        assert not self.state.promised
        assert not self.state.running
        for name, record in self.state.jobs.items():
            verdict = record.verdict
            assert record.held or (verdict and verdict.will_never_run), (name, verdict)
