"""Mounted claims restrict placement: one pod only, a number of volumes per node, room for new
volumes."""

from types import SimpleNamespace

import msgspec
import pytest

from scheduling.engine.deltas import OtherPodChanged, OtherPodRemoved
from scheduling.engine.types import Attached, NodeExpression, PodRules
from scheduling.engine.verdict import Reason, Verdict
from scheduling.kube.door.storage import (
    capacity_facts,
    claim_facts,
    csi_driver_facts,
    csi_node_facts,
    storage_class_facts,
    volume_facts,
)
from scheduling.kube.translate.objects import (
    KubeCapacity,
    KubeClaim,
    KubeCsiDriver,
    KubeCsiNode,
    KubePod,
    KubeStorageClass,
    KubeVolume,
)
from scheduling.kube.translate.pods import pod_translator
from scheduling.session.pods.follow import Lifecycle

DISK = "disk.example.com"
SOLE = ("volume claim data of namespace home (ReadWriteOncePod)",)


def read(kind, facts_of, name, **fields):
    """Return facts of an object whose uid is its name."""
    meta = {"name": name, "uid": name, "namespace": fields.pop("namespace", "home")}
    raw = msgspec.json.encode({"metadata": meta, **fields})
    return facts_of(msgspec.json.decode(raw, type=kind))


def claim(name="data", mode="ReadWriteOnce", volume="", of="fast", size="10Gi"):
    asked = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
    spec = {**asked, "volumeName": volume, "storageClassName": of}
    phase = {"phase": "Bound" if volume else "Pending"}
    return read(KubeClaim, claim_facts, name, spec=spec, status=phase)


def volume(name, **source):
    source = source or {"csi": {"driver": DISK, "volumeHandle": f"handle-{name}"}}
    return read(KubeVolume, volume_facts, name, spec=source)


def of_class(provisioner=DISK):
    late = {"volumeBindingMode": "WaitForFirstConsumer"}
    return read(KubeStorageClass, storage_class_facts, "fast", provisioner=provisioner, **late)


def limits(node="n1", count=2, driver=DISK):
    drivers = [{"name": driver, "nodeID": "i", "allocatable": {"count": count}}, {"name": "free"}]
    return read(KubeCsiNode, csi_node_facts, node, spec={"drivers": drivers})


def driver(*, tells=True):
    return read(KubeCsiDriver, csi_driver_facts, DISK, spec={"storageCapacity": tells})


def capacity(name, nodes, of="fast", **sizes):
    more = {"nodeTopology": nodes} if nodes is not None else {}
    return read(KubeCapacity, capacity_facts, name, storageClassName=of, **more, **sizes)


def pod(name="p", claims=("data",), scheduler="another", node="n1"):
    volumes = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in claims]
    volumes += [{"name": "tmp", "emptyDir": {}}, {"name": "own", "ephemeral": {}}]
    spec = {"schedulerName": scheduler, "nodeName": node, "volumes": volumes}
    meta = {"name": name, "uid": name, "namespace": "home"}
    raw = msgspec.json.encode({"metadata": meta, "spec": spec})
    return pod_translator("kant")(msgspec.json.decode(raw, type=KubePod))


def life(*facts):
    made = Lifecycle(lambda node: False)
    for each in facts:
        made.volumes.storage.seen(each)
    return made


def rules(made, claims=("data",)):
    return made.volumes.storage.with_mounts(None, "home", claims)


def test_names_of_the_claims_of_a_pod():
    assert pod("p", ("b", "a")).claims == ("a", "b", "p-own")
    assert pod(node="").claims == ()
    assert pod(node="", scheduler="kant").claims == ("data", "p-own")


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"])
def test_no_rule_where_there_is_no_limit(mode):
    assert rules(life(claim(mode=mode, volume="v"), volume("v"), of_class())) is None
    assert rules(life(claim(mode=mode, volume="v"), volume("v"), limits(driver="other"))) is None
    assert rules(life(limits())) is None


def test_a_claim_of_one_pod():
    assert rules(life(claim(mode="ReadWriteOncePod"))).sole == SOLE


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ([claim(volume="v"), volume("v")], "handle-v"),
        ([claim(), of_class()], "home/data"),
        ([claim(volume="v")], None),
        ([claim(volume="v"), volume("v", nfs={"server": "s"})], None),
        ([claim(of="other")], None),
    ],
)
def test_what_is_attached_by_a_claim(facts, what):
    found = rules(life(*facts, limits()))
    assert (found and found.attached) == (what and (Attached(DISK, what),))


def test_volumes_of_kinds_that_drivers_have_taken_over():
    ebs = "ebs.csi.aws.com"
    made = life(
        claim("a", volume="v"),
        volume("v", awsElasticBlockStore={"volumeID": "vol-1"}),
        claim("b"),
        of_class("kubernetes.io/aws-ebs"),
        limits(driver=ebs),
    )
    assert rules(made, "ab").attached == (Attached(ebs, "home/b"), Attached(ebs, "vol-1"))


