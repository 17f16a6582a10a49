"""CEL expressions over devices mean what they mean to the API server."""

from fractions import Fraction

import pytest

from scheduling.kube.dra.facts import Capacity, DeviceFacts, Version
from scheduling.kube.dra.selectors import WrongSelector, selector

GPU = "gpu.nvidia.com"
DEVICE = DeviceFacts(
    name="gpu-0",
    attributes={
        f"{GPU}/type": "gpu",
        f"{GPU}/productName": "NVIDIA H100 80GB HBM3",
        f"{GPU}/driverVersion": Version("550.54.15"),
        f"{GPU}/index": 3,
        f"{GPU}/fabric": True,
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
    },
    capacity={"memory": Capacity(Fraction(80 * 2**30))},
)
OF_GPU, MEMORY = f'device.attributes["{GPU}"]', f'device.capacity["{GPU}"].memory'
DRIVER = f"{OF_GPU}.driverVersion"

TRUE = [
    f'device.driver == "{GPU}" && {OF_GPU}.type == "gpu"',
    f'{OF_GPU}.productName.lowerAscii().matches("^.*h100.*$")',
    f'{OF_GPU}.productName.startsWith("NVIDIA") && {OF_GPU}.productName.contains("80GB")',
    f'{OF_GPU}.productName.split(" ")[1] == "H100"',
    f'{OF_GPU}.productName.find("[0-9]+GB") == "80GB"',
    f"{OF_GPU}.index in [1, 3] && {OF_GPU}.fabric",
    f'cel.bind(of, {OF_GPU}, of.index == 3 && of.type == "gpu")',
    f'{MEMORY}.compareTo(quantity("80Gi")) == 0 && {MEMORY} == quantity("81920Mi")',
    f'{MEMORY}.isGreaterThan(quantity("79Gi")) && {MEMORY}.isLessThan(quantity("1Ti"))',
    f'{MEMORY}.sub(quantity("70Gi")).isLessThan(quantity("11Gi"))',
    f'{DRIVER}.compareTo(semver("550.54.9")) > 0 && {DRIVER}.isLessThan(semver("551.0.0"))',
    f"{DRIVER}.major() == 550 && {DRIVER}.minor() == 54",
    'semver("1.0.0-alpha").isLessThan(semver("1.0.0-alpha.1"))',
    'semver("1.0.0-rc.1").isLessThan(semver("1.0.0")) && !isSemver("v1")',
    f'"type" in {OF_GPU} && !("other" in {OF_GPU})',
    f"has({OF_GPU}.type) && !has({OF_GPU}.other)",
    '!("x" in device.attributes["dra.net"])',  # a driver of which the device has no attributes
    'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"',
    'device.attributes[?"dra.net"].?rdma.orValue(false) == false',
    f"sets.contains([1, 2, 3], [{OF_GPU}.index])",
    f'["gpu", "mig"].exists(kind, kind == {OF_GPU}.type)',
    "!device.allowMultipleAllocations",
    f"{OF_GPU}.index > 2 || {OF_GPU}.other == 1",  # a deciding operand outweighs one that fails
]


@pytest.mark.parametrize("expression", TRUE)
def test_an_expression_holds_for_the_device(expression):
    assert selector(expression).matches(GPU, DEVICE)
    assert not selector(f"!({expression})").matches(GPU, DEVICE)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (f"{OF_GPU}.other == 1", 'Key not found in map : "other", for device gpu-0'),
        (f"{OF_GPU}.index.compareTo(quantity('1')) == 0", "No matching overloads"),
        (f"{OF_GPU}.productName.isGreaterThan(semver('1.0.0'))", "No matching overloads"),
        ('quantity("many") == quantity("1")', "is not a quantity"),
        ('semver("1") == semver("1.0.0")', "is not a semantic version"),
        (f"{OF_GPU}.index", "it is of type int, not bool"),
        ("1 / 0 == 1", "divide by zero"),
    ],
)
def test_an_expression_that_fails_for_a_device_says_why(expression, why):
    with pytest.raises(WrongSelector, match=why):
        selector(expression).matches(GPU, DEVICE)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("device.driver ==", "Syntax error"),
        ("devices == 3", "undeclared reference to 'devices'"),
        ('"a".isGreaterThan(3)', "found no matching overload"),
    ],
)
def test_an_expression_that_is_none_says_why(expression, why):
    with pytest.raises(WrongSelector, match=why):
        selector(expression)


def test_each_expression_is_compiled_once():
    assert selector("device.driver == 'a'") is selector("device.driver == 'a'")
