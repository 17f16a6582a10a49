"""The effects of a change: which jobs start or stop, whose wait changes, and which can never run
any more."""

from dataclasses import replace

import pytest

from scheduling.engine.deltas import (
    JobChanged,
    JobRestored,
    JobSubmitted,
    NodeChanged,
    PolicyChanged,
    TenantsChanged,
)
from scheduling.engine.types import Policy, PreemptionKind, QuotaSpec, TenantSpec
from scheduling.simulator.forecast.effects import Holder, JobStop, ResizeEffect, base_of, effects_of
from scheduling.simulator.forecast.ground import ground_of
from scheduling.simulator.forecast.run_times import RunTimes
from scheduling.simulator.forecast.scene import scene_of
from tests.simulator.runs import machines
from tests.simulator.test_forecast import NOW, job, on

RECLAIM = Policy(preemption=(PreemptionKind.RECLAIM,))


def tenancy(borrow=0, **gpus):
    """Return what each tenant is guaranteed and may borrow."""
    limit = 1000 * borrow
    quotas = tuple(
        QuotaSpec(name, "H100", 1000 * count, borrow_limit=limit) for name, count in gpus.items()
    )
    return TenantsChanged((TenantSpec("a"), TenantSpec("b")), quotas)


def scene(*facts, nodes=2, policy=RECLAIM, **gpus):
    return scene_of(
        [PolicyChanged(policy), tenancy(**gpus), *map(NodeChanged, machines(nodes)), *facts], NOW
    )


def runs(name, node, *, since=0.0, **wishes):
    return JobRestored(job(name, declared_s=5000.0, **wishes), (on(node),), since)


def waits(name, at=500.0, **wishes):
    return JobSubmitted(job(name, at, declared_s=1000.0, **wishes))


def effects(at, *change, **how):
    ground = ground_of(at)
    return effects_of(ground, change, base_of(ground, RunTimes(), **how), **how)


def test_more_quota_starts_the_owner_and_takes_back_what_was_borrowed():
    at = scene(
        runs("old", 0),
        runs("young", 1, since=600.0),
        waits("mine", tenant="b"),
        borrow=8,
        a=16,
        b=0,
    )
    found = effects(at, tenancy(borrow=8, a=8, b=8))
    assert found.shifts["mine"].before == 5000.0
    assert (found.starts, found.delayed) == (("mine",), ())
    lost = 8 * (NOW - 600.0)
    (stop,) = found.stops.values()
    assert found.stops == {"young": JobStop(NOW, 1, True, "mine", lost, stop.again)}
    assert stop.again == NOW + 1000.0  # when b's job ends
    assert found.held_before == {Holder("a", "H100", False): 16000}
    assert found.held_after == {Holder("a", "H100", False): 8000, Holder("b", "H100", False): 8000}


def test_what_happens_at_once_is_told_where_the_run_without_the_change_ended_before():
    running = runs("old", 0), runs("young", 1, since=600.0)
    at = scene(*running, waits("mine", tenant="b"), borrow=8, a=16, b=0)
    base = base_of(ground_of(at), RunTimes(), enough=lambda: True)
    later = ground_of(replace(at, now=NOW + 5.0))
    found = effects_of(later, (tenancy(borrow=8, a=8, b=8),), base, enough=lambda: True)
    assert (list(found.stops), found.until) == (["young"], NOW + 5.0)


def test_less_quota_makes_jobs_impossible_and_more_makes_them_possible():
    at = scene(waits("wide", pods=2, gpus=8, tenant="b"), a=0, b=16)
    found = effects(at, tenancy(a=0, b=8))
    assert list(found.impossible) == ["wide"]
    assert "16" in found.impossible["wide"]
    assert (found.possible, found.delayed) == ((), ("wide",))
    back = effects(scene(waits("wide", pods=2, tenant="b"), a=0, b=8), tenancy(a=0, b=16))
    assert (back.impossible, back.possible, back.starts) == ({}, ("wide",), ("wide",))


def test_whoever_is_passed_starts_later_by_as_much_as_it_is_told():
    """One node frees at 5,000 s; the guarantee decides who gets it first."""
    at = scene(
        runs("old", 0), waits("first", 400.0), waits("second", tenant="b"),
        nodes=1, policy=Policy(), a=8, b=0,
    )  # fmt: skip
    plain = effects(at, tenancy(a=8, b=0))
    assert plain.shifts["first"].before == plain.shifts["first"].after == 5000.0
    found = effects(at, tenancy(a=0, b=8))
    assert found.shifts["second"].after == 5000.0
    assert found.shifts["first"].before == 5000.0
    assert found.shifts["first"].after is None


