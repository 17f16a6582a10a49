"""Names that jobs and nodes refer to, for `tenants.names`."""

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
    """Return the existing GPU types, and those that a node has or a pod had."""
    known = names.gpu_type_names()
    nodes, pods = NodeRecord.objects.all(), Placement.objects.all()
    return replace(known, sources=(*known.sources, (nodes, "gpu_model"), (pods, "gpu_model")))


def submitter_names(user: "Viewer", jobs: QuerySet[Job]) -> Names:
    """Return users whom the user may know or who submitted one of the jobs, and “me”."""
    known = names.user_names(user)
    return replace(known, sources=(*known.sources, (jobs, "user__username")), fixed=("me",))


def queue_names(user: "Viewer", jobs: QuerySet[Job]) -> Names:
    """Return the queues that the user may see, and those that one of the jobs was in."""
    sources = ((visible_queues(user), "name"), (jobs, "queue"))
    return Names("queue", sources, limited=True, listed="queues")


# Of containers and pods that fail. Kubelets may give others, too.
OF_KUBELETS = (
    "Error", "OOMKilled", "ContainerCannotRun", "StartError", "ContainerStatusUnknown", "Evicted",
    "DeadlineExceeded", "UnexpectedAdmissionError",
)  # fmt: skip


def reason_names(jobs: QuerySet[Job]) -> Names:
    """Return the reasons why jobs wait, those of kubelets, and those that one of the jobs has."""
    told = jobs.exclude(reason="")
    return Names("reason", ((told, "reason"),), fixed=(*Reason, *OF_KUBELETS))


def node_names(since: datetime) -> Names:
    """Return the existing nodes, and those on which a pod ended since then."""
    pods = Placement.objects.filter(ended_at__gte=since)
    return Names("node", ((NodeRecord.objects.all(), "name"), (pods, "node")))
