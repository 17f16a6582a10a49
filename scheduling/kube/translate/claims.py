"""Which volume claims a pod mounts, and which device claims it names."""

import logging
from typing import Any

from msgspec import Struct

from scheduling.kube.dra.facts import PodClaim
from scheduling.kube.translate.objects import KubePod, decoded

logger = logging.getLogger(__name__)


class _ClaimSource(Struct, rename="camel"):
    claim_name: str = ""


class _PodClaim(Struct, rename="camel"):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _PodClaimStatus(Struct, rename="camel"):
    name: str = ""
    resource_claim_name: str | None = None


class _Volume(Struct, rename="camel"):
    name: str = ""
    persistent_volume_claim: _ClaimSource | None = None
    ephemeral: Any = None


def claims_of(raw: KubePod) -> tuple[str, ...]:
    """As `names_of_claims`, but logs what cannot be read.

    If the pod waits, it is refused elsewhere.
    """
    try:
        return names_of_claims(raw)
    except ValueError as wrong:
        where = f"{raw.metadata.namespace}/{raw.metadata.name}"
        logger.warning("pod %s: its volumes cannot be read: %s", where, wrong)
        return ()


def names_of_claims(raw: KubePod) -> tuple[str, ...]:
    """Return the names of the volume claims that a pod mounts. Raises ValueError.

    The claim of an ephemeral volume is named after the pod and the volume.
    """
    text = bytes(raw.spec.volumes)
    if b"persistentVolumeClaim" not in text and b"ephemeral" not in text:
        return ()
    pod = raw.metadata.name
    found = set[str]()
    for volume in decoded(raw.spec.volumes, list[_Volume], []):
        if volume.persistent_volume_claim is not None:
            found.add(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.add(f"{pod}-{volume.name}")
    return tuple(sorted(found))


def device_claims_of(raw: KubePod) -> tuple[PodClaim, ...]:
    """As `names_of_device_claims`, but logs what cannot be read.

    If the pod waits, it is refused elsewhere.
    """
    try:
        return names_of_device_claims(raw)
    except ValueError as wrong:
        where = f"{raw.metadata.namespace}/{raw.metadata.name}"
        logger.warning("pod %s: its resource claims cannot be read: %s", where, wrong)
        return ()


def names_of_device_claims(raw: KubePod) -> tuple[PodClaim, ...]:
    """Return the device claims that a pod names. Raises ValueError.

    The pod's status names the claims that were made from templates.
    """
    if not bytes(raw.spec.resource_claims):
        return ()
    named = decoded(raw.spec.resource_claims, list[_PodClaim], [])
    told = decoded(raw.status.resource_claim_statuses, list[_PodClaimStatus], [])
    # An entry without a claim's name says that the pod needs none.
    made = {each.name: each.resource_claim_name or "" for each in told}
    return tuple(
        PodClaim(each.name, each.resource_claim_name)
        if each.resource_claim_name is not None
        else PodClaim(each.name, made.get(each.name), each.resource_claim_template_name or "")
        for each in named
    )
