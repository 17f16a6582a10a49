"""Divide one cluster between several schedulers (docs/decisions/0003-shards.md).

Every node belongs to exactly one scope at any time: its home shard, or `WIDE` while it is lent to a
job that fits into no shard. A scheduler loads only the nodes of the scopes it leads, so no two
schedulers can assign the same device. These are pure functions; the session moves nodes between
scopes with a guarded write, under the lease of the scope that gives them up.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.company import Company
from scheduling.engine.demand.cpu_jobs import kept_off_gpus
from scheduling.engine.demand.shapes import choices, narrowed
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.statement import Statement
from scheduling.engine.types import NO_GPUS, CpuJobs, JobRequest, Node, Shard

WIDE = "wide"
WHOLE = ""  # the only scope of a cluster that is not divided

# What an open job of a shard requests: (acceptable GPU models, GPU-milli), or, without GPUs,
# (WITHOUT_GPUS, milli-CPU).
Demand = tuple[tuple[str, ...], int]
WITHOUT_GPUS = (NO_GPUS,)


def scopes_of(shards: Sequence[Shard]) -> tuple[str, ...]:
    """Return the scopes of a cluster, in order of declaration."""
    return (*(shard.name for shard in shards), WIDE) if shards else (WHOLE,)


def declaration_problems(shards: Sequence[Shard]) -> list[tuple[int, str, str]]:
    """Return what is wrong with a declaration: (shard number, field, reason and remedy)."""
    found: list[tuple[int, str, str]] = []
    names = [shard.name for shard in shards]
    last = len(shards) - 1
    for at, shard in enumerate(shards):
        restricted = bool(shard.gpu_models or shard.groups)
        if shard.name == WIDE:
            found.append((at, "name", f"“{WIDE}” is the scope above the shards. Use another name."))
        elif shard.name in names[:at]:
            found.append((at, "name", f"“{shard.name}” is declared twice. Names are unique."))
        if at == last and restricted:
            field = "gpu_models" if shard.gpu_models else "groups"
            text = "The last shard takes all other nodes. Leave gpu_models and groups empty here."
            found.append((at, field, text))
        elif at < last and not restricted:
            text = "Only the last shard takes all other nodes. Name gpu_models or groups here."
            found.append((at, "gpu_models", text))
    return found


def home_of(node: Node, shards: Sequence[Shard]) -> str:
    """Return the first declared shard that holds the node; the last shard takes all other nodes."""
    if not shards:
        return WHOLE
    return next((shard.name for shard in shards if shard.holds(node)), shards[-1].name)


def route(
    job: JobRequest,
    shards: Mapping[str, ClusterState],
    asked: Mapping[str, Sequence[Demand]],
    strategy: str,
    cpu_jobs: CpuJobs = CpuJobs.NEVER,
) -> str:
    """Return the scope whose scheduler decides about the job.

    Among the shards that could hold all of the job when empty, it is the one with the most room,
    ties by order of declaration. If no shard could, it is `WIDE`. A job that could never run
    anywhere goes to the first shard, which says why.

    `shards`: for every shard, in order of declaration, the nodes at home there, without any pods.
    `asked`: what the open jobs of each shard request. `strategy`: the policy's strategy for the
    kind of job. `cpu_jobs`: its rule for jobs without GPUs.
    """
    able = []
    for name, state in shards.items():
        holds = _holds_all(state, kept_off_gpus(job, cpu_jobs), strategy)
        if holds is None:
            return name
        if holds:
            able.append(name)
    if not able:
        return WIDE
    left = {name: room(job, shards[name], asked.get(name, ()), cpu_jobs) for name in able}
    return max(able, key=lambda n: (left[n], -able.index(n)))


def able_to_hold(
    job: JobRequest,
    shards: Mapping[str, ClusterState],
    strategy: str,
    cpu_jobs: CpuJobs = CpuJobs.NEVER,
) -> list[str]:
    """Return the shards that could hold all of the job when empty, as in `route`."""
    kept = kept_off_gpus(job, cpu_jobs)
    return [name for name, state in shards.items() if _holds_all(state, kept, strategy)]


def without_nodes(
    shards: Mapping[str, ClusterState], names: Collection[str]
) -> dict[str, ClusterState]:
    """Return the shards without these nodes."""
    found = {}
    for name, state in shards.items():
        gone = [node for node in names if state.node(node) is not None]
        found[name] = state.copy() if gone else state
        for node in gone:
            found[name].remove_node(node)
    return found


def with_company(shards: Mapping[str, ClusterState], company: Company) -> dict[str, ClusterState]:
    """Return the shards with the pods that rules are about, and other shards' nodes as neighbours.

    `company`: the company of the whole cluster.
    """
    found = {}
    for name, state in shards.items():
        twin = state.copy()
        twin.company = copy(company)
        for other, theirs in shards.items():
            for node in theirs.facts if other != name else state.facts:
                if node is not None:
                    twin.company.neighbour_is(node.name, node if other != name else None)
        found[name] = twin
    return found


def room(
    job: JobRequest,
    state: ClusterState,
    asked: Iterable[Demand],
    cpu_jobs: CpuJobs = CpuJobs.NEVER,
) -> int:
    """Return how much of what the job can use is not requested by any open job.

    The unit is GPU-milli of the models that the job accepts; for a job without GPUs, milli-CPU of
    the nodes that it may use. Below 0 = jobs wait.
    """
    if job.without_gpus:
        return _cpu_for_cpu_jobs(state, cpu_jobs) - _cpu_asked(asked)
    wanted = {model for s in job.pod_sets for model in s.gpu_models}
    installed = state.gpu_models()
    here = [model for model in installed if not wanted or model in wanted]
    claimed = sum(milli for models, milli in asked if not models or set(models).intersection(here))
    return sum(state.available_milli(model) for model in here) - claimed


def demand_of(job: JobRequest) -> list[Demand]:
    """Return what one job requests."""
    if job.without_gpus:
        return [(WITHOUT_GPUS, sum(s.count * s.cpu_milli for s in job.pod_sets))]
    return [(s.gpu_models, s.count * s.milli_per_pod) for s in job.pod_sets]


def is_overfull(
    state: ClusterState, asked: Sequence[Demand], cpu_jobs: CpuJobs = CpuJobs.NEVER
) -> bool:
    """Whether open jobs request more GPUs, or jobs without GPUs more CPU, than the shard has."""
    cpu = _cpu_asked(asked)
    gpus = sum(amount for _, amount in asked) - cpu
    installed = sum(state.available_milli(model) for model in state.gpu_models())
    return gpus > installed or cpu > _cpu_for_cpu_jobs(state, cpu_jobs)


def _cpu_asked(asked: Iterable[Demand]) -> int:
    return sum(amount for models, amount in asked if models == WITHOUT_GPUS)


def _cpu_for_cpu_jobs(state: ClusterState, cpu_jobs: CpuJobs) -> int:
    """Return the milli-CPU of the usable nodes that jobs without GPUs may use."""
    nodes = ((slot, state.facts[slot]) for slot in range(len(state.facts)) if state.usable[slot])
    anywhere = cpu_jobs is CpuJobs.FREELY
    return sum(state.cpu[slot] for slot, node in nodes if node and (anywhere or node.without_gpus))


def _holds_all(state: ClusterState, job: JobRequest, strategy: str) -> bool | None:
    """Whether all of the job fits on the empty shard; None if it is misconfigured."""
    for models in choices(job, state.gpu_models()):
        statement = Statement(state)
        found = place_job(statement, narrowed(job, models), strategy=strategy)
        statement.rollback()
        if isinstance(found, PlacementFailure):
            if found.misconfigured:
                return None
        elif job.gang or len(found) == job.pods:
            return True
    return False


def regrouped(
    scope: str, homes: Mapping[str, str], jobs: Mapping[str, Iterable[str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what leaves `scope` when the declaration changes: {node: new scope}, {job: new scope}.

    `homes`: the home of each node of the scope by the new declaration. `jobs`: the nodes of each
    job that holds places here. Nodes that share a job move together, and the job with them: to
    their home if they all have the same, else to `WIDE`.
    """
    parts: dict[str, set[str]] = {name: {name} for name in homes}
    for names in jobs.values():
        joined = set().union(*(parts[name] for name in names if name in parts))
        parts.update(dict.fromkeys(joined, joined))
    target = {}
    for name, part in parts.items():
        wanted = {homes[other] for other in part}
        target[name] = wanted.pop() if len(wanted) == 1 else WIDE
    moved = {name: to for name, to in target.items() if to != scope}
    with_them = {}
    for job, names in jobs.items():
        to = next((target[name] for name in names if name in target), scope)
        if to != scope:
            with_them[job] = to
    return moved, with_them
