"""What is decided on a snapshot: the next cycle of each of its schedulers, as they would run it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult, Waiting
from scheduling.queries.snapshots.document import Snapshot, SnapshotScope


@dataclass(frozen=True, slots=True)
class ScopeDecided:
    """What the scheduler of a scope decides if it begins with the facts of the snapshot."""

    scope: str
    result: CycleResult


def decide(snapshot: Snapshot) -> list[ScopeDecided]:
    """Run the next cycle of each scheduler, at the time of the snapshot.

    An exception of the engine propagates: it is a defect of the engine.
    """
    return [ScopeDecided(one.scope, next_cycle(one, snapshot.at)) for one in snapshot.scopes]


def next_cycle(scope: SnapshotScope, at: float) -> CycleResult:
    """Run the next cycle of one scheduler, `at` seconds since the epoch."""
    return run_cycle(SchedulerState(told_of_runs=True), scope.facts, at)


def decisions_of(snapshot: Snapshot, decided: Iterable[ScopeDecided]) -> dict[str, Any]:
    """Return the decisions as JSON, in the order in which they were made."""
    return {
        "cluster": snapshot.cluster,
        "at": snapshot.at,
        "anonymised": snapshot.anonymised,
        "scopes": [_of_scope(one, snapshot.names) for one in decided],
    }


def _of_scope(decided: ScopeDecided, names: Mapping[str, str]) -> dict[str, Any]:
    result = decided.result

    def job(job_id: str) -> dict[str, Any]:
        return {"job": job_id, "name": names.get(job_id)}

    return {
        "scope": decided.scope,
        "starts": [
            {
                **job(start.job_id),
                "pods": [
                    {
                        "pod_set": p.pod_set, "ordinal": p.ordinal, "node": p.node,
                        "devices": list(p.devices), "nics": list(p.nics), "gpu_milli": p.milli,
                    }
                    for p in start.placements
                ],
                "borrows": [{"gpu_type": m, "gpus": milli / 1000} for m, milli in start.borrowed],
            }
            for start in result.started
        ],
        "preempts": [
            {
                **job(one.job_id), "by": one.by, "kind": one.kind, "whole": one.whole,
                "pods": [list(pod) for pod in one.pods], "lost_gpu_s": one.cost_gpu_s,
            }
            for one in result.preempted
        ],
        "moves": [
            {
                **job(one.job_id), "pod_set": one.pod_set, "ordinal": one.ordinal,
                "from": one.source, "to": one.target,
                **({"whole": True, "lost_gpu_s": one.cost_gpu_s} if one.whole else {}),
            }
            for one in result.moved
        ],
        "waits": [{**job(one.job_id), **_why(one)} for one in result.waiting],
        "stays": [{**job(one.job_id), **_why(one)} for one in result.staying],
        "reserves": [
            {**job(one.job_id), "start_at": one.start_at, "nodes": list(one.nodes)}
            for one in result.reservations
        ],
        "lost": [
            {**job(job_id), "pod_set": pod_set, "ordinal": ordinal}
            for job_id, pod_set, ordinal in result.lost
        ],
    }  # fmt: skip


def _why(one: Waiting) -> dict[str, Any]:
    said = one.verdict
    return {
        "reason": said.reason, "summary": said.summary, "evidence": dict(said.evidence),
        "remedies": list(said.remedies),
    }  # fmt: skip
