import django.db.models.deletion
from django.db import migrations, models

BATCH = 1000


def fill(apps, _schema_editor):
    """Until now a plain pod was a job by itself, and its uid the id of that."""
    pod_model = apps.get_model('scheduling', 'JobPod')
    jobs = apps.get_model('scheduling', 'Job').objects.exclude(pod_name='').order_by('pk')
    rows = jobs.values_list('pk', 'pod_name', 'labels', 'tenant__name')
    batch = []
    for job_id, name, labels, tenant in rows.iterator(chunk_size=BATCH):
        labels = {**labels, 'kant.io/tenant': tenant}
        batch.append(
            pod_model(job_id=job_id, pod_set=0, ordinal=0, uid=job_id, name=name, labels=labels)
        )
        if len(batch) == BATCH:
            pod_model.objects.bulk_create(batch)
            batch = []
    pod_model.objects.bulk_create(batch)


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0017_namespaces_of_pods'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='pod_gang',
            field=models.CharField(blank=True, editable=False, max_length=63),
        ),
        migrations.CreateModel(
            name='JobPod',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('pod_set', models.PositiveSmallIntegerField()),
                ('ordinal', models.PositiveIntegerField()),
                ('uid', models.UUIDField(db_index=True)),
                ('name', models.CharField(max_length=253)),
                ('labels', models.JSONField(blank=True, default=dict)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='pods', to='scheduling.job')),
            ],
            options={
                'ordering': ['job', 'pod_set', 'ordinal'],
                'constraints': [models.UniqueConstraint(fields=('job', 'pod_set', 'ordinal'), name='one_plain_pod_per_place')],
            },
        ),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    ]
