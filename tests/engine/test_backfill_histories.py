"""Backfill keeps its promises on random histories: it never delays the head, and no job starves.

The simulator acts as the shell: jobs arrive, start, end, lose their nodes and are preempted as the
engine decides.
"""

import math
import random
from dataclasses import replace

import pytest

from scheduling.engine.admission.limits import over_job_limit
from scheduling.engine.decisions import CycleResult
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.order import OrderKey, order_key
from scheduling.engine.types import Policy, PreemptionKind, QueueingPolicy, QuotaSpec, TenantSpec
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival, HardwareFault
from tests.cases import seeds
from tests.simulator.runs import arrival, machines, rows, simulation

NODES = 6
# (pods, GPUs of each): from one GPU to the whole cluster
SIZES = ((1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (4, 8), (NODES, 8))


def history(rng, jobs, *, every, longest=200.0, declare=lambda _, duration: duration, **more):
    """Return random gangs, on average one in `every` seconds."""
    at, found = 0.0, []
    for number in range(jobs):
        pods, gpus = rng.choice(SIZES)
        duration = float(rng.randint(1, int(longest)))
        wishes = {"declared_s": declare(rng, duration), "tenant": rng.choice("ab")}
        wishes |= {name: pick(rng) for name, pick in more.items()}
        found.append(arrival(f"j{number:03}", at, duration, pods=pods, gpus=gpus, **wishes))
        at += rng.choice((0, 1, 2 * every))
    return found


class Watched(Simulation):
    """A run that holds the engine to what it tells heads: a reservation only moves forward until
    more of a job starts, and then is kept.

    Jobs in front of a head that waited for quota or came back may start before it or take its
    places. A job that preempts by right does not wait for a head that waits for quota; a job that
    borrows nothing does not wait for a head that will borrow.
    """

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.told: dict[str, float] = {}
        self.borrowing: set[str] = set()
        self.by_quota: set[str] = set()
        self.kept = self.kept_by_quota = self.overtaken = 0

    def _carry_out(self, result: CycleResult, now: float) -> None:
        for start in result.started:
            at = self.told.pop(start.job_id, None)
            assert at is None or now <= at + 1e-6, (start.job_id, at, now)
            self.kept += at is not None
            self.kept_by_quota += at is not None and start.job_id in self.by_quota
            if not start.borrowed:
                tenant = self.state.jobs[start.job_id].job.tenant
                self._drop({j for j in self.borrowing if self._tenant(j) != tenant})
            key = self.state.jobs[start.job_id].key
            self.overtaken += any(self._key(other) < key for other in self.told)
            self._passed_by(key)
        for victim in result.preempted:
            self._passed_by(self._key(victim.by))
            self._drop(self.by_quota)
        for told in result.reservations:
            if told.start_at is None:
                self.told.pop(told.job_id, None)
            elif told.job_id not in self.told:  # it came back, or learns its start only now
                self._passed_by(self._key(told.job_id))
        last = {told.job_id: told for told in result.reservations}  # a cycle may revise its answer
        for told in last.values():
            if told.start_at is not None:
                assert told.start_at <= self.told.get(told.job_id, math.inf) + 1e-6, (told, now)
                self.told[told.job_id] = told.start_at
                self._note(self.state.jobs[told.job_id])
        assert all(at >= now - 1e-6 for at in self.told.values()), (self.told, now)
        super()._carry_out(result, now)

    def _note(self, record: JobRecord) -> None:
        """Record what a head waits for, if it was told its start: quota, and whether it borrows."""
        name = record.job.id
        if record.eq_class is None or record.expected is None:
            return  # it got places later in the same cycle
        limited = over_job_limit(self.state, record) is not None
        if limited or record.eq_class.refusal is not None:
            self.by_quota.add(name)
        if record.expected.hold.borrows:
            self.borrowing.add(name)
        else:
            self.borrowing.discard(name)

    def _drop(self, names: set[str]) -> None:
        """Forget what these jobs, and the jobs behind them, were told: they may start later."""
        waiting = [self.state.jobs[j] for j in names if j in self.state.jobs]
        first = min([r.key for r in waiting if r.eq_class is not None], default=None)
        if first is not None:
            self.told = {j: at for j, at in self.told.items() if self._key(j) < first}

    def _passed_by(self, key: OrderKey) -> None:
        self.told = {j: at for j, at in self.told.items() if self._key(j) < key}

    def _tenant(self, job_id: str) -> str:
        record = self.state.jobs.get(job_id)
        return "" if record is None else record.job.tenant

    def _key(self, job_id: str) -> OrderKey:
        return self.state.jobs[job_id].key


def watched(*args, **more) -> Watched:
    run = simulation(*args, of=Watched, **more)
    assert {state for _, _, state in rows(run.run()).values()} == {"SUCCEEDED"}
    return run


@pytest.mark.parametrize("gangs", [1.0, 0.5, 0.0], ids=["gangs", "both", "services"])
@pytest.mark.parametrize("seed", seeds(6))
def test_the_head_starts_no_later_than_it_was_ever_told(seed: int, gangs: float) -> None:
    """With exact declared times and one priority, each reservation is kept."""
    rng = random.Random(seed)
    policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=rng.choice((0, 50, 10_000)))
    stream = history(rng, 120, every=12, gang=lambda r: r.random() < gangs)
    run = watched(stream, nodes=NODES, policy=policy)
    assert run.kept > 5
    assert run.overtaken > 5, "nothing was backfilled: the history proves nothing"


