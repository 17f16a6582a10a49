"""Pods that people make themselves and that name Kant as their scheduler are jobs of one pod."""

import pytest
from django.test import Client

from scheduling.engine.shards import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.kube.seam import Bind, Outcome, Result
from scheduling.models import Job
from scheduling.services.job_changes import change_job, hold_job, release_job
from scheduling.session import changes, plain_pods
from tenants.models import Tenant
from tests.live.plain_pods import (
    MERGE,
    NAMESPACE,
    condition,
    job_of,
    make,
    node_of,
    path,
    pod_of,
    state_of,
    told,
)

pytestmark = pytest.mark.live


def test_a_plain_pod_is_bound_as_a_job_and_ends_as_it_does(world):
    notes = {"sim.kant.io/run-seconds": "0.5", "kant.io/kind": "development"}
    uid = make(world, gpus=4, notes=notes)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    job = job_of(uid)
    assert (job.name, job.tenant.name, job.user) == ("plain", "team", None)
    assert (job.pod_namespace, job.pod_name, job.kind) == (NAMESPACE, "plain", "development")
    [pod_set] = job.pod_sets.all()
    assert (pod_set.gpus, pod_set.count, pod_set.cpu_milli) == (4, 1, 100)
    assert (pod_set.image, pod_set.command) == ("team/train:1", ["train"])
    [place] = world.placements(job)
    assert (place.pod_name, place.pod_uid, place.node) == ("plain", uid, node_of(world))
    notes = pod_of(world)["metadata"]["annotations"]
    assert notes["kant.io/devices"] == str(place.devices)
    assert condition(world)[0] == "True"
    world.drive(lambda: state_of(uid) is S.SUCCEEDED)
    assert world.kinds(job)[:1] == [K.SUBMITTED]
    assert world.free_gpus() == 32_000
    assert told(world) == []
    assert pod_of(world)["status"]["phase"] == "Succeeded"  # it is not Kant's to delete
    client = Client()
    client.force_login(world.user)
    shown = client.get(f"/api/v1/jobs/{uid}").json()
    assert shown["pod"] == {"namespace": NAMESPACE, "name": "plain", "hold": ""}
    assert shown["user"] is None
    assert f"{NAMESPACE}/plain" in client.get(f"/jobs/{uid}/").content.decode()


# --- pods of which no job can be made -------------------------------------------------------------
def test_a_pod_without_a_tenant_says_so_and_is_taken_up_when_it_has_one(world):
    uid = make(world, labels={"app": "x"})
    world.drive(lambda: told(world))
    text = "Set the label kant.io/tenant to the tenant whose quota the pod uses."
    assert told(world) == [("Warning", "NoTenant", text)]
    world.drive(lambda: condition(world) == ("False", "NoTenant", text))
    relabel(world, {"kant.io/tenant": "nobody"})
    world.drive(lambda: len(told(world)) == 2)
    assert {reason for _, reason, _ in told(world)} == {"NoTenant", "UnknownTenant"}
    assert job_of(uid) is None
    relabel(world, {"kant.io/tenant": "team"})
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert job_of(uid).labels == {"app": "x"}


def relabel(world, labels, name="plain"):
    world.call("PATCH", path(name), {"metadata": {"labels": labels}}, kind=MERGE)


def test_a_pod_is_taken_up_when_its_tenant_is_made_active(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.5)
    Tenant.objects.update(is_active=False)
    uid = make(world)
    world.drive(lambda: condition(world))
    assert condition(world)[1] == "TenantInactive"
    Tenant.objects.update(is_active=True)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert len(told(world)) == 1


ASKED = {"nvidia.com/gpu": "1"}
WRONG = {
    "model": ({"notes": {"kant.io/gpu-models": "A100"}}, "annotation kant.io/gpu-models: There is"),
    "size": (
        {"gpus": 16},
        "spec.containers[].resources.requests[nvidia.com/gpu]: A pod asks for 16",
    ),
    "none": ({"requests": {"cpu": "1"}}, "asks for no GPU"),
    "both": ({"requests": {**ASKED, "kant.io/gpu-milli": "500"}}, "not both"),
    "kind": ({"notes": {"kant.io/kind": "fun"}}, "annotation kant.io/kind: Choose one of training"),
    "truth": ({"notes": {"kant.io/preemptible": "no"}}, "kant.io/preemptible: Choose true or"),
    "number": ({"notes": {"kant.io/declared-seconds": "1h"}}, "Must be a whole number"),
    "range": ({"notes": {"kant.io/declared-seconds": "0"}}, "declared-seconds: Must be from 1 to"),
    "wish": ({"notes": {"kant.io/gpu-model": "H100"}}, "There is no such wish; there are kant.io/"),
    "place": ({"labels": {"kant.io/tenant": "team", "kant.io/kind": "training"}}, "an annotation"),
    "storage": ({"requests": {**ASKED, "ephemeral-storage": "1Gi"}}, "requests[ephemeral-storage]"),
}


