"""Quantities and the resource accounting of pods, against worked examples."""

from fractions import Fraction

import pytest

from scheduling.kube.translate.objects import Container, PodSpec, Resources
from scheduling.kube.translate.quantities import PodHolding, holding, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("16Gi", 16 * 2**30),
        ("1Ki", 1024),
        ("129M", 129_000_000),
        ("1e3", 1000),
        ("12E2", 1200),
        ("2E", 2 * 10**18),
        ("3n", Fraction(3, 10**9)),
        ("-1", -1),
        (8, 8),
        (0.1, Fraction(1, 10)),
    ],
)
def test_quantities(text, value):
    assert parse(text) == value


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1KI", "1e", "--1", "1m1", "NaN", "1e99999"])
def test_what_is_no_quantity(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        parse(text)


def container(restart="", limits=None, **requests):
    renamed = {key.replace("gpu", "nvidia.com/gpu"): value for key, value in requests.items()}
    return Container(Resources(renamed, limits or {}), restart)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # Containers add up; a limit alone counts as the request.
        (
            PodSpec(
                containers=[container(cpu="1", gpu="2"), container(limits={"cpu": "500m"})],
            ),
            PodHolding(2, 0, 1500, 0),
        ),
        # Init containers run one after another: only the largest counts, if it exceeds the sum.
        (
            PodSpec(
                containers=[container(cpu="1", memory="1Gi")],
                init_containers=[container(cpu="3"), container(cpu="2", memory="512Mi")],
            ),
            PodHolding(0, 0, 3000, 1024),
        ),
        # A sidecar runs beside the containers and beside every later init container.
        (
            PodSpec(
                containers=[container(cpu="1")],
                init_containers=[container("Always", cpu="500m"), container(cpu="2")],
            ),
            PodHolding(0, 0, 2500, 0),
        ),
        # … but not beside an earlier init container.
        (
            PodSpec(
                containers=[container(cpu="1")],
                init_containers=[container(cpu="2"), container("Always", cpu="500m")],
            ),
            PodHolding(0, 0, 2000, 0),
        ),
        # Pod-level resources replace the sum; overhead comes on top.
        (
            PodSpec(
                containers=[container(cpu="1", memory="1Gi")],
                resources=Resources({"cpu": "4"}),
                overhead={"cpu": "250m", "memory": "1"},
            ),
            PodHolding(0, 0, 4250, 1025),
        ),
        (
            PodSpec(containers=[Container(Resources({"kant.io/gpu-milli": "250"}))]),
            PodHolding(0, 250, 0, 0),
        ),
        (
            PodSpec(containers=[Container(Resources({"amd.com/gpu": 4}))]),
            PodHolding(4, 0, 0, 0, gpu_resources=("amd.com/gpu",)),
        ),
        # Every other resource with a domain in its name counts under its own name.
        (
            PodSpec(
                containers=[
                    Container(Resources({"x.io/thing": "2", "hugepages-2Mi": "2Mi"})),
                    Container(Resources({"x.io/thing": "1", "rdma/hca": 1})),
                ]
            ),
            PodHolding(0, 0, 0, 0, {"x.io/thing": 3, "hugepages-2Mi": 2, "rdma/hca": 1}),
        ),
        (PodSpec(), PodHolding(0, 0, 0, 0)),
    ],
)
def test_what_a_pod_holds(spec, expected):
    assert holding(spec) == expected
