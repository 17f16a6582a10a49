"""A dry run predicts what happens to the job when it is submitted."""

import pytest
from django.test import Client

from metrics.benches import stage
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, Job, JobConstraints, NodeRecord, Placement
from scheduling.queries import standstill
from scheduling.queries.rehearsal import Outlook, review_job
from scheduling.queries.snapshots.anonymise import anonymised, renaming
from scheduling.queries.snapshots.decided import decide
from scheduling.queries.standing.snapshot import snapshot_of_cluster
from tests.live.plain_pods import REQUIRED, job_of, make, path, state_of

pytestmark = pytest.mark.live
HOST = "kubernetes.io/hostname"


@pytest.fixture(autouse=True)
def _heard(monkeypatch):
    monkeypatch.setattr(standstill, "SILENT_S", 3600.0)  # however busy the machine is


JOB = {"name": "new", "tenant": "team", "gpu_type": stage.MODEL, "gpus": 8}


def ask(world, query="?dry_run=true", **fields):
    client = Client()
    client.force_login(world.user)
    answer = client.post(f"/api/v1/jobs{query}", JOB | fields, content_type="application/json")
    assert answer.status_code in (200, 201), answer.content
    return answer.json()


def rehearse(world, **fields):
    return ask(world, **fields)["rehearsal"]


def led(world):
    """Wait until the scheduler leads the cluster and has written its nodes."""
    world.drive(lambda: NodeRecord.objects.count() == 4)
    world.drive(lambda: Cluster.objects.get().connected)


def test_what_is_said_of_a_job_is_what_becomes_of_it(world):
    led(world)
    said = rehearse(world, replicas=3)
    assert (said["outlook"], said["places"]["pods"], said["places"]["nodes"]) == ("starts", 3, 3)
    assert not Job.objects.exists()
    first = Job.objects.get(pk=ask(world, "", replicas=3, declared_s=600)["id"])
    world.drive_to(first, S.RUNNING)
    said = rehearse(world, replicas=2)
    assert (said["outlook"], said["reason"]) == ("waits", "InsufficientGpus")
    assert said["evidence"]["free"] == 8
    assert said["start"]["basis"] == "forecast"
    assert said["start"]["at"][:16] >= first.submitted_at.isoformat()[:16]
    [other] = said["alternatives"]
    assert (other["count"], other["text"]) == (1, "With fewer pods: 1 pod on 1 node in 1 leaf.")
    [terms] = said["quota"]
    assert (terms["used"], terms["guaranteed"], terms["asked"]) == (24, 1000, 16)
    second = Job.objects.get(pk=ask(world, "", replicas=2)["id"])
    world.drive(lambda: Job.objects.get(pk=second.pk).reason == said["reason"])
    second.refresh_from_db()
    assert (second.message, second.evidence["free"]) == (said["summary"], 8)
    # It is ahead of later jobs, but by this policy blocks none.
    said = rehearse(world)
    assert (said["outlook"], said["position"]) == ("starts", 2)
    world.set_policy(queueing="strict-fifo")
    world.drive(
        lambda: world.scheduler.led[world.cluster.pk, ""].session.life.scope.policy.queueing
    )
    assert rehearse(world)["reason"] == "BehindInQueue"


def test_what_is_decided_of_a_snapshot_is_what_the_scheduler_does_next(world):
    led(world)
    for name, replicas, gpus in (("b", 1, 3), ("a", 2, 8), ("c", 1, 3), ("d", 2, 4), ("e", 2, 8)):
        ask(world, "", name=name, replicas=replicas, gpus=gpus)
    snapshot = snapshot_of_cluster(Cluster.objects.get())
    [said], [without] = decide(snapshot), decide(anonymised(snapshot))
    waiting = [one.job_id for one in said.result.waiting]
    assert (len(said.result.started), len(waiting)) == (4, 1)
    world.drive(lambda: Placement.objects.filter(state="RUNNING").count() == 6)
    told = {
        (start.job_id, place.ordinal): (place.node, list(place.devices))
        for start in said.result.started
        for place in start.placements
    }
    rows = Placement.objects.values_list("job_id", "ordinal", "node", "devices")
    assert {(str(job), at): (node, devices) for job, at, node, devices in rows} == told
    assert [str(job.pk) for job in Job.objects.exclude(reason="")] == waiting
    rename = renaming(snapshot)
    assert [(s.job_id, [p.node for p in s.placements]) for s in without.result.started] == [
        (rename("job", s.job_id), [rename("node", p.node) for p in s.placements])
        for s in said.result.started
    ]


