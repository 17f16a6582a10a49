"""Changes of waiting jobs over REST reach the scheduler that leads the cluster."""

import time

import pytest
from django.db.models import F
from rest_framework.test import APIClient

from metrics.benches import stage
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job
from scheduling.services.jobs.changes import hold_job, release_job
from scheduling.services.scheduler import cycle
from scheduling.session import changes
from scheduling.session.pods import leave
from tenants.models import GpuType, Membership, Quota, Role, Tenant, User
from tenants.services.tokens import create_token
from tests.live.plain_pods import job_of, make, path, state_of

pytestmark = pytest.mark.live


class Rest:
    def __init__(self, world, user=None):
        secret = create_token(user or world.user, "test").secret
        self.client = APIClient(HTTP_AUTHORIZATION=f"Bearer {secret}")

    def post(self, path, **body):
        answer = self.client.post(f"/api/v1/{path}", body, format="json")
        assert answer.status_code in (200, 201), answer.json()
        return answer.json()

    def patch(self, job, **changes):
        answer = self.client.patch(f"/api/v1/jobs/{job}", changes, format="json")
        assert answer.status_code == 200, answer.json()

    def submit(self, name, run_s=600.0, **fields):
        notes = {"sim.kant.io/run-seconds": str(run_s)}
        body = {"name": name, "tenant": "team", "gpu_type": stage.MODEL, "gpus": 8, **fields}
        return self.post("jobs", **body, annotations=notes)["id"]


@pytest.fixture
def rest(world):
    return Rest(world)


def state(job):
    return S(Job.objects.values_list("state", flat=True).get(pk=job))


def evidence(job):
    return Job.objects.values_list("evidence", flat=True).get(pk=job)


def test_holds_priorities_and_start_times_are_followed(world, rest):
    full = rest.submit("full", replicas=4)
    world.drive(lambda: state(full) == S.RUNNING)
    held, early, late = rest.submit("held", held=True), rest.submit("early"), rest.submit("late")
    world.drive(lambda: Job.objects.get(pk=held).reason == "OnHold")
    rest.patch(early, not_before="2099-01-01T00:00:00Z")
    rest.patch(late, priority=5)
    world.drive(lambda: Job.objects.get(pk=early).reason == "BackingOff")
    rest.post(f"jobs/{full}/cancel")
    world.drive(lambda: state(late) == S.RUNNING)
    assert {state(held), state(early)} <= {S.PENDING, S.QUOTA_RESERVED}
    rest.post(f"jobs/{held}/release")
    rest.patch(early, not_before=None)
    world.drive(lambda: state(held) == state(early) == S.RUNNING)


def test_an_array_runs_in_the_order_of_its_indices_and_is_cancelled_whole(world, rest):
    array = rest.submit("sweep", array={"count": 9})
    jobs = Job.objects.filter(array_id=array).order_by("array_index")
    world.drive(lambda: jobs.filter(state=S.RUNNING).count() == 4)
    assert [j.state == S.RUNNING for j in jobs] == [True] * 4 + [False] * 5
    pod = next(p for name, p in world.pods().items() if name.startswith("sweep-2-"))
    env = {e["name"]: e["value"] for e in pod["spec"]["containers"][0]["env"]}
    assert env == {"KANT_ARRAY_INDEX": "2", "KANT_ARRAY_COUNT": "9"}
    after = rest.submit("after", after=[str(jobs[0].pk)])
    assert rest.post(f"job-arrays/{array}/cancel")["states"] == {"CANCELLED": 9}
    world.drive(lambda: state(after) == S.RUNNING)
    world.drive(lambda: world.free_gpus() == 3 * 8 * 1000)


def test_a_limit_on_running_jobs_holds_until_it_is_lifted(world, rest):
    url = "/api/v1/tenants/team"
    assert rest.client.patch(url, {"max_running": 1}, format="json").status_code == 200
    first, second = rest.submit("first"), rest.submit("second")
    world.drive(lambda: state(first) == S.RUNNING and "max_running" in evidence(second))
    assert state(second) in (S.PENDING, S.QUOTA_RESERVED)
    assert rest.client.patch(url, {"max_running": None}, format="json").status_code == 200
    world.drive(lambda: state(second) == S.RUNNING)


