"""One cluster divided between several schedulers (docs/decisions/0003-shards.md)."""

import random
from collections import defaultdict

import pytest
from django.utils import timezone

from metrics.benches import stage
from scheduling.engine.shards.division import WIDE
from scheduling.engine.states import TERMINAL, WAITING, JobEventKind
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent, Placement, SchedulerLease
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.models.jobs import PlacementState as P
from scheduling.services.jobs.changes import release_job
from scheduling.session import changes
from tenants.models import Quota, Tenant
from tests.live.conftest import SchedulerProcess, wait
from tests.live.shards import (
    NODES,
    NORTH,
    SOUTH,
    divide,
    nodes_by_scope,
    of_two_spines,
    scope_of,
)

pytestmark = pytest.mark.live


@pytest.fixture
def inventory(tmp_path):
    return of_two_spines(tmp_path)


def all_over(jobs):
    states = Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("state", flat=True)
    return all(S(state) in TERMINAL for state in states)


# --- one process that leads all scopes ------------------------------------------------------------
def test_jobs_go_to_shards_and_a_gang_that_fits_none_runs_on_lent_nodes(world):
    divide(world)
    world.drive(lambda: len(world.scheduler.led) == 3)
    assert {scope: len(names) for scope, names in nodes_by_scope().items()} == {NORTH: 4, SOUTH: 4}
    long = [world.submit(f"long-{i}", pods=3) for i in range(2)]
    world.drive(lambda: all(world.state(job) == S.RUNNING for job in long))
    assert {scope_of(job) for job in long} == {NORTH, SOUTH}
    gang = world.submit("gang", pods=6)
    world.drive(lambda: Job.objects.get(pk=gang.pk).reason == "InsufficientGpus")
    assert "16" in Job.objects.get(pk=gang.pk).message
    small = world.submit("small", gpus=1, run_s=0.2)
    world.drive_to(small, S.SUCCEEDED)
    assert scope_of(small) in (NORTH, SOUTH)
    for job in long:
        world.finish(job)
    world.drive_to(gang, S.RUNNING)
    assert {p.node for p in world.placements(gang)} <= nodes_by_scope()[WIDE]
    world.finish(gang)
    world.drive_to(gang, S.SUCCEEDED)
    assert scope_of(gang) == WIDE
    world.drive(lambda: {s: len(n) for s, n in nodes_by_scope().items()} == {NORTH: 4, SOUTH: 4})
    routed = JobEvent.objects.filter(job=gang, kind=JobEventKind.ROUTED)
    assert [event.evidence["to"] for event in routed] == [WIDE]


def test_a_job_that_outgrows_its_shard_is_routed_anew_while_it_waits_and_stays_while_it_runs(world):
    divide(world)
    full = [world.submit(f"full-{i}", pods=3) for i in range(2)]
    world.drive(lambda: all(world.state(job) == S.RUNNING for job in full))
    gang = world.submit("gang", pods=2, priority=-1)
    world.drive(lambda: Job.objects.get(pk=gang.pk).reason == "InsufficientGpus")
    assert scope_of(gang) in (NORTH, SOUTH)
    web = world.submit("web", gang=False)
    world.drive_to(web, S.RUNNING)
    home = scope_of(web)
    world.resize(web, 3)
    world.drive(lambda: Job.objects.get(pk=web.pk).growth is not None)
    world.resize(gang, 6)
    world.drive(lambda: scope_of(gang) == WIDE)
    assert (len(world.placements(web)), scope_of(web)) == (1, home)
    world.cancel(next(job for job in full if scope_of(job) == home))
    world.drive(lambda: len(world.placements(web, state=P.RUNNING)) == 3)
    assert {p.node for p in world.placements(web)} <= nodes_by_scope()[home]
    world.resize(gang, 1)
    world.drive_to(gang, S.RUNNING)
    assert scope_of(gang) in (NORTH, SOUTH)


