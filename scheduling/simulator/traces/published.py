"""CSV traces as their publishers lay them out: ITP, Helios, Philly, Acme; and SWF.

Each reader takes the lines of the file and yields jobs in the order of the file. Jobs that asked
for no GPU are left out: they are not Kant's to place.
"""

from collections.abc import Iterable, Iterator

from scheduling.engine.states import JobState
from scheduling.simulator.traces.jobs import TraceJob
from scheduling.simulator.traces.table import BadRows, Row, TraceFormatError, each, table

ENDS = {
    "COMPLETED": JobState.SUCCEEDED,
    "PASS": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "TIMEOUT": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
    "KILLED": JobState.CANCELLED,
}

ITP_COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")
HELIOS_COLUMNS = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "duration")
PHILLY_COLUMNS = ("jobid", "vc", "status", "submitted_time", "run_time", "gpus")
ACME_COLUMNS = ("job_id", "user", "node_num", "gpu_num", "type", "state", "submit_time", "duration")


def itp(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """Microsoft ITP: seconds since the start of the trace, whole GPUs."""

    def read(row: Row) -> TraceJob | None:
        gpus = row.whole("num_gpu")
        if not gpus:
            return None
        return TraceJob(
            row.text("job_id"),
            row.number("submission_time"),
            row.number("duration"),
            gpus,
        )

    return each(table(lines, ITP_COLUMNS), read, bad)


def helios(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """SenseTime Helios: dates, the virtual cluster (vc) is the tenant."""

    def read(row: Row) -> TraceJob | None:
        gpus = row.whole("gpu_num")
        if not gpus:
            return None
        return TraceJob(
            row.text("job_id"),
            row.instant("submit_time"),
            row.number("duration"),
            gpus,
            tenant=row.text("vc"),
            ends=row.choice("state", ENDS),
        )

    return each(table(lines, HELIOS_COLUMNS), read, bad)


def philly(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """Microsoft Philly as CSV: dates, run time in seconds, the virtual cluster is the tenant."""

    def read(row: Row) -> TraceJob | None:
        gpus = row.whole("gpus")
        if not gpus:
            return None
        return TraceJob(
            row.text("jobid"),
            row.instant("submitted_time"),
            row.number("run_time"),
            gpus,
            tenant=row.text("vc"),
            ends=row.choice("status", ENDS),
        )

    return each(table(lines, PHILLY_COLUMNS), read, bad)


def acme(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """InternLM Acme: dates; the job's type (pretrain, evaluation, …) is kept as its tenant."""

    def read(row: Row) -> TraceJob | None:
        gpus = row.number("gpu_num")
        if not gpus:
            return None
        return TraceJob(
            row.text("job_id"),
            row.instant("submit_time"),
            row.number("duration"),
            gpus,
            tenant=row.text("type", "other").lower().replace(" ", "-"),
            ends=row.choice("state", ENDS),
        )

    return each(table(lines, ACME_COLUMNS), read, bad)


SWF_FIELDS = (
    "job", "submit", "wait", "run", "allocated", "cpu_used", "memory_used", "requested",
    "requested_time", "requested_memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding", "think",
)  # fmt: skip
SWF_ENDS = {0: JobState.FAILED, 1: JobState.SUCCEEDED, 5: JobState.CANCELLED}


def swf(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """Standard Workload Format (Feitelson): 18 fields, -1 = unknown; processors count as GPUs.

    The group is the tenant. Partial executions (status 2-4) and jobs of unknown run time or size
    are left out, as the format asks.
    """

    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if not text or text.startswith(";"):
                continue
            cells = text.split()
            if len(cells) != len(SWF_FIELDS):
                bad.met(
                    TraceFormatError(
                        f"line {number}: has {len(cells)} fields, a line of SWF has 18"
                    )
                )
                continue
            yield Row(number, dict(zip(SWF_FIELDS, cells, strict=True)))

    def read(row: Row) -> TraceJob | None:
        status = row.whole("status", least=-1)
        if status in (2, 3, 4):
            return None
        size = max(row.whole("requested", least=-1), row.whole("allocated", least=-1))
        run = row.number("run", least=-1)
        if size <= 0 or run < 0:
            return None
        limit = row.number("requested_time", least=-1)
        preceding = row.whole("preceding", least=-1)
        group = row.whole("group", least=-1)
        return TraceJob(
            row.text("job"),
            row.number("submit"),
            run,
            size,
            tenant=f"group-{group}" if group >= 0 else "",
            declared_s=limit if limit > 0 else None,
            ends=SWF_ENDS.get(status, JobState.SUCCEEDED),
            after=(str(preceding),) if preceding > 0 else (),
        )

    return each(rows(), read, bad)
