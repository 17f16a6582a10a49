from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0002_initial")]

    operations = [
        migrations.AddField("noderecord", "cpu_milli", models.PositiveBigIntegerField(default=0)),
        migrations.AddField("noderecord", "memory_mib", models.PositiveBigIntegerField(default=0)),
        migrations.AddField("noderecord", "max_pods", models.PositiveIntegerField(default=110)),
        migrations.AddField("noderecord", "extended", models.JSONField(default=dict)),
        migrations.AddField("noderecord", "labels", models.JSONField(default=dict)),
        migrations.AddField("noderecord", "taints", models.JSONField(default=list)),
    ]