def test_nodes_come_home_however_slow_the_passes_are(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.0)  # each pass examines everything

    def free(scope):
        return world.scheduler.led[world.cluster.pk, scope].session.state.cluster.free_milli(
            stage.MODEL
        )

    divide(world)
    gang = world.submit("gang", pods=6)
    world.drive_to(gang, S.RUNNING)
    world.finish(gang)
    world.drive_to(gang, S.SUCCEEDED)
    world.drive(lambda: {s: len(n) for s, n in nodes_by_scope().items()} == {NORTH: 4, SOUTH: 4})
    world.drive(lambda: free(NORTH) == free(SOUTH) == 4 * 8000)


def test_nodes_that_evicted_pods_are_still_on_do_not_go_home(world):
    divide(world, preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=NODES, stop_s=2.0)
    world.drive_to(low, S.RUNNING)
    wide = world.scheduler.led[world.cluster.pk, WIDE]
    high = world.submit("high", pods=6, priority=9)
    world.drive_to(high, S.RUNNING)
    world.drive(lambda: len(nodes_by_scope()[WIDE]) == 6)
    assert JobEvent.objects.filter(job=high, reason="RoomMade").count() == 1
    assert world.scheduler.led[world.cluster.pk, WIDE] is wide, "its session was made anew"


def test_a_job_that_outgrows_its_shard_while_its_pods_still_go_is_routed_when_they_are_gone(
    world, monkeypatch
):
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    divide(world)
    gang = world.submit("gang", pods=3, max_restarts=3, stop_s=1.0)
    world.drive_to(gang, S.RUNNING)
    home = scope_of(gang)
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    [first] = world.placements(gang, ordinal=0)
    world.report(first.pod_name, "Failed", containerStatuses=[ended])
    world.drive(lambda: world.state(gang) in WAITING)
    assert world.placements(gang, state__in=LIVE_PLACEMENTS)
    world.resize(gang, 6)
    assert scope_of(gang) == home
    world.drive_to(gang, S.RUNNING)
    assert (scope_of(gang), len(world.placements(gang, state=P.RUNNING))) == (WIDE, 6)


def test_a_shard_deletes_the_services_of_its_own_jobs_only(world, monkeypatch):
    def services():
        items = world.call("GET", "/api/v1/namespaces/kant-jobs/services")["items"]
        return {s["metadata"]["name"]: s["metadata"]["uid"] for s in items}

    divide(world)
    jobs = [world.submit(f"gang-{i}", pods=3) for i in range(2)]
    world.drive(lambda: all(world.state(job) == S.RUNNING for job in jobs))
    assert {scope_of(job) for job in jobs} == {NORTH, SOUTH}
    first, second = (f"job-{job.pk}" for job in jobs)
    world.drive(lambda: services().keys() == {first, second})
    before = services()
    world.restart_scheduler()
    world.drive(lambda: len(world.scheduler.led) == 3)
    monkeypatch.setattr(changes, "COUNT_S", 3600.0)  # at once, not only when all jobs are examined
    world.cancel(jobs[0])
    world.drive(lambda: first not in services())
    assert services() == {second: before[second]}


def test_nodes_are_kept_free_for_a_gang_that_waits_too_long(world):
    """Small jobs follow each other without a pause, so no node would ever become empty by
    itself."""
    divide(world, backfill_after_s=0.5)
    world.drive(lambda: len(world.scheduler.led) == 3)
    small = [world.submit(f"small-{i}", gpus=2, run_s=0.3 + i % 5 / 10) for i in range(200)]
    world.drive(lambda: Job.objects.exclude(admitted_at=None).count() > 10)
    gang = world.submit("gang", pods=5, run_s=0.2)
    world.drive_to(gang, S.SUCCEEDED)
    begun = Job.objects.get(pk=gang.pk).admitted_at
    ended = Job.objects.filter(name__startswith="small", ended_at__lte=begun).count()
    assert ended < len(small), "the gang waited for the last of them"
    for job in small:
        world.cancel(job) if world.state(job) not in TERMINAL else None
    world.drive(lambda: {s: len(n) for s, n in nodes_by_scope().items()} == {NORTH: 4, SOUTH: 4})


