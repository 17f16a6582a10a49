"""The nodes and pods of a divided cluster that a session passes to its engine."""

import pytest
from msgspec.structs import replace

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.deltas import NodeChanged, NodeRemoved, OtherPodChanged, OtherPodRemoved
from scheduling.engine.states import JobState
from scheduling.engine.types import Device, JobRequest, Node, PodPlacement, PodSetSpec, Shard
from scheduling.kube.seam import DeletePod, EmitEvent, NodeFacts, PodFacts
from scheduling.kube.translate import manifests
from scheduling.models.jobs import PlacementState
from scheduling.session.memory.live import LiveJob, LivePod, Outbox, PodContent, PodRef
from scheduling.session.memory.nodes import Nodes
from scheduling.session.pods.follow import Lifecycle
from scheduling.session.pods.foreign import ForeignPods, LookedUp
from scheduling.session.pods.pod import name_of

BOUND = PlacementState.BOUND
CONTENTS = (PodContent("i", (), {}, {}),)
DEVICES = tuple(Device(i) for i in range(8))
SHARDS = (Shard("north", (), ("s0",)), Shard("south"))


def node(name, spine="s0", **facts):
    return NodeFacts(Node(name, topology=("", spine, ""), **facts), {}, "uid")


def pod(name, where, job="", phase="Running"):
    labels = {manifests.JOB: job, manifests.ATTEMPT: "1"} if job else {}
    if job:
        labels |= {manifests.POD_SET: "0", manifests.ORDINAL: "0"}
    return PodFacts(
        namespace="ns",
        name=name,
        uid=f"uid-{name}",
        node=where,
        phase=phase,
        owned=bool(job),
        deleting=False,
        gated=False,
        reason="",
        message="",
        exit_code=None,
        gpus=2,
        gpu_milli=0,
        cpu_milli=1,
        memory_mib=1,
        extended={"x.io/thing": 1},
        priority=0,
        started_at=None,
        finished_at=None,
        labels=labels,
        annotations={},
        resource_version="1",
    )


def told(out):
    deltas, out.deltas = out.deltas, []
    return deltas


def names(deltas, kind):
    return [d.node.name if kind is NodeChanged else d.name for d in deltas if isinstance(d, kind)]


# --- nodes ----------------------------------------------------------------------------------------
def test_the_engine_hears_of_own_nodes_only():
    out = Outbox()
    nodes = Nodes("north", SHARDS, out)
    for facts in (node("a"), node("b"), node("c", "s1")):
        nodes.seen(facts)
    assert told(out) == []
    assert nodes.unclaimed == {"a", "b"}  # until their rows say that they belong to north
    nodes.arrived({"a"})
    assert (names(told(out), NodeChanged), nodes.unclaimed) == (["a"], {"b"})
    nodes.seen(node("a", cpu_milli=5))
    nodes.seen(node("b", cpu_milli=5))
    assert names(told(out), NodeChanged) == ["a"]
    nodes.leave({"a"})
    nodes.seen(node("a", cpu_milli=6))
    deltas = told(out)
    assert (names(deltas, NodeRemoved), names(deltas, NodeChanged)) == (["a"], [])
    assert nodes.dirty == set()


def test_rows_are_written_of_what_the_engine_knows_and_where_it_differs():
    out, cluster = Outbox(), ClusterState()
    nodes = Nodes("north", SHARDS, out)
    nodes.follow(cluster)
    for facts in (node("a", devices=DEVICES), node("b", devices=DEVICES)):
        nodes.seen(facts)
    nodes.arrived({"a", "b"})

    def written():
        return [facts.node.name for facts in nodes.changed(cluster)]

    assert written() == []  # nothing is decided yet: a row may hold what the last scheduler knew
    for delta in told(out):
        cluster.upsert_node(delta.node)
    assert written() == ["a", "b"]
    assert written() == []
    job = JobRequest("j", "t", 0.0, (PodSetSpec("w", 1, 1, cpu_milli=1),))
    cluster.book(job, PodPlacement(0, 0, "a", (0,), 1000))
    assert (written(), written()) == (["a"], [])
    cluster.release("j", 0, 0)
    cluster.upsert_other_pod("o", "b", 0, 0, 0, {"x.io/thing": 1})
    assert (written(), written()) == (["a", "b"], [])
    cluster.upsert_other_pod("o", "b", 0, 0, 0, {"x.io/thing": 2})
    nodes.seen(node("a", devices=DEVICES, labels={"disk": "ssd"}))
    assert (written(), written()) == (["a", "b"], [])
    nodes.leave({"a"})
    assert written() == []
    nodes.arrived({"a"})
    assert written() == ["a"]  # written by the scope that had it meanwhile


