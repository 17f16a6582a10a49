"""Webhooks cannot have addresses that would make Kant send requests into its own network."""

from ipaddress import ip_address

import pytest

from tenants.errors import Invalid
from webhooks.sending.addresses import check_url, refusal

PUBLIC = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822")
PRIVATE = (
    *("127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
    *("0.0.0.0", "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
    *("::1", "::", "fe80::1", "fd00::1", "ff02::1", "2001:db8::1"),
    # IPv6 addresses that map to IPv4 addresses.
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe"),
    *("2002:7f00:1::", "2002:a00:1::", "::127.0.0.1", "::10.0.0.1"),
)


@pytest.fixture
def served(settings):
    settings.EMBEDDED = settings.DEBUG = False
    return settings


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(served, address):
    assert "is not a public address" in refusal(ip_address(address))
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(Invalid, match="KANT_WEBHOOK_NETWORKS"):
        check_url(f"https://{host}/hook")


@pytest.mark.parametrize("address", PUBLIC)
def test_one_that_is_public_is_not(served, address):
    assert refusal(ip_address(address)) == ""


def test_an_operator_allows_networks(served):
    served.KANT_WEBHOOK_NETWORKS = ["10.1.0.0/16", "fd00::/8"]
    assert refusal(ip_address("10.1.2.3")) == refusal(ip_address("fd00::1")) == ""
    assert refusal(ip_address("10.2.0.1"))
    assert refusal(ip_address("127.0.0.1"))


def test_on_one_machine_its_own_address_is_allowed(served):
    served.EMBEDDED = True
    for url in ("http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]:9/x"):
        check_url(url)
    assert refusal(ip_address("10.0.0.1"))
    with pytest.raises(Invalid):
        check_url("http://example.com/x")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.com/x", "https://"),
        ("http://127.0.0.1/x", "https://"),
        ("ftp://example.com", "https://"),
        ("example.com/x", "https://"),
        ("https://", "name a host"),
        ("", "https://"),
        ("https://a:b@example.com", "user name"),
        ("https://@example.com", "user name"),
        ("https://example.com/#x", "“#”"),
        ("https://exa mple.com", "spaces"),
        ("https://example.com/\n", "spaces"),
        ("https://exämple.com", "ASCII"),
        ("https://example.com:99999/", "Not a valid address"),
        ("https://[::1/", "Not a valid address"),
        (f"https://example.com/{'x' * 2000}", "2,000"),
    ],
)
def test_an_address_that_is_wrong_in_itself(served, url, said):
    with pytest.raises(Invalid) as refused:
        check_url(url)
    assert said in refused.value.by_field["url"][0]