def test_pods_of_others_are_told_anew_when_their_mounts_mean_something_else():
    made = life(claim(), claim("x", volume="v"), volume("v"), of_class())
    for each in (pod("p"), pod("q", ("x",)), pod("mine", scheduler="kant")):
        made.foreign.seen(each, made.out)

    def told(*facts):
        made.volumes.judged()
        del made.out.deltas[:]
        for each in facts:
            made.volumes.storage.seen(each)
        made.volumes.judged()
        return {c.uid: c.rules and (c.rules.sole, c.rules.attached) for c in made.out.deltas}

    new, old = (Attached(DISK, "home/data"),), (Attached(DISK, "handle-v"),)
    assert told(limits()) == {"p": ((), new), "q": ((), old), "mine": ((), new)}
    assert told(limits("n2")) == {}
    bound = (Attached(DISK, "handle-w"),)
    assert told(volume("w"), claim(volume="w")) == {"p": ((), bound), "mine": ((), bound)}
    assert told(claim(volume="w", mode="ReadWriteOncePod"))["p"] == (SOLE, bound)
    made.volumes.storage.gone(limits())
    assert told() == {}
    assert made.volumes.storage.changed_limits == {"n1", "n2"}
    made.volumes.storage.gone(limits("n2"))
    made.volumes.judged()
    assert {c.uid: c.rules and c.rules.attached for c in made.out.deltas}["q"] is None
    made.foreign.gone("p", made.out)
    made.foreign.gone("mine", made.out)
    assert told(claim(volume="v")) == {}


def test_a_claim_of_one_pod_is_taken_by_a_pod_of_another_scope():
    made, mine = life(claim()), {"n2"}
    made.foreign.mine = mine

    def told(*seen, gone=()):
        del made.out.deltas[:]
        for each in seen:
            made.foreign.seen(each, made.out)
        for uid in gone:
            made.foreign.gone(uid, made.out)
        made.volumes.judged()
        return made.out.deltas

    assert told(pod("p"), pod("q", ())) == []
    made.volumes.storage.seen(claim(mode="ReadWriteOncePod"))
    taken = OtherPodChanged("p", "n1", rules=PodRules(sole=SOLE))
    assert told() == [taken]
    assert told(pod("p")) == []
    assert told(gone=["p", "q"]) == [OtherPodRemoved("p")]
    assert told(pod("p")) == [taken]
    mine.add("n1")
    made.foreign.node_arrived("n1", made.out)
    assert told(gone=["p"]) == [OtherPodRemoved("p")]


# --- room for new volumes -------------------------------------------------------------------------
AT_A, AT_B = {"matchLabels": {"node": "a"}}, {"matchLabels": {"node": "b"}}
ZONED = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x", "y"]}]}
TWO = {"matchLabels": {"node": "c", "zone": "x"}}
BY_NODE = NodeExpression("node", "In", ("a", "b"))


@pytest.mark.parametrize(
    ("capacities", "terms"),
    [
        ([("a", AT_A, "10Gi"), ("b", AT_B, "1Ti")], ((BY_NODE,),)),
        ([("a", AT_A, "10Gi"), ("b", AT_B, "9Gi")], ((BY_NODE._replace(values=("a",)),),)),
        ([("a", ZONED, "10Gi")], ((NodeExpression("zone", "In", ("x", "y")),),)),
        (
            [("a", TWO, "10Gi")],
            ((NodeExpression("node", "In", ("c",)), NodeExpression("zone", "In", ("x",))),),
        ),
        ([("a", {}, "10Gi"), ("b", AT_B, "1Gi")], None),
        ([("a", None, "10Gi")], ()),
        ([("a", AT_A, "9Gi")], ()),
        ([], ()),
    ],
)
def test_where_a_volume_can_be_made(capacities, terms):
    found = [capacity(name, nodes, capacity=size) for name, nodes, size in capacities]
    other = capacity("other", AT_B, of="slow", capacity="1Ti")
    need = life(claim(), of_class(), driver(), other, *found).volumes.storage.need("home", "data")
    if terms == ():
        text = "Volume claim data is not bound, and storage class fast has 10 GiB on no node."
        assert need.hold.text == text
    else:
        assert (need.hold, need.affinity) == (None, (terms,) if terms else ())


def test_the_largest_volume_counts_where_it_is_told():
    few = capacity("a", AT_A, capacity="1Ti", maximumVolumeSize="1Gi")
    assert life(claim(), of_class(), driver(), few).volumes.storage.need("home", "data").hold


def test_a_driver_that_does_not_tell_where_there_is_room_is_asked_for_volumes_anywhere():
    few = capacity("a", AT_A, capacity="1Gi")
    for facts in ([], [driver(tells=False)]):
        need = life(claim(), of_class(), few, *facts).volumes.storage.need("home", "data")
        assert (need.hold, need.affinity) == (None, ())


def test_nothing_is_judged_again_for_room_that_no_claim_waits_for():
    made = life(claim(volume="v"), of_class(), driver())
    before = made.volumes.storage.version
    made.volumes.storage.seen(capacity("a", AT_A, capacity="1Gi"))
    made.volumes.storage.seen(limits(driver="other"))
    made.volumes.storage.seen(limits("n2", driver="other"))
    assert made.volumes.storage.version == before + 1  # the first node of a driver that has a limit
    made.volumes.storage.seen(claim("late"))
    before = made.volumes.storage.version
    made.volumes.storage.gone(capacity("a", AT_A, capacity="1Gi"))
    assert made.volumes.storage.version > before


@pytest.mark.parametrize("reason", [Reason.WAITING_FOR_NODES, Reason.INSUFFICIENT_GPUS])
def test_who_waits_for_nodes_is_told_which_the_volumes_leave(reason):
    """An autoscaler may add nodes other than these."""
    note = "Volume claim data is only for nodes with zone in a."
    job = SimpleNamespace(held=False, pod_hold="", volume_hold=None, node_note=note)
    told = Lifecycle().volumes.verdict_on(job, Verdict(reason, "It waits."))
    assert (told.reason, told.summary) == (reason, f"It waits. {note}")
