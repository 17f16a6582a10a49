"""POST /api/v1/jobs accepts jobs that request no GPU."""

import pytest

from scheduling.models import NodeRecord

URL = "/api/v1/jobs"
LARGE = {"cpu_milli": 64_000, "memory_mib": 512_000}


def without_gpus(**pod_set):
    sets = [{"name": "a", "count": 2, "cpu_milli": 1000}, {"name": "b", **pod_set}]
    return {"name": "prep", "tenant": "vision", "pod_sets": sets}


def test_a_job_without_gpus_is_taken(org, eve):
    NodeRecord.objects.create(cluster=org.cluster, name="c000", **LARGE)
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
        ({"cpu_milli": 1, "nics": 1}, "/pod_sets/1/nics", "NICs come with GPUs"),
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


@pytest.mark.parametrize("gang", [True, False])
def test_pods_without_gpus_beside_pods_with_them_ask_for_no_nics_either(eve, gang):
    """No node would give them NICs, so they would wait for ever."""
    document = without_gpus(cpu_milli=1, nics=2) | {"gang": gang}
    document["pod_sets"][0]["gpus"] = 8
    [error] = eve.post(URL, document, format="json").json()["errors"]
    assert error["pointer"] == "/pod_sets/1/nics"
    document["pod_sets"][1]["gpus"] = 1
    assert eve.post(URL, document, format="json").status_code == 201


def test_without_a_node_for_it_a_job_without_gpus_is_refused(eve):
    answer = eve.post(URL, without_gpus(cpu_milli=1), format="json")
    assert (answer.status_code, answer.json()["code"]) == (422, "ExceedsCapacity")
    assert "runs on nodes without GPUs, and cluster “demo” has none" in answer.json()["detail"]
    NodeRecord.objects.all().delete()
    assert eve.post(URL, without_gpus(cpu_milli=1), format="json").status_code == 201


@pytest.mark.parametrize(
    ("document", "pointer", "text"),
    [
        (
            without_gpus(cpu_milli=64_001),
            "/pod_sets/1/cpu_milli",
            "A pod asks for 64001 milli-CPU; the largest node without GPUs of cluster “demo” has "
            "64000. Ask for at most that per pod.",
        ),
        (
            {"cpu_milli": 1, "memory_mib": 512_001},
            "/memory_mib",
            "A pod asks for 512001 MiB of memory; the largest node without GPUs",
        ),
        (
            without_gpus(count=2, cpu_milli=47_001),
            "/pod_sets",
            "The job needs 96002 milli-CPU at once; the nodes without GPUs of cluster “demo” have "
            "96000. Ask for less, or set gang to false.",
        ),
        (
            {"replicas": 3, "memory_mib": 200_000},
            "/memory_mib",
            "The job needs 600000 MiB of memory at once;",
        ),
    ],
)
def test_what_no_nodes_without_gpus_could_hold_is_refused(org, eve, document, pointer, text):
    NodeRecord.objects.create(cluster=org.cluster, name="c000", **LARGE)
    NodeRecord.objects.create(cluster=org.cluster, name="c001", cpu_milli=32_000)
    slices = {"gpu_parts": {"value": 7, "source": "nvidia.com/mig-1g.10gb"}}
    NodeRecord.objects.create(
        cluster=org.cluster, name="g999", cpu_milli=10**6, memory_mib=10**7, facts=slices
    )
    document = {"name": "prep", "tenant": "vision", **document}
    answer = eve.post(URL, document, format="json")
    assert (answer.status_code, answer.json()["code"]) == (422, "ExceedsCapacity")
    [error] = answer.json()["errors"]
    assert error["pointer"] == pointer
    assert error["detail"].startswith(text)


def test_pods_that_need_not_start_together_need_not_fit_together(org, eve):
    NodeRecord.objects.create(cluster=org.cluster, name="c000", **LARGE)
    one_by_one = without_gpus(count=10, cpu_milli=64_000) | {"gang": False}
    assert eve.post(URL, one_by_one, format="json").status_code == 201
    elastic = without_gpus(count=10, min_count=1, cpu_milli=62_000)
    assert eve.post(URL, elastic, format="json").status_code == 201


def test_a_pod_set_without_gpus_beside_one_with_gpus_needs_something_too(eve):
    document = without_gpus()
    document["pod_sets"][0]["gpus"] = 1
    errors = eve.post(URL, document, format="json").json()["errors"]
    assert [e["pointer"] for e in errors] == ["/pod_sets/1/gpus"]
    document["pod_sets"][1]["cpu_milli"] = 1000
    assert eve.post(URL, document, format="json").status_code == 201
