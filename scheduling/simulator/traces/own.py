"""Kant's own trace formats, CSV and JSON lines (docs/traces.md).

Columns or keys: id, submitted_at, duration_s, gpus (per pod), pods. Optional: tenant, user, queue,
gpu_model, declared_s, priority, kind, ends, after (ids separated by blanks, a list in JSON),
cluster, cluster_selector, cluster_labels (label=value separated by blanks, an object in JSON).
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from scheduling.engine.states import TERMINAL, JobState
from scheduling.engine.types import DEFAULT_QUEUE, JobKind
from scheduling.simulator.traces.jobs import TraceJob, jobs_in
from scheduling.simulator.traces.table import MOST_GPUS, BadRows, Row, TraceFormatError, table

REQUIRED = ("id", "submitted_at", "duration_s", "gpus", "pods")
LABELS = ("cluster_selector", "cluster_labels")
KNOWN = (
    *REQUIRED, "tenant", "user", "queue", "gpu_model", "declared_s", "priority", "kind", "ends",
    "after", "cluster", *LABELS,
)  # fmt: skip
KINDS = {k.value.upper(): k for k in JobKind}
ENDS = {s.value: s for s in sorted(TERMINAL)}


def own_csv(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """Read a CSV whose header has the columns above and no others."""
    return _jobs(table(lines, REQUIRED, KNOWN), bad)


def own_jsonl(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """Read one JSON object per line, with the keys above."""

    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield Row(number, _flat(number, _decoded(line)))
            except TraceFormatError as error:
                bad.met(error)
            except RecursionError:
                bad.met(TraceFormatError(f"line {number}: is nested far too deeply for a job"))
            except json.JSONDecodeError as error:
                told = f"{error.msg} at character {error.pos + 1}"
                bad.met(TraceFormatError(f"line {number}: is not JSON ({told})"))
            except ValueError as error:
                bad.met(TraceFormatError(f"line {number}: is not JSON ({error})"))

    return _jobs(rows(), bad)


def _decoded(line: str) -> Any:
    """Decode a line; numbers stay as they are written, because `Row` reads them."""
    return json.loads(
        line, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_unique
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise ValueError for a name that occurs twice: nobody knows which value is meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {twice[:60]!r} appears twice in one object")
    return found


def _jobs(rows: Iterable[Row], bad: BadRows) -> Iterator[TraceJob]:
    return jobs_in(
        rows, _read, bad, id_column="id", submitted_column="submitted_at", after_column="after"
    )


def _flat(number: int, document: Any) -> dict[str, str]:
    if not isinstance(document, dict):
        raise TraceFormatError(f"line {number}: is no JSON object")
    unknown = [k for k in document if k not in KNOWN]
    if unknown:
        raise TraceFormatError(
            f"line {number}, key {unknown[0]}: is unknown; known are {', '.join(KNOWN)}"
        )
    flat = {}
    for key, value in document.items():
        if key == "after" and isinstance(value, list):
            value = " ".join(map(str, value))
        if key in LABELS and isinstance(value, dict):
            value = " ".join(f"{name}={one}" for name, one in value.items())
        if isinstance(value, dict | list | bool):
            raise TraceFormatError(f"line {number}, key {key}: must be a text or a number")
        flat[key] = "" if value is None else str(value)
    return flat


def _read(row: Row) -> TraceJob | None:
    pods = row.whole("pods", least=1, most=MOST_GPUS)
    gpus = row.number("gpus", most=MOST_GPUS)
    if not gpus:
        return None
    if gpus < 0.001 or gpus * pods > MOST_GPUS:
        raise row.wrong("gpus", f"0.001 and more, at most {MOST_GPUS:,} in all pods")
    if gpus != int(gpus) and (gpus > 1 or pods > 1):
        raise row.wrong("gpus", "a whole number of GPUs a pod, or a fraction below 1 of one pod")
    model = row.text("gpu_model", "")
    declared = row.seconds("declared_s", default=0.0)
    return TraceJob(
        id=row.text("id"),
        submitted_at=row.number("submitted_at"),
        duration_s=row.seconds("duration_s"),
        gpus=gpus * pods,
        pods=pods,
        tenant=row.text("tenant", ""),
        gpu_models=(model,) if model else None,
        declared_s=declared or None,
        priority=row.whole("priority", least=-1000, most=1_000_000, default=0),
        kind=row.choice("kind", KINDS) if row.values.get("kind") else JobKind.TRAINING,
        ends=row.choice("ends", ENDS) if row.values.get("ends") else JobState.SUCCEEDED,
        after=tuple(row.text("after", "").split()),
        user=row.text("user", ""),
        queue=row.text("queue", "") or DEFAULT_QUEUE,
        cluster=row.text("cluster", ""),
        cluster_selector=_labels(row, "cluster_selector"),
        cluster_labels=_labels(row, "cluster_labels"),
    )


def _labels(row: Row, column: str) -> dict[str, str]:
    pairs = [one.split("=") for one in row.text(column, "").split()]
    if not all(len(pair) == 2 and pair[0] for pair in pairs):
        raise row.wrong(column, "label=value, separated by blanks")
    return dict(pairs)
