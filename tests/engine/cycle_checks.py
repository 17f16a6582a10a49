"""Check what must hold for the decisions of each cycle (cycles.py)."""

from scheduling.engine.admission.candidates import ask_of
from scheduling.engine.admission.out_of_service import within_reach
from scheduling.engine.cluster.cluster import PodKey
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import Preempted
from scheduling.engine.deltas import Delta
from scheduling.engine.types import (
    MILLI,
    PodPlacement,
    PreemptionKind,
    QueueingPolicy,
    TenantSpec,
)
from scheduling.engine.verdict import Reason


class Checks:
    """The state after a cycle and before it; the machine keeps both."""

    state: SchedulerState
    anew: SchedulerState
    now: float
    pending: list[Delta]
    leaving: list[Preempted]
    left_on: dict[PodKey, PodPlacement]
    pairs: set[tuple[str, str]]
    promised: set[str]
    disturbed: set[str]
    tenants: tuple[TenantSpec, ...]
    known: set[str]
    waits: dict[str, float]

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

    def _fixed_jobs_borrow_nothing_that_is_reclaimed(self, result, placed) -> None:
        """Where lent quota can be reclaimed, a non-preemptible job starts only if guarantees cover
        all non-preemptible use of its tenant and of every tenant above it."""
        if PreemptionKind.RECLAIM not in self.state.policy.preemption:
            return
        book = self.state.book
        got = {s.job_id for s in result.started} | set(self.state.promised)
        for name in got:
            record = self.state.jobs[name]
            if record.job.preemptible:
                continue
            had = {(p.pod_set, p.ordinal) for p in placed.get(name, ())}
            # GPUs of other models may date from when the job was still preemptible.
            for model in {m for pod, (m, milli) in record.pods.items() if milli and pod not in had}:
                for tenant in book.lineage(record.job.tenant):
                    account = book.account(tenant, model)
                    if account is not None:
                        non_preemptible = sum(
                            milli
                            for other in self.state.jobs.values()
                            if not other.job.preemptible
                            and tenant in book.lineage(other.job.tenant)
                            for on, milli in other.pods.values()
                            if on == model
                        )
                        assert non_preemptible <= account.guaranteed

    def _ran_before(self, name: str) -> bool:
        return self.state.jobs[name].started_at < self.now

    def _asking_everybody_decides_the_same(self, result) -> None:
        again = run_cycle(self.anew, self.pending, self.now)
        assert result.started == again.started
        assert result.preempted == again.preempted
        assert result.moved == again.moved
        assert result.reservations == again.reservations
        # Compare class by class: the order of their jobs does not matter.
        assert sorted(result.quota_reserved) == sorted(again.quota_reserved)
        assert sorted(result.quota_lost) == sorted(again.quota_lost)

    def _behind_for_quota(self, name: str) -> bool:
        verdict = self.state.jobs[name].verdict
        if verdict is None or verdict.reason is not Reason.BEHIND_IN_QUEUE:
            return False
        ahead = self.state.jobs.get(str(verdict.evidence["ahead"]))
        if ahead is None or ahead.eq_class is None:
            return False
        return ahead.eq_class.refusal is not None or self._behind_for_quota(ahead.job.id)

    def _preemptions_are_sound(self, result) -> None:
        self.promised -= {start.job_id for start in result.started}
        for name in sorted(self.promised):
            record = self.state.jobs.get(name)
            if record is None or record.nomination is None:
                assert name in self.disturbed, f"{name} preempted others and does not start"
                self.promised.remove(name)
        self.disturbed.clear()
        just_started = {
            (s.job_id, p.pod_set, p.ordinal) for s in result.started for p in s.placements
        }
        assert not any((v.job_id, *pod) in just_started for v in result.preempted for pod in v.pods)
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
            assert by.nomination is not None
            assert self.state.cluster.placements_of(victim.by)
            self.promised.add(victim.by)
        self.leaving += result.preempted

    def _who_loses_a_place_has_had_it_long_enough(self, result, since) -> None:
        """`since`: for each job that ran before the cycle, its start and the time at which it got
        each place."""
        for victim in result.preempted:
            started, places = since[victim.job_id]
            gang = self.state.jobs[victim.job_id].job.gang
            whole = gang and victim.whole
            just_started = [started] if whole else [places[pod] for pod in victim.pods]
            assert max(just_started) + self._min_runtime(victim.job_id) <= self.now
        for move in result.moved:
            started, places = since[move.job_id]
            had = started if move.whole else places[move.pod_set, move.ordinal]
            assert had + self._min_runtime(move.job_id) <= self.now

    def _who_takes_it_has_waited_for_long_enough(self, result) -> None:
        waits, jobs = self.waits, self.state.jobs

        def since(name: str) -> float:
            new = jobs[name].job.submitted_at
            return waits.get(name, self.now if name in self.known else new)

        for victim in result.preempted:
            if victim.kind is not PreemptionKind.BACKFILL:
                assert since(victim.by) + self.state.policy.preempt_after_s <= self.now
        standing = {key[3] for eq_class in self.state.queue.eq_classes for key in eq_class.jobs}
        self.waits = {name: since(name) for name in standing | set(self.state.promised)}
        self.known = set(jobs)

    def _min_runtime(self, name: str) -> float:
        """Return the value of the nearest tenant at or above the job's that sets one, else the
        policy's."""
        tenants = {tenant.id: tenant for tenant in self.tenants}
        at = tenants[self.state.jobs[name].job.tenant]
        while at.min_runtime_s is None and at.parent is not None:
            at = tenants[at.parent]
        policy = self.state.policy.min_runtime_s
        return policy if at.min_runtime_s is None else at.min_runtime_s

    def _moves_are_sound(self, result, placed) -> None:
        started = {start.job_id for start in result.started}
        assert len({move.job_id for move in result.moved}) == len(result.moved)
        for move in result.moved:
            record, pod = self.state.jobs[move.job_id], (move.pod_set, move.ordinal)
            (before,) = (p for p in placed[move.job_id] if (p.pod_set, p.ordinal) == pod)
            (after,) = (p for p in record.nomination.placements if (p.pod_set, p.ordinal) == pod)
            assert (before.node, after.node) == (move.source, move.target)
            assert before.milli * len(before.devices) == after.milli * len(after.devices)
            assert record.job.preemptible
            assert move.whole == record.job.gang
            assert move.cost_gpu_s >= 0.0
            if move.whole:
                assert record.job.pods == 1
                assert self.state.policy.defragments
            assert move.job_id not in started
            self.leaving.append(
                Preempted(move.job_id, (pod,), move.whole, "", PreemptionKind.BACKFILL, 0.0)
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
        """Strict FIFO: no job overtakes, in any of its pools, a job that passes quota and still
        waits; and no gang grows in those pools, whatever its place in the order."""
        policy = self.state.policy
        if policy.queueing is not QueueingPolicy.STRICT_FIFO or self.state.by_shares:
            return
        if result.preempted:
            return
        for start in result.started:
            record = self.state.jobs[start.job_id]
            if start.job_id in held:
                continue
            used = {self.state.pools.model_of[p.node] for p in start.placements}
            grows = record.job.gang and self._ran_before(start.job_id)
            for eq_class in self.state.queue.eq_classes:
                if eq_class.never is not None or eq_class.refusal is not None:
                    continue
                if eq_class.failure is not None and eq_class.failure.will_never_run:
                    continue
                if self._behind_for_quota(eq_class.head) or self._over_job_limit(eq_class.head):
                    continue
                for key in eq_class.jobs:
                    other = self.state.jobs[key[3]]
                    if other is not record and (grows or key < record.key):
                        contested = used & within_reach(self.state, other)
                        assert all(
                            self._closed_by_quota(other, model)
                            or self._was_closed_by_quota(other, model, result)
                            for model in contested
                        )

    def _over_job_limit(self, name: str) -> bool:
        verdict = self.state.jobs[name].verdict
        at_its_limit = verdict is not None and verdict.reason is Reason.QUEUE_LIMIT_REACHED
        return at_its_limit or (verdict is not None and "max_running" in verdict.evidence)

    def _was_closed_by_quota(self, record, model: str, result) -> bool:
        """Whether a job ahead closed its quota only until jobs that started in this cycle brought
        its tenant to its limit. It blocks nobody any more."""
        book = self.state.book
        own = book.chain(record.job.tenant, model)[:1]
        tenants = {self.state.jobs[start.job_id].job.tenant for start in result.started}
        grown = {name for tenant in tenants for name in book.lineage(tenant)}
        for eq_class in self.state.queue.eq_classes:
            ahead = self.state.jobs[eq_class.head]
            limited = ahead.verdict is not None and "max_running" in ahead.verdict.evidence
            if (
                limited
                and eq_class.refusal is not None
                and ahead.key < record.key
                and ahead.verdict.evidence["tenant"] in grown
                and own == book.chain(ahead.job.tenant, model)[:1]
            ):
                return True
        return False

    def _closed_by_quota(self, record, model: str) -> bool:
        way, book, tenant = self.state.queue_reservations, self.state.book, record.job.tenant
        chain = book.chain(tenant, model)
        if chain and (chain[0].tenant, model) in way.accounts:
            return True
        starts = [start for way in ask_of(self.state, record).ways for start in way.starts]
        return bool(way.kept) and all(
            book.refusal_of(tenant, start, frozenset(way.kept))
            for start in starts
            if model in start
        )
