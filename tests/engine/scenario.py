"""Scenarios of the queue as tables: given cluster, quotas and jobs, expected decisions.

One fact a line; jobs are submitted in the order in which they are written:

    nodes   H100: 8 8/4000 | L4: 4       GPUs of each node (n0, n1, … in this order), CPU in milli
    quota   a H100 16 shared borrow=4 lend=0 | b H100 8 isolated
    tree    a < dept | b < dept          parents
    tenant  a max_running=2 weight=3     other facts of a tenant
    queue   a/night rank=1 held=yes      a queue of a tenant, made or changed; a/default is one too
    policy  strict-fifo, backfill_after_s=60
    at 10                                a cycle; what follows happens in it
      + big   a  2x8 H100 p5 -> starts   a job is submitted: name, tenant, pods x GPUs, models
      ends big                           JobEnded; also: fails, hold, change, resize, saves, …
      small -> InsufficientGpus          what is known of a job after the cycle
      big -> starts on n0 n1

Words after the models: p5 (priority), pods (no gang), min=2, s=100 (declared seconds), fixed
(not preemptible), after=… (any other field of JobRequest as name=value).
Every start of a cycle must be named; a job that is not named is not looked at.
"""

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult
from scheduling.engine.types import (
    Device,
    JobKind,
    JobRequest,
    Node,
    PodSetSpec,
    Policy,
    QueueingPolicy,
    QueueSpec,
    QuotaSpec,
    Sharing,
    TenantSpec,
)

# Requests of every sort, for tests that mix them.
ASKS = (
    "1x1 H100", "1x8 H100", "2x8 H100", "3x4 H100", "1x0.5 L4", "2x1 L4", "2x1 H100|L4",
    "1x8+2x1 H100+L4", "1x0.3 H100|L4", "4x8 H100", "1x3 *", "1x1 B300",
    "4x1+2x0.5 H100+L4", "2x4+1x1 H100|L4+L4",
)  # fmt: skip


# Fields of pod sets that may be given as name=value after the models.
POD_SET_FIELDS = {
    *("required_level", "preferred_level", "slice_size", "max_per_node", "max_per_leaf"),
    *("cpu_milli", "memory_mib"),
}


def node(name: str, gpus: int, model: str = "H100", **facts: Any) -> Node:
    facts = {"cpu_milli": 128_000, "memory_mib": 1_000_000} | facts
    return Node(name, model, tuple(Device(i, memory_mib=80_000) for i in range(gpus)), **facts)


def job(name: str, tenant: str, asks: str, *words: str, at: float = 0.0) -> JobRequest:
    """ "2x8 H100", "1x0.5 L4|T4", "1x1 *" -> a request; `words` as described above."""
    shape, _, models = asks.partition(" ")
    options: dict[str, Any] = {}
    sets: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if re.fullmatch(r"p-?\d+", word):
            options["priority"] = int(word[1:])
        elif word == "pods":
            options["gang"] = False
        elif word == "fixed":
            options["preemptible"] = False
        elif key == "s":
            options["declared_s"] = float(value)
        elif key == "min":
            sets["min_count"] = int(value)
        elif key in POD_SET_FIELDS:
            sets[key] = int(value) if value.isdigit() else value
        else:
            field_type = next(f.type for f in dataclasses.fields(JobRequest) if f.name == key)
            options[key] = _value(value, str(field_type))
    pod_sets = []
    for i, part in enumerate(shape.split("+")):
        count, gpus = part.split("x")
        share = float(gpus)
        wanted = (
            () if models == "*" else tuple(models.split("+")[min(i, models.count("+"))].split("|"))
        )
        pod_sets.append(
            PodSetSpec(
                f"set{i}",
                int(count),
                1 if 0 < share < 1 else int(share),
                wanted,
                gpu_milli=round(share * 1000) if 0 < share < 1 else 1000,
                **sets,
            )
        )
    return JobRequest(name, tenant, options.pop("submitted_at", at), tuple(pod_sets), **options)


def _value(text: str, kind: str) -> Any:
    if "Mapping" in kind:
        return {key: int(n) for key, n in [text.split(":")]}
    if "JobKind" in kind and "Mapping" not in kind:
        return JobKind(text)
    if "tuple" in kind:
        return tuple(filter(None, text.split(",")))
    if "float" in kind:
        return float(text)
    if "int" in kind:
        return int(text)
    if "bool" in kind:
        return text == "yes"
    return text


