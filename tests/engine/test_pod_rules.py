"""What pods say of other pods, against kube-scheduler's rules written pod by pod."""

import copy
import random
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.company import Company
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.memo import Memo
from scheduling.engine.placement import PlacementFailure, explain, place_job
from scheduling.engine.statement import Statement
from scheduling.engine.types import (
    Apart,
    Attached,
    GroupWish,
    HostPort,
    JobRequest,
    Near,
    NodeExpression,
    NodeRules,
    NodeWish,
    PodRules,
    PodSetSpec,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    Spread,
    TenantSpec,
)
from tests.cases import seeds
from tests.engine.scenario import node

HOST, ZONE = "host", "zone"
GROUPS = ("a", "b", "c")


def cluster(zones, gpus=4):
    """Nodes n0, n1, … with these zones; "" = without the label."""
    state = ClusterState()
    for number, zone in enumerate(zones):
        labels = {HOST: f"n{number}", **({ZONE: zone} if zone else {})}
        limits = {"disk": 2} if number % 2 else {}
        state.upsert_node(node(f"n{number}", gpus, labels=labels, attach_limits=limits))
    return state


def asks(name, rules, count=1, gpus=1, strategy="e-binpack", **more):
    pod_set = PodSetSpec("s", count, gpus, ("H100",), rules=rules, **more)
    return JobRequest(name, "t", 0.0, (pod_set,), strategy=strategy)


def place(state, job):
    """Place the job and commit; return None if it does not fit."""
    statement = Statement(state)
    found = place_job(statement, job, strategy="e-binpack")
    if isinstance(found, PlacementFailure):
        return None
    statement.commit()
    return [p.node for p in found]


# --- the oracle: pods are (node, rules) -----------------------------------------------------------
def allowed(nodes, pods, rules, name):
    """Whether kube-scheduler's filters allow one more pod with these rules on the node."""
    mine = nodes[name].labels

    def same(key, other):
        return key in mine and nodes[other].labels.get(key) == mine[key]

    for port in rules.ports:
        for other, theirs in pods:
            for taken in theirs.ports if other == name else ():
                alike = taken[:2] == port[:2]
                if alike and ("" in (taken.address, port.address) or taken == port):
                    return False
    if any(name in theirs.sole for name in rules.sole for _, theirs in pods):
        return False
    there = {volume for n, o in pods if n == name for volume in o.attached}
    new = set(rules.attached) - there
    if new and "disk" in nodes[name].attach_limits and len(there | new) > 2:
        return False
    if any(r.group in o.groups and same(r.key, n) for r in rules.apart for n, o in pods):
        return False
    if any(r.group in rules.groups and same(r.key, n) for n, o in pods for r in o.apart):
        return False
    if rules.near is not None:
        there = [n for n, o in pods if rules.near.group in o.groups]
        if not all(key in mine for key in rules.near.keys):
            return False
        counted = [k for k in rules.near.keys for n in there if k in nodes[n].labels]
        first = not counted and rules.near.group in rules.groups
        if not first and not all(any(same(k, n) for n in there) for k in rules.near.keys):
            return False
    keys = [s.key for s in rules.spread]
    for s in rules.spread:
        if s.key not in mine:
            return False
        eligible = [n for n in nodes.values() if all(k in n.labels for k in keys)]
        values = {n.labels[s.key]: 0 for n in eligible}
        for n, o in pods:
            if s.group in o.groups and nodes[n] in eligible:
                values[nodes[n].labels[s.key]] += 1
        least = min(values.values(), default=0) if len(values) >= s.min_domains else 0
        if values.get(mine[s.key], 0) + (s.group in rules.groups) - least > s.max_skew:
            return False
    return True


def any_rules(rng):
    def some(of, most=1):
        return tuple(of() for _ in range(rng.randint(0, most)))

    def key():
        return rng.choice((HOST, ZONE))

    def group():
        return rng.choice(GROUPS)

    return PodRules(
        groups=tuple(sorted(rng.sample(GROUPS, rng.randint(0, 2)))),
        ports=some(lambda: HostPort(rng.choice((80, 81)), "TCP", rng.choice(("", "10.0.0.1")))),
        apart=some(lambda: Apart(group(), key())),
        near=Near(group(), (key(),)) if rng.random() < 0.3 else None,
        spread=some(lambda: Spread(group(), key(), rng.randint(1, 2), rng.choice((1, 3))), 2),
        sole=some(lambda: rng.choice(("claim x", "claim y"))) if rng.random() < 0.3 else (),
        attached=tuple(Attached("disk", v) for v in rng.sample("vwxyz", rng.choice((0, 0, 1, 2)))),
    )


