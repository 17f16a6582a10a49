"""Quantities and what a pod asks for."""

import pytest

from scheduling.simcluster.objects.quantities import amount, canonical, parse, pod_requests


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1", "1"), ("0", "0"), ("0m", "0"), ("1000m", "1"), ("1500m", "1500m"), ("0.5", "500m"),
        ("2048Mi", "2Gi"), ("1536Mi", "1536Mi"), ("1.5Gi", "1536Mi"), ("1000", "1k"),
        ("1024", "1024"), ("1e3", "1k"), ("2000000", "2M"), ("100n", "100n"), ("5u", "5u"),
        ("-1", "-1"), ("1E", "1E"), ("1e2", "100"),
    ],
)  # fmt: skip
def test_canonical_form(text, written):
    assert canonical(text) == written
    assert parse(written) == parse(text)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1GiB", "--1", "1.2.3", "1e", "Gi", "1mm", "٣x"])
def test_what_is_not_a_quantity(text):
    with pytest.raises(ValueError, match="quantities must match"):
        parse(text)


def test_amounts_round_up_and_are_capped():
    assert amount("cpu", "0.5") == 500
    assert amount("cpu", "1u") == 1
    assert amount("memory", "1.5") == 2
    assert amount("memory", "1e999999999") == 2**63 - 1
    assert amount("memory", 10**40) == 2**63 - 1


def container(**requests):
    return {"resources": {"requests": requests}}


def test_a_pod_asks_for_its_larger_phase():
    spec = {
        "containers": [container(cpu="1", memory="1Gi"), container(cpu="500m")],
        "initContainers": [
            {**container(cpu="100m"), "restartPolicy": "Always"},
            container(cpu="2", memory="512Mi"),
        ],
        "overhead": {"cpu": "10m"},
    }
    # Containers with the sidecar: 1600m; the init container with the sidecar: 2100m.
    assert pod_requests(spec) == {"cpu": 2110, "memory": 1 << 30}
    assert pod_requests({**spec, "resources": {"requests": {"cpu": "4"}}})["cpu"] == 4010
