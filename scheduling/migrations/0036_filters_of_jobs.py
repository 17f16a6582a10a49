"""Indexes for what lists of jobs are filtered by, and on PostgreSQL for parts of their names."""

import logging

from django.conf import settings
from django.db import ProgrammingError, migrations, models, transaction

log = logging.getLogger(__name__)
# As the search compares names, so that it finds the index.
INDEX = (
    'CREATE INDEX parts_of_job_names ON "scheduling_job" USING gin (UPPER("name"::text) gin_trgm_ops)'
)


def find_parts_of_names(apps, schema_editor):
    here = schema_editor.connection
    if here.vendor != "postgresql":
        return
    try:
        with transaction.atomic(using=here.alias), here.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_trgm'")
            if cursor.fetchone() is None:
                raise ProgrammingError("the server does not have it")
            cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
            cursor.execute(INDEX)
    except ProgrammingError as error:
        # Searches work without it.
        log.warning(
            "Searches for parts of job names read all jobs: the extension pg_trgm cannot be used "
            "(%s). Install it, then: %s",
            str(error).strip(),
            INDEX,
        )


def forget_parts_of_names(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP INDEX IF EXISTS parts_of_job_names")


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0035_how_containers_run'),
        ('tenants', '0001_squashed_0009_applied_documents'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunPython(find_parts_of_names, forget_parts_of_names),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('held', True)), fields=['-submitted_at', '-id'], name='held_jobs'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('reason', ''), _negated=True), fields=['reason', '-submitted_at', '-id'], name='jobs_with_a_reason'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('gpu_milli__gte', 64000)), fields=['-gpu_milli'], name='large_jobs'),
        ),
    ]