@pytest.mark.parametrize(("given", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_pod_is_said_with_its_field(world, given, said):
    uid = make(world, **given)
    world.drive(lambda: told(world) and condition(world))
    [(kind, reason, note)] = told(world)
    assert kind == "Warning"
    assert said in note
    assert condition(world) == ("False", reason, note)
    assert job_of(uid) is None
    assert not node_of(world)


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
APART = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}
PORT = {"name": "d", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}
UNHONOURED = {
    "node": (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}},
        f"spec.affinity.nodeAffinity.{REQUIRED}",
    ),
    "pod": (
        {"affinity": {"podAntiAffinity": {REQUIRED: [APART]}}},
        f"spec.affinity.podAntiAffinity.{REQUIRED}",
    ),
    "spread": (
        {"topologySpreadConstraints": [SPREAD | {"whenUnsatisfiable": "DoNotSchedule"}]},
        "spec.topologySpreadConstraints[0].whenUnsatisfiable",
    ),
    "volume": (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "spec.volumes[0].persistentVolumeClaim",
    ),
    "port": ({"initContainers": [PORT]}, "spec.initContainers[0].ports[0].hostPort"),
    "claim": ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
}


@pytest.mark.parametrize(("spec", "field"), UNHONOURED.values(), ids=UNHONOURED)
def test_a_constraint_that_kant_does_not_honour_keeps_a_pod_from_being_bound(world, spec, field):
    uid = make(world, **spec)
    world.drive(lambda: told(world))
    [(_, reason, note)] = told(world)
    assert reason == "NotHonoured"
    assert note.startswith(f"{field}: ")
    assert (job_of(uid), node_of(world)) == (None, None)


def test_preferences_and_volumes_of_any_node_are_no_constraints(world):
    uid = make(
        world,
        affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        topologySpreadConstraints=[SPREAD | {"whenUnsatisfiable": "ScheduleAnyway"}],
        volumes=[{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s"}}],
    )
    world.drive(lambda: state_of(uid) is S.RUNNING)


def test_claims_are_mounted_anywhere_where_the_pod_says_so(world):
    claim = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    uid = make(world, notes={"kant.io/claims": "on-all-nodes"}, volumes=claim)
    make(world, "else", notes={"kant.io/claims": "yes"}, volumes=claim)
    world.drive(lambda: state_of(uid) is S.RUNNING and told(world, "else"))
    [(_, reason, note)] = told(world, "else")
    assert reason == "InvalidPod"
    assert "annotation kant.io/claims: Write on-all-nodes, or leave it out." in note


# --- while it waits -------------------------------------------------------------------------------
def full(world):
    """A job that holds all there is."""
    job = world.submit("full", pods=4)
    world.drive_to(job, S.RUNNING)
    return job


def test_a_waiting_pod_says_why_and_starts_when_there_is_room(world):
    other = full(world)
    uid = make(world, gpus=2)
    world.drive(lambda: condition(world))
    status, reason, text = condition(world)
    assert (status, reason) == ("False", "Unschedulable")
    job = job_of(uid)
    assert text == f"{job.reason}: {job.message}"
    assert job.reason == "InsufficientGpus"
    version = pod_of(world)["metadata"]["resourceVersion"]
    behind = world.submit("behind", gpus=1)
    world.drive(lambda: Job.objects.get(pk=behind.pk).reason == "InsufficientGpus")
    assert pod_of(world)["metadata"]["resourceVersion"] == version  # told once
    world.cancel(other)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert condition(world)[0] == "True"


def test_a_waiting_job_may_be_held_released_and_changed(world):
    uid = make(world, gpus=2, schedulingGates=[{"name": "example.com/later"}])
    world.drive(lambda: job_of(uid))
    hold_job(world.user, job_of(uid))
    change_job(world.user, job_of(uid), {"priority": 5})
    ungate(world)
    world.drive(lambda: job_of(uid).pod_hold == "")
    world.drive(lambda: job_of(uid).reason == "OnHold")
    assert job_of(uid).message == "The job is on hold."
    release_job(world.user, job_of(uid))
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert job_of(uid).priority == 5


def ungate(world, name="plain", **spec):
    world.call("PATCH", path(name), {"spec": {"schedulingGates": None, **spec}}, kind=MERGE)


def test_a_gated_pod_waits_and_what_is_changed_meanwhile_counts(world):
    uid = make(world, gpus=2, schedulingGates=[{"name": "example.com/quota"}])
    world.drive(lambda: job_of(uid))
    before = job_of(uid)
    world.drive_to(world.submit("other", run_s=0.2), S.SUCCEEDED)
    said = (before.state, before.reason, before.message)
    assert said == (S.PENDING, "OnHold", "Its pod has the scheduling gate example.com/quota.")
    assert condition(world)[1] == "SchedulingGated"
    last = sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])[-1]
    ungate(world, nodeSelector={"kubernetes.io/hostname": last})
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == last
    kinds = world.kinds(before)
    assert kinds[:3] == [K.SUBMITTED, K.CHANGED, K.RELEASED]


