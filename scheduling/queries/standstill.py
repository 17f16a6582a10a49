"""Whether a scheduler decides on a cluster now, as far as the cluster's row shows."""

from datetime import datetime

from django.utils import timezone

from scheduling.models import Cluster

SILENT_S = 15.0  # a scheduler reports every second; older rows say little about now


def standstill(cluster: Cluster) -> str:
    """Return why nothing is decided on the cluster now, a sentence or two.

    "" = a scheduler is at work there.
    """
    name, heard = cluster.name, cluster.last_cycle_at
    if not cluster.is_active:
        return f"Cluster {name} is not active."
    remedy = "An operator must check that the scheduler processes run."
    if heard is None:
        return f"The scheduler of cluster {name} has not been heard from yet. {remedy}"
    if (timezone.now() - heard).total_seconds() > SILENT_S:
        at = f"{heard:%Y-%m-%d %H:%M:%S} UTC"
        return f"The scheduler of cluster {name} was last heard from at {at}. {remedy}"
    if cluster.connected:
        return ""
    if cluster.status_message:
        return f"The scheduler cannot work on cluster {name}: {cluster.status_message}"
    return f"The scheduler has no connection to cluster {name}."


def remarks(cluster: Cluster) -> str:
    """Return what operators should know of a cluster with a scheduler at work; "" = nothing."""
    return "" if standstill(cluster) else cluster.status_message


def silence(cluster: Cluster, now: datetime) -> str:
    """Return the same for an active cluster in a few words.

    For example “not heard from since 09:30:05 UTC”.
    """
    heard = cluster.last_cycle_at
    if heard is None:
        return "not heard from yet"
    if (now - heard).total_seconds() > SILENT_S:
        return f"not heard from since {heard:%Y-%m-%d %H:%M:%S} UTC"
    return "" if cluster.connected else "its scheduler cannot reach it"