def test_shards_are_declared_and_taken_back_while_jobs_run(world):
    inside = world.submit("inside", pods=1, run_s=600)
    across = world.submit("across", pods=5, run_s=600)
    world.drive(lambda: world.state(inside) == world.state(across) == S.RUNNING)
    pods = {p["metadata"]["uid"] for p in world.pods().values()}
    divide(world)
    world.drive(lambda: {key[1] for key in world.scheduler.led} == {NORTH, SOUTH, WIDE})
    world.drive(lambda: "" not in (scope_of(inside), scope_of(across)))
    assert scope_of(across) == WIDE
    assert {p.node for p in world.placements(across)} <= nodes_by_scope()[WIDE]
    assert {p.node for p in world.placements(inside)} <= nodes_by_scope()[scope_of(inside)]
    other = world.submit("other", run_s=0.2)
    world.drive_to(other, S.SUCCEEDED)
    world.set_policy(shards=[])
    world.drive(lambda: set(nodes_by_scope()) == {""})
    later = world.submit("later", run_s=0.2)
    world.drive_to(later, S.SUCCEEDED)
    assert (scope_of(inside), scope_of(across)) == ("", "")
    assert {p["metadata"]["uid"] for p in world.pods().values()} >= pods
    world.cancel(across)
    world.drive(lambda: not world.placements(across, state__in=LIVE_PLACEMENTS))
    assert world.state(inside) == S.RUNNING


def test_a_job_waits_for_jobs_of_other_scopes(world):
    divide(world)
    first = world.submit("first", pods=4)
    wide = world.submit("wide", pods=5, run_s=0.2)
    last = world.submit("last", run_s=0.2, after=[str(first.pk)], after_ok=[str(wide.pk)])
    world.drive(lambda: Job.objects.get(pk=last.pk).reason == "OnHold")
    world.drive_to(first, S.RUNNING)
    world.finish(first)
    world.drive_to(last, S.SUCCEEDED)
    begun = {job: Job.objects.get(pk=job.pk) for job in (first, wide, last)}
    assert begun[last].admitted_at >= max(begun[first].ended_at, begun[wide].ended_at)
    assert (scope_of(first), scope_of(wide)) == (NORTH, WIDE)


def test_every_link_of_a_chain_is_told_that_it_never_starts(world):
    divide(world)
    first = world.submit("first", pods=4)
    chain = [first]
    for name in ("second", "third", "fourth"):
        chain.append(world.submit(name, after_ok=[str(chain[-1].pk)]))
    world.drive(lambda: Job.objects.get(pk=chain[-1].pk).reason == "OnHold")
    world.cancel(first)
    told = Job.objects.filter(pk__in=[job.pk for job in chain[1:]])
    world.drive(lambda: all(job.reason == "Misconfigured" for job in told.all()))
    assert {job.evidence["after"] for job in told.all()} == {str(first.pk)}


def test_every_link_of_a_chain_is_told_what_is_in_its_way(world):
    divide(world)
    first = world.submit("first", pods=1, held=True)
    second = world.submit("second", after=[str(first.pk)])
    third = world.submit("third", after_ok=[str(second.pk)])

    def in_the_way():
        rows = Job.objects.filter(pk__in=(second.pk, third.pk)).order_by("name")
        return [row.evidence.get("in_the_way") for row in rows]

    world.drive(lambda: in_the_way() == [str(first.pk)] * 2)
    assert f"Job {first.pk} is on hold. Job {second.pk}" in Job.objects.get(pk=third.pk).message
    release_job(world.user, Job.objects.get(pk=first.pk))
    world.drive(lambda: in_the_way() == [None] * 2)
    world.drive(lambda: world.state(first) == S.RUNNING)


def test_quota_counts_what_other_scopes_hold(world):
    divide(world)
    Quota.objects.update(guaranteed_milli=40_000, mode="isolated", version=2)
    first = world.submit("first", pods=4, run_s=600)
    world.drive_to(first, S.RUNNING)
    south = world.scheduler.led[world.cluster.pk, SOUTH].session
    world.drive(lambda: south.changes.tenancy.used_elsewhere)
    second = world.submit("second", pods=2, run_s=0.2)
    third = world.submit("third", pods=1, run_s=0.2)
    world.drive_to(third, S.SUCCEEDED)
    assert scope_of(second) == scope_of(third) == SOUTH
    assert Job.objects.get(pk=second.pk).reason == "WaitingForQuota"
    world.cancel(first)
    world.drive_to(second, S.SUCCEEDED)


