"""How users have set up the table of jobs."""

from typing import TypedDict

from django.conf import settings
from django.db import models

from scheduling.models.shaped import ShapedField, Texts


class SavedView(TypedDict):
    """A named view: the query string of the table's address, without `?`."""

    name: str
    query: str


class JobTable(models.Model):
    """A user's columns of the table of jobs (`columns`, empty = default) and named views of it."""

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
