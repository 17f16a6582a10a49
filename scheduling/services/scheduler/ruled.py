"""Places of pods about which rules between pods speak, in a divided cluster.

Two scopes that decide at the same instant do not know of each other's pods. So who is about to
write such places keeps the others from it until its transaction ends, and reads which places they
have written that its session has not seen in the cluster yet. Where there are any, its own are put
back: it decides again when it has seen those pods, or they have no place any more.

Whether a rule speaks of a pod a session does not know before it has heard of the pod that has the
rule. So who places pods that keep away from a group tells its name, and who knows of no such group
treats all of its pods as if rules spoke of them. All others pay one row that is read.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.types import PodRules
from scheduling.models import Placement, ToldGroups
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.services.common.lease import Lease
from scheduling.session.memory.live import LiveJob, LivePod

# A watch that is behind by more than this has been made anew long since.
FRESH_S = 600.0
# By so much the clocks of schedulers may differ, and a transaction may last.
MARGIN_S = 60.0

PlacedPod = tuple[str, str, str]  # namespace, name and node
Seen = Callable[[], Set[PlacedPod]]
Intents = Sequence[tuple[LiveJob, LivePod]]


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


class Elsewhere(NamedTuple):
    """What a session knows of the other scopes, which pods of the cluster it has seen on nodes, and
    whether it has heard of pods that speak of a group."""

    neighbours: Neighbours
    seen: Seen
    knows: Callable[[str], bool]


def jobs_to_put_back(
    lease: Lease, intents: Intents, elsewhere: Elsewhere, now: datetime
) -> set[str]:
    """Of the jobs that get places those that have to wait until this session has seen what other
    scopes have placed. From here on to the end of the transaction no other scope of the cluster
    writes places of pods of which rules speak, and with such places none at all. Call it before
    rows of other scopes are changed."""
    if lease.scope == WHOLE:
        return set()
    ruled = [(job.id, rules) for job, pod in intents if (rules := _ruled(job, pod)) is not None]
    told = _hold(lease, alone=bool(ruled))
    fresh = (now - timedelta(seconds=FRESH_S)).timestamp()
    unknown = any(at >= fresh and not elsewhere.knows(group) for group, at in told.items())
    waiting = {job.id for job, _ in intents} if unknown else {job_id for job_id, _ in ruled}
    if waiting and elsewhere.neighbours.unseen(lease, elsewhere.seen, now):
        return waiting
    if groups := {apart.group for _, rules in ruled for apart in rules.apart}:
        _tell(lease, told, groups, now)
    return set()


def _hold(lease: Lease, *, alone: bool) -> dict[str, float]:
    """Hold the row of what was told, `alone` or with others who do not want it alone; returns what
    was told. Writers to SQLite take turns anyway."""
    sql = f"SELECT * FROM {ToldGroups._meta.db_table} WHERE cluster_id = %s"
    if connection.vendor == "postgresql":
        sql += " FOR UPDATE" if alone else " FOR SHARE"
    for row in ToldGroups.objects.raw(sql, [lease.cluster_id]):
        return dict(row.apart)
    return {}


def _tell(lease: Lease, told: Mapping[str, float], groups: Set[str], now: datetime) -> None:
    """Say that pods have places that keep away from these groups; seldom of the same again."""
    at = now.timestamp()
    if all(told.get(group, 0.0) > at - FRESH_S / 2 for group in groups):
        return
    kept = {group: then for group, then in told.items() if then >= at - FRESH_S - MARGIN_S}
    apart = kept | dict.fromkeys(groups, at)
    ToldGroups.objects.filter(cluster_id=lease.cluster_id).update(apart=apart)


def _ruled(job: LiveJob, pod: LivePod) -> PodRules | None:
    """The rules of the pod, if they are about others."""
    rules = job.request.pod_sets[pod.place.pod_set].rules
    return rules if rules is not None and _is_about_others(rules) else None


def _is_about_others(rules: PodRules) -> bool:
    """Whether it matters for them where pods on other nodes are; `groups`: others ask where these
    are."""
    return bool(rules.groups or rules.apart or rules.near or rules.spread or rules.sole)
