"""Invariants that must hold whatever happens.

They are checked against sources that do not depend on Kant's code: the cluster's own audit of its
bindings, its pods, and the rows of the database.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg

from metrics.benches.stage import MODEL
from metrics.chaos.load import PLAIN_PODS, Submission, Submitters, expected_jobs
from metrics.chaos.organisation import GANG_TIMEOUT_S, ROOT
from metrics.chaos.shape import ProductionShape
from scheduling.engine.states import TERMINAL, WAITING
from scheduling.engine.verdict import NEVER
from scheduling.kube.translate.manifests import JOB
from scheduling.kube.translate.plain_pods import GANG

LOOK_S = 1.0
AGREE_LOOK_S = 0.25
# In addition to a gang's time-out: Kant must notice, and the pods must go, on a possibly busy
# machine.
UNBINDS_WITHIN_S = 45.0
KANT_PODS = "/api/v1/namespaces/kant-jobs/pods"
KANT_SERVICES = "/api/v1/namespaces/kant-jobs/services"
HELD = """
SELECT p.pod_uid, p.pod_name, p.node, p.devices, p.milli, p.held_milli, j.name, j.state, t.name
FROM scheduling_placement p JOIN scheduling_job j ON j.id = p.job_id
JOIN tenants_tenant t ON t.id = j.tenant_id
WHERE p.state IN ('INTENDED', 'BOUND', 'RUNNING')
"""
NODE_ROWS = "SELECT name, allocated_milli FROM scheduling_noderecord"
# The jobs of an array are named after it, plus their index.
JOBS = """
SELECT CASE WHEN array_index IS NULL THEN name
            ELSE left(name, -1 - length(array_index::text)) END AS submitted, count(*)
