"""One cluster divided between several schedulers (docs/decisions/0003-shards.md)."""

import random
from collections import defaultdict

import pytest
import yaml

from metrics.benches import stage
from scheduling.cluster_process import ClusterProcess
from scheduling.engine.shards import WIDE
from scheduling.engine.states import TERMINAL, JobEventKind
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent, NodeRecord, Placement, SchedulerLease
from scheduling.models.jobs import LIVE_PLACEMENTS
from tests.live.conftest import SchedulerProcess, wait

pytestmark = pytest.mark.live
NODES = 8  # in two spines of four
NORTH, SOUTH = "north", "south"


@pytest.fixture
def cluster_process(tmp_path):
    path = stage.inventory(tmp_path / "fleet.yaml", NODES)
    document = yaml.safe_load(path.read_text())
    document["pools"][0] |= {"nodes_per_leaf": 2, "leaves_per_spine": 2}
    path.write_text(yaml.safe_dump(document))
    process = ClusterProcess(str(path), tmp_path / "cluster")
    process.start()
    yield process
    process.stop()


def spines(world):
    """The spines by their full paths, as Kant names groups."""
    labels = [n["metadata"]["labels"] for n in world.call("GET", "/api/v1/nodes")["items"]]
    levels = [f"network.topology.nvidia.com/{level}" for level in ("core", "spine")]
    return sorted({"/".join(found[level] for level in levels) for found in labels})


def divide(world, **policy):
    shards = [{"name": NORTH, "groups": spines(world)[:1]}, {"name": SOUTH}]
    world.set_policy(shards=shards, **policy)


def nodes_by_scope():
    found = defaultdict(set)
    for name, scope in NodeRecord.objects.values_list("name", "scope"):
        found[scope].add(name)
    return found


def all_over(jobs):
    states = Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("state", flat=True)
    return all(S(state) in TERMINAL for state in states)


def scope_of(job):
    return Job.objects.get(pk=job.pk).scope


# --- one process that leads all scopes ------------------------------------------------------------
def test_jobs_go_to_shards_and_a_gang_that_fits_none_runs_on_lent_nodes(world):
    divide(world)
    world.drive(lambda: len(world.scheduler.led) == 3)
    assert {scope: len(names) for scope, names in nodes_by_scope().items()} == {NORTH: 4, SOUTH: 4}
    long = [world.submit(f"long-{i}", pods=3, run_s=2) for i in range(2)]
    world.drive(lambda: all(world.state(job) == S.RUNNING for job in long))
    assert {scope_of(job) for job in long} == {NORTH, SOUTH}
    gang = world.submit("gang", pods=6, run_s=0.5)
    world.drive(lambda: Job.objects.get(pk=gang.pk).reason == "InsufficientGpus")
    assert "16" in Job.objects.get(pk=gang.pk).message
    small = world.submit("small", gpus=1, run_s=0.2)
    world.drive_to(small, S.SUCCEEDED)
    assert scope_of(small) in (NORTH, SOUTH)
    world.drive_to(gang, S.RUNNING)
    assert {p.node for p in world.placements(gang)} <= nodes_by_scope()[WIDE]
    world.drive_to(gang, S.SUCCEEDED)
    assert scope_of(gang) == WIDE
    world.drive(lambda: {s: len(n) for s, n in nodes_by_scope().items()} == {NORTH: 4, SOUTH: 4})
    routed = JobEvent.objects.filter(job=gang, kind=JobEventKind.ROUTED)
    assert [event.evidence["to"] for event in routed] == [WIDE]


# --- two processes under load ---------------------------------------------------------------------
def leads():
    """{process id: the scopes it leads}, by the lease rows."""
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
        # The one with most scopes, so that the other has to take over several.
        victim = max(processes, key=lambda p: len(before[p.process.pid]))
        load(40, "second")
        victim.kill()
        wait(lambda: all_over(jobs), within=90)
        (survivor,) = (p for p in processes if p is not victim)
        assert leads()[survivor.process.pid] == {NORTH, SOUTH, WIDE}
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
