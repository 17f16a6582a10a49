"""Replay a recorded live run: the simulator decides the same, and the live recorder agrees with
the functions that compare both runs."""

from datetime import timedelta
from statistics import fmean

import pytest
from django.utils import timezone

from metrics import fidelity, selectors
from metrics.services import record_sample
from scheduling.engine.states import TERMINAL
from scheduling.engine.states import JobState as S
from scheduling.models import Job, Placement
from scheduling.models.jobs import PlacementState as P
from scheduling.queries import history
from scheduling.session import session
from tenants.models import Tenant
from tests.live.conftest import NODES
from tests.live.plain_pods import NAMESPACE, condition, make, path, state_of

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def _decides_as_of_then(monkeypatch):
    monkeypatch.setattr(session, "LATE_S", 3600.0)  # however busy the machine is


def all_over(world):
    over = Job.objects.filter(state__in=list(TERMINAL))
    world.drive(lambda: over.count() == Job.objects.count())


def finish_all(world):
    """Let every job run longer than it ran before each of its preemptions, then end. A
    simulation knows only how long its last run took."""
    runs, seen = Job.objects.filter(state=S.RUNNING), set()

    def has_run(job):
        before = world.placements(job, state=P.RELEASED)
        now, running = timezone.now(), world.placements(job, state=P.RUNNING)
        longest = max((p.ended_at - p.intended_at for p in before), default=timedelta())
        whole = len(running) == job.pod_sets.get().count
        return whole and all(now - p.intended_at > longest for p in running)

    def finish():
        for job in runs.exclude(pk__in=seen):
            if has_run(job):
                world.finish(job)
                seen.add(job.pk)
        return not Job.objects.exclude(state__in=list(TERMINAL)).exists()

    world.drive(finish)


def outlasts_bindings(world, job):
    """Drive until the job has run longer than any pod waited for its binding. A simulation has
    one binding delay for all, and no pod of it goes before it is bound."""
    waited = [p.held_from - p.intended_at for p in Placement.objects.exclude(held_from=None)]
    since = [p.held_from for p in world.placements(job)]
    world.drive(lambda: timezone.now() - max(since) > max(waited))


def spread(record, delay):
    """Return by how much bindings were faster or slower than the mean; waits and SOR of a
    simulation can differ by no more."""
    return max(abs(h.bound - h.decided - delay) for h in record.holds)


def sor_within(record, spread):
    """Return how far apart two SORs can be because of that."""
    return spread * sum(h.held_milli for h in record.holds) / (NODES * 8000 * record.seconds)


def early(record):
    """Return the share of all GPU time by which pods of gangs left before the last pod of their
    gang. A simulation removes all pods of a preempted gang at once."""
    last = {}
    gangs = [h for h in record.holds if record.jobs[h.job].gang]
    for h in gangs:
        last[h.job, h.decided] = max(h.gone, last.get((h.job, h.decided), 0.0))
    apart = sum((last[h.job, h.decided] - h.gone) * h.held_milli for h in gangs)
    return apart / (NODES * 8000 * record.seconds)


@pytest.fixture
def window(world):
    """A run with more jobs than fit at once: gangs, a service, a priority, a part of a GPU, a
    job that depends on another, and one that is cancelled while it runs."""
    world.set_policy(queueing="backfill", strategies={"training": "e-binpack"})
    world.drive(lambda: world.cluster.nodes.count() == NODES)
    record_sample(world.cluster, since := timezone.now())
    # A simulation holds a job longer if it runs for less than the mean binding delay.
    first = world.submit("wide", pods=3, run_s=3.5)
    world.submit("small", gpus=1, run_s=3.0)
    world.submit("half", gpus=1, gpu_milli=500, run_s=4.0)
    doomed = world.submit("doomed", gpus=4)
    world.drive_to(doomed, "RUNNING")
    for i in range(4):
        world.submit(f"one-{i}", gpus=(8, 2, 4, 8)[i], run_s=2.5 + 0.3 * i, declared_s=5)
    world.submit("service", pods=3, gpus=2, gang=False, run_s=3.0, kind="inference")
    world.submit("urgent", pods=4, run_s=2.5, priority=10)
    world.submit("next", gpus=2, run_s=2.3, after=[str(first.pk)])
    world.drive_to(first, "SUCCEEDED")
    world.cancel(doomed)
    all_over(world)
    record_sample(world.cluster, until := timezone.now())
    return history.Window(world.cluster, since, until)


def test_the_simulator_decides_what_was_decided_and_measures_what_was_measured(window):
    live = fidelity.recorded(window)
    delay = fidelity.bind_delay(live)
    simulated = fidelity.replayed(window, delay)
    assert len(live.holds) == 18
    assert simulated.order() == live.order()

    nodes = tuple(history.nodes_of(window.cluster))
    ours, theirs = fidelity.figures(live, nodes), fidelity.figures(simulated, nodes)
    for exact in ("gar_mean", "gar_median", "gfr_mean", "jtted_nodes", "jtted_groups", "jobs"):
        assert theirs[exact] == pytest.approx(ours[exact], rel=1e-6), exact
    assert 0 < ours["gfr_mean"] < 1
    assert 0 < ours["gar_mean"] < 1
    assert theirs["wait_mean_s"]["all"] == pytest.approx(ours["wait_mean_s"]["all"], rel=1e-6)
    apart = spread(live, delay)
    for size, wait in ours["wait_mean_s"].items():
        assert abs(theirs["wait_mean_s"][size] - wait) <= apart + 1e-6
    assert abs(theirs["sor_mean"] - ours["sor_mean"]) <= sor_within(live, apart)


