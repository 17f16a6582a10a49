"""Pods that operators make form gangs according to their owners and groups."""

import pytest

from scheduling.engine.states import WAITING
from scheduling.engine.states import JobState as S
from scheduling.kube.door import client, owners
from scheduling.models import Job, NodeRecord
from scheduling.session import changes
from tests.live.plain_pods import (
    MERGE,
    NAMESPACE,
    condition,
    job_of,
    make,
    node_of,
    path,
    reference_to,
    told,
)

pytestmark = pytest.mark.live
LONG = {"sim.kant.io/run-seconds": "600"}
TEAM = {"kant.io/tenant": "team"}
INDEXED = {"completionMode": "Indexed", "parallelism": 3, "completions": 3}
PLURALS = {
    "Job": "batch/v1/{}/jobs",
    "JobSet": "jobset.x-k8s.io/v1alpha2/{}/jobsets",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1/{}/leaderworkersets",
    "PyTorchJob": "kubeflow.org/v1/{}/pytorchjobs",
    "RayCluster": "ray.io/v1/{}/rayclusters",
    "PodGroup": "scheduling.k8s.io/v1alpha2/{}/podgroups",
    "Coscheduling": "scheduling.x-k8s.io/v1alpha1/{}/podgroups",
    "Volcano": "scheduling.volcano.sh/v1beta1/{}/podgroups",
}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    monkeypatch.setattr(owners, "COMES_WITHIN_S", 0.2)


def address(kind, name=""):
    base = "/apis/" + PLURALS[kind].format(f"namespaces/{NAMESPACE}")
    return f"{base}/{name}" if name else base


def own(world, kind, name, spec, notes=None, owner=None):
    """Create an object that owns pods or groups them."""
    meta = {"name": name, "annotations": notes or {}}
    if owner:
        meta["ownerReferences"] = [reference_to(owner)]
    return world.call("POST", address(kind), {"metadata": meta, "spec": spec})


def jobs():
    return list(Job.objects.exclude(pod_gang="").order_by("submitted_at"))


def states():
    return [S(job.state) for job in jobs()]


def said(world, *names):
    return {condition(world, name)[1:] for name in names if condition(world, name)}


def member(world, name, owner=None, labels=None, notes=None, **spec):
    labels = {**TEAM, **(labels or {})}
    return make(world, name, owner=owner, labels=labels, notes={**LONG, **(notes or {})}, **spec)


def test_an_indexed_job_is_a_gang(world):
    job = own(world, "Job", "tune", INDEXED)
    member(world, "tune-0", job)
    member(world, "tune-1", job)
    text = "2 of 3 pods of gang Job/tune have come."
    world.drive(lambda: said(world, "tune-0", "tune-1") == {("GangIncomplete", text)})
    assert node_of(world, "tune-0") is None
    member(world, "tune-2", job)
    world.drive(lambda: states() == [S.RUNNING])
    [found] = jobs()
    assert (found.name, found.pod_gang, found.gang) == ("tune", "Job/tune", True)
    assert [node_of(world, f"tune-{n}") is not None for n in range(3)] == [True] * 3


def test_a_job_whose_pods_share_out_its_work_starts_pod_by_pod(world):
    job = own(world, "Job", "sweep", {"parallelism": 3, "completions": 9})
    uid = member(world, "sweep-a", job)
    world.drive(lambda: job_of(uid) and job_of(uid).state == S.RUNNING)
    assert jobs() == []


def test_a_jobset_and_what_depends_on_it(world):
    def part(name, pods, *after):
        spec = {**INDEXED, "parallelism": pods, "completions": pods}
        more = {"dependsOn": [{"name": n, "status": "Ready"} for n in after]} if after else {}
        return {"name": name, "replicas": 1, "template": {"spec": spec}, **more}

    spec = {"replicatedJobs": [part("workers", 2), part("eval", 1, "workers")]}
    jobset = own(world, "JobSet", "train", spec)
    for name, pods in (("workers", 2), ("eval", 1)):
        job = own(world, "Job", f"train-{name}-0", INDEXED, owner=jobset)
        labels = {"jobset.sigs.k8s.io/replicatedjob-name": name}
        for n in range(pods):
            member(world, f"train-{name}-0-{n}", job, labels)
        if name == "workers":
            world.drive(lambda: states() == [S.RUNNING])
    world.drive(lambda: states() == [S.RUNNING, S.RUNNING])
    assert [job.pod_gang for job in jobs()] == ["JobSet/train/1", "JobSet/train/2"]


