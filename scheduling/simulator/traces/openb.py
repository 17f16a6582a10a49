"""The openb machines and pod lists (alibaba/clusterdata, cluster-trace-gpu-v2023)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduling.engine.cluster.facts import MAX_GPUS
from scheduling.engine.types import MILLI
from scheduling.simulator.fleet import MAX_CPU_MILLI, MAX_MEMORY_MIB
from scheduling.simulator.traces.jobs import TraceJob, jobs_in
from scheduling.simulator.traces.table import (
    MOST_HOURS,
    BadRows,
    Row,
    TraceFormatError,
    each,
    table,
)

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
JOB_COLUMNS = (*POD_COLUMNS, "creation_time", "deletion_time", "scheduled_time")


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of the list: `gpus` GPUs of one model."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str


@dataclass(frozen=True, slots=True)
class Pod:
    """What a pod asks for: `gpus` GPUs of `gpu_milli` each, on one of `gpu_models`; () = any."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    gpu_models: tuple[str, ...]

    @property
    def milli(self) -> int:
        return self.gpus * self.gpu_milli


def machines(lines: Iterable[str]) -> list[Machine]:
    """Return the node list by name. Raises TraceFormatError, also for a name that occurs twice."""

    def read(row: Row) -> Machine:
        return Machine(
            name=row.text("sn"),
            cpu_milli=row.whole("cpu_milli", most=MAX_CPU_MILLI),
            memory_mib=row.whole("memory_mib", most=MAX_MEMORY_MIB),
            gpus=row.whole("gpu", most=MAX_GPUS),
            gpu_model=row.text("model"),
        )

    found: dict[str, Machine] = {}
    for machine in each(table(lines, NODE_COLUMNS), read, BadRows()):
        if machine.name in found:
            raise TraceFormatError(f"column sn: the name {machine.name!r} appears twice")
        found[machine.name] = machine
    if not found:
        raise TraceFormatError("line 2: the list has no machines")
    return [found[name] for name in sorted(found)]


def _pod(row: Row) -> Pod:
    row.text("name")
    gpus, gpu_milli = row.whole("num_gpu", most=MAX_GPUS), row.whole("gpu_milli")
    if gpu_milli > MILLI or (gpus and not gpu_milli) or (gpu_milli and not gpus):
        expected = f"1 to {MILLI}" if gpus else "0, as num_gpu is 0"
        raise row.wrong("gpu_milli", expected)
    if gpus > 1 and gpu_milli < MILLI:
        raise row.wrong("gpu_milli", f"{MILLI}: a share is of exactly one GPU")
    spec = row.text("gpu_spec", default="")
    return Pod(
        cpu_milli=row.whole("cpu_milli", most=MAX_CPU_MILLI),
        memory_mib=row.whole("memory_mib", most=MAX_MEMORY_MIB),
        gpus=gpus,
        gpu_milli=gpu_milli,
        gpu_models=tuple(sorted({m.strip() for m in spec.split("|")} - {""})),
    )


def pods(lines: Iterable[str]) -> list[Pod]:
    """Return a pod list in its order. Raises TraceFormatError."""
    found = list(each(table(lines, POD_COLUMNS), _pod, BadRows()))
    if not found:
        raise TraceFormatError("line 2: the list has no pods")
    return found


def jobs(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """Yield the pods of a list as jobs of one pod each, from their creation to their deletion.

    A pod that was never scheduled is taken to run from its creation; pods without GPUs are left
    out.
    """

    def read(row: Row) -> TraceJob | None:
        pod = _pod(row)
        if not pod.gpus:
            return None
        created, deleted = row.number("creation_time"), row.number("deletion_time")
        started = row.number("scheduled_time", default=created)
        if deleted < max(created, started):
            raise row.wrong("deletion_time", "a time after the pod's creation and start")
        if deleted - started > 3600 * MOST_HOURS:
            raise row.wrong("deletion_time", f"a time within {MOST_HOURS:,} hours of its start")
        return TraceJob(
            row.text("name"),
            created,
            deleted - started,
            pod.milli / MILLI,
            pods=1,
            gpu_models=pod.gpu_models,
            cpu_milli=pod.cpu_milli,
            memory_mib=pod.memory_mib,
        )

    return jobs_in(
        table(lines, JOB_COLUMNS), read, bad, id_column="name", submitted_column="creation_time"
    )
