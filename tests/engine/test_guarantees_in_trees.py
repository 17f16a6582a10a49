"""A tenant within its guarantee gets it back from borrowers, at any depth of the tree.

The oracle knows no accounts or debts: it adds up what running jobs hold, tenant by tenant. A
tenant's share is its guarantee minus those of its children. The shares add up to the whole cluster,
so whatever a tenant lacks of its share, others hold beyond theirs. Nodes have one GPU each, because
quota does not decide whether larger pods fit on one node.
"""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.admission.candidates import ask_of
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.types import (
    MILLI,
    JobRequest,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from scheduling.engine.verdict import Reason
from tests.cases import seeds
from tests.engine.scenario import job, node, play

MODELS = ("H100", "L4")
ASKS = ("1x1 H100", "2x1 H100", "4x1 H100", "3x1 L4", "2x1 H100|L4", "2x1+1x1 H100+L4", "6x1 *")
KINDS = (
    (PreemptionKind.RECLAIM,),
    (PreemptionKind.RECLAIM, PreemptionKind.BACKFILL),
    (PreemptionKind.RECLAIM, PreemptionKind.PRIORITY),
    tuple(PreemptionKind),
)


def some_tree(rng: random.Random) -> list[TenantSpec]:
    """Return one to three roots with one to five levels."""
    depth = rng.randint(1, 5)
    levels = [[TenantSpec(f"t{i}") for i in range(rng.randint(1, 3))]]
    if depth == 1:
        levels[0].append(TenantSpec("t9"))
    for level in range(1, depth):
        below = []
        for parent in levels[-1]:
            for i in range(rng.choice((0, 1, 2, 2, 3)) if level > 1 else 2):
                below.append(TenantSpec(f"{parent.id}{i}", parent.id))
        levels.append(below)
    return [tenant for level in levels for tenant in level]


Pod = tuple[JobRequest, tuple[int, int], str]


def _on(state: SchedulerState, name: str) -> list[Pod]:
    """Return the places of a job: its request, the pod and the GPU model."""
    record = state.jobs[name]
    return [(record.job, pod, model) for pod, (model, _) in record.pods.items()]


class Tree:
    """A cluster exactly as large as the guarantees of the top tenants together."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.state = SchedulerState()
        self.now = 0.0
        self.alive: list[str] = []
        self.count = 0
        self.tenants = some_tree(rng)
        self.share = {(t.id, m): rng.choice((0, 1, 2, 4)) for t in self.tenants for m in MODELS}
        children: dict[str, list[str]] = {}
        for tenant in self.tenants:
            children.setdefault(tenant.parent or "", []).append(tenant.id)

        def guaranteed(name: str, model: str) -> int:
            below = sum(guaranteed(child, model) for child in children.get(name, ()))
            return self.share[name, model] + below

        facts: list[d.Delta] = []
        for model in MODELS:
            gpus = sum(guaranteed(name, model) for name in children[""])
            facts += [d.NodeChanged(node(f"{model}-{i}", 1, model)) for i in range(gpus)]
        limits = (None, None, None, 3 * MILLI, 0)
        quotas = tuple(
            QuotaSpec(
                *(t.id, m, guaranteed(t.id, m) * MILLI),
                rng.choice((*Sharing, Sharing.SHARED, Sharing.SHARED)),
                *(rng.choice(limits), rng.choice(limits)),
            )
            for t in self.tenants
            for m in MODELS
        )
        policy = Policy(
            rng.choice(tuple(QueueingPolicy)),
            preemption=rng.choice(KINDS),
            min_runtime_s=0,
            max_preemptions=1 << 30,
            backfill_after_s=20,
            fair_share=rng.random() < 0.3,
        )
        self.reclaimed = 0
        self.cycle([*facts, d.TenantsChanged(tuple(self.tenants), quotas), d.PolicyChanged(policy)])

    def held(self) -> Counter[tuple[str, str]]:
        """Return GPU-milli by tenant and GPU model."""
        found: Counter[tuple[str, str]] = Counter()
        for record in self.state.jobs.values():
            for model, milli in record.pods.values():
                found[record.job.tenant, model] += milli
        return found

    def cycle(self, deltas: list[d.Delta]) -> None:
        """Run a cycle, and further ones until no cycle preempts anything."""
        while True:
            self.now += 5
            before = {name: dict(r.pods) for name, r in self.state.jobs.items()}
            held = self.held()
            result = run_cycle(self.state, deltas, self.now)
            gone = result.preempted
            # What has just started or is promised may be borrowed, so that older jobs may take it.
            came = [p for start in result.started for p in _on(self.state, start.job_id)]
            came += [p for name in self.state.promised for p in _on(self.state, name)]
            for pod in set(came):
                if pod[1] not in before.get(pod[0].id, {}):
                    held[pod[0].tenant, pod[2]] += MILLI
            if not gone:
                return
            deltas = []
            for victim in gone:
                tenant = self.state.jobs[victim.job_id].job.tenant
                if victim.kind is PreemptionKind.RECLAIM:
                    self.reclaimed += 1
                    on = {model for model, _ in before[victim.job_id].values()}
                    beyond = [m for m in on if held[tenant, m] > self.share[tenant, m] * MILLI]
                    assert beyond, f"{victim} is taken from, and borrows nothing"
                if victim.whole:
                    deltas.append(d.JobRequeued(victim.job_id, self.now))
                else:
                    deltas += [d.PodEnded(victim.job_id, *pod) for pod in victim.pods]

    def submit(self, tenant: str, asks: str, *words: str) -> str:
        name = f"j{self.count}"
        self.count += 1
        self.alive.append(name)
        self.cycle([d.JobSubmitted(job(name, tenant, asks, *words, at=self.now))])
        return name

    def step(self) -> None:
        if self.rng.random() < 0.3 and self.alive:
            self.cycle([d.JobEnded(self.alive.pop(self.rng.randrange(len(self.alive))))])
            return
        words = [w for w in ("pods", "min=1", "p5") if self.rng.random() < 0.3]
        non_preemptible = ["fixed"] if self.rng.random() < 0.3 else []
        self.submit(
            self.rng.choice(self.tenants).id, self.rng.choice(ASKS), *words, *non_preemptible
        )

    def rest(self) -> None:
        """Withdraw all waiting jobs."""
        waiting = [n for n in self.alive if self.state.jobs[n].started_at is None]
        self.alive = [n for n in self.alive if n not in waiting]
        self.cycle([d.JobEnded(name) for name in waiting])


@pytest.mark.parametrize("seed", seeds(120))
def test_all_that_a_tenant_is_guaranteed_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    tree = Tree(rng)
    for _ in range(rng.randrange(10, 50)):
        tree.step()
    tree.rest()
    asking = [(t.id, m) for t in tree.tenants for m in MODELS]
    rng.shuffle(asking)
    for tenant, model in asking:
        left = tree.share[tenant, model] - tree.held()[tenant, model] // MILLI
        if left <= 0:
            continue
        gpus = left if rng.random() < 0.7 else rng.randint(1, left)
        words = ["fixed"] if rng.random() < 0.5 else []
        owner = tree.submit(tenant, f"{gpus}x1 {model}", *words, "p9")
        record = tree.state.jobs[owner]
        assert record.started_at is not None, (tenant, model, gpus, record.verdict)
        tree.rest()


# The reasons by which the queueing policy keeps a job behind another, whatever its rights.
BY_ORDER = (Reason.BEHIND_IN_QUEUE, Reason.RESERVED_FOR_HEAD)


def _could_start(tree: Tree, record: JobRecord) -> Iterator[dict[str, int]]:
    """Yield the starts of a job that fit within its own share and into free GPUs plus what others
    hold beyond their shares. Yields nothing if the job waits because of the order."""
    state, held, tenant = tree.state, tree.held(), record.job.tenant
    verdict, way = record.verdict, state.queue_reservations
    if verdict is None or verdict.will_never_run or verdict.reason in BY_ORDER:
        return
    taken: Counter[tuple[str, str]] = Counter()
    for other in state.running.values():
        for model, milli in other.pods.values():
            taken[other.job.tenant, model] += milli if other.job.preemptible else 0
    for start in [start for ways in ask_of(state, record).ways for start in ways.starts]:
        if any(model in way.pools or (tenant, model) in way.accounts for model in start):
            continue  # a job ahead waits for that
        if all(
            held[tenant, model] + milli <= tree.share[tenant, model] * MILLI
            and milli
            <= state.cluster.free_milli(model)
            + sum(
                min(taken[t.id, model], max(0, held[t.id, model] - tree.share[t.id, model] * MILLI))
                for t in tree.tenants
                if t.id != tenant
            )
            for model, milli in start.items()
        ):
            yield start


@pytest.mark.parametrize("seed", seeds(300))
def test_at_rest_nobody_waits_for_its_share_beside_who_has_more(seed: int) -> None:
    """This holds for any request and GPU model, unless the job waits because of its place in the
    order."""
    rng = random.Random(seed)
    tree = Tree(rng)
    for _ in range(rng.randrange(10, 50)):
        tree.step()
    tree.cycle([])
    for name in tree.alive:
        record = tree.state.jobs[name]
        if record.started_at is None and name not in tree.state.promised:
            assert not list(_could_start(tree, record)), (name, record.job, record.verdict)


def test_the_histories_take_something_back() -> None:
    """The random trees must include preemptions, or the other tests would prove nothing."""
    taken = 0
    for seed in range(20):
        tree = Tree(random.Random(seed))
        for _ in range(50):
            tree.step()
        taken += tree.reclaimed
    assert taken > 20


SCENARIOS = {
    "three levels: the sibling gives back what it borrowed": """
        nodes  H100: 8 8
        quota  root H100 16 | org H100 16 | rec H100 8 | batch H100 8
        tree   org < root | rec < org | batch < org
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + own  batch 1x8 H100 -> starts
        at 5
          + more batch 1x8 H100 -> starts borrowing 8
        at 10
          + mine rec   1x8 H100 -> WaitingForPreemption
          more -> preempted for mine
    """,
    "five levels": """
        nodes  H100: 8 8
        quota  a H100 16 | b H100 16 | c H100 16 | d H100 16 | rec H100 8 | batch H100 8
        tree   b < a | c < b | d < c | rec < d | batch < d
        policy strict-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + own  batch 1x8 H100 -> starts
        at 5
          + more batch 1x8 H100 -> starts borrowing 8
        at 10
          + mine rec   1x8 H100 -> WaitingForPreemption
          more -> preempted for mine
    """,
    "isolated departments owe each other nothing, their children do": """
        nodes  H100: 8 8
        quota  root H100 16 | org H100 16 isolated | rec H100 8 isolated | batch H100 8
        tree   org < root | rec < org | batch < org
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + own  batch 1x8 H100 -> starts
          + more rec   1x8 H100 -> starts
        at 10
          + high batch 1x8 H100 p9 -> WaitingForQuota
    """,
    "of two that borrow alike the nearer relative gives back": """
        nodes  H100: 8 8 8
        quota  root H100 24 | org H100 12 | rec H100 8 | batch H100 4 | far H100 12
        tree   org < root | rec < org | batch < org | far < root
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + f1 far   1x8 H100 -> starts on n0
          + b1 batch 1x4 H100 -> starts on n1
          + f2 far   1x4 H100 -> starts on n1
        at 5
          + b2 batch 1x4 H100 -> starts on n2
        at 9
          + f3 far   1x4 H100 -> starts on n2
        at 10
          saves f1
          saves f2
          saves f3
          + mine rec 1x4 H100 -> WaitingForPreemption
          b2 -> preempted for mine
    """,
    "what a borrower ahead waits to borrow is not kept from who has a right to it": """
        nodes  H100: 1 1 1 1
        quota  root H100 4 | left H100 2 | l1 H100 1 | l2 H100 1 | right H100 2
        tree   left < root | l1 < left | l2 < left | right < root
        policy strict-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + r1   right 2x1 H100 p9 -> starts
          + a1   l1 1x1 H100 p9 -> starts
          + a2   l1 1x1 H100 p8 -> starts borrowing 1
        at 5
          + more right 1x1 H100 p9 -> WaitingForQuota
          + mine l2 1x1 H100 p-9 -> WaitingForPreemption
          a2 -> preempted for mine
    """,
    "who accepts two models takes back the one whose quota nobody ahead waits for": """
        nodes  H100: 1 1 | L4: 1 1
        quota  a H100 0 | a L4 2 | b H100 2 | b L4 0
        policy {queueing}, preemption=reclaim, min_runtime_s=0, backfill_after_s=1
        at 0
          + own   b 2x1 H100 -> starts
          + more  b 2x1 L4 -> starts borrowing 2
        at 5
          + ahead a 1x1 H100 -> WaitingForQuota
        at 10
          + mine  a 2x1 H100|L4 -> WaitingForPreemption
          more -> preempted for mine
    """,
    "who accepts two models takes back the one in which no head waits": """
        nodes  H100: 1 1 | L4: 1 1
        quota  a H100 2 | a L4 2 | b H100 2 | b L4 0
        policy {queueing}, preemption=reclaim, min_runtime_s=0, backfill_after_s=1
        at 0
          + own   b 2x1 H100 s=100 -> starts
          + more  b 2x1 L4 -> starts borrowing 2
        at 5
          + ahead a 2x1 H100 p9 -> InsufficientGpus
        at 10
          + mine  a 2x1 H100|L4 -> WaitingForPreemption
          more -> preempted for mine
    """,
    "the reason names who owes, however far up the accounts are full": """
        nodes  H100: 8 8
        quota  root H100 16 | org H100 16 | rec H100 8 | batch H100 8
        tree   org < root | rec < org | batch < org
        policy best-effort-fifo
        at 0
          + all  batch 2x8 H100 -> starts
          + mine rec   1x8 H100 -> WaitingForQuota tenant=rec owed_by=batch owed=8
    """,
    "a whole department within its guarantee gets it back from inside another": """
        nodes  H100: 8 8 8 8
        quota  root H100 32 | left H100 16 | l1 H100 8 | l2 H100 8 | right H100 16 | r1 H100 16
        tree   left < root | l1 < left | l2 < left | right < root | r1 < right
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + l1a l1 1x8 H100 -> starts
          + l2a l2 1x8 H100 -> starts
        at 1
          + l1b l1 1x8 H100 -> starts
          + l1c l1 1x8 H100 -> starts
        at 10
          saves l2a
          + mine r1 2x8 H100 -> WaitingForPreemption
          l1b -> preempted for mine
          l1c -> preempted for mine
    """,
}


CASES = [
    pytest.param(text.replace("{queueing}", queueing), id=f"{name}, {queueing}")
    for name, text in SCENARIOS.items()
    for queueing in (QueueingPolicy if "{queueing}" in text else ("as it says",))
]


@pytest.mark.parametrize("text", CASES)
def test_guarantees(text: str) -> None:
    play(text)
