"""Waits are counted by cluster and GPU type too; those that were not stay, under "" for both."""

from django.db import migrations


def divide(apps, schema_editor):
    for row in apps.get_model("metrics", "CounterTotals").objects.exclude(waits={}):
        row.waits = {"": {"": row.waits}}
        row.save()


def join(apps, schema_editor):
    for row in apps.get_model("metrics", "CounterTotals").objects.all():
        joined = {}
        for models in row.waits.values():
            for sizes in models.values():
                for size, kept in sizes.items():
                    sums = joined.setdefault(size, {**kept, "count": 0, "sum_us": 0, "within": [0] * len(kept["within"])})
                    sums["count"] += kept["count"]
                    sums["sum_us"] += kept["sum_us"]
                    sums["within"] = [a + b for a, b in zip(sums["within"], kept["within"], strict=True)]
        row.waits = joined
        row.save()


class Migration(migrations.Migration):

    dependencies = [
        ("metrics", "0003_countertotals"),
    ]

    operations = [
        migrations.RunPython(divide, join),
    ]
