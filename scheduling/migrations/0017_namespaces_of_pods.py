from django.db import migrations, models
from django.db.models import OuterRef, Q, Subquery

LIVE = ('INTENDED', 'BOUND', 'RUNNING')
TERMINAL = ('SUCCEEDED', 'FAILED', 'CANCELLED')


def fill(apps, _schema_editor):
    """Of pods that still matter to a scheduler. Those of jobs that are over for long are millions,
    and nothing asks where they were."""
    jobs = apps.get_model('scheduling', 'Job').objects.filter(pk=OuterRef('job'))
    placements = apps.get_model('scheduling', 'Placement').objects
    rows = placements.filter(Q(state__in=LIVE) | ~Q(job__state__in=TERMINAL))
    for plain, namespace in ((False, 'cluster__namespace'), (True, 'pod_namespace')):
        of_kind = rows.exclude(job__pod_name='') if plain else rows.filter(job__pod_name='')
        of_kind.update(namespace=Subquery(jobs.values(namespace)[:1]))


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0016_pace'),
    ]

    operations = [
        migrations.AddField(
            model_name='placement',
            name='namespace',
            field=models.CharField(default='', max_length=63),
            preserve_default=False,
        ),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    ]
