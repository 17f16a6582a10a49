"""The four PATCH types."""

import pytest

from scheduling.simcluster.objects.patch import json_patch, merge_patch, strategic_patch
from scheduling.simcluster.objects.status import ApiError

from .harness import NODES, PODS, pod


# Appendix A of RFC 7386.
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target, patch, result):
    assert merge_patch(target, patch) == result


# Appendix A of RFC 6902, as far as it concerns objects.
@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "q"}], {"foo": "bar", "baz": "q"}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": ["x"]}], {"foo": ["a", ["x"]]}),
        ({"baz": 1, "foo": 2}, [{"op": "remove", "path": "/baz"}], {"foo": 2}),
        ({"foo": [1, 2, 3]}, [{"op": "remove", "path": "/foo/1"}], {"foo": [1, 3]}),
        ({"baz": 1}, [{"op": "replace", "path": "/baz", "value": 2}], {"baz": 2}),
        (
            {"foo": {"a": 1}, "qux": {"c": 2}},
            [{"op": "move", "from": "/foo/a", "path": "/qux/t"}],
            {"foo": {}, "qux": {"c": 2, "t": 1}},
        ),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"a/b": {"m~n": 1}}, [{"op": "remove", "path": "/a~1b/m~0n"}], {"a/b": {}}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}),
    ],
)  # fmt: skip
def test_json_patch(target, operations, result):
    before = repr(target)
    assert json_patch(target, operations) == result
    assert repr(target) == before


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "remove", "path": "/b"}], 422),
        ([{"op": "replace", "path": "/b", "value": 1}], 422),
        ([{"op": "add", "path": "/l/7", "value": 1}], 422),
        ([{"op": "add", "path": "/a/b", "value": 1}], 422),
        ([{"op": "jump", "path": "/a"}], 422),
        ([{"op": "add", "path": "/b"}], 422),
        ([{"op": "add", "path": "b", "value": 1}], 422),
        ({"a": 1}, 400),
        (["a"], 400),
    ],
)
def test_json_patch_refusals(operations, code):
    with pytest.raises(ApiError) as refused:
        json_patch({"a": 1, "l": []}, operations)
    assert refused.value.code == code


CONDITIONS = [{"type": "A", "status": "True"}, {"type": "B", "status": "True", "reason": "R"}]


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        (
            {"status": {"conditions": CONDITIONS}},
            {"status": {"conditions": [{"type": "B", "status": "False"}, {"type": "C"}]}},
            {
                "status": {
                    "conditions": [
                        CONDITIONS[0],
                        {"type": "B", "status": "False", "reason": "R"},
                        {"type": "C"},
                    ]
                }
            },
        ),
        (
            {"status": {"conditions": CONDITIONS}},
            {"status": {"conditions": [{"type": "A", "$patch": "delete"}]}},
            {"status": {"conditions": [CONDITIONS[1]]}},
        ),
        (
            {"status": {"conditions": CONDITIONS}},
            {"status": {"conditions": [{"type": "Z"}, {"$patch": "replace"}]}},
            {"status": {"conditions": [{"type": "Z"}]}},
        ),
        ({"spec": {"taints": [{"key": "a"}]}}, {"spec": {"taints": [{"key": "b"}]}},
         {"spec": {"taints": [{"key": "b"}]}}),
        ({"metadata": {"finalizers": ["a"]}}, {"metadata": {"finalizers": ["b", "a"]}},
         {"metadata": {"finalizers": ["a", "b"]}}),
        (
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b"]}},
        ),
        ({"metadata": {"labels": {"a": "1", "b": "2"}}}, {"metadata": {"labels": {"a": None}}},
         {"metadata": {"labels": {"b": "2"}}}),
        ({"spec": {"a": 1, "b": 2}}, {"spec": {"$patch": "replace", "c": 3}}, {"spec": {"c": 3}}),
        ({"spec": {"a": 1, "b": 2}}, {"spec": {"$retainKeys": ["a", "c"], "c": 3}},
         {"spec": {"a": 1, "c": 3}}),
    ],
)  # fmt: skip
def test_strategic_patch(target, patch, result):
    before = repr(target)
    assert strategic_patch(target, patch) == result
    assert repr(target) == before


def test_strategic_patch_refusals():
    for patch, code in (
        ({"status": {"conditions": [{"status": "True"}]}}, 500),
        ({"spec": {"$patch": "explode"}}, 400),
    ):
        with pytest.raises(ApiError) as refused:
            strategic_patch({"status": {"conditions": []}}, patch)
        assert refused.value.code == code


def test_patches_over_http(sim):
    made = sim.post(PODS, pod("p"))
    path = f"{PODS}/p"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    body = {"status": {"conditions": [condition]}}
    code, out = sim.patch(f"{path}/status", body, "strategic-merge-patch+json")
    times = {"lastProbeTime": None, "lastTransitionTime": None}
    assert (code, out["status"]["conditions"]) == (200, [condition | times])
    assert out["status"]["phase"] == "Pending"
    # Repeating it makes no change and no event.
    _, again = sim.patch(f"{path}/status", body, "strategic-merge-patch+json")
    assert again["metadata"]["resourceVersion"] == out["metadata"]["resourceVersion"]
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    assert sim.patch(path, stale)[0] == 409
    assert sim.patch(path, {"metadata": {"uid": "other"}})[0] == 422
    assert sim.patch(path, {"metadata": {"labels": {"a": 1}}})[0] == 422
    assert sim.patch(path, {"metadata": {"labels": {"a b": "c"}}})[0] == 422
    assert sim.patch(path, [1])[0] == 400
    assert sim.patch(path, {}, "unheard-of")[0] == 415
    assert sim.patch(f"{PODS}/none", {})[0] == 404
    assert sim.raw("PATCH", path, b"{", Content_Type="application/merge-patch+json")[0] == 400


def test_server_side_apply_creates_and_merges(sim):
    path = f"{NODES}/applied?fieldManager=test"
    node = b"apiVersion: v1\nkind: Node\nmetadata: {name: applied, labels: {a: b}}\n"
    kind = "application/apply-patch+yaml"
    assert sim.raw("PATCH", path, node, Content_Type=kind)[0] == 201
    more = b"apiVersion: v1\nkind: Node\nmetadata: {name: applied, labels: {c: d}}\n"
    assert sim.raw("PATCH", path, more, Content_Type=kind)[0] == 200
    labels = sim.get(f"{NODES}/applied")["metadata"]["labels"]
    assert labels == {"a": "b", "c": "d"}
    assert sim.raw("PATCH", f"{NODES}/applied", more, Content_Type=kind)[0] == 422
    assert sim.raw("PATCH", path, b"a: [", Content_Type=kind)[0] == 400
    assert sim.call("DELETE", f"{NODES}/applied")[0] == 200