def test_a_closed_node_takes_nothing_more_until_it_is_opened():
    out = Outbox()
    nodes = Nodes("north", SHARDS, out)
    nodes.seen(node("a"))
    nodes.arrived({"a"})
    told(out)
    nodes.close({"a", "unknown"})
    nodes.seen(node("a", cpu_milli=5))
    nodes.close({"a"})
    assert [d.node.schedulable for d in told(out)] == [False, False]
    nodes.close(())
    assert [d.node.schedulable for d in told(out)] == [True]


def test_a_node_that_leaves_the_cluster_is_kept_until_its_row_goes():
    out = Outbox()
    nodes = Nodes("north", SHARDS, out)
    nodes.seen(node("a"))
    nodes.arrived({"a", "long-gone"})
    assert nodes.gone == {"long-gone"}
    nodes.vanished("a")
    assert (nodes.mine, nodes.gone) == ({"a", "long-gone"}, {"a", "long-gone"})
    nodes.seen(node("a"))
    assert nodes.gone == {"long-gone"}
    nodes.deleted({"long-gone"})
    assert (nodes.mine, nodes.gone) == ({"a"}, set())


def test_a_node_whose_labels_changed_is_a_stranger():
    out = Outbox()
    nodes = Nodes("north", SHARDS, out)
    nodes.seen(node("a"))
    nodes.arrived({"a"})
    nodes.seen(node("a", "s1"))
    assert (nodes.strange, nodes.home("a")) == ({"a"}, "south")
    nodes.seen(node("a"))
    assert nodes.strange == set()


# --- pods -----------------------------------------------------------------------------------------
def test_pods_on_nodes_of_other_scopes_count_once_the_node_comes():
    out = Outbox()
    mine = {"a"}
    foreign = ForeignPods(mine)
    foreign.seen(pod("on-a", "a"), out)
    foreign.seen(pod("on-b", "b"), out)
    foreign.seen(pod("of-kant", "b", job="j"), out)
    foreign.seen(pod("over", "b"), out)
    foreign.seen(pod("over", "b", phase="Succeeded"), out)
    assert [d.uid for d in told(out)] == ["uid-on-a"]
    assert [d.uid for d in foreign.not_of_kant()] == ["uid-on-b"]
    mine.add("b")
    foreign.node_arrived("b", out)
    assert sorted(d.uid for d in told(out)) == ["uid-of-kant", "uid-on-b"]
    foreign.seen(pod("on-b", "b", phase="Failed"), out)
    foreign.gone("uid-of-kant", out)
    foreign.gone("uid-unknown", out)
    assert told(out) == [OtherPodRemoved("uid-on-b"), OtherPodRemoved("uid-of-kant")]


def test_a_pod_that_was_counted_is_followed_when_its_node_goes():
    out = Outbox()
    mine = {"a"}
    foreign = ForeignPods(mine)
    foreign.seen(pod("p", "a"), out)
    mine.discard("a")
    told(out)
    foreign.seen(pod("p", "a"), out)
    assert told(out) == [OtherPodChanged("uid-p", "a", 2, 1, 1, {"x.io/thing": 1})]
    foreign.gone("uid-p", out)
    assert told(out) == [OtherPodRemoved("uid-p")]