def test_each_replica_of_a_leader_worker_set_starts_by_itself(world):
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2}}
    own(world, "LeaderWorkerSet", "serve", spec)
    prefix = "leaderworkerset.sigs.k8s.io/"
    for name, group, worker in (("s-0", 0, 0), ("s-1", 1, 0), ("s-0-1", 0, 1)):
        labels = {
            f"{prefix}name": "serve",
            f"{prefix}group-index": str(group),
            f"{prefix}worker-index": str(worker),
        }
        member(world, name, labels=labels)
    world.drive(lambda: states() == [S.RUNNING])
    assert jobs()[0].pod_gang == "LeaderWorkerSet/serve/0"
    world.drive(lambda: said(world, "s-1"))
    text = "1 of 2 pods of gang LeaderWorkerSet/serve/1 has come. Of its group worker 1 is missing."
    assert said(world, "s-1") == {("GangIncomplete", text)}


def test_the_launcher_without_gpu_starts_with_its_gang(world):
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}}
    notes = {"kant.io/preferred-level": "leaf", "kant.io/checkpoint-notice-seconds": "30"}
    job = own(world, "PyTorchJob", "fit", spec, notes)
    label = "training.kubeflow.org/replica-type"
    member(world, "fit-master-0", job, {label: "master"}, requests={"cpu": "1"})
    for n in range(2):
        member(world, f"fit-worker-{n}", job, {label: "worker"})
    world.drive(lambda: states() == [S.RUNNING])
    [found] = jobs()
    assert (found.preferred_level, found.checkpoint_notice_s) == ("leaf", 30)
    assert [(s.count, s.gpus) for s in found.pod_sets.all()] == [(1, 0), (2, 8)]


def test_a_ray_cluster_starts_with_its_minimum_and_grows_pod_by_pod(world):
    workers = {"groupName": "w", "replicas": 2, "minReplicas": 1, "maxReplicas": 3}
    ray = own(world, "RayCluster", "rc", {"workerGroupSpecs": [workers]})
    uids = {}
    for name in ("w-0", "w-1"):
        uids[name] = member(world, name, ray, {"ray.io/group": "w"})
    world.drive(lambda: said(world, "w-0"))
    assert "Of its group headgroup 1 is missing." in condition(world, "w-0")[2]
    assert condition(world, "w-1")[1] == "GangIncomplete"
    assert jobs() == []
    member(world, "head", ray, {"ray.io/group": "headgroup"}, requests={"cpu": "1"})
    world.drive(lambda: states() == [S.RUNNING])
    assert {p.pod_name for p in world.placements(jobs()[0])} == {"head", "w-0"}
    world.drive(lambda: node_of(world, "w-1"))
    assert job_of(uids["w-1"]).pod_gang == ""


def test_pods_without_gpus_of_an_owner_start_one_by_one(world):
    """A Spark driver and replicas of a web server; shares in other schedulers' terms stay
    refused."""
    world.set_policy(cpu_jobs_on_gpu_nodes="freely")
    raw = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "uid": "u"}}
    uid = member(world, "web-a", raw, requests={"cpu": "1"})
    world.drive(lambda: job_of(uid) and job_of(uid).state == S.RUNNING)
    assert [s.gpus for s in job_of(uid).pod_sets.all()] == [0]
    member(world, "web-b", raw, notes={"gpu-fraction": "0.5"}, requests={"cpu": "1"})
    world.drive(lambda: "InvalidPod" in {reason for reason, _ in said(world, "web-b")})
    assert "annotation gpu-fraction" in condition(world, "web-b")[2]