def test_pods_of_others_hold_what_they_hold(world):
    led(world)
    node = NodeRecord.objects.order_by("name").first().name
    make(world, "other", gpus=1, labels={}, schedulerName="another", nodeName=node)
    world.drive(lambda: "other_gpus" in NodeRecord.objects.order_by("name").first().facts)
    said = rehearse(world, replicas=4)
    assert (said["reason"], said["evidence"]["free"]) == ("InsufficientGpus", 31)
    assert rehearse(world, replicas=3)["outlook"] == "starts"
    world.call("DELETE", path("other"))
    world.drive(lambda: "other_gpus" not in NodeRecord.objects.order_by("name").first().facts)
    assert rehearse(world, replicas=4)["outlook"] == "starts"


def test_nothing_is_guessed_of_a_cluster_that_nobody_has_seen_lately(world):
    said = rehearse(world)
    assert (said["outlook"], said["as_of"]) == ("unknown", None)
    assert "The scheduler of cluster live has not been heard from yet." in said["summary"]
    led(world)
    Cluster.objects.update(last_cycle_at="2026-01-01T00:00:00Z")
    said = rehearse(world)
    assert said["outlook"] == "unknown"
    assert "was last heard from at 2026-01-01 00:00:00 UTC." in said["summary"]
    assert said["quota"][0]["guaranteed"] == 1000


def test_what_pods_say_of_each_other_is_known_to_who_asks_by_rows(world):
    led(world)
    nodes = sorted(NodeRecord.objects.values_list("name", flat=True))
    web = {"kant.io/tenant": "team", "app": "web"}
    apart = {
        "labelSelector": {"matchLabels": {"app": "web"}},
        "topologyKey": HOST,
        "namespaceSelector": {},
    }
    rule = {"podAntiAffinity": {REQUIRED: [apart]}}
    for node in nodes[:-1]:
        uid = make(world, f"on-{node}", 1, web, affinity=rule)
        world.drive(lambda uid=uid: state_of(uid) is S.RUNNING)
    port = [{"containerPort": 80, "hostPort": 80}]
    spec = {"nodeName": nodes[-1], "containers": [{"name": "c", "image": "i", "ports": port}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign"}, "spec": spec}
    world.call("POST", "/api/v1/namespaces/default/pods", body)
    world.drive(lambda: "rules" in NodeRecord.objects.get(name=nodes[-1]).company)
    limits = {"nvidia.com/gpu": "1"}
    asks = [{"name": "c", "image": "i", "ports": port, "resources": {"limits": limits}}]
    late = make(world, "late", labels=web, affinity=rule, containers=asks)
    world.drive(lambda: job_of(late) and job_of(late).reason)
    said = review_job(world.user, job_of(late))
    assert (said.outlook, said.reason) == (Outlook.WAITS, job_of(late).reason)
    assert "exclude nodes with room for it" in said.summary
    assert said.summary == job_of(late).message
    # Their rules apply to a new job with matching labels.
    new = {"gpus": 7, "replicas": 2}
    world.drive(lambda: NodeRecord.objects.filter(company__has_key="keepers").count() == 3)
    assert rehearse(world, **new)["outlook"] == "starts"
    said = rehearse(world, labels={"app": "web"}, **new)
    assert said["outlook"] == "waits"
    job = Job.objects.get(pk=ask(world, "", labels={"app": "web"}, **new)["id"])
    world.drive(lambda: Job.objects.get(pk=job.pk).reason)
    assert Job.objects.get(pk=job.pk).reason == said["reason"]
    world.cancel(job)
    # The next scheduler does not write any of this again, and drops what no longer holds.
    before = JobConstraints.objects.count()
    assert before == len(nodes) + 1
    world.restart_scheduler()
    world.call("DELETE", path("foreign"))
    world.drive(lambda: state_of(late) is S.RUNNING)
    assert JobConstraints.objects.count() == before