def test_a_minimum_run_time_of_the_tenant_holds_and_ends_for_jobs_that_run(world, rest):
    """Set and lift the minimum over REST while the job runs; by the policy alone it could be
    preempted at once."""
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    url = "/api/v1/tenants/team"
    low = rest.submit("low", replicas=3)
    world.drive(lambda: state(low) == S.RUNNING)
    assert rest.client.patch(url, {"min_runtime_s": 3600}, format="json").status_code == 200
    book = world.scheduler.led[world.cluster.pk, WHOLE].session.state.book
    world.drive(lambda: book.min_runtimes == {"team": 3600.0})
    high = rest.submit("high", replicas=2, priority=9)
    world.drive(lambda: "protected_until" in evidence(high))
    since = Job.objects.get(pk=low).placements.first().intended_at.timestamp()
    assert evidence(high)["protected_until"] == pytest.approx(since + 3600, abs=2.0)
    assert rest.client.patch(url, {"min_runtime_s": 7200}, format="json").status_code == 200
    later = since + 7200
    told = lambda: evidence(high)["protected_until"] == pytest.approx(later, abs=2.0)  # noqa: E731
    world.drive(told)
    assert state(low) == S.RUNNING
    assert rest.client.patch(url, {"min_runtime_s": None}, format="json").status_code == 200
    world.drive(lambda: Job.objects.get(pk=high).reason == "WaitingForPreemption")
    world.drive(lambda: state(high) == S.RUNNING)


def test_a_job_waits_for_a_whole_array_and_an_array_for_its_release(world, rest):
    array = rest.submit("sweep", run_s=0.3, array={"count": 6}, held=True)
    after = rest.submit("after", after_ok=[array], run_s=0.1)
    jobs = Job.objects.filter(array_id=array)
    world.drive(
        lambda: Job.objects.get(pk=after).reason == "OnHold" and evidence(after)["jobs"] == 6
    )
    assert set(jobs.values_list("reason", flat=True)) == {"OnHold"}
    url = f"/api/v1/job-arrays/{array}"
    assert rest.client.patch(url, {"priority": 3}, format="json").status_code == 200
    rest.post(f"job-arrays/{array}/release")
    world.drive(lambda: state(after) == S.SUCCEEDED)
    assert set(jobs.values_list("state", "priority")) == {(S.SUCCEEDED, 3)}
    last = max(jobs.values_list("ended_at", flat=True))
    assert Job.objects.get(pk=after).admitted_at >= last
    # A scheduler that starts later knows that one array is over and that one failed.
    failed = rest.submit("failed", array={"count": 2})
    rest.post(f"job-arrays/{failed}/cancel")
    open_ = rest.submit("open", after=[array, failed], run_s=0.1)
    world.restart_scheduler()
    world.drive(lambda: state(open_) == S.SUCCEEDED)


def test_the_order_that_pages_show_is_the_fair_one_of_the_scheduler(world, rest):
    """One of two tenants holds everything, so a younger job of the other one goes first."""
    world.set_policy(fair_share=True)
    other = Tenant.objects.create(name="other")
    gpu_type = GpuType.objects.get(name=stage.MODEL)
    Quota.objects.create(tenant=other, gpu_type=gpu_type, guaranteed_milli=1_000_000)
    full = rest.submit("full", replicas=4)
    world.drive(lambda: state(full) == S.RUNNING)
    older, younger = rest.submit("older"), rest.submit("younger", tenant="other")

    def explained(job):
        return rest.client.get(f"/api/v1/jobs/{job}/explain").json()

    world.drive(lambda: explained(older)["position"] == 2)
    assert explained(younger)["position"] == 1
    assert [each["job"] for each in explained(older)["ahead"]] == [younger]
    world.set_policy(fair_share=False)
    world.drive(lambda: explained(older)["position"] == 1)


def test_the_first_job_of_a_colleague_goes_before_thirty_of_another_user(world, rest):
    """This holds for a new scheduler too, and ends when the policy is switched back."""
    world.set_policy(queueing="strict-fifo", fair_share=True, fair_users=True)
    sweep = rest.submit("sweep", array={"count": 34})
    many = Job.objects.filter(array_id=sweep)
    world.drive(lambda: many.filter(state=S.RUNNING).count() == 4)
    colleague = User.objects.create_user("colleague", password="x")
    Membership.objects.create(user=colleague, tenant=world.tenant, role=Role.ENGINEER)
    first = Rest(world, colleague).submit("first")

    def place(job):
        return rest.client.get(f"/api/v1/jobs/{job}/explain").json()["position"]

    eldest = str(many.get(array_index=4).pk)
    world.drive(lambda: (place(first), place(eldest)) == (1, 2))
    world.drive(lambda: evidence(eldest).get("ahead") == first)
    assert "another user of the tenant, who holds fewer GPUs" in Job.objects.get(pk=eldest).message
    assert evidence(eldest)["user_share"] == 1
    assert evidence(eldest)["user_share_ahead"] == 0
    world.set_policy(fair_users=False)
    world.drive(lambda: (place(first), place(eldest)) == (31, 1))
    world.set_policy(fair_users=True)
    world.drive(lambda: place(first) == 1)
    world.restart_scheduler()
    rest.post(f"jobs/{many.get(array_index=0).pk}/cancel")
    world.drive(lambda: state(first) == S.RUNNING)
    assert many.filter(admitted_at=None).count() == 30


