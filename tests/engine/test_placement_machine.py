"""The index and the naive reference decide alike on random clusters and random histories."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduling.engine.cluster.cluster import REGISTRY, ClusterState
from scheduling.engine.cluster.columns import COLUMNS, OtherPod
from scheduling.engine.cluster.index import index_of
from scheduling.engine.placement import PlacementFailure, explain, place_job
from scheduling.engine.placement.request import shares_leaves
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.placement.strategies.gradient import ClusterGradient
from scheduling.engine.statement import Statement
from scheduling.engine.types import (
    DEFAULT_LEVELS,
    Device,
    JobKind,
    JobRequest,
    Nic,
    Node,
    NodeExpression,
    NodeRules,
    PodSetSpec,
    Taint,
    Toleration,
)
from tests.cases import examples
from tests.engine.reference import place_one_set
from tests.engine.reference_cluster import Cluster

# The gradient remembers what was typical when it learned; a check of its own rules follows below.
COMPARED = sorted(set(STRATEGIES) - {"fragmentation"})
NO_HDD = ((NodeExpression("disk", "NotIn", ("hdd",)),),)
TOLERATES_ALL = (Toleration("", "Exists"),)
LEVEL_NAMES = ("", "", "", "leaf", "spine", "superspine", "hyper-node")


@st.composite
def nodes(draw, name):
    size = draw(st.sampled_from((1, 2, 4, 8, 8, 8, 16, 112)))
    bad = draw(st.sets(st.integers(0, size - 1), max_size=2)) if draw(st.booleans()) else ()
    leaf = draw(st.integers(0, 3))
    known = draw(st.sampled_from((True, True, True, False)))
    nics = draw(st.integers(0, min(size, 16)))
    # NICs not advertised, of one resource, or with one resource per rail.
    rails = draw(st.sampled_from(((), ("rdma/a",), ("rdma/a", "rdma/b"))))
    memory = draw(st.sampled_from((24_576, 40_000, 80_000)))
    return Node(
        name,
        gpu_model=draw(st.sampled_from(("A100", "A100", "H800"))),
        devices=tuple(
            Device(i, numa=2 * i // size, healthy=i not in bad, memory_mib=memory)
            for i in range(size)
        ),
        nics=tuple(
            Nic(
                i,
                numa=2 * i // max(nics, 1),
                healthy=draw(st.booleans()),
                resource=rails[i % len(rails)] if rails else "",
            )
            for i in range(nics)
        ),
        topology=(f"l{leaf}", f"s{leaf // 2}", "c0") if known else ("", f"s{leaf // 2}", ""),
        hyper_node=draw(st.sampled_from(("", "", "h0", "h1"))),
        labels={"disk": draw(st.sampled_from(("ssd", "hdd")))},
        taints=draw(
            st.sampled_from(((), (), (Taint("team", "a"),), (Taint("x", "y", "NoExecute"),)))
        ),
        cpu_milli=draw(st.sampled_from((8_000, 64_000))),
        memory_mib=draw(st.sampled_from((16_000, 512_000))),
        max_pods=draw(st.sampled_from((3, 110))),
        extended={"fpga": draw(st.integers(0, 2))}
        | {name: draw(st.integers(max(nics - 1, 0), nics)) for name in rails},
        schedulable=draw(st.sampled_from((True, True, True, True, False))),
        zone=draw(st.sampled_from(("", "", "inference"))),
        gives_shares=draw(st.sampled_from((True, True, False))),
        unnamed_unhealthy=draw(st.sampled_from((0, 0, 0, 1, 2))),
    )


@st.composite
def pod_sets(draw):
    shape = draw(st.sampled_from(("whole", "whole", "whole", "share", "memory", "none")))
    gpus = {"whole": draw(st.sampled_from((1, 1, 2, 3, 4, 8))), "none": 0}.get(shape, 1)
    count = draw(st.integers(1, 6))
    required = draw(st.sampled_from(LEVEL_NAMES))
    slices = required and draw(st.booleans())
    slice_size = draw(st.sampled_from([n for n in (1, 2, 3) if count % n == 0])) if slices else 0
    return PodSetSpec(
        "pods",
        count,
        gpus,
        gpu_models=draw(st.sampled_from(((), ("A100",), ("H800", "A100")))),
        gpu_milli=draw(st.sampled_from((100, 300, 500, 700))) if shape == "share" else 1000,
        gpu_memory_mib=draw(st.sampled_from((8_192, 10_000, 50_000))) if shape == "memory" else 0,
        cpu_milli=draw(st.sampled_from((0, 1_000, 3_000))) if shape != "none" else 1_000,
        memory_mib=draw(st.sampled_from((0, 4_000))),
        nics=draw(st.sampled_from((0, 0, 0, 1, 2))) if gpus else 0,
        extended=draw(st.sampled_from(({}, {}, {"fpga": 1}, {"rdma/a": 1}))),
        min_count=draw(st.one_of(st.none(), st.integers(1, count))) if slice_size < 2 else None,
        nodes=NodeRules(
            draw(st.sampled_from(({}, {}, {"disk": "ssd"}))),
            draw(st.sampled_from(((), (), NO_HDD))),
            draw(st.sampled_from(((), (Toleration("team", "Equal", "a"),), TOLERATES_ALL))),
        ),
        required_level=required,
        preferred_level="" if required else draw(st.sampled_from(LEVEL_NAMES)),
        max_per_node=draw(st.sampled_from((None, None, 1, 2))),
        max_per_leaf=draw(st.sampled_from((None, None, 1, 3))),
        slice_size=slice_size,
        balance_level=draw(st.sampled_from(("", "", "", "leaf", "spine", "hyper-node"))),
    )


class Placement(RuleBasedStateMachine):
    @initialize(data=st.data(), count=st.integers(1, 8))
    def start(self, data, count):
        self.state = ClusterState(DEFAULT_LEVELS)
        self.naive = Cluster(DEFAULT_LEVELS)
        self.jobs = {}
        self.serial = 0
        for i in range(count):
            self.upsert(data.draw(nodes(f"n{i}")))

    def upsert(self, node):
        self.state.upsert_node(node)
        self.naive.upsert_node(node)

    @rule(data=st.data(), pod_set=pod_sets(), how=st.sampled_from(COMPARED))
    def submit(self, data, pod_set, how):
        self.serial += 1
        job = JobRequest(
            f"j{self.serial}",
            "t",
            0.0,
            (pod_set,),
            gang=data.draw(st.booleans()),
            kind=data.draw(st.sampled_from(JobKind)),
            declared_s=data.draw(st.sampled_from((None, 60.0, 3_600.0, 86_400.0))),
        )
        self.place(job, how, frozenset(data.draw(st.sampled_from(((), (), ("n0", "n1"))))))

    @rule(pod_set=pod_sets(), gang=st.booleans())
    def submit_by_gradient(self, pod_set, gang):
        self.serial += 1
        job = JobRequest(f"j{self.serial}", "t", 0.0, (pod_set,), gang=gang)
        twin = self.state.copy()
        statement = Statement(self.state)
        found = place_job(statement, job, strategy="fragmentation")
        assert found == place_job(Statement(twin), job, strategy="fragmentation")
        if isinstance(found, PlacementFailure):
            return
        for p in found:
            node = self.naive.nodes[p.node]
            assert self.naive.room(node, pod_set, p.milli) >= 1
            self.naive.pods[job.id, 0, p.ordinal] = (p, pod_set)
        statement.commit()
        self.jobs[job.id] = job, "binpack"

    @invariant()
    def gradient_follows_the_columns(self):
        kept = self.state.index.gradient
        if isinstance(kept, ClusterGradient):
            kept.follow(self.state)
            fresh = ClusterGradient(self.state.copy(), kept.learned)
            assert (kept.free == fresh.free).all()
            assert (kept.cpu == fresh.cpu).all()

    @rule(seconds=st.sampled_from((0, 59, 60, 1_000, 40_000)))
    def time_passes(self, seconds):
        self.naive.now += seconds
        self.state.now = self.naive.now

    @rule(data=st.data(), before=st.sampled_from((0.0, 500.0)))
    def begin(self, data, before):
        if self.jobs:
            job, _ = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
            at = self.naive.now - before
            self.naive.times[job.id] = (at, job.declared_s)
            self.state.began(job.id, at, job.declared_s)

    @rule(data=st.data())
    def grow(self, data):
        if self.jobs:
            job, how = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
            self.place(job, how, frozenset())

    def place(self, job, how, avoid):
        statement = Statement(self.state)
        before = columns_of(self.state)
        found = place_job(statement, job, strategy=how, avoid=avoid)
        expected = place_one_set(self.naive, job, how, avoid)
        if isinstance(found, PlacementFailure):
            assert expected == ()
            assert columns_of(self.state) == before
            verdict = explain(self.state, job, found)
            assert verdict.summary
            assert not found.misconfigured
        elif not expected:  # the search found what the rules miss, pool part by pool part
            s = job.pod_sets[0]
            assert job.gang
            assert s.gpu_memory_mib or how == "e-spread" or s.anywhere or shares_leaves(s)
            for p in found:
                assert self.naive.room(self.naive.nodes[p.node], s, p.milli) >= 1
                self.naive.pods[job.id, 0, p.ordinal] = (p, s)
            statement.commit()
            self.jobs[job.id] = job, how
        else:
            statement.commit()
            assert found == expected, (found, expected)
            self.jobs[job.id] = job, how

    @rule(data=st.data())
    def release(self, data):
        if self.jobs:
            name = data.draw(st.sampled_from(sorted(self.jobs)))
            del self.jobs[name]
            self.state.release_job(name)
            for key in [key for key in self.naive.pods if key[0] == name]:
                del self.naive.pods[key]

    @rule(data=st.data(), at=st.integers(0, 8))
    def change_node(self, data, at):
        self.upsert(data.draw(nodes(f"n{at}")))

    @rule(at=st.integers(0, 8))
    def remove_node(self, at):
        self.state.remove_node(f"n{at}")
        gone = self.naive.nodes.pop(f"n{at}", None)
        if gone is not None:
            # As in a live session, bookings stay until their jobs are released.
            for job in {key[0] for key, (p, _) in self.naive.pods.items() if p.node == gone.name}:
                self.jobs.pop(job, None)
                self.state.release_job(job)
                for key in [key for key in self.naive.pods if key[0] == job]:
                    del self.naive.pods[key]

    @rule(
        at=st.integers(0, 8),
        gpus=st.integers(0, 3),
        fpgas=st.integers(0, 1),
        nics=st.integers(0, 2),
        uid=st.sampled_from("ab"),
    )
    def other_pod(self, at, gpus, fpgas, nics, uid):
        pod = OtherPod(f"n{at}", gpus, 500, 100, {"fpga": fpgas, "rdma/a": nics})
        self.state.upsert_other_pod(uid, *pod)
        self.naive.others[uid] = pod

    @rule(uid=st.sampled_from("ab"))
    def other_pod_gone(self, uid):
        self.state.remove_other_pod(uid)
        self.naive.others.pop(uid, None)

    @rule(pod_set=pod_sets(), how=st.sampled_from(sorted(STRATEGIES)))
    def what_if(self, pod_set, how):
        """Try something on a statement or a copy; it must leave no trace."""
        job = JobRequest("what-if", "t", 0.0, (pod_set,))
        before = columns_of(self.state)
        twin = self.state.copy()
        place_job(Statement(twin), job, strategy=how)
        assert columns_of(self.state) == before
        statement = Statement(self.state)
        place_job(statement, job, strategy=how)
        assert columns_of(twin) == columns_of(self.state)
        gains = self.state.gains
        statement.rollback()
        assert columns_of(self.state) == before
        assert self.state.gains == gains

    @invariant()
    def columns_follow_the_bookings(self):
        for name, node in self.naive.nodes.items():
            slot = self.state.slot_of[name]
            cpu, memory, pods, extended, nics = self.naive.left(node)
            assert self.state.free[slot] == self.naive.free(node)
            assert self.state.partial[slot] == self.naive.partial(node)
            assert self.state.remainders.get(slot, {}) == self.naive.remainders(node)
            assert (self.state.cpu[slot], self.state.memory[slot]) == (cpu, memory)
            assert self.state.pods[slot] == pods
            assert self.state.extended[slot] == extended
            assert self.state.nic_mask[slot] == sum(1 << nic for nic in nics)

    @invariant()
    def index_equals_a_rebuild(self):
        fresh = index_of(self.state)
        for model, pool in fresh.pools.items():
            assert by_name(self.state, self.state.index.pools[model]) == by_name(self.state, pool)

    @invariant()
    def no_device_is_held_beyond_its_size(self):
        for node in self.naive.nodes.values():
            assert all(milli <= 1000 for milli in self.naive.used(node).values())


def by_name(state, pool):
    """Return an index by name: node numbers shift when removed nodes are left out."""
    layout, keys = pool.layout, pool.layout.levels[0].keys
    names = [state.names[slot] for slot in layout.slots]

    def nodes_in(mask):
        return {names[i] for i in range(layout.size) if mask >> i & 1}

    def leaves_in(mask):
        return {keys[i] for i in range(len(keys)) if mask >> i & 1}

    pool.file_leaves()
    assert pool.share_keys == sum(1 << key for key in pool.shares)
    assert pool.fills == [sum(1 << fill for fill in groups) for groups in pool.by_fill]
    known = dict(zip(keys, pool.leaf_milli, strict=True))
    return (
        {free: nodes_in(mask) for free, mask in enumerate(pool.bits) if mask},
        {share: nodes_in(mask) for share, mask in pool.shares.items()},
        [{f: leaves_in(m) for f, m in groups.items()} for groups in pool.by_fill if groups],
        {key: milli for key, milli in known.items() if milli},
    )


def columns_of(state):
    """Return everything that a decision can depend on, with bookings in a canonical order."""
    shown = {name: getattr(state, name) for name in (*COLUMNS, *REGISTRY)}
    shown["_on_node"] = {name: sorted(keys) for name, keys in state._on_node.items()}
    shown["_jobs"] = {name: dict(sorted(held.items())) for name, held in state._jobs.items()}
    shown["remainders"] = {at: sorted(of.items()) for at, of in sorted(state.remainders.items())}
    shown["partial"] = [sorted(left.items()) for left in state.partial]
    of = state.company
    shown["company"] = of.members, of.keepers, of.ports
    del shown["tables"], shown["infeasible"], shown["typical"]
    totals = {m: (p.capacity, p.available, p.allocated) for m, p in state._totals.items()}
    return repr(shown), repr(totals), state.version


TestPlacement = Placement.TestCase
TestPlacement.settings = settings(
    max_examples=examples(40),
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
