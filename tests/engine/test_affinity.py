"""Required node affinity is read as a kubelet reads it, and a refusal names its remedy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.cluster.affinity import (
    NAME,
    OPERATORS,
    matches,
    read_terms,
    write_terms,
    wrong_expression,
)
from scheduling.engine.types import NodeExpression, NodeRules
from scheduling.kube.translate.manifests import PodTemplate, pod_manifest
from scheduling.simcluster.controllers.predicates import KubeletView, admit
from tests.engine.scenario import node

VALUES = ("a", "b", "", "4", "-7", "16")


@st.composite
def expressions(draw):
    if draw(st.integers(0, 3)) == 0:
        operator, name = draw(st.sampled_from(("In", "NotIn"))), draw(st.sampled_from(("n", "m")))
        return NodeExpression(NAME, operator, (name,), of_name=True)
    operator = draw(st.sampled_from(OPERATORS))
    key = draw(st.sampled_from(("zone", "cores")))
    if operator in ("In", "NotIn"):
        values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
    elif operator in ("Gt", "Lt"):
        values = [draw(st.sampled_from(("4", "-7", "15")))]
    else:
        values = []
    return NodeExpression(key, operator, tuple(values))


TERMS = st.lists(
    st.lists(expressions(), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
).map(tuple)
LABELS = st.dictionaries(st.sampled_from(("zone", "cores")), st.sampled_from(VALUES))


@given(terms=TERMS, labels=LABELS)
def test_a_node_is_meant_exactly_if_its_kubelet_lets_the_pod_in(terms, labels):
    template = PodTemplate(
        namespace="ns",
        job_id="0",
        tenant="t",
        attempt=1,
        pod_set=0,
        image="i",
        nodes=NodeRules(node_affinity=terms),
    )
    spec = pod_manifest(template, "pod", 0)["spec"] | {"nodeName": "n"}
    refused = admit(spec, {}, KubeletView("n", labels=labels, allocatable={"pods": 1}))
    assert matches(node("n", 8, labels=labels), terms) == (refused is None)
    assert [set(term) for term in read_terms(write_terms(terms))] == [set(t) for t in terms]
    assert not any(wrong_expression(e) for term in terms for e in term)


@pytest.mark.parametrize(
    "damaged",
    [7, [7], [{"match_fields": 7}], [{"match_expressions": [{"key": "a"}]}], ["a"]],
)
def test_what_is_no_affinity_is_told_by_its_field(damaged):
    with pytest.raises(ValueError, match="node_affinity is not a list of terms, each with"):
        read_terms(damaged)


def test_without_terms_every_node_is_meant():
    assert matches(node("n", 8), ())


@pytest.mark.parametrize(
    ("operator", "values", "wrong"),
    [
        ("Near", (), "Choose one of In, NotIn, Exists, DoesNotExist, Gt, Lt."),
        ("In", (), "In needs at least one value."),
        ("NotIn", (), "NotIn needs at least one value."),
        ("Exists", ("a",), "Exists takes no values."),
        ("DoesNotExist", ("a",), "DoesNotExist takes no values."),
        ("Gt", (), "Gt takes one whole number."),
        ("Gt", ("1", "2"), "Gt takes one whole number."),
        ("Lt", ("1.5",), "Lt takes one whole number."),
        ("Lt", ("9" * 5000,), "Lt takes one whole number."),
    ],
)
def test_an_expression_that_means_nothing_is_told(operator, values, wrong):
    assert wrong_expression(NodeExpression("zone", operator, values)) == wrong


def test_a_number_of_a_node_that_is_none_is_neither_above_nor_below():
    for operator in ("Gt", "Lt"):
        expression = NodeExpression("cores", operator, ("1",))
        assert not matches(node("n", 8, labels={"cores": "many"}), ((expression,),))


def test_names_of_nodes_may_be_many_or_none():
    wrong = "The name of a node takes In or NotIn."
    assert wrong_expression(NodeExpression(NAME, "Exists", (), of_name=True)) == wrong
    for operator in ("In", "NotIn"):
        for names in ((), ("a",), ("a", "b")):
            expression = NodeExpression(NAME, operator, names, of_name=True)
            assert not wrong_expression(expression)
            meant = {n for n in "abc" if matches(node(n, 8), ((expression,),))}
            assert meant == (set(names) if operator == "In" else set("abc") - set(names))
