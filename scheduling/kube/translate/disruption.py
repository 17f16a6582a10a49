"""Turns a PodDisruptionBudget into what a scheduler needs: which pods, and how many may go.

Meaning of selectors and of `disruptionsAllowed`: meta/v1 LabelSelector and the policy/v1 reference.
"""

from collections.abc import Mapping

from scheduling.kube.seam import BudgetFacts
from scheduling.kube.translate.label_selectors import requirements, selects
from scheduling.kube.translate.objects import KubeBudget


def budget_facts(raw: KubeBudget) -> BudgetFacts:
    """Return the budget's facts; until its controller has seen the latest spec, no pod may go."""
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
    """Whether the budget protects a pod with these labels in its namespace."""
    return selects(budget.selector, labels)