def of_another(rules):
    """Return what is known of a foreign pod."""
    return PodRules(rules.groups, rules.ports, sole=rules.sole, attached=rules.attached)


@pytest.mark.parametrize("seed", seeds(200, usual=40))
def test_a_pod_is_placed_exactly_where_the_rules_let_it(seed):
    rng = random.Random(seed)
    state = cluster([rng.choice(("", "x", "y", "z")) for _ in range(rng.randint(2, 7))])
    nodes = {n.name: n for n in state.facts}
    pods = []
    for number in range(40):
        rules = any_rules(rng)
        if rng.random() < 0.3:  # a foreign pod, which may break any rule
            where = rng.choice(list(nodes))
            rules = of_another(rules)
            state.upsert_other_pod(f"o{number}", where, 0, 0, 0, {}, rules)
            pods.append((where, rules))
            continue
        open_ = [
            n for n in nodes if allowed(nodes, pods, rules, n) and state.free[state.slot_of[n]]
        ]
        job = asks(f"j{number}", rules, strategy=rng.choice(("e-binpack", "spread", "native")))
        found = place(state, job)
        assert (found is None) == (not open_), (rules, pods)
        if found is None:
            said = explain(state, job, PlacementFailure(0))
            assert said.reason in ("FragmentedCapacity", "InsufficientGpus")
            continue
        assert found[0] in open_
        pods.append((found[0], rules))
        if rng.random() < 0.3:
            gone = rng.randrange(len(pods))
            held = [j for j in state._jobs if state.placements_of(j)[0].node == pods[gone][0]]
            match = [j for j in held if state.held_by(j)[0, 0].pod_set.rules == pods[gone][1]]
            if match:
                state.release_job(match[0])
                del pods[gone]


@pytest.mark.parametrize("seed", seeds(200, usual=40))
def test_pods_on_nodes_of_other_scopes_count_as_on_nodes_that_are_full(seed):
    """One scope knows all nodes, with those of other scopes full; the other scope only hears of
    these."""
    rng = random.Random(seed)
    zones = [rng.choice(("", "x", "y", "z")) for _ in range(rng.randint(3, 8))]
    whole, part = cluster(zones), cluster(zones)
    own = {n.name for n in whole.facts if rng.random() < 0.6} or {"n0"}
    for name, at in list(whole.slot_of.items()):
        if name not in own:
            full = whole.facts[at]
            part.neighbour(name, full)
            part.remove_node(name)
            whole.upsert_node(replace(full, schedulable=False))
    for number in range(30):
        rules = any_rules(rng)
        if rng.random() < 0.4:
            of = of_another(rules)
            where = rng.choice(list(whole.slot_of))
            for state in (whole, part):
                state.upsert_other_pod(f"o{number}", where, 0, 0, 0, {}, of)
        elif rng.random() < 0.2:
            name = rng.choice(sorted(set(whole.slot_of)))
            if name not in own:  # the node moves to this scope
                own.add(name)
                back = replace(whole.node(name), schedulable=True)
                whole.upsert_node(back)
                part.neighbour(name, None)
                part.upsert_node(back)
        count = rng.randint(1, 2)
        job = asks(f"j{number}", rules, count=count)
        found = place(whole, job)
        assert place(part, job) == found, rules
        assert place_job(Statement(part.copy()), job, strategy="spread") == place_job(
            Statement(whole.copy()), job, strategy="spread"
        )


