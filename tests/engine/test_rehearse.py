"""A rehearsal says what the next cycle does with the job, and changes nothing."""

import random
from dataclasses import replace

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.lifecycle import reorganise
from scheduling.engine.preemption import preempt
from scheduling.engine.rehearse import Instead, Places, Rehearsal, copied, rise, submitted
from scheduling.engine.types import (
    PodSetSpec,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.engine.verdict import Reason
from tests.cases import seeds
from tests.engine.cycles import NODES, SORTS, Cycles
from tests.engine.scenario import ASKS, job, node


def digest(state: SchedulerState) -> object:
    """Return everything that later decisions depend on."""
    cluster, book = state.cluster, state.book
    columns = ("facts", "usable", "free_mask", "free", "partial", "cpu", "memory", "pods")
    return repr((
        [list(getattr(cluster, name)) for name in columns],
        [list(cluster.allocated), list(cluster.available), list(cluster.nic_mask)],
        {name: cluster.placements_of(name) for name in sorted(state.jobs)},
        (cluster.version, cluster.gains, cluster.times, cluster.infeasible, cluster.followers),
        [(a.tenant, a.gpu_model, a.used, a.over, a.lendable) for a in book.accounts()],
        (book.version, book.loosened, book.tightened, book.booked, book.returned, book.bookings),
        sorted((name, told(record)) for name, record in state.jobs.items()),
        [(c.key, c.jobs, c.reserved, c.found) for c in state.queue.eq_classes],
        (state.queue.ordered, list(state.queue.touched), state.queue_reservations, state.dirty),
        [sorted(it) for it in (state.running, state.promised, state.growing, state.reserving)],
        (state.placed, state.parked, state.look),
        (state.dependencies._failed, state.dependencies._arrays),
        (state.usage.tenants.now, state.usage.users and state.usage.users.now),
        (state.memo._shapes, state.memo._for_a_while, sorted(map(sorted, state.forecasts))),
    ))  # fmt: skip


def told(record) -> tuple[object, ...]:
    pods = sorted(record.pods.items()), sorted(record.placed_at.items()), sorted(record.ended)
    return (
        *(record.key, record.held, record.not_before, record.reserved, record.verdict, pods),
        *(record.started_at, record.blocked_since, record.expected, record.preemptions),
        record.stands_at,
        *(sorted(record.preempted_by), sorted(record.leaving), record.nomination, record.found),
    )


def test_the_next_cycle_does_what_the_rehearsal_says(monkeypatch) -> None:
    monkeypatch.setattr(preempt, "PLANS_PER_CYCLE", 1 << 30)
    monkeypatch.setattr(reorganise, "LOOK_S", 5.0)
    seen = dict.fromkeys(("starts", "makes room", "waits", "reserved", "instead"), 0)
    for seed in seeds(4, usual=24):
        busy_cluster(random.Random(seed), seed, seen)
    assert all(seen.values()), seen


def busy_cluster(rng: random.Random, seed: int, seen: dict[str, int]) -> None:
    world = Cycles()
    for step in range(130):
        draw, pick = rng.random(), rng.randrange(100)
        if step % 50 == 0:
            world.switch_policy(step // 50 + seed, preempt=step % 100 == 0)
        if draw < 0.2:
            world.end(pick)
        elif draw < 0.35:
            world.victim_is_gone(pick)
        elif draw < 0.38:
            rng.choice((world.requeue, world.hold_or_release, world.pod_fails))(pick)
        elif draw < 0.39:
            world.node_comes_or_goes(rng.choice(sorted(NODES)), rng.random() < 0.8)
        elif draw < 0.43:
            world.cycle(rng.choice((1, 10, 60)))
        else:
            words = [f"p{rng.choice((0, 0, 5, 9))}", rng.choice(SORTS)]
            words += rng.choice(([], [], ["pods"], ["min=1"]))
            words += rng.choice(([], ["s=20"], ["s=100"], ["s=100"]))
            request = job(
                f"j{world.count}", rng.choice("abc"), rng.choice(ASKS),
                *" ".join(words).split(), at=world.now,
            )  # fmt: skip
            world.count += 1
            world.cycle(1)
            wait = rng.choice((0, 0, 0, 30))
            asked = d.JobSubmitted(request, world.now + wait if wait else 0.0, rng.random() < 0.05)
            before = digest(world.state)
            said = rehearse(world.state, asked, world.now)
            assert said.instead == instead_of(world.state, asked, said, world.now)
            assert digest(world.state) == before
            world.alive[request.id] = request
            world.pending.append(asked)
            compare(said, world, asked)
            seen["starts"] += said.places is not None
            seen["makes room"] += bool(said.preempted)
            seen["waits"] += said.places is None
            seen["reserved"] += said.reservation is not None
            seen["instead"] += bool(said.instead)


def instead_of(state, asked: d.JobSubmitted, said: Rehearsal, now: float) -> tuple[Instead, ...]:
    """Return what would start instead, trying each request in a cycle on a fresh copy."""
    wanted, state = asked.job, copied(state)
    run_cycle(state, [asked], now)
    if said.places or said.preempted or state.jobs[wanted.id].eq_class is None:
        return ()

    def places(*sets: PodSetSpec) -> Places | None:
        other, twin = replace(wanted, pod_sets=sets, preempts=False), copied(state)
        result = run_cycle(twin, [d.JobEnded(wanted.id), d.JobSubmitted(other)], now)
        found = [p for s in result.started if s.job_id == wanted.id for p in s.placements]
        nodes = {p.node for p in found}
        leaves = {twin.cluster.node(name).topology[0] for name in nodes} - {""}
        return Places(len(found), len(nodes), len(leaves)) if found else None

    found, sets = [], wanted.pod_sets
    accepted = [s.gpu_models for s in sets if s.gpus]
    others = set(state.pools.models()).difference(*accepted) if all(accepted) else set()
    for model in sorted(others, key=lambda m: (-state.cluster.free_milli(m), m)):
        if there := places(*(replace(s, gpu_models=(model,)) if s.gpus else s for s in sets)):
            found.append(Instead(there, gpu_model=model))
    if wanted.gang and len(sets) == 1:
        name = "min_count" if wanted.elastic else "count"
        for pods in range(sets[0].least - 1, 0, -1):
            if there := places(replace(sets[0], **{name: pods})):
                found.append(Instead(there, pods=pods))
                break
    return tuple(found)


def compare(said: Rehearsal, world: Cycles, asked: d.JobSubmitted) -> None:
    """Run the rehearsed cycle at its instant and check that it did what the rehearsal said."""
    name, now = asked.job.id, world.now
    seen = {}
    original = world._asking_everybody_decides_the_same

    def keep(result) -> None:
        seen["result"] = result
        original(result)

    world._asking_everybody_decides_the_same = keep
    world.cycle(0)
    del world._asking_everybody_decides_the_same
    assert world.now == now
    result = seen["result"]
    placed = [p for start in result.started if start.job_id == name for p in start.placements]
    assert (said.places.pods if said.places else 0) == len(placed)
    if said.places:
        assert said.places.nodes == len({p.node for p in placed})
    record = world.state.jobs[name]
    assert said.verdict == record.verdict
    assert set(said.preempted) == {p.job_id for p in result.preempted if p.by == name}
    reserved = [r for r in result.reservations if r.job_id == name and r.start_at is not None]
    assert ([said.reservation] if said.reservation else []) == reserved


def test_of_rising_requests_those_start_that_would_start_alone(monkeypatch) -> None:
    """Rehearse each request alone on a copy: the answers are the same."""
    monkeypatch.setattr(preempt, "PLANS_PER_CYCLE", 1 << 30)
    seen = {"none": 0, "some": 0, "all": 0}
    for seed in range(4):
        rng, world = random.Random(seed), Cycles()
        for step in range(30):
            if step % 15 == 0:
                world.switch_policy(step // 15 + seed, preempt=seed % 2 == 0)
            if rng.random() < 0.4:
                world.end(rng.randrange(100))
            name, words = f"j{world.count}", [f"p{rng.choice((0, 0, 5))}"]
            words += rng.choice(([], ["s=20"], ["s=100"]))
            request = job(name, rng.choice("abc"), rng.choice(ASKS), *words, at=world.now)
            world.count += 1
            world.alive[name] = request
            world.pending.append(d.JobSubmitted(request))
            world.cycle(1)
            if step % 3 == 0:
                outcome = compare_rise(world.state, rng.choice("abc"), world.now)
                seen[outcome] += 1
    assert all(seen.values()), seen


def compare_rise(state: SchedulerState, tenant: str, now: float) -> str:
    asks = ("1x1", "1x2", "1x4", "1x8", "2x8", "3x8")
    rising = [job("new", tenant, f"{ask} H100", "preempts=no", at=now) for ask in asks]
    settled = copied(state)
    run_cycle(settled, [], now)
    alone = [rehearse(settled, d.JobSubmitted(request), now) for request in rising]
    fits = [said.places is not None for said in alone]
    started = fits.index(False) if False in fits else len(fits)
    told = rise(settled, rising, now)
    assert told.started == started
    assert told.places == (alone[started - 1].places if started else None)
    assert told.verdict == (None if started == len(fits) else alone[started].verdict)
    # The trials leave nothing behind.
    assert rise(settled, rising, now) == told
    return "none" if not started else "all" if started == len(fits) else "some"


def fleet(*running: tuple[str, str], policy: Policy | None = None, **quota: int) -> SchedulerState:
    """Two nodes of 8 H100 and one of 8 A100, in two leaves; tenants a (by default 16 H100 and 8
    A100) and b, which runs these jobs (name, request)."""
    state = SchedulerState(policy=policy or Policy())
    leaf = ("leaf-0", "leaf-1", "leaf-1")
    models = ("H100", "H100", "A100")
    nodes = [
        d.NodeChanged(node(f"n{i}", 8, model, topology=(leaf[i], "", "")))
        for i, model in enumerate(models)
    ]
    amounts = {"H100": 16_000, "A100": 8_000} | quota
    quotas = [QuotaSpec("a", model, milli) for model, milli in amounts.items()]
    quotas += [QuotaSpec("b", model, 16_000) for model in ("H100", "A100")]
    tenants = d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), tuple(quotas))
    jobs = [d.JobSubmitted(job(name, "b", *words.split(";"))) for name, words in running]
    run_cycle(state, [*nodes, tenants, *jobs], 0.0)
    return state


def rehearse(state: SchedulerState, asked: d.JobSubmitted, now: float) -> Rehearsal:
    """Rehearse on a copy of a state that goes on."""
    return submitted(copied(state), asked, now)


def ask(state: SchedulerState, asks: str, *words: str) -> Rehearsal:
    return rehearse(state, d.JobSubmitted(job("new", "a", asks, *words, at=10.0)), 10.0)


def test_a_job_that_would_start_says_where() -> None:
    said = ask(fleet(), "2x8 H100")
    assert said.places == Places(2, 2, 2)
    assert (said.verdict, said.instead, said.room_at) == (None, (), None)
    [terms] = said.quota
    assert (terms.tenant, terms.guaranteed, terms.used, terms.left) == ("a", 16_000, 0, 16_000)
    assert (terms.asked, terms.borrows) == (16_000, 0)


def test_quota_is_told_by_gpu_model_with_what_would_be_borrowed() -> None:
    h100, a100 = ask(fleet(H100=4_000, A100=0), "1x8 H100|A100").quota
    assert (h100.gpu_model, h100.guaranteed, h100.borrows, h100.most) == (
        "H100", 4_000, 4_000, 20_000,
    )  # fmt: skip
    assert (a100.gpu_model, a100.borrows, a100.left) == ("A100", 8_000, 8_000)
    [more] = ask(fleet(("other", "1x8 H100"), H100=4_000), "2x8 H100").quota
    assert (more.used, more.asked, more.left, more.borrows) == (0, 16_000, 12_000, 12_000)


def test_who_cannot_start_hears_what_would() -> None:
    state = fleet(("other", "1x8 H100"))
    said = ask(state, "2x8 H100")
    assert said.places is None
    assert said.verdict is not None
    assert said.verdict.reason is Reason.INSUFFICIENT_GPUS
    [fewer] = said.instead  # there are no 16 A100
    assert (fewer.gpu_model, fewer.pods, fewer.places) == ("", 1, Places(1, 1, 1))
    [elastic] = ask(state, "4x4 H100", "min=3").instead
    assert (elastic.gpu_model, elastic.pods, elastic.places.pods) == ("", 2, 2)
    [model] = ask(fleet(("x", "2x8 H100")), "1x8 H100").instead
    assert (model.gpu_model, model.pods, model.places) == ("A100", 0, Places(1, 1, 1))
    assert ask(fleet(("x", "2x8 H100"), A100=0), "1x8 H100").instead  # a borrows
    assert not ask(fleet(("x", "2x8 H100"), ("y", "1x8 A100")), "1x8 H100").instead
    assert not ask(state, "2x8 H100", "pods").instead  # its pods start one by one


def test_slices_stay_whole_in_what_would_start_instead() -> None:
    [fewer] = ask(
        fleet(("other", "1x6 H100")), "16x1 H100", "slice_size=4", "required_level=leaf"
    ).instead
    assert (fewer.pods, fewer.places.pods) == (8, 8)


def test_a_job_that_may_not_be_tried_is_offered_nothing_else() -> None:
    state = fleet(("other", "2x8 H100"))
    held = d.JobSubmitted(job("new", "a", "1x8 H100", at=10.0), 0.0, True)
    said = rehearse(state, held, 10.0)
    assert said.verdict is not None
    assert (said.verdict.reason, said.instead) == (Reason.ON_HOLD, ())


def test_others_make_room_as_the_policy_lets_them() -> None:
    policy = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0.0)
    said = ask(fleet(("other", "2x8 H100"), policy=policy), "1x8 H100", "p5")
    assert (said.places, said.preempted) == (None, ("other",))
    assert said.verdict is not None
    assert said.verdict.reason is Reason.WAITING_FOR_PREEMPTION


