"""What of the jobs' history is still there."""

from django.db import models


class Retention(models.Model):
    """One row, once anything was deleted: of jobs that ended before `complete_from` some are gone,
    of all others none."""

    complete_from = models.DateTimeField()