@dataclass
class World:
    """A scheduler, and what a shell would remember while it plays a scenario."""

    state: SchedulerState = field(default_factory=SchedulerState)
    pending: list[d.Delta] = field(default_factory=list)
    jobs: dict[str, JobRequest] = field(default_factory=dict)
    where: dict[str, set[str]] = field(default_factory=dict)
    last: CycleResult = field(default_factory=CycleResult)

    def cycle(self, now: float) -> CycleResult:
        deltas, self.pending = self.pending, []
        result = self.last = run_cycle(self.state, deltas, now)
        for start in result.started:
            self.where.setdefault(start.job_id, set()).update(p.node for p in start.placements)
        return result


def play(text: str, world: World | None = None) -> World:
    """Play a scenario and check every expectation in it, with a new scheduler unless one is
    given."""
    world = world or World()
    now: float | None = None
    expected: list[tuple[str, str]] = []
    quotas: list[QuotaSpec] = []
    parents: dict[str, str] = {}
    facts: dict[str, dict[str, Any]] = {}
    queues: dict[str, QueueSpec] = {}
    for line in text.strip().splitlines():
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if word == "nodes":
            world.pending += _nodes(rest)
        elif word == "quota":
            quotas = [_quota(part) for part in rest.split("|")]
            world.pending.append(_tenants(quotas, parents, facts))
        elif word == "tree":
            parents = dict(re.split(r"\s*<\s*", part.strip()) for part in rest.split("|"))
            world.pending.append(_tenants(quotas, parents, facts))
        elif word == "tenant":
            name, *words = rest.split()
            kinds = {f.name: str(f.type) for f in dataclasses.fields(TenantSpec)}
            pairs = [w.split("=") for w in words]
            facts[name] = {key: _value(value, kinds[key]) for key, value in pairs}
            world.pending.append(_tenants(quotas, parents, facts))
        elif word == "queue":
            name, *words = rest.split()
            kinds = {f.name: str(f.type) for f in dataclasses.fields(QueueSpec)}
            pairs = [w.split("=") for w in words]
            told = queues.setdefault(name, QueueSpec(*name.split("/")))
            queues[name] = dataclasses.replace(told, **{k: _value(v, kinds[k]) for k, v in pairs})
            world.pending.append(d.QueuesChanged(tuple(queues.values())))
        elif word == "policy":
            world.pending.append(d.PolicyChanged(_policy(rest)))
        elif word == "at":
            if now is not None:
                _check(world, now, expected)
            now, expected = float(rest), []
        elif word == "+":
            asked, arrow, outcome = rest.partition("->")
            name, tenant, pods, models, *words = asked.split()
            request = job(name, tenant, f"{pods} {models}", *words, at=len(world.jobs) / 1000)
            world.jobs[name] = request
            world.pending.append(d.JobSubmitted(request))
            if arrow:
                expected.append((name, outcome.strip()))
        elif "->" in line:
            name, outcome = re.split(r"\s*->\s*", line.strip())
            expected.append((name, outcome))
        elif word:
            world.pending += _event(world, word, rest, now or 0.0)
    assert now is not None
    _check(world, now, expected)
    return world


def _check(world: World, now: float, expected: list[tuple[str, str]]) -> None:
    result = world.cycle(now)
    starts = {s.job_id for s in result.started}
    named = {name for name, outcome in expected if outcome.startswith("starts")}
    assert starts == named, f"at {now:g} started {sorted(starts)}, expected {sorted(named)}"
    evicted = {p.job_id for p in getattr(result, "preempted", ())}
    losers = {name for name, outcome in expected if outcome.startswith("preempted")}
    assert evicted == losers, f"at {now:g} preempted {sorted(evicted)}, expected {sorted(losers)}"
    moved = {(m.job_id, f"moves {m.ordinal} from {m.source} to {m.target}") for m in result.moved}
    movers = {(name, outcome) for name, outcome in expected if outcome.startswith("moves")}
    assert moved == movers, f"at {now:g}"
    for name, outcome in expected:
        _check_one(world, result, name, outcome, f"at {now:g}, {name}")


def _check_one(world: World, result: CycleResult, name: str, outcome: str, about: str) -> None:
    start = next((s for s in result.started if s.job_id == name), None)
    if match := re.fullmatch(r"starts on (.+)", outcome):
        assert start is not None
        assert {p.node for p in start.placements} == set(match[1].split()), about
    elif match := re.fullmatch(r"(?:starts|preempted) (\d+) pods?", outcome):
        if outcome.startswith("starts"):
            assert start is not None
            assert len(start.placements) == int(match[1]), about
        else:
            lost = [p for p in result.preempted if p.job_id == name]
            assert sum(len(p.pods) for p in lost) == int(match[1]), about
    elif match := re.fullmatch(r"preempted for (\S+)", outcome):
        assert {p.by for p in result.preempted if p.job_id == name} == {match[1]}, about
    elif match := re.fullmatch(r"starts borrowing (\d+)", outcome):
        assert start is not None
        assert sum(milli for _, milli in start.borrowed) == int(match[1]) * 1000, about
    elif not outcome.startswith(("starts", "preempted", "moves")):
        verdict = world.state.jobs[name].verdict
        reason, _, said = outcome.partition(" ")
        assert verdict is not None, about
        assert verdict.reason == reason, f"{about}: {verdict}"
        for pair in said.split():
            key, value = pair.split("=")
            assert (
                f"{verdict.evidence[key]:g}" == value
                if value.isdigit()
                else str(verdict.evidence[key]) == value
            ), f"{about}: {verdict.evidence}"


