from collections.abc import Mapping

from django.db import migrations

BEFORE = {"training": "binpack", "inference": "binpack", "development": "binpack"}


def spelt_out(document):
    """The document with what it left to the defaults, as they have been until now."""
    strategies = document.get("strategies", {})
    if isinstance(strategies, Mapping):
        strategies = BEFORE | strategies
    return {**document, "strategies": strategies, "preemption": document.get("preemption", [])}


def keep(apps, _schema_editor):
    """Clusters that are there already go on by the policy that they had."""
    policies = apps.get_model("scheduling", "ClusterPolicy").objects
    clusters = apps.get_model("scheduling", "Cluster").objects
    for row in policies.iterator():
        row.document = spelt_out(row.document)
        row.save(update_fields=["document"])
    for cluster in clusters.filter(policy=None):
        policies.create(cluster=cluster, document=spelt_out({}))


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0023_when_pods_run"),
    ]

    operations = [
        migrations.RunPython(keep, migrations.RunPython.noop, elidable=True),
    ]