@pytest.mark.parametrize("seed", seeds(200, usual=40))
def test_gangs_keep_the_rules_and_leave_nothing_behind(seed):
    rng = random.Random(seed)
    state = cluster([rng.choice("xyz") for _ in range(6)], gpus=2)
    nodes = {n.name: n for n in state.facts}
    pods = []
    for number in range(12):
        sets = tuple(
            PodSetSpec(f"s{i}", rng.randint(1, 3), 1, ("H100",), rules=any_rules(rng))
            for i in range(rng.randint(1, 2))
        )
        job = JobRequest(f"g{number}", "t", 0.0, sets)
        before = copy.copy(state.company)
        statement = Statement(state)
        found = place_job(statement, job, strategy=rng.choice(("e-binpack", "spread")))
        if isinstance(found, PlacementFailure):
            assert same(state.company, before)
            continue
        assert len(found) == job.pods
        # In the end each pod may be beside all others, except for rules that depend on which pod
        # came first.
        mine = [(p.node, sets[p.pod_set].rules) for p in found]
        for at, (name, rules) in enumerate(mine):
            others = pods + mine[:at] + mine[at + 1 :]
            assert allowed(nodes, others, rules._replace(spread=(), near=None), name), (mine, pods)
        if rng.random() < 0.4:
            statement.rollback()
            assert same(state.company, before)
            continue
        statement.commit()
        pods += mine
        assert same(copy.copy(state.company), state.company)


def same(one, other):
    names = ("members", "keepers", "ports", "sole", "volumes")
    full = lambda c: [{k: v for k, v in getattr(c, n).items() if v} for n in names]  # noqa: E731
    return full(one) == full(other)


def test_one_pod_a_node_and_no_more_than_there_are_nodes():
    rules = PodRules(("a",), apart=(Apart("a", HOST),))
    state = cluster("xxyy")
    assert place(state, asks("many", rules, count=5)) is None
    failure = place_job(Statement(state), asks("many", rules, count=5), strategy="e-binpack")
    told = explain(state, asks("many", rules, count=5), failure)
    assert "its rules about other pods leave no room for all of them" in told.summary
    assert sorted(place(state, asks("one", rules, count=4))) == ["n0", "n1", "n2", "n3"]
    late = asks("late", rules)
    told = explain(state, late, place_job(Statement(state), late, strategy="e-binpack"))
    assert (
        "exclude nodes with room for it: 4 nodes (apart from a by host), 4 nodes (kept"
        in told.summary
    )
    # Every member of the group must keep away, even one that has no rule itself.
    assert place(state, asks("of-it", PodRules(("a",)))) is None
    assert place(state, asks("other", PodRules(("b",)))) is not None


def test_what_one_pod_may_have_and_what_fits_to_a_node():
    claim = PodRules(sole=("volume claim data of namespace a (ReadWriteOncePod)",))
    state = cluster("xyz")
    assert place(state, asks("two", claim, count=2)) is None
    assert place(state, asks("one", claim)) is not None
    job = asks("late", claim)
    told = explain(state, job, place_job(Statement(state), job, strategy="e-binpack"))
    assert "another pod has volume claim data of namespace a (ReadWriteOncePod)" in told.summary
    state.release_job("one")
    state.upsert_other_pod("o", "of-another-shard", 0, 0, 0, {}, claim)
    assert place(state, job) is None
    state.remove_other_pod("o")
    assert place(state, job) is not None

    def disks(*names):
        return PodRules(attached=tuple(Attached("disk", name) for name in names))

    state = cluster("xx", gpus=8)  # n1 takes two volumes, n0 any number
    at_one = {"nodes": NodeRules({HOST: "n1"})}
    assert place(state, asks("three", disks("a", "b", "c"), **at_one)) is None
    assert place(state, asks("a-b", disks("a", "b"), **at_one)) == ["n1"]
    assert place(state, asks("shared", disks("a"), count=2, **at_one)) == ["n1", "n1"]
    job = asks("full", disks("c"), **at_one)
    told = explain(state, job, place_job(Statement(state), job, strategy="e-binpack"))
    assert "no more volumes of disk can be attached" in told.summary
    assert place(state, asks("elsewhere", disks("c", "d", "e"))) == ["n0"]
    state.upsert_node(replace(state.node("n1"), attach_limits={"disk": 3}))
    assert place(state, job) == ["n1"]


def test_a_gang_that_stays_together_goes_where_all_of_it_fits():
    rules = PodRules(("a",), near=Near("a", (ZONE,)))
    state = cluster("xyyy")
    found = place(state, asks("gang", rules, count=10))
    assert {state.node(n).labels[ZONE] for n in found} == {"y"}
    assert place(state, asks("more", rules, count=4)) is None  # only two more fit beside them
    assert len(place(state, asks("two", rules, count=2))) == 2


