"""CSV traces as their publishers lay them out: ITP, Helios, Philly, Acme; and SWF.

Each reader takes the lines of the file and yields jobs in the order of the file. Jobs that asked
for no GPU are left out, because Kant would not have placed them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduling.engine.states import JobState
from scheduling.simulator.traces.jobs import TraceJob, jobs_in
from scheduling.simulator.traces.table import MOST_GPUS, BadRows, Row, TraceFormatError, table

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


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """Which column of a published CSV holds what; "" = the trace does not say.

    `required`: the columns by which the format is recognised, in the order of LAYOUTS; the columns
    of tenant and user may be missing. `submitted` holds dates if `dated`, otherwise seconds since
    the start of the trace.
    """

    required: tuple[str, ...]
    id: str
    submitted: str
    duration: str
    gpus: str
    tenant: str = ""
    user: str = ""
    ends: str = ""
    dated: bool = True

    def read(self, row: Row) -> TraceJob | None:
        gpus = row.whole(self.gpus, most=MOST_GPUS)
        if not gpus:
            return None
        ends = row.choice(self.ends, ENDS) if self.ends else JobState.SUCCEEDED
        # A job that was cancelled while it waited has no run, so the trace has no run time.
        never_ran = ends is JobState.CANCELLED and not row.text("start_time", "")
        return TraceJob(
            row.text(self.id),
            row.instant(self.submitted) if self.dated else row.number(self.submitted),
            row.seconds(self.duration, default=0.0 if never_ran else None),
            gpus,
            tenant=_slug(row.text(self.tenant, "")) if self.tenant else "",
            ends=ends,
            user=row.text(self.user, "") if self.user else "",
        )

    def jobs(self, lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
        return jobs_in(
            table(lines, self.required),
            self.read,
            bad,
            id_column=self.id,
            submitted_column=self.submitted,
        )


def _slug(text: str) -> str:
    return text.lower().replace(" ", "-")


LAYOUTS = {
    # Microsoft ITP.
    "itp": CsvLayout(
        ("job_id", "submission_time", "duration", "num_gpu"),
        id="job_id",
        submitted="submission_time",
        duration="duration",
        gpus="num_gpu",
        dated=False,
    ),
    # InternLM Acme: the job's type (pretrain, evaluation, …) is kept as its tenant.
    "acme": CsvLayout(
        ("job_id", "user", "node_num", "gpu_num", "type", "state", "submit_time", "duration"),
        id="job_id",
        submitted="submit_time",
        duration="duration",
        gpus="gpu_num",
        tenant="type",
        user="user",
        ends="state",
    ),
    # SenseTime Helios: the virtual cluster is the tenant.
    "helios": CsvLayout(
        ("job_id", "user", "gpu_num", "state", "submit_time", "duration"),
        id="job_id",
        submitted="submit_time",
        duration="duration",
        gpus="gpu_num",
        tenant="vc",
        user="user",
        ends="state",
    ),
    # Microsoft Philly as CSV: run time in seconds, the virtual cluster is the tenant.
    "philly": CsvLayout(
        ("jobid", "status", "submitted_time", "run_time", "gpus"),
        id="jobid",
        submitted="submitted_time",
        duration="run_time",
        gpus="gpus",
        tenant="vc",
        user="user",
        ends="status",
    ),
}

SWF_FIELDS = (
    "job", "submit", "wait", "run", "allocated", "cpu_used", "memory_used", "requested",
    "requested_time", "requested_memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding", "think",
)  # fmt: skip
SWF_ENDS = {
    -1: JobState.SUCCEEDED,
    0: JobState.FAILED,
    1: JobState.SUCCEEDED,
    5: JobState.CANCELLED,
}


def swf(lines: Iterable[str], bad: BadRows) -> Iterator[TraceJob]:
    """Read the Standard Workload Format (Feitelson): 18 fields, -1 = unknown.

    Processors count as GPUs. The group is the tenant. Partial executions (status 2-4) and jobs of
    unknown run time or size are left out, as the format asks.
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
        status = row.whole("status", least=-1, most=5)
        if status in (2, 3, 4):
            return None
        size = max(
            row.whole(column, least=-1, most=MOST_GPUS) for column in ("requested", "allocated")
        )
        run = row.seconds("run", least=-1)
        if size <= 0 or run < 0:
            return None
        limit = row.number("requested_time", least=-1)
        preceding = row.whole("preceding", least=-1)
        group, user = row.whole("group", least=-1), row.whole("user", least=-1)
        return TraceJob(
            row.text("job"),
            row.number("submit"),
            run,
            size,
            tenant=f"group-{group}" if group >= 0 else "",
            declared_s=limit if limit > 0 else None,
            ends=SWF_ENDS[status],
            after=(str(preceding),) if preceding > 0 else (),
            user=f"user-{user}" if user >= 0 else "",
        )

    return jobs_in(
        rows(), read, bad, id_column="job", submitted_column="submit", after_column="preceding"
    )