def test_the_live_recorder_says_the_same_of_the_run(window):
    nodes = tuple(history.nodes_of(window.cluster))
    ours = fidelity.figures(fidelity.recorded(window), nodes)
    scope = selectors.MetricScope(window.cluster, "", window.since, window.until)
    sor, span = selectors.sor(scope)
    assert span.total_seconds() == pytest.approx(window.seconds, abs=1e-5)
    assert sor == pytest.approx(ours["sor_mean"], rel=1e-5)
    waits = selectors.waits(scope)
    for key, name in (("wait_mean_s", "in_all"), ("first_start_mean_s", "first_start")):
        means = {size: getattr(found, name).mean for size, found in waits.items()}
        assert means == pytest.approx(ours[key], abs=1e-5)
    quality = {row.size: row for row in selectors.jtted(scope)}
    for key, name in (("jtted_nodes", "node_deviation"), ("jtted_groups", "group_deviation")):
        found = {size: getattr(row, name) for size, row in quality.items()}
        assert found == pytest.approx({s: v for s, v in ours[key].items() if s != "all"})
    counted = sum(row.jobs for row in quality.values())
    assert ours["jtted_nodes"]["all"] == pytest.approx(
        fmean([row.node_deviation for row in quality.values() for _ in range(row.jobs)])
    )
    assert counted == 10


@pytest.mark.parametrize(("policy_s", "tenant_s"), [(0, None), (3600, 0)])
def test_it_preempts_whom_the_live_scheduler_preempted(world, policy_s, tenant_s):
    """A gang goes as a whole and a service loses single pods, each as slowly as in the live run."""
    Tenant.objects.filter(pk=world.tenant.pk).update(min_runtime_s=tenant_s, version=2)
    world.set_policy(
        preemption=["priority"], min_runtime_s=policy_s, strategies={"training": "e-binpack"}
    )
    world.drive(lambda: world.cluster.nodes.count() == NODES)
    since = timezone.now()
    gang = world.submit("gang", pods=2, stop_s=0.4)
    service = world.submit("service", pods=4, gpus=4, gang=False, stop_s=0.2)
    world.drive_to(gang, "RUNNING")
    world.drive(lambda: len(world.placements(service, state=P.RUNNING)) == 4)
    first = world.submit("first", priority=10)
    world.drive_to(first, "RUNNING")
    second = world.submit("second", pods=3, priority=20)
    world.drive_to(second, "RUNNING")
    world.submit("third", gpus=2)
    finish_all(world)
    window = history.Window(world.cluster, since, timezone.now())

    live = fidelity.recorded(window)
    delay = fidelity.bind_delay(live)
    simulated = fidelity.replayed(window, delay)
    assert live.preempted >= {str(gang.pk), str(service.pk)}
    assert simulated.preempted == live.preempted
    assert simulated.order() == live.order()
    nodes = tuple(history.nodes_of(window.cluster))
    ours, theirs = fidelity.figures(live, nodes), fidelity.figures(simulated, nodes)
    assert theirs["gfr_mean"] == pytest.approx(ours["gfr_mean"], rel=1e-3)
    assert abs(theirs["gar_mean"] - ours["gar_mean"]) <= early(live) + 1e-3
    apart = spread(live, delay)
    within = sor_within(live, apart) + early(live)
    assert abs(theirs["sor_mean"] - ours["sor_mean"]) <= within + 1e-6
    assert abs(theirs["wait_mean_s"]["all"] - ours["wait_mean_s"]["all"]) <= apart + 1e-6


def test_jobs_of_plain_pods_are_replayed_as_they_went(world):
    """One finishes, one is deleted, one is deleted while it waits, and one ends because it is
    preempted."""
    world.set_policy(preemption=["priority"], min_runtime_s=0, strategies={"training": "e-binpack"})
    world.drive(lambda: world.cluster.nodes.count() == NODES)
    since = timezone.now()
    # As on a busy machine, where the first bindings take longer than later jobs run.
    world.fault("too-many-requests", verb="bind", retry_after_s=4, count=4)
    # The job placed last would be the cheapest victim.
    done = make(world, "done", notes={"kant.io/preemptible": "false"})
    others = [make(world, f"other-{i}") for i in range(3)]
    world.drive(lambda: {state_of(uid) for uid in (done, *others)} == {S.RUNNING})
    waits = make(world, "waits")
    world.drive(lambda: condition(world, "waits"))
    high = world.submit("high", priority=10)
    world.drive_to(high, "RUNNING")
    world.call("DELETE", path("waits"))
    world.drive(lambda: state_of(waits) is S.CANCELLED)
    outlasts_bindings(world, high)
    world.finish(high)
    world.report("done", "Succeeded", NAMESPACE)
    world.drive(lambda: state_of(done) is S.SUCCEEDED)
    for i in range(3):
        if state_of(others[i]) is S.RUNNING:
            world.call("DELETE", path(f"other-{i}"))
    all_over(world)
    world.drive(lambda: world.free_gpus() == NODES * 8000)
    window = history.Window(world.cluster, since, timezone.now())

    live = fidelity.recorded(window)
    delay = fidelity.bind_delay(live)
    simulated = fidelity.replayed(window, delay)
    assert len(live.holds) == 5
    assert len(live.preempted) == 1
    assert simulated.preempted == live.preempted
    assert simulated.order() == live.order()
    nodes = tuple(history.nodes_of(window.cluster))
    ours, theirs = fidelity.figures(live, nodes), fidelity.figures(simulated, nodes)
    for name in ("gar_mean", "gfr_mean"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-3), name
    apart = spread(live, delay)
    assert abs(theirs["sor_mean"] - ours["sor_mean"]) <= sor_within(live, apart) + 1e-6
