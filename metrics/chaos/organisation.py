"""Tenants, quotas, a policy and the cluster of a chaos run, in the database of the settings.

Run as a module with the path of a kubeconfig and the policy's shards in JSON; prints an operator's
API token.
"""

import json
import os
import sys

import django

CLUSTER = "chaos"
ROOT = "lab"
TENANTS = ("red", "blue")  # each is guaranteed half of the cluster
NAMESPACE = "default"  # of the tenants' plain pods
GANG_TIMEOUT_S = 10.0
# Short times: a fault and Kant's reaction must fit into one round.
POLICY = {
    "queueing": "backfill",
    "preemption": ["priority", "reclaim"],
    "min_runtime_s": 1.0,
    "gang_timeout_s": GANG_TIMEOUT_S,
    "backoff_base_s": 0.5,
    "backoff_cap_s": 2.0,
    "max_attempts": 50,
    "node_loss_s": 2.0,
    "node_loss_saved_s": 1.0,
}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")
    django.setup()
    # Models can be imported only after Django is set up.
    from metrics.benches.stage import GPUS, MODEL
    from metrics.chaos.shape import NODES
    from scheduling.services.clusters.changes import create_cluster
    from scheduling.services.policies.changes import change_policy
    from tenants.models import User
    from tenants.services.gpu_types import create_gpu_type
    from tenants.services.quota_terms import QuotaChange, QuotaTerms
    from tenants.services.quotas import change_quota
    from tenants.services.tenant_terms import TenantTerms
    from tenants.services.tenants import create_tenant
    from tenants.services.tokens import create_token

    source = "command"
    operator = User.objects.create_user("operator", is_operator=True)
    gpu_type = create_gpu_type(operator, MODEL, memory_mib=81559, source=source)
    gpus = NODES * GPUS
    for name, parent, guaranteed in (
        (ROOT, None, gpus),
        *((name, ROOT, gpus // len(TENANTS)) for name in TENANTS),
    ):
        tenant = create_tenant(operator, name, TenantTerms(parent=parent), source=source)
        change_quota(
            operator,
            QuotaChange(tenant, gpu_type, 0, "Chaos run", source),
            QuotaTerms(guaranteed * 1000),
        )
    values = {
        "access": {"kubeconfig": sys.argv[1]},
        "namespace_tenants": {NAMESPACE: list(TENANTS)},
    }
    cluster = create_cluster(operator, CLUSTER, values, source=source)
    policy = {**POLICY, "shards": json.loads(sys.argv[2])}
    change_policy(operator, cluster, policy, expected_version=0, source=source)
    print(create_token(operator, "chaos").secret)


if __name__ == "__main__":
    main()