FROM scheduling_job WHERE pod_name = '' GROUP BY submitted
"""
PLAIN_JOBS = "SELECT name, job_id::text FROM scheduling_jobpod"
EVENTS = """
SELECT j.name, j.array_index, j.state, e.kind, e.from_state, e.to_state
FROM scheduling_jobevent e JOIN scheduling_job j ON j.id = e.job_id
WHERE e.from_state <> e.to_state ORDER BY e.job_id, e.id
"""
OPEN_JOBS = (
    "SELECT name, pod_name, state, reason, message FROM scheduling_job WHERE ended_at IS NULL"
)


class Violation(NamedTuple):
    """A violated invariant, and its round; None = after the last one."""

    round: int | None
    invariant: str
    detail: str


def no_device_twice(shape: ProductionShape) -> list[str]:
    """Return every time that pods together held more than all of one device, from the cluster's
    audit."""
    return [
        f"{double['node']} device {double['device']}: {double['milli']} milli by "
        f"{', '.join(double['pods'])} at {double['at']}"
        for double in _audit(shape)["double_holdings"]
    ]


def jobs_lost_or_doubled(shape: ProductionShape, made: list[Submission]) -> Iterator[str]:
    """Yield violations: an answered submission must have created exactly the jobs it asked for; an
    unanswered one these or none."""
    expected = expected_jobs(made)
    # Read the answers first: a submission answered between the two reads has its rows.
    answered = {name for name, each in expected.items() if each.answered}
    found: dict[str, int] = dict(shape.rows(JOBS))
    for name, each in expected.items():
        count = found.pop(name, 0)
        if count != each.jobs and (count or name in answered):
            yield f"{name} is {count} jobs, not {each.jobs}; its answers: {each.answers}"
    for name, count in found.items():
        yield f"{name} is {count} jobs, and nobody submitted it"
    jobs: defaultdict[str, set[str]] = defaultdict(set)
    for pod, job in shape.rows(PLAIN_JOBS):
        jobs[pod].add(job)
    for each in made:
        found_in = set[str]().union(*(jobs.pop(pod["metadata"]["name"], ()) for pod in each.pods))
        if len(found_in) > 1:
            yield f"plain pods {each.name} are {len(found_in)} jobs, not 1"
    for pod in jobs:
        yield f"plain pod {pod} has a job, and nobody made it"


def books_differ(shape: ProductionShape) -> list[str]:
    """Return where placements, use of quotas, the nodes' rows and the cluster's audit differ now.

    They may differ while anything moves; what counts is whether they ever agree.
    """
    audit = _audit(shape)
    held = shape.rows(HELD)
    nodes: dict[str, int] = dict(shape.rows(NODE_ROWS))
    status, quotas = shape.rest("GET", "/quotas")
    if status != 200:
        return [f"the quotas answer {status}"]
    again = _audit(shape)
    if (audit["open"], audit["closed"]) != (again["open"], again["closed"]):
        return ["pods came or went in between"]
    return [
        *_placements_differ(audit, held),
        *_nodes_differ(audit, nodes),
        *_quotas_differ(held, quotas),
    ]


def _placements_differ(audit: dict[str, Any], held: list[tuple[Any, ...]]) -> Iterator[str]:
    by_cluster = {
        h["uid"]: (h["node"], tuple(sorted(h["devices"])), h["milli"], h["pod"])
        for h in audit["holdings"]
        if not h.get("until")
    }
    for uid, pod, node, devices, milli, held_milli, job, state, _ in held:
        theirs = by_cluster.pop(uid, None)
        ours = (node, tuple(sorted(devices)), milli)
        if theirs is None:
            yield f"pod {pod} of job {job} ({state}) holds {ours} for Kant alone"
        elif theirs[:3] != ours:
            yield f"pod {pod} holds {ours} for Kant and {theirs[:3]} for the cluster"
        if held_milli != milli * len(devices):
            yield f"pod {pod} counts as {held_milli} milli and holds {ours}"
    for node, devices, milli, pod in by_cluster.values():
        yield f"pod {pod} holds {(node, devices, milli)} for the cluster alone"


def _nodes_differ(audit: dict[str, Any], nodes: dict[str, int]) -> Iterator[str]:
    held: Counter[str] = Counter()
    for holding in audit["holdings"]:
        if not holding.get("until"):
            held[holding["node"]] += holding["milli"] * len(holding["devices"])
    for name, milli in nodes.items():
        if held[name] != milli:
            yield f"node {name} has {milli} milli allocated for Kant, {held[name]} for the cluster"


def _quotas_differ(held: list[tuple[Any, ...]], quotas: Any) -> Iterator[str]:
    used: Counter[str] = Counter()
    for *_, held_milli, _, _, tenant in held:
        used[tenant] += held_milli
    used[ROOT] = used.total()
    for row in quotas["items"]:
        if row["gpu_type"] == MODEL and row["used"] * 1000 != used[row["tenant"]]:
            yield (
                f"quota of {row['tenant']}: {row['used']:g} GPUs used, "
                f"{used[row['tenant']] / 1000:g} by its placements"
            )


def histories_broken(shape: ProductionShape) -> Iterator[str]:
    """Yield violations: each event of a job must start in the state where the previous one ended,
    and the last one must end in the job's state."""
    at: dict[tuple[str, int | None], str] = {}
    states: dict[tuple[str, int | None], str] = {}
    for name, index, state, kind, before, then in shape.rows(EVENTS):
        job = name, index
        if at.get(job, "") != before and job in at:
            yield f"job {_named(job)}: {kind} from {before}, and it was {at[job]}"
        at[job], states[job] = then, state
    for job, state in states.items():
        if at[job] != state:
            yield f"job {_named(job)} is {state}, and its events end at {at[job]}"


def _named(job: tuple[str, int | None]) -> str:
    name, index = job
    return name if index is None else f"{name}[{index}]"