@pytest.mark.parametrize("kind", ["PodGroup", "Coscheduling"])
def test_pods_wait_for_their_group_object_and_for_its_minimum(world, kind):
    native = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    spec = native if kind == "PodGroup" else {"minMember": 2}
    named = {"schedulingGroup": {"podGroupName": "g"}} if kind == "PodGroup" else {}
    labels = {} if named else {"scheduling.x-k8s.io/pod-group": "g"}
    member(world, "a", labels=labels, **named)
    world.drive(lambda: "OwnerGone" in {reason for reason, _ in said(world, "a")})
    assert "There is no PodGroup default/g" in condition(world, "a")[2]
    own(world, kind, "g", spec)
    text = "1 of 2 pods of gang PodGroup/g has come."
    world.drive(lambda: said(world, "a") == {("GangIncomplete", text)})
    member(world, "b", labels=labels, **named)
    world.drive(lambda: states() == [S.RUNNING])
    uid = member(world, "c", labels=labels, **named)
    world.drive(lambda: job_of(uid) and job_of(uid).state == S.RUNNING)


COUNTS = ("phase", "running", "succeeded", "failed")


def test_a_group_of_coscheduling_counts_its_pods_to_their_end(world):
    own(world, "Coscheduling", "g", {"minMember": 2})
    labels = {"scheduling.x-k8s.io/pod-group": "g"}

    def told():
        status = world.call("GET", address("Coscheduling", "g")).get("status", {})
        return tuple(status.get(name) for name in (*COUNTS, "scheduled"))

    member(world, "a", labels=labels)
    world.drive(lambda: told() == ("Pending", 0, 0, 0, 0))
    member(world, "b", labels=labels)
    world.drive(lambda: told() == ("Running", 2, 0, 0, 2))
    member(world, "c", labels=labels)  # beyond the minimum that starts together
    world.drive(lambda: told() == ("Running", 3, 0, 0, 3))
    world.restart_scheduler()
    for name in "ab":
        world.report(name, "Succeeded", NAMESPACE)
    world.drive(lambda: told()[0] == "Finished" and told()[2] == 2)
    world.call("DELETE", path("c"))
    world.drive(lambda: told()[0] == "Finished")


def test_a_group_of_volcano_says_what_its_gang_waits_for(world):
    other = full(world)
    own(world, "Volcano", "g", {"minMember": 2})
    notes = {"scheduling.k8s.io/group-name": "g"}

    def told():
        status = world.call("GET", address("Volcano", "g")).get("status", {})
        said = [(c["type"], c["status"], c["reason"]) for c in status.get("conditions", ())]
        return status.get("phase"), status.get("running"), said

    member(world, "a", notes=notes)
    incomplete = ("Unschedulable", "True", "GangIncomplete")
    world.drive(lambda: told() == ("Pending", 0, [incomplete]))
    member(world, "b", notes=notes)
    waits = ("Unschedulable", "True", "Unschedulable")
    world.drive(lambda: told() == ("Inqueue", 0, [waits]))
    world.cancel(other)
    world.drive(lambda: told() == ("Running", 2, [("Scheduled", "True", "Scheduled")]))


def test_a_pod_group_of_kueue_is_a_gang(world):
    labels = {"kueue.x-k8s.io/pod-group-name": "pg"}
    notes = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    member(world, "a", labels=labels, notes=notes)
    world.drive(lambda: said(world, "a"))
    assert node_of(world, "a") is None
    member(world, "b", labels=labels, notes=notes)
    world.drive(lambda: states() == [S.RUNNING])


def test_pods_of_a_pod_set_share_the_level_that_kueue_names(world):
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}}
    job = own(world, "PyTorchJob", "fit", spec)
    label = "training.kubeflow.org/replica-type"
    leaf = {"kueue.x-k8s.io/podset-required-topology": "network.topology.nvidia.com/leaf"}
    wrong = {"kueue.x-k8s.io/podset-required-topology": "example.com/rack"}
    member(world, "fit-master-0", job, {label: "master"}, gpus=1)
    member(world, "fit-worker-0", job, {label: "worker"}, leaf)
    member(world, "fit-worker-1", job, {label: "worker"}, wrong)
    world.drive(lambda: "NotHonoured" in {reason for reason, _ in said(world, "fit-worker-1")})
    assert "Kant knows no network level by the label" in condition(world, "fit-worker-1")[2]
    notes = {"metadata": {"annotations": leaf}}
    world.call("PATCH", path("fit-worker-1"), notes, kind=MERGE)
    world.drive(lambda: states() == [S.RUNNING])
    assert [s.required_level for s in jobs()[0].pod_sets.all()] == ["", "leaf"]


