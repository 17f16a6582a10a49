"""A tenant with quota, and the cluster with its pods, in the database of the settings.

Run as a module with the cluster's `access` in JSON, the namespace, the tenant's name and its GPUs.
"""

import json
import os
import sys

import django


def main(access: str, namespace: str, tenant_name: str, gpus: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")
    django.setup()
    # Models can be imported only after Django is set up.
    from metrics.benches.stage import MODEL
    from scheduling.models import Cluster, ClusterPolicy
    from tenants.models import GpuType, Quota, Tenant

    tenant = Tenant.objects.create(name=tenant_name)
    gpu_type = GpuType.objects.create(name=MODEL)
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=int(gpus) * 1000)
    cluster = Cluster.objects.create(
        name="bench",
        access=json.loads(access),
        namespace_tenants={namespace: [tenant_name]},
    )
    ClusterPolicy.objects.create(cluster=cluster)


if __name__ == "__main__":
    main(*sys.argv[1:])