def test_who_waits_for_company_starts_when_it_comes():
    state = cluster("xy")
    beside = asks("beside", PodRules(near=Near("a", (ZONE,))))
    assert place(state, beside) is None
    version = state.version
    state.upsert_other_pod("o", "n1", 0, 0, 0, {}, PodRules(("a",)))
    assert state.version != version
    assert place(state, beside) == ["n1"]


def test_pods_are_spread_evenly_and_wait_for_more_domains():
    rules = PodRules(("a",), spread=(Spread("a", ZONE),))
    state = cluster("xxxy")
    found = place(state, asks("gang", rules, count=8))
    zones = [state.node(n).labels[ZONE] for n in found]
    assert (zones.count("x"), zones.count("y")) == (4, 4)
    assert place(state, asks("full", rules)) is not None  # one more in x
    assert place(state, asks("uneven", rules)) is None
    three = PodRules(("b",), spread=(Spread("b", ZONE, 1, 3),))
    assert place(state, asks("first", three)) is not None
    assert place(state, asks("second", three)) is None  # y full, x has one, no third zone


def test_what_is_liked_is_chosen_while_there_is_room():
    state = cluster("xyy")
    wish = NodeWish(10, (NodeExpression(ZONE, "In", ("y",)),))
    liked = PodRules(node_wishes=(wish,))
    assert place(state, asks("liked", liked, gpus=4)) == ["n1"]
    assert place(state, asks("liked-2", liked, gpus=4)) == ["n2"]
    assert place(state, asks("liked-3", liked, gpus=4)) == ["n0"]
    state = cluster("xyz")
    even = PodRules(("a",), evenly=(Spread("a", HOST),))
    assert sorted(place(state, asks("even", even, count=6))) == ["n0", "n0", "n1", "n1", "n2", "n2"]
    state = cluster("xyz")
    away = PodRules(("a",), wishes=(GroupWish(-5, "a", HOST),))
    assert sorted(place(state, asks("away", away, count=3))) == ["n0", "n1", "n2"]
    near = PodRules(wishes=(GroupWish(5, "a", ZONE),))
    state = cluster("xyz")
    place(state, asks("there", PodRules(("a",)), gpus=2))
    [there] = {p.node for p in state.placements_of("there")}
    assert place(state, asks("near", near)) == [there]


@pytest.mark.parametrize("seed", seeds(60, usual=6))
def test_cycles_remember_nothing_wrong_and_know_who_is_where(seed):
    rng = random.Random(seed)
    kinds = tuple(rng.sample(list(PreemptionKind), rng.randint(0, 3)))
    policy = Policy(queueing=rng.choice(list(QueueingPolicy)), preemption=kinds)
    state = SchedulerState(memo=Memo(check_share=1.0))
    nodes = [node(f"n{n}", 4, labels={HOST: f"n{n}", ZONE: "xyz"[n % 3]}) for n in range(6)]
    quotas = tuple(QuotaSpec(tenant, "H100", 12_000) for tenant in "ab")
    changes = [
        d.PolicyChanged(policy),
        d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), quotas),
    ]
    run_cycle(state, [*changes, *map(d.NodeChanged, nodes)], 0.0)
    for step in range(1, 25):
        changes = [d.JobEnded(job_id) for job_id in state.running if rng.random() < 0.15]
        for number in range(rng.randint(0, 3)):
            rules = any_rules(rng) if rng.random() < 0.7 else None
            pods = PodSetSpec("s", rng.randint(1, 3), rng.choice((1, 2, 4)), ("H100",), rules=rules)
            more = {"priority": rng.choice((0, 0, 5)), "gang": rng.random() < 0.7}
            job = JobRequest(f"{step}-{number}", rng.choice("ab"), step * 10.0, (pods,), **more)
            changes.append(d.JobSubmitted(job))
        if rng.random() < 0.3:
            rules = any_rules(rng)
            where = f"n{rng.randrange(6)}"
            other = d.OtherPodChanged(f"o{rng.randrange(3)}", where, rules=of_another(rules))
            changes.append(other)
        result = run_cycle(state, changes, step * 10.0)
        assert result.wrong == ()
        there = Company()
        for held in state.cluster._jobs.values():
            for placement, spec in held.values():
                if spec.rules is not None:
                    there.count(placement.node, spec.rules, 1)
        for other in state.cluster._others.values():
            there.count(other.node, other.rules, 1)
        assert same(there, state.cluster.company)