def test_only_what_is_left_over_of_own_jobs_is_deleted():
    out = Outbox()
    foreign = ForeignPods(set())
    for name in ("left", "theirs", "placed", "copy", "stray"):
        foreign.seen(pod(name, "a", job=f"job-of-{name}"), out)
    foreign.seen(pod("waits", "", job="job-of-waits"), out)
    foreign.seen(pod("not-of-kant", "a"), out)

    def look_up(pods):
        assert {uid: job for uid, (_, job) in pods.items()} == {
            facts.uid: f"job-of-{facts.name}" for facts, _ in pods.values()
        }
        return LookedUp({"uid-theirs"}, {"uid-left"}, {"uid-copy", "uid-waits"}, {"uid-stray"})

    foreign.delete_leftovers(look_up, out)
    deleted, *told_of = out.effects
    assert (type(deleted), deleted.name) == (DeletePod, "left")
    assert [(type(e), e.name, e.reason) for e in told_of] == [
        (EmitEvent, "waits", "NotOfAJob"),
        (EmitEvent, "stray", "UnknownJob"),
    ]
    assert "has no job job-of-stray" in told_of[1].note
    # A pod with a place that is unknown here is looked up until it is resolved.
    assert set(foreign.leftovers) == {"uid-placed"}
    foreign.seen(pod("placed", "a", job="job-of-placed", phase="Succeeded"), out)
    assert foreign.leftovers == {}
    foreign.delete_leftovers(lambda _: LookedUp(set(), set(), set(), set()), out)
    assert len(out.effects) == 3


# --- pods that hold something without having a place ----------------------------------------------
def counted(out):
    """Return the pods that the engine counts as other schedulers' pods."""
    uids = set()
    for delta in told(out):
        if isinstance(delta, OtherPodChanged):
            uids.add(delta.uid)
        elif isinstance(delta, OtherPodRemoved):
            uids.discard(delta.uid)
    return uids


def gang_of_two(*, plain):
    """Return a gang whose two pods are bound, according to the scheduler."""
    asks = JobRequest("j", "t", 0.0, (PodSetSpec("w", 2, 1),))
    job = LiveJob(asks, "g", CONTENTS, JobState.ADMITTED, 1, 1)
    job.namespace, life = "ns", Lifecycle()
    for i in range(2):
        name = f"p{i}" if plain else name_of(job, 1, 0, i)
        place = PodPlacement(0, i, f"n{i}", (0,), 1000)
        job.add(LivePod(place, 1, name, "H100", BOUND, row=i + 1, uid=f"uid-{name}"))
    if plain:
        job.plain = {key: PodRef(p.name, p.uid, {}) for key, p in job.pods.items()}
    life.know(job)
    return life, list(job.pods.values())


def facts_of(live, where, plain, **more):
    facts = replace(pod(live.name, where, "" if plain else "j"), owned=True, **more)
    labels = {**facts.labels, manifests.ORDINAL: str(live.key[1])} if facts.labels else {}
    return replace(facts, labels=labels)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "own"])
@pytest.mark.parametrize("end", ["Succeeded", "Failed", "gone"])
def test_what_took_the_place_of_a_pod_counts_until_it_ends(plain, end):
    """This is a plain pod that somebody else bound elsewhere, or a foreign pod with the name of one
    of Kant's pods. It ends while the job that lost it is still leaving and its other pod exists."""
    life, (first, _) = gang_of_two(plain=plain)
    theirs = facts_of(first, "n7", plain)
    theirs = theirs if plain else replace(theirs, uid="another")
    life.pod_seen(theirs, 0.0)
    assert life.leave.jobs
    assert counted(life.out) == {theirs.uid}
    if end == "gone":
        life.pod_gone(theirs, 1.0)
    else:
        life.pod_seen(replace(theirs, phase=end), 1.0)
    assert life.leave.jobs
    assert told(life.out) == [OtherPodRemoved(theirs.uid)]
    life.pod_gone(theirs, 2.0)
    assert told(life.out) == []