def test_a_start_is_foreseen_by_what_running_jobs_declare() -> None:
    running = (("x", "1x8 H100;s=100"), ("y", "1x8 H100;s=500"), ("z", "1x8 A100"))
    said = ask(fleet(*running), "1x8 H100")
    assert (said.room_at, said.reservation) == (100.0, None)
    said = ask(fleet(*running, policy=Policy(QueueingPolicy.BACKFILL)), "1x8 H100")
    assert said.room_at is None
    assert said.reservation is not None
    assert (said.reservation.start_at, said.reservation.nodes) == (100.0, ("n0",))
    assert ask(fleet(("x", "2x8 H100")), "1x8 H100").room_at is None  # no job declares its run time


def test_what_happens_to_the_nodes_of_a_copy_happens_to_it_alone() -> None:
    """Runs ahead drain nodes on copies; a shared fleet would lose them one after the other."""
    state = fleet(("runs", "1x8 H100"), ("wide", "3x8 H100"))
    before = [ask(state, asks) for asks in ("2x8 H100", "1x8 A100", "3x8 H100")]
    for name in ("n0", "n1", "n2"):
        twin = copied(state)
        run_cycle(twin, [d.NodeRemoved(name)], 10.0)
        assert ask(twin, "2x8 H100") != before[0] or name == "n2"
    assert [ask(state, asks) for asks in ("2x8 H100", "1x8 A100", "3x8 H100")] == before