def left_over(shape: ProductionShape) -> Iterator[str]:
    """Yield what is left although everything should have ended: jobs (except those that can never
    start), pods, services, holdings."""
    for name, pod, state, reason, message in shape.rows(OPEN_JOBS):
        if state in TERMINAL or (state in WAITING and reason in NEVER):
            continue
        yield f"job {name or pod} is {state}: {reason} {message}"
    for path in (KANT_PODS, PLAIN_PODS):  # ended pods stay, for their logs
        for pod in _items(shape, path):
            if pod["status"]["phase"] not in ("Succeeded", "Failed"):
                yield f"pod {pod['metadata']['name']} is {pod['status']['phase']}"
    for service in _items(shape, KANT_SERVICES):
        yield f"service {service['metadata']['name']} is left"
    for holding in _audit(shape)["holdings"]:
        if not holding.get("until"):
            yield f"pod {holding['pod']} holds devices of {holding['node']}"


def _audit(shape: ProductionShape) -> dict[str, Any]:
    status, found = shape.kubernetes("GET", "/sim/audit")
    if status != 200:
        raise OSError(f"the cluster's audit answers {status}")
    audit: dict[str, Any] = found
    return audit


def _items(shape: ProductionShape, path: str) -> list[dict[str, Any]]:
    status, found = shape.kubernetes("GET", path)
    if status != 200:
        raise OSError(f"{path} answers {status}")
    items: list[dict[str, Any]] = found["items"]
    return items


class GangWatch:
    """Looks every second for gangs with some pods bound and others not. A gang whose bound pods
    have all ended holds nothing: after a failure its succeeded pods stay.

    The time of such a gang counts only from the end of the last fault (`calm`). `found`: gangs that
    stayed so longer than their time-out allows. `seen`: gangs with a pod, by the id of the job or
    the name of the plain gang.
    """

    def __init__(self, shape: ProductionShape, submitters: Submitters) -> None:
        self._shape = shape
        self._submitters = submitters
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.calm = False
        self.seen: set[str] = set()
        self.found: list[str] = []

    def __enter__(self) -> "GangWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                pods = [*_items(self._shape, KANT_PODS), *_items(self._shape, PLAIN_PODS)]
            except OSError:
                self._since.clear()  # the API server is down: nobody could have bound the rest
                continue
            self._look(pods)

    def _look(self, pods: list[dict[str, Any]]) -> None:
        bound: Counter[str] = Counter()
        done: Counter[str] = Counter()
        for pod in pods:
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                labels = pod["metadata"]["labels"]
                gang = labels.get(JOB) or labels.get(GANG, "")
                bound[gang] += 1
                done[gang] += pod["status"]["phase"] in ("Succeeded", "Failed")
        gangs = [each for each in list(self._submitters.made) if each.needed]
        needed = {each.name if each.pods else each.id: each for each in gangs}
        half = {
            gang
            for gang, count in bound.items()
            if gang in needed and done[gang] < count < needed[gang].needed
        }
        self.seen |= bound.keys() & needed.keys()
        now = time.monotonic()
        begun = self._since if self.calm else {}
        self._since = {job: begun.get(job, now) for job in half}
        for job, since in self._since.items():
            if now - since > GANG_TIMEOUT_S + UNBINDS_WITHIN_S and job not in self._told:
                self._told.add(job)
                self.found.append(
                    f"{needed[job].name}: {bound[job]} pods of {needed[job].needed} bound for "
                    f"{now - since:.0f} s"
                )


def agree_within(wrong: Callable[[], list[str]], seconds: float) -> list[str]:
    """Return what is wrong once no progress has been made for this long; [] as soon as nothing is.

    A long queue after 300 rounds may take as long as the machine needs, while it gets shorter.
    """
    deadline = time.monotonic() + seconds
    fewest: int | None = None
    while True:
        try:
            found = wrong()
        except (OSError, psycopg.Error) as error:
            found = [f"{type(error).__name__}: {error}"]
        else:
            if fewest is None or len(found) < fewest:
                fewest = len(found)
                deadline = time.monotonic() + seconds
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(AGREE_LOOK_S)
