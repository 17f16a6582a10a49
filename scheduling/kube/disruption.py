"""From a PodDisruptionBudget to what a scheduler must know: whose pods, and how many may go.

Meaning of selectors and of `disruptionsAllowed`: meta/v1 LabelSelector and the policy/v1 reference.
"""

from collections.abc import Mapping

from scheduling.kube.objects import KubeBudget, LabelSelector
from scheduling.kube.seam import BudgetFacts, Requirement


def budget_facts(raw: KubeBudget) -> BudgetFacts:
    """Until the disruption controller has seen the budget as it is, none may go."""
    meta, status = raw.metadata, raw.status
    current = status.observed_generation >= meta.generation
    return BudgetFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        selector=_requirements(raw.spec.selector),
        allowed=max(0, status.disruptions_allowed) if current else 0,
    )


def covers(budget: BudgetFacts, labels: Mapping[str, str]) -> bool:
    """Whether a pod with these labels, in the budget's namespace, is protected by it."""
    return budget.selector is not None and all(_meets(each, labels) for each in budget.selector)


def _requirements(selector: LabelSelector | None) -> tuple[Requirement, ...] | None:
    if selector is None:
        return None
    equal = [Requirement(key, "In", (value,)) for key, value in selector.match_labels.items()]
    others = [Requirement(e.key, e.operator, tuple(e.values)) for e in selector.match_expressions]
    return tuple(sorted([*equal, *others]))


def _meets(wanted: Requirement, labels: Mapping[str, str]) -> bool:
    match wanted.operator:
        case "In":
            return labels.get(wanted.key) in wanted.values
        case "NotIn":
            return labels.get(wanted.key) not in wanted.values
        case "Exists":
            return wanted.key in labels
        case _:  # DoesNotExist, the only other that `objects` decodes
            return wanted.key not in labels
