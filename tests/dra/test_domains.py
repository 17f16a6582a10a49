"""Claims for channels are matched to their ComputeDomains by parameters that are opaque to
Kubernetes."""

import pytest

from scheduling.kube.dra.domains import CHANNEL, DRIVER, domains_of


def opaque(parameters, driver=DRIVER):
    return {"requests": ["channel"], "opaque": {"driver": driver, "parameters": parameters}}


def test_the_domains_of_channels():
    one, two = ({"kind": CHANNEL, "domainID": uid} for uid in ("a", "b"))
    assert domains_of([opaque(one), opaque(two)]) == ("a", "b")


@pytest.mark.parametrize(
    "config",
    [
        "text",
        {},
        {"opaque": None},
        {"opaque": "text"},
        opaque(None),
        opaque(["list"]),
        opaque({"kind": CHANNEL}),
        opaque({"kind": "ComputeDomainDaemonConfig", "domainID": "a"}),
        opaque({"kind": CHANNEL, "domainID": "a"}, driver="gpu.nvidia.com"),
    ],
)
def test_whatever_else_is_said_is_no_domain(config):
    assert domains_of([config]) == ()
