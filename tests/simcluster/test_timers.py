"""Timers, taint evictions, expiry and orphans on a clock of their own."""

import pytest

from scheduling.simcluster.cluster import EmbeddedCluster, StateError
from scheduling.simcluster.controllers import expiry
from scheduling.simcluster.controllers.binding import bind
from scheduling.simcluster.controllers.evictions import tolerated_s
from scheduling.simcluster.controllers.kubelet import Delays
from scheduling.simcluster.objects.kinds import EVENTS, NODES, PODS
from scheduling.simcluster.objects.registry import DeleteOptions
from scheduling.simcluster.objects.timers import Timers

from .harness import FLEET, pod


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "fleet.yaml").write_text(FLEET)
    now = [1_000_000.0]
    cluster = EmbeddedCluster(
        tmp_path / "s", str(tmp_path / "fleet.yaml"), Delays(1, 2), lambda: now[0]
    )

    def advance(seconds):
        now[0] += seconds
        while cluster.timers.run_due():
            pass

    cluster.advance = advance
    yield cluster
    cluster.close()


def run(cluster, name, node="gpu-0000", **spec):
    cluster.registry.create(PODS, "default", pod(name, **spec))
    body = {"metadata": {"name": name}, "target": {"name": node}}
    bind(cluster.registry, "default", name, body, dry_run=False)


def phase(cluster, name):
    stored = cluster.store.get("pods", f"default/{name}")
    return stored.decode()["status"]["phase"] if stored else "gone"


def test_soon_acts_once_for_all_calls_before_it_and_again_for_one_during_it():
    now, done = [0.0], []
    timers = Timers(lambda: now[0])

    def act():
        done.append(now[0])
        if len(done) == 1:
            wake()  # its own actions create more work

    wake = timers.soon(0.5, act)
    for at in (0.0, 0.2, 0.4):
        now[0] = at
        wake()
        timers.run_due()
    for at in (0.5, 0.9, 1.0, 9.0):
        now[0] = at
        timers.run_due()
    assert done == [0.5, 1.0]


def test_timers_run_in_order_of_time():
    now, ran = [0.0], []
    timers = Timers(lambda: now[0])
    for due in (3, 1, 2, 1):
        timers.at(due, ran.append, due)
    assert timers.run_due() == 0
    now[0] = 2.0
    assert timers.run_due(limit=2) == 2
    assert timers.run_due() == 1
    assert ran == [1, 1, 2]


def test_a_pod_goes_through_its_life(cluster):
    run(cluster, "p", run=60)
    assert phase(cluster, "p") == "Pending"
    cluster.advance(1)
    assert phase(cluster, "p") == "Running"
    cluster.advance(59)
    assert phase(cluster, "p") == "Running"
    cluster.advance(1)
    assert phase(cluster, "p") == "Succeeded"


def test_a_short_grace_period_is_not_exceeded(cluster):
    run(cluster, "p")
    cluster.advance(1)
    cluster.registry.delete(PODS, "default", "p", DeleteOptions(grace_s=1))
    cluster.advance(0.5)
    assert phase(cluster, "p") == "Running"
    cluster.advance(0.5)
    assert phase(cluster, "p") == "gone"


def test_a_node_that_comes_back_takes_up_its_pods(cluster):
    def come():
        status = {"capacity": {"cpu": "4", "pods": "3"}}
        cluster.registry.create(NODES, "", {"metadata": {"name": "away"}, "status": status})

    come()
    for name, time in (("stops", None), ("ends", 5), ("stays", None)):
        run(cluster, name, "away", run=time, limits={"cpu": "1"})
    cluster.advance(1)
    cluster.registry.delete(NODES, "", "away", DeleteOptions())
    cluster.registry.delete(PODS, "default", "stops", DeleteOptions(grace_s=1))
    cluster.advance(20)
    assert {phase(cluster, name) for name in ("stops", "ends", "stays")} == {"Running"}
    come()
    cluster.advance(2)
    assert [phase(cluster, n) for n in ("stops", "ends", "stays")] == [
        "gone",
        "Succeeded",
        "Running",
    ]
    # Only what they held counts: the node then holds two pods of one CPU beside it.
    for name, expected in (("second", "Running"), ("third", "Running"), ("fourth", "Failed")):
        run(cluster, name, "away", limits={"cpu": "1"})
        cluster.advance(1)
        assert phase(cluster, name) == expected


