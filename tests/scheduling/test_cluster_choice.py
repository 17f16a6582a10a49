"""A job that names no cluster goes where it starts first, according to the rows at its
submission."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.models import Cluster, Job, JobEvent, NodeRecord
from tenants.models import Quota
from tests.scheduling.two_clusters import HELLO, URL, fill, submit, two

__all__ = ["two"]  # a fixture


@pytest.mark.parametrize("said", [{}, {"cluster": "any"}, {"cluster": None}])
def test_it_goes_where_it_starts_at_once_and_says_why(two, said):
    fill("demo", 4)
    job = submit(two, **said)
    assert (job["cluster"], job["any_cluster"]) == ("far", True)
    summary = "Runs on far: starts there at once; on demo at an unknown time (no H100 GPU is free)."
    choice = job["cluster_choice"]
    assert (choice["summary"], choice["moves"]) == (summary, 0)
    assert [(c["cluster"], c["starts_now"]) for c in choice["clusters"]] == [
        ("demo", False),
        ("far", True),
    ]
    event = JobEvent.objects.get(job=job["id"])
    assert (event.kind, event.message) == ("SUBMITTED", summary)


def test_a_named_cluster_is_kept(two):
    fill("demo", 4)
    job = submit(two, cluster="demo")
    assert (job["cluster"], job["any_cluster"], job["cluster_choice"]) == ("demo", False, None)


def test_the_only_cluster_needs_no_name_and_is_not_chosen(two):
    Cluster.objects.filter(name="far").update(is_active=False)
    job = submit(two)
    assert (job["cluster"], job["any_cluster"]) == ("demo", False)
    floats = submit(two, cluster="any")
    assert (floats["cluster"], floats["any_cluster"]) == ("demo", True)


def test_later_it_goes_where_running_jobs_end_first(two):
    fill("demo", 4, declared_s=7200)
    fill("far", 2, declared_s=1800)
    job = submit(two)
    assert job["cluster"] == "far"
    assert job["cluster_choice"]["summary"] == (
        "Runs on far: starts there in 30 min (no H100 GPU is free); on demo in 2 h (no H100 GPU is "
        "free)."
    )


def test_what_others_wait_for_is_not_free(two):
    """The next jobs of a crowd do not all go where the first one starts."""
    went = [submit(two, replicas=2)["cluster"] for _ in range(3)]
    assert sorted(went) == ["demo", "demo", "far"]
    summary = submit(two)["cluster_choice"]["summary"]
    assert "behind 32 GPUs of H100 that others wait for" in summary


def test_jobs_of_a_batch_stand_behind_each_other(two):
    answer = two.client("eve").post(
        f"{URL}:batch", {"jobs": [HELLO | {"replicas": 2, "name": f"j{i}"} for i in range(3)]},
        format="json",
    )  # fmt: skip
    assert answer.status_code in (200, 201), answer.json()
    went = Job.objects.values_list("cluster__name", flat=True)
    assert sorted(went) == ["demo", "demo", "far"]


def test_an_array_goes_to_one_cluster_with_its_reason(two):
    fill("demo", 3)
    answer = submit(two, array={"count": 2})
    assert answer["cluster"] == "far"
    jobs = Job.objects.filter(array_id=answer["id"])
    assert {(j.cluster.name, j.any_cluster, j.chosen["cluster"]) for j in jobs} == {
        ("far", True, "far")
    }


def test_pods_that_fit_one_network_group_decide_between_equal_starts(two):
    assert submit(two, replicas=2)["cluster"] == "demo"  # the cluster with more room
    Job.objects.all().update(state="CANCELLED")
    NodeRecord.objects.filter(name__in=("h000", "h002")).update(free_gpus=0, allocated_milli=8000)
    job = submit(two, replicas=2, preferred_level="leaf")
    assert job["cluster"] == "far"
    assert "its pods are within 1 network group there" in job["cluster_choice"]["summary"]
    NodeRecord.objects.filter(cluster__name="far").update(leaf="")
    Job.objects.all().update(state="CANCELLED")
    job = submit(two, replicas=2, required_level="leaf")
    assert not any(each["starts_now"] for each in job["cluster_choice"]["clusters"])


def test_labels_of_clusters_are_required_or_preferred(two):
    Cluster.objects.filter(name="far").update(labels={"data/imagenet": "local"})
    data = {"data/imagenet": "local"}
    assert submit(two, preferred_cluster_labels=data)["cluster"] == "far"
    fill("far", 2)
    assert submit(two, preferred_cluster_labels=data)["cluster"] == "demo"
    job = submit(two, cluster_selector=data)
    assert job["cluster"] == "far"
    again = two.client("eve").get(f"{URL}/{job['id']}/document").json()
    assert (again["cluster"], again["cluster_selector"]) == ("any", data)
    for fields in ({"cluster": "demo"}, {"cluster": "any"}):
        error = submit(two, 422, cluster_selector={"data/x": "1"}, **fields)["errors"][0]
        assert error["pointer"].startswith("/cluster_selector")
    detail = submit(two, 422, cluster="demo", cluster_selector=data)["detail"]
    assert "Cluster “demo” lacks the label data/imagenet=local." in detail


def test_it_goes_to_no_cluster_that_could_never_run_it(two):
    assert submit(two, gpu_type="A100", gpus=4)["cluster"] == "demo"
    assert submit(two, replicas=4)["cluster"] == "demo"
    error = submit(two, 422, replicas=5)
    assert error["detail"].startswith("No active cluster can run it. demo: ")
    assert "far: " in error["detail"]
    Cluster.objects.filter(name="demo").update(job_rules={"max_priority": 1})
    assert submit(two, priority=2)["cluster"] == "far"


def test_a_cluster_that_is_silent_is_passed_over_and_named(two):
    since = timezone.now() - timedelta(minutes=3)
    Cluster.objects.filter(name="demo").update(last_cycle_at=since)
    fill("far", 2)
    job = submit(two)
    assert job["cluster"] == "far"
    told = f"demo is passed over: not heard from since {since:%Y-%m-%d %H:%M:%S} UTC"
    assert told in job["cluster_choice"]["summary"]
    Cluster.objects.filter(name="far").update(connected=False)
    assert submit(two)["cluster_choice"]["summary"].startswith("Sent to ")


def test_a_cluster_in_maintenance_takes_only_jobs_that_name_it(two):
    Cluster.objects.filter(name="demo").update(takes_any=False)
    assert submit(two)["cluster"] == "far"
    assert submit(two, cluster="any")["cluster"] == "far"
    assert submit(two, cluster="demo")["cluster"] == "demo"
    error = submit(two, 422, replicas=4)  # far is too small
    assert "demo: Cluster “demo” accepts only jobs that name it." in error["detail"]
    Cluster.objects.filter(name="far").update(is_active=False)
    error = submit(two, 422)
    assert error["errors"][0] == {
        "pointer": "/cluster",
        "detail": "Cluster “demo” accepts only jobs that name it.",
    }
    assert submit(two, cluster="demo")["cluster"] == "demo"


def test_quota_decides_between_models_of_clusters(two):
    """The job accepts two GPU types, and quota allows only that of the other cluster."""
    Cluster.objects.filter(name="far").update(is_active=False)
    Quota.objects.filter(gpu_type__name="H100").update(guaranteed_milli=0)
    near = Cluster.objects.create(name="a-near", connected=True, last_cycle_at=timezone.now())
    NodeRecord.objects.create(
        cluster=near, name="n", gpu_model="H100", gpus=8, healthy_gpus=8, free_gpus=8
    )
    job = submit(two, gpu_type=None, gpu_types=["H100", "A100"], gpus=4)
    assert job["cluster"] == "demo"
    assert (
        "on a-near at an unknown time (quota leaves vision 0 H100 GPUs now)"
        in (job["cluster_choice"]["summary"])
    )


def test_jobs_that_wait_for_others_go_to_them(two):
    first = submit(two, cluster="far")["id"]
    assert submit(two, after=[first])["cluster"] == "far"


def test_nodes_that_a_job_may_not_use_are_not_free(two):
    NodeRecord.objects.filter(cluster__name="demo").update(
        taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]
    )
    assert submit(two)["cluster"] == "far"
    Job.objects.all().update(state="CANCELLED")
    tolerations = [{"key": "team", "operator": "Exists"}]
    assert submit(two, tolerations=tolerations)["cluster"] == "demo"
    Job.objects.all().update(state="CANCELLED")
    NodeRecord.objects.filter(name="f1").update(labels={"disk.io/kind": "nvme"})
    selector = {"node_selector": {"disk.io/kind": "nvme"}, "tolerations": tolerations}
    assert submit(two, **selector)["cluster"] == "far"


def test_a_job_without_gpus_goes_where_cores_are_free(two):
    for name, cores in (("demo", 2000), ("far", 9000)):
        NodeRecord.objects.create(
            cluster=Cluster.objects.get(name=name), name=f"cpu-{name}", cpu_milli=64_000,
            allocated_cpu_milli=64_000 - cores, memory_mib=9000,
        )  # fmt: skip
    job = submit(two, gpu_type=None, gpus=0, cpu_milli=4000)
    assert job["cluster"] == "far"
    assert "2 CPU cores are free of 4" in job["cluster_choice"]["summary"]


def test_a_choice_costs_few_statements_however_many_jobs_it_is_for(two):
    client = two.client("eve")
    client.post(URL, HELLO, format="json")  # the token has been used by now

    def statements(count):
        jobs = [HELLO | {"name": f"j{i}"} for i in range(count)]
        with CaptureQueriesContext(connection) as told:
            assert client.post(f"{URL}:batch", {"jobs": jobs}, format="json").status_code < 300
        return len(told)

    # Rooms, waiting jobs with and without GPUs, quotas, tenants, holds, expected ends.
    assert statements(20) <= statements(1) + 1
    with CaptureQueriesContext(connection) as told:
        submit(two)
    with CaptureQueriesContext(connection) as named:
        submit(two, cluster="demo")
    assert len(told) - len(named) <= 7


def test_any_is_no_name_for_a_cluster(two):
    body = {"name": "any", "access": {"in_cluster": True}}
    answer = two.client("ops").post("/api/v1/clusters", body, format="json")
    assert answer.status_code == 422
    assert "the cluster that starts a job first" in str(answer.json())


def test_labels_of_a_cluster_are_set_by_operators(two):
    path, ops = "/api/v1/clusters/far", two.client("ops")
    labels = {"data/imagenet": "local"}
    assert ops.patch(path, {"labels": labels}, format="json").json()["labels"] == labels
    answer = ops.patch(path, {"labels": {"not a label": "x"}}, format="json")
    assert answer.status_code == 422
    assert Cluster.objects.get(name="far").labels == labels
