"""Which objects a label selector selects (meta/v1 LabelSelector)."""

from collections.abc import Iterable, Mapping

from scheduling.kube.seam import Requirement
from scheduling.kube.translate.objects import LabelSelector


def requirements(selector: LabelSelector | None) -> tuple[Requirement, ...] | None:
    """Return all requirements that labels have to meet; () = any labels match, None = none do."""
    if selector is None:
        return None
    equal = [Requirement(key, "In", (value,)) for key, value in selector.match_labels.items()]
    others = [Requirement(e.key, e.operator, tuple(e.values)) for e in selector.match_expressions]
    return tuple(sorted([*equal, *others]))


def selects(wanted: Iterable[Requirement] | None, labels: Mapping[str, str]) -> bool:
    """Whether an object with these labels meets all requirements."""
    return wanted is not None and all(_meets(each, labels) for each in wanted)


def _meets(wanted: Requirement, labels: Mapping[str, str]) -> bool:
    match wanted.operator:
        case "In":
            return labels.get(wanted.key) in wanted.values
        case "NotIn":
            return labels.get(wanted.key) not in wanted.values
        case "Exists":
            return wanted.key in labels
        case _:  # DoesNotExist, the only other operator that `objects` decodes
            return wanted.key not in labels
