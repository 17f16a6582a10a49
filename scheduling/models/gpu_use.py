"""How busy the GPUs of a job were."""

from django.db import models

from scheduling.models.jobs import Job


class JobGpuUse(models.Model):
    """Use of the GPU time that a job held until `until`, in milli-GPU x milliseconds.

    `measured`: the part for which it is known how busy the GPUs were. `idle`: the part of that in
    which they were idle.
    """

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="gpu_use"
    )
    until = models.DateTimeField()
    measured = models.BigIntegerField(default=0)
    idle = models.BigIntegerField(default=0)
