"""From a PodDisruptionBudget to what a scheduler must know: whose pods, and how many may go.

Meaning of selectors and of `disruptionsAllowed`: meta/v1 LabelSelector and the policy/v1 reference.
"""

from collections.abc import Mapping

from scheduling.kube.seam import BudgetFacts
from scheduling.kube.translate.label_selectors import requirements, selects
from scheduling.kube.translate.objects import KubeBudget


def budget_facts(raw: KubeBudget) -> BudgetFacts:
    """Until the disruption controller has seen the budget as it is, none may go."""
    meta, status = raw.metadata, raw.status
    current = status.observed_generation >= meta.generation
    return BudgetFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        selector=requirements(raw.spec.selector),
        allowed=max(0, status.disruptions_allowed) if current else 0,
    )


def covers(budget: BudgetFacts, labels: Mapping[str, str]) -> bool:
    """Whether a pod with these labels, in the budget's namespace, is protected by it."""
    return selects(budget.selector, labels)