def test_a_gang_on_lent_nodes_is_ordered_by_what_its_tenant_held_in_any_scope(world, clock):
    divide(world, queueing="strict-fifo", fair_share=True, usage_half_life_s=600)
    other = Tenant.objects.create(name="other")
    gpu_type = Quota.objects.get().gpu_type
    Quota.objects.create(tenant=other, gpu_type=gpu_type, guaranteed_milli=1_000_000)
    long = [world.submit(f"long-{i}", pods=4) for i in range(2)]
    for job in long:
        world.drive_to(job, S.RUNNING)
    assert {scope_of(job) for job in long} == {NORTH, SOUTH}
    clock.ahead = 3600
    for job in long:
        world.finish(job)
        world.drive_to(job, S.SUCCEEDED)
    full = world.submit("full", pods=4, tenant=other)
    world.drive_to(full, S.RUNNING)
    first, second = world.submit("first", pods=5), world.submit("second", pods=6, tenant=other)
    world.drive(lambda: scope_of(first) == scope_of(second) == WIDE)
    world.restart_scheduler()
    world.drive(lambda: len(world.scheduler.led) == 3)
    for (_, scope), led in world.scheduler.led.items():
        shares = led.session.state.shares().tenants
        assert 0.8 < shares["team"] < 1, scope
        assert 0.5 < shares["other"] < 0.6, scope  # half of all GPUs now, for a short while
    world.finish(full)
    world.drive_to(second, S.RUNNING)
    assert world.state(first) in WAITING


def test_jobs_move_from_a_full_shard_to_one_with_room(world, monkeypatch):
    divide(world)
    monkeypatch.setattr("scheduling.session.changes.COUNT_S", 0.5)
    world.drive(lambda: len(world.scheduler.led) == 3)
    first, second = (world.submit(f"long-{i}", pods=4, run_s=600) for i in range(2))
    world.drive(lambda: world.state(first) == world.state(second) == S.RUNNING)
    third = world.submit("third", pods=4, run_s=0.2)
    world.drive(lambda: scope_of(third) != "")
    other = {NORTH: SOUTH, SOUTH: NORTH}[scope_of(third)]
    world.cancel(next(job for job in (first, second) if scope_of(job) == other))
    world.drive_to(third, S.SUCCEEDED)
    assert scope_of(third) == other


def test_a_job_goes_where_nodes_that_it_may_use_have_room(world, monkeypatch):
    """The nodes that it may use in one shard are full, although this shard has most room."""
    divide(world)
    monkeypatch.setattr("scheduling.session.changes.COUNT_S", 0.3)
    monkeypatch.setattr("scheduling.session.routing.AGAIN_S", 0.3)
    monkeypatch.setattr("scheduling.session.routing.BUSY_S", 0.1)
    world.drive(lambda: len(world.scheduler.led) == 3)
    world.drive(lambda: len(nodes_by_scope()) == 2)
    scopes = nodes_by_scope()
    one, other = (min(scopes[name]) for name in (NORTH, SOUTH))

    def on(*nodes):
        values = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
        return {"node_affinity": [{"match_expressions": [values]}]}

    here = world.submit("here", gpus=8, run_s=600, **on(one))
    beside = world.submit("beside", gpus=8, pods=2, run_s=600, **on(*scopes[SOUTH] - {other}))
    world.drive(lambda: world.state(here) == world.state(beside) == S.RUNNING)
    # The shard with the free node has less room in total.
    new = world.submit("new", gpus=8, run_s=600, **on(one, other))
    world.drive_to(new, S.RUNNING)
    assert scope_of(new) == SOUTH
    # Both are full: it waits, and goes to the one that frees a node first, wherever it waits.
    waits = world.submit("waits", gpus=8, run_s=600, **on(one, other))
    world.drive(lambda: scope_of(waits) != "")
    there = {NORTH: SOUTH, SOUTH: NORTH}[scope_of(waits)]
    world.cancel({NORTH: here, SOUTH: new}[there])
    world.drive_to(waits, S.RUNNING)
    assert scope_of(waits) == there


