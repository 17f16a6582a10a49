"""What Kant writes to group objects, in which version, and when."""

import asyncio

import msgspec
import pytest

from scheduling.kube.door.client import NoReply, Reply
from scheduling.kube.door.groups import GroupRequests
from scheduling.kube.door.versions import ServedVersions
from scheduling.kube.seam import GroupCounts, Result, TellGroup
from scheduling.kube.workloads.group_status import counted_status, status_of

NATIVE, KAI = "scheduling.k8s.io/v1alpha2", "scheduling.run.ai/v2alpha2"
NOW = "2026-11-25T12:00:00Z"


def effect(api_version, *, placed):
    told = ("Scheduled", "on one node") if placed else ("Unschedulable", "full")
    return TellGroup((), "ns", "g", api_version, placed, *told)


class Server:
    """Stands in for the client: replies by path."""

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


COSCHEDULING, VOLCANO = "scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1"


def counted(api_version, found, reason="Unschedulable", **counts):
    said = TellGroup((), "ns", "g", api_version, False, reason, "why", GroupCounts(**counts))
    return counted_status(said, found, NOW)


@pytest.mark.parametrize(
    ("counts", "phase"),
    [
        ({"pods": 1}, "Pending"),
        ({"pods": 2}, "Scheduling"),
        ({"pods": 2, "scheduled": 1}, "Scheduling"),
        ({"pods": 3, "scheduled": 2}, "Scheduled"),
        ({"pods": 2, "scheduled": 2, "running": 1}, "Scheduled"),
        ({"pods": 2, "scheduled": 2, "running": 1, "succeeded": 1}, "Running"),
        ({"pods": 2, "scheduled": 2, "running": 1, "failed": 1}, "Failed"),
        ({"pods": 2, "scheduled": 2, "failed": 1}, "Scheduled"),
        ({"pods": 2, "scheduled": 2, "succeeded": 2}, "Finished"),
    ],
)
def test_the_phase_of_coscheduling(counts, phase):
    status = counted(COSCHEDULING, {"spec": {"minMember": 2}}, **counts)
    names = ("scheduled", "running", "succeeded", "failed")
    assert status == {"phase": phase, **{name: counts.get(name, 0) for name in names}}
    assert counted(COSCHEDULING, {"spec": {"minMember": 2}, "status": status}, **counts) == {}


def test_a_group_that_has_ended_stays_so():
    found = {"spec": {"minMember": 2}, "status": {"phase": "Finished", "succeeded": 2}}
    assert counted(COSCHEDULING, found, pods=0) == {}


@pytest.mark.parametrize(
    ("counts", "reason", "phase", "type"),
    [
        ({"pods": 1}, "GangIncomplete", "Pending", "Unschedulable"),
        ({"pods": 2}, "WaitingForQuota", "Pending", "Unschedulable"),
        ({"pods": 2}, "Unschedulable", "Inqueue", "Unschedulable"),
        ({"pods": 2, "scheduled": 2}, "Scheduled", "Inqueue", "Scheduled"),
        ({"pods": 2, "scheduled": 2, "running": 2}, "Scheduled", "Running", "Scheduled"),
    ],
)
def test_the_phase_of_volcano(counts, reason, phase, type):
    found = {"spec": {"minMember": 2}}
    status = counted(VOLCANO, found, reason, **counts)
    [condition] = status["conditions"]
    assert (status["phase"], condition["type"], condition["reason"]) == (phase, type, reason)
    assert (condition["status"], condition["lastTransitionTime"]) == ("True", NOW)
    assert counted(VOLCANO, {**found, "status": status}, reason, **counts) == {}


@pytest.mark.parametrize("spec", [None, {}, {"minMember": "many"}])
def test_a_group_that_says_no_least_is_one_of_one(spec):
    counts = {"pods": 1, "scheduled": 1, "running": 1}
    assert counted(COSCHEDULING, {"spec": spec}, **counts)["phase"] == "Running"


@pytest.mark.parametrize(("api_version", "at"), [(COSCHEDULING, "/status"), (VOLCANO, "")])
def test_a_group_that_counts_is_read_before_it_is_told(api_version, at):
    path = f"/apis/{api_version}/namespaces/ns/podgroups/g"
    server = Server({path: {"spec": {"minMember": 1}}})
    request = asyncio.run(GroupRequests(server).tell(effect(api_version, placed=False)))
    assert (request.method, request.path) == ("PATCH", f"{path}{at}")
    status = msgspec.json.decode(request.body)["status"]
    server.replies[path] = {"spec": {"minMember": 1}, "status": status}
    again = asyncio.run(GroupRequests(server).tell(effect(api_version, placed=False)))
    assert again.method == "GET"
    assert again.settle(Reply(200, b"{}", 0.0)).result is Result.DONE
    del server.replies[path]
    assert (
        asyncio.run(GroupRequests(server).tell(effect(api_version, placed=False))).method == "GET"
    )


@pytest.mark.parametrize(
    ("found", "served"),
    [
        (group("v1", "v1alpha2"), "v1alpha2"),
        (group("v1", "v1beta1", preferred="v1beta1"), "v1beta1"),
        (None, "v1alpha2"),
    ],
)
def test_the_version_that_is_served(found, served):
    """Kubernetes after 1.36 serves its PodGroups in other versions."""
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
    assert asyncio.run(request.look()) is None  # it exists: write again
