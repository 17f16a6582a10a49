"""How busy the GPUs of a job were, as far as it was measured."""

from dataclasses import dataclass
from datetime import datetime

from scheduling.models import Job, JobGpuUse

MILLI_MS_PER_GPU_HOUR = 1000 * 3_600_000


@dataclass(frozen=True, slots=True)
class GpuUseOfJob:
    """`measured_gpu_hours`: of how much of what the job held it is known how busy the GPUs were;
    `idle_gpu_hours`: how much of that nothing ran on them. `until`: up to when."""

    measured_gpu_hours: float
    idle_gpu_hours: float
    until: datetime

    @property
    def busy(self) -> float:
        """The share of the time in which something ran on its GPUs, from 0 to 1."""
        return 1 - self.idle_gpu_hours / self.measured_gpu_hours


def gpu_use_of(job: Job) -> GpuUseOfJob | None:
    """None where nothing was measured. Read without a query of a job that never had a place, and
    where `gpu_use` was selected."""
    row: JobGpuUse | None = getattr(job, "gpu_use", None) if job.attempt else None
    if row is None or not row.measured:
        return None
    measured, idle = row.measured / MILLI_MS_PER_GPU_HOUR, row.idle / MILLI_MS_PER_GPU_HOUR
    return GpuUseOfJob(measured, idle, row.until)
