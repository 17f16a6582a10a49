"""Kant's queries against a real Prometheus that scrapes a GPU exporter."""

from datetime import timedelta

import pytest
from django.utils import timezone

from metrics.gpu_use.prometheus import GpuActivity, PrometheusError, activities
from tests.metrics.real_prometheus import Exporter, RealPrometheus, program
from tests.waiting import until

# Text as NVIDIA's exporter writes it. One GPU only reports that kernels ran, one is divided in two,
# and one line belongs to no GPU.
GPUS = """
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100",Hostname="n000"}} 100
DCGM_FI_DEV_GPU_UTIL{{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100",Hostname="n000"}} 25
DCGM_FI_DEV_GPU_UTIL{{Hostname="n000"}} 50
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n000"}} {busy}
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="2",UUID="GPU-c",GPU_I_ID="1",Hostname="n000",node="of-kube"}} 0.5
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="2",UUID="GPU-c",GPU_I_ID="2",Hostname="n000",node="of-kube"}} 1
"""  # noqa: E501
WHERE = ("n000", "127.0.0.1")
TOLD = [
    GpuActivity("", WHERE, 0, 0.75),
    GpuActivity("", WHERE, 1, 0.25),
    GpuActivity("", ("of-kube", *WHERE), 2, 0.75),
]


@pytest.fixture
def exporter():
    program()
    exporter = Exporter()
    exporter.text = GPUS.format(busy=0.75)
    yield exporter
    exporter.end()


@pytest.fixture
def prometheus(exporter, tmp_path):
    prometheus = RealPrometheus(tmp_path, exporter)
    yield prometheus
    prometheus.end()


def asked(prometheus, seconds=600):
    return sorted(activities(prometheus.url, timezone.now(), seconds))


def test_a_real_one_tells_each_gpu_by_its_node(prometheus):
    until(lambda: len(asked(prometheus)) == len(TOLD), 60)
    assert asked(prometheus) == TOLD


def test_a_real_one_tells_the_mean_of_the_time_that_is_asked_for(exporter, prometheus):
    until(lambda: asked(prometheus), 60)
    exporter.text = GPUS.format(busy=0.25)
    until(lambda: asked(prometheus)[0].active < 0.75, 60)
    assert asked(prometheus)[0].active > 0.25  # it was busier before
    assert asked(prometheus)[1:] == TOLD[1:]
    hour_ago = timezone.now() - timedelta(hours=1)
    assert activities(prometheus.url, hour_ago, 300) == []


def test_a_path_that_a_real_one_does_not_have_is_told(prometheus):
    with pytest.raises(PrometheusError, match="answers 404"):
        activities(f"{prometheus.url}/elsewhere", timezone.now(), 300)
