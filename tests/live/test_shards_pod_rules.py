"""Rules about other pods count the pods on nodes of other shards too."""

from collections import Counter

import pytest

from scheduling.kube.seam import PodSeen
from scheduling.models import Job
from scheduling.session import changes
from tests.live.plain_pods import REQUIRED, condition, make, node_of, path, pod_of, ungate
from tests.live.shards import NORTH, SOUTH, divide, nodes_by_scope, of_two_spines

pytestmark = pytest.mark.live
SPINE = "network.topology.nvidia.com/spine"
CORE, HOST = "network.topology.nvidia.com/core", "kubernetes.io/hostname"
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": SPINE}
MINE = {"kant.io/tenant": "team", "app": "web"}


@pytest.fixture
def inventory(tmp_path):
    return of_two_spines(tmp_path)


@pytest.fixture
def divided(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    divide(world)
    world.drive(lambda: len(world.scheduler.led) == 3)
    world.drive(lambda: len(nodes_by_scope()) == 2)
    return world


def placed(world, name, **spec):
    """Return the scope on whose node the new pod is placed."""
    make(world, name, gpus=1, **spec)
    return scope_of_pod(world, name)


def scope_of_pod(world, name):
    world.drive(lambda: node_of(world, name))
    return next(scope for scope, names in nodes_by_scope().items() if node_of(world, name) in names)


def test_pods_are_spread_over_domains_of_several_shards(divided):
    evenly = [WEB | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    spec = {"labels": MINE, "topologySpreadConstraints": evenly}
    scopes = Counter(placed(divided, f"web-{n}", **spec) for n in range(6))
    assert sorted(scopes.values()) == [3, 3]
    # Two pods of one shard go: the next two are placed there, whatever room the others have.
    here = scope_of_pod(divided, "web-0")
    gone = [f"web-{n}" for n in range(6) if scope_of_pod(divided, f"web-{n}") == here][:2]
    for name in gone:
        divided.call("DELETE", path(name))
        divided.drive(lambda name=name: pod_of(divided, name) is None)
    assert {placed(divided, f"new-{n}", **spec) for n in range(2)} == {here}


def test_a_pod_follows_another_one_into_its_shard_also_when_that_comes_later(divided):
    scopes = nodes_by_scope()
    nodes = [min(names) for names in scopes.values()]
    beside = {"affinity": {"podAffinity": {REQUIRED: [WEB]}}}
    for number, node in enumerate(nodes):
        make(divided, f"follows-{number}", gpus=1, **beside)
        make(divided, f"leads-{number}", gpus=1, labels=MINE, nodeSelector={HOST: node})
        scope = scope_of_pod(divided, f"leads-{number}")
        assert scope_of_pod(divided, f"follows-{number}") == scope
        assert placed(divided, f"joins-{number}", **beside) == scope
        for name in (f"leads-{number}", f"follows-{number}", f"joins-{number}"):
            divided.call("DELETE", path(name))
            divided.drive(lambda name=name: pod_of(divided, name) is None)


@pytest.mark.parametrize("first", [NORTH, SOUTH])
def test_two_shards_that_decide_at_once_keep_the_rules_between_them(divided, monkeypatch, first):
    """Each pod may use one node only, each in another shard, and no second pod may be in its
    core."""
    scopes = nodes_by_scope()
    lead = divided.scheduler._scopes_to_lead
    order = {first: 0}  # the scope whose pass comes first
    monkeypatch.setattr(
        divided.scheduler,
        "_scopes_to_lead",
        lambda cluster: sorted(lead(cluster), key=lambda scope: order.get(scope, 1)),
    )
    apart = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": CORE}
    for number in range(4):
        names = [f"{scope}-{number}" for scope in (NORTH, SOUTH)]
        for name, scope in zip(names, (NORTH, SOUTH), strict=True):
            make(
                divided,
                name,
                gpus=1,
                labels=MINE,
                nodeSelector={HOST: min(scopes[scope])},
                affinity={"podAntiAffinity": {REQUIRED: [apart]}},
            )
        divided.drive(lambda names=names: any(node_of(divided, name) for name in names))
        waits = next(name for name in names if not node_of(divided, name))
        divided.drive(lambda waits=waits: (condition(divided, waits) or ("",) * 3)[2])
        assert not all(node_of(divided, name) for name in names)
        # The other one is placed when its place is free.
        gone = next(name for name in names if name != waits)
        divided.call("DELETE", path(gone))
        divided.drive(lambda waits=waits: node_of(divided, waits))
        divided.call("DELETE", path(waits))
        for name in names:
            divided.drive(lambda name=name: pod_of(divided, name) is None)


class LateNews:
    """Let the session of a scope hear of a pod only after the pass."""

    def __init__(self, session, monkeypatch, name):
        self.name, self.kept = name, []
        self.take = session.gateway.drain
        monkeypatch.setattr(session.gateway, "drain", self.drain)

    def drain(self):
        found = [*self.kept, *self.take()]
        self.kept = [n for n in found if isinstance(n, PodSeen) and n.pod.name == self.name]
        return [news for news in found if news not in self.kept]

    def end(self):
        self.name = ""


@pytest.mark.parametrize("first", [NORTH, SOUTH])
def test_a_shard_that_has_not_heard_of_a_pod_keeps_its_rules(divided, monkeypatch, first):
    """Pods whose rules the shard does not know wait there. Meanwhile another shard places a pod
    that one of them must not be near."""
    scopes, other = nodes_by_scope(), SOUTH if first == NORTH else NORTH
    spots = {"web": min(scopes[other]), "far": max(scopes[other])}
    ids = {
        name: make(
            divided,
            name,
            gpus=1,
            labels=MINE if name == "web" else None,
            nodeSelector={HOST: spot},
            schedulingGates=[{"name": "example.com/later"}],
        )
        for name, spot in spots.items()
    }
    divided.drive(lambda: Job.objects.filter(pk__in=ids.values(), scope=other).count() == 2)
    session = divided.scheduler.led[divided.cluster.pk, other].session
    news = LateNews(session, monkeypatch, "alone")
    apart = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": CORE}
    spec = {"affinity": {"podAntiAffinity": {REQUIRED: [apart]}}}
    make(divided, "alone", gpus=1, nodeSelector={HOST: min(scopes[first])}, **spec)
    assert scope_of_pod(divided, "alone") == first
    for name in spots:
        ungate(divided, name)
    divided.drive(lambda: Job.objects.get(pk=ids["far"]).reason == "BackingOff")
    assert node_of(divided, "web") is node_of(divided, "far") is None
    news.end()
    divided.drive(lambda: node_of(divided, "far"))
    divided.drive(lambda: CORE in (condition(divided, "web") or ("",) * 3)[2])
    assert node_of(divided, "web") is None
    divided.call("DELETE", path("alone"))
    divided.drive(lambda: node_of(divided, "web"))
