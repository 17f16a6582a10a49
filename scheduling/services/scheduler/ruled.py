"""Places of pods that pod rules are about, in a divided cluster.

Two scopes that decide at the same time do not know each other's pods. So a scope that is about to
write such places locks out the others until its transaction ends, and reads which places they have
written that its session has not yet seen in the cluster. If there are any, its own jobs are put
back: it decides again once it has seen those pods, or they no longer have a place.

A session does not know that a rule is about a pod before it has seen the pod with the rule. So a
scope that places pods which keep away from a group publishes the group's name, and a scope that
does not know such a group treats all of its pods as if rules were about them. Everybody else pays
for reading one row.
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

# A watch that is behind by more than this has long been renewed.
FRESH_S = 600.0
# The most by which schedulers' clocks may differ, and a transaction may last.
MARGIN_S = 60.0

PlacedPod = tuple[str, str, str]  # namespace, name and node
Seen = Callable[[], Set[PlacedPod]]
Intents = Sequence[tuple[LiveJob, LivePod]]


@dataclass(slots=True)
class Neighbours:
    """What a session knows of places in other scopes: all that were written before `since`."""

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
    """What a session knows of the cluster beyond its scope.

    - `neighbours`: the places of other scopes.
    - `seen`: returns the pods of the cluster seen on nodes.
    - `knows`: whether a pod that names a group has been seen.
    """

    neighbours: Neighbours
    seen: Seen
    knows: Callable[[str], bool]


def jobs_to_put_back(
    lease: Lease, intents: Intents, elsewhere: Elsewhere, now: datetime
) -> set[str]:
    """Return the jobs that must wait until this session has seen what other scopes placed.

    From here to the end of the transaction, no other scope of the cluster writes places of pods
    that rules are about; if `intents` have such places, other scopes write none at all. Call this
    before changing rows of other scopes.
    """
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
    """Lock the row of published groups, `alone` or shared; return the groups.

    Writers to SQLite take turns anyway.
    """
    sql = f"SELECT * FROM {ToldGroups._meta.db_table} WHERE cluster_id = %s"
    if connection.vendor == "postgresql":
        sql += " FOR UPDATE" if alone else " FOR SHARE"
    for row in ToldGroups.objects.raw(sql, [lease.cluster_id]):
        return dict(row.apart)
    return {}


def _tell(lease: Lease, told: Mapping[str, float], groups: Set[str], now: datetime) -> None:
    """Publish that pods with places keep away from these groups; rarely repeat it."""
    at = now.timestamp()
    if all(told.get(group, 0.0) > at - FRESH_S / 2 for group in groups):
        return
    kept = {group: then for group, then in told.items() if then >= at - FRESH_S - MARGIN_S}
    apart = kept | dict.fromkeys(groups, at)
    ToldGroups.objects.filter(cluster_id=lease.cluster_id).update(apart=apart)


def _ruled(job: LiveJob, pod: LivePod) -> PodRules | None:
    """Return the rules of the pod, if they concern others."""
    rules = job.request.pod_sets[pod.place.pod_set].rules
    return rules if rules is not None and _is_about_others(rules) else None


def _is_about_others(rules: PodRules) -> bool:
    """Whether the place of pods on other nodes matters to these rules.

    `groups` count, as rules of others ask where these pods are.
    """
    return bool(rules.groups or rules.apart or rules.near or rules.spread or rules.sole)
