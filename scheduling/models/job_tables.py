"""What people keep of the table of jobs."""

from typing import TypedDict

from django.conf import settings
from django.db import models

from scheduling.models.shaped import ShapedField, Texts


class SavedView(TypedDict):
    """A name and what stands behind `?` in the address of the table."""

    name: str
    query: str


class JobTable(models.Model):
    """The columns that somebody chose for the table of jobs, `columns` empty = the usual ones, and
    the views of it that they keep under a name."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="job_table",
    )
    columns = ShapedField(shape=Texts, default=list, blank=True)
    views = ShapedField(shape=list[SavedView], default=list, blank=True)

    class Meta:
        ordering = ["user"]
