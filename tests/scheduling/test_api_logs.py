"""Logs over REST: who may read them, which pod is meant, why there is no log, and following."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from django.db import connection

from scheduling.models import Job, Placement
from scheduling.queries import pod_logs
from tests import organisation
from tests.kube.api import eventually
from tests.printing import NODE, PODS, Printing, open_logs, served
from tests.simcluster.harness import Sim, pod


@pytest.fixture(scope="module")
def sim(tmp_path_factory):
    sim = Sim(tmp_path_factory.mktemp("sim"))
    yield sim
    sim.stop()


@pytest.fixture
def world(transactional_db, sim):
    org = organisation.build()
    with served() as at:
        yield Printing(org, sim, at)
    sim.call("DELETE", "/sim/faults")
    sim.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    eventually(lambda: open_logs() == 0)


def ended(world, job, *args, **fields):
    placed = world.start(job, *args, run=0.05, **fields)
    done = ("Succeeded", "Failed")
    eventually(lambda: world.sim.get(world.path(placed.pod_name))["status"]["phase"] in done)
    return placed


# --- reading --------------------------------------------------------------------------------------
def test_a_log_is_text_for_whoever_may_read_the_job(world):
    job = world.submit()
    name = ended(world, job, exit_code=3).pod_name
    whole = f"started main of {name} on {NODE}, image example/train:1\nno GPUs\n"
    whole += "ended with exit code 3\n"
    for who in ("eve", "joe", "vic", "ada", "root", "ops"):
        assert world.get(job, who=who) == (200, whole)
    status, problem = world.get(job, who="lex")
    assert (status, problem["code"]) == (404, "not-found")
    client, answer = world.open(job)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert (answer.headers["X-Kant-Pod"], answer.headers["Cache-Control"]) == (name, "no-store")
    assert answer.read().decode() == whole
    client.close()
    assert (
        world.org.client("eve", Accept="text/plain").head(f"/api/v1/jobs/{job.pk}/logs").status_code
        == 405
    )


def test_a_part_is_asked_for(world):
    job = world.submit()
    ended(world, job)
    assert world.get(job, "?tail=1")[1] == "ended with exit code 0\n"
    assert world.get(job, "?tail=0")[1] == ""
    whole = world.get(job)[1]
    assert world.get(job, "?since=600&container=main")[1] == whole
    assert world.get(job, "?since=2100-01-01T00:00:00Z")[1] == ""
    stamp = world.get(job, "?tail=1&timestamps=true")[1].split()[0]
    assert world.get(job, f"?since={stamp}&tail=1")[1] == "ended with exit code 0\n"


def test_pods_are_named_by_pod_set_and_ordinal(world):
    each = {"gpu_type": "H100", "gpus": 1}
    sets = [{"name": "head", "count": 1, **each}, {"name": "worker", "count": 3, **each}]
    document = {"name": "two", "tenant": "vision", "pod_sets": sets}
    answer = world.org.client("eve").post("/api/v1/jobs", document, format="json")
    job = Job.objects.get(id=answer.json()["id"])
    head, last = ended(world, job), ended(world, job, 2, pod_set=1)
    assert f"of {head.pod_name} on" in world.get(job)[1]
    assert f"of {last.pod_name} on" in world.get(job, "?pod_set=worker&ordinal=2")[1]


def test_a_pod_that_was_placed_again_is_the_newest_one(world):
    job = world.submit()
    ended(world, job, attempt=1, exit_code=1)
    ended(world, job, attempt=2)
    assert "ended with exit code 0" in world.get(job)[1]


def test_what_is_longer_than_the_limit_says_that_it_is_cut(world, monkeypatch):
    monkeypatch.setattr("scheduling.api.logs.MOST_BYTES", 20)
    job = world.submit()
    ended(world, job)
    assert world.get(job)[1].splitlines() == [
        "started main of one-",
        "Kant: cut after 0 MiB; use tail or since to get less",
    ]


def test_a_pod_that_somebody_else_made_is_read_where_it_is(world):
    job = world.submit()
    two = pod("notebook", run=0.05)
    two["spec"]["containers"] += [{"name": "side", "image": "x"}]
    two["spec"]["initContainers"] = [{"name": "early", "image": "x"}]
    uid = world.sim.post("/api/v1/namespaces/default/pods", two)["metadata"]["uid"]
    world.sim.bind("notebook", NODE)
    world.sim.wait_phase("notebook", "Succeeded")
    Job.objects.filter(pk=job.pk).update(pod_namespace="default", pod_name="notebook")
    Placement.objects.create(
        job=job, attempt=1, pod_set=0, ordinal=0, pod_name="notebook", pod_uid=uid, node=NODE,
        intended_at=job.submitted_at,
    )  # fmt: skip
    status, problem = world.get(job)
    assert (status, "choose one of: [main side]" in problem["detail"]) == (409, True)
    assert "started side of notebook" in world.get(job, "?container=side")[1]
    early = "started early of notebook on gpu-0000, image x\nno GPUs\nended with exit code 0\n"
    assert world.get(job, "?container=early")[1] == early
    status, problem = world.get(job, "?container=late")
    assert (status, problem["errors"]) == (
        400,
        [
            {
                "parameter": "container",
                "detail": "Pod notebook has no container “late”; it has main, side, early.",
            }
        ],
    )
    status, code, detail = told(world, job, "?container=main&previous=true")
    assert (status, code) == (409, "conflict")
    assert 'previous terminated container "main"' in detail
    # A person may not read the pod of another person that has the same name.
    world.sim.call("DELETE", "/api/v1/namespaces/default/pods/notebook?gracePeriodSeconds=0")
    world.sim.wait_gone("notebook")
    world.sim.run_pod("notebook", NODE)
    assert world.get(job, "?container=main")[0] == 404


# --- why there is no log --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("pod_set=none", "pod_set"),
        ("ordinal=1", "ordinal"),
        ("ordinal=x", "ordinal"),
        ("tail=-1", "tail"),
        ("tail=1e3", "tail"),
        (f"tail={'9' * 5000}", "tail"),
        ("since=0", "since"),
        ("since=yesterday", "since"),
        ("since=2030-01-31T12:00:00", "since"),
        ("since=0001-01-01T00:00:00%2B23:00", "since"),
        ("follow=yes", "follow"),
        ("lines=3", "lines"),
    ],
)
def test_a_wrong_parameter_is_named(world, query, name):
    status, problem = world.get(world.submit(), f"?{query}")
    assert (status, problem["code"]) == (400, "bad-query")
    assert problem["errors"][0]["parameter"] == name


def told(world, job, query=""):
    status, problem = world.get(job, query)
    return status, problem["code"], problem["detail"]


def test_a_job_without_a_pod_says_why_it_waits(world):
    job = world.submit()
    assert told(world, job) == (
        409,
        "conflict",
        "Pod worker-0 has no place yet, so there is no log. Waits for the next scheduling cycle.",
    )
    Job.objects.filter(pk=job.pk).update(reason="InsufficientGpus", message="Needs 1 GPU.")
    assert told(world, job)[2].endswith("there is no log. Needs 1 GPU.")
    placed = Placement.objects.create(
        job=job, attempt=1, pod_set=0, ordinal=0, pod_name="x", node="h000",
        intended_at=job.submitted_at,
    )  # fmt: skip
    made = "Pod worker-0 is being created on node h000; there is no log yet."
    assert told(world, job) == (409, "conflict", made)
    placed.delete()
    Job.objects.filter(pk=job.pk).update(state="CANCELLED")
    over = "one ended before its pod worker-0 was created, so there is no log."
    assert told(world, job) == (404, "not-found", over)


def test_a_pod_that_is_gone_took_its_log_along(world):
    job = world.submit()
    name = ended(world, job).pod_name
    world.sim.call("DELETE", f"{world.path(name)}?gracePeriodSeconds=0")
    gone = (
        f"Pod {name} of attempt 1 is gone, and its log with it: Kubernetes keeps a log no longer "
        "than its pod."
    )
    assert told(world, job) == (404, "not-found", gone)
    Job.objects.filter(pk=job.pk).update(state="PENDING", message="Preempted.")
    assert told(world, job)[2] == f"{gone} The job waits to be placed again. Preempted."


def failed(world, job, *args, **fields):
    """A pod whose program failed before the job was restarted."""
    placed = ended(world, job, *args, exit_code=3, **fields)
    Placement.objects.filter(pk=placed.pk).update(state="FAILED")
    Job.objects.filter(pk=job.pk).update(restarts=1)
    return placed


def test_the_previous_log_is_that_of_the_pod_that_failed_last(world):
    job = world.submit()
    failed(world, job, attempt=1)
    Job.objects.filter(pk=job.pk).update(state="PENDING")
    # Nothing runs yet: both are the run that failed.
    for query in ("", "?previous=true"):
        assert "ended with exit code 3" in world.get(job, query)[1]
    ended(world, job, attempt=2)
    assert "ended with exit code 0" in world.get(job)[1]
    assert "ended with exit code 3" in world.get(job, "?previous=true")[1]
    assert "ended with exit code 3" in world.get(job, "?previous=true&follow=true")[1]
    # The failure that ended the job is its last run, not an earlier one.
    Placement.objects.filter(job=job, attempt=2).update(state="FAILED")
    Job.objects.filter(pk=job.pk).update(state="FAILED")
    assert "ended with exit code 3" in world.get(job, "?previous=true")[1]
    world.sim.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    assert told(world, job, "?previous=true")[:2] == (404, "not-found")


def test_a_pod_that_did_not_fail_has_no_previous_log(world):
    job = world.submit(replicas=2)
    ended(world, job)
    none = "Pod worker-0 was not restarted because its program failed, so there is no previous log."
    assert told(world, job, "?previous=true") == (409, "conflict", none)
    failed(world, job, 1)
    hint = f"{none} The pod that failed in attempt 1 was worker-1."
    assert told(world, job, "?previous=true") == (409, "conflict", hint)


def test_a_node_that_does_not_answer_is_named(world):
    job = world.submit()
    ended(world, job)
    world.sim.post("/sim/faults", {"fault": "node-down", "node": NODE})
    status, code, detail = told(world, job)
    assert (status, code) == (502, "cluster-failed")
    assert detail.startswith(f"Node {NODE} of cluster “demo” does not give the log of pod one-")
    assert "no route to host" in detail


def test_a_cluster_that_does_not_answer_is_told_without_its_address(world):
    job = world.submit()
    ended(world, job)
    world.org.cluster.access = {"server": "http://127.0.0.1:9"}
    world.org.cluster.save()
    client, answer = world.open(job)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert "The Kubernetes API of cluster “demo” does not respond." in answer.read().decode()
    client.close()
    assert "127.0.0.1" not in told(world, job)[2]


class Forbidding(BaseHTTPRequestHandler):
    """An API server that knows Kant's account but denies it the right to read logs."""

    def do_GET(self):
        body = {"metadata": {"uid": self.server.uid}, "spec": {"nodeName": "n"}}
        if self.path.partition("?")[0].endswith("/log"):
            body = {"kind": "Status", "code": 403, "message": 'cannot get resource "pods/log"'}
        self.send_response(body.get("code", 200))
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


