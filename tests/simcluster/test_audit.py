"""The cluster's own record of the devices that pods hold."""

import msgspec
import pytest

from scheduling.simcluster.controllers import audit
from scheduling.simcluster.controllers.audit import Audit
from scheduling.simcluster.objects.journal import Journal
from scheduling.simcluster.objects.kinds import PODS
from scheduling.simcluster.objects.store import Store

from .harness import pod

GPU = {"nvidia.com/gpu": "1"}


class Life:
    """A store and its audit without a kubelet: only what the API accepted counts."""

    def __init__(self, directory):
        self.now = 100.0
        self.directory = directory
        self.open()

    def open(self):
        self.journal = Journal(self.directory)
        self.store = Store(self.journal)
        self.audit = Audit(self.directory, lambda: self.now)
        self.audit.start(self.store)

    def close(self):
        self.journal.close()
        self.audit.close()

    def bind(self, name, devices, milli="1000", limits=GPU, node="n1"):
        obj = pod(name)
        resources = {"limits": limits, "requests": limits}
        obj["spec"]["containers"][0]["resources"] = resources
        obj["spec"]["nodeName"] = node
        obj["metadata"] |= {
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": {"kant.io/job": "j"},
            "annotations": {"kant.io/devices": devices, "kant.io/milli": milli},
        }
        obj["status"] = {"phase": "Pending"}
        self.store.put("pods", f"default/{name}", obj)

    def phase(self, name, phase):
        obj = self.store.get(PODS.plural, f"default/{name}").decode()
        obj["status"]["phase"] = phase
        self.store.put("pods", f"default/{name}", obj)

    def report(self, **narrow):
        return msgspec.json.decode(msgspec.json.encode(self.audit.report(**narrow)))


@pytest.fixture
def life(tmp_path):
    life = Life(tmp_path)
    yield life
    life.close()


def test_a_holding_lasts_from_binding_to_end(life):
    life.bind("a", "[2]")
    life.now = 160.0
    assert life.report()["open"] == 1
    life.phase("a", "Succeeded")
    (held,) = life.report()["holdings"]
    assert held == {
        "pod": "default/a", "uid": "uid-a", "node": "n1", "devices": [2], "milli": 1000,
        "since": 100.0, "until": 160.0, "job": "j",
    }  # fmt: skip
    life.bind("b", "[2]")
    assert life.report()["double_holdings"] == []


def test_two_whole_pods_on_a_device_are_a_double_holding(life):
    life.bind("a", "[0, 1]", limits={"nvidia.com/gpu": "2"})
    life.now = 101.0
    life.bind("b", "[1]")
    life.bind("elsewhere", "[1]", node="n2")
    (double,) = life.report()["double_holdings"]
    assert double == {
        "node": "n1", "device": 1, "milli": 2000, "at": 101.0, "pods": ["default/a", "default/b"],
    }  # fmt: skip
    life.phase("b", "Failed")
    assert len(life.report()["double_holdings"]) == 1


def test_parts_count_together(life):
    part = {"kant.io/gpu-milli": "500"}
    life.bind("a", "[0]", "500", part)
    life.bind("b", "[0]", "500", part)
    assert life.report()["double_holdings"] == []
    life.bind("c", "[0]", "1", {"kant.io/gpu-milli": "1"})
    (double,) = life.report()["double_holdings"]
    assert double["milli"] == 1001


def test_a_deleted_pod_holds_until_it_is_gone(life):
    life.bind("a", "[0]")
    obj = life.store.get("pods", "default/a").decode()
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    life.store.put("pods", "default/a", obj)
    assert life.report()["open"] == 1
    life.store.remove("pods", "default/a", obj)
    assert life.report()["open"] == 0


def test_bad_annotations_and_pods_without_gpu(life):
    life.bind("cpu-only", "[0]", limits={"cpu": "1"})
    life.bind("odd", "everything")
    (held,) = life.report()["holdings"]
    assert held["pod"] == "default/odd"
    assert held["devices"] == []
    assert held["problem"]


def test_the_record_survives_a_crash(life):
    life.bind("a", "[0]")
    life.bind("b", "[0]")
    life.bind("gone", "[3]")
    life.phase("a", "Failed")
    before = life.report()
    life.close()
    path = life.directory / "audit"
    path.write_bytes(path.read_bytes() + b'hold {"pod":"cut o')
    life.now = 500.0
    life.open()
    assert life.report() == before
    life.bind("c", "[0]")
    assert len(life.report()["double_holdings"]) == 2
    assert [h["pod"] for h in life.report(pod="default/c")["holdings"]] == ["default/c"]
    assert life.report(node="n9")["holdings"] == []
    life.close()
    life.open()
    assert len(life.report()["double_holdings"]) == 2


def test_a_pod_that_vanished_while_away_is_released(life):
    life.bind("a", "[0]")
    obj = life.store.get("pods", "default/a").decode()
    life.store.listeners.clear()
    life.store.remove("pods", "default/a", obj)
    life.close()
    life.now = 300.0
    life.open()
    (held,) = life.report()["holdings"]
    assert held["until"] == 300.0


def test_of_holdings_that_are_over_only_the_last_are_kept(life, monkeypatch):
    monkeypatch.setattr(audit, "CLOSED", 3)
    life.close()
    life.open()
    life.bind("stays", "[0]")
    life.bind("too", "[0]")
    for n in range(20):
        life.bind(f"p{n}", "[1]")
        life.phase(f"p{n}", "Succeeded")
    path = life.directory / "audit"
    assert len(path.read_bytes().splitlines()) <= 4 * 3 + 2 + 1
    before = life.report()
    assert [h["pod"] for h in before["holdings"]] == [
        *(f"default/p{n}" for n in (17, 18, 19)),
        "default/stays",
        "default/too",
    ]
    assert len(before["double_holdings"]) == 1
    life.close()
    life.open()
    assert life.report() == before
