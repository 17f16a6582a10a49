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
)

JOB_ID = "3f2b8c1e-0000-4000-8000-000000000001"


def template(**fields):
    return PodTemplate(
        **{
            "namespace": "kant-jobs",
            "job_id": JOB_ID,
            "tenant": "vision",
            "attempt": 2,
            "pod_set": 0,
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
        "train-3f2b8c1e-2-workers-3",
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
    resources = pod_manifest(template(gpus=1), "pod", 0, 250)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"kant.io/gpu-milli": "250"}


def test_a_pod_without_gpus_asks_for_none():
    resources = pod_manifest(template(cpu_milli=100), "pod", 0)["spec"]["containers"][0][
        "resources"
    ]
    assert resources == {"requests": {"cpu": "100m"}, "limits": {}}


@given(
    job=st.text(min_size=1, max_size=80),
    pod_set=st.text(min_size=1, max_size=80),
    attempt=st.integers(1, 10**6),
    index=st.integers(0, 100),
    ordinal=st.integers(0, 10**6),
)
def test_every_name_is_legal_and_keeps_what_makes_it_unique(job, pod_set, attempt, index, ordinal):
    name = pod_name(job, JOB_ID, attempt, index, pod_set, ordinal)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert f"-3f2b8c1e-{attempt}-" in name
    assert name.endswith(f"-{ordinal}")


@pytest.mark.parametrize(
    ("index", "pod_set", "name"),
    [
        (0, "workers", "train-3f2b8c1e-2-workers-7"),
        (1, "prefill-worker-large", "train-3f2b8c1e-2-prefill-worker-large-7"),
        (2, "prefill-worker-large-a", "train-3f2b8c1e-2-prefill-worker-large-2-7"),
        (3, "prefill-worker-large-b", "train-3f2b8c1e-2-prefill-worker-large-3-7"),
        (4, "prefill-worker-big-2-b", "train-3f2b8c1e-2-prefill-worker-big-2-4-7"),
        (5, "prefill-worker-big-2", "train-3f2b8c1e-2-prefill-worker-big-2-7"),
    ],
)
def test_only_a_name_that_is_cut_is_followed_by_the_index(index, pod_set, name):
    assert pod_name("train", JOB_ID, 2, index, pod_set, 7) == name


@given(
    names=st.lists(st.from_regex(r"[ab]-{0,3}[ab1]{0,3}-{0,16}[12]", fullmatch=True), unique=True)
)
def test_no_two_pod_sets_of_a_job_share_a_name(names):
    made = {pod_name("train", JOB_ID, 2, at, name, 0) for at, name in enumerate(names)}
    assert len(made) == len(names)


def test_the_device_choice_in_annotations():
    assert binding_annotations((4, 5), 1000, (1,)) == {
        "kant.io/devices": "[4, 5]",
        "kant.io/milli": "1000",
        "kant.io/nics": "[1]",
    }
    assert binding_annotations((), 1000) == {}
