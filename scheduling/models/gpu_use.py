"""How busy the GPUs of a job were."""

from django.db import models

from scheduling.models.jobs import Job


class JobGpuUse(models.Model):
    """Of the GPU time that a job held until `until`: of how much it was `measured` how busy the
    GPUs were, and how much of that they were `idle`, both in milli-GPU x milliseconds."""

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="gpu_use"
    )
    until = models.DateTimeField()
    measured = models.BigIntegerField(default=0)
    idle = models.BigIntegerField(default=0)
