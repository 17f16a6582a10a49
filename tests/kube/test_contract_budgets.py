"""PodDisruptionBudgets as both servers serve them, and as the gateway reads them."""

import pytest

from scheduling.kube.seam import BudgetFacts, BudgetGone, BudgetSeen, EvictPod, Requirement, Result
from scheduling.kube.translate.disruption import budget_facts, covers
from scheduling.kube.translate.objects import KubeBudget, LabelRequirement, LabelSelector, Meta
from tests.kube.api import MERGE
from tests.kube.test_contract_effects import create


class Budget:
    """A budget for the pods of this test."""

    def __init__(self, place):
        self.place = place
        self.path = f"/apis/policy/v1/namespaces/{place.namespace}/poddisruptionbudgets"
        selector = {
            "matchLabels": {"kant.io/job": f"job-{place.number}"},
            "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}],
        }
        self.place.api.ok(
            "POST",
            self.path,
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "web"},
                "spec": {"maxUnavailable": 1, "selector": selector},
            },
        )

    def allow(self, door, number):
        """Let the budget allow this many of its two running pods to go. A bare kube-apiserver has
        no kubelet and no disruption controller to compute that."""
        api, place = self.place.api, self.place
        spec = api.ok("GET", f"{self.path}/web")["spec"] | {"maxUnavailable": number}
        budget = api.ok("PATCH", f"{self.path}/web", {"spec": spec}, MERGE)
        names = ("one", "two")
        if place.server.name == "embedded":
            place.make_node()
        # A pod that has gone completely would allow the other to go.
        stays = {"sim.kant.io/stop-seconds": "20"}
        door.carry_out(*(create(place, name, annotations=stays) for name in names))
        if place.server.name == "embedded":
            return
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
        for name in names:
            api.ok("PATCH", f"{place.pods}/{name}/status", {"status": ready}, MERGE)
        status = {
            "disruptionsAllowed": number,
            "observedGeneration": budget["metadata"]["generation"],
            "currentHealthy": 2,
            "desiredHealthy": 2 - number,
            "expectedPods": 2,
        }
        api.ok("PATCH", f"{self.path}/web/status", {"status": status}, MERGE)


def seen(door, **fields):
    """Return the first news of the budget with these fields."""

    def wanted(each):
        return isinstance(each, BudgetSeen) and all(
            getattr(each.budget, name) == value for name, value in fields.items()
        )

    return door.until(wanted).budget


def test_a_budget_is_seen_with_whom_it_protects_and_how_many_may_go(place, door):
    budget = Budget(place)
    first = seen(door, name="web", namespace=place.namespace)
    assert first.allowed == 0
    mine = {"kant.io/job": f"job-{place.number}", "other": "x"}
    assert covers(first, mine)
    assert not covers(first, {**mine, "tier": "front"})
    assert not covers(first, {"kant.io/job": "another"})
    budget.allow(door, 1)
    assert seen(door, allowed=1).uid == first.uid
    place.api.ok("DELETE", f"{budget.path}/web")
    door.until(lambda each: isinstance(each, BudgetGone) and each.budget.uid == first.uid)


def test_the_last_word_on_an_eviction_is_the_budgets(place, door):
    budget = Budget(place)
    budget.allow(door, 1)
    seen(door, allowed=1, namespace=place.namespace)
    uids = {name: place.get(name)["metadata"]["uid"] for name in ("one", "two")}
    [first] = door.carry_out(EvictPod("first", place.namespace, "one", uids["one"], 30))
    assert first.result in (Result.DONE, Result.GONE)
    [second] = door.carry_out(EvictPod("second", place.namespace, "two", uids["two"], 30))
    assert (second.result, second.uid) == (Result.BLOCKED, uids["two"])


def test_a_door_that_comes_later_finds_the_budgets_of_any_namespace(place, open_door):
    Budget(place)
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    name = f"web-{place.number}"
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    place.api.ok("POST", path, {**kind, "metadata": {"name": name}, "spec": spec})
    door = open_door()
    assert seen(door, name=name).namespace == "default"
    assert seen(door, name="web", namespace=place.namespace).allowed == 0


# --- without a server ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("operator", "values", "tier", "covered"),
    [
        ("In", ["a", "b"], "b", True),
        ("In", ["a", "b"], "c", False),
        ("In", ["a"], None, False),
        ("NotIn", ["a"], "b", True),
        ("NotIn", ["a"], "a", False),
        ("NotIn", ["a"], None, True),
        ("Exists", [], "a", True),
        ("Exists", [], None, False),
        ("DoesNotExist", [], None, True),
        ("DoesNotExist", [], "a", False),
    ],
)
def test_what_a_requirement_selects(operator, values, tier, covered):
    raw = KubeBudget()
    raw.spec.selector = LabelSelector(match_expressions=[LabelRequirement("t", operator, values)])
    labels = {"app": "x"} if tier is None else {"app": "x", "t": tier}
    assert covers(budget_facts(raw), labels) is covered


def test_an_empty_selector_selects_all_and_none_nobody():
    raw = KubeBudget()
    assert not covers(budget_facts(raw), {"a": "b"})
    raw.spec.selector = LabelSelector()
    assert covers(budget_facts(raw), {"a": "b"})
    assert covers(budget_facts(raw), {})


def test_a_status_that_does_not_know_the_budget_as_it_is_allows_nothing():
    raw = KubeBudget(metadata=Meta(name="web", namespace="n", uid="u", generation=2))
    raw.status.disruptions_allowed = 3
    raw.status.observed_generation = 1
    raw.spec.selector = LabelSelector({"b": "2", "a": "1"})
    both = (Requirement("a", "In", ("1",)), Requirement("b", "In", ("2",)))
    assert budget_facts(raw) == BudgetFacts("n", "web", "u", both, 0)
    raw.status.observed_generation = 2
    assert budget_facts(raw).allowed == 3
    raw.status.disruptions_allowed = -1
    assert budget_facts(raw).allowed == 0
