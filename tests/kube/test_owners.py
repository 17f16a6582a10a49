"""How Kant follows owners: what their watches report, and what pods that name them are told."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from scheduling.kube.door import owners as door
from scheduling.kube.door.owners import KubeOwner, Owners, owner_facts
from scheduling.kube.door.watch import DEFAULT_TIMES
from scheduling.kube.seam import KubeError
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.pods import pod_translator

translate = pod_translator("kant")
DENIED = KubeError("Kant may not list jobs.batch", "grant it", code=403)


class Watch:
    """Stands in for a reflector: reports what a test tells it to."""

    made: list["Watch"] = []

    def __init__(self, client, kind, **told):
        self.kind, self.synced, self.told = kind, False, SimpleNamespace(**told)
        self.made.append(self)

    async def run(self):
        return

    def listed(self, *objects):
        for each in objects:
            self.told.seen(each)
        self.synced = True
        self.told.health(None)


@pytest.fixture
def followed(monkeypatch):
    """Return the owners, and what each pod, by name, was told about them."""
    monkeypatch.setattr(door, "Reflector", Watch)
    monkeypatch.setattr(door, "COMES_WITHIN_S", 0.0)
    monkeypatch.setattr(Watch, "made", [])
    told = {}

    def tell(pod):
        told.setdefault(pod.name, []).append(pod.plain and pod.plain.workload)

    def spawn(work):
        work.close()

    return Owners(None, DEFAULT_TIMES, tell, spawn), told


def job(pods=2, uid="u-1"):
    spec = {"completionMode": "Indexed", "parallelism": pods, "completions": pods}
    meta = {"name": "tune", "namespace": "ns", "uid": uid}
    return owner_facts(msgspec.convert({"metadata": meta, "spec": spec}, KubeOwner))


def pod(name="tune-0", uid="u-1", node=""):
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "tune", "uid": uid}
    raw = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"schedulerName": "kant", "containers": [{"name": "c"}], "nodeName": node},
        "status": {"phase": "Pending"},
    }
    return translate(msgspec.convert(raw, KubePod))


def reason(told, name="tune-0"):
    workload = told[name][-1]
    return workload.wait.reason if workload.wait else workload.size


def test_a_kind_is_watched_once_and_each_object_is_news_of_all_its_pods(followed):
    owners, told = followed
    for n in range(3):
        owners.seen(pod(f"tune-{n}"))
    [watch] = Watch.made
    assert watch.kind.path == "/apis/batch/v1/jobs"
    assert {reason(told, name) for name in told} == {"ReadingOwner"}
    watch.listed(job())
    assert {reason(told, name) for name in told} == {2}
    before = {name: len(all_) for name, all_ in told.items()}
    watch.told.seen(job())  # nothing relevant has changed
    assert {name: len(all_) for name, all_ in told.items()} == before
    watch.told.seen(job(3))
    assert {reason(told, name) for name in told} == {3}


def test_what_cannot_be_read_is_told_until_it_can(followed):
    owners, told = followed
    owners.seen(pod())
    [watch] = Watch.made
    watch.told.health(DENIED)
    assert reason(told) == "OwnerUnreadable"
    assert "may not list jobs.batch" in told["tune-0"][-1].wait.text
    assert not told["tune-0"][-1].wait.is_answer
    watch.listed(job())
    assert reason(told) == 2


def test_an_owner_that_is_missed_while_its_watch_fails_is_not_taken_for_gone(followed):
    owners, told = followed
    owners.seen(pod())
    [watch] = Watch.made
    watch.listed()
    assert reason(told) == "OwnerGone"
    watch.told.health(DENIED)
    assert reason(told) == "OwnerUnreadable"
    watch.told.health(None)
    assert reason(told) == "OwnerGone"


def test_what_was_read_stays_known_while_the_watch_fails(followed):
    owners, told = followed
    owners.seen(pod())
    [watch] = Watch.made
    watch.listed(job())
    watch.told.health(DENIED)
    assert reason(told) == 2


def test_an_owner_that_is_deleted_is_gone_at_once_and_one_of_its_name_is_another(
    followed, monkeypatch
):
    monkeypatch.setattr(door, "COMES_WITHIN_S", 3600.0)
    owners, told = followed
    owners.seen(pod())
    [watch] = Watch.made
    watch.listed(job())
    watch.told.gone(job())
    assert reason(told) == "OwnerGone"
    watch.told.seen(job(uid="u-2"))
    assert reason(told) == "OwnerGone"
    owners.seen(pod("new-0", uid="u-2"))
    assert reason(told, "new-0") == 2


def test_an_owner_may_be_seen_a_moment_after_its_pods(followed, monkeypatch):
    monkeypatch.setattr(door, "COMES_WITHIN_S", 0.05)
    owners, told = followed

    async def happens():
        owners.seen(pod())
        [watch] = Watch.made
        watch.listed()
        assert reason(told) == "ReadingOwner"
        await asyncio.sleep(0.4)
        assert reason(told) == "OwnerGone"

    asyncio.run(happens())


def test_nothing_is_kept_of_pods_that_wait_no_longer(followed):
    owners, told = followed
    owners.seen(pod())
    [watch] = Watch.made
    watch.listed(job())
    owners.seen(pod(node="n0"))
    assert told["tune-0"][-1] is None
    assert (owners._pods, owners._named, dict(owners._naming)) == ({}, {}, {})
    watch.told.seen(job(3))
    assert told["tune-0"][-1] is None
