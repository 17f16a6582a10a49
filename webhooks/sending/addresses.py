"""Which receivers Kant sends to: none by which it could be made to ask its own network.

A host name is looked up by whoever connects, once, and it is the address that it gives which is
judged, at the moment of the connection: a name that leads elsewhere a second later leads nowhere.
"""

import ipaddress
from urllib.parse import urlsplit

from django.conf import settings

from tenants.errors import Invalid
from webhooks.models import LONGEST_URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Addresses of IPv6 that lead to one of IPv4, which stands in their last 32 bits.
TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
SETTING = "KANT_WEBHOOK_NETWORKS"


def check_url(url: str) -> None:
    """Raises Invalid for what no webhook may have as its address, as far as that can be told
    without looking up its host."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise _wrong(f"Not a valid address: {error}.") from None
    if len(url) > LONGEST_URL:
        raise _wrong(f"Use at most {LONGEST_URL:,} characters.")
    if not url.isascii() or any(c.isspace() or not c.isprintable() for c in url):
        raise _wrong("Use printable ASCII characters, and no spaces; encode others as %XX.")
    if parts.scheme not in ("https", "http") or not host:
        raise _wrong("Must begin with https:// and name a host, e.g. https://example.com/kant.")
    if parts.username is not None or parts.password is not None:
        raise _wrong("Must not contain a user name or password; the signature shows who sends.")
    if parts.fragment:
        raise _wrong("Must not contain “#”: receivers never see what follows it.")
    literal = _literal(host)
    local = host == "localhost" or (literal is not None and literal.is_loopback)
    if parts.scheme == "http" and not (local and _on_one_machine()):
        raise _wrong(
            "Must begin with https://, so that nobody can read or change the events on their way."
        )
    if literal is not None and (why := refusal(literal)):
        raise _wrong(why)


def refusal(address: Address) -> str:
    """Why Kant does not connect to an address; "" = it does."""
    for each in (address, *_led_to(address)):
        if each.is_loopback and _on_one_machine():
            continue
        if any(each.version == one.version and each in one for one in allowed_networks()):
            continue
        if not each.is_global or each.is_multicast:
            return (
                f"{address} is not a public address. An operator can allow its network with "
                f"{SETTING}."
            )
    return ""


def allowed_networks() -> tuple[Network, ...]:
    """Raises ValueError where the setting names something else."""
    return tuple(ipaddress.ip_network(text) for text in settings.KANT_WEBHOOK_NETWORKS)


def _on_one_machine() -> bool:
    return bool(settings.EMBEDDED or settings.DEBUG)


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _led_to(address: Address) -> tuple[Address, ...]:
    """The address of IPv4 to which one of IPv6 leads in the end."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    if address.ipv4_mapped or address.sixtofour:
        return tuple(one for one in (address.ipv4_mapped, address.sixtofour) if one)
    if address.teredo:
        return address.teredo
    if any(address in network for network in TRANSLATED) and int(address) > 1:
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    return ()


def _wrong(detail: str) -> Invalid:
    return Invalid.field("url", detail)