def test_the_record_of_a_preemption_is_told_over_rest(world, rest):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    cheap, dear = rest.submit("cheap", replicas=2), rest.submit("dear", replicas=2)
    world.drive(lambda: state(cheap) == state(dear) == S.RUNNING)
    high = rest.submit("high", replicas=2, priority=10)
    world.drive(lambda: state(high) == S.RUNNING)
    events = [
        event
        for job in (cheap, dear)
        for event in rest.client.get(f"/api/v1/jobs/{job}/events").json()["items"]
        if event["reason"] == "Preempted"
    ]
    [event] = events
    said = event["evidence"]
    assert (said["by"], said["kind"], said["pods"]) == (high, "priority", 2)
    assert said["cost_gpu_s"] == said["total_gpu_s"] > 0
    told = rest.client.get(f"/api/v1/jobs/{high}/events").json()["items"]
    [made] = [each for each in told if each["reason"] == "RoomMade"]
    victim = next(job for job in (cheap, dear) if state(job) != S.RUNNING)
    assert made["evidence"] == {
        "jobs": 1,
        "pods": 2,
        "total_gpu_s": said["total_gpu_s"],
        "victims": victim,
    }
    # The other gang would have made room as well.
    assert said["alternatives"].startswith("other victims: ")
    assert said["alternative_gpu_s"] > 0


def test_a_job_that_is_put_on_hold_as_it_starts_stays_on_hold(world, monkeypatch):
    full, job = world.submit("full", pods=4), world.submit("job", pods=2)
    world.drive_to(full, S.RUNNING)
    world.drive(lambda: Job.objects.get(pk=job.pk).reason == "InsufficientGpus")
    apply = cycle.apply_decisions

    def after_a_hold(lease, writes, now, *others):
        if writes.intents and not Job.objects.get(pk=job.pk).held:
            hold_job(world.user, job)
        return apply(lease, writes, now, *others)

    monkeypatch.setattr(cycle, "apply_decisions", after_a_hold)
    world.cancel(full)
    world.drive(lambda: Job.objects.get(pk=job.pk).reason == "OnHold")
    assert (world.state(job), world.placements(job)) == (S.QUOTA_RESERVED, [])
    monkeypatch.undo()
    release_job(world.user, job)
    world.drive_to(job, S.RUNNING)
    assert world.kinds(job).count(K.ADMITTED) == 1


def test_a_job_that_is_cancelled_as_its_pod_goes_ends_once(world, monkeypatch):
    uid, beside = make(world), make(world, "beside")
    world.drive(lambda: state_of(uid) is state_of(beside) is S.RUNNING)
    apply = cycle.apply_decisions

    def after_a_cancellation(lease, writes, now, *others):
        ends = [step.kind for step in writes.transitions if step.job_id == uid]
        if ends and world.state(job_of(uid)) == S.RUNNING:
            assert ends == [K.CANCELLED]
            world.cancel(job_of(uid))
        return apply(lease, writes, now, *others)

    monkeypatch.setattr(cycle, "apply_decisions", after_a_cancellation)
    for name in ("plain", "beside"):
        world.call("DELETE", path(name), {"gracePeriodSeconds": 0})
    world.drive(lambda: state_of(uid) is state_of(beside) is S.CANCELLED)
    world.drive(lambda: world.free_gpus() == 32_000)
    assert (job_of(uid).reason, job_of(uid).message) == ("", "Cancelled by op.")
    assert job_of(beside).reason == "PodDeleted"
    for job in (job_of(uid), job_of(beside)):
        assert world.kinds(job).count(K.CANCELLED) == 1
    [led] = world.scheduler.led.values()
    world.drive(lambda: not led.session.life.jobs)


def test_a_job_that_is_cancelled_as_it_is_preempted_goes_at_once(world, monkeypatch):
    monkeypatch.setattr(leave, "ASK_AGAIN_S", 3600.0)
    monkeypatch.setattr(changes, "COUNT_S", 3600.0)
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4)
    world.drive_to(low, S.RUNNING)
    row = Job.objects.filter(pk=low.pk)
    row.update(state=S.CANCELLED, version=F("version") + 1)  # of which nothing is heard yet
    high = world.submit("high", pods=4, priority=1)
    world.drive_to(high, S.RUNNING)
    assert world.state(low) == S.CANCELLED


def test_a_binding_is_as_of_its_answer_however_late_that_is_taken_in(world, monkeypatch):
    """A scheduler with much to write processes binding results only afterwards."""
    world.drive_to(world.submit("first", gpus=2), S.RUNNING)
    [led] = world.scheduler.led.values()
    gateway, taken_in = led.session.gateway, time.time() + 1.0
    drain = gateway.drain
    monkeypatch.setattr(gateway, "drain", lambda: drain() if time.time() > taken_in else [])
    job = world.submit("late", gpus=2)
    world.drive_to(job, S.RUNNING)
    job.refresh_from_db()
    [place] = world.placements(job)
    assert place.intended_at < place.bound_at <= place.held_from == job.bound_at
    assert job.bound_at.timestamp() < taken_in < job.running_at.timestamp()