def test_the_missing_right_is_named(world):
    job = world.submit()
    placed = ended(world, job)
    server = HTTPServer(("127.0.0.1", 0), Forbidding)
    server.uid = placed.pod_uid
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    world.org.cluster.access = {"server": f"http://127.0.0.1:{server.server_port}"}
    world.org.cluster.save()
    status, code, detail = told(world, job)
    server.shutdown()
    assert (status, code) == (502, "cluster-failed")
    assert "needs the right get on pods and pods/log" in detail
    assert "scheduling/kube/rbac.yaml" in detail


# --- following ------------------------------------------------------------------------------------
def test_following_gives_lines_as_they_come_and_ends_with_the_container(world):
    job = world.submit()
    placed = world.start(job)
    eventually(lambda: world.get(job)[0] == 200)
    client, answer = world.open(job, "?follow=true")
    assert answer.readline().startswith(b"started")
    assert answer.readline() == b"no GPUs\n"
    world.sim.end_pod(world.path(placed.pod_name))
    assert answer.read().endswith(b"ended with exit code 0\n")
    client.close()


def upstream():
    tasks = asyncio.all_tasks(pod_logs._reader._loop)
    return [task for task in tasks if "_Request.run" in repr(task)]


def test_whoever_leaves_ends_the_request_and_frees_the_place(world, monkeypatch):
    monkeypatch.setattr(pod_logs, "MOST_OPEN_BY_USER", 1)
    job = world.submit()
    world.start(job)
    eventually(lambda: world.get(job)[0] == 200)
    client, answer = world.open(job, "?follow=true")
    assert answer.readline().startswith(b"started")
    eventually(lambda: (open_logs(), len(upstream())) == (1, 1))
    status, problem = world.get(job)
    assert (status, problem["code"]) == (429, "throttled")
    assert "1 logs open at once" in problem["detail"]
    assert world.get(job, who="joe")[0] == 200
    monkeypatch.setattr(pod_logs, "MOST_OPEN", 1)
    refused, answer = world.open(job, who="joe")
    assert (answer.status, answer.headers["Retry-After"]) == (429, "10")
    refused.close()
    answer.close()
    client.close()
    eventually(lambda: (open_logs(), len(upstream())) == (0, 0))
    assert world.get(job)[0] == 200


def test_a_log_that_is_cut_off_says_so(world):
    job = world.submit()
    world.start(job)
    eventually(lambda: world.get(job)[0] == 200)
    client, answer = world.open(job, "?follow=true&timestamps=true&tail=0")
    world.sim.post("/sim/faults", {"fault": "restart", "down_s": 0.2})
    last = answer.read().decode().strip()
    client.close()
    assert last.endswith("Z Kant: the log broke off: its cluster no longer responds")
    eventually(lambda: world.get(job)[0] == 200)


def test_following_holds_no_connection_of_the_pool(world):
    job = world.submit()
    world.start(job)
    eventually(lambda: world.get(job)[0] == 200)
    connection.close()
    client, answer = world.open(job, "?follow=true")
    assert answer.readline().startswith(b"started")
    if connection.vendor == "postgresql":  # SQLite has no pool
        stats = connection.pool.get_stats()
        assert stats["pool_available"] == stats["pool_size"]
    answer.close()
    client.close()
    eventually(lambda: open_logs() == 0)
