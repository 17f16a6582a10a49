"""How busy the GPUs of a job were, as far as it was measured."""

from dataclasses import dataclass
from datetime import datetime

from scheduling.models import Job, JobGpuUse

MILLI_MS_PER_GPU_HOUR = 1000 * 3_600_000


@dataclass(frozen=True, slots=True)
class GpuUseOfJob:
    """The measured use of a job's GPUs, up to `until`.

    `measured_gpu_hours`: the part of what the job held that was measured. `idle_gpu_hours`: the
    part of that in which nothing ran.
    """

    measured_gpu_hours: float
    idle_gpu_hours: float
    until: datetime

    @property
    def busy(self) -> float:
        """The share of the measured time in which something ran on its GPUs, from 0 to 1."""
        return 1 - self.idle_gpu_hours / self.measured_gpu_hours


def gpu_use_of(job: Job) -> GpuUseOfJob | None:
    """Return the measured use of a job's GPUs; None = nothing was measured.

    Takes no query for a job that never had a place, or if `gpu_use` was selected.
    """
    row: JobGpuUse | None = getattr(job, "gpu_use", None) if job.attempt else None
    if row is None or not row.measured:
        return None
    measured, idle = row.measured / MILLI_MS_PER_GPU_HOUR, row.idle / MILLI_MS_PER_GPU_HOUR
    return GpuUseOfJob(measured, idle, row.until)