@pytest.mark.parametrize("seed", seeds(6))
def test_nor_does_preemption_behind_a_head_delay_it(seed: int) -> None:
    """Owners take back what they lent, and heads take back what was backfilled past them."""
    rng = random.Random(seed)
    policy = Policy(
        QueueingPolicy.BACKFILL,
        backfill_after_s=rng.choice((0, 50)),
        preemption=tuple(PreemptionKind),
        min_runtime_s=5,
        max_preemptions=3,
    )
    stream = history(rng, 120, every=12, gang=lambda r: r.random() < 0.6)
    run = watched(stream, nodes=NODES, policy=policy, quota=rng.choice((24_000, 40_000)))
    assert sum(run.observer.jobs.preemptions) > 0
    assert run.kept > 0


class FirstInPools(Watched):
    """A run in which no head of a pool is passed by another that wants the pool too and finds no
    room."""

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.behind = 0

    def _carry_out(self, result: CycleResult, now: float) -> None:
        heads, jobs = self.state.queue_reservations.heads, self.state.jobs
        for eq_class in self.state.queue.eq_classes:
            for model in jobs[eq_class.head].job.pod_sets[0].gpu_models:
                head = jobs[heads[model].job_id]
                assert head.key <= jobs[eq_class.head].key, (head.job.id, eq_class.head, now)
                self.behind += head.job.id != eq_class.head
        super()._carry_out(result, now)


@pytest.mark.parametrize("seed", seeds(24))
def test_who_may_use_several_pools_keeps_its_place_in_each(seed: int) -> None:
    rng, stream = random.Random(seed), list[Arrival]()
    for one in history(rng, 150, every=12):
        models = rng.choice((("H100",), ("L4",), ("H100", "L4"), ("L4", "H100")))
        [asked] = one.job.pod_sets
        asked = replace(asked, gpu_models=models, count=min(asked.count, NODES // 2))
        stream.append(replace(one, job=replace(one.job, pod_sets=(asked,))))
    nodes = [replace(n, gpu_model=("H100", "L4")[i % 2]) for i, n in enumerate(machines(NODES))]
    policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=rng.choice((0, 50, 10_000)))
    quotas = [QuotaSpec(tenant, model, 10**9) for tenant in "ab" for model in ("H100", "L4")]
    tenants = (TenantSpec("a"), TenantSpec("b"))
    run = FirstInPools(tuple(nodes), stream, policy=policy, tenants=tenants, quotas=tuple(quotas))
    assert {state for _, _, state in rows(run.run()).values()} == {"SUCCEEDED"}
    assert run.behind > 50
    assert run.kept > 5


def liar(rng: random.Random, duration: float) -> float | None:
    """Declare no run time, the right one, or one that is far too short or too long."""
    return rng.choice((None, duration, max(1.0, duration / 4), duration * 3))


@pytest.mark.parametrize("declared", [False, True], ids=["none declared", "wrongly declared"])
@pytest.mark.parametrize("seed", seeds(4))
def test_no_head_starves_under_a_stream_of_small_jobs(seed: int, declared: bool) -> None:
    """Once all jobs ahead have started, a job waits at most the threshold and one run time; where
    jobs declare three times their run time, also the longest of these declared times."""
    rng = random.Random(seed)
    longest, after = 60.0, 30.0
    bound = after + longest + (3 * longest if declared else 0)
    declare = liar if declared else lambda *_: None
    policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=after, learned_run_times=False)
    stream = history(rng, 250, every=4, longest=longest, declare=declare)
    outcome = rows(simulation(stream, nodes=NODES, policy=policy).run())
    head_at, waits = 0.0, []
    for job in sorted((a.job for a in stream), key=order_key):
        started, _, state = outcome[job.id]
        assert state == "SUCCEEDED"
        waits.append(started - max(head_at, job.submitted_at))
        head_at = max(head_at, started)
    assert max(waits) > after, "no head was ever blocked for long: the history proves nothing"
    assert max(waits) <= bound


