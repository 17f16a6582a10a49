from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import F


def not_known_of_written_days(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    ledger = apps.get_model("metrics", "UsageLedger")
    ledger.objects.update(borrowed_from=F("until"))


class Migration(migrations.Migration):

    dependencies = [
        ('metrics', '0005_usage_days'),
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
        migrations.AddField(
            model_name='usageledger',
            name='borrowed_from',
            field=models.DateField(null=True),
        ),
        migrations.RunPython(not_known_of_written_days, migrations.RunPython.noop),
    ]
