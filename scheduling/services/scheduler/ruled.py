"""Places of pods about which rules between pods speak, in a divided cluster.

Two scopes that decide at the same instant do not know of each other's pods. So who is about to
write such places keeps the others from it until its transaction ends, and reads which places they
have written that its session has not seen in the cluster yet. Where there are any, its own are put
back: it decides again when it has seen those pods, or they have no place any more. Pods of which no
rule speaks pay nothing.
"""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.types import PodRules
from scheduling.models import Placement
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.services.common.lease import Lease
from scheduling.session.memory.live import LiveJob, LivePod

LOCK = 0x6B72  # of the keys of advisory locks
# A watch that is behind by more than this has been made anew long since.
FRESH_S = 600.0
# By so much the clocks of schedulers may differ, and a transaction may last.
MARGIN_S = 60.0

PlacedPod = tuple[str, str, str]  # namespace, name and node
Seen = Callable[[], Set[PlacedPod]]
Intents = Iterable[tuple[LiveJob, LivePod]]


@dataclass(slots=True)
class Neighbours:
    """What a session knows of places of other scopes: all that were written before `since`."""

    since: datetime | None = None

    def unseen(self, lease: Lease, seen: Seen, now: datetime) -> bool:
        """Whether other scopes have written places of pods that the session has not `seen`."""
        longest = now - timedelta(seconds=FRESH_S)
        since = longest if self.since is None else max(longest, self.since)
        rows = Placement.objects.filter(
            job__cluster_id=lease.cluster_id, state__in=LIVE_PLACEMENTS, intended_at__gte=since
        ).exclude(job__scope=lease.scope)
        fresh = set(rows.values_list("namespace", "pod_name", "node"))
        if fresh and not fresh <= seen():
            return True
        self.since = now - timedelta(seconds=MARGIN_S)
        return False


def jobs_to_put_back(
    lease: Lease, intents: Intents, neighbours: Neighbours, seen: Seen, now: datetime
) -> set[str]:
    """Of the jobs that get places those that have to wait until this session has seen what other
    scopes have placed. From here on to the end of the transaction no other scope of the cluster
    writes such places. Call it before rows of other scopes are changed."""
    ruled = {job.id for job, pod in intents if _is_ruled(job, pod)}
    if not ruled or lease.scope == WHOLE:
        return set()
    if connection.vendor == "postgresql":  # elsewhere writers take turns anyway
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK, lease.cluster_id])
    return ruled if neighbours.unseen(lease, seen, now) else set()


def _is_ruled(job: LiveJob, pod: LivePod) -> bool:
    rules = job.request.pod_sets[pod.place.pod_set].rules
    return rules is not None and _is_about_others(rules)


def _is_about_others(rules: PodRules) -> bool:
    """Whether it matters for them where pods on other nodes are; `groups`: others ask where these
    are."""
    return bool(rules.groups or rules.apart or rules.near or rules.spread or rules.sole)
