"""Preemption spares pods that a PodDisruptionBudget protects."""

import pytest

from scheduling.engine.deltas import DisruptionBudget
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.engine.types import JobRequest, PodPlacement, PodSetSpec
from scheduling.kube.seam import BudgetFacts, Requirement
from scheduling.models import Job, JobEvent
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.live import LiveJob, LivePod
from scheduling.session.pods.budgets import Budgets

BUDGETS = "/apis/policy/v1/namespaces/kant-jobs/poddisruptionbudgets"


def protect(world, name, labels, **spec):
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, **spec}}
    world.call("POST", BUDGETS, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", **body})


def allowed(world, name):
    return world.call("GET", f"{BUDGETS}/{name}")["status"]["disruptionsAllowed"]


def running(world, job):
    return len(world.placements(job, state=P.RUNNING))


@pytest.mark.live
def test_a_protected_gang_is_no_victim_until_its_budget_is_gone(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    kept = world.submit("kept", pods=2, labels={"app": "web"})
    world.drive_to(kept, S.RUNNING)
    other = world.submit("other", pods=2)
    world.drive_to(other, S.RUNNING)
    # The other job is younger and would lose less work anyway; make it the more expensive victim.
    for r in world.placements(kept):
        note = {"metadata": {"annotations": {"kant.io/checkpointed-at": "9999999999"}}}
        path = f"/api/v1/namespaces/kant-jobs/pods/{r.pod_name}"
        world.call("PATCH", path, note, kind="merge-patch+json")
    protect(world, "web", {"app": "web"}, minAvailable=1)
    world.drive(lambda: allowed(world, "web") == 1)
    state = world.scheduler.led[world.cluster.pk, WHOLE].session.state
    world.drive(lambda: state.jobs[str(kept.pk)].disruptions == 0)  # a gang goes whole or not
    high = world.submit("high", pods=2, priority=10)
    world.drive_to(high, S.RUNNING)
    assert K.PREEMPTED in world.kinds(other)
    assert world.state(kept) == S.RUNNING
    second = world.submit("second", pods=2, priority=10)
    world.drive(lambda: Job.objects.get(pk=second.pk).reason == "InsufficientGpus")
    assert world.state(kept) == S.RUNNING
    world.call("DELETE", f"{BUDGETS}/web")
    world.drive_to(second, S.RUNNING)
    assert K.PREEMPTED in world.kinds(kept)


@pytest.mark.live
def test_of_a_service_as_many_pods_are_preempted_as_its_budget_allows(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    service = world.submit("service", pods=4, gang=False, labels={"app": "web"})
    world.drive(lambda: running(world, service) == 4)
    protect(world, "web", {"app": "web"}, minAvailable=3)
    world.drive(lambda: allowed(world, "web") == 1)
    state = world.scheduler.led[world.cluster.pk, WHOLE].session.state
    world.drive(lambda: state.jobs[str(service.pk)].disruptions == 1)
    both = [world.submit(f"high-{i}", pods=1, priority=10) for i in range(2)]
    world.drive(lambda: S.RUNNING in {world.state(j) for j in both})
    world.drive(lambda: "InsufficientGpus" in {Job.objects.get(pk=j.pk).reason for j in both})
    assert running(world, service) == 3
    pods = [e.evidence["pods"] for e in JobEvent.objects.filter(job=service, reason="Preempted")]
    assert pods == [1]
    world.drive(lambda: allowed(world, "web") == 0)


# --- without a cluster --------------------------------------------------------------------------
def job(name, pods, *, gang=True, app="web", **fields):
    """Return a running job with this many pods."""
    request = JobRequest(name, "team", 0.0, (PodSetSpec("set", pods, 1),), gang=gang, **fields)
    made = LiveJob(request, name, (), S.RUNNING, 1, 1, labels={"app": app}, namespace="kant-jobs")
    for i in range(pods):
        made.add(LivePod(PodPlacement(0, i, "n", (i,), 1000), 1, f"{name}-{i}", "H100", P.RUNNING))
    return made


def budget(uid, allowed, key="app", value="web"):
    return BudgetFacts("kant-jobs", uid, uid, (Requirement(key, "In", (value,)),), allowed)


def test_a_budget_grants_what_it_allows_once_to_the_first_victims():
    jobs = {
        j.id: j
        for j in (
            job("fixed", 1, gang=False, preemptible=False),
            job("high", 2, gang=False, priority=5),
            job("low", 3, gang=False),
            job("gang", 2),
            job("free", 2, app="other"),
        )
    }
    budgets = Budgets()
    assert budgets.changed(jobs) == []
    budgets.seen(budget("web", 4))
    # Lowest priority and id first: the whole gang, and of the next job what the budget leaves.
    told = {d.job_id: d.allowed for d in budgets.changed(jobs)}
    assert told == {"gang": 2, "low": 2, "high": 0, "fixed": 0}
    assert {i for i, j in jobs.items() if j.protected} == {"fixed", "high", "low", "gang"}
    assert budgets.changed(jobs) == []
    # The budget leaves less than a whole gang; other jobs get the rest.
    budgets.seen(budget("web", 1))
    told = {d.job_id: d.allowed for d in budgets.changed(jobs)}
    assert told == {"gang": 0, "low": 1}
    # A second budget protects one of them: the stricter one applies.
    budgets.seen(budget("tenant", 0, key="kant.io/job", value="low"))
    told = {d.job_id: d.allowed for d in budgets.changed(jobs)}
    assert told == {"low": 0, "high": 1}
    # A job without pods is told that no budget protects it any more.
    del jobs["low"]
    budgets.gone(budget("web", 0))
    told = budgets.changed(jobs)
    ids = ("fixed", "gang", "high", "low")
    assert told == [DisruptionBudget(i, None) for i in ids]
    assert not any(j.protected for j in jobs.values())
