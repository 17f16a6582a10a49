"""Which volume claims a pod mounts."""

import logging
from typing import Any

import msgspec
from msgspec import Struct

from scheduling.kube.translate.objects import KubePod

logger = logging.getLogger(__name__)


class _ClaimSource(Struct, rename="camel"):
    claim_name: str = ""


class _Volume(Struct, rename="camel"):
    name: str = ""
    persistent_volume_claim: _ClaimSource | None = None
    ephemeral: Any = None


def claims_of(raw: KubePod) -> tuple[str, ...]:
    """As `names_of_claims`; what cannot be read is logged, and the pod refused if it waits."""
    try:
        return names_of_claims(raw)
    except ValueError as wrong:
        where = f"{raw.metadata.namespace}/{raw.metadata.name}"
        logger.warning("pod %s: its volumes cannot be read: %s", where, wrong)
        return ()


def names_of_claims(raw: KubePod) -> tuple[str, ...]:
    """Their names; that of an ephemeral volume is made for the pod, and named by both. Raises
    ValueError."""
    text = bytes(raw.spec.volumes)
    if b"persistentVolumeClaim" not in text and b"ephemeral" not in text:
        return ()
    pod = raw.metadata.name
    volumes = msgspec.json.decode(text, type=list[_Volume] | None) or []
    found = set[str]()
    for volume in volumes:
        if volume.persistent_volume_claim is not None:
            found.add(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.add(f"{pod}-{volume.name}")
    return tuple(sorted(found))
