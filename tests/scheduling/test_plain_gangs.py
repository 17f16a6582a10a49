"""Plain pods are combined into jobs, and the others get a reason. Pure functions."""

import pytest
from msgspec.structs import replace

from scheduling.engine.types import NodeRules
from scheduling.kube.seam import PlainPod
from scheduling.services.jobs.validation import job_spec
from scheduling.services.plain_pods.gangs import groups_of, pod_sets_of
from scheduling.services.plain_pods.spec import Refused, document_of
from tests.scheduling.test_scope_of_session import pod

PLAIN = PlainPod(NodeRules(), "team/train:1", ("train",), True, (), 0.0, ())


def member(name, size="2", gang="train", tenant="team", *, gates=(), selector=None, **fields):
    """Return a pod of a gang; with `size` None it does not state the gang's size."""
    labels = {"kant.io/tenant": tenant, "job-index": name, "app": "bert"}
    labels |= {} if gang is None else {"kant.io/gang": gang}
    notes = fields.pop("notes", {}) | ({} if size is None else {"kant.io/gang-size": size})
    plain = replace(PLAIN, gates=gates, nodes=NodeRules(selector or {}))
    given = {"gpus": 8, "cpu_milli": 100, **fields}
    return replace(
        pod(name, ""),
        owned=True,
        labels=labels,
        annotations=notes,
        gated=bool(gates),
        plain=plain,
        **given,
    )


def told(*pods, also=""):
    """Return {name: (reason, text)} for each pod."""
    with pytest.raises(Refused) as caught:
        pod_sets_of(pods, also)
    refused = caught.value
    return {each.name: tuple(refused.own.get(each.uid, refused.cause)) for each in pods}


def names(sets):
    return [[one.pod.name for one in part] for part in sets]


def test_pods_are_grouped_by_gang_and_tenant_and_those_without_are_alone():
    pods = [
        member("a"),
        member("b", tenant="other"),
        member("c"),
        member("d", gang=None, size=None),
        member("e", gang=None, size=None),
        member("f", gang="next"),
    ]
    found = [[each.name for each in group] for group in groups_of(pods)]
    assert found == [["a", "c"], ["b"], ["d"], ["e"], ["f"]]


def test_pods_that_ask_for_the_same_are_a_pod_set_in_the_order_of_their_names():
    workers = [member(f"worker-{n}", size="12") for n in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)]
    other = replace(workers[3], plain=replace(PLAIN, command=("train", "--rank=1")))
    sets = pod_sets_of([*workers[:3], other, *workers[4:], member("launcher", "12", gpus=0)])
    assert names(sets) == [["launcher"], [f"worker-{n}" for n in range(11)]]
    spec = job_spec(document_of(sets, "live"))
    job = spec.job
    assert (job.name, job.tenant, job.gang, job.cluster) == ("train", "team", True, "live")
    assert [(s.count, s.gpus, s.cpu_milli) for s in spec.pod_sets] == [(1, 0, 100), (11, 8, 100)]
    assert job.labels == {"app": "bert"}  # the value that all have
    assert job.max_restarts == 0


@pytest.mark.parametrize(
    "other",
    [{"gpus": 4}, {"cpu_milli": 200}, {"memory_mib": 7}, {"selector": {"zone": "b"}},
     {"extended": {"vendor.com/card": 1}}, {"notes": {"kant.io/gpu-models": "H100"}}],
)  # fmt: skip
def test_whatever_decides_about_a_place_makes_another_pod_set(other):
    assert names(pod_sets_of([member("a"), member("b", **other)])) == [["a"], ["b"]]


def test_until_all_have_come_each_is_told_how_many_have():
    come = "GangIncomplete", "1 of 3 pods of gang train has come."
    assert told(member("a", "3")) == {"a": come}
    come = "GangIncomplete", "2 of 3 pods of gang train have come. More."
    assert told(member("a", "3"), member("b", "3"), also="More.") == {"a": come, "b": come}


def test_gates_are_waited_for():
    said = told(member("a"), member("b", gates=("example.com/later",)))
    text = "2 of 2 pods of gang train have come. Scheduling gates must be removed from b."
    assert said["a"] == ("GangIncomplete", text)


def test_more_than_the_gang_has_are_refused():
    said = told(*(member(name) for name in "abc"))
    assert {reason for reason, _ in said.values()} == {"GangTooLarge"}
    assert said["a"][1] == (
        "3 pods of gang train wait, and their annotation kant.io/gang-size is 2. Correct the "
        "size, or give each gang its own name."
    )


@pytest.mark.parametrize(
    ("other", "place", "here", "there"),
    [
        ({"size": "3"}, "annotation kant.io/gang-size", "2", "3"),
        ({"priority": 5}, "spec.priority or annotation kant.io/priority", "0", "5"),
        ({"notes": {"kant.io/kind": "inference"}}, "annotation kant.io/kind", "training",
         "inference"),
        ({"notes": {"kant.io/preemptible": "false"}}, "annotation kant.io/preemptible", "true",
         "false"),
        ({"notes": {"kant.io/declared-seconds": "60"}}, "annotation kant.io/declared-seconds",
         "not set", "60"),
    ],
)  # fmt: skip
def test_what_is_of_the_whole_gang_has_to_be_the_same_of_all(other, place, here, there):
    said = told(member("a"), member("b", **other))
    text = (
        f"{place}: The pods of gang train disagree; it is {here} of a and {there} of b. Give all "
        "pods the same value."
    )
    assert said == dict.fromkeys("ab", ("GangDisagrees", text))


WRONG = {
    "name": ({"gang": "Train"}, "label kant.io/gang: Use lower-case letters"),
    "no-size": ({"size": None}, "annotation kant.io/gang-size: Give the number of pods"),
    "no-gang": ({"gang": None}, "label kant.io/gang: Name the gang, or leave"),
    "zero": ({"size": "0"}, "annotation kant.io/gang-size: Must be from 1 to 100000."),
    "word": ({"size": "two"}, "annotation kant.io/gang-size: Must be a whole number."),
    "swapped": ({"notes": {"kant.io/gang": "x"}}, "annotation kant.io/gang: Set it as a label"),
    "nothing": (
        {"size": "1", "gpus": 0, "cpu_milli": 0, "memory_mib": 0},
        "spec.containers[].resources.requests: The pod asks for nothing. Request cpu and memory",
    ),
    "no-gpu": ({"size": "1", "gpus": 0}, "No pod of gang train asks for a GPU. Request"),
}


@pytest.mark.parametrize(("given", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_pod_is_said_with_its_field(given, said):
    [(reason, text)] = told(member("a", **given)).values()
    assert reason == "InvalidPod"
    assert said in text


def test_a_pod_that_cannot_be_taken_up_is_named_to_the_others():
    wrong = member("b", notes={"kant.io/kinds": "x"})
    said = told(member("a"), wrong)
    assert said["b"][0] == "InvalidPod"
    assert said["a"] == (
        "GangIncomplete",
        f"2 of 2 pods of gang train have come. Kant cannot take up b: {said['b'][1]}",
    )
    other = member("c", tenant="")
    assert told(other)["c"][0] == "NoTenant"


def test_a_gang_of_too_many_kinds_is_refused():
    pods = [member(f"w-{n}", size="33", cpu_milli=100 + n) for n in range(33)]
    [(reason, text)] = set(told(*pods).values())
    assert reason == "InvalidPod"
    assert text.startswith("The pods of gang train are of 33 kinds: they differ in requests")
