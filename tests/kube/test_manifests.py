"""Manifests of Kant's own pods: names, labels, resources, and annotations read back."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.types import Toleration
from scheduling.kube.manifests import (
    PodTemplate,
    binding_annotations,
    pod_manifest,
    pod_name,
    read_devices,
)

JOB_ID = "3f2b8c1e-0000-4000-8000-000000000001"


def template(**fields):
    return PodTemplate(
        **{
            "namespace": "kant-jobs",
            "job_id": JOB_ID,
            "job_name": "train",
            "tenant": "vision",
            "attempt": 2,
            "pod_set": 0,
            "pod_set_name": "workers",
            "image": "pytorch:2",
            **fields,
        }
    )


def test_a_whole_gpu_pod():
    pod = pod_manifest(
        template(
            gpus=8,
            cpu_milli=96_000,
            memory_mib=1024,
            command=["python", "train.py"],
            env={"EPOCHS": "3"},
            labels={"team": "a", "kant.io/tenant": "forged"},
            annotations={"sim.kant.io/run-seconds": "60"},
            node_selector={"zone": "a"},
            tolerations=[Toleration("team", "Equal", "a", "NoSchedule")],
            extended={"rdma/hca": 8, "none": 0},
        ),
        3,
    )
    assert pod["metadata"]["name"] == "train-3f2b8c1e-2-workers-3"
    assert pod["metadata"]["labels"] == {
        "team": "a",
        "kant.io/job": JOB_ID,
        "kant.io/tenant": "vision",
        "kant.io/attempt": "2",
        "kant.io/pod-set": "0",
        "kant.io/ordinal": "3",
    }
    assert pod["metadata"]["annotations"] == {"sim.kant.io/run-seconds": "60"}
    spec = pod["spec"]
    assert (spec["schedulerName"], spec["restartPolicy"]) == ("kant", "Never")
    assert spec["nodeSelector"] == {"zone": "a"}
    assert spec["tolerations"][-1] == {
        "key": "team",
        "operator": "Equal",
        "value": "a",
        "effect": "NoSchedule",
    }
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    [container] = spec["containers"]
    assert container["command"] == ["python", "train.py"]
    assert container["env"] == [{"name": "EPOCHS", "value": "3"}]
    assert container["resources"] == {
        "requests": {"cpu": "96000m", "memory": "1024Mi", "rdma/hca": "8", "nvidia.com/gpu": "8"},
        "limits": {"rdma/hca": "8", "nvidia.com/gpu": "8"},
    }
    json.dumps(pod)


def test_a_fraction_asks_for_milli_and_no_gpu():
    resources = pod_manifest(template(gpus=1), 0, 250)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"kant.io/gpu-milli": "250"}


def test_a_pod_without_gpus_asks_for_none():
    resources = pod_manifest(template(cpu_milli=100), 0)["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "100m"}, "limits": {}}


@given(
    job=st.text(min_size=1, max_size=80),
    pod_set=st.text(min_size=1, max_size=80),
    attempt=st.integers(1, 10**6),
    ordinal=st.integers(0, 10**6),
)
def test_every_name_is_legal_and_keeps_what_makes_it_unique(job, pod_set, attempt, ordinal):
    name = pod_name(job, JOB_ID, attempt, pod_set, ordinal)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert f"-3f2b8c1e-{attempt}-" in name
    assert name.endswith(f"-{ordinal}")


@given(
    devices=st.lists(st.integers(0, 15), unique=True, min_size=1).map(tuple),
    milli=st.integers(1, 1000),
    nics=st.lists(st.integers(0, 15), unique=True).map(tuple),
)
def test_the_device_choice_is_read_back(devices, milli, nics):
    assert read_devices(binding_annotations(devices, milli, nics)) == (devices, milli, nics)


def test_no_devices_no_annotations():
    assert binding_annotations((), 1000) == {}
    assert read_devices({}) == ((), 1000, ())


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"kant.io/devices": "x"}, "kant.io/devices is 'x'"),
        ({"kant.io/devices": "[-1]"}, "must be a JSON list of indices"),
        ({"kant.io/devices": '{"a": 1}'}, "must be a JSON list of indices"),
        ({"kant.io/devices": "[0]", "kant.io/milli": "1001"}, "kant.io/milli is '1001'"),
        ({"kant.io/devices": "[0]", "kant.io/milli": "half"}, "must be 1 to 1000"),
        ({"kant.io/devices": "[0]", "kant.io/nics": "[0.5]"}, "kant.io/nics"),
    ],
)
def test_annotations_that_cannot_be_read(annotations, words):
    with pytest.raises(ValueError, match="annotation") as caught:
        read_devices(annotations)
    assert words in str(caught.value)
