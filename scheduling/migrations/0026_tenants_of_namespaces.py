from django.db import migrations, models


def allow_where_pods_came(apps, schema_editor):
    """Until now any namespace could use any tenant: clusters that took up pods go on like that."""
    for cluster in apps.get_model("scheduling", "Cluster").objects.all():
        if cluster.jobs.exclude(pod_name="").exists():
            cluster.namespace_tenants = {"*": ["*"]}
            cluster.save(update_fields=["namespace_tenants"])


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0025_job_rules"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="namespace_tenants",
            field=models.JSONField(
                blank=True, db_default=models.Value({}, models.JSONField()), default=dict
            ),
        ),
        migrations.RunPython(allow_where_pods_came, migrations.RunPython.noop),
    ]
