"""Names of what jobs and nodes tell of, for `tenants.names`."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import QuerySet

from scheduling.engine.verdict import Reason
from scheduling.models import Cluster, Job, NodeRecord, Placement
from tenants import names
from tenants.names import Names
from tenants.selectors import visible_queues

if TYPE_CHECKING:
    from tenants.names import Viewer


def cluster_names() -> Names:
    return Names("cluster", ((Cluster.objects.all(), "name"),), listed="clusters")


def gpu_type_names() -> Names:
    """GPU types that there are, and those that a node has or a pod had."""
    known = names.gpu_type_names()
    nodes, pods = NodeRecord.objects.all(), Placement.objects.all()
    return replace(known, sources=(*known.sources, (nodes, "gpu_model"), (pods, "gpu_model")))


def submitter_names(user: "Viewer", jobs: QuerySet[Job]) -> Names:
    """Those whom the user may know, and whoever submitted one of the jobs; “me” too."""
    known = names.user_names(user)
    return replace(known, sources=(*known.sources, (jobs, "user__username")), fixed=("me",))


def queue_names(user: "Viewer", jobs: QuerySet[Job]) -> Names:
    """Queues that the user may see, and those that one of the jobs was in."""
    sources = ((visible_queues(user), "name"), (jobs, "queue"))
    return Names("queue", sources, limited=True, listed="queues")


# Of containers and pods that end badly. Kubelets may give others, too.
OF_KUBELETS = (
    "Error", "OOMKilled", "ContainerCannotRun", "StartError", "ContainerStatusUnknown", "Evicted",
    "DeadlineExceeded", "UnexpectedAdmissionError",
)  # fmt: skip


def reason_names(jobs: QuerySet[Job]) -> Names:
    """Why jobs wait, how kubelets say that pods fail, and what one of the jobs says."""
    told = jobs.exclude(reason="")
    return Names("reason", ((told, "reason"),), fixed=(*Reason, *OF_KUBELETS))


def node_names(since: datetime) -> Names:
    """Nodes that there are, and those on which a pod ended since then."""
    pods = Placement.objects.filter(ended_at__gte=since)
    return Names("node", ((NodeRecord.objects.all(), "name"), (pods, "node")))
