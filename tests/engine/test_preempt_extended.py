"""Victims for gangs that request extended resources and NICs, checked against every choice."""

import random
from dataclasses import replace
from itertools import combinations

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    JobRequest,
    Nic,
    PodPlacement,
    PodSetSpec,
    Policy,
    PreemptionKind,
    QuotaSpec,
    TenantSpec,
)
from tests.cases import seeds
from tests.engine.scenario import node

NODES, GPUS, FPGAS, NICS, NOW = 3, 4, 3, 4, 1_000.0


def running_jobs(rng):
    """Return (job, places, since): pods of one to four GPUs and some FPGAs or NICs, on one or two
    nodes."""
    free = {n: [GPUS, FPGAS, NICS] for n in range(NODES)}
    for number in range(7):
        gpus, fpgas, nics = rng.randint(1, 3), rng.randint(0, 2), rng.choice((0, 0, 1, 2))
        at = [n for n, left in free.items() if left[0] >= gpus and left[1] >= fpgas
              and left[2] >= nics]  # fmt: skip
        rng.shuffle(at)
        at = at[: rng.choice((1, 1, 2))]
        if not at:
            continue
        extended = {"fpga": fpgas} if fpgas else {}
        spec = PodSetSpec("s", len(at), gpus, ("H100",), extended=extended, nics=nics)
        places = []
        for ordinal, n in enumerate(at):
            first, first_nic = GPUS - free[n][0], NICS - free[n][2]
            devices = tuple(range(first, first + gpus))
            taken = tuple(range(first_nic, first_nic + nics))
            places.append(PodPlacement(0, ordinal, f"n{n}", devices, 1000, taken))
            free[n] = [left - took for left, took in zip(free[n], (gpus, fpgas, nics), strict=True)]
        yield JobRequest(f"r{number}", "a", 0.0, (spec,)), places, float(rng.randrange(0, 900))


def fits(free, sets):
    """Whether pods of (GPUs, FPGAs, NICs) fit on nodes with this much of each."""
    pods = [s[1:] for s in sets for _ in range(s[0])]

    def lay(number, left):
        if number == len(pods):
            return True
        for n, has in enumerate(left):
            if all(h >= a for h, a in zip(has, pods[number], strict=True)):
                rest = tuple(h - a for h, a in zip(has, pods[number], strict=True))
                if lay(number + 1, [*left[:n], rest, *left[n + 1 :]]):
                    return True
        return False

    return lay(0, free)


def least_loss(running, sets):
    """Return the least loss in GPU-seconds over all sets of jobs that make room; None if none
    does."""
    best = None
    for count in range(len(running) + 1):
        for gone in combinations(range(len(running)), count):
            free = [[GPUS, FPGAS, NICS] for _ in range(NODES)]
            for number, (job, places, _) in enumerate(running):
                (s,) = job.pod_sets
                for p in places if number not in gone else ():
                    held = (s.gpus, s.extended.get("fpga", 0), s.nics)
                    at = int(p.node[1:])
                    free[at] = [f - h for f, h in zip(free[at], held, strict=True)]
            if fits([tuple(f) for f in free], sets):
                loss = sum(running[n][0].gpu_milli / 1000 * (NOW - running[n][2]) for n in gone)
                best = loss if best is None else min(best, loss)
    return best


def as_told(job, places, at, *, beyond):
    """Return the facts of a running job. `beyond`: it asked for no FPGAs, and holds them."""
    if not beyond:
        return [d.JobRestored(job, tuple(places), at)]
    (s,) = job.pod_sets
    asked = replace(job, pod_sets=(replace(s, extended={}),))
    more = [d.PodHoldsMore(job.id, p.pod_set, p.ordinal, s.extended) for p in places]
    return [d.JobRestored(asked, tuple(places), at), *more]


@pytest.mark.parametrize("beyond", [False, True])
@pytest.mark.parametrize("seed", seeds(400, usual=60))
def test_the_least_that_makes_room_goes_and_it_does_make_room(seed, beyond):
    rng = random.Random(seed)
    running = list(running_jobs(rng))
    sets = [
        (rng.randint(1, 2), rng.randint(1, 3), rng.randint(0, 2), rng.choice((0, 0, 1, 2)))
        for _ in range(rng.choice((1, 2, 2)))
    ]
    state = SchedulerState(policy=Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0.0))
    with_nics = tuple(Nic(k, f"nic-{k}") for k in range(NICS))
    facts = [
        d.NodeChanged(replace(node(f"n{n}", GPUS, extended={"fpga": FPGAS}), nics=with_nics))
        for n in range(NODES)
    ]
    facts.append(d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 10**9),)))
    facts += [fact for job in running for fact in as_told(*job, beyond=beyond)]
    asked = tuple(
        PodSetSpec(f"s{n}", count, gpus, ("H100",), extended={"fpga": fpgas}, nics=nics)
        for n, (count, gpus, fpgas, nics) in enumerate(sets)
    )
    result = run_cycle(
        state, [*facts, d.JobSubmitted(JobRequest("by", "a", NOW, asked, priority=5))], NOW
    )
    best = least_loss(running, sets)
    if best is None or best == 0.0:
        assert not result.preempted
        assert bool(result.started) == (best == 0.0)
        return
    assert result.preempted, "a preemption is possible"
    cost = sum(victim.cost_gpu_s for victim in result.preempted)
    assert cost >= best * (1 - 1e-9)
    assert cost <= best * 1.25, (cost, best)  # extra cost where that brings the gang's pods closer