def test_an_elastic_gang_grows_inside_its_shard_and_a_wide_one_asks_for_no_nodes(world):
    divide(world)
    world.drive(lambda: len(world.scheduler.led) == 3)
    first = world.submit("first", pods=2, run_s=600)
    world.drive_to(first, S.RUNNING)
    hold = world.submit("hold", pods=4, run_s=600)
    world.drive_to(hold, S.RUNNING)
    home, other = scope_of(first), scope_of(hold)
    assert {home, other} == {NORTH, SOUTH}
    gang = world.submit("gang", pods=4, min_count=2, run_s=600)
    world.drive_to(gang, S.RUNNING)
    assert scope_of(gang) == home
    world.cancel(hold)
    world.drive(lambda: not world.placements(hold, state__in=LIVE_PLACEMENTS))
    world.cancel(first)
    world.drive(lambda: len(world.placements(gang, state=P.RUNNING)) == 4)
    assert {p.node for p in world.placements(gang)} == nodes_by_scope()[home]
    world.cancel(gang)

    full = world.submit("full", pods=1, run_s=600)
    world.drive_to(full, S.RUNNING)
    wide = world.submit("wide", pods=NODES, min_count=5, run_s=600)
    world.drive_to(wide, S.RUNNING)
    assert (scope_of(wide), len(world.placements(wide))) == (WIDE, NODES - 1)
    world.cancel(full)
    world.drive(lambda: not world.placements(full, state__in=LIVE_PLACEMENTS))
    later = world.submit("later", gpus=8, run_s=0.3)
    world.drive_to(later, S.SUCCEEDED)
    assert len(world.placements(wide)) == NODES - 1
    assert len(nodes_by_scope()[scope_of(full)]) == 1


# --- two processes under load ---------------------------------------------------------------------
def leads():
    """Return {process id: the scopes it leads} from the lease rows."""
    found = defaultdict(set)
    for scope, holder in SchedulerLease.objects.values_list("scope", "holder"):
        found[int(holder.split(":")[1])].add(scope)
    return found


def placed(scopes):
    return Placement.objects.filter(job__scope__in=scopes).exclude(bound_at=None).count()


def test_two_processes_under_load_and_one_is_killed(shared_world):
    world = shared_world
    divide(world, backfill_after_s=1)
    dice = random.Random(9)
    jobs = []

    def load(count, name):
        for i in range(count):
            run_s = dice.uniform(0.2, 0.8)
            small = world.submit(f"{name}-{i}", gpus=dice.choice((1, 2, 4, 8)), run_s=run_s)
            jobs.append(small)
            if i % 20 == 7:
                jobs.append(world.submit(f"{name}-gang-{i}", pods=6, gpus=8, run_s=0.3))

    processes = [SchedulerProcess(), SchedulerProcess()]
    try:
        wait(lambda: set(leads()) == {p.process.pid for p in processes})
        load(40, "first")
        before = leads()
        wait(lambda: all(placed(scopes) > 3 for scopes in before.values()))
        assert leads() == before  # so each of them bound pods
        # The process with most scopes, so that the other has to take over several.
        victim = max(processes, key=lambda p: len(before[p.process.pid]))
        load(40, "second")
        victim.kill()
        dead = SchedulerLease.objects.filter(holder__contains=f":{victim.process.pid}:")
        assert dead.update(expires_at=timezone.now()) == 2
        wait(lambda: all_over(jobs), within=200)
        (survivor,) = (p for p in processes if p is not victim)
        wait(lambda: leads() == {survivor.process.pid: {NORTH, SOUTH, WIDE}})
    finally:
        for process in processes:
            if process.process.poll() is None:
                process.kill()
    others = Job.objects.exclude(state=S.SUCCEEDED.value)
    assert list(others.values_list("name", "state", "reason", "message", "scope")) == []
    gangs = [job for job in jobs if "gang" in job.name]
    assert all(Job.objects.get(pk=job.pk).scope == WIDE for job in gangs)
    assert not Placement.objects.filter(state__in=LIVE_PLACEMENTS).exists()
    audit = world.audit()
    assert audit["double_holdings"] == []
    assert len(audit["holdings"]) >= len(jobs)