def test_a_gated_pod_that_gets_a_constraint_is_held_until_it_is_deleted(world):
    uid = make(world, schedulingGates=[{"name": "example.com/quota"}])
    world.drive(lambda: job_of(uid))
    terms = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}
    ungate(world, affinity=terms)
    world.drive(lambda: [t for t in told(world) if t[1] == "NotHonoured"])
    world.drive(lambda: condition(world)[1] == "NotHonoured")
    world.drive_to(world.submit("other", run_s=0.2), S.SUCCEEDED)
    job = job_of(uid)
    assert (job.state, job.reason) == (S.PENDING, "OnHold")
    assert job.message.startswith("spec.affinity.nodeAffinity")
    world.call("DELETE", path("plain"))
    world.drive(lambda: state_of(uid) is S.CANCELLED)


def test_a_pod_that_is_deleted_while_it_waits_ends_its_job(world):
    full(world)
    uid = make(world)
    world.drive(lambda: job_of(uid))
    world.call("DELETE", path("plain"))
    world.drive(lambda: state_of(uid) is S.CANCELLED)
    assert (job_of(uid).reason, job_of(uid).message) == ("PodDeleted", "Pod plain was deleted")


def test_a_pod_that_another_scheduler_binds_is_left_to_it(world):
    uid = make(world, gpus=2, schedulingGates=[{"name": "example.com/later"}])
    world.drive(lambda: job_of(uid))
    hold_job(world.user, job_of(uid))
    ungate(world)
    world.drive(lambda: job_of(uid).pod_hold == "")
    node = world.call("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    meta = {"name": "plain", "namespace": NAMESPACE}
    world.call("POST", f"{path('plain')}/binding", {"metadata": meta, "target": target})
    world.drive(lambda: state_of(uid) is S.FAILED)
    job = job_of(uid)
    assert job.reason == "BoundElsewhere"
    assert node_of(world) == node
    world.drive(lambda: world.free_gpus() == 30_000)
    assert world.placements(job) == []
    world.drive(lambda: pod_of(world)["status"]["phase"] == "Running")


def test_a_job_that_is_cancelled_takes_its_waiting_pod_along(world):
    full(world)
    uid = make(world)
    world.drive(lambda: condition(world))
    world.cancel(job_of(uid))
    world.drive(lambda: pod_of(world) is None)
    world.drive(lambda: told(world))
    assert told(world) == [("Normal", "Cancelled", "Its job was cancelled")]
    assert state_of(uid) is S.CANCELLED


def test_so_does_one_that_is_cancelled_while_no_scheduler_runs(world):
    full(world)
    uid = make(world)
    world.drive(lambda: condition(world))
    world.restart_scheduler()
    world.cancel(job_of(uid))
    world.drive(lambda: pod_of(world) is None)
    assert Job.objects.filter(pod_name="plain").count() == 1


def test_a_pod_that_is_deleted_while_no_scheduler_runs_ends_its_job(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    full(world)
    uid = make(world)
    world.drive(lambda: condition(world))
    world.restart_scheduler()
    world.call("DELETE", path("plain"))
    world.drive(lambda: state_of(uid) is S.CANCELLED)


# --- when it has a place --------------------------------------------------------------------------
def running(world, name="plain", **wishes):
    uid = make(world, name, **wishes)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    return uid


def test_a_job_that_is_cancelled_while_it_runs_deletes_its_pod(world):
    uid = running(world)
    world.cancel(job_of(uid))
    world.drive(lambda: pod_of(world) is None)
    world.drive(lambda: world.free_gpus() == 32_000)
    assert told(world) == [("Normal", "Cancelled", "Its job was cancelled")]


def test_a_running_pod_that_somebody_deletes_cancels_its_job(world):
    uid = running(world)
    world.call("DELETE", path("plain"))
    world.drive(lambda: state_of(uid) is S.CANCELLED)
    assert job_of(uid).reason == "PodDeleted"
    world.drive(lambda: world.free_gpus() == 32_000)
    assert job_of(uid).attempt == 1


def test_a_pod_that_fails_fails_its_job(world):
    notes = {"sim.kant.io/run-seconds": "0.2", "sim.kant.io/exit-code": "3"}
    uid = make(world, notes=notes)
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "PodFailed"
    assert "exit code 3" in job_of(uid).message
    assert pod_of(world)["status"]["phase"] == "Failed"


def test_a_preempted_pod_is_evicted_and_its_job_ends(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    uids = [running(world, f"low-{i}") for i in range(4)]
    high = world.submit("high", priority=10)
    world.drive_to(high, S.RUNNING)
    [victim] = [uid for uid in uids if state_of(uid) is S.FAILED]
    job = job_of(victim)
    assert job.reason == "Preempted"
    assert world.kinds(job)[-2:] == [K.RUNNING, K.FAILED]
    world.drive(lambda: pod_of(world, job.pod_name) is None)
    assert told(world, job.pod_name)[0][:2] == ("Normal", "Preempted")
    client = Client()
    client.force_login(world.user)
    page = client.get(f"/jobs/{victim}/").content.decode()
    assert "It ended, since Kant cannot make its pod again" in page
    assert sorted(map(state_of, uids)) == [S.FAILED, S.RUNNING, S.RUNNING, S.RUNNING]


def test_a_disruption_budget_in_the_namespace_of_the_pod_protects_it(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    kept = {"kant.io/tenant": "team", "app": "web"}
    uids = [running(world, f"web-{i}", labels=kept) for i in range(4)]
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    spec = {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 4}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    world.call("POST", budgets, {**kind, "metadata": {"name": "web"}, "spec": spec})
    state = world.scheduler.led[world.cluster.pk, WHOLE].session.state
    world.drive(lambda: {state.jobs[uid].disruptions for uid in uids} == {0})
    high = world.submit("high", priority=10)
    world.drive(lambda: Job.objects.get(pk=high.pk).reason == "InsufficientGpus")
    assert {state_of(uid) for uid in uids} == {S.RUNNING}
    world.call("DELETE", f"{budgets}/web")
    world.drive_to(high, S.RUNNING)


def test_a_pod_whose_node_dies_ends_its_job(world):
    uid = running(world)
    node = node_of(world)
    world.fault("node-down", node=node)
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "NodeLost"
    world.fault("node-up", node=node)
    world.drive(lambda: world.free_gpus() == 32_000)


def test_a_run_time_limit_ends_pod_and_job(world):
    uid = make(world, schedulingGates=[{"name": "later"}])
    world.drive(lambda: job_of(uid))
    change_job(world.user, job_of(uid), {"run_limit_s": 1})
    ungate(world)
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "RunLimitExceeded"
    world.drive(lambda: pod_of(world) is None)


def test_a_share_of_a_gpu_is_bound_with_its_devices(world):
    uid = running(world, requests={"kant.io/gpu-milli": "250"})
    notes = pod_of(world)["metadata"]["annotations"]
    assert notes["kant.io/milli"] == "250"
    [place] = world.placements(job_of(uid))
    assert (place.milli, len(place.devices)) == (250, 1)


# --- a scheduler that dies ------------------------------------------------------------------------
def test_an_intent_is_finished_by_the_next_scheduler(world, monkeypatch):
    uid = make(world, gpus=2)
    world.drive(lambda: job_of(uid))
    session = world.scheduler.led[world.cluster.pk, WHOLE].session
    monkeypatch.setattr(session.gateway, "submit", lambda effects: None)
    world.drive(lambda: world.placements(job_of(uid)))
    assert node_of(world) is None
    world.restart_scheduler()
    world.drive(lambda: state_of(uid) is S.RUNNING)
    [place] = world.placements(job_of(uid))
    assert (place.attempt, place.node) == (1, node_of(world))


def test_a_running_pod_is_taken_over_and_one_that_is_gone_ends_its_job(world):
    stays, goes = running(world, "stays", gpus=2), running(world, "goes", gpus=2)
    world.restart_scheduler()
    world.call("DELETE", path("goes"), {"gracePeriodSeconds": 0})
    world.drive(lambda: state_of(goes) is S.CANCELLED)
    assert state_of(stays) is S.RUNNING
    world.drive(lambda: world.free_gpus() == 30_000)
    assert pod_of(world, "stays")["status"]["phase"] == "Running"


def test_a_lost_answer_to_the_binding_is_looked_up(world):
    world.drive(lambda: world.scheduler.led)
    world.fault("lose-reply", verb="bind", count=1)
    uid = running(world)
    assert len(world.placements(job_of(uid))) == 1


# --- bindings that fail ---------------------------------------------------------------------------
class Between:
    """Stands between the session and the door: `meet` is asked about each binding, and says how
    it ended, or None to let it pass."""

    def __init__(self, world, monkeypatch):
        world.drive(lambda: world.scheduler.led)
        self.gateway = world.scheduler.led[world.cluster.pk, WHOLE].session.gateway
        self.submit = self.gateway.submit
        monkeypatch.setattr(self.gateway, "submit", self)
        self.meet = lambda bind: None

    def __call__(self, effects):
        passed = []
        for effect in effects:
            outcome = self.meet(effect) if isinstance(effect, Bind) else None
            if outcome is None:
                passed.append(effect)
            else:
                self.gateway._effect_done(effect, outcome)
        self.submit(passed)


def test_a_pod_that_could_not_be_bound_waits_again(world, monkeypatch):
    between = Between(world, monkeypatch)
    refusals = [Outcome(Result.REFUSED, code=403, message="denied by a webhook")]
    between.meet = lambda bind: refusals.pop() if refusals else None
    uid = make(world)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    job = job_of(uid)
    assert (job.attempt, told(world)) == (2, [])
    assert K.REQUEUED in world.kinds(job)
    nodes = [place.node for place in world.placements(job)]
    assert len(set(nodes)) == 2  # the node is avoided
    [said] = [e.message for e in job.events.all() if e.kind == K.REQUEUED]
    assert said == f"Pod plain could not be bound to {nodes[0]}: denied by a webhook"


def test_a_pod_that_can_never_be_bound_goes_with_its_job(world, monkeypatch):
    world.set_policy(max_attempts=2)
    between = Between(world, monkeypatch)
    between.meet = lambda bind: Outcome(Result.REFUSED, code=403, message="denied")
    uid = make(world)
    world.drive(lambda: condition(world))
    assert condition(world)[:2] == ("False", "Unschedulable")
    assert condition(world)[2].startswith("BindingFailed: Pod plain could not be bound to")
    world.drive(lambda: state_of(uid) is S.FAILED)
    world.drive(lambda: pod_of(world) is None)
    world.drive(lambda: world.free_gpus() == 32_000)
    assert told(world)[0][:2] == ("Warning", "BindingFailed")


def test_a_pod_that_was_taken_on_the_way_stays_where_it_is(world, monkeypatch):
    between = Between(world, monkeypatch)
    nodes = [n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"]]

    def snatch(bind):
        other = next(name for name in nodes if name != bind.node)
        body = {
            "metadata": {"name": "plain", "namespace": NAMESPACE},
            "target": {"apiVersion": "v1", "kind": "Node", "name": other},
        }
        world.call("POST", f"{path('plain')}/binding", body)

    between.meet = snatch
    uid = make(world, gpus=2)
    world.drive(lambda: state_of(uid) is S.FAILED)
    assert job_of(uid).reason == "BoundElsewhere"
    world.drive(lambda: world.free_gpus() == 30_000)
    world.drive(lambda: pod_of(world)["status"]["phase"] == "Running")
    assert told(world) == []


def test_while_nobody_knows_whether_a_pod_is_bound_its_place_is_kept(world, monkeypatch):
    monkeypatch.setattr(plain_pods, "BIND_AGAIN_S", 0.1)
    between = Between(world, monkeypatch)
    asked = []

    def silent(bind):
        asked.append(bind.node)
        return Outcome(Result.FAILED, message="no answer")

    between.meet = silent
    uid, other = make(world), make(world, "other")
    world.drive(lambda: len(asked) > 6)
    assert {state_of(uid), state_of(other)} == {S.ADMITTED}
    assert len(set(asked)) == 2
    world.cancel(job_of(other))
    world.drive(lambda: pod_of(world, "other") is None)
    between.meet = lambda bind: None
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert (job_of(uid).attempt, job_of(uid).failures) == (1, 0)


# --- what is left alone ---------------------------------------------------------------------------
def test_pods_of_others_and_pods_that_are_bound_already_stay_foreign(world):
    node = world.call("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
    make(world, "bound", gpus=2, nodeName=node)
    make(world, "other", gpus=2, schedulerName="default-scheduler")
    world.drive_to(world.submit("job", run_s=0.2), S.SUCCEEDED)
    world.drive(lambda: world.free_gpus() == 30_000)
    assert not Job.objects.exclude(pod_name="").exists()
    assert told(world, "bound") + told(world, "other") == []
    assert not node_of(world, "other")
