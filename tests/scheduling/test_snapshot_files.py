"""Snapshots of random clusters are read as written, and anonymised ones lead to the same
decisions."""

import json
import random
import string
from dataclasses import fields, is_dataclass, replace
from typing import get_type_hints

import pytest

from scheduling.engine import deltas as d
from scheduling.engine import types as t
from scheduling.engine.cluster.constraints import PASSING
from scheduling.queries.snapshots.anonymise import KINDS, _new_names, anonymised, renaming
from scheduling.queries.snapshots.decided import decide
from scheduling.queries.snapshots.document import (
    FACTS,
    Snapshot,
    SnapshotError,
    SnapshotScope,
    document_of,
    snapshot_of,
)
from tests.cases import seeds

NOW = 1_900_000_000.25


def decided(snapshot, rename=lambda _, name: name):
    """Return the decisions with names replaced, without sentences."""
    found = []
    for one in decide(snapshot):
        result = one.result

        def job(name):
            return rename("job", name) if name else name

        def pods(placements):
            return [(p._replace(node=rename("node", p.node))) for p in placements]

        found.append((
            [(job(s.job_id), pods(s.placements), s.borrowed) for s in result.started],
            sorted(map(job, result.quota_reserved)),
            [
                (job(w.job_id), w.verdict.reason, numbers(w.verdict.evidence))
                for w in (*result.waiting, *result.staying)
            ],
            [(job(p.job_id), p.pods, p.whole, job(p.by), p.kind, p.cost_gpu_s, p.examined)
             for p in result.preempted],
            [(job(r.job_id), r.start_at, [rename("node", n) for n in r.nodes])
             for r in result.reservations],
            [(job(b.job_id), b.since) for b in result.blocked],
            [(job(lost), *rest) for lost, *rest in result.lost],
            result.next_at, result.stats,
        ))  # fmt: skip
    return found


def numbers(evidence):
    return {name: value for name, value in evidence.items() if not isinstance(value, str)}