def _nodes(text: str) -> list[d.Delta]:
    deltas: list[d.Delta] = []
    for part in text.split("|"):
        model, sizes = part.split(":")
        for size in sizes.split():
            size, _, cpu = size.partition("/")
            gpus, *leaf = size.split("@")
            facts: dict[str, Any] = {"topology": (leaf[0], "", "")} if leaf else {}
            if cpu:
                facts["cpu_milli"] = int(cpu)
            name = f"n{len(deltas)}"
            deltas.append(d.NodeChanged(node(name, int(gpus), model.strip(), **facts)))
    return deltas


def _quota(text: str) -> QuotaSpec:
    tenant, model, gpus, *words = text.split()
    options: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in {"shared", "isolated"}:
            options["mode"] = Sharing(key)
        else:
            options[f"{key}_limit"] = round(float(value) * 1000)
    return QuotaSpec(tenant, model, round(float(gpus) * 1000), **options)


def _tenants(
    quotas: list[QuotaSpec], parents: dict[str, str], facts: dict[str, dict[str, Any]]
) -> d.TenantsChanged:
    names = {q.tenant for q in quotas} | set(parents) | set(parents.values())
    tree = tuple(
        TenantSpec(name, parents.get(name), **facts.get(name, {})) for name in sorted(names)
    )
    return d.TenantsChanged(tree, tuple(quotas))


def _policy(text: str) -> Policy:
    name, *settings = re.split(r",\s+", text)
    values: dict[str, Any] = {"queueing": QueueingPolicy(name)}
    kinds = {f.name: str(f.type) for f in dataclasses.fields(Policy)}
    for setting in settings:
        key, value = setting.split("=")
        values[key] = _value(value, kinds[key])
    return Policy(**values)


def _event(world: World, word: str, rest: str, now: float) -> list[d.Delta]:
    if word in {"ends", "fails"}:
        return [d.JobEnded(name, word == "ends") for name in rest.split()]
    if word == "fault":
        return [d.JobRequeued(rest, now, front=True)]
    if word in {"pod-ends", "pod-gone"}:
        name, ordinal = rest.split()
        return [d.PodEnded(name, 0, int(ordinal))]
    if word == "pod-fails":  # the pod is placed again, on another node
        name, ordinal, *avoided_nodes = rest.split()
        return [d.PodRequeued(name, 0, int(ordinal), now, tuple(avoided_nodes))]
    if word == "hold":
        return [d.JobSubmitted(world.jobs[rest], held=True)]
    if word == "change":  # a field of a waiting job: name, field=value
        name, key, value = re.split(r"[ =]", rest)
        if key == "not_before":
            return [d.JobSubmitted(world.jobs[name], not_before=float(value))]
        kind = next(str(f.type) for f in dataclasses.fields(JobRequest) if f.name == key)
        changed = dataclasses.replace(world.jobs[name], **{key: _value(value, kind)})
        world.jobs[name] = changed
        return [d.JobSubmitted(changed)]
    if word == "resize":  # name, new count of its first pod set
        name, count = rest.split()
        first, *others = world.jobs[name].pod_sets
        sets = (dataclasses.replace(first, count=int(count)), *others)
        world.jobs[name] = dataclasses.replace(world.jobs[name], pod_sets=sets)
        return [d.JobChanged(world.jobs[name])]
    if word == "release":
        return [d.JobSubmitted(world.jobs[rest])]
    if word in {"requeue", "gone"}:
        name, *avoided_nodes = rest.split()
        not_before = now + 5 if word == "requeue" else now
        return [d.JobRequeued(name, not_before, tuple(avoided_nodes))]
    if word == "saves":
        return [d.Checkpointed(rest, now)]
    if word == "budget":
        name, allowed = rest.split()
        return [d.DisruptionBudget(name, int(allowed))]
    if word == "node-lost":
        return [d.NodeRemoved(rest)]
    raise ValueError(f"no such event: {word} {rest}")