def test_on_a_node_that_is_down_nothing_starts_or_ends(cluster):
    run(cluster, "ends", run=5)
    cluster.advance(1)
    cluster.faults.apply(cluster_fault("node-down"))
    run(cluster, "bound")
    cluster.advance(20)
    assert (phase(cluster, "ends"), phase(cluster, "bound")) == ("Running", "Pending")
    cluster.faults.apply(cluster_fault("node-up"))
    cluster.advance(1)
    assert (phase(cluster, "ends"), phase(cluster, "bound")) == ("Failed", "Running")


def test_pods_of_a_deleted_node_are_collected(cluster):
    run(cluster, "p")
    run(cluster, "nowhere", "absent")
    cluster.advance(1)
    cluster.registry.delete(NODES, "", "gpu-0000", DeleteOptions())
    cluster.advance(30)
    assert (phase(cluster, "p"), phase(cluster, "nowhere")) == ("Running", "Pending")
    cluster.advance(11)
    assert (phase(cluster, "p"), phase(cluster, "nowhere")) == ("gone", "gone")


def test_pods_leave_a_lost_node_after_their_toleration(cluster):
    run(cluster, "p")
    cluster.advance(1)
    cluster.faults.apply(cluster_fault("node-down"))
    cluster.advance(299)
    assert "deletionTimestamp" not in cluster.store.get("pods", "default/p").decode()["metadata"]
    cluster.advance(1)
    obj = cluster.store.get("pods", "default/p").decode()
    assert obj["metadata"]["deletionTimestamp"]
    assert obj["status"]["conditions"][-1]["reason"] == "DeletionByTaintManager"
    cluster.advance(1000)
    assert phase(cluster, "p") == "Running"  # nobody is there to confirm its end
    cluster.faults.apply(cluster_fault("node-up"))
    cluster.advance(1)
    assert phase(cluster, "p") == "gone"


def test_of_many_pods_that_have_ended_the_oldest_are_collected(cluster, monkeypatch):
    monkeypatch.setattr(expiry, "FINISHED_PODS", 3)
    for n in range(6):
        run(cluster, f"p{n}", run=0 if n != 1 else 60, node=f"gpu-000{n % 4}")
        cluster.advance(1)
    found = [phase(cluster, f"p{n}") for n in range(6)]
    assert found == ["Succeeded", "Running", *["Succeeded"] * 4]
    cluster.advance(20)
    found = [phase(cluster, f"p{n}") for n in range(6)]
    assert found == ["gone", "Running", "gone", *["Succeeded"] * 3]


def test_a_node_that_returns_in_time_keeps_its_new_pods(cluster):
    cluster.faults.apply(cluster_fault("node-down"))
    run(cluster, "p")
    cluster.advance(200)
    cluster.faults.apply(cluster_fault("node-up"))
    cluster.advance(400)
    assert phase(cluster, "p") == "Running"


def cluster_fault(kind):
    from scheduling.simcluster.faults import parse_fault

    return parse_fault(b'{"fault":"%b","node":"gpu-0000"}' % kind.encode())


TAINT = {"key": "k", "value": "v", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("tolerations", "stays"),
    [
        ([], 0.0),
        ([{"key": "k", "operator": "Exists"}], None),
        ([{"operator": "Exists"}], None),
        ([{"key": "k", "value": "v", "effect": "NoExecute"}], None),
        ([{"key": "k", "value": "w"}], 0.0),
        ([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}], 0.0),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 7}], 7.0),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": -1}], 0.0),
        (
            [
                {"key": "k", "operator": "Exists", "tolerationSeconds": 9},
                {"operator": "Exists", "tolerationSeconds": 5},
            ],
            5.0,
        ),
    ],
)
def test_how_long_a_taint_is_borne(tolerations, stays):
    assert tolerated_s([TAINT], {"tolerations": tolerations}) == stays


def test_events_expire(cluster):
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
    cluster.registry.create(EVENTS, "default", event)
    cluster.advance(3500)
    assert cluster.store.get("events", "default/e")
    cluster.advance(600)
    assert cluster.store.get("events", "default/e") is None


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be written"):
        EmbeddedCluster(tmp_path / "file" / "state", "demo", Delays())
