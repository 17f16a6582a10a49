"""What group objects are told, in which version, and when."""

import asyncio

import msgspec
import pytest

from scheduling.kube.door.client import NoReply, Reply
from scheduling.kube.door.groups import GroupRequests
from scheduling.kube.door.versions import ServedVersions
from scheduling.kube.seam import Result, TellGroup
from scheduling.kube.workloads.group_status import status_of

NATIVE, KAI = "scheduling.k8s.io/v1alpha2", "scheduling.run.ai/v2alpha2"
NOW = "2026-11-25T12:00:00Z"


def effect(api_version, *, placed):
    told = ("Scheduled", "on one node") if placed else ("Unschedulable", "full")
    return TellGroup((), "ns", "g", api_version, placed, *told)


class Server:
    """In place of the client: the replies by path."""

    def __init__(self, replies):
        self.replies, self.asked = replies, []

    async def call(self, method, path, *_):
        self.asked.append(path)
        found = self.replies.get(path)
        if isinstance(found, Exception):
            raise found
        return Reply(404 if found is None else 200, msgspec.json.encode(found or {}), 0.0)


def group(*versions, preferred=""):
    served = [{"groupVersion": f"scheduling.k8s.io/{v}"} for v in versions]
    preferred = f"scheduling.k8s.io/{preferred or versions[0]}"
    return {"versions": served, "preferredVersion": {"groupVersion": preferred}}


@pytest.mark.parametrize("placed", [True, False])
def test_a_native_group_has_one_condition(placed):
    [said] = status_of(effect(NATIVE, placed=placed), NOW)["conditions"]
    assert said == {
        "type": "PodGroupScheduled",
        "status": "True" if placed else "False",
        "reason": "Scheduled" if placed else "Unschedulable",
        "message": "on one node" if placed else "full",
        "lastTransitionTime": NOW,
    }


def test_a_group_of_kai_has_a_condition_while_it_finds_no_place():
    assert status_of(effect(KAI, placed=True), NOW) == {"schedulingConditions": []}
    [said] = status_of(effect(KAI, placed=False), NOW)["schedulingConditions"]
    assert (said["type"], said["status"]) == ("UnschedulableOnNodePool", "True")
    assert (said["reason"], said["message"]) == ("Unschedulable", "full")


@pytest.mark.parametrize(
    ("found", "served"),
    [
        (group("v1", "v1alpha2"), "v1alpha2"),
        (group("v1", "v1beta1", preferred="v1beta1"), "v1beta1"),
        (None, "v1alpha2"),
    ],
)
def test_the_version_that_is_served(found, served):
    """Kubernetes after 1.36 serves its PodGroups in others."""
    versions = ServedVersions(Server({"/apis/scheduling.k8s.io": found}))
    assert asyncio.run(versions.of(NATIVE)) == f"scheduling.k8s.io/{served}"


def test_a_group_is_asked_for_once_when_it_was_known():
    server = Server({"/apis/scheduling.k8s.io": NoReply("away", sent=False)})
    versions = ServedVersions(server)
    with pytest.raises(NoReply):
        asyncio.run(versions.of(NATIVE))
    server.replies["/apis/scheduling.k8s.io"] = group("v1")
    for _ in range(2):
        assert asyncio.run(versions.of(NATIVE)) == "scheduling.k8s.io/v1"
    assert len(server.asked) == 2


def test_where_it_is_told_and_what_replies_mean():
    server = Server({"/apis/scheduling.k8s.io": group("v1beta1")})
    request = asyncio.run(GroupRequests(server).tell(effect(NATIVE, placed=True)))
    path = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups/g"
    assert (request.method, request.path) == ("PATCH", f"{path}/status")
    replies = {code: request.settle(Reply(code, b"{}", 0.0)) for code in (200, 404, 403, 500)}
    said = {code: outcome and outcome.result for code, outcome in replies.items()}
    assert said == {200: Result.DONE, 404: Result.GONE, 403: Result.REFUSED, 500: None}
    assert asyncio.run(request.look()).result is Result.GONE
    server.replies[path] = {"metadata": {}}
    assert asyncio.run(request.look()) is None  # it is there: told again