@pytest.mark.parametrize("kinds", [(), (PreemptionKind.BACKFILL,)], ids=["closed", "open"])
def test_an_overdue_head_lets_pass_whom_it_can_preempt(kinds: tuple[PreemptionKind, ...]) -> None:
    """The head starts when what ran before it has ended. Until then others may use what is free if
    their places can be taken back."""
    short = [arrival(f"s{at}", float(at), 300.0, gpus=4) for at in range(50, 1000, 50)]
    stubborn = arrival("stubborn", 60.0, 300.0, gpus=4, preemptible=False)
    stream = [
        arrival("before", 0.0, 1000.0),
        arrival("head", 1.0, 100.0, pods=NODES),
        *sorted([*short, stubborn], key=lambda a: a.submitted_at),
    ]
    policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=10, preemption=kinds)
    run = simulation(stream, nodes=NODES, policy=policy)
    found = rows(run.run())
    # A job that started more recently than the minimum run time is left running until then.
    assert 1000.0 <= found["head"][0] <= 1000.0 + policy.min_runtime_s
    assert found["stubborn"][0] >= found["head"][1]
    at_once = [a.job.id for a in short if found[a.job.id][1] == a.submitted_at + 300.0]
    assert len(at_once) == (14 if kinds else 0)
    preempted = [n for n in run.observer.jobs.preemptions if n]
    assert len(preempted) == (5 if kinds else 0)


@pytest.mark.parametrize("seed", seeds(4))
def test_no_borrower_starves_under_a_stream_of_small_borrowers(seed: int) -> None:
    """While the owner leaves its quota idle, a borrower waits at most the threshold and one run
    time after all jobs ahead have started, even if another tenant borrows less."""
    rng = random.Random(seed)
    longest, after = 60.0, 30.0
    tenants = tuple(TenantSpec(name) for name in ("a", "b", "owner"))
    quotas = (
        QuotaSpec("a", "H100", 0),
        QuotaSpec("b", "H100", 8_000, lend_limit=0),
        QuotaSpec("owner", "H100", NODES * 8_000),
    )
    stream = history(rng, 250, every=4, longest=longest, declare=lambda *_: None)
    policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=after, learned_run_times=False)
    nodes = machines(2 * NODES)  # GPUs are free: every job waits for quota
    run = Simulation(nodes, stream, policy=policy, tenants=tenants, quotas=quotas)
    outcome = rows(run.run())
    head_at, waits = 0.0, []
    for job in sorted((a.job for a in stream), key=order_key):
        started, _, state = outcome[job.id]
        assert state == "SUCCEEDED"
        waits.append(started - max(head_at, job.submitted_at))
        head_at = max(head_at, started)
    assert max(waits) > after, "nobody waited for long: the history proves nothing"
    assert max(waits) <= after + longest


@pytest.mark.parametrize("queueing", QueueingPolicy)
@pytest.mark.parametrize("seed", range(3))
def test_everything_ends_and_the_system_comes_to_rest(seed: int, queueing: QueueingPolicy) -> None:
    """With faults, priorities, lent quota and every kind of preemption, each job that could run
    runs to its end exactly once."""
    rng = random.Random(seed)
    policy = Policy(
        queueing,
        backfill_after_s=40,
        preemption=tuple(PreemptionKind),
        min_runtime_s=5,
        max_preemptions=3,
    )
    stream = history(
        rng,
        120,
        every=10,
        declare=liar,
        priority=lambda r: r.choice((0, 0, 0, 5, 9)),
        preemptible=lambda r: r.random() < 0.9,
    )
    names = [node.name for node in machines(NODES)]
    faults = [
        HardwareFault(float(rng.randint(0, 1500)), rng.choice(names), float(rng.randint(10, 200)))
        for _ in range(8)
    ]
    # Each tenant is guaranteed half; the other half is borrowed and comes back.
    half = NODES * 8 * 1000 // 2
    run = simulation(
        stream, nodes=NODES, policy=policy, quota=half, faults=sorted(faults, key=lambda f: f.at)
    )
    outcome = run.run()
    assert outcome.waiting == 0
    assert not outcome.never
    assert {state for _, _, state in rows(outcome).values()} == {"SUCCEEDED"}
    assert not run.state.jobs
    assert sum(outcome.observer.jobs.preemptions) > 0
