"""Pods that people make themselves, and what people can see on them."""

from typing import NamedTuple

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobState as S
from scheduling.kube.seam import Bind
from scheduling.models import Job
from scheduling.services.jobs.changes import hold_job, release_job

MERGE = "merge-patch+json"
WAITS = "FailedScheduling"
NAMESPACE = "default"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
APART = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}


def make(world, name="plain", gpus=8, labels=None, notes=None, requests=None, owner=None, **spec):
    """Create a pod of a person, or of `owner` (an object); return its uid."""
    amounts = requests or {"nvidia.com/gpu": str(gpus), "cpu": "100m"}
    limits = {k: v for k, v in amounts.items() if "/" in k}
    container = {"name": "c", "image": "team/train:1", "command": ["train"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"kant.io/tenant": "team"} if labels is None else labels,
            "annotations": notes or {},
            "ownerReferences": [reference_to(owner)] if owner else [],
        },
        "spec": {
            "schedulerName": "kant",
            "restartPolicy": "Never",
            "containers": [{**container, "resources": {"requests": amounts, "limits": limits}}],
            **spec,
        },
    }
    return world.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)["metadata"]["uid"]


# As DefaultTolerationSeconds writes them, but for zero seconds.
NO_PATIENCE = [
    {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 0,
    }
]


def reference_to(owner):
    """Return an owner reference to this object, as its controller writes it."""
    kind = {name: owner[name] for name in ("apiVersion", "kind")}
    meta = {name: owner["metadata"][name] for name in ("name", "uid")}
    return {**kind, **meta, "controller": True, "blockOwnerDeletion": True}


def path(name):
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"


def pod_of(world, name="plain"):
    items = world.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    return next((pod for pod in items if pod["metadata"]["name"] == name), None)


def node_of(world, name="plain"):
    pod = pod_of(world, name)
    return pod and pod["spec"].get("nodeName")


class PodScheduled(NamedTuple):
    """The condition PodScheduled; false if the pod has none yet."""

    status: str = ""
    reason: str = ""
    message: str = ""

    def __bool__(self):
        return self.status != ""


def condition(world, name="plain"):
    found = (pod_of(world, name) or {"status": {}})["status"].get("conditions", ())
    for each in found:
        if each["type"] == "PodScheduled":
            return PodScheduled(each["status"], each.get("reason", ""), each.get("message", ""))
    return PodScheduled()


def told(world, name="plain"):
    """Return (type, reason, note) of the Events on the pods of that name, except those that
    kube-scheduler would write as well."""
    return [each for each in all_told(world, name) if each[1] not in ("Scheduled", WAITS)]


def all_told(world, name="plain"):
    """Return (type, reason, note) of the Events on the pods of that name."""
    items = world.call("GET", "/apis/events.k8s.io/v1/events")["items"]
    found = [e for e in items if e["regarding"]["name"] == name]
    return [(e["type"], e["reason"], e["note"]) for e in found]


def job_of(uid):
    return Job.objects.filter(pk=uid).first()


def state_of(uid):
    job = job_of(uid)
    return job and S(job.state)


def ungate(world, name="plain", **spec):
    world.call("PATCH", path(name), {"spec": {"schedulingGates": None, **spec}}, kind=MERGE)


def hold_and_ungate(world, uid, gated):
    """Hold, release and hold again the job of a gated pod: each time the pod must say what holds
    it (`gated`: its gates). Once the gates are gone, the pod of a held job must say that the job
    is held."""
    hold_job(world.user, job_of(uid))
    world.drive(lambda: job_of(uid).message == "The job is on hold.")
    release_job(world.user, job_of(uid))
    world.drive(lambda: job_of(uid).message == gated)
    hold_job(world.user, job_of(uid))
    ungate(world)
    world.drive(lambda: condition(world)[1:] == ("OnHold", "OnHold: The job is on hold."))


class Between:
    """A layer between the session and the door: `meet` sees each binding and returns its
    outcome, or None to let it pass."""

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
