"""ComputeDomains of NVIDIA's driver: GPUs of several nodes that share memory over NVLink.

For each domain the driver's controller makes a ResourceClaimTemplate in its namespace, with the
label DOMAIN, which exists as long as the domain does. Claims made from it name the domain in their
configuration. A pod with such a claim cannot start once the domain is gone.
"""

from collections.abc import Iterable
from typing import Any

DRIVER = "compute-domain.nvidia.com"
DOMAIN = "resource.nvidia.com/computeDomain"
CHANNEL = "ComputeDomainChannelConfig"


def domains_of(config: Iterable[Any]) -> tuple[str, ...]:
    """Return the uids of the domains from which a claim's configuration requests channels."""
    return tuple(filter(None, map(_domain, config)))


def _domain(config: Any) -> str:
    opaque = config.get("opaque") if isinstance(config, dict) else None
    if not isinstance(opaque, dict) or opaque.get("driver") != DRIVER:
        return ""
    parameters = opaque.get("parameters")
    if not isinstance(parameters, dict) or parameters.get("kind") != CHANNEL:
        return ""
    return str(parameters.get("domainID") or "")