def network_of(world, *widest_first):
    """Create a Kueue Topology with these levels."""
    spec = {"levels": [{"nodeLabel": label} for label in widest_first]}
    body = {"metadata": {"name": "default"}, "spec": spec}
    return world.call("POST", "/apis/kueue.x-k8s.io/v1beta2/topologies", body)


def racks(world):
    """Put the nodes on two racks by turns; return the rack of each node."""
    found = {}
    for n, node in enumerate(world.call("GET", "/api/v1/nodes")["items"]):
        name = node["metadata"]["name"]
        found[name] = f"r{n % 2}"
        labels = {"metadata": {"labels": {"ex/rack": found[name]}}}
        world.call("PATCH", f"/api/v1/nodes/{name}", labels, kind=MERGE)
    return found


RACK = {"kueue.x-k8s.io/podset-required-topology": "ex/rack"}
TWO = {**INDEXED, "parallelism": 2, "completions": 2}


def test_a_gang_shares_the_level_of_a_topology_object(world):
    rack_of = racks(world)
    job = own(world, "Job", "tune", TWO)
    for n in range(2):
        member(world, f"tune-{n}", job, notes=RACK)
    world.drive(lambda: "NotHonoured" in {reason for reason, _ in said(world, "tune-0")})
    network_of(world, "ex/rack")
    world.drive(lambda: states() == [S.RUNNING])
    assert len({rack_of[node_of(world, f"tune-{n}")] for n in range(2)}) == 1

    def leaves():
        rows = NodeRecord.objects.values_list("name", "leaf")
        return {name: leaf.rpartition("/")[2] for name, leaf in rows}

    world.drive(lambda: leaves() == rack_of)


def test_a_gang_that_waits_follows_what_its_level_means(world):
    racks(world)
    made = network_of(world, "ex/rack")
    full(world)
    job = own(world, "Job", "tune", TWO)
    for n in range(2):
        member(world, f"tune-{n}", job, notes=RACK)
    world.drive(lambda: len(states()) == 1 and set(states()) <= WAITING)
    world.call("DELETE", f"/apis/kueue.x-k8s.io/v1beta2/topologies/{made['metadata']['name']}")
    world.drive(lambda: states() == [S.CANCELLED])
    assert jobs()[0].reason == "GangChanged"
    world.drive(lambda: "NotHonoured" in {reason for reason, _ in said(world, "tune-0")})


# --- owners that change, go, or cannot be read ----------------------------------------------------
def full(world):
    job = world.submit("full", pods=4)
    world.drive_to(job, S.RUNNING)
    return job


def waiting_gang(world, kind="Job", spec=INDEXED):
    """A gang of three that waits behind a job on all nodes."""
    other = full(world)
    owner = own(world, kind, "tune", spec)
    for n in range(3):
        member(world, f"tune-{n}", owner)
    world.drive(lambda: len(states()) == 1 and set(states()) <= WAITING)
    return other


def test_a_gang_whose_owner_changes_its_size_waits_for_the_new_one(world):
    other = waiting_gang(world)
    grown = {"spec": {"parallelism": 4, "completions": 4}}
    world.call("PATCH", address("Job", "tune"), grown, kind=MERGE)
    world.drive(lambda: states() == [S.CANCELLED])
    assert (jobs()[0].reason, jobs()[0].message) == (
        "GangChanged",
        "Job tune starts with 4 pods now, not with 3",
    )
    text = "3 of 4 pods of gang Job/tune have come."
    world.drive(lambda: said(world, "tune-0") == {("GangIncomplete", text)})
    world.cancel(other)
    member(world, "tune-3", world.call("GET", address("Job", "tune")) | {"apiVersion": "batch/v1"})
    world.drive(lambda: states() == [S.CANCELLED, S.RUNNING])
    assert len(world.placements(jobs()[1])) == 4


