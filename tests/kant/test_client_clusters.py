"""`kant clusters NAME` against a real Kant server."""

import json
import re

from scheduling.models import ClusterPolicy


def test_a_cluster_and_its_policy_in_force(kant):
    code, out, _ = kant("clusters", "demo")
    assert (code, "the defaults; nothing was changed" in out) == (0, True)
    assert re.search(r"^queueing +best-effort-fifo$", out, re.MULTILINE)
    ClusterPolicy.objects.create(
        cluster=kant.org.cluster,
        document={
            "queueing": "backfill",
            "fair_share": True,
            "preemption": ["reclaim"],
            "shards": [{"name": "train", "gpu_models": ["H100"]}, {"name": "rest"}],
        },
        version=3,
    )
    out = kant("clusters", "demo")[1]
    fields = {"policy": "3", "queueing": "backfill", "fair_share": "yes", "preemption": "reclaim"}
    for name, told in {**fields, "shards": "train, rest"}.items():
        assert re.search(rf"^{name} +{told}$", out, re.MULTILINE), out
    assert re.search(r"^strategies +training=e-binpack, ", out, re.MULTILINE)
    told = json.loads(kant("clusters", "demo", "-o", "json")[1])
    assert (told["cluster"]["name"], told["policy"]["version"]) == ("demo", 3)
    assert kant("clusters", "none")[0] == 3