class Cluster:
    """A random cluster; its names carry no meaning and do not sort in order of creation."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.queues = [t.DEFAULT_QUEUE, self.name(), "a" + self.name(), "z" + self.name()]
        self.tenants = [self.name() for _ in range(4)]
        self.users = ["", *(self.name() for _ in range(3))]
        self.leaves = [self.name() for _ in range(3)]
        self.rack, self.size = self.name(), self.name()
        self.racks = [self.name() for _ in range(2)]
        self.groups = [self.name() for _ in range(2)]
        self.nodes = [self.node() for _ in range(7)]
        self.jobs: list[t.JobRequest] = []

    def name(self):
        letters = string.ascii_letters + string.digits + "-./é"
        return "".join(self.rng.choices(letters, k=self.rng.randint(1, 9))) + "q"

    def node(self):
        rng = self.rng
        model, gpus = rng.choice((("H100", 8), ("H100", 8), ("L4", 4)))
        taints = [t.Taint(self.rack, "x"), t.Taint("node.kubernetes.io/not-ready")]
        return t.Node(
            self.name(), model,
            tuple(t.Device(i, self.name(), i // 4, rng.random() > 0.03) for i in range(gpus)),
            topology=(rng.choice(self.leaves), "", ""),
            labels={self.rack: rng.choice(self.racks), self.size: str(rng.choice((-3, 12, 100)))},
            taints=(rng.choice(taints),) if rng.random() < 0.2 else (),
            cpu_milli=64_000, memory_mib=512_000, extended={self.rack + "/fpga": 2},
            schedulable=rng.random() > 0.05, out_of_service=self.name(),
        )  # fmt: skip

    def pod_set(self):
        rng = self.rng
        count = rng.choice((1, 1, 2, 4))
        affinity, rules, selector = (), None, {}
        if rng.random() < 0.3:
            word = rng.choice(("Gt", "Lt"))
            affinity = ((t.NodeExpression(self.size, word, (str(rng.choice((12, 50))),)),),)
        elif rng.random() < 0.2:
            one = rng.choice(self.nodes).name
            affinity = ((t.NodeExpression("metadata.name", "NotIn", (one,), True),),)
        if rng.random() < 0.2:
            selector = {self.rack: rng.choice(self.racks)}
        if rng.random() < 0.3:
            group = rng.choice(self.groups)
            rules = t.PodRules((group,), spread=(t.Spread(group, self.rack),))
        return t.PodSetSpec(
            self.name(), count, rng.choice((1, 2, 4, 8)),
            rng.choice((("H100",), ("L4", "H100"), ())),
            rules=rules,
            extended={self.rack + "/fpga": 1} if rng.random() < 0.1 else {},
            nodes=t.NodeRules(
                selector, affinity,
                (t.Toleration(self.rack, "Exists"),) if rng.random() < 0.3 else (),
            ),
            required_level="leaf" if count > 1 and rng.random() < 0.3 else "",
        )  # fmt: skip

    def job(self):
        rng = self.rng
        after = (rng.choice(self.jobs).id,) if self.jobs and rng.random() < 0.1 else ()
        made = t.JobRequest(
            self.name() + str(len(self.jobs)), rng.choice(self.tenants),
            NOW - rng.choice((60, 60, 60, 3600)), (self.pod_set(),), rng.choice((0, 0, 5)),
            declared_s=rng.choice((None, 600.0)), after=after, user=rng.choice(self.users),
            queue=rng.choice(self.queues), preemptible=rng.random() < 0.8,
        )  # fmt: skip
        self.jobs.append(made)
        return made

    def snapshot(self):
        rng = self.rng
        policy = t.Policy(
            rng.choice(list(t.QueueingPolicy)),
            preemption=tuple(k for k in t.PreemptionKind if rng.random() < 0.5),
            fair_share=rng.random() < 0.3, fair_users=True, backfill_after_s=60.0,
            strategies=dict.fromkeys(t.JobKind, rng.choice(("binpack", "e-binpack", "spread"))),
        )  # fmt: skip
        parents = {name: rng.choice((None, self.tenants[0])) for name in self.tenants[1:]}
        tenants = tuple(t.TenantSpec(x, parents.get(x)) for x in self.tenants)
        quotas = tuple(
            t.QuotaSpec(x, m, rng.choice((0, 8000, 24000)), rng.choice(list(t.Sharing)))
            for x in self.tenants
            for m in ("H100", "L4")
        )
        specs = tuple(
            t.QueueSpec(x, q, rank=rng.choice((0, 1)), max_milli=rng.choice(({}, {"H100": 8000})))
            for x in self.tenants
            for q in self.queues
        )
        facts = [
            d.PolicyChanged(policy),
            d.TenantsChanged(tenants, quotas, ((self.tenants[0], "H100", 2000.5, 0.0),)),
            d.QueuesChanged(specs),
            d.PastUse(tuple((x, u, "H100", 0.5) for x in self.tenants for u in self.users)),
            *map(d.NodeChanged, self.nodes),
            *self.neighbours(),
            d.OtherPodChanged(self.nodes[0].name + " 0", self.nodes[0].name, 1),
            *(self.running() if rng.random() < 0.5 else d.JobSubmitted(self.job())
              for _ in range(24)),
        ]  # fmt: skip
        return Snapshot(self.name(), NOW, (SnapshotScope("", tuple(facts)),))

    def neighbours(self):
        """Return nodes of other scopes, each with a pod in a group that job rules refer to."""
        for node in (self.node(), self.node()):
            yield d.NeighbourChanged(node.name, node)
            rules = t.PodRules((self.rng.choice(self.groups),))
            yield d.OtherPodChanged(node.name + " 0", node.name, rules=rules)
        yield d.NeighbourChanged(self.name(), None)

    def running(self):
        """Return a running job on some free GPUs."""
        job, free = self.job(), getattr(self, "free", None)
        if free is None:
            free = self.free = {n.name: list(range(len(n.devices))) for n in self.nodes[1:]}
        gpus, places = job.pod_sets[0].gpus, []
        for ordinal in range(job.pod_sets[0].count):
            node = next((name for name, left in free.items() if len(left) >= gpus), None)
            if node is None:
                return d.JobSubmitted(job)
            devices = tuple(free[node][:gpus])
            free[node] = free[node][gpus:]
            places.append(t.PodPlacement(0, ordinal, node, devices, 1000))
        return d.JobRestored(replace(job, after=()), tuple(places), NOW - 600.0)


@pytest.mark.parametrize("seed", seeds(60))
def test_what_was_written_is_read_and_without_names_the_same_is_decided(seed):
    snapshot = Cluster(seed).snapshot()
    text = json.dumps(document_of(snapshot))
    assert snapshot_of(text) == snapshot
    without = anonymised(snapshot)
    assert decided(without) == decided(snapshot, renaming(snapshot))
    said = json.dumps(document_of(without))
    assert snapshot_of(said) == without
    jobs = {fact.job for fact in snapshot.scopes[0].facts if hasattr(fact, "job")}
    for name in {name for job in jobs for name in (job.id, job.tenant, job.pod_sets[0].name)}:
        assert f'"{name}"' not in said


def test_new_names_stand_as_the_old_ones_did():
    rng = random.Random(7)
    for kind in ("value", "queue", "label", "node"):
        for _ in range(200):
            names = {
                "".join(rng.choices("0123456789ad-.+é~z", k=rng.randint(1, 4))) for _ in range(12)
            } | {"default", "node.kubernetes.io/x"}
            new = _new_names(kind, names)
            assert [new[name] for name in sorted(names)] == sorted(new.values())
            assert len(set(new.values())) == len(names)
            for name in names:
                assert new[name].startswith(PASSING) == name.startswith(PASSING) or kind != "label"


def test_every_name_of_every_fact_has_a_kind():
    """A new field with names must be anonymised or declared harmless before anybody publishes
    it."""
    seen, todo, missing = set(), list(FACTS.values()), []
    while todo:
        noun = todo.pop()
        if noun in seen:
            continue
        seen.add(noun)
        names = [f.name for f in fields(noun)] if is_dataclass(noun) else noun._fields
        for name in names:
            found = list(parts(get_type_hints(noun)[name]))
            todo += [one for one in found if is_dataclass(one) or hasattr(one, "_fields")]
            if str in found and name not in KINDS.get(noun, {}):
                missing.append((noun.__name__, name))
    assert missing == []


def parts(hint):
    if isinstance(hint, type):
        yield hint
    for part in getattr(hint, "__args__", ()):
        yield from parts(part)


GOOD = document_of(Cluster(1).snapshot())
FIRST_NODE = next(i for i, f in enumerate(GOOD["scopes"][0]["facts"]) if f["fact"] == "NodeChanged")


def spoilt(change):
    document = json.loads(json.dumps(GOOD))
    change(document, document["scopes"][0]["facts"])
    return json.dumps(document)


def put(where, name, value):
    where[name] = value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1, column 1: this is not valid JSON"),
        (json.dumps(GOOD)[:-40], "this is not valid JSON"),
        ("[]", "the file: must be an object"),
        ('{"a": NaN}', "NaN is no number of a snapshot"),
        ("[" * 100_000, "lists are nested too deeply"),
        ('{"format": "x"}', "format: must be “kant-snapshot”"),
        (spoilt(lambda s, _: put(s, "version", 2)), "version: is 2, but this Kant reads 1"),
        (spoilt(lambda s, _: put(s, "at", "now")), "at: expected `float`, got `str`"),
        (spoilt(lambda s, _: put(s, "scopes", [])), "scopes: is empty"),
        (spoilt(lambda s, _: put(s, "more", 1)), "more: is no field; known here: format"),
        (spoilt(lambda _, f: put(f, 3, 7)), "scopes[0].facts[3]: must be an object"),
        (spoilt(lambda _, f: put(f[0], "fact", "Rain")), "scopes[0].facts[0].fact: is \"Rain\""),
        (spoilt(lambda _, f: put(f[FIRST_NODE]["node"]["devices"][2], "index", "2")),
         f"facts[{FIRST_NODE}].node.devices[2].index: expected `int`, got `str`"),
        (spoilt(lambda _, f: put(f[FIRST_NODE]["node"], "colour", "red")),
         f"facts[{FIRST_NODE}].node.colour: is no field that this Kant knows"),
        (spoilt(lambda _, f: f[FIRST_NODE]["node"].pop("name")), "missing required field `name`"),
        (spoilt(lambda _, f: put(f[FIRST_NODE]["node"]["devices"][1], "index", 5)),
         "node.devices: their indexes must be 0, 1, 2 and so on"),
        (spoilt(lambda _, f: put(f[0]["policy"]["strategies"], "training", "magic")),
         "policy.strategies.training: is “magic”, and must be one of"),
        (spoilt(lambda _, f: f.pop(0)), "0 facts tell a policy, and one must"),
        (spoilt(lambda _, f: f.append(f[-1])), "stands in an earlier fact, too"),
        (spoilt(lambda _, f: f.append({"fact": "JobHistory", "job_id": "?"})),
         "job_id: no fact before it tells of job ?"),
        (spoilt(lambda _, f: put(f[-1]["job"], "pod_sets", [])), "job.pod_sets: must have one"),
        (spoilt(lambda _, f: put(f[-1]["job"]["pod_sets"][0], "count", 0)),
         "job.pod_sets[0].count: must be 1 or more"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named(text, told):
    with pytest.raises(SnapshotError) as error:
        snapshot_of(text)
    assert told in str(error.value)
