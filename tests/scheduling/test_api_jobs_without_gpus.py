"""POST /api/v1/jobs: jobs that ask for no GPU."""

import pytest

from scheduling.models import NodeRecord

URL = "/api/v1/jobs"


def without_gpus(**pod_set):
    sets = [{"name": "a", "count": 2, "cpu_milli": 1000}, {"name": "b", **pod_set}]
    return {"name": "prep", "tenant": "vision", "pod_sets": sets}


def test_a_job_without_gpus_is_taken(org, eve):
    NodeRecord.objects.create(cluster=org.cluster, name="c000", cpu_milli=64_000)
    for asked in ({"cpu_milli": 1}, {"memory_mib": 1}, {"extended": {"v.com/fpga": 1}}):
        answer = eve.post(URL, without_gpus(**asked), format="json")
        assert answer.status_code == 201, answer.json()
        assert answer.json()["gpus"] == 0
        url = f"{URL}/{answer.json()['id']}"
        again = eve.post(URL, eve.get(f"{url}/document").json(), format="json")
        assert again.status_code == 201, again.json()
        assert eve.get(f"{url}/explain").json()["reason"] == "PendingEvaluation"
    short = {"name": "prep", "tenant": "vision", "cpu_milli": 500, "array": {"count": 3}}
    assert eve.post(URL, short, format="json").status_code == 201


@pytest.mark.parametrize(
    ("asked", "pointer", "text"),
    [
        ({}, "/pod_sets/1/gpus", "The pod asks for nothing"),
        ({"extended": {"v.com/fpga": 0}}, "/pod_sets/1/gpus", "The pod asks for nothing"),
        ({"cpu_milli": 1, "gpu_type": "H100"}, "/pod_sets/1/gpu_type", "asks for no GPU"),
        ({"cpu_milli": 1, "gpu_types": ["H100"]}, "/pod_sets/1/gpu_types", "asks for no GPU"),
        ({"cpu_milli": 1, "nics": 1}, "/pod_sets/1/nics", "asks for no GPU"),
        (
            {"extended": {"nvidia.com/mig-1g.10gb": 1}},
            "/pod_sets/1/extended/nvidia.com~1mig-1g.10gb",
            "asks for no GPU",
        ),
    ],
)
def test_a_job_without_gpus_asks_for_something_that_is_there_without_them(
    eve, asked, pointer, text
):
    document = without_gpus(**asked)
    [error] = eve.post(URL, document, format="json").json()["errors"]
    assert error["pointer"] == pointer
    assert text in error["detail"]


def test_without_a_node_for_it_a_job_without_gpus_is_refused(eve):
    answer = eve.post(URL, without_gpus(cpu_milli=1), format="json")
    assert (answer.status_code, answer.json()["code"]) == (422, "ExceedsCapacity")
    assert "runs on nodes without GPUs, and cluster “demo” has none" in answer.json()["detail"]
    NodeRecord.objects.all().delete()
    assert eve.post(URL, without_gpus(cpu_milli=1), format="json").status_code == 201


def test_a_pod_set_without_gpus_beside_one_with_gpus_needs_something_too(eve):
    document = without_gpus()
    document["pod_sets"][0]["gpus"] = 1
    errors = eve.post(URL, document, format="json").json()["errors"]
    assert [e["pointer"] for e in errors] == ["/pod_sets/1/gpus"]
    document["pod_sets"][1]["cpu_milli"] = 1000
    assert eve.post(URL, document, format="json").status_code == 201
