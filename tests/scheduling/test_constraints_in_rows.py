"""Facts about a job's pods that are stored as JSON reach the engine unchanged."""

import json
import random

import pytest

from scheduling.engine.types import (
    GroupWish,
    JobRequest,
    NodeExpression,
    NodeRules,
    NodeWish,
    PodRules,
    PodSetSpec,
    Toleration,
)
from scheduling.kube.seam import KeepsAway, Requirement, Spaces
from scheduling.session.memory.constraints import (
    read_keepers,
    with_constraints,
    written,
    written_keepers,
)
from tests.cases import seeds
from tests.engine.test_pod_rules import any_rules

TERM = (
    NodeExpression("zone", "In", ("a", "b")),
    NodeExpression("metadata.name", "In", ("n",), True),
)
BESIDE = PodRules(
    wishes=(GroupWish(-3, "g", "zone"),), node_wishes=(NodeWish(2, TERM),), affinity=(TERM,)
)


def job(*sets):
    return JobRequest("j", "t", 0.0, sets)


def test_of_most_jobs_there_is_nothing_to_tell():
    asked = job(PodSetSpec("a", 1, 1, nodes=NodeRules(node_affinity=(TERM,))))
    assert written(asked, asked) is None
    assert written(asked, job(*asked.pod_sets)) is None


@pytest.mark.parametrize("seed", seeds(60))
def test_all_that_is_told_comes_back(seed):
    rng = random.Random(seed)
    asked = [
        PodSetSpec("a", 1, 1),
        PodSetSpec("b", 2, 1, nodes=NodeRules(node_affinity=(TERM,))),
        PodSetSpec("c", 1, 0),
    ]
    narrower = NodeRules(
        rng.choice(({}, {"zone": "a"})),
        (TERM[:1], TERM),
        rng.choice(((), (Toleration("team", "Exists"),))),
    )
    told = [
        PodSetSpec("a", 1, 1, rules=any_rules(rng)._replace(evenly=any_rules(rng).spread)),
        PodSetSpec("b", 2, 1, nodes=narrower, rules=rng.choice((None, BESIDE))),
        PodSetSpec("c", 1, 0),
    ]
    document = written(job(*asked), job(*told))
    assert json.loads(json.dumps(document)) == document
    assert with_constraints(job(*asked), document) == job(*told)
    fewer = job(*asked[:2])
    assert with_constraints(fewer, document) is fewer


def test_rules_of_pods_that_keep_others_away_come_back():
    some = Requirement("app", "In", ("a", "b"))
    rules = (
        KeepsAway(Spaces(("home",)), (some,), "zone"),
        KeepsAway(Spaces((), ()), (), "host"),
        KeepsAway(Spaces(("a", "b"), (some,)), (some, some), "host"),
    )
    assert read_keepers(json.loads(json.dumps(written_keepers(rules)))) == rules