def test_a_node_that_is_gone_stops_its_jobs_and_one_that_is_cordoned_does_not():
    at = scene(runs("here", 0), waits("next"), nodes=2, a=16, b=0)
    (gone, _) = machines(2)
    cordoned = effects(at, NodeChanged(replace(gone, schedulable=False)))
    assert cordoned.stops == {}
    away = replace(gone, devices=tuple(replace(d, healthy=False) for d in gone.devices))
    found = effects(at, NodeChanged(away))
    assert list(found.stops) == ["here"]
    stop = found.stops["here"]
    assert (stop.by, stop.whole, stop.lost_gpu_s) == ("", True, 8 * NOW)
    assert stop.again is not None
    assert stop.again >= NOW


def test_a_cordoned_node_keeps_whom_it_would_have_taken_waiting():
    at = scene(runs("here", 0), waits("next"), nodes=2, a=16, b=0)
    idle = machines(2)[1]
    found = effects(at, NodeChanged(replace(idle, schedulable=False)))
    assert found.delayed == ("next",)
    assert found.shifts["next"].before == NOW
    assert found.shifts["next"].after == 5000.0


def test_where_time_is_short_both_runs_end_at_the_same_instant():
    at = scene(runs("here", 0), *(waits(f"w{n}", 500.0 + n) for n in range(6)), nodes=1, a=8, b=0)
    asked = []

    def enough():
        asked.append(None)
        return len(asked) > 2

    found = effects(at, tenancy(a=8, b=1), enough=enough)
    assert found.until < NOW + 10_000.0
    assert {s.before for s in found.shifts.values()} >= {None}
    assert all(
        at is None or at <= found.until
        for shift in found.shifts.values()
        for at in (shift.before, shift.after)
    )
    assert len(asked) == 4


@pytest.mark.parametrize("policy", [Policy(), RECLAIM])
def test_what_changes_nothing_does_nothing(policy):
    at = scene(runs("old", 0), runs("other", 1), waits("w"), waits("v", tenant="b"),
               policy=policy, a=8, b=8)  # fmt: skip
    found = effects(at, tenancy(a=8, b=8))
    assert (found.starts, found.delayed, found.stops) == ((), (), {})
    assert (found.impossible, found.possible) == ({}, ())
    assert found.held_before == found.held_after
    assert all(shift.before == shift.after for shift in found.shifts.values())


def service(name, *nodes, pods=None, **wishes):
    wishes = {"declared_s": 50_000.0, "gang": False, **wishes}
    places = tuple(on(node, number) for number, node in enumerate(nodes))
    return JobRestored(job(name, pods=pods or len(nodes), **wishes), places, 0.0)


def sized(fact, pods):
    (pod_set,) = fact.job.pod_sets
    return JobChanged(replace(fact.job, pod_sets=(replace(pod_set, count=pods),)))


def test_a_service_that_is_given_fewer_pods_makes_room_and_loses_no_work():
    web = service("web", 0, 1)
    found = effects(scene(web, waits("next"), nodes=2, policy=Policy(), a=16, b=0), sized(web, 1))
    assert found.resizes == {"web": ResizeEffect(leave=1)}
    assert (found.starts, found.stops) == (("next",), {})


def test_a_service_that_is_given_more_pods_tells_when_they_have_places():
    web = service("web", 0)
    at = scene(web, runs("old", 1), nodes=3, policy=Policy(), a=24, b=0)
    found = effects(at, sized(web, 3))
    assert found.resizes == {"web": ResizeEffect(more=2, at_once=1, all_at=5000.0)}
    late = effects(at, sized(web, 4))  # the third pod gets the place of the pod that was there
    assert late.resizes == {"web": ResizeEffect(more=3, at_once=1, all_at=50_000.0)}
    cut = effects(at, sized(web, 3), enough=lambda: True)
    assert cut.resizes == {"web": ResizeEffect(more=2, at_once=1)}


def test_the_pods_of_a_service_that_grows_are_ahead_of_whoever_came_later():
    web = service("web", 0)
    at = scene(web, runs("old", 1), waits("next"), nodes=2, policy=Policy(), a=16, b=0)
    assert effects(at, sized(web, 2)).shifts["next"].before == 5000.0
    assert effects(at, sized(web, 2)).shifts["next"].after > 5000.0


def test_an_elastic_gang_that_runs_with_fewer_takes_what_is_free_and_gives_it_back():
    gang = service("gang", 0, 1, pods=2, gang=True, min_count=1)
    at = scene(gang, waits("next"), nodes=3, policy=Policy(), a=24, b=0)
    assert effects(at, sized(gang, 1)).resizes == {"gang": ResizeEffect(leave=1)}
    grown = effects(scene(gang, nodes=3, policy=Policy(), a=24, b=0), sized(gang, 3))
    assert grown.resizes == {"gang": ResizeEffect(more=1, at_once=1, all_at=NOW)}


def test_a_service_of_which_only_pods_that_have_ended_are_left_is_over():
    web = service("web", 0, 1)
    web = replace(web, placements=web.placements[1:], ended=((0, 0),))
    at = scene(web, runs("old", 0), waits("next"), nodes=2, policy=Policy(), a=16, b=0)
    found = effects(at, sized(web, 1))
    assert (found.resizes, found.starts) == ({"web": ResizeEffect(leave=1)}, ("next",))


