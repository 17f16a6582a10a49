import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    # Databases made from here on; those that are there go on by the migrations replaced.
    replaces = [
        ('metrics', '0001_initial'),
        ('metrics', '0002_initial'),
        ('metrics', '0003_countertotals'),
        ('metrics', '0004_waits_by_pool'),
        ('metrics', '0005_usage_days'),
        ('metrics', '0006_borrowed_days'),
        ('metrics', '0007_replays'),
        ('metrics', '0008_replay_quotas'),
        ('metrics', '0009_newest_samples'),
        ('metrics', '0010_first_starts_and_told'),
    ]

    dependencies = [
        ('scheduling', '0001_squashed_0033_queue_debts'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='BorrowedDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField(db_index=True)),
                ('tenant_id', models.BigIntegerField()),
                ('tenant_name', models.CharField(max_length=63)),
                ('gpu_model', models.CharField(max_length=63)),
                ('borrowed', models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name='CounterTotals',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('until', models.DateTimeField()),
                ('events', models.JSONField(default=dict)),
                ('waits', models.JSONField(default=dict)),
                ('first_starts', models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
            ],
        ),
        migrations.CreateModel(
            name='UsageDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField(db_index=True)),
                ('cluster_id', models.BigIntegerField()),
                ('cluster_name', models.CharField(max_length=63)),
                ('tenant_id', models.BigIntegerField()),
                ('tenant_name', models.CharField(max_length=63)),
                ('user_id', models.BigIntegerField(null=True)),
                ('user_name', models.CharField(blank=True, max_length=150)),
                ('gpu_model', models.CharField(max_length=63)),
                ('kind', models.CharField(max_length=16)),
                ('held', models.BigIntegerField()),
                ('lost', models.BigIntegerField()),
                ('pods', models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name='UsageLedger',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('until', models.DateField()),
                ('complete_from', models.DateField(null=True)),
                ('borrowed_from', models.DateField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='MetricSample',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('gpu_model', models.CharField(blank=True, max_length=63)),
                ('at', models.DateTimeField()),
                ('available_milli', models.BigIntegerField()),
                ('allocated_milli', models.BigIntegerField()),
                ('excluded_milli', models.BigIntegerField(default=0)),
                ('nodes', models.PositiveIntegerField()),
                ('fragmented_nodes', models.PositiveIntegerField()),
                ('free_by_node', models.JSONField(default=dict)),
                ('largest_gang_leaf', models.PositiveIntegerField(default=0)),
                ('largest_gang_any', models.PositiveIntegerField(default=0)),
                ('pending_jobs', models.PositiveIntegerField(default=0)),
                ('pending_milli', models.BigIntegerField(default=0)),
                ('allocated_milli_s', models.FloatField(default=0.0)),
                ('available_milli_s', models.FloatField(default=0.0)),
                ('told_milli_s', models.FloatField(db_default=0.0, default=0.0)),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='samples', to='scheduling.cluster')),
            ],
            options={
                'ordering': ['at'],
                'indexes': [models.Index(fields=['cluster', 'at'], name='metrics_met_cluster_0cbb07_idx')],
                'constraints': [models.UniqueConstraint(fields=('cluster', 'gpu_model', 'at'), name='one_sample_per_instant')],
            },
        ),
        migrations.CreateModel(
            name='Replay',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('since', models.DateTimeField()),
                ('until', models.DateTimeField()),
                ('policy_before', models.JSONField()),
                ('policy', models.JSONField()),
                ('nodes', models.JSONField(default=list)),
                ('quotas_before', models.JSONField(default=list)),
                ('quotas', models.JSONField(default=list)),
                ('state', models.CharField(choices=[('QUEUED', 'Queued'), ('RUNNING', 'Running'), ('DONE', 'Done'), ('FAILED', 'Failed'), ('CANCELLED', 'Cancelled')], default='QUEUED', max_length=16)),
                ('progress', models.FloatField(default=0.0)),
                ('message', models.TextField(blank=True)),
                ('created_at', models.DateTimeField()),
                ('started_at', models.DateTimeField(null=True)),
                ('alive_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('result', models.JSONField(null=True)),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='replays', to='scheduling.cluster')),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-created_at', '-id'],
                'indexes': [models.Index(fields=['-created_at', '-id'], name='metrics_rep_created_127473_idx')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'RUNNING')), fields=('state',), name='one_replay_runs_at_a_time')],
            },
        ),
    ]