def test_a_gang_whose_owner_is_deleted_while_it_waits_never_starts_in_halves(world):
    other = waiting_gang(world)
    world.call("DELETE", address("Job", "tune"))
    world.drive(lambda: states() == [S.CANCELLED])
    assert jobs()[0].message.startswith(
        "There is no Job default/tune, which says which pods belong"
    )
    world.cancel(other)
    world.drive(lambda: {r for r, _ in said(world, "tune-0", "tune-1")} == {"OwnerGone"})
    world.drive(lambda: [t for t in told(world, "tune-0") if t[1] == "OwnerGone"])
    assert [node_of(world, f"tune-{n}") for n in range(3)] == [None] * 3


def test_an_owner_that_may_not_be_read_is_told_with_the_right_that_is_missing(world, monkeypatch):
    """A list and a watch get 403 until somebody grants the right."""
    job = own(world, "Job", "tune", INDEXED)
    allowed, stream = [], client.Client.stream

    def refused(self, address, *more):
        return stream(self, address if allowed or "/jobs?" not in address else "/forbidden", *more)

    monkeypatch.setattr(client.Client, "stream", refused)
    real = client.Client.problem

    def problem(self, reply, what):
        if what.endswith("jobs.batch"):
            reply = client.Reply(403, b"", 0.0)
        return real(self, reply, what)

    monkeypatch.setattr(client.Client, "problem", problem)
    uids = [member(world, f"tune-{n}", job) for n in range(3)]
    world.drive(lambda: "OwnerUnreadable" in {r for r, _ in said(world, "tune-0")})
    text = condition(world, "tune-0")[2]
    assert text.startswith("Job default/tune decides which pods belong together.")
    assert "does not allow Kant to list and watch jobs.batch" in text
    assert "grant that right" in text
    assert [job_of(uid) for uid in uids] == [None] * 3
    allowed.append(True)
    world.drive(lambda: states() == [S.RUNNING])


def test_a_scheduler_that_begins_anew_keeps_the_gangs_that_wait(world):
    other = waiting_gang(world)
    world.restart_scheduler()
    world.cancel(other)
    world.drive(lambda: states() == [S.RUNNING])


def test_an_owner_that_nobody_knows_is_told_once(world):
    raw = {"apiVersion": "example.com/v1", "kind": "Swarm", "metadata": {"name": "s", "uid": "u"}}
    uids = [member(world, f"s-{n}", raw, gpus=1) for n in range(2)]
    world.drive(lambda: all(job_of(u) and job_of(u).state == S.RUNNING for u in uids))
    both = [*told(world, "s-0"), *told(world, "s-1")]
    [note] = [text for _, reason, text in both if reason == "UnknownOwner"]
    assert note.startswith("Kant does not know Swarm s (example.com/v1)")


def test_sizes_that_contradict_are_told_and_nothing_starts(world):
    own(world, "Coscheduling", "g", {"minMember": "many"})
    uid = member(world, "a", labels={"scheduling.x-k8s.io/pod-group": "g"})
    world.drive(lambda: "WorkloadContradicts" in {r for r, _ in said(world, "a")})
    assert "PodGroup g: spec.minMember: It is 'many'" in condition(world, "a")[2]
    assert job_of(uid) is None


def test_kants_own_label_is_above_all_others(world):
    job = own(world, "Job", "tune", INDEXED)
    labels = {"kant.io/gang": "mine"}
    for n in range(2):
        member(world, f"tune-{n}", job, labels, {"kant.io/gang-size": "2"})
    world.drive(lambda: states() == [S.RUNNING])
    assert jobs()[0].pod_gang == "mine"


def test_an_annotation_makes_pods_of_any_owner_a_gang(world):
    raw = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "uid": "u"}}
    for n in range(2):
        member(world, f"db-{n}", raw, notes={"kant.io/gang-size": "2"})
    world.drive(lambda: states() == [S.RUNNING])
    assert jobs()[0].pod_gang == "StatefulSet/db"
    assert world.call("GET", path("db-0"))["spec"]["nodeName"]