def test_a_service_that_can_never_have_more_pods_goes_on_with_those_that_it_has():
    web = service("web", 0)
    at = scene(web, runs("old", 1), waits("next", tenant="b"), policy=Policy(), a=0, b=16)
    found = effects(at, sized(web, 4))
    assert found.resizes["web"].why
    assert (found.impossible, found.stops) == ({}, {})
    assert found.shifts["next"].after == 5000.0  # on the node of `old`, not on that of `web`


@pytest.mark.parametrize("pods", [1, 2, 4])
def test_pods_that_leave_already_are_not_told_twice(pods):
    """The last of three pods was already told to leave; in both runs it is gone at once."""
    web = replace(service("web", 0, 1, 2), leaving=((0, 2),))
    found = effects(scene(web, nodes=4, policy=Policy(), a=32, b=0), sized(web, pods))
    now, more = found.resizes["web"], max(0, pods - 3)
    assert (now.leave, now.more) == (max(0, 2 - pods), more)
    assert found.stops == {}


@pytest.mark.parametrize("gang", [True, False])
@pytest.mark.parametrize("pods", [1, 2, 3, 4, 5])
def test_resizes_of_jobs_in_any_state_end(gang, pods):
    """Jobs may have pods that have ended, are missing or are leaving, or whose nodes are gone."""
    whole = service("job", 0, 1, 9, pods=4, gang=gang, min_count=1 if gang else None)
    holds = (
        whole,
        replace(whole, ended=((0, 3),)),
        replace(whole, leaving=((0, 0),)),
        replace(whole, placements=whole.placements[1:]),
    )
    nowhere = replace(whole, placements=whole.placements[2:])
    for fact in (*holds, replace(whole, leaving=((0, 0), (0, 1))), nowhere):
        at = scene(fact, waits("next"), nodes=3, a=24, b=0)
        found = effects(at, sized(fact, pods)) if pods != 4 else effects(at, JobChanged(fact.job))
        told = {name: resize.more for name, resize in found.resizes.items()}
        changes = pods != 4 and fact in holds
        assert told == ({"job": max(0, pods - 4)} if changes else {})


@pytest.mark.parametrize("slice_size", [0, 2])
@pytest.mark.parametrize("least", [None, 2])
@pytest.mark.parametrize("gang", [True, False])
def test_jobs_on_nodes_that_are_gone_are_placed_again(gang, least, slice_size):
    """One of four pods is lost. A gang also loses the other pod of its slice, or all pods."""
    lost = service("lost", 0, 9, 1, 2, gang=gang, min_count=least if gang else None)
    if gang and slice_size:
        (pods,) = lost.job.pod_sets
        sliced = replace(pods, slice_size=slice_size, required_level="leaf")
        lost = replace(lost, job=replace(lost.job, pod_sets=(sliced,)))
    free = scene(lost, waits("next"), nodes=5, policy=Policy(), a=40, b=0)
    found = effects(free)
    assert found.shifts["next"].before == NOW  # one node for the pod, another for the waiting job
    full = scene(lost, waits("next"), nodes=4, policy=Policy(), a=32, b=0)
    found = effects(full)
    goes_on_with_less = gang and least is not None
    assert (found.shifts["next"].before > NOW) != goes_on_with_less
    assert (found.impossible, found.stops) == ({}, {})


# --- notices --------------------------------------------------------------------------------------
def warned(at, **notices):
    return replace(at, notices=notices)


def test_a_preemptor_starts_when_the_notice_of_its_victims_is_over():
    running = runs("old", 0), runs("young", 1, since=600.0)
    at = scene(*running, waits("mine", tenant="b"), borrow=8, a=16, b=0)
    change = tenancy(borrow=8, a=8, b=8)
    found = effects(warned(at, young=300.0), change)
    assert (found.starts, found.shifts["mine"].after) == ((), NOW + 300.0)
    assert found.stops["young"].again == NOW + 1300.0  # when b's job ends
    plain = effects(at, change)
    assert (found.held_before, found.held_after) == (plain.held_before, plain.held_after)


def test_pods_of_a_job_that_is_made_smaller_stay_until_their_notice_is_over():
    web = service("web", 0, 1)
    at = scene(web, waits("next"), nodes=2, policy=Policy(), a=16, b=0)
    found = effects(warned(at, web=300.0), sized(web, 1))
    assert found.resizes == {"web": ResizeEffect(leave=1)}
    assert (found.shifts["next"].after, found.stops) == (NOW + 300.0, {})
    gang = service("web", 0, 1, pods=2, gang=True, min_count=1)
    at = scene(gang, waits("next"), nodes=2, policy=Policy(), a=16, b=0)
    assert effects(warned(at, web=300.0), sized(gang, 1)).shifts["next"].after == NOW + 300.0
