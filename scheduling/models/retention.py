"""How much of the jobs' history is still there."""

from django.db import models


class Retention(models.Model):
    """A single row, once anything was deleted.

    Some jobs that ended before `complete_from` are gone; all others are there.
    """

    complete_from = models.DateTimeField()
