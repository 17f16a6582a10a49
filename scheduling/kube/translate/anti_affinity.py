"""The required anti-affinity of running pods: which pods they keep away, and how far.

Source: core/v1 PodAffinityTerm. kube-scheduler's filter InterPodAffinity honours such rules of
running pods, whoever bound them, for each new pod ("symmetry").
"""

import logging

import msgspec
from msgspec import Struct

from scheduling.kube.seam import KeepsAway
from scheduling.kube.translate.label_selectors import requirements
from scheduling.kube.translate.node_rules import REQUIRED
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.pod_rules import AffinityTerm, spaces_of

logger = logging.getLogger(__name__)


class _AntiAffinity(Struct):
    required: list[AffinityTerm] | None = msgspec.field(default=None, name=REQUIRED)


class _AffinityRules(Struct, rename="camel"):
    pod_anti_affinity: _AntiAffinity | None = None


def keeps_away(raw: KubePod) -> tuple[KeepsAway, ...]:
    """Return the pod's rules, () = none. Never raises: what cannot be read is logged."""
    text = bytes(raw.spec.affinity)
    if b"podAntiAffinity" not in text:
        return ()
    try:
        rules = msgspec.json.decode(text, type=_AffinityRules).pod_anti_affinity
    except ValueError as wrong:
        where = f"{raw.metadata.namespace}/{raw.metadata.name}"
        logger.warning("pod %s: its anti-affinity cannot be read: %s", where, wrong)
        return ()
    terms = rules.required if rules is not None else None
    return tuple(
        KeepsAway(spaces_of(term, raw.metadata.namespace), selector, term.topology_key)
        for term in terms or ()
        if (selector := requirements(term.label_selector)) is not None
    )
