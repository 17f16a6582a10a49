"""A state machine that takes random steps through the cycle and checks the invariants after
each."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduling.engine import deltas as d
from scheduling.engine.cluster.cluster import PodKey
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import Preempted
from scheduling.engine.memo import Memo
from scheduling.engine.running.preemptible import PreemptibleIndex
from scheduling.engine.types import (
    MILLI,
    JobKind,
    JobRequest,
    Node,
    PodPlacement,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from tests.engine.cycle_checks import Checks
from tests.engine.scenario import ASKS, job, node
from tests.engine.test_quota_book import check_balance

TENANTS = (TenantSpec("a"), TenantSpec("b"), TenantSpec("dept"), TenantSpec("c", "dept"))
NODES = {"n0": (8, "H100"), "n1": (8, "H100"), "n2": (8, "H100"), "n3": (4, "L4"), "n4": (4, "L4")}
LEAVES = {"n0": "l0", "n1": "l0", "n2": "l1", "n3": "l1", "n4": "l1"}
SORTS = ("", "", "fixed", "preempts=no", "uses_spares=yes", "kind=inference", "kind=inference")
# What preemptions can fail for: a network group, nodes, CPU.
HARD = (
    "required_level=leaf",
    "max_per_node=1",
    "cpu_milli=60000",
    "required_level=leaf slice_size=1",
)
QUOTAS = st.fixed_dictionaries(
    {
        (tenant.id, model): st.builds(
            QuotaSpec,
            st.just(tenant.id),
            st.just(model),
            st.sampled_from((0, 4000, 8000, 24000)),
            st.sampled_from(Sharing),
            st.sampled_from((None, 2000, 8000)),
            st.sampled_from((None, 0, 4000)),
        )
        for tenant in TENANTS
        for model in ("H100", "L4")
    }
).map(lambda rows: tuple(rows.values()))


class Cycles(Checks, RuleBasedStateMachine):
    policies = tuple(QueueingPolicy)
    queue_names = ("default",)  # jobs name these in turn

    def __init__(self, *, leaves: bool = True) -> None:
        super().__init__()
        self.leaves = leaves
        self.state = SchedulerState(memo=Memo(check_share=1.0))
        self.anew = SchedulerState(memo=Memo.off())
        self.now = 0.0
        self.count = 0
        self.alive: dict[str, JobRequest] = {}
        self.pending: list[d.Delta] = [d.NodeChanged(self.node(name)) for name in NODES]
        self.tenants = TENANTS
        self.quotas = tuple(QuotaSpec(t.id, m, 24000) for t in TENANTS for m in ("H100", "L4"))
        self.pending.append(d.TenantsChanged(self.tenants, self.quotas))
        self.pending.append(d.PolicyChanged(Policy(QueueingPolicy.STRICT_FIFO)))
        self.leaving: list[Preempted] = []
        self.left_on: dict[PodKey, PodPlacement] = {}  # the places that pods still hold
        self.pairs: set[tuple[str, str]] = set()  # (victim, preemptor)
        self.promised: set[str] = set()
        self.disturbed: set[str] = set()  # preemptors that something happened to meanwhile
        self.known: set[str] = set()
        self.waits: dict[str, float] = {}  # each wait for places, observed here

    @rule(
        asks=st.sampled_from(ASKS),
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from((0, 0, 5)),
        gang=st.booleans(),
        held=st.sampled_from((False, False, True)),
        wait=st.sampled_from((0, 0, 30)),
        declared=st.sampled_from((0, 0, 20, 100)),
        elastic=st.booleans(),
        sort=st.sampled_from((*SORTS, *HARD)),
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
        words += [f"user={'xyz'[self.count % 3]}"]
        words += [f"queue={self.queue_names[self.count % len(self.queue_names)]}"]
        request = job(f"j{self.count}", tenant, asks, *words, at=self.now)
        self.count += 1
        self.alive[request.id] = request
        self.pending.append(d.JobSubmitted(request, self.now + wait, held))

    @rule(most=st.sampled_from((10.0, 40.0)), middles=st.sampled_from(((), (5.0,), (20.0, 60.0))))
    def learn(self, most: float, middles: tuple[float, ...]) -> None:
        """Announce a learned run time for every other job, waiting or running."""
        likely = d.LearnedTime(most, middles)
        self.pending.append(d.RunTimesLearned(tuple((i, likely) for i in sorted(self.alive)[::2])))

    def node(self, name: str) -> Node:
        where = {"topology": (LEAVES[name], "", "")} if self.leaves else {}
        return node(name, *NODES[name], **where)

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
    def turns_fixed_or_not(self, pick: int) -> None:
        if name := self._some(pick):
            record, before = self.state.jobs.get(name), self.alive[name]
            if record is None or record.left or record.nomination is not None:
                return
            changed = self.alive[name] = replace(before, preemptible=not before.preemptible)
            self.pending.append(d.JobSubmitted(changed, record.not_before, record.held))

    @rule(pick=st.integers(0, 99), count=st.integers(1, 9))
    def resize(self, pick: int, count: int) -> None:
        """Change the count of the first pod set; of a running gang only if it is elastic."""
        if name := self._some(pick):
            before, record = self.alive[name], self.state.jobs.get(name)
            first, *others = before.pod_sets
            runs = record is not None and (record.started_at is not None or record.left)
            if before.gang and runs and first.min_count is None:
                return
            changed = replace(first, count=max(count, first.min_count or 1))
            self.alive[name] = replace(before, pod_sets=(changed, *others))
            self.disturbed.add(name)
            self.pending.append(d.JobChanged(self.alive[name]))

    @rule(pick=st.integers(0, 99))
    def surplus_is_gone(self, pick: int) -> None:
        """Remove the last pod of a job that was made smaller."""
        names = sorted(
            name
            for name, record in self.state.running.items()
            if name in self.alive
            and name not in self.state.promised
            and sum(at == 0 for at, _ in record.pods) > self.alive[name].pod_sets[0].count
        )
        if names:
            name = names[pick % len(names)]
            last = max(where for where in self.state.jobs[name].pods if where[0] == 0)
            self.pending.append(d.PodRequeued(name, *last, self.now))

    @rule(pick=st.integers(0, 99))
    def pod_ends(self, pick: int) -> None:
        name = self._some(pick)
        if name and name in self.state.promised:
            return  # its pods do not run yet
        if name and (places := self.state.cluster.placements_of(name)):
            self.pending.append(d.PodEnded(name, places[0].pod_set, places[0].ordinal))

    @rule(pick=st.integers(0, 99))
    def pod_fails(self, pick: int) -> None:
        """Place the last pod of a job that can do without it again, on another node."""
        name = self._some(pick)
        if not name or name in self.state.promised:
            return
        *others, last = self.state.cluster.placements_of(name) or [None]
        if others and self.alive[name].goes_on_with((p.pod_set, p.ordinal) for p in others):
            where = (last.pod_set, last.ordinal)
            self.pending.append(d.PodRequeued(name, *where, self.now + 10, (last.node,)))

    @rule(name=st.sampled_from(sorted(NODES)), up=st.booleans())
    def node_comes_or_goes(self, name: str, up: bool) -> None:
        facts = self.node(name)
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
        facts = self.node(name)
        devices = tuple(replace(it, healthy=it.index != device) for it in facts.devices)
        self.disturbed |= self.promised
        self.pending.append(d.NodeChanged(replace(facts, devices=devices)))

    @rule(quotas=QUOTAS, most=st.sampled_from((None, None, 1, 3)))
    def change_quotas(self, quotas: tuple[QuotaSpec, ...], most: int | None = None) -> None:
        self.tenants = tuple(replace(t, max_running=most) for t in self.tenants)
        self.quotas = quotas
        self.pending.append(d.TenantsChanged(self.tenants, self.quotas))

    @rule(pick=st.integers(0, 99))
    def protect_or_not(self, pick: int) -> None:
        """Give a tenant its own minimum run time, or remove it."""
        at, seconds = pick % len(TENANTS), (None, 0.0, 20.0, 60.0, 300.0)[pick % 5]
        changed = replace(self.tenants[at], min_runtime_s=seconds)
        self.tenants = (*self.tenants[:at], changed, *self.tenants[at + 1 :])
        self.pending.append(d.TenantsChanged(self.tenants, self.quotas))

    @rule(pick=st.integers(0, 9), preempt=st.booleans(), users=st.booleans())
    def switch_policy(self, pick: int, preempt: bool, users: bool = False) -> None:
        together = pick % 2 == 1  # pods that were spread before now move together
        policy = Policy(
            self.policies[pick % len(self.policies)],
            blame_s=30,
            backfill_after_s=40,
            preemption=tuple(PreemptionKind) if preempt else (),
            preempt_after_s=25 if users and pick % 3 == 1 else 0,
            min_runtime_s=10,
            max_preemptions=3,
            fair_share=pick % 4 == 3,
            fair_users=users and pick % 4 == 3,
            spare_nodes={"H100": 1} if pick % 5 == 4 else {},
            consolidation=together,
            defrag_loss=1.0 if pick % 3 == 0 else 0.0,
            defrag_moves=1 + pick,
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
        since = {
            name: (record.started_at, {pod: record.placed_since(pod) for pod in record.pods})
            for name, record in self.state.running.items()
        }
        way = self.state.queue_reservations
        result = run_cycle(self.state, self.pending, self.now)
        self._fixed_jobs_borrow_nothing_that_is_reclaimed(result, placed)
        self._asking_everybody_decides_the_same(result)
        assert not result.wrong, result.wrong
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
        self._who_loses_a_place_has_had_it_long_enough(result, since)
        self._who_takes_it_has_waited_for_long_enough(result)
        if result.next_at is not None and result.next_at <= self.now:
            return
        told = not self.state.dirty  # otherwise the job may now wait for quota
        again = run_cycle(self.state, (), self.now)
        self.anew.dirty |= (
            self.state.queue_reservations is not way
        )  # otherwise much time may have passed
        asked = run_cycle(self.anew, (), self.now)
        assert not asked.started
        assert not asked.preempted
        assert not asked.moved
        assert not asked.reservations
        assert not again.started
        assert not again.preempted
        assert not again.moved
        assert not told or (not again.waiting and again.stats.attempts == 0)

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
        bookings = self.state.book.bookings
        assert {name: b.held for name, b in bookings.items()} == held
        assert all(
            b.non_preemptible != self.state.jobs[name].job.preemptible
            for name, b in bookings.items()
        )

    @invariant()
    def what_users_hold_is_what_their_jobs_hold(self) -> None:
        """Where the policy tells users apart, no lane holds jobs of two users."""
        if self.pending:
            return
        users = self.state.usage.users
        assert (users is not None) == self.state.policy.fair_users
        if users is None:
            split = {n for n, queue in self.state.queues.known.items() if queue.fair_users}
            for eq_class in self.state.queue.eq_classes:
                assert not eq_class.user or (eq_class.tenant, eq_class.queue) in split
            return
        held: dict[tuple[tuple[str, str], str], int] = {}
        for record in self.state.jobs.values():
            for model, milli in record.pods.values():
                if milli:
                    key = ((record.job.tenant, record.job.user), model)
                    held[key] = held.get(key, 0) + milli
        assert users.now == held
        for eq_class in self.state.queue.eq_classes:
            of = {
                (j.tenant, j.user) for j in (self.state.jobs[key[3]].job for key in eq_class.jobs)
            }
            assert of == {(eq_class.tenant, eq_class.user)}

    @invariant()
    def what_is_exposed_is_what_runs(self) -> None:
        if self.pending:
            return  # the next cycle finds out what they change
        known = self.state.preemptible_jobs
        anew = PreemptibleIndex(self.state.cluster, self.state)
        for record in self.state.running.values():
            anew.touch(record)
        assert sorted(known.groups()) == sorted(anew.groups())
        for whose in known.groups():
            assert known.of(whose, self.now) == anew.of(whose, self.now)
        groups = tuple(known.groups())
        for by in (self.now, math.inf):
            *sums, shares = known.freed(groups, by)
            *fresh, of_shares = anew.freed(groups, by)
            assert np.array_equal(sums, fresh)
            assert shares == of_shares

    @invariant()
    def who_owes_whom_adds_up(self) -> None:
        for model in ("H100", "L4"):
            check_balance(self.state.book, model)

    @invariant()
    def no_job_is_lost_or_twice(self) -> None:
        if self.pending:
            return
        assert set(self.state.jobs) == set(self.alive)
        standing = [key[3] for eq_class in self.state.queue.eq_classes for key in eq_class.jobs]
        assert len(standing) == len(set(standing))
        for name, record in self.state.jobs.items():
            parked = record.held or record.not_before > self.now
            parked |= self.state.queues.why_held(record.job) is not None
            if record.nomination is not None or record.left:
                assert name not in standing
            elif record.started_at is None:
                assert (name in standing) != parked
                assert record.verdict is not None

    def teardown(self) -> None:
        """Once nothing new arrives, every victim leaves and every job ends. Then every job that can
        start does; the rest are held or have been told that they never will."""
        self.victim_is_gone(0)
        self.pending += [d.OtherPodRemoved(f"other on {name}") for name in NODES]
        self.pending.append(d.PolicyChanged(replace(self.state.policy, spare_nodes={})))
        self.pending += [d.NodeChanged(self.node(name)) for name in NODES]
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
